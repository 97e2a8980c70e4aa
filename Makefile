# Two commands set up a fresh machine: `make demo` and `make test`.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
READY := $(VENV)/.installed

.PHONY: demo test lint types env clean

demo: $(READY)  ## Install, and find the bias that is planted in the embedded model.
	$(BIN)/raybias demo --out out/demo

test: $(READY)  ## Install, and pass the tests.
	$(BIN)/python -m pytest

lint: $(READY)  ## Style, and which room may import which.
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports

types: $(READY)
	$(BIN)/mypy

env: $(READY)

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $(READY)

clean:
	rm -rf $(VENV) out build *.egg-info
