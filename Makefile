# Every target sets up what it needs, so each works from a fresh clone.
#   make run [PROMPT="..."]   the default model answers
#   make serve [ARGS=...]     the same over HTTP, at http://127.0.0.1:8000; docs/server.md
#   make test                 the whole suite
#   make lint                 ruff and mypy
#   make bench [ARGS=--quick] beside other engines, each installed on demand; docs/benchmarks.md

PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
PROMPT ?= The capital of France is
PIP    := $(BIN)/pip --disable-pip-version-check --quiet

.PHONY: run serve test lint format bench clean

run: $(VENV)/.installed
	@$(BIN)/glassloop generate "$(PROMPT)" --temperature 0.7 --max-tokens 60

serve: $(VENV)/.installed
	@$(BIN)/glassloop serve $(ARGS)

test: $(VENV)/.tested
	@$(BIN)/python -m pytest -n 2 --dist worksteal $(TESTS)

lint: $(VENV)/.linted
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy

format: $(VENV)/.linted
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

bench: $(VENV)/.installed
	@$(BIN)/python -m bench $(ARGS)

clean:
	rm -rf $(VENV) build

# One stamp for each set of packages; a change of the requirements installs again.
$(BIN)/python:
	@echo "Making the environment in $(VENV) ..."
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "glassloop needs Python 3.11 or newer")'
	@$(PYTHON) -m venv $(VENV)

NATIVE := $(wildcard src/glassloop/ops/native/*.[ch])

$(VENV)/.installed: pyproject.toml setup.py constraints.txt $(NATIVE) | $(BIN)/python
	@echo "Installing glassloop ..."
	@$(PIP) install -c constraints.txt -e .
	@touch $@

$(VENV)/.tested: pyproject.toml constraints.txt $(VENV)/.installed
	@echo "Installing the test oracles ..."
	@$(PIP) install -c constraints.txt -e '.[test]'
	@touch $@

$(VENV)/.linted: pyproject.toml constraints.txt $(VENV)/.installed
	@echo "Installing the linters ..."
	@$(PIP) install -c constraints.txt -e '.[dev]'
	@touch $@
