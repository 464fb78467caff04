# Two commands are enough for a newcomer: `make train` and `make test`. Each sets itself up.

JOB    ?= metaworld_ppo_mlp
ARGS   ?=
EXTRAS ?= embodied,reasoning,agents,datasets,dev,docs
VENV   := .venv
PYTHONS ?= python3 python3.11 python3.12 python3.10

# Every worker is a process that imports the package; without its byte code each would compile it.
unexport PYTHONDONTWRITEBYTECODE

SHELL       := bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

BIN   := $(VENV)/bin
STAMP := $(VENV)/.installed
LOG   := $(VENV)/install.log

.PHONY: help train train-reasoning train-vla test lint format docs clean setup FORCE

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-15s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
	@echo
	@echo "  make train JOB=<recipe> ARGS='key=value ...' runs another recipe; see rlinf train --list"

train: setup ## Set up if needed, then run the default job
	@$(BIN)/rlinf train $(JOB) $(ARGS)

train-reasoning: setup ## Set up if needed, then let a small language model learn to add
	@$(BIN)/rlinf train arithmetic_grpo $(ARGS)

train-vla: setup ## Set up if needed, then train a policy that reads, on demonstrations and by reward
	@$(BIN)/python examples/embodiment/train_vla.py $(ARGS)

# One thread per process, which does not spin while it waits: cores are fewer than processes. And no
# process gives way to others: Ray's workers would, and then hardly run beside tests that compute.
test: export OMP_NUM_THREADS = 1
test: export OMP_WAIT_POLICY = passive
test: export RAY_worker_niceness = 0
test: lint ## Set up if needed, then lint and run every test
	@$(BIN)/python -m tests.lanes $(ARGS)

lint: setup ## Check style and formatting
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .

format: setup ## Mend style and formatting
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

docs: setup ## Build the documentation into docs/_build/html
	@$(BIN)/python -m sphinx -W --keep-going -q -b html docs docs/_build/html
	@echo "docs/_build/html/index.html"

clean: ## Remove the virtual environment and everything generated
	@rm -rf $(VENV) build dist *.egg-info docs/_build docs/reference/configuration.md docs/images/curves
	@rm -rf .pytest_cache .ruff_cache .hypothesis
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +

setup: $(STAMP) ## Create the virtual environment and install

# An environment knows its own folder and its extras: one that was moved, or that was made for
# other extras, is made again, by the interpreter that it was made with: its own goes with it.
ifneq ($(shell cat $(STAMP) 2>/dev/null),$(CURDIR) $(EXTRAS))
$(STAMP): FORCE
endif

$(STAMP): pyproject.toml constraints.txt
	@python=; \
	for candidate in $(PYTHONS); do \
	  if $$candidate -c 'import sys; sys.exit(not (3, 10) <= sys.version_info[:2] <= (3, 12))' \
	    2>/dev/null; then \
	    python=$$($$candidate -c 'import os, sys; print(os.path.realpath(sys.executable))'); break; \
	  fi; \
	done; \
	if [ -z "$$python" ]; then \
	  echo "error: Python 3.10, 3.11 or 3.12 is needed; looked for: $(PYTHONS)." >&2; \
	  echo "       python3 is: $$(python3 --version 2>&1 || true)" >&2; \
	  echo "       Name another one with: make PYTHONS=/path/to/python3.11 ..." >&2; \
	  exit 1; \
	fi; \
	if ! { [ -f $(STAMP) ] && [ "$$(cat $(STAMP))" = "$(CURDIR) $(EXTRAS)" ]; }; then \
	  echo "Creating $(VENV) with $$($$python --version)"; \
	  rm -rf $(VENV); \
	  $$python -m venv $(VENV) || { rm -rf $(VENV); \
	    echo "error: no virtual environment; on Debian: apt-get install python3-venv" >&2; exit 1; }; \
	fi
	@echo "Installing rlinf[$(EXTRAS)] into $(VENV): a few minutes the first time"
	@pip() { $(BIN)/python -m pip --disable-pip-version-check install -c constraints.txt "$$@"; }; \
	{ pip -q setuptools wheel && pip --no-build-isolation -e '.[$(EXTRAS)]'; } 2>&1 \
	  | tee $(LOG) \
	  | awk '/^ *Collecting /{printf "."; fflush()} /^Installing /{printf " unpacking"; fflush()} \
	    END{print ""}' \
	|| { echo "error: the installation failed; the end of $(LOG):" >&2; tail -n 30 $(LOG) >&2; exit 1; }
	@echo "$(CURDIR) $(EXTRAS)" > $(STAMP)
