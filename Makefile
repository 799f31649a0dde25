# Forebay on one machine. `make help` lists what there is.

PYTHON ?= python3
TORCH ?= torch==2.13.0
TORCH_INDEX ?=
PYTEST_ARGS ?=
WHEELS ?=
PART ?=
GPU_PYTHON ?= 3.12
TORCHES ?=
VERSION ?=
RELEASE_KEY ?=
FOREBAY_PORT ?= 8000
FOREBAY_STATE ?= $(CURDIR)/var
FOREBAY_ADDRESS ?= 127.0.0.1
export FOREBAY_PORT FOREBAY_STATE FOREBAY_ADDRESS

BIN := .venv/bin
BEGAN := $(shell date +%s)
# the longest first, so that all streams end together
ROOMS := device pool worker programs acceptance billing jax agents lab simulation dashboards packages house generic client admin hub docs wire kubernetes monitoring standin service spawner tensorflow
JOBS ?= $(shell echo $$(($$(getconf _NPROCESSORS_ONLN) + 1)))
PYTEST := env -u MAKEFLAGS -u MFLAGS -u MAKELEVEL -u PYTHONDONTWRITEBYTECODE $(BIN)/pytest --durations=30 --durations-min=1 $(PYTEST_ARGS)
PACKAGES := forebay forebay_jax forebay_tensorflow forebay_wire forebay_worker forebay_pool forebay_edge forebay_billing forebay_service forebay_hub forebay_spawner forebay_dashboards forebay_admin forebay_lab
SETUP := $(PYTHON) deploy/local/install.py --torch '$(TORCH)' --torch-index '$(TORCH_INDEX)'

.PHONY: help setup setup-tensorflow up check test $(ROOMS:%=test-%) test-pure test-long test-wheels wheels version release wheels-gpu test-gpu lint docs bench

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-12s %s\n", $$1, $$2}' Makefile
	@echo
	@echo "Variables: FOREBAY_PORT=$(FOREBAY_PORT) FOREBAY_STATE=$(FOREBAY_STATE) FOREBAY_ADDRESS=$(FOREBAY_ADDRESS)"
	@echo "           PYTHON=$(PYTHON) TORCH=$(TORCH) TORCH_INDEX=$(TORCH_INDEX)"

setup: ## install everything into .venv (again only what has changed)
	@$(SETUP)

setup-tensorflow: ## TensorFlow and its plug-in into .venv, after the tests' set-up: 1.4 GB, some minutes of compiling
	$(BIN)/python -m pip install 'tensorflow-cpu>=2.21,<2.22' setuptools
	$(BIN)/python -m pip install --no-build-isolation --no-deps ./tf

up: setup ## start the cloud, print its address and the demo logins; Ctrl-C stops it
	@exec $(PYTHON) deploy/local/up.py

check: ## what to run while working, in two minutes: style, types, who may import whom, and the tests of what needs no process
	@$(MAKE) --no-print-directory --jobs=2 --output-sync=target lint test-pure

test: ## set up, lint, and run every test, several rooms of them side by side
	@$(SETUP) --dev
	@echo "$(words $(ROOMS)) rooms of tests and lint, $(JOBS) at a time; what each says comes when it is done"
	@$(MAKE) --no-print-directory --jobs=$(JOBS) --output-sync=target --keep-going lint $(ROOMS:%=test-%) 3>&1
	@echo "make test took $$((($$(date +%s) - $(BEGAN)) / 60)) min"

# what failed runs once more, alone: some tests look at the clock, and others may have had the processors
$(ROOMS:%=test-%) test-pure: test-%:
	@test ! -w /dev/fd/3 || echo "$@ begins" >&3
	@$(PYTEST) -o cache_dir=build/$@ $(TESTS) || $(PYTEST) -o cache_dir=build/$@ --last-failed --last-failed-no-failures=none $(TESTS)

TESTS = tests/$*
test-house: TESTS = $(wildcard tests/test_*.py)
test-programs: TESTS = tests/virtual_device tests/frameworks
test-generic: TESTS = tests/device_generic
test-tensorflow: TESTS = tests/tensorflow_device
test-programs test-generic test-jax test-tensorflow: export FOREBAY_URL := local
test-pure: TESTS = tests/test_tidy.py tests/wire/test_command_stream.py \
	$(addprefix tests/pool/test_,estimates.py pool_state_machine.py pool_state_machine_failures.py pool_shares_and_gangs.py queue.py) \
	$(addprefix tests/billing/test_billing_,credits.py invoices.py money.py months.py plans.py previews.py price_book.py rating.py) \
	$(addprefix tests/dashboards/test_dashboards_,core.py money.py tables.py text.py)

