# Every target works from a fresh clone with Python 3.11+ and make alone.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet
export PYTHONUTF8 := 1
# Tests start many processes, which must find the byte code of torch: pip writes none (--no-compile, below).
export PYTHONDONTWRITEBYTECODE :=

.PHONY: demo chromium test test-all soak lint bench docs lessons notebooks clean help
help:
	@echo "make demo      install, translate, show alignments and the operator at work (trains what is not bundled)"
	@echo "make test      install, run the quick tests, try the wheel in a clean environment"
	@echo "make test-all  the slow tests too, and a long run of drawn examples"
	@echo "make soak      attack it for minutes: kills, 10,000 requests, changed folders, wrong calls"
	@echo "make lint      ruff, pyright, import-linter"
	@echo "make bench     the operator, and training, beside their peers"
	@echo "make docs      build the documentation into site/"
	@echo "make lessons   run every lesson and write its page in docs/lessons/; LESSONS=5,6 some of them"
	@echo "make notebooks write the lessons as .ipynb into notebooks/"

# One stamp per set of dependencies; all share the pinned constraints. --no-compile: Python writes the byte code of
# what is imported; pip would write that of every module.
$(VENV)/.made:
	$(PYTHON) -m venv $(VENV)
	touch $@
$(VENV)/.base: $(VENV)/.made pyproject.toml constraints.txt
	$(PIP) install --no-compile -c constraints.txt -e .
	touch $@
$(VENV)/.%: $(VENV)/.base
	$(PIP) install --no-compile -c constraints.txt -e .[$*]
	touch $@

# ONNX's stored vectors; later versions of the package contain none.
.cache/onnx-1.22.0: $(VENV)/.made
	$(PIP) download --no-deps -d $@ onnx==1.22.0

demo: $(VENV)/.base
	$(BIN)/regard demo

# The explorer's tests drive the system's Chromium; without it they are skipped, with the reason.
chromium:
	@(command -v chromium || command -v chromium-browser || command -v google-chrome) > /dev/null || { echo "installing chromium for the explorer's tests"; \
	  apt-get install -y -qq chromium > /dev/null 2>&1 || echo "chromium cannot be installed here, so the explorer's tests in the browser are skipped"; }

# Two workers with one thread each: two torch threads on two shared cores stall each other. worksteal: a file's
# tests stay on one worker, so that its fixtures are made once, until one of the workers has nothing left.
test: $(VENV)/.test .cache/onnx-1.22.0 chromium
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal -m "not slow"

# REGARD_LONG=1 draws other and more examples at every run; a failure names the case, which can then be drawn again.
test-all: $(VENV)/.test .cache/onnx-1.22.0 chromium
	REGARD_LONG=1 OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal

# Prints a table and ends with 1 if anything failed; SOAK="--part kills --seed 7" runs a part, or with other random numbers.
soak: $(VENV)/.test
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.attack $(SOAK)

# pyright reads the libraries that the extras bring, so lint needs those of the tests.
lint: $(VENV)/.lint $(VENV)/.test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports
	$(BIN)/pyright

bench: $(VENV)/.bench
	$(BIN)/python -m benchmarks.attend
	$(BIN)/python -m benchmarks.train_speed
	@echo "python -m benchmarks.decode_speed MODEL compares decoding, with a model that you have trained"
	@echo "python -m benchmarks.train_gpu and python -m benchmarks.decode_gpu compare both on a GPU"

docs: $(VENV)/.docs
	$(BIN)/mkdocs build --strict

lessons: $(VENV)/.base
	$(BIN)/python -m regard.lessons pages docs $(LESSONS)

notebooks: $(VENV)/.base
	$(BIN)/python -m regard.lessons notebooks notebooks

clean:
	rm -rf $(VENV) .cache site dist build .pytest_cache .hypothesis .ruff_cache .import_linter_cache
