# Any of these does all the set-up on a fresh machine: `make audit`, `make test`.
PYTHON ?= python3
BIN := .venv/bin
FAMILIES := attacks defenses recorder reports
# Tests start hundreds of processes, none of which compiles dpaudit anew, even where Python keeps no
# bytecode. A file of tests stays in one worker: what its tests share is made once.
TESTS = $(BIN)/python -m compileall -q dpaudit $(FAMILIES) && OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q
BY_FILE := -n auto --dist loadfile --no-loadscope-reorder

.PHONY: audit audit-thorough test test-browser slow mutants lint docs clean

audit: .venv/installed
	@$(BIN)/dpaudit audit examples/dpdl-digits.toml --out runs/dpdl-digits || [ $$? -eq 1 ]

# The same audit with more runs, rounds and targets.
audit-thorough: .venv/installed
	@$(BIN)/dpaudit audit examples/dpdl-digits-thorough.toml --out runs/dpdl-digits-thorough || [ $$? -eq 1 ]

test: .venv/installed
	$(BIN)/ruff check .
	$(TESTS) $(BY_FILE)

# The reports in a headless Chromium; `make test` runs these too, where it finds one.
test-browser: .venv/installed
	$(TESTS) -rs tests/reports/test_in_a_browser.py tests/reports/test_script.py

slow: .venv/installed
	$(TESTS) -n auto -m slow

# Plants 20 one-line faults by chance: which of them does no fast test find? It has options.
mutants: .venv/installed
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.mutants

# mypy knows no package-dir: it checks links that lie as the four packages are imported.
lint: .venv/installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	rm -rf build/typed/dpaudit && mkdir -p build/typed/dpaudit
	cd build/typed/dpaudit && ln -s ../../../dpaudit/* $(FAMILIES:%=../../../%) .
	cd build/typed && ../../$(BIN)/mypy --config-file ../../pyproject.toml

# The documentation site, in build/site; any warning is an error.
docs: .venv/installed
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

.venv/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile -c constraints.txt -e '.[test,docs]'
	@# On all cores, where pip takes one; without the tests of packages, and files for other Pythons.
	@$(BIN)/python -m compileall -qq -j 0 -x 'site-packages/.*/tests?/' .venv/lib || true
	@touch $@

clean:
	rm -rf .venv build runs *.egg-info
