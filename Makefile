# Everything a contributor does, by name. A fresh machine needs Python 3.11 or newer (with pip) and make.
#
#   make test PYTEST_ARGS='-k lease'      make run ARGS=--until-idle      make test PYTHON=python3.13

PYTHON ?= python3
WORKERS ?= 4
SEEDS ?= 20
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check

# Two stamps say what is installed: the tools of development, or only what the examples need. Whoever has the first
# has the second. A change of pyproject.toml makes both out of date.
DEV := $(VENV)/dev.stamp
EXAMPLE := $(if $(wildcard $(DEV)),$(DEV),$(VENV)/examples.stamp)

.DEFAULT_GOAL := help
.PHONY: help run newsletter test soak matrix coverage mutants lint bench docs screenshots clean

help: ## say what can be made
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-11s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

run: $(EXAMPLE) ## show all of it: a town, and the dashboard (ARGS=--until-idle ends by itself)
	$(BIN)/python examples/town/run.py $(ARGS)

newsletter: $(EXAMPLE) ## the smallest example: one newsletter (ARGS=--until-idle ends when all is sent)
	$(BIN)/python examples/newsletter/run.py $(ARGS)

# `worksteal`: whole days and kills take seconds, plans take microseconds, so an idle worker takes over what another
# has queued. No test needs to share a worker with another one (`loadgroup`): each has a database of its own.
# The dashboard is looked at in Chromium where there is one; who may install it gets it, others see those tests skipped.
test: $(DEV) ## run the tests on real databases (PYTEST_ARGS='-k lease', WORKERS=2)
	@command -v chromedriver >/dev/null || test "$$(id -u)" != 0 || apt-get install -y -qq chromium chromium-driver >/dev/null 2>&1 || true
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal $(PYTEST_ARGS)

soak: $(DEV) ## run what needs time: every kill, large seeds, whole stories on each database (SEEDS=100)
	DULY_SEEDS=$(SEEDS) $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal -m 'soak or hypothesis' $(PYTEST_ARGS)

matrix: $(DEV) ## the core of the tests on every Python that is there, with each SQLAlchemy (ARGS=--help)
	$(BIN)/python -m tools.matrix $(ARGS)

# The report is made also where a test fails; the exit code is that of the tests.
coverage: $(DEV) ## measure which branches the tests take, and name the ten files that lack most (PYTEST_ARGS, WORKERS)
	@rm -rf .coverage && mkdir .coverage
	$(BIN)/python -m coverage run -m pytest -n $(WORKERS) --dist worksteal --timeout 600 $(PYTEST_ARGS); code=$$?; \
	$(BIN)/python -m coverage combine --quiet && $(BIN)/python -m coverage report --sort=cover >.coverage/report.txt && \
	head -12 .coverage/report.txt && grep TOTAL .coverage/report.txt && echo "All files: .coverage/report.txt" && exit $$code

mutants: $(DEV) ## break what decides in every way, and name what no test notices (ARGS=src/duly/jobs/settle.py)
	$(BIN)/python -m tools.mutants $(ARGS)

lint: $(DEV) ## check style, types and the direction of imports
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/mypy --config-file tests/mypy.ini
	$(BIN)/lint-imports

bench: $(DEV) ## measure (ARGS=--help says what)
	$(BIN)/python -m bench $(ARGS)

docs: $(VENV)/docs.stamp ## check every link of the documentation, and build its site into site/
	$(BIN)/python docs/check_links.py
	$(BIN)/sphinx-build --quiet --fail-on-warning -c docs -b html . site
	@echo "The site is in site/: open site/docs/index.html"

screenshots: $(DEV) ## take the pictures of docs/screenshots (needs chromium and chromium-driver)
	DULY_SCREENSHOTS=1 $(BIN)/python -m pytest tests/web/dashboard/test_browser.py -k 'in_order or phone'

clean: ## remove caches and build results; the virtualenv stays
	rm -rf build dist site .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache .coverage .mutants
	find . -name __pycache__ -not -path './$(VENV)/*' -prune -exec rm -rf {} +

# `venv` does nothing to an environment that is there, and repairs one that was left half-made.
define make_venv
@$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit("Duly needs Python 3.11 or newer: make PYTHON=python3.13 …")'
@test -x $(BIN)/pip || $(PYTHON) -m venv $(VENV)
endef

$(VENV)/docs.stamp: $(DEV)
	$(PIP) --editable '.[docs]'
	@touch $@

$(VENV)/dev.stamp: pyproject.toml
	$(make_venv)
	$(PIP) --editable '.[dev]'
	@touch $@

$(VENV)/examples.stamp: pyproject.toml
	$(make_venv)
	$(PIP) --editable '.[mail,publishing,yaml,ai,web]' 'aiosmtpd>=1.4.6'
	@touch $@
