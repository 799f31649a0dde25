# Forebay on one machine. `make help` lists what there is.

PYTHON ?= python3
TORCH ?= torch==2.13.0
TORCH_INDEX ?=
PYTEST_ARGS ?=
WHEELS ?=
FOREBAY_PORT ?= 8000
FOREBAY_STATE ?= $(CURDIR)/var
FOREBAY_ADDRESS ?= 127.0.0.1
export FOREBAY_PORT FOREBAY_STATE FOREBAY_ADDRESS

BIN := .venv/bin
HALVES := test-devices test-services
DEVICES := tests/device tests/pool tests/simulation tests/wire tests/worker
PARTS := test-programs test-generic
APART := tests/virtual_device tests/frameworks tests/device_generic
PYTEST := env -u MAKEFLAGS -u MFLAGS -u MAKELEVEL $(BIN)/pytest $(PYTEST_ARGS)
PACKAGES := forebay forebay_wire forebay_worker forebay_pool forebay_billing forebay_hub forebay_spawner forebay_dashboards forebay_lab
SETUP := $(PYTHON) deploy/local/install.py --torch '$(TORCH)' --torch-index '$(TORCH_INDEX)'

.PHONY: help setup up test $(HALVES) $(PARTS) test-long test-wheels lint docs bench

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-12s %s\n", $$1, $$2}' Makefile
	@echo
	@echo "Variables: FOREBAY_PORT=$(FOREBAY_PORT) FOREBAY_STATE=$(FOREBAY_STATE) FOREBAY_ADDRESS=$(FOREBAY_ADDRESS)"
	@echo "           PYTHON=$(PYTHON) TORCH=$(TORCH) TORCH_INDEX=$(TORCH_INDEX)"

setup: ## install everything into .venv (again only what has changed)
	@$(SETUP)

up: setup ## start the cloud, print its address and the demo logins; Ctrl-C stops it
	@exec $(PYTHON) deploy/local/up.py

test: ## set up, lint, and run every test
	@$(SETUP) --dev
	@$(MAKE) --no-print-directory lint
	@echo "Half of the tests beside the other half; what each says comes when it is done"
	@$(MAKE) --no-print-directory --jobs=2 --output-sync=target --keep-going $(HALVES)
	@$(MAKE) --no-print-directory --jobs=1 $(PARTS) # apart: PyTorch's own test modules forbid their process to set flags

# what failed runs once more, alone: some tests look at the clock, and others may have had the processors
$(HALVES) $(PARTS):
	$(PYTEST) -o cache_dir=build/$@ $(ROOMS) || $(PYTEST) -o cache_dir=build/$@ --last-failed --last-failed-no-failures=none $(ROOMS)

test-devices: ROOMS = $(DEVICES)
test-services: ROOMS = tests $(addprefix --ignore=,$(DEVICES) $(APART))
test-programs: ROOMS = tests/virtual_device tests/frameworks
test-generic: ROOMS = tests/device_generic
$(PARTS): export FOREBAY_URL := local

test-long: ## ten thousand seeds of faults in the pool, five thousand in all between a device and Stripe, on every core
	@$(SETUP) --dev
	PYTHONPATH=bench $(BIN)/python -m simulation.seeds --count 10000
	PYTHONPATH=bench:tests/billing $(BIN)/python -m simulation.seeds --world money --count 5000

test-wheels: ## the same tests on builds of PyTorch with and without CUDA, side by side (downloads gigabytes)
	$(PYTHON) tests/stock_wheels.py $(if $(TORCH_INDEX),--index '$(TORCH_INDEX)') $(WHEELS)

lint: ## style, types, and who may import whom
	$(BIN)/ruff check .
	$(BIN)/mypy $(addprefix -p ,$(PACKAGES))
	MYPYPATH=deploy/local $(BIN)/mypy deploy/local/install.py deploy/local/place.py deploy/local/up.py deploy/grafana/boards.py
	$(BIN)/lint-imports

docs: ## build the documentation as a site, in build/site
	@$(SETUP) --dev
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build

bench: ## measure, print ratios, and write bench/results
	@$(SETUP) --dev
	$(BIN)/python bench/run.py
