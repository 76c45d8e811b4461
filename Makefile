# The commands of a person and of CI. Each sets up .venv first where that is still to do.
PYTHON ?= python3
BIN = .venv/bin

.PHONY: setup demo test check bench clean

setup:
	@$(PYTHON) tools/setup.py

# A model as small as the embedded one has nothing to gain: it is padded to the size, and so to the cost, of one
# that has. It says the same.
DEMO = build/demo-200M-BF16.gguf

demo: setup $(DEMO)
	@$(BIN)/paceline run --compare -n 256 -f examples/stack.txt -m $(DEMO) -md "$$($(BIN)/paceline zoo path draft)"

$(DEMO): src/paceline/zoo/models/paceline-target.gguf | setup
	@mkdir -p build
	@$(BIN)/paceline zoo inflate $(DEMO) --params 200M --type BF16 --force

test: setup
	$(BIN)/python -m pytest -n auto --dist loadfile --cov=paceline.core --cov=paceline.vocab --cov-report=term-missing:skip-covered --cov-fail-under=100

check: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: setup
	$(BIN)/python benchmarks/overhead.py

clean:
	rm -rf .venv build dist
