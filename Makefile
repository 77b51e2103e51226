# Two commands do all the set-up: `make run` and `make test`.
PYTHON ?= python3
VENV := .venv
PY := $(VENV)/bin/python
ARGS ?= --model derpp --norm adab2n --dataset seq-digits

.DEFAULT_GOAL := help
# uv installs faster than pip and comes by pip. It does not read pip's configuration, so it is given the index.
INDEX = $$($(PY) -m pip config list | sed -n "s/.*[.]index-url='\(.*\)'/\1/p" | head -1)
INSTALL = $(PY) -m pip install --quiet uv && UV_DEFAULT_INDEX="$${UV_DEFAULT_INDEX:-$(INDEX)}" $(PY) -m uv pip install --quiet --python $(PY)
HAS_CUDA = $(PY) -c "import sys, torch; sys.exit(not torch.cuda.is_available())"
.PHONY: help install install-dev run test test-compile test-cuda check-gpu test-oldest test-ray test-slurm readme lint \
	format check-plugins soak bench bench-compile \
	bench-cuda sweeps clean

help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

install: $(VENV)/.installed ## create .venv with what running needs; its Python can import this checkout from any folder
install-dev: $(VENV)/.installed-dev ## install what tests need, too

$(VENV)/.installed: requirements.txt
	$(PYTHON) -m venv $(VENV)
	$(INSTALL) -r requirements.txt
	@$(PY) -c "import site; print('$(CURDIR)', file=open(site.getsitepackages()[0] + '/checkout.pth', 'w'))"
	@touch $@

$(VENV)/.installed-dev: requirements-dev.txt $(VENV)/.installed
	$(INSTALL) -r requirements-dev.txt
	@touch $@

run: install ## DER++ with AdaB2N on the embedded digits; other flags with ARGS="..."
	$(PY) main.py $(ARGS)

test: install-dev ## all tests, two at a time, one thread each
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy
	OMP_NUM_THREADS=1 $(PY) -m pytest -n 2 --dist worksteal

test-compile: install-dev ## what Inductor generates for compiled steps: traces, float64 steps, bfloat16 (ten minutes)
	OMP_NUM_THREADS=1 $(PY) -m pytest -o addopts= -v tests/compiled

test-cuda: install-dev ## on a GPU: golden curves, traces, kernels, and that no step waits
	@if $(HAS_CUDA); then $(PY) -m pytest -o addopts= -q tests/cuda; else echo "test-cuda: no GPU here, skipped"; fi

check-gpu: install-dev ## on a GPU: test-cuda, then 100 plain and 100 compiled steps; all output in check-gpu.txt
	@if $(HAS_CUDA); then { $(MAKE) test-cuda; $(PY) -m scripts.bench compile --widths 16 64 --repetitions 100; } 2>&1 \
		| tee check-gpu.txt; else echo "check-gpu: no GPU here, skipped"; fi

test-oldest: ## the package's tests with the oldest torch that it supports, in an environment of their own
	$(PYTHON) -m venv .venv-oldest
	.venv-oldest/bin/pip install --quiet torch==2.4.0 torchvision==0.19.0 "numpy<2.3" pytest
	.venv-oldest/bin/python -m pytest -o addopts= -q --confcutdir=tests/package tests/package/test_layers.py

test-ray: install-dev ## sweeps on a real local Ray cluster of two nodes; workers and a node are killed
	$(INSTALL) -r requirements-ray.txt
	OMP_NUM_THREADS=1 $(PY) -m pytest -o addopts= -v tests/cluster/test_ray.py

test-slurm: install-dev ## sweeps on a real Slurm of one node; needs root and Debian's slurm-wlm and munge
	command -v slurmctld > /dev/null && command -v munged > /dev/null || apt-get install -y --no-install-recommends slurm-wlm munge
	OMP_NUM_THREADS=1 $(PY) -m pytest -o addopts= -v tests/cluster/test_slurm.py

readme: install-dev ## every command of the README, in its order, in a copy of this folder (20 minutes)
	$(PY) -m pytest -o addopts= -v tests/slow/test_readme_commands.py

.PHONY: docs test-docs
docs: $(VENV)/.installed-docs ## the documentation as web pages, docs/_build/html/index.html; warnings are errors
	$(PY) -m sphinx -W --keep-going docs docs/_build/html

$(VENV)/.installed-docs: requirements-docs.txt $(VENV)/.installed-dev
	$(INSTALL) -r requirements-docs.txt
	@touch $@

test-docs: docs ## the documentation in headless Chromium: search, navigation, dark mode, narrow screens
	command -v chromedriver > /dev/null || apt-get install -y --no-install-recommends chromium chromium-driver
	$(PY) -m pytest -o addopts= -v tests/browser

sweeps: install-dev ## every shell sweep in miniature, then all plans with --preset smoke (20 minutes)
	OMP_NUM_THREADS=1 $(PY) -m pytest -o addopts= -v tests/slow/test_shell_sweeps.py
	$(PY) -m scripts.reproduce run all --preset smoke

lint: install-dev ## check style
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .

format: install-dev ## put the code into its style
	$(PY) -m ruff check --fix .
	$(PY) -m ruff format .

check-plugins: install-dev ## scripts.check_plugin on ten mistakes and on every method and norm (15 minutes)
	OMP_NUM_THREADS=1 $(PY) -m pytest -o addopts= -v tests/slow/test_traps_and_parts.py

soak: install-dev ## kill and resume runs of every method 200 times (SOAK_KILLS=200), and compare their ends bit by bit
	OMP_NUM_THREADS=1 $(PY) -m pytest -o addopts= -v -s tests/slow/test_soak.py

bench: install ## norms and whole runs (ten minutes, nothing else should run)
	for subject in norms run; do $(PY) -m scripts.bench $$subject || exit; done

bench-compile: install ## compiled steps on this CPU; about an hour, and the numbers in results/benchmarks
	$(PY) -m scripts.bench compile --json results/benchmarks/cpu-compile.json

bench-cuda: install ## norms, whole runs and compiled steps on a GPU; the numbers in results/benchmarks
	@if $(HAS_CUDA); then for subject in norms run compile; do \
		$(PY) -m scripts.bench $$subject --json results/benchmarks/cuda-$$subject.json || exit; done; \
	else echo "bench-cuda: no GPU here, skipped"; fi

clean: ## remove the environment and caches; results stay
	rm -rf $(VENV) .venv-oldest .pytest_cache .ruff_cache .hypothesis docs/_build docs/reference/generated
