# Every target sets up what it needs. `make help` lists them.
SCALE ?= laptop
VENV ?= .venv
PYTHON ?= $(shell command -v python3.11 || command -v python3.12 || command -v python3.13 || command -v python3)
PORT ?= 8888

BIN := $(CURDIR)/$(VENV)/bin
READY := $(VENV)/.ready
# The environment's programs first, also for the `python` in dvc.yaml.
export PATH := $(BIN):$(PATH)
export PYTHONPATH :=
# Numbers must not depend on what the shell happened to export; what runs side by side are processes.
export OMP_NUM_THREADS := 1
export MKL_NUM_THREADS := 1
export OPENBLAS_NUM_THREADS := 1

GRAPH := $(if $(filter laptop,$(SCALE)),dvc.yaml,pipelines/scales/$(SCALE)/dvc.yaml)

.DEFAULT_GOAL := help
.PHONY: help env repro test lint unit graph lab notebooks bench clean

help: ## what can be made
	@echo "make TARGET [SCALE=laptop|smoke]"
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "  %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

env: $(READY) ## the environment in .venv (pip, pinned by constraints.txt)

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(None if v >= (3, 11) else f"Python 3.11 or newer is needed, {sys.executable} is {v.major}.{v.minor}; make PYTHON=/path/to/python3.11")'
	@test -x $(BIN)/python || { echo "making $(VENV) with $(PYTHON)"; $(PYTHON) -m venv $(VENV); }
	@echo "installing the environment (about two minutes the first time)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[notebooks,dev]'
	@$(BIN)/python -m ipykernel install --sys-prefix --name python3 --display-name 'Python 3 (ipykernel)' > /dev/null
	@touch $(READY)

repro: $(READY) ## run the graph at SCALE and say where the report is
	@test -f $(GRAPH) || { echo "SCALE=$(SCALE) does not exist; scales: laptop $$(ls pipelines/scales | tr '\n' ' ')"; exit 2; }
	@python -m pipelines.summary --start $(SCALE)
	@dvc repro $(GRAPH)
	@python -m pipelines.summary $(SCALE)

test: lint unit graph ## lint, unit tests, then the smoke graph and the notebooks in a temporary clone

lint: $(READY) ## ruff and the notebook rules
	@ruff check . && ruff format --check . && python -m pipelines.lint

unit: $(READY) ## unit tests
	@pytest

graph: $(READY) ## the smoke graph in a temporary clone: kill, resume, re-run, nbval
	@pytest -m graph -s

lab: $(READY) ## JupyterLab on the notebooks
	@jupyter lab --port $(PORT) notebooks/00_start_here.ipynb

notebooks: $(READY) ## re-execute all notebooks in place at scale smoke (after `make repro SCALE=smoke`)
	@python -m pipelines.refresh

bench: $(READY) ## speed against transformers' generate and TRL (installs TRL)
	@python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[bench]'
	@env -u OMP_NUM_THREADS -u MKL_NUM_THREADS python bench/sampling.py
	@env -u OMP_NUM_THREADS -u MKL_NUM_THREADS python bench/iteration.py

clean: ## remove what runs left (not the environment, not the reports)
	rm -rf runs .work
