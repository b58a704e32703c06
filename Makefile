# A line a target: `make help` prints them.
.DEFAULT_GOAL := help
SHELL := /bin/bash
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
JOBS ?= $(shell nproc)
DEBIAN := g++ cmake ninja-build ccache git pkg-config libsimdjson-dev nlohmann-json3-dev libyaml-cpp-dev libcli11-dev \
          libfmt-dev libzip-dev libgtest-dev clang-14 libclang-rt-14-dev python3-dev python3-venv
SOURCES = $(shell git ls-files --cached --others --exclude-standard '*.cpp' '*.h')

help:  ## print this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  %-8s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(VENV)/.done  ## install Debian packages, .venv with nnscaler in it, and the native nnscaler-core

$(VENV)/.debian:
	@missing=; for p in $(DEBIAN); do dpkg -s $$p >/dev/null 2>&1 || missing="$$missing $$p"; done; \
	if [ -n "$$missing" ]; then \
	  sudo=$$([ "$$(id -u)" = 0 ] || echo sudo); \
	  echo "installing Debian packages:$$missing"; \
	  $$sudo apt-get update -qq && DEBIAN_FRONTEND=noninteractive $$sudo apt-get install -y -qq --no-install-recommends $$missing >/dev/null; \
	fi
	@$(PYTHON) -m venv $(VENV) && touch $@

$(VENV)/.packages: $(VENV)/.debian pyproject.toml
	@$(BIN)/python -c 'import torch' 2>/dev/null || $(BIN)/pip install -q torch==2.13.0
	@$(BIN)/python tools/requirements.py dev > $(VENV)/requirements.txt && $(BIN)/pip install -q -r $(VENV)/requirements.txt
	@touch $@

# The package is installed in place: Python files are read from the tree, the core is built by CMake (ccache helps).
$(VENV)/.done: $(VENV)/.packages pyproject.toml CMakeLists.txt VERSION $(shell find core python/bindings python/CMakeLists.txt cmake -type f 2>/dev/null)
	@CMAKE_BUILD_PARALLEL_LEVEL=$(JOBS) $(BIN)/pip install -q --no-build-isolation --no-deps -e . \
	  -C build-dir=build/python -C cmake.define.NNSCALER_WERROR=ON
	@touch $@

demo: setup  ## plan, write, train and verify a small GPT on two ranks of this machine
	@$(BIN)/python examples/demo.py

build: setup  ## build the core and its tests (release)
	@cmake --preset release >/dev/null && cmake --build --preset release -j $(JOBS) -- --quiet

test: lint build  ## everything: lint, C++ tests, Python tests
	@ctest --test-dir build/release --output-on-failure -j $(JOBS) --no-tests=error --progress
	@$(BIN)/python -m pytest

quick: build  ## C++ tests and the Python tests without the slow ones
	@ctest --test-dir build/release --output-on-failure -j $(JOBS) --no-tests=error
	@$(BIN)/python -m pytest -m 'not slow'

golden: build  ## rewrite expected outputs of data tests; read the diff
	@NNSCALER_GOLDEN=1 ctest --test-dir build/release -j $(JOBS) >/dev/null; NNSCALER_GOLDEN=1 $(BIN)/python -m pytest -q tests/emit tests/cli || true
	@git status --short tests

bench: setup  ## run the benchmarks side by side and print their tables
	@$(BIN)/python bench/plan_gpt.py
	@$(BIN)/python bench/train_step.py

docs: build  ## renew the documents that the program prints
	@$(BIN)/python tools/cli_reference.py build/release/nnscaler-core && git status --short docs

format: setup  ## format C++ and Python
	@$(BIN)/clang-format -i $(SOURCES)
	@$(BIN)/ruff check -q --fix . && $(BIN)/ruff format -q .

lint: setup  ## check formatting and style
	@$(BIN)/clang-format --dry-run --Werror $(SOURCES)
	@$(BIN)/ruff check -q . && $(BIN)/ruff format -q --check .

debug: setup  ## C++ tests under address and undefined-behaviour sanitizers
	@cmake --preset debug >/dev/null && cmake --build --preset debug -j $(JOBS) && ctest --test-dir build/debug --output-on-failure -j $(JOBS)

tsan: setup  ## C++ tests under the thread sanitizer
	@cmake --preset tsan >/dev/null && cmake --build --preset tsan -j $(JOBS) && ctest --test-dir build/tsan --output-on-failure -j $(JOBS)

fuzz: setup  ## fuzz the four readers for a minute each (clang)
	@cmake --preset fuzz >/dev/null && cmake --build --preset fuzz -j $(JOBS)
	@NNSCALER_FUZZ_CORPUS=build/fuzz/corpus build/fuzz/tests/fuzz_tests --gtest_brief=1
	@for f in build/fuzz/tests/*_fuzz; do echo $$f; $$f build/fuzz/corpus/$$(basename $$f) -max_total_time=60 -timeout=10 -rss_limit_mb=2048 || exit 1; done

.PHONY: help setup demo build test quick golden bench docs format lint debug tsan fuzz
