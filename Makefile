# All that lockkeeper needs beside this: Python 3.11 or newer, and make. `make help` lists the targets.

VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.lockkeeper-ready
# What runs need; a group of tools is installed by the targets that use it: `make check` ruff and mypy, and so on.
EXTRAS := --extra cedar --extra console --extra job --extra report --extra serve
TOOLS := $(VENV)/.lockkeeper-tools

# The first of these that is new enough; choose another with `make setup PYTHON=/path/to/python`.
PYTHONS := python3 python3.14 python3.13 python3.12 python3.11
NEW_ENOUGH := -c 'import sys; sys.exit(sys.version_info < (3, 11))'
PYTHON ?= $(shell for p in $(PYTHONS); do if $$p $(NEW_ENOUGH) 2>/dev/null; then echo $$p; break; fi; done)

# Passed on: `make demo ARGS="--seconds 30"`, `make test ARGS="-k broker"`.
ARGS ?=

# uv installs into the virtual environment made here, whatever the caller's environment says, and into no
# other; where it fetches from stays the caller's choice.
export UV_PROJECT_ENVIRONMENT := $(CURDIR)/$(VENV)
unexport VIRTUAL_ENV

# Images often have this set; then each of many processes would compile hundreds of modules anew.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help setup demo test verify verify-long verify-clusters verify-examples brokers-test compose-test explore docs chaos many soak fuzz fuzz-known pictures check format bench bench-cedar bench-evaluator bench-serve chart sbom lock dist clean

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-15s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(READY) ## Make the virtual environment and fetch all that runs need (once)

$(READY): pyproject.toml uv.lock streaming/runtime/jars.lock
	@$(or $(PYTHON),false) $(NEW_ENOUGH) 2>/dev/null || { \
	  echo "error: lockkeeper needs Python 3.11 or newer; '$(or $(PYTHON),$(PYTHONS))' is not."; \
	  echo "Install one, or name it: make setup PYTHON=/path/to/python3.11"; exit 1; } >&2
	@$(PYTHON) -m venv $(VENV) || { \
	  echo "error: $(PYTHON) cannot make a virtual environment; it says why above. Where its module"; \
	  echo "ensurepip is missing, install it: on Debian and Ubuntu the package python3-venv."; exit 1; } >&2
	@echo "setting up in $(VENV): about a minute, some 700 MB to fetch (Spark, Java, jars), once"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check uv
	@$(SYNC) || $(MAKE) --no-print-directory .sync-by-pip
	@$(BIN)/python -m streaming.runtime.jars
	@touch $@

SYNC = $(BIN)/uv sync --quiet --frozen --inexact --python $(BIN)/python $(EXTRAS)

# Beside what is there.
$(TOOLS)-%: $(READY)
	@echo "installing the tools of make $*"
	@$(SYNC) --group $* || $(MAKE) --no-print-directory .sync-by-pip GROUP="--group $*"
	@touch $@

# The lock file names where each file was found; where that cannot be reached, pip asks the index of its own
# configuration for the same files, by their hashes.
.PHONY: .sync-by-pip
.sync-by-pip:
	@echo "uv could not install (it says why above); trying pip, with its own configuration." >&2
	@$(BIN)/uv export --quiet --frozen --no-emit-project $(EXTRAS) $(GROUP) --output-file $(VENV)/requirements.txt
	@$(BIN)/python -m pip install --quiet --require-hashes --requirement $(VENV)/requirements.txt
	@$(BIN)/python -m pip install --quiet --no-deps --editable .

demo: $(READY) ## See it work: a broker, policies, requests, and the decisions as they come
	$(BIN)/lockkeeper demo $(ARGS)

# Two processes more than there are cores: many tests wait for a broker or a job.
PYTEST = $(BIN)/pytest --numprocesses $$(($$(getconf _NPROCESSORS_ONLN) + 2)) --maxprocesses 4 \
  --dist loadfile --no-loadscope-reorder

# A test that waits for a browser or a broker may wait too long where four processes share two cores. So what fails is run
# once more, with nothing beside it: one that fails there ends it; one that passes is named above, and is to be fixed.
ALONE = $(BIN)/pytest -n0 --last-failed --last-failed-no-failures none
AGAIN = echo "what failed is run again, with nothing beside it:"; $(ALONE)

