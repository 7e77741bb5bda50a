# Two commands do all the set-up: `make demo` runs the main job on this machine, `make test` passes the tests.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# "compat" puts this folder on the path; the default is an import hook that costs every start 10 ms.
INSTALL := $(BIN)/pip install --quiet --constraint constraints.txt --config-settings editable_mode=compat --editable

# Byte code is kept: gpuctl starts a thousand times.
unexport PYTHONDONTWRITEBYTECODE

# What needs different parts is installed and checked side by side.
MAKEFLAGS += --jobs=2
ifneq ($(word 2,$(MAKECMDGOALS)),)
.NOTPARALLEL:
endif

# Half of what tests do is waiting. A file's tests stay together, and long files begin in their order.
WORKERS ?= -n 2 --dist loadfile --no-loadscope-reorder

.PHONY: demo test long check bench clean

demo: $(VENV)/.train  ## two local hosts: up, train, results, down
	@export PATH="$(CURDIR)/$(BIN):$$PATH"; \
	trap 'gpuctl down --cluster demo --yes' EXIT; trap 'exit 130' INT TERM; \
	set -ex; \
	gpuctl up --provider local --count 2 --cluster demo; \
	gpuctl train --mode torchrun --cluster demo; \
	gpuctl results --cluster demo

test: check $(VENV)/.clients  ## style, types, layers, then the tests
	GPUCTL_CLOUD_CLIENTS=$(CURDIR)/$(VENV)/clients/bin $(BIN)/pytest $(WORKERS)

long: $(VENV)/.dev  ## what takes hours: all of what `make test` has samples of, and what takes minutes a test
	GPUCTL_TEST_LONG=1 GPUCTL_TEST_SEQUENCES=100 $(BIN)/pytest -m 'long or sampled'

check: $(VENV)/.dev
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: $(VENV)/.dev  ## the benchmarks, each printing its ratio
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
	touch $(VENV)/.train $@

# The clouds' own command lines, to compare with: in an environment of their own, as they pin what we use.
$(VENV)/.clients: | $(VENV)
	$(PYTHON) -m venv $(VENV)/clients
	$(VENV)/clients/bin/pip install --quiet awscli oci-cli
	touch $@

$(VENV):
	$(PYTHON) -c 'import sys; sys.exit("gpuctl needs Python 3.11 or newer; say which: make PYTHON=python3.12" if sys.version_info < (3, 11) else 0)'
	$(PYTHON) -m venv $@
