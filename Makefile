# Both commands create the environment in .venv themselves; nothing else is needed but Python 3.11+, git and make.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
PORT ?= 2024
VENV := .venv
RUN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: demo test stress lint types check bench studio drawing bounds licences audit clean

demo: $(STAMP)  ## the main job on the shipped collection, offline after installation
	@echo "== make demo: one request that stops, one that continues, one with missing evidence; a path; a chain"
	$(RUN)/bounded-retrieval demo

test: $(STAMP)  ## all tests
	@echo "== make test: running the test suite"
	$(RUN)/python -m pytest

lint: $(STAMP)
	$(RUN)/ruff check .
	$(RUN)/ruff format --check .

types: $(STAMP)
	$(RUN)/mypy

stress: $(STAMP)  ## the stress tests in full: faults, kills, load, hostile files and input (under an hour)
	BOUNDED_RETRIEVAL_STRESS=1 $(RUN)/python -m pytest tests/stress -s

check: lint types test

bench: $(STAMP)  ## controller latency beside the bare searches and EnsembleRetriever
	$(RUN)/python benchmarks/latency.py

studio: $(STAMP)  ## the controller as LangGraph Studio sees it, over the shipped collection; no key, no outbound connection
	LANGGRAPH_CLI_NO_ANALYTICS=1 LANGGRAPH_NO_VERSION_CHECK=true LANGSMITH_TRACING=false \
	  $(RUN)/langgraph dev --host 127.0.0.1 --port $(PORT) --no-browser --no-reload --n-jobs-per-worker 4

drawing: $(STAMP)  ## docs/bounded-graph.svg and docs/recursive-graph.svg, from the compiled graphs
	$(RUN)/python docs/draw_graph.py

bounds:  ## all tests twice: over the lowest and over the latest dependencies that pyproject.toml allows, in build/bounds
	$(PYTHON) tools/bounds.py lowest latest

licences: $(STAMP)  ## the list of what is installed, in docs/dependencies.md; fails at a licence that is not accepted
	$(RUN)/python tools/licences.py

audit: $(STAMP)  ## known vulnerabilities of what is installed; asks the package index; a package it cannot ask about is a failure
	$(PYTHON) -m venv build/audit
	build/audit/bin/python -m pip install --quiet --upgrade pip-audit
	$(RUN)/python -m pip freeze --exclude-editable >build/audit/installed.txt
	build/audit/bin/pip-audit --strict --no-deps --disable-pip --requirement build/audit/installed.txt

$(STAMP): pyproject.toml
	@echo "== setting up $(VENV) with $$($(PYTHON) --version) (first time: about a minute)"
	$(PYTHON) -m venv $(VENV)
	$(RUN)/python -m pip install --quiet --upgrade "pip>=25.1"
	$(RUN)/python -m pip install --quiet --editable . --group dev
	@touch $(STAMP)

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
