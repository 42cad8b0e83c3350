# Two commands set up everything in a clean clone: `make demo` and `make test`. `make docs` builds the site.
# Packages are compiled when they are first imported: most of their modules never are.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: demo test lint tests docs install install-test procgen fuzz chaos clean

$(VENV)/.installed: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --no-compile --disable-pip-version-check -c constraints.txt -e .
	touch $@

$(VENV)/.installed-test: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --no-compile --disable-pip-version-check -c constraints.txt -e '.[test]'
	touch $@ $(VENV)/.installed

$(VENV)/.installed-docs: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --no-compile --disable-pip-version-check -c constraints.txt -e '.[docs]'
	touch $@ $(VENV)/.installed

install: $(VENV)/.installed

install-test: $(VENV)/.installed-test

# The real Procgen, without the dead gym and the old NumPy that its metadata asks for. Python 3.11 and 3.12, Linux x86_64.
procgen: install-test
	$(BIN)/pip install --quiet --no-compile --disable-pip-version-check -c constraints.txt --no-deps \
	  gym3 procgen-mirror cffi pycparser imageio

demo: install
	$(BIN)/apev demo --out runs/demo

test: install-test
	@$(MAKE) --no-print-directory -j2 lint tests  # side by side: mypy keeps one core busy for a minute

lint: install-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# Networks here are small: one thread each, files side by side, in the order of tests/conftest.py.
tests: install-test
	OMP_NUM_THREADS=1 $(BIN)/pytest -n auto --dist loadfile --no-loadscope-reorder

# The site, in docs/_build/html; a warning is an error.
docs: $(VENV)/.installed-docs
	$(BIN)/sphinx-build -W --keep-going -q -b html docs docs/_build/html
	@echo "open docs/_build/html/index.html"

# Hostile and damaged files, kills at random moments, a long soak; what they count is stored (SECURITY.md).
fuzz: install-test
	$(BIN)/python reliability/fuzz.py --tries 10000 --out results/reliability/fuzz.json
	$(BIN)/python reliability/soak.py --out results/reliability/soak.json
	$(BIN)/python reliability/summary.py

chaos: install-test
	$(BIN)/python reliability/chaos.py --kills 200 --out results/reliability/chaos.json
	$(BIN)/python reliability/summary.py

clean:
	rm -rf $(VENV)
