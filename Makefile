# Everything runs in .venv, which the first target that needs it makes.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
MODEL ?=
ARGS ?=
PARALLEL := -n auto --maxprocesses 4 --dist loadfile --no-loadscope-reorder

# Tests start many processes, which would compile the sources each time.
export PYTHONDONTWRITEBYTECODE :=

.DEFAULT_GOAL := help
.PHONY: help install serve test quick test-isa clients device-check device-check-bare device-check-wheels docs lint types imports \
	format clean

help: ## Show this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/  make \1	\2/' | expand -t 22

install: $(VENV)/installed ## Make .venv with the exact versions of constraints.txt

$(VENV)/installed: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed; set PYTHON=")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[test,lint]'
	@touch $@

serve: install ## Serve MODEL (a folder or hub name; empty: a built-in one) with ARGS, on port 8000
	$(BIN)/chiasm serve $(MODEL) $(ARGS)

test: install ## Run all tests that need no GPU
	$(BIN)/python -m pytest -q $(PARALLEL) $(ARGS)

quick: install ## A verdict in about a minute: all but whole engines, servers and most families
	$(BIN)/python -m pytest -q $(PARALLEL) $$($(BIN)/python -m tests.quick) $(ARGS)

test-isa: install ## Run the numeric tests with the kernels of lesser CPUs, and beside busy loops
	$(BIN)/python -m tests.isa $(ARGS)

clients: install ## Run real clients against a server on two ranks; makes .venv-clients, 7 GB
	CLIENT_ENVIRONMENTS=.venv-clients $(BIN)/python -m pytest -q tests/clients $(ARGS)

device-check: install ## On a machine with a GPU: is everything right on it, and how fast is it? About 6 minutes
	$(BIN)/python -m bench.device_check $(ARGS)

device-check-wheels: ## Collect what device-check-bare needs beside torch, for PYTHON's version or ARGS="--python 3.12"
	$(PYTHON) -m bench.device_check.wheels --out wheels $(ARGS)

device-check-bare: ## The same without network and installation: with PYTHON's own torch, and what is in wheels/
	$(PYTHON) -m bench.device_check --wheels wheels $(ARGS)

docs: install ## Write docs/reference anew from the code
	$(BIN)/python -m apidocs

lint: install ## Check style with ruff
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: install ## Check types with mypy
	$(BIN)/mypy

imports: install ## Check that rooms open only onto the floors below
	$(BIN)/lint-imports --no-cache

format: install ## Format the code
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean: ## Remove .venv, .venv-clients and what tools left behind
	rm -rf $(VENV) .venv-clients .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
