PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin

.PHONY: help setup quickstart test test-all test-slurm lint wheel docs reproduce-tables bench gpu-slice gpu-pack clean

help:
	@echo "make setup        make $(VENV) with bnrecon and the development tools"
	@echo "make quickstart   set up, then run the main job on the embedded digits (half a minute after setup)"
	@echo "make test         set up if need be, then run the tests that start no process (four to seven minutes on two cores)"
	@echo "make test-all     all tests, including those that start, kill and resume processes (8 to 15 minutes)"
	@echo "make test-slurm   the tests on a real Slurm, started and ended here (needs root, slurmctld, slurmd, slurmdbd, munge, mariadb; ten minutes)"
	@echo "make lint         check style, types, and the import order of the subpackages"
	@echo "make wheel        build a wheel into dist/"
	@echo "make docs         build the documents into build/docs"
	@echo "make reproduce-tables   compute the missing entries of the papers' tables and print the tables; DATA=FOLDER holds CIFAR, SCALE=smoke|laptop|paper, JOBS=2 for two processes"
	@echo "make bench        compare training throughput and solvers with alternatives (an hour; scripts/*.py take options)"
	@echo "make gpu-slice    the next unfinished tasks that need a GPU, within MINUTES=9; DATA=FOLDER holds CIFAR, PIECES=\"table1-targets ...\" chooses; run it again to resume"
	@echo "make gpu-pack     a folder OUT=FOLDER for a GPU machine without network and git; DATA=FOLDER, PIECES=\"table1-targets ...\""
	@echo "make clean        remove the environment and build files; outputs/ stays"

setup: $(VENV)/.ready

$(VENV)/.ready: pyproject.toml
	@echo "setting up $(VENV); torch and torchvision take a minute or two to download"
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q --disable-pip-version-check -e ".[dev]"
	@touch $@

quickstart: setup
	$(BIN)/bnrecon run experiment=quickstart

PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest
test: setup
	$(PYTEST) -n 2 --dist worksteal -m "not process and not network and not slurm"

test-all: setup
	$(PYTEST) -n 2 --dist worksteal

test-slurm: setup
	$(PYTEST) tests/slurm -m slurm -o faulthandler_timeout=1500

lint: setup
	$(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/lint-imports --no-cache && $(BIN)/mypy

docs: setup
	$(BIN)/python -m pip install -q --disable-pip-version-check -e ".[docs]"
	$(BIN)/sphinx-build -W --keep-going -n -b html -c docs . build/docs

wheel: setup
	$(BIN)/python -m build --wheel

SCALE ?= laptop
JOBS ?= 1
STUDIES := burkholz2024 random_features giannou2023 bn_explained
reproduce-tables: setup
	$(foreach study,$(STUDIES),$(BIN)/bnrecon study $(study) scale=$(SCALE) jobs=$(JOBS) $(if $(DATA),data.root=$(DATA)) &&) true

bench: setup
	$(BIN)/python scripts/bench_training.py
	$(BIN)/python scripts/bench_solvers.py --outputs build/solvers

MINUTES ?= 9
gpu-slice: setup
	$(BIN)/python scripts/gpu/gpu_slice.py --minutes $(MINUTES) $(if $(DATA),data.root=$(DATA)) $(if $(PIECES),--pieces $(PIECES))

OUT ?= build/gpu
gpu-pack: setup
	$(BIN)/python scripts/gpu/pack_for_gpu.py $(OUT) $(if $(DATA),--data $(DATA)) $(if $(PIECES),--pieces $(PIECES)) $(PACK)

clean:
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .ruff_cache .mypy_cache
