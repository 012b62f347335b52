# The two commands of the README, and what they stand on.
#
#   make demo    set up, run the whole pipeline on the embedded default, print its table
#   make test    set up, lint, types, tests

PYTHON ?= python3.11
BIN := .venv/bin
export PATH := $(CURDIR)/$(BIN):$(PATH)
export PYTHONUNBUFFERED := 1
export TOKENIZERS_PARALLELISM := true
export TQDM_MININTERVAL := 5

.PHONY: demo test lint lock bench clean help

help:
	@sed -n 's/^#   //p' Makefile

demo: .venv/installed
	HF_HUB_OFFLINE=1 snakemake --profile workflow/profiles/demo
	@revela show results/tables/demo.csv
	@echo "figures: results/figures/demo-*.png"

test: lint
	pytest

lint: .venv/installed
	ruff check .
	ruff format --check .
	.venv/snakefmt/bin/snakefmt --check Snakefile workflow
	snakemake --lint
	mypy

bench: .venv/installed
	python bench/step.py
	python bench/cost.py
	python bench/memory.py
	python bench/attention.py
	python bench/replug.py
	python bench/chunking.py
	python bench/allocator.py

# torch comes first and on its own: a plain `torch` would choose its own version.
.venv/installed: requirements.lock pyproject.toml
	@echo "setting up .venv (a few minutes, once)"
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check "$$(grep '^torch==' requirements.lock)"
	$(BIN)/pip install --quiet --disable-pip-version-check -r requirements.lock
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --editable .
	$(PYTHON) -m venv .venv/snakefmt
	.venv/snakefmt/bin/pip install --quiet --disable-pip-version-check snakefmt==2.1.0
	touch $@

# Resolve pyproject.toml afresh and pin what comes out; torch brings its own GPU libraries.
lock:
	$(PYTHON) -m venv .venv/lock
	.venv/lock/bin/pip install --quiet uv
	.venv/lock/bin/uv pip compile pyproject.toml --extra dev --python-version 3.11 \
	    --no-annotate --no-header --quiet --output-file .venv/lock/requirements.txt
	sed -E '/^(nvidia|cuda)-|^triton==/d; s/\+cpu//' .venv/lock/requirements.txt > requirements.lock

clean:
	rm -rf .venv .snakemake results/[a-z]*
