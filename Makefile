# Two commands do all the set-up: `make demo` runs the main job on this machine, `make test` passes the tests.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# "compat" puts this folder on the path; the default is an import hook that costs every start 10 ms. Byte code is made
# for what is imported, when it is: for all of the clouds' SDKs it would take a minute more.
INSTALL := $(BIN)/pip install --quiet --no-compile --constraint constraints.txt --config-settings editable_mode=compat --editable

FRAMEWORKS_PIP := $(VENV)/frameworks/bin/pip install --quiet --no-compile --constraint constraints.txt

# Byte code is kept: gpuctl starts a thousand times.
unexport PYTHONDONTWRITEBYTECODE

# What needs different parts is installed and checked side by side.
MAKEFLAGS += --jobs=2
ifneq ($(word 2,$(MAKECMDGOALS)),)
.NOTPARALLEL:
endif

.PHONY: demo test test-deep test-all check docs bench clean

demo: $(VENV)/.train  ## two local hosts: up, train, results, down
	@export PATH="$(CURDIR)/$(BIN):$$PATH"; \
	trap 'gpuctl down --cluster demo --yes' EXIT; trap 'exit 130' INT TERM; \
	set -ex; \
	gpuctl up --provider local --count 2 --cluster demo; \
	gpuctl train --mode torchrun --cluster demo; \
	gpuctl results --cluster demo

test: check $(VENV)/.dev  ## style, types, layers, every fast test, and one real whole way of each subject: minutes
	$(BIN)/python tests/lanes.py fast

test-deep test-all: export GPUCTL_CLOUD_CLIENTS = $(CURDIR)/$(VENV)/clients/bin
test-deep test-all: export GPUCTL_FRAMEWORKS_PYTHON = $(CURDIR)/$(VENV)/frameworks/bin/python

test-deep: $(VENV)/.dev $(VENV)/.clients $(VENV)/.frameworks  ## the other tests, for MINUTES: those about the newest commits first
	$(BIN)/python tests/lanes.py deep --minutes $(or $(MINUTES),inf)

test-all: check $(VENV)/.clients $(VENV)/.frameworks  ## everything there is: hours
	$(BIN)/python tests/lanes.py all

check: $(VENV)/.dev
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports

docs: $(VENV)/.docs  ## the documentation as a site, in build/site; its reference pages are written from the code
	$(BIN)/python tools/reference.py
	$(BIN)/zensical build --strict --clean

bench: $(VENV)/.dev  ## the benchmarks, each printing its ratio; the one for GPUs is a miniature without one
	for program in bench/*.py; do $(BIN)/python $$program || exit 1; done

clean:
	rm -rf $(VENV)

$(VENV)/.train: pyproject.toml constraints.txt | $(VENV)
	@echo "installing gpuctl and torch into $(VENV): a minute or more, without a word"
	$(INSTALL) '.[train]'
	touch $@

$(VENV)/.dev: pyproject.toml constraints.txt | $(VENV)
	@echo "installing what the tests need into $(VENV): some minutes, without a word"
	$(INSTALL) '.[dev]'
	touch $(VENV)/.train $(VENV)/.docs $@

$(VENV)/.docs: pyproject.toml constraints.txt | $(VENV)
	$(INSTALL) '.[docs]'
	touch $@

# The clouds' own command lines, to compare with: in an environment of their own, as they pin what we use.
$(VENV)/.clients: | $(VENV)
	$(PYTHON) -m venv $(VENV)/clients
	$(VENV)/clients/bin/pip install --quiet awscli oci-cli
	touch $@

# Frameworks whose scripts are run as they are. DeepSpeed's setup imports torch, so it is built where that is.
# Lightning cannot be imported beside a torchvision that was built for another torch.
$(VENV)/.frameworks: constraints.txt | $(VENV)
	$(PYTHON) -m venv $(VENV)/frameworks
	{ $(FRAMEWORKS_PIP) torch torchvision accelerate lightning transformers setuptools wheel && $(FRAMEWORKS_PIP) --no-build-isolation deepspeed; } \
		|| echo "not all frameworks could be installed: tests of their scripts will be skipped"
	$(VENV)/frameworks/bin/python -c 'import torchvision' 2>/dev/null || $(VENV)/frameworks/bin/pip uninstall --quiet --yes torchvision
	touch $@

$(VENV):
	$(PYTHON) -c 'import sys; sys.exit("gpuctl needs Python 3.11 or newer; say which: make PYTHON=python3.12" if sys.version_info < (3, 11) else 0)'
	$(PYTHON) -m venv $@