# A quarter of the examples of each property: it is to take ten minutes on two cores. `make verify` has four times as many.
QUARTER = export LOCKKEEPER_TEST_EXAMPLES=$${LOCKKEEPER_TEST_EXAMPLES:-0.25}

test: $(TOOLS)-test ## Run the tests (ARGS="-m 'not stream'" leaves out those with a broker or Spark)
	$(QUARTER); $(PYTEST) -m "not long" $(ARGS) || { $(AGAIN) --maxfail=1; }

# The properties that compare the evaluators with the reference: with more examples than `make test` has time for.
PROPERTIES = tests/policy/test_properties.py tests/policy/test_answers.py tests/policy/test_affected_principals.py \
  tests/policy/test_edits.py tests/policy/test_resource_access.py tests/policy/test_threads.py \
  tests/policy/test_compiler.py tests/policy/test_refused.py tests/policy/test_escalation_properties.py \
  tests/policy/test_cdap.py tests/policy/test_patterns.py tests/policy/test_grants.py tests/policy/test_layer.py \
  tests/monitor/test_properties.py tests/stream/test_prepared_answers.py tests/stream/test_prepared_verdicts.py \
  tests/stream/test_known_answers.py tests/policy/test_packing.py tests/monitor/test_backlog.py

# A cluster of Spark is three to five Javas: beside others its scenarios would wait for the machine alone.
CLUSTER = tests/chaos/test_standalone_cluster.py tests/stream/test_standalone.py tests/stream/test_commit_steps.py

verify: verify-long verify-clusters verify-examples ## Run the long tests: kill points, faults, whole sessions, clusters; then more examples, changes and hostile inputs

verify-long: $(TOOLS)-test
	$(PYTEST) -m long --timeout=900 $(addprefix --ignore ,tests/chaos/test_three_brokers.py $(CLUSTER)) $(ARGS) \
	  || { $(AGAIN) -m long --timeout=900; }

verify-clusters: $(TOOLS)-test
	$(BIN)/pytest -n0 -m long --timeout=900 $(CLUSTER) || { $(AGAIN) -m long --timeout=900; }

verify-examples: $(TOOLS)-test
	LOCKKEEPER_TEST_EXAMPLES=4 $(PYTEST) --timeout=900 $(PROPERTIES)
	$(MAKE) --no-print-directory soak CHANGES=200
	$(MAKE) --no-print-directory fuzz INPUTS=10000 SEED=verify

brokers-test: $(TOOLS)-test ## Break one of three brokers after another under load: the leader, the controller, the network, the disk
	$(BIN)/pytest -n0 -m long --timeout=900 tests/chaos/test_three_brokers.py $(ARGS)

compose-test: $(TOOLS)-test ## Run what `docker compose up` starts, as a user does (needs a Docker engine with Compose v2)
	$(BIN)/pytest -m long -n0 -s tests/deploy/test_stack.py $(ARGS)

# What it finds, add to the tests as an example: verify draws the same ones in every run.
EXAMPLES ?= 20
explore: $(TOOLS)-test ## Look for counterexamples: the properties with new examples each time, EXAMPLES times as many, and new fuzz inputs
	LOCKKEEPER_TEST_EXPLORE=1 LOCKKEEPER_TEST_EXAMPLES=$(EXAMPLES) $(PYTEST) --timeout=7200 $(PROPERTIES) tests/policy/test_cedar.py \
	  tests/policy/test_changes_reported.py $(ARGS)
	$(MAKE) --no-print-directory fuzz

chaos: $(TOOLS)-test ## Break one thing after another under load, judged by verify (ARGS="--minutes 60 --seed 7")
	$(BIN)/python -m tests.chaos $(ARGS)

many: $(TOOLS)-test ## Measure many partitions, tenants, facts and statements (ARGS="--only tenants --scale 0.1")
	$(BIN)/python -m tests.chaos.many $(ARGS)

