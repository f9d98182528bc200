# Everything runs from the source tree in .venv; `make setup` is done once and redone when it must.

PYTHON ?= python3
RUN := .venv/bin/python
KERNELS := $(wildcard CMakeLists.txt) $(shell find kernels -type f 2>/dev/null)

.PHONY: setup native test test-fast test-deep bench demo lint format proto clean

setup: .venv/installed build/native/built

.venv/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(RUN) -m pip install --quiet --constraint constraints.txt --editable '.[hf,dev]'
	touch $@

# Without a C++ compiler CMake says so and builds nothing: kvd then uses its numpy kernels.
native: build/native/built

build/native/built: .venv/installed $(KERNELS)
	command -v cmake >/dev/null || $(RUN) -m pip install --quiet --constraint constraints.txt cmake
	PATH="$$PATH:$(CURDIR)/.venv/bin" cmake -S . -B build/native -DCMAKE_BUILD_TYPE=Release
	PATH="$$PATH:$(CURDIR)/.venv/bin" cmake --build build/native --parallel
	touch $@

test: setup
	$(RUN) -m tests full

test-fast: setup
	$(RUN) -m tests fast

# What takes as long as it is given: a fuzzer guided by coverage, and more of the simulated world.
DEEP_SECONDS ?= 1200
DEEP_SEEDS ?= 300

test-deep: setup .venv/deep
	$(RUN) -m tests.fuzz.deep --seconds $(DEEP_SECONDS)
	$(RUN) -m pytest -q tests/simulation/test_world.py --seeds $(DEEP_SEEDS)

.venv/deep: .venv/installed
	$(RUN) -m pip install --quiet --constraint constraints.txt --editable '.[deep]'
	touch $@

bench: setup
	$(RUN) -m bench all

demo: setup
	@$(RUN) -m bench demo

lint: .venv/installed
	$(RUN) -m ruff check .
	$(RUN) -m ruff format --check .

format: .venv/installed
	$(RUN) -m ruff check --fix .
	$(RUN) -m ruff format .

proto: .venv/installed
	$(RUN) proto/generate.py

clean:
	rm -rf .venv build dist .pytest_cache .ruff_cache .hypothesis
