# Needs python3 (3.11 to 3.13); demo, test and bench need Java 17 or newer as well. `make help` lists the targets.
BIN := .venv/bin
STAMP := .venv/.installed
PYTEST_ARGS ?=
# Compiled once: without that every process of a test run compiles the project again, and pytest rewrites every assertion.
unexport PYTHONDONTWRITEBYTECODE
# Tests chosen by PYTEST_ARGS may all be of the other kind: pytest's exit code 5.
NONE_CHOSEN = $(if $(PYTEST_ARGS),|| test $$? -eq 5)
UNIT := not brokers and not spark and not long
# Folders of tests without Java are in memory where that has 4 GB to spare: they take half a GB at most.
IN_MEMORY = $(shell test "$$(df -Pk /dev/shm 2>/dev/null | awk 'NR == 2 {print $$4}')" -ge 4000000 2>/dev/null && echo PYTEST_DEBUG_TEMPROOT=/dev/shm)
.DEFAULT_GOAL := help
.PHONY: help setup java kdc store jars links demo test brokers sparks long kerberos unit faults model fuzz readers check quick lint types contracts docs release bench clean

help: ## list the targets
	@grep -hE '^[a-z]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):.*## (.*)/\1|\2/' | while IFS='|' read -r name text; do printf '  make %-10s %s\n' "$$name" "$$text"; done

demo: setup java ## two real clusters, mixed traffic, a mirror, kill, resume, and a comparison of all records
	$(BIN)/shallow-mirror demo

test: setup java unit brokers ## all tests except long ones, with real brokers and Spark

brokers: setup java ## tests with real brokers and Spark except long ones, in three processes
	$(BIN)/pytest -n 3 --dist loadfile --no-loadscope-reorder --durations=25 -m "(brokers or spark) and not alone and not long" $(PYTEST_ARGS) $(NONE_CHOSEN)
	$(BIN)/pytest -m "(brokers or spark) and alone and not long" $(PYTEST_ARGS) $(NONE_CHOSEN)

sparks: setup java ## mirrors and archives on other releases of PySpark, in .venvs; SPARKS="4.0.5 4.3.0" for fewer, CROSS=1 for more, JOBS=2
	CROSS="$(CROSS)" JOBS="$(JOBS)" $(if $(CONNECT),CONNECT="$(CONNECT)") PYTEST_ARGS="$(PYTEST_ARGS)" .ci/sparks $(or $(SPARKS),4.0.5 4.1.4 4.2.1 4.3.0)

long: setup java ## tests of many variants on brokers and Spark that `make test` omits, and `sparks` with CROSS=1
	$(BIN)/pytest -m long $(PYTEST_ARGS) $(NONE_CHOSEN)
	$(if $(PYTEST_ARGS),,$(MAKE) --no-print-directory sparks CROSS=1)

kdc: setup ## what the Kerberos tests need, on Debian as root: krb5-kdc, faketime, gssapi; they are skipped without
	@.ci/kdc

store: setup ## build the S3 server of the tests of object stores (versitygw) into the cache folder, once; needs Go
	PYTHONPATH=. $(BIN)/python -m tests.object_store.servers

jars: setup java ## fetch the jars of Kafka and Delta that `make brokers` and `make sparks` need into the cache folder, once
	PYTHONPATH=. $(BIN)/python -m tests.support.jars

kerberos: setup java kdc ## Kerberos on real KDCs and brokers, with the long tests; KERBEROS_MB=200 KERBEROS_S=180 for a longer mirror
	$(BIN)/pytest tests/kerberos $(PYTEST_ARGS)

unit: setup ## tests without Java, in four processes; COVERAGE=1 measures line coverage of all but the thorough tests
	$(IN_MEMORY) $(BIN)/pytest -n 4 -m "$(UNIT)$(if $(COVERAGE), and not thorough)" $(if $(COVERAGE),--cov --cov-report=term) $(PYTEST_ARGS) $(NONE_CHOSEN)
	$(if $(COVERAGE),$(IN_MEMORY) $(BIN)/pytest -n 4 -m "$(UNIT) and thorough" $(PYTEST_ARGS) $(NONE_CHOSEN))

