# Needs Python 3.11 or newer, git and make. `make demo` and `make test` each work as the first command.

PYTHON ?= $(shell for p in python3.11 python3.12 python3.13 python3; do command -v $$p && break; done)
PY := .venv/bin/python
# The environment is made anew when what it is made from changes, whatever the files' times say.
STAMP := .venv/.made-from-$(shell cat requirements.lock pyproject.toml | cksum | cut -d ' ' -f 1)
PYTEST := $(PY) -m pytest
# Tests of real processes have deadlines, which a busy machine can break. What failed runs once more, by itself; twice is a failure.
AGAIN := { test $$? -eq 1 && echo 'again, one at a time, what failed:' && $(PYTEST) --last-failed --last-failed-no-failures none -m "not slow"; }
DEBIAN_15 := /usr/lib/postgresql/15/bin/initdb

.DEFAULT_GOAL := help
.PHONY: help demo test lint bench migrate test-long mutants lock clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-9s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: $(STAMP) ## 40 paid calls, workers killed on the way, nothing lost: on a Postgres and providers of its own
	.venv/bin/callkeeper demo

test: lint ## lint, then the tests; on Debian's PostgreSQL 15 too where it is installed
	$(PYTEST) -m "not slow" -n 3 --dist loadfile --no-loadscope-reorder || $(AGAIN)
	@if [ -x $(DEBIAN_15) ]; then \
	  echo 'the store on PostgreSQL 15:' && export CALLKEEPER_TEST_PG=15 && \
	  { $(PYTEST) tests/store --ignore tests/store/test_embedded.py -m "not slow" -n 3 --dist loadfile --no-loadscope-reorder || $(AGAIN); }; \
	fi

lint: $(STAMP) ## ruff, mypy, import-linter, squawk, sizes, names
	.venv/bin/ruff check
	.venv/bin/ruff format --check
	.venv/bin/mypy
	.venv/bin/lint-imports
	$(PY) scripts/lint_migrations.py
	$(PY) scripts/check_sizes.py
	$(PY) scripts/check_names.py

bench: $(STAMP) ## measurements, each beside its yardstick
	$(PY) -m bench

migrate: $(STAMP) ## bring the database of DATABASE_URL up to this code
	.venv/bin/callkeeper migrate

test-long: $(STAMP) ## the long suites: kills, pauses, crashes, large numbers
	CALLKEEPER_RANDOM=1 $(PYTEST) tests -m slow

mutants: $(STAMP) ## take each guard away and see the tests fail
	$(PY) -m tests.machine.mutants

lock: ## write requirements.lock anew from pyproject.toml
	$(PYTHON) -m venv --clear .callkeeper/lock
	.callkeeper/lock/bin/pip install --quiet uv
	echo 'setuptools>=77,<90' | .callkeeper/lock/bin/uv pip compile pyproject.toml - --extra dev --universal \
	  --python-version 3.11 --upgrade --no-header --no-annotate --quiet --output-file requirements.lock

clean: ## remove what make made here
	rm -rf .venv .callkeeper build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis

$(STAMP): requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed: make PYTHON=...")'
	@test -x $(PY) || $(PYTHON) -m venv .venv
	$(PY) -m pip install --quiet --disable-pip-version-check -r requirements.lock
	$(PY) -m pip install -qq --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@rm -f .venv/.made-from-* && touch $@
