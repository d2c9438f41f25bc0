# `make train` and `make test` do all the set-up themselves; `make help` lists the rest.
#
# Set-up speaks on stderr only: the first line on stdout is the trainer's, which names the device and says why.

PYTHON ?= python3
VENV ?= .venv
CONFIG = tag.yaml
ARGS =

python := $(VENV)/bin/python
setup_files := setup.py pyproject.toml constraints.txt

.DEFAULT_GOAL := help
.PHONY: help train test lint clean compiler
.NOTPARALLEL:

help:
	@echo "make train    set up, then watch agents learn to play Tag (on the GPU if there is one, else on the CPU)"
	@echo "              CONFIG=tag_gridworld.yaml picks another config of examples/, ARGS='key=value ...' changes it"
	@echo "make test     set up, then run the linter and all tests (ARGS='-k name' picks some)"
	@echo "make lint     the linter alone"
	@echo "make clean    remove $(VENV), caches and build leftovers; runs/ stays"
	@echo "PYTHON=python3.12 picks the Python, VENV=folder the virtual environment"

train: compiler $(VENV)/.ready-to-train
	@$(python) examples/train.py --config $(CONFIG) $(ARGS)

test: compiler $(VENV)/.ready-to-test
	@$(python) -m ruff check .
	@$(python) -m pytest -n auto --maxprocesses 8 --dist worksteal -m "not alone" $(ARGS) || [ $$? -eq 5 ]
	@$(python) -m pytest -m alone $(ARGS) || [ $$? -eq 5 ] # 5: ARGS picked none of these

lint: $(VENV)/.ready-to-test
	@$(python) -m ruff check .

clean:
	@if [ -f "$(VENV)/pyvenv.cfg" ]; then rm -rf "$(VENV)"; fi
	@rm -rf build dist *.egg-info .pytest_cache .ruff_cache
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +

# A GPU needs no host compiler: its kernels go through NVRTC.
compiler:
	@for name in $$CXX g++ clang++; do if command -v "$$name" >/dev/null; then exit 0; fi; done; \
	if nvidia-smi >/dev/null 2>&1; then exit 0; fi; \
	echo "No C++ compiler found, and the CPU runs kernels through one." \
		"Install g++ or clang++ (Debian and Ubuntu: apt-get install g++)." >&2; exit 1

# The stamps are renewed only when a set-up file is newer.
$(VENV)/.ready-to-train: $(setup_files)
	$(call install,plot)
	@touch $@

$(VENV)/.ready-to-test: $(setup_files)
	$(call install,plot,test)
	@touch $@ $(VENV)/.ready-to-train

# PyCUDA is built from source, which fails on some machines and is never needed: cuda.bindings then takes its place.
define install
	@$(PYTHON) -c "import sys; sys.exit(sys.version_info < (3, 11))" 2>/dev/null || { \
		echo "'$(PYTHON)' is missing or older than Python 3.11." \
			"Install a newer one, or name it: make PYTHON=python3.12" >&2; exit 1; }
	@echo "Setting up $(VENV): about a minute, or a few where torch brings CUDA's libraries with it." >&2
	@$(python) -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv $(VENV) >&2 || { \
		echo "'$(PYTHON)' cannot make a virtual environment. Install its venv module" \
			"(Debian and Ubuntu: apt-get install python3-venv)." >&2; exit 1; }
	@$(pip_install) -qq -e '.[$(1)$(if $(2),$(comma)$(2))]' >&2
	@PATH="$${CUDA_HOME:-/usr/local/cuda}/bin:$$PATH"; \
	if nvidia-smi >/dev/null 2>&1 && command -v nvcc >/dev/null; then \
		$(pip_install) -q -e '.[cuda]' >$(VENV)/pycuda.log 2>&1 || \
		echo "PyCUDA did not build ($(VENV)/pycuda.log says why): going on without it." >&2; fi
endef

comma := ,
pip_install = $(python) -m pip install --disable-pip-version-check -c constraints.txt
