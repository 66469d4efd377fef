# Every target does its own set-up: `make demo` and `make test` work on a fresh clone.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.complete
LINTED := exporter tests

.PHONY: help venv demo test lint bench generate clean

help: ## say what there is
	@grep -E '^[a-z]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):.*## (.*)/make \1\t\2/' | expand -t 16

venv: $(STAMP) ## create .venv with gpufleet (editable), its extras and the development tools

$(STAMP): pyproject.toml tools/make-venv
	tools/make-venv $(VENV)
	touch $(STAMP)

demo: $(STAMP) ## run the exporter on a scripted 8-GPU node; needs no GPU
	$(BIN)/gpufleet demo
