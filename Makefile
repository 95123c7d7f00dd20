# `make demo` and `make test` make .venv and install everything they need by themselves.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready
AXE := tools/axe/node_modules/.ready
COMPILED := $(wildcard src/fedpbc/*.[ch] src/fedpbc/tasks/*.[ch])
# Tests start hundreds of processes: without compiled files each would compile the package again.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: docs demo test test-quick test-long test-random test-fleet test-faults test-kills fuzz coverage check format install clean bench bench-peers

install: $(READY)

# The stamp is written last, so that an installation that was interrupted is done again. Python compiles a
# module when it is first imported: pip would compile every one, most of them never used, for a minute.
# The functions in C are compiled here, and else those of an older version would be called, or tested.
$(READY): pyproject.toml constraints.txt $(COMPILED)
	$(BIN)/python -m pip --version > /dev/null 2>&1 || $(PYTHON) -m venv --clear .venv
	$(BIN)/python -m pip install --no-compile --quiet --constraint constraints.txt --editable '.[hub,ray,tensorboard,flower,pandas,docs,dev]'
	touch $@

# What failing links do to an average, then who repairs how much of it.
demo: $(READY)
	$(BIN)/fedpbc paper fig2 --quick --out demo/bias --overwrite
	$(BIN)/fedpbc compare examples/demo.toml --out demo/compare --overwrite

# Formatting, lint and types first: they fail fastest.
check: $(READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/lint-imports
	$(BIN)/mypy

# One more than there are cores where CI runs: many tests wait for processes. With four it took longer.
# Each process with one thread: more than one would wait for the others' cores, and burn its own.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses 3 --dist worksteal

test: check $(AXE)
	$(PYTEST)

# Checks the accessibility of pages in the browser tests. Without npm or a registry these checks are
# skipped, and nothing else: no stamp is written, and the next time it is tried again.
$(AXE): tools/axe/package-lock.json
	@if ! command -v npm >/dev/null; then \
		echo 'skipped: axe-core, since there is no npm; the accessibility of pages is not tested'; \
	elif (cd tools/axe && npm ci --silent --no-audit --no-fund --ignore-scripts --fetch-retries=1 --fetch-timeout=20000); then \
		touch $@; \
	else \
		echo 'skipped: axe-core, since npm could not install it; the accessibility of pages is not tested'; \
	fi

# The core, for every save: neither fleets nor the paper's experiments, and no test marked as slow.
test-quick: $(READY)
	$(PYTEST) -m 'not fleet and not faults and not kills and not long and not slow' \
		$(foreach room,deployment flower paper,--ignore tests/$(room) --ignore src/fedpbc/$(room))

# What takes tens of seconds each: many kills, long jobs, the level of statistical tests.
test-long: $(READY)
	$(PYTEST) -m long --timeout 3600 -o faulthandler_timeout=0

# In another order each time; `make test-random SEED=...` repeats the one that the first lines name.
test-random: $(READY) $(AXE)
	$(PYTEST) --random-order $(if $(SEED),--random-order-seed=$(SEED))

# Which lines the tests reach, as a table and in htmlcov/.
coverage: $(READY) $(AXE)
	$(PYTEST) --cov --cov-report=term:skip-covered --cov-report=html

# Fleets of many real processes, with faults.
test-fleet: $(READY)
	$(BIN)/python -m pytest -m fleet --timeout 3600 -o faulthandler_timeout=0 tests/deployment tests/flower

# Every call on the disk fails once, or is the last before a kill; STEP=10 takes every tenth.
test-faults: $(READY)
	$(PYTEST) -m faults --timeout 7200 -o faulthandler_timeout=0 tests/faults tests/cli/test_signals.py

# Two hundred kills at random moments; SEED=... for other moments.
test-kills: $(READY)
	SEED=$(SEED) $(PYTEST) -m kills --timeout 7200 -o faulthandler_timeout=0 tests/faults

# Generated input and damaged folders; `make fuzz CASES=… DAMAGES=… SEED=… JOBS=…`. It takes an hour or
# two; one that was cut short after N cases goes on with START=N.
CASES ?= 50000
DAMAGES ?= 5000
JOBS ?= 2
fuzz: $(READY)
	$(BIN)/python -m tests.fuzz --cases $(CASES) --damages $(DAMAGES) --jobs $(JOBS) \
		--seed $(if $(SEED),$(SEED),1) --start $(if $(START),$(START),0)

format: $(READY)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# The documentation as a site, in build/site; open build/site/index.html. Warnings are errors.
docs: $(READY)
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --quiet --strict

# Tables and plots in benchmarks/results; see benchmarks/RESULTS.md.
bench: $(READY)
	$(BIN)/python -m benchmarks.run
	$(BIN)/python -m benchmarks.scaling

# Other frameworks to compare with, each in an environment of its own.
bench-peers: $(READY)
	$(BIN)/python -m benchmarks.peers.install

clean:
	rm -rf .venv demo build dist htmlcov .coverage
