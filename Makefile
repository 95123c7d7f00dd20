# `make demo` and `make test` make .venv and install everything they need by themselves.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready

.PHONY: demo test test-fleet check format install clean bench bench-peers

install: $(READY)

# The stamp is written last, so that an installation that was interrupted is done again.
$(READY): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[hub,ray,tensorboard,flower,dev]'
	touch $@

demo: $(READY)
	$(BIN)/fedpbc compare --rounds 300 --out demo --overwrite

# Formatting, lint and types first: they fail fastest.
check: $(READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

test: check
	$(BIN)/python -m pytest --numprocesses 2 --dist loadfile --no-loadscope-reorder

# Fleets of many real processes, with faults.
test-fleet: $(READY)
	$(BIN)/python -m pytest -m fleet tests/deployment

format: $(READY)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# Tables and plots in benchmarks/results; see benchmarks/RESULTS.md.
bench: $(READY)
	$(BIN)/python -m benchmarks.run
	$(BIN)/python -m benchmarks.scaling

# Other frameworks to compare with, each in an environment of its own.
bench-peers: $(READY)
	$(BIN)/python -m benchmarks.peers.install

clean:
	rm -rf .venv demo build dist