test-long: ## what takes hours: the sweeps in full, hostile calls by the hundred thousand, a thousand kills, thousands of seeds of faults
	@$(SETUP) --dev
	$(PYTEST) --full-sweep $(addprefix tests/device/test_,operator_sweep.py repeated_operators.py data_parallel.py full_memory.py environments.py libraries_by_default.py divided_loops.py division_search.py cut_connections.py disturbed_gangs.py divided_checkpoints.py group_deaths.py large_plans.py large_stages.py layouts.py model_families.py pipelined_trainings.py pipelines_by_default.py process_groups.py random_eager.py tensor_parallel.py toolkit_command.py web_sockets.py \
		torchrun.py worker_deaths.py)
	$(PYTEST) --full-sweep tests/device/test_toolkit_models.py tests/test_gpu_parts.py
	FOREBAY_URL=local $(PYTEST) --full-sweep tests/device_generic
	FOREBAY_URL=local $(PYTEST) --full-sweep tests/jax
	FOREBAY_URL=local $(PYTEST) --full-sweep tests/tensorflow_device
	$(PYTEST) --full-sweep --hostile-calls 378 --hostile-seed $$(date +%Y%m%d) tests/worker/test_kernel_contracts.py
	$(PYTEST) --full-sweep $(addprefix tests/worker/test_,data_parallel.py gang.py gang_memory.py hostile_programs.py process_groups.py process_host.py process_sandbox.py worker_parking.py)
	$(PYTEST) --every-device tests/worker -k standin
	$(PYTEST) --full-sweep $(addprefix tests/worker/test_,compiled.py graphs.py matmul_backend.py random_libraries.py)
	$(PYTEST) --full-sweep tests/device/test_checkpoints.py tests/device/test_compiled_training.py tests/device/test_graphed_training.py tests/device/test_recomputation.py tests/device/test_recomputed_gangs.py tests/device/test_recurrent_memory.py
	$(PYTEST) --full-sweep $(addprefix tests/agents/test_,budgets.py kernels.py)
	$(PYTEST) --full-sweep tests/packages
	$(PYTEST) --full-sweep tests/kubernetes
	$(PYTEST) --full-sweep $(addprefix tests/acceptance/test_,a_budget_that_is_used_up.py a_host_as_a_service.py a_lost_control_host.py an_agent_at_the_hub.py more_hosts.py accounts_of_logins.py logins_like_addresses.py own_packages.py \
		many_deaths.py processes_that_are_killed.py processes_that_stand_still.py starting_and_stopping.py training_and_the_bill.py unattended_runs.py upgrade.py upgrade_of_hosts.py walks_by_role.py)
	$(PYTEST) --full-sweep tests/billing tests/hub/test_culling.py tests/hub/test_databases.py
	FOREBAY_URL=local $(PYTEST) --full-sweep $(addprefix tests/frameworks/test_,compiled_regions.py processes.py reference_models.py)
	$(PYTEST) --full-sweep $(addprefix tests/pool/test_,edge.py pool_autoscaling.py pool_databases.py pool_evacuation.py pool_floods.py pool_forking_libraries.py pool_forks.py pool_groups_progress.py pool_jobs.py pool_moving.py pool_on_ray.py pool_on_ray_head.py pool_openapi.py pool_processes.py pool_releases.py pool_resized_trainings.py pool_restart.py \
		pool_work.py pool_state_machine_properties.py queue_properties.py)
	$(PYTEST) --full-sweep $(addprefix tests/dashboards/test_,charts_in_browser.py console_accessibility.py console_live.py dashboards_browser.py dashboards_tables.py jobs_page.py languages_in_browser.py \
		owners_in_browser.py plan_in_browser.py)
	$(PYTEST) --full-sweep $(addprefix tests/lab/test_,closed_tab.py cut_connections.py front_ends.py gallery.py kernel_messages.py notebook_in_browser.py)
	$(PYTEST) --full-sweep --search-seeds tests/simulation
	$(PYTEST) --full-sweep tests/wire tests/client/test_bill_verify.py
	PYTHONPATH=bench $(BIN)/python -m simulation.seeds --count 10000
	PYTHONPATH=bench:tests/billing $(BIN)/python -m simulation.seeds --world money --count 5000

test-wheels: ## the same tests on builds of PyTorch with and without CUDA, side by side (downloads gigabytes)
	$(PYTHON) tests/stock_wheels.py $(if $(TORCH_INDEX),--index '$(TORCH_INDEX)') $(WHEELS)

wheels: ## every wheel of the repository with an index page, in build/dist; TORCHES='torch==2.12.1 …' adds builds for other releases
	@$(SETUP) --dev
	@$(BIN)/python deploy/packages/wheels.py $(if $(TORCH_INDEX),--index '$(TORCH_INDEX)') $(TORCHES)

wheels-tensorflow: ## beside those of make wheels, the plug-in for TensorFlow, against the one of make setup-tensorflow
	@$(BIN)/python deploy/packages/wheels.py --tensorflow

version: ## give all packages VERSION=1.2.3, and close the changelog's open part under it
	@$(BIN)/python deploy/packages/release.py version '$(VERSION)'

release: ## wheels, changes, bill of materials and sums of the version, in build/release; RELEASE_KEY=FILE signs them
	@$(SETUP) --dev
	@$(BIN)/python deploy/packages/release.py make $(if $(TORCH_INDEX),--index '$(TORCH_INDEX)') $(if $(RELEASE_KEY),--key '$(RELEASE_KEY)') $(TORCHES)

wheels-gpu: ## gather what a GPU server without a package registry needs beside PyTorch, in build/wheels-gpu
	@$(PYTHON) bench/gpu/wheels.py --python $(GPU_PYTHON)

test-gpu: ## try Forebay on this machine's GPU: all parts, or PART=build|fidelity|memory|park|share|speed|graphs|kernels|faults|gang
	@$(PYTHON) bench/gpu/host.py $(PART)

lint: ## style, types, and who may import whom
	$(BIN)/ruff check .
	$(BIN)/mypy $(addprefix -p ,$(PACKAGES))
	MYPYPATH=deploy/local $(BIN)/mypy deploy/local/install.py deploy/local/place.py deploy/local/up.py deploy/grafana/boards.py
	PYTHONPATH=bench:tf $(BIN)/lint-imports

docs: ## build the documentation as a site, in build/site
	@$(SETUP) --dev
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build

bench: ## measure, print ratios, and write bench/results
	@$(SETUP) --dev
	$(BIN)/python bench/run.py
