# Everything a user or a machine calls. `make` alone explains.
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

PYTHON ?= python3
CORES ?= all
NAME ?= default
CONFIG ?= config/config.yaml
BIN := .venv/bin
export PATH := $(CURDIR)/$(BIN):$(PATH)
# Only what is locked may be imported, whatever a home folder holds.
export PYTHONNOUSERSITE := 1
unexport PYTHONPATH

.PHONY: help
help: ## show this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 16

.PHONY: venv
venv: ## create .venv with the locked packages
	@$(PYTHON) tools/setup_venv.py

.PHONY: reproduce
reproduce: venv ## train, evaluate and tabulate the default benchmark (CONFIG, NAME, CORES)
	snakemake --cores $(CORES) --configfile $(CONFIG)
	snakemake --cores 1 --configfile $(CONFIG) --report results/$(NAME)/report.html
	@cat results/$(NAME)/tables/*.md
	@echo "tables: results/$(NAME)/tables, figures: results/$(NAME)/figures, report: results/$(NAME)/report.html"

.PHONY: report
report: venv ## one HTML page with all tables and figures of a finished benchmark
	snakemake --cores 1 --configfile $(CONFIG) --report results/$(NAME)/report.html

.PHONY: test
test: venv lint ## all checks and tests, with coverage
	python -m pytest --cov=odin --cov-report=term --cov-fail-under=85

.PHONY: bench
bench: venv ## paired measurements of the parts (BENCH="rendering ...", default all)
	python -m benchmarks $(BENCH)

.PHONY: lint
lint: venv ## style, layers, types and the workflow's own lint
	ruff check .
	ruff format --check .
	snakefmt --check Snakefile workflow
	lint-imports
	snakemake --lint
	codespell

.PHONY: types
types: venv ## static types
	mypy

.PHONY: lock
lock: venv ## pin the dependencies again (UPGRADE=1 for newest versions)
	python tools/lock.py $(if $(UPGRADE),--upgrade)

.PHONY: schema
schema: venv ## write the config's JSON schema and table of keys
	python -m odin.config

.PHONY: clean-results
clean-results: ## delete everything under results/NAME, asking first
	@read -r -p "delete results/$(NAME)? [y/N] " answer; \
	if [ "$$answer" = y ]; then rm -rf "results/$(NAME)"; fi