CHANGES ?= 1000
# With MINUTES: a change each second for so long, and what the job takes of the machine meanwhile.
MINUTES ?=
soak: $(TOOLS)-test ## Change policies CHANGES times under load, or each second for MINUTES
ifneq ($(MINUTES),)
	$(BIN)/python -m tests.chaos.soak --minutes $(MINUTES) $(ARGS)
else
	LOCKKEEPER_TEST_CHANGES=$(CHANGES) $(BIN)/pytest -s --timeout=1800 tests/stream/test_decisions.py -k older_policy $(ARGS)
endif

# Of all targets together. The seed is printed; SEED=… makes the same inputs once more.
INPUTS ?= 50000
SEED ?=
fuzz: $(TOOLS)-test ## Give INPUTS hostile inputs to every decoder and parser (1000000: all of it)
	$(BIN)/python -m tests.fuzz --inputs $(INPUTS) $(if $(SEED),--seed $(SEED)) $(ARGS)

ENVELOPES ?= 1000000
fuzz-known: $(TOOLS)-test ## Give ENVELOPES requests, changed a little, to the answers that Java knows
	$(BIN)/python -m tests.fuzz.envelopes --envelopes $(ENVELOPES) $(if $(SEED),--seed $(SEED)) $(ARGS)

docs: $(TOOLS)-docs ## Build the documentation into build/docs; a broken link fails
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --config-file docs/mkdocs.yml $(ARGS)

pictures: $(TOOLS)-test ## Take the pictures of the documentation again: the playground and the console (needs Chromium)
	$(BIN)/python -m tests.console.pictures docs/pages/pictures

check: $(TOOLS)-check ## Check style, types and workflows, as CI does
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy --strict --explicit-package-bases policy streaming tests/bench
	$(BIN)/zizmor --offline --quiet --persona pedantic .github deploy/examples/github-actions.yaml

format: $(TOOLS)-check ## Put the code into the form that check wants
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(READY) ## Measure throughput and latency of the job beside a Spark copy (ARGS="--traffic lenses6 --statements 100000")
	$(BIN)/python -m tests.bench $(ARGS)

bench-evaluator: $(TOOLS)-bench ## Measure the evaluator alone beside Cedar, casbin, OPA and a plain loop
	$(BIN)/python -m tests.bench.evaluator $(ARGS)

bench-cedar: $(READY) ## Measure Cedar policies beside bare cedarpy; with ARGS="--stream" the job beside a plain loop
	$(BIN)/python -m tests.bench.cedar $(ARGS)

bench-serve: $(READY) ## Measure lockkeeper serve over HTTP beside OPA's server, which Go builds (ARGS="--seconds 5 --no-job")
	$(BIN)/python -m tests.bench.serve $(ARGS)

chart: $(READY) ## Write the Helm chart anew: after a change of deploy/kubernetes
	$(BIN)/python deploy/helm/generate.py

# A licence that deploy/sbom does not allow fails.
sbom: $(READY) ## List what the image consists of, with licences and hashes, in build/sbom.cdx.json (CycloneDX)
	@$(SYNC) --extra all --group sbom
	$(BIN)/python -m deploy.sbom build/sbom.cdx.json

lock: $(READY) ## Write both lock files anew: after a change of dependencies
	$(BIN)/uv lock
	$(BIN)/python -m streaming.runtime.jars --lock

# Installed where nothing else is, and run where the checkout is not: it must bring all that it needs.
dist: $(READY) ## Build the wheel and the source archive into dist/, and try the wheel in an empty environment
	rm -rf dist
	$(BIN)/uv build
	$(BIN)/python -m venv --clear build/try
	$(BIN)/uv pip install --quiet --python build/try/bin/python dist/*.whl \
	  || build/try/bin/python -m pip install --quiet dist/*.whl
	cd build/try && bin/lockkeeper --version && bin/lockkeeper policy lint $(CURDIR)/deploy/policies \
	  && bin/lockkeeper decide --policies $(CURDIR)/deploy/policies --requests $(CURDIR)/deploy/requests.jsonl > /dev/null

clean: ## Remove the virtual environment and what tools left; not the cache of jars
	rm -rf $(VENV) dist build .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
