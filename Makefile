# Every target does its own set-up: `make demo` and `make test` work on a fresh clone.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.complete
PEERS := $(VENV)/.bench-peers
# Further arguments for the program of a target, as in: make test ARGS='-k doctor'
ARGS ?=

.PHONY: help venv demo test lint bench generate clean components

help: ## say what there is
	@grep -E '^[a-z]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):.*## (.*)/make \1\t\2/' | expand -t 16

venv: $(STAMP) ## create .venv with gpufleet (editable), its extras and the development tools

$(STAMP): pyproject.toml tools/make-venv
	tools/make-venv $(VENV)
	touch $(STAMP)

demo: $(STAMP) ## run the exporter on a scripted 8-GPU node; needs no GPU (ARGS="…" for flags)
	$(BIN)/gpufleet demo $(ARGS)

test: $(STAMP) components lint ## everything CI runs; on Debian or Ubuntu as root it installs what the tests run
	$(BIN)/pytest $(ARGS)

components:
	tools/install-packages
	tools/build-prometheus
	tools/build-kubernetes

lint: $(STAMP) ## ruff, mypy --strict, import contracts
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: $(STAMP) $(PEERS) ## measure cost and speed beside what one would use instead; prints a table
	$(BIN)/pytest tests/bench --timeout=900 --benchmark-sort=fullname --benchmark-columns=median,mean,stddev,ops,rounds $(ARGS)

$(PEERS): $(STAMP)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[bench-peers]'
	touch $(PEERS)

generate: $(STAMP) ## write the files that come from others: docs/metrics.md, alerts/, dashboards/
	$(BIN)/python -m gpufleet.metrics.document
	$(BIN)/python tools/generate-mixin

clean: ## remove what the targets above made in this folder (built tools stay in the user's cache)
	rm -rf $(VENV) dist build .benchmarks .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
