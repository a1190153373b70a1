# Both commands create the environment in .venv themselves; nothing else is needed but Python 3.11+, git and make.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
PORT ?= 2024
VENV := .venv
RUN := $(VENV)/bin
STAMP := $(VENV)/.installed
BENCH := build/bench

.PHONY: demo milvus test stress lint types check bench studio drawing bounds licences audit clean

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

stress: $(STAMP)  ## the stress tests in full: faults, kills, load, hostile files and input (about an hour on two free cores)
	BOUNDED_RETRIEVAL_STRESS=1 $(RUN)/python -m pytest tests/stress -s

check: lint types test

bench: $(BENCH)/.installed  ## latency and throughput beside LangChain, LlamaIndex and Haystack, which go into build/bench
	$(BENCH)/bin/python benchmarks/latency.py --indexes build/bench-indexes --out build/latency.json --plot build/latency.svg
	$(BENCH)/bin/python benchmarks/throughput.py --indexes build/bench-indexes --out build/throughput.json

studio: $(STAMP)  ## the controller as LangGraph Studio sees it, over the shipped collection; no key, no outbound connection
	LANGGRAPH_CLI_NO_ANALYTICS=1 LANGGRAPH_NO_VERSION_CHECK=true LANGSMITH_TRACING=false \
	  $(RUN)/langgraph dev --host 127.0.0.1 --port $(PORT) --no-browser --no-reload --n-jobs-per-worker 4

milvus: $(STAMP)  ## a Milvus server on this machine, to try docs/scaling.md with; its data stays in build/milvus
	$(RUN)/milvus-lite server --data-dir build/milvus --host 127.0.0.1 --port 19530

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

$(BENCH)/.installed: pyproject.toml
	@echo "== setting up $(BENCH): the package, and what it is compared with"
	$(PYTHON) -m venv $(BENCH)
	$(BENCH)/bin/python -m pip install --quiet --upgrade "pip>=25.1"
	$(BENCH)/bin/python -m pip install --quiet --editable . --group bench
	@touch $@

$(STAMP): pyproject.toml
	@echo "== setting up $(VENV) with $$($(PYTHON) --version) (first time: about a minute)"
	$(PYTHON) -m venv $(VENV)
	$(RUN)/python -m pip install --quiet --upgrade "pip>=25.1"
	$(RUN)/python -m pip install --quiet --editable . --group dev
	@touch $(STAMP)

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
