# make demo        train from a bucket on this machine, start to finish
# make test        lint, types, tests
# make test-full   the same with the slow tests
# make fuzz        mutated shards against the parser, damaged JPEGs through the kernel
# make soak        loaders for half an hour; fails if memory, threads or open files grow
# make docs        the pages as a site under site/
# make clean       remove what these made
#
# PYTHON  the interpreter to build .venv from     make test PYTHON=python3.12
# PYTEST_ARGS  more for pytest                    make test PYTEST_ARGS=-x
# TEST_JOBS  how many tests at once; 0: one       make test TEST_JOBS=8
# EXTRAS  more extras to test                     make test EXTRAS=ray,trainers
# TORCH   what pip installs as torch              make demo TORCH=torch==2.13.0
# SOAK_MINUTES  how long          make soak SOAK_MINUTES=10
# ROUNDS  how many damaged pictures               make fuzz ROUNDS=100000

PYTHON ?= python3
TORCH ?= torch
EXTRAS ?=
FUZZ_SECONDS ?= 60
SOAK_MINUTES ?= 30
TEST_JOBS ?= 2

COMMA := ,
VENV := .venv
BIN := $(VENV)/bin
PIP_INSTALL := $(BIN)/python -m pip install --disable-pip-version-check -q

KERNEL := streamloader/decode/native
BUILT_FROM := pyproject.toml setup.py $(wildcard streamloader/*/native_build.py) \
  $(wildcard streamloader/*/native/*.c streamloader/*/native/*.h)

# The name holds the torch that was asked for, so that another TORCH installs anew.
TORCH_INSTALLED := $(VENV)/.torch-$(subst /,_,$(subst =,-,$(subst $() ,_,$(TORCH))))
DEMO_INSTALLED := $(VENV)/.installed-demo
DEV_INSTALLED := $(VENV)/.installed-dev
DOCS_INSTALLED := $(VENV)/.installed-docs

PRINT_DOCS_EXTRA := import tomllib; \
  project = tomllib.load(open("pyproject.toml", "rb"))["project"]; \
  print(*project["optional-dependencies"]["docs"])

ROUNDS ?= 10000
SEED ?= 1
FUZZED := $(wildcard tests/hostile/images/*/*.jpg tests/hostile/images/*/*.JPG)
SANITIZE := -g -O1 -fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer

.PHONY: demo test test-full lint fuzz soak docs clean
.DELETE_ON_ERROR:

demo: $(DEMO_INSTALLED)
	$(BIN)/streamloader demo

test: lint
	$(BIN)/python -m pytest -m "not slow" -n $(TEST_JOBS) --dist loadfile $(PYTEST_ARGS)

test-full: lint
	$(BIN)/python -m pytest $(PYTEST_ARGS)

lint: $(DEV_INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

docs: $(DOCS_INSTALLED)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict -q

fuzz: $(DEV_INSTALLED) build/damage_jpegs
	$(BIN)/python -m tests.dts.fuzz --seconds $(FUZZ_SECONDS)
	build/damage_jpegs $(ROUNDS) $(SEED) $(FUZZED)

soak: $(DEV_INSTALLED)
	$(BIN)/python benchmarks/soak.py --minutes $(SOAK_MINUTES)

build/damage_jpegs: tests/decode/fuzz/damage_jpegs.c $(wildcard $(KERNEL)/*.c $(KERNEL)/*.h)
	mkdir -p build
	$(CC) -std=gnu11 -Wall -Wextra -Werror $(SANITIZE) -fno-math-errno -ffp-contract=off \
	  -I $(KERNEL) $(filter %.c,$^) -ljpeg -lm -o '$@'

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

$(DEMO_INSTALLED): $(BUILT_FROM) $(TORCH_INSTALLED)
	$(PIP_INSTALL) -e '.[demo,torch]'
	touch '$@'

$(DEV_INSTALLED): $(BUILT_FROM) $(TORCH_INSTALLED)
	$(PIP_INSTALL) -e '.[demo,dev,torch$(addprefix $(COMMA),$(EXTRAS))]'
	touch '$@'

# The pages are made from the source without importing it, so the package itself is not installed.
$(DOCS_INSTALLED): pyproject.toml | $(VENV)/.created
	$(BIN)/python -c '$(PRINT_DOCS_EXTRA)' | xargs $(PIP_INSTALL)
	touch '$@'
