# compilewatch: `make sweep` and `make test` are enough for users; the other targets are for contributors.
SHELL := /bin/bash
.DEFAULT_GOAL := help
BIN := .venv/bin
ARGS ?=
export TORCH_INDEX PYTHON
# Without bytecode, each process that tests or sweeps start would compile the package again.
unexport PYTHONDONTWRITEBYTECODE

# A real architecture, small enough for two minutes: two of BERT's layers in full width.
PROFILED := BertModel --size reduced --batch-sizes 1,4,8 --max-length 32 --max-seconds 6 --trace

# Processes that run tests: two share the work of a laptop's cores, and more take memory for torch.
WORKERS ?= 2
PYTEST := $(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder

.PHONY: help setup setup-dev sweep papers profile profile-clean pipeline test test-all coverage
.PHONY: test-pythons mutants quality format
.PHONY: generate docs bench lock clean profile-train profile-check profile-dashboard

help: ## show this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 20

setup: ## prepare .venv (quick if nothing has changed)
	@scripts/setup.sh

setup-dev:
	@scripts/setup.sh dev

sweep: setup ## check the 25 most used architectures with Dynamo and write a report (ARGS=... for more)
	@$(BIN)/compilewatch sweep $(ARGS)

papers: setup ## run the shipped papers through every stage on prepared replies, and write a report
	@$(BIN)/compilewatch papers run --random --max-papers 100 --folder inputs/papers/library --provider scripted $(ARGS)
	@$(BIN)/compilewatch papers publish

profile: setup ## measure a small BERT in eager mode and compiled, with report, pictures and trace
	@$(BIN)/compilewatch profile infer $(if $(ARGS),$(ARGS),$(PROFILED))

profile-clean: ## delete stored profiles (of runs, `compilewatch prune` deletes them)
	rm -rf outputs/profile-* outputs/latest-profile

pipeline: ## run every stage of the Jenkins job locally, without Jenkins (SHARDS=4 TARGETS=... for more)
	@scripts/pipeline.sh

profile-train: setup ## train BERT for some steps, eager and compiled, and measure the stages (ARGS=...)
	@$(BIN)/compilewatch profile train $(or $(ARGS),BertModel --depth reduced)

profile-check: setup ## validate the profiles in outputs/profiles and say what dominates (ARGS=DIR)
	@$(BIN)/compilewatch profile check --analysis $(ARGS)

profile-dashboard: setup ## serve the monitor page on 127.0.0.1 (ARGS="--port 8502")
	@$(BIN)/compilewatch monitor $(ARGS)

test: setup-dev ## every test but the long lists, Ray, and other environments such as xla (WORKERS=2)
	@$(PYTEST) $(ARGS)

test-all: setup-dev ## also run the long lists of models, Ray and other environments; measure the coverage
	@$(PYTEST) --matrix $(ARGS)
	@$(MAKE) --no-print-directory coverage

coverage: setup-dev ## measure what the unit tests cover; fails below the floor in pyproject.toml
	@$(BIN)/python -m pytest tests/unit --cov -q $(ARGS)

test-pythons: setup-dev ## what needs no torch, on each supported Python that is found
	@scripts/test_pythons.sh $(ARGS)

mutants: setup-dev ## known mistakes, put into a copy one by one: each must fail a test
	@$(BIN)/python -m scripts.mutants $(ARGS)

quality: setup-dev ## lint, format, types, spelling, links, generated files, the configuration of the stack
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo --no-cache
	$(BIN)/codespell
	$(BIN)/python -m scripts.check_links
	$(BIN)/python scripts/generate.py --check
	$(BIN)/python -m dashboards.build --check
	scripts/groovy_lint.sh Jenkinsfile stack/jenkins/papers.Jenkinsfile
	$(BIN)/python -m scripts.check_alloy
	$(BIN)/python -m scripts.check_inputs
	scripts/check_stack.sh
	$(BIN)/check-jsonschema --builtin-schema vendor.github-issue-forms .github/ISSUE_TEMPLATE/[!c]*.yml

format: setup-dev ## format and fix the code with ruff
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

generate: setup-dev ## rewrite the generated pages and schemas of docs/ and the dashboards
	$(BIN)/python scripts/generate.py
	$(BIN)/python -m dashboards.build

docs: .venv-docs/complete ## build the documentation site in build/site/, which works offline
	@NO_MKDOCS_2_WARNING=1 .venv-docs/bin/mkdocs build --quiet --strict
	@if grep -rnE '<(script|link|img|iframe)[^>]+(src|href)="(https?:)?//' build/site --include='*.html'; then \
	  echo "docs: these pages would load something from the network" >&2; exit 1; fi
	@echo "docs: build/site/index.html; with search: python3 -m http.server --directory build/site"

.venv-docs/complete: requirements/docs.txt
	@if [ ! -x .venv-docs/bin/python ]; then $${PYTHON:-python3} -m venv .venv-docs; fi
	@.venv-docs/bin/python -m pip install --quiet --disable-pip-version-check -r requirements/docs.txt
	@touch $@

bench: setup-dev ## run the benchmarks of docs/benchmarks.md, one JSON line each
	@$(BIN)/python scripts/bench.py $(ARGS)

lock: setup-dev ## update requirements/*.txt to the newest versions, torch and transformers as a tested pair
	scripts/lock.sh

clean: ## remove the environments and caches, never outputs/
	rm -rf .venv .venv-docs .mypy_cache .ruff_cache .pytest_cache
