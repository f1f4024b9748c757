# Everything goes through one bootstrap; it is quick when there is nothing to do.
PYTHON ?= $(shell for p in python3.11 python3 python; do \
	$$p -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' 2>/dev/null && { command -v $$p; break; }; done)
RUN := .venv/bin/python
TESTS ?=
PORT ?=
SEED ?=
INPUTS ?=
MINUTES ?=
EACH ?=
SERVERS := azurite hdfs iceberg browser postgres mysql
AIRFLOW ?=
SPARK ?=
PART ?=
# Some machines and images set this. Then each of the hundreds of processes that tests start compiles all of Spark's and
# Airflow's Python again, which takes longer than what they are started for.
unexport PYTHONDONTWRITEBYTECODE
# The longest files begin first, each with one worker, whose Spark session all its files share.
PYTEST := $(RUN) -m pytest -q --durations=15 -n 3 --dist loadfile --no-loadscope-reorder $(if $(SEED),--random-order-seed=$(SEED))

.DEFAULT_GOAL := help
.PHONY: help setup release demo demo-check demo-spark test test-system test-all test-airflow test-oldest-spark test-other-airflow lint format types bench bench-quick kill-long fuzz mistakes rules servers azurite hdfs iceberg browser postgres mysql screenshots compose-check docker-env lock sbom docs audit clean

help: ## this list
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 14

setup: ## virtual environment, locked packages, Java if needed, Spark's jars
	@test -n "$(PYTHON)" || { echo "make: Python 3.11 was not found: install it or run make PYTHON=/path/to/python3.11" >&2; exit 1; }
	@$(PYTHON) scripts/bootstrap.py

demo: setup ## Airflow here: a run, a savepoint, a crash and a recovery, and then it is yours; PORT=8080
	@$(RUN) -m demo $(if $(PORT),--port $(PORT))

demo-check: setup ## the same, and then a verdict
	@$(RUN) -m demo --check $(if $(PORT),--port $(PORT))

demo-spark: setup ## without Airflow, in a minute: a run, kill -9 and recovery on the command line
	@$(RUN) -m demo.spark

test: setup ## what anybody can run in ten minutes; TESTS=tests/state for a part, with its slow tests, SEED=7 for a random order, SPARK=4.0 for an older Spark
	@$(if $(SPARK),$(RUN) -m scripts.other_spark $(SPARK) $(TESTS),$(PYTEST) -m "not system$(if $(TESTS),, and not slow)" $(TESTS))

test-system: setup $(SERVERS) ## the rest: real Airflow, Kafka, clusters, Azure, HDFS, a browser, kills; TESTS, SEED
	@$(PYTEST) -m system $(TESTS)

test-all: setup $(SERVERS) ## both of them in one run, as CI does: while some tests wait for servers, others compute; TESTS, SEED
	@$(PYTEST) $(TESTS)

test-airflow: setup ## all tests of Airflow, with the long ones that the others skip, about ten minutes
	@STATEFLOW_LONG=1 $(RUN) -m pytest -q --durations=15 tests/airflow

test-oldest-spark: setup ## what another Spark breaks first, with the oldest, about six minutes; `make test SPARK=4.0` for all that touches Spark
	@$(RUN) -m scripts.other_spark 4.0 --core

test-other-airflow: setup ## the operators' tests with the oldest Airflow that the provider takes; AIRFLOW=3.3.1 for another one
	@$(RUN) -m scripts.other_airflow $(AIRFLOW)

lint: setup ## ruff: rules and formatting
	@$(RUN) -m ruff check .
	@$(RUN) -m ruff format --check .

format: setup ## ruff: fix and format
	@$(RUN) -m ruff check --fix .
	@$(RUN) -m ruff format .

types: setup ## mypy --strict
	@$(RUN) -m mypy --strict -p stateflow -p stateflow_ui -p demo

bench: setup ## side-by-side benchmarks, the full set
	@$(RUN) -m bench

bench-quick: setup ## the same, small enough for a coffee
	@$(RUN) -m bench --quick

kill-long: setup ## a thousand random kills of running pipelines, for hours; it goes on where it was; MINUTES=60, SEED=7
	@$(RUN) -m bench.kill $(if $(MINUTES),--minutes $(MINUTES)) $(if $(SEED),--seed $(SEED))

fuzz: setup ## bytes of a stranger, 100,000 inputs, for an hour or two; it goes on where it was; INPUTS=20000, MINUTES=30, SEED=7
	@$(RUN) -m tests.fuzz $(if $(INPUTS),--inputs $(INPUTS)) $(if $(MINUTES),--minutes $(MINUTES)) $(if $(SEED),--seed $(SEED))

mistakes: setup ## does any slightly wrong pipeline, file or command end green, without a word, and wrong? Up to an hour; EACH=3 of every kind
	@$(RUN) -m tests.mistakes $(if $(EACH),--each $(EACH))

rules: setup ## does a test notice when a rule is removed from the code? Half an hour; PART=operators for one part of it
	@$(RUN) -m scripts.remove_rules $(PART)

servers: setup $(SERVERS) ## all the servers that tests use, from the emulator of Azure to MariaDB

azurite: setup ## the Azure emulator for the tests that use it (Node.js)
	@$(RUN) -m scripts.azurite

iceberg: setup ## Iceberg's REST catalog for the tests that use it (jars of 33 MB)
	@$(RUN) -m scripts.iceberg_rest

hdfs: setup ## a small HDFS and YARN for the tests that use them (Hadoop's minicluster, jars of 66 MB)
	@$(RUN) -m scripts.hdfs

browser: setup ## the browser for the tests of the pages (Chromium, Debian's package)
	@$(RUN) -m scripts.browser

postgres: setup ## Postgres for the story of Airflow with it (Debian's package)
	@$(RUN) -m scripts.postgres

mysql: setup ## MariaDB for the recipe for MySQL (Debian's package)
	@$(RUN) -m scripts.mysql

screenshots: setup browser ## new pictures of the pages, in docs/img/ui
	@STATEFLOW_SCREENSHOTS=1 $(RUN) -m pytest -q tests/ui/test_screenshots.py

compose-check: setup ## docker/: is it sound? No container engine is needed
	@$(RUN) scripts/compose_check.py

docker-env: setup ## docker/.env: passwords and keys of the compose file, made up once
	@$(RUN) scripts/docker_env.py

release: setup ## both distributions in dist/, built of the commit, looked through and tried on three Pythons; it uploads nothing
	@$(RUN) -m scripts.release

lock: setup ## new lock files, with hashes, from requirements.in, requirements-dev.in and pyproject.toml
	@$(RUN) scripts/lock.py

sbom: setup ## build/sbom.json: every package and jar of the locks with its SHA-256, in CycloneDX
	@$(RUN) scripts/sbom.py build/sbom.json

docs: setup ## the pages as a site in site/, with search, to be read without a network (Node.js, for npm)
	@$(RUN) -m scripts.docsite

audit: setup ## are vulnerabilities known in what is locked? It asks the Python package index
	@$(RUN) -m uv tool run pip-audit==2.9.0 --disable-pip --require-hashes -r requirements.txt -r requirements-dev.txt

clean: ## remove what was built and fetched
	rm -rf .venv .cache .mypy_cache .ruff_cache .pytest_cache .hypothesis spark-warehouse metastore_db *.egg-info build dist site
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