faults: setup java ## fault injection on real brokers (hours), with tables of results; FAULTS="kills --rounds 50" for less
	PYTHONPATH=. $(BIN)/python -m tests.faults.run $(FAULTS)

model: setup ## the protocol against a model of Kafka and Delta: SCHEDULES=1000000 with crashes, races and lost messages
	$(BIN)/python -m tests.model.run $(or $(SCHEDULES),1000000)
	$(BIN)/python -m tests.model.preserved.run $(or $(SCHEDULES),1000000)

fuzz: setup ## malformed bytes for every parser: MINUTES=10 in total; findings in build/fuzz
	PYTHONPATH=. $(BIN)/python -m tests.fuzz.run --minutes $(or $(MINUTES),10)

readers: setup java ## which Kafka clients read topics with preserved offsets correctly (minutes; fetches them with pip, npm and go)
	PYTHONPATH=. $(BIN)/python -m tests.readers.run $(if $(CLIENTS),--only $(CLIENTS))

check: setup ## quick checks without Java: lint, types, import contracts, docs, and all but the slow and thorough tests
	@$(MAKE) --no-print-directory --jobs 2 quick lint types contracts docs

quick: setup
	$(IN_MEMORY) $(BIN)/pytest -q -n 3 --hypothesis-profile quick -m "$(UNIT) and not slow and not thorough" $(PYTEST_ARGS) $(NONE_CHOSEN)

lint: setup ## ruff: rules and format
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: setup ## mypy, strict
	$(BIN)/mypy

contracts: setup ## import-linter: layers and forbidden imports
	$(BIN)/lint-imports

docs: setup ## build the documentation into build/site, without network; broken links are errors
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build

release: setup ## wheel, sdist and checksums in dist/, reproducible and checked; ARGS=--snapshot for an unreleased state
	$(BIN)/python .ci/release.py $(ARGS)

bench: setup java ## benchmark against other tools; ARGS="--corpora zstd-big --peers shallow-mirror,mirrormaker2 --gb 1 --runs 1"
	@$(BIN)/python -c 'import matplotlib, psutil' 2>/dev/null || $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --no-build-isolation --editable '.[bench]'
	PYTHONPATH=. $(BIN)/python -m benchmarks.run $(ARGS)

clean: ## remove the virtual environment and build files (downloaded jars stay in the cache folder)
	rm -rf .venv .venvs build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache spark-warehouse metastore_db
	rm -rf *.egg-info src/*.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

setup: links $(STAMP) ## .venv with the pinned packages; every target that needs it does this first

links:
	@for name in streaming sinks checkpoints; do \
	  test -L src/shallow_mirror/$$name || { echo "src/shallow_mirror/$$name is not a symbolic link: check the project out again on a file system with symbolic links (git config core.symlinks true; on Windows inside WSL)." >&2; exit 1; }; \
	done

java:
	@java="$${JAVA_HOME:+$$JAVA_HOME/bin/}java"; \
	major=$$("$$java" -version 2>&1 | sed -nE 's/.*version "(1\.)?([0-9]+).*/\2/p' | head -n 1); \
	test "$${major:-0}" -ge 17 || { echo "Java 17 or newer is needed ($$java: $${major:-none found}): install a JDK or set JAVA_HOME." >&2; exit 1; }

$(STAMP): pyproject.toml constraints.txt
	@python=; for name in python3 python3.13 python3.12 python3.11; do \
	  if $$name -c 'import sys, ensurepip; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' 2>/dev/null; then python=$$name; break; fi; \
	done; \
	test -n "$$python" || { echo "Python 3.11, 3.12 or 3.13 with its venv module is needed: none was found as python3 or python3.x." >&2; exit 1; }; \
	test -x $(BIN)/python || { echo "making .venv with $$python"; $$python -m venv .venv; }
	@echo "installing the pinned packages of constraints.txt into .venv (once; needs the network)"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt setuptools
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --no-build-isolation --editable '.[local,rebuild,metrics,dev]'
	@touch $(STAMP)
