# make demo        train from a bucket on this machine, start to finish
# make test        lint, types, tests
# make test-full   the same with the slow tests
# make fuzz        mutated shards against the parser, FUZZ_SECONDS long
# make docs        the pages as a site under site/
# make clean       remove what these made
#
# PYTHON  the interpreter to build .venv from     make test PYTHON=python3.12
# PYTEST_ARGS  more for pytest                    make test PYTEST_ARGS=-x
# TORCH   what pip installs as torch              make demo TORCH=torch==2.13.0

PYTHON ?= python3
TORCH ?= torch
FUZZ_SECONDS ?= 60

VENV := .venv
BIN := $(VENV)/bin
PIP_INSTALL := $(BIN)/python -m pip install --disable-pip-version-check -q

# The name holds the torch that was asked for, so that another TORCH installs anew.
TORCH_INSTALLED := $(VENV)/.torch-$(subst /,_,$(subst =,-,$(subst $() ,_,$(TORCH))))
DEMO_INSTALLED := $(VENV)/.installed-demo
DEV_INSTALLED := $(VENV)/.installed-dev
DOCS_INSTALLED := $(VENV)/.installed-docs

.PHONY: demo test test-full lint fuzz docs clean
.DELETE_ON_ERROR:

demo: $(DEMO_INSTALLED)
	$(BIN)/streamloader demo

test: lint
	$(BIN)/python -m pytest -m "not slow" $(PYTEST_ARGS)

test-full: lint
	$(BIN)/python -m pytest $(PYTEST_ARGS)

lint: $(DEV_INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

fuzz: $(DEV_INSTALLED)
	$(BIN)/python -m tests.dts.fuzz --seconds $(FUZZ_SECONDS)

docs: $(DOCS_INSTALLED)
	$(BIN)/mkdocs build --strict -q

clean:
	rm -rf $(VENV) build dist demo-out site *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(VENV)/.created:
	$(PYTHON) -m venv --clear $(VENV) || { \
	  echo "make: '$(PYTHON) -m venv' failed; on Debian and Ubuntu: apt install python3-venv" >&2; exit 1; }
	touch '$@'

$(TORCH_INSTALLED): | $(VENV)/.created
	rm -f $(VENV)/.torch-*
	$(PIP_INSTALL) "$(TORCH)"
	touch '$@'

$(DEMO_INSTALLED): pyproject.toml $(TORCH_INSTALLED)
	$(PIP_INSTALL) -e '.[demo,torch]'
	touch '$@'

$(DEV_INSTALLED): pyproject.toml $(TORCH_INSTALLED)
	$(PIP_INSTALL) -e '.[demo,dev,torch]'
	touch '$@'

$(DOCS_INSTALLED): pyproject.toml $(TORCH_INSTALLED)
	$(PIP_INSTALL) -e '.[docs,torch]'
	touch '$@'
