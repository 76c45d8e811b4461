# The commands of a person and of CI. Each sets up .venv first where that is still to do.
PYTHON ?= python3
BIN = .venv/bin

.PHONY: setup transformers demo test test-all check bench clean

# The closing lines are for `make setup` alone, not for what depends on it.
setup:
	@$(PYTHON) tools/setup.py $(if $(filter setup,$(or $(MAKECMDGOALS),setup)),next)

transformers:
	@$(PYTHON) tools/setup.py transformers

demo: setup
	@$(BIN)/python -m tools.demo

# What takes long (storms, browsers, training, whole programs) is in test-all, which CI runs.
test: transformers
	$(BIN)/python -m pytest -m "not serial and not slow" -n auto --dist loadfile

test-all: transformers
	$(BIN)/python -m pytest -m "not serial" -n auto --dist loadfile --cov=paceline.speculative --cov=paceline.settings --cov=paceline.fits --cov=paceline.drafter_table --cov=paceline.vocab --cov-report=term-missing:skip-covered --cov-fail-under=100
	$(BIN)/python -m pytest -m serial tests/server

check: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m tools.size

bench: setup
	$(BIN)/python benchmarks/overhead.py

clean:
	rm -rf .venv build dist
