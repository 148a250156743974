# Everything a person or CI runs. `make help` lists it.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
# Extra arguments for pip, e.g. PIP_ARGS="--index-url ..." for a mirror or a CPU-only torch.
PIP_ARGS ?=
BUNDLE := engines/bundles/demo
# Each takes up to 3 GB. A file's tests stay together, in the order of tests/conftest.py.
TEST_PROCESSES ?= 2
DEMO_PROMPTS ?= 6
DEMO_TOKENS ?= 96

.DEFAULT_GOAL := help
.PHONY: help demo test lint format clean

help:  ## this list
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/' | expand -t 10

$(VENV)/bin/python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "ssd-trt needs Python 3.11 or newer")'
	$(PYTHON) -m venv $(VENV)

# What it takes to build and run bundles; no torch.
$(VENV)/.run: pyproject.toml | $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet $(PIP_ARGS) --editable '.[cpu,export]'
	@touch $@

# The development tools; torch and transformers for the parity tests; TensorRT-RTX, which compiles
# without a GPU; polygraphy; the compiler of our kernels, which needs no GPU either; Ray.
$(VENV)/.dev: pyproject.toml | $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet $(PIP_ARGS) --editable '.[dev,torch,rtx,bench,cuda,ray]'
	@touch $@ $(VENV)/.run

# Our CPU kernels, in the clone itself: many tests have a cache of their own, and compile otherwise.
$(VENV)/.kernels: $(wildcard plugins/*/*.cc plugins/*/*.h) $(VENV)/.dev
	-$(BIN)/python -m plugins.ort --package
	@touch $@

demo: $(VENV)/.run  ## build the default CPU pair and compare ar, sd and ssd on real prompts
	$(BIN)/python -m export fetch smollm2-135m
	$(BIN)/python -m export build --target smollm2-135m --draft smollm2-135m-draft \
		--num-draft 2 --max-branches 12 --no-fidelity --out $(BUNDLE)
	$(BIN)/python -m runtime compare --bundle $(BUNDLE) --live \
		--num-prompts $(DEMO_PROMPTS) --max-tokens $(DEMO_TOKENS)

test: $(VENV)/.dev $(VENV)/.kernels  ## the whole CPU suite
	$(BIN)/python -m pytest --quiet --numprocesses $(TEST_PROCESSES) --dist loadfile --no-loadscope-reorder

lint: $(VENV)/.dev  ## style, format and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy -p engines -p plugins -p runtime -p export

format: $(VENV)/.dev  ## rewrite the code in the one style
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:  ## remove the environment and built bundles
	rm -rf $(VENV) engines/bundles build dist *.egg-info
