# Both commands create the environment in .venv themselves; nothing else is needed but Python 3.11+, git and make.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
PORT ?= 2024
VENV := .venv
RUN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: demo test lint types check bench studio drawing clean

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

check: lint types test

bench: $(STAMP)  ## controller latency beside the bare searches and EnsembleRetriever
	$(RUN)/python benchmarks/latency.py

studio: $(STAMP)  ## the controller as LangGraph Studio sees it, over the shipped collection; no key, no outbound connection
	LANGGRAPH_CLI_NO_ANALYTICS=1 LANGGRAPH_NO_VERSION_CHECK=true LANGSMITH_TRACING=false \
	  $(RUN)/langgraph dev --host 127.0.0.1 --port $(PORT) --no-browser --no-reload --n-jobs-per-worker 4

drawing: $(STAMP)  ## docs/bounded-graph.svg and docs/recursive-graph.svg, from the compiled graphs
	$(RUN)/python docs/draw_graph.py

$(STAMP): pyproject.toml
	@echo "== setting up $(VENV) with $$($(PYTHON) --version) (first time: about a minute)"
	$(PYTHON) -m venv $(VENV)
	$(RUN)/python -m pip install --quiet --upgrade "pip>=25.1"
	$(RUN)/python -m pip install --quiet --editable . --group dev
	@touch $(STAMP)

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
