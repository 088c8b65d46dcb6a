# make demo | make serve | make test | make test-all | make lint; V=1 shows all that pip says
PYTHON ?= python3
# torch trains and exports; it is never needed to serve. Elsewhere: make demo TORCH='torch>=2.4'
TORCH ?= torch==2.13.0
ARTIFACT ?= artifacts/ml-100k
BIN := .venv/bin
PIP := $(BIN)/pip install --no-compile --disable-pip-version-check $(if $(V),,--quiet)

# Bytecode is kept: the demo and the tests start processes that import torch, and compiling it takes seconds in each.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo serve test test-all lint clean

demo: .venv/demo
	@$(BIN)/python -m cli.demo $(ARTIFACT) $(if $(V),-v,)

serve: .venv/demo
	@$(BIN)/python -m cli.demo $(ARTIFACT) --serve

# Two processes on two cores: with three, servers starve each other. One that crashes ends the run: with a new one in
# its place, pytest-xdist waits for ever.
PYTEST := $(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder --max-worker-restart 0

test: .venv/test
	$(PYTEST) -m "not long"

test-all: .venv/test
	$(PYTEST)

lint: .venv/test
	$(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/mypy && $(BIN)/python -m ensembles.lint model_repository && $(BIN)/python -m tests.architecture

.venv/python:
	@$(PYTHON) -c 'import sys; sys.exit(0 if (3, 10) <= sys.version_info[:2] <= (3, 12) else "Python 3.10 to 3.12 is needed; say make PYTHON=/path/to/python3.11")'
	@$(PYTHON) -m venv .venv
	@touch $@

.venv/demo: .venv/python pyproject.toml
	@echo "installing packages into .venv: one to five minutes the first time"
	@$(PIP) "$(TORCH)" -e '.[serve,train,export,build,perf]'
	@$(BIN)/python -c 'import torch.export, onnxscript, openvino, numba, pyarrow'  # bytecode: once, not by many at a time
	@touch $@

.venv/test: .venv/demo
	@echo "installing what the tests need"
	@$(PIP) "$(TORCH)" -e '.[test]'
	@touch $@

clean:
	rm -rf .venv artifacts
