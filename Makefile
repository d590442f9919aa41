# compilewatch: `make sweep` and `make test` are all you need; the rest is for those who build it.
SHELL := /bin/bash
.DEFAULT_GOAL := help
BIN := .venv/bin
ARGS ?=
export TORCH_INDEX PYTHON

# Processes that run tests: two share the work of a laptop's cores, and more take memory for torch.
WORKERS ?= 2
PYTEST := $(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder

.PHONY: help setup setup-dev sweep pipeline test test-all test-pythons mutants quality format
.PHONY: generate bench lock clean

help: ## this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 14

setup: ## prepare .venv (quick when nothing changed)
	@scripts/setup.sh

setup-dev:
	@scripts/setup.sh dev

sweep: setup ## the 25 most-used architectures through Dynamo, with a report (ARGS=... for more)
	@$(BIN)/compilewatch sweep $(ARGS)

pipeline: ## every stage of the Jenkins job, here and without Jenkins (SHARDS=4 TARGETS=... for more)
	@scripts/pipeline.sh

test: setup-dev ## every test that this machine can run, but for the long lists (WORKERS=2)
	@$(PYTEST) $(ARGS)

test-all: setup-dev ## also the long lists of models and what takes long, with the coverage
	@$(PYTEST) --matrix --cov $(ARGS)

test-pythons: setup-dev ## what needs no torch, on each supported Python that is found
	@scripts/test_pythons.sh $(ARGS)

mutants: setup-dev ## known mistakes, put into a copy one by one: each must fail a test
	@$(BIN)/python -m scripts.mutants $(ARGS)

quality: setup-dev ## lint, format, types, generated files, the configuration of the stack
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python scripts/generate.py --check
	$(BIN)/python -m dashboards.build --check
	scripts/groovy_lint.sh
	$(BIN)/python -m scripts.check_alloy
	scripts/check_stack.sh

format: setup-dev ## let ruff rewrite what it can
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

generate: setup-dev ## rewrite the generated pages of docs/ and the dashboards
	$(BIN)/python scripts/generate.py
	$(BIN)/python -m dashboards.build

bench: setup-dev ## measure what docs/benchmarks.md states, one JSON line each
	@$(BIN)/python scripts/bench.py $(ARGS)

lock: setup-dev ## newest versions into requirements/*.txt, torch and transformers as a pair that works
	scripts/lock.sh

clean: ## remove the environment and caches, never outputs/
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache
