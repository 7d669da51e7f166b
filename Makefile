# `make demo` and `make test` bring everything they need (scripts/setup.sh) and say what they
# install.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.PHONY: help setup matrix demo demo-kafka demo-dedup demo-zeitgeist demo-billing demo-regions demo-year daily-close two-partitions zombie test test-long audit simulate mutants chaos-kafka floors dist site lint fmt gen bench soak clean \
	check-style check-pyright check-mypy check-public check-generated

RUN := . .tools/env &&
# Folders that mypy checks.
TYPED := $(wildcard client/src server/src authority/src regions/src page/src spark_listener/src pipeline/src tests scripts benchmarks conformance examples monitoring)
# Number of test processes: one more than two cores, since each waits half of its time. 0: one
# process, as a debugger needs (ARGS=--pdb).
WORKERS ?= 3
# More arguments for pytest, the demo or a benchmark: make test ARGS="-m 'not spark'"
ARGS ?=
# Benchmark to run: make bench NAME=latency. Empty: all.
NAME ?=
# First world of the simulator (empty: random), and number of chaos steps, 60 a world.
SEED ?=
STEPS ?= 3000
# Whose bill of materials is audited: AUDITED="--package lowwater" for one distribution.
AUDITED ?= --all-packages --all-extras
# Number of faults that the chaos on a Spark cluster must inject.
FAULTS ?= 100
# Words of the matrix's cells to run; empty: all.
CELLS ?=
# Duration of the soak.
SECONDS ?= 1200

help:
	@echo "make demo        replay four days of real flights through three Spark jobs (about three minutes)"
	@echo "make demo-kafka  the same through topics of Kafka and tables of Delta; starts a broker"
	@echo "make demo-dedup  a Kafka topic with copies through the deduplicator, which is killed while it works (about a minute)"
	@echo "make demo-zeitgeist   dips and spikes of real departures: a feed that is late, and a blizzard (about four minutes)"
	@echo "make demo-billing   Kafka in, bills in a Delta table out, while the driver, the authority and the broker are killed (about three minutes)"
	@echo "make demo-regions   two regions, each with broker, Redis and Spark: a planned move, and two kills (about four minutes)"
	@echo "make demo-year   the whole year through plain Python workers, every window checked"
	@echo "make daily-close a day of event time is closed once, whoever sleeps over it (some seconds)"
	@echo "make two-partitions   what Spark's own watermark drops, attached and driven (about a minute)"
	@echo "make zombie      a delayed write of a zombie, in stores with a guard and without"
	@echo "make test        every check, and every test but the long ones"
	@echo "make test-NAME   the tests of one folder, for example make test-contract; make part-NAME: types, doctests and wheel of one distribution"
	@echo "make test-long   the tests that show what shorter ones show, in more ways"
	@echo "make simulate    simulated worlds under chaos, every value checked; SEED=... STEPS=..."
	@echo "make mutants     plant bugs in the authority and the client; the simulator must find each"
	@echo "make chaos-kafka stages over Kafka and Delta on a Spark cluster, and a job in Scala with its sidecar, under counted faults; FAULTS=... SEED=..."
	@echo "make matrix      jobs that nobody changes, of each kind, source and store, are killed and tracked (two hours); CELLS=\"connect-s3 ...\""
	@echo "make floors      attach, tracked stages and drive on the oldest and the newest PySpark that they are made for"
	@echo "make lint        the checks only: ruff, mypy, pyright, buf, generated code"
	@echo "make fmt         format Python and proto, apply safe lint fixes"
	@echo "make gen         generate the protobuf code, the client on threads, dashboards, alerts, completion, and what the docs take from the code"
	@echo "make bench       the benchmarks, one JSON object a line; NAME=... for one of them"
	@echo "make soak        two shards under churn, whose memory must not grow; SECONDS=..."
	@echo "make dist        wheels, source archives, chart, image and bills of materials with checksums, in dist/"
	@echo "make audit       the bill of materials of what is locked, and its known vulnerabilities (asks the package index)"
	@echo "make site        the documentation as a site with search, in build/site; a link that leads nowhere ends it"
	@echo "make setup       only install what the others need"
	@echo "make clean       remove what tests, demo and builds wrote (not the environment: rm -r .venv .tools)"

setup:
	@scripts/setup.sh

demo: setup
	@$(RUN) python -m examples.flights $(ARGS)

demo-kafka:
	@scripts/setup.sh --tests
	@$(RUN) python -m examples.flights --kafka --out build/demo-kafka $(ARGS)

demo-dedup:
	@scripts/setup.sh --tests
	@$(RUN) python -m examples.dedup $(ARGS)

demo-zeitgeist: setup
	@$(RUN) python -m examples.zeitgeist $(ARGS)

demo-billing:
	@scripts/setup.sh --tests
	@$(RUN) python -m examples.billing $(ARGS)

demo-regions:
	@scripts/setup.sh --tests
	@$(RUN) python -m examples.regions $(ARGS)

demo-year: setup
	@$(RUN) python -m examples.flights.year $(ARGS)

daily-close: setup
	@$(RUN) python -m examples.daily_close $(ARGS)

two-partitions: setup
	@$(RUN) python -m examples.two_partitions $(ARGS)

zombie: setup
	@scripts/setup.sh --bench
	@$(RUN) python -m examples.zombie $(ARGS)

test: lint
	@scripts/setup.sh --tests
	$(RUN) pytest -n $(WORKERS) $(ARGS)

matrix: setup
	@scripts/setup.sh --tests
	$(RUN) python -m tests.matrix $(CELLS)
	$(RUN) python -m tests.matrix.table

test-long: setup
	@scripts/setup.sh --long
	$(RUN) pytest -n $(WORKERS) -m long $(ARGS)

# One folder of tests, as CI runs it: make test-contract. After test-long, which is another target.
test-%:
	@scripts/setup.sh --tests
	$(RUN) pytest -n $(WORKERS) tests/$* $(ARGS)

# One distribution, by its folder, as CI checks it: make part-client.
part-%: setup
	$(RUN) mypy $*/src
	$(RUN) basedpyright $*/src
	$(RUN) pytest $*/src $(ARGS)
	$(RUN) uv build --quiet --wheel --out-dir build/wheels $*

# The bill of materials of what is locked, and what is known against it.
audit: setup
	mkdir -p build/audit
	$(RUN) uv export --quiet --frozen --preview --format cyclonedx1.5 --no-default-groups $(AUDITED) --output-file build/audit/bill.cdx.json
	$(RUN) uv export --quiet --frozen --no-emit-workspace --no-default-groups $(AUDITED) --output-file build/audit/locked.txt
	$(RUN) uv tool run pip-audit@2.10.0 --strict --disable-pip --requirement build/audit/locked.txt

simulate: setup
	@$(RUN) python -m tests.simulation run $(if $(SEED),--seed $(SEED)) --steps $(STEPS) $(ARGS)

mutants: setup
	@$(RUN) python -m tests.simulation mutants $(ARGS)

chaos-kafka:
	@scripts/setup.sh --tests
	@$(RUN) python -m tests.cluster.chaos --faults $(FAULTS) $(if $(SEED),--seed $(SEED)) $(ARGS)

floors: setup
	$(RUN) pytest tests/floors -m "long or not long" -s $(ARGS)

# All checks of `make lint`. Each takes one core.
CHECKS := check-style check-pyright check-mypy check-public check-generated site

site: setup
	$(RUN) sphinx-build -q -n -W --keep-going -d build/site-doctrees -c docs/site . build/site

dist: setup
	@$(RUN) python -m scripts.dist $(ARGS)

lint: setup
	@$(MAKE) --no-print-directory -j2 $(CHECKS)

check-style:
	$(RUN) ruff check .
	$(RUN) ruff format --check .

check-pyright:
	$(RUN) basedpyright --threads 2

check-mypy:
	$(RUN) python -m scripts.page_code
	$(RUN) MYPYPATH=$(subst $() $(),:,$(wildcard integrations/*/src)) mypy $(TYPED) build/blocks/pages/*.py

check-public:
	$(RUN) python -m scripts.check_public

check-generated:
	$(RUN) buf lint proto
	@for image in proto/released/*.binpb; do \
	    $(RUN) buf breaking proto --against "$$image" || { echo "proto/ breaks what $$image promised"; exit 1; }; done
	$(RUN) buf format proto --diff --exit-code
	$(RUN) uv run --quiet --script scripts/generate_protos.py --check
	$(RUN) python -m monitoring --check
	$(RUN) python -m scripts.document_values --check
	$(RUN) python -m tests.matrix.table --check
	$(RUN) python -m scripts.document_metrics --check
	$(RUN) python -m scripts.generate_cli --check
	$(RUN) python -m scripts.generate_sync --check
	$(RUN) python -m scripts.project_url --check
	$(RUN) python -m scripts.version --check

fmt: setup
	$(RUN) ruff check --fix .
	$(RUN) ruff format .
	$(RUN) buf format proto --write

gen: setup
	$(RUN) uv run --quiet --script scripts/generate_protos.py
	$(RUN) python -m monitoring
	$(RUN) python -m scripts.document_values
	$(RUN) python -m tests.matrix.table
	$(RUN) python -m scripts.document_metrics
	$(RUN) python -m scripts.generate_cli
	$(RUN) python -m scripts.generate_sync
	$(RUN) python -m scripts.project_url
	$(RUN) python -m scripts.version

bench: setup
	@scripts/setup.sh --bench
	@$(RUN) python -m benchmarks $(NAME) --json $(ARGS)

soak: setup
	@scripts/setup.sh --bench
	@$(RUN) python -m benchmarks.soak --seconds $(SECONDS) $(ARGS)

clean:
	rm -rf build dist examples/go/v1 .pytest_cache .mypy_cache .ruff_cache .hypothesis spark-warehouse metastore_db derby.log
	find . -name __pycache__ -type d -not -path './.venv/*' -not -path './.tools/*' -prune -exec rm -rf {} +
