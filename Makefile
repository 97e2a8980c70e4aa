# Two commands set up a fresh machine: `make demo` and `make test`.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
READY := $(VENV)/.installed

.PHONY: demo test slow chaos lint types docs env clean

demo: $(READY)  ## Install, and find the bias that is planted in the embedded model.
	$(BIN)/raybias demo --out out/demo

# Test processes wait for Ray more than they compute, hence more of them than cores; one thread
# each, since threads of processes that share cores wait for one another. In their own order, so that
# tests/cluster comes first and other rooms' tests fill its pauses.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest

test: $(READY)  ## Install, and pass the tests.
	$(PYTEST) --numprocesses 3 --dist loadfile --no-loadscope-reorder

slow: $(READY) .moto/.installed  ## The long checks.
	RAYBIAS_MOTO=$(CURDIR)/.moto/bin/moto_server $(PYTEST) -m slow

.moto/.installed: tests/moto.txt
	$(PYTHON) -m venv .moto
	.moto/bin/pip install --quiet --requirement tests/moto.txt
	touch $@

chaos: $(READY)  ## Nodes that come and go on a cluster that scales itself.
	$(PYTEST) -m chaos

lint: $(READY)  ## Style, and which room may import which.
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports

types: $(READY)
	$(BIN)/mypy

docs: $(READY)  ## Generate docs/reference from the package.
	$(BIN)/python docs/reference.py

env: $(READY)

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $(READY)

clean:
	rm -rf $(VENV) .moto out build *.egg-info
