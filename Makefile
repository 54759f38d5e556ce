# make demo    a small campaign on this machine, from spec to report, under demo/
# make check   format, lint, types, import rules and the pure tests, without torch, Slurm or a database
# make test    one proof of each promise, in six processes that often wait; installs the servers that the tests need
#              (Debian, root). SKIP="cluster postgres nvme browser" leaves groups out
# make test-all  these and the nightly tests: grids of strategies, thousands of histories of faults, long examples
# make lint    format, lint, types, import rules
# make soak    a campaign under random faults for SOAK_SECONDS (1200), from a printed SEED; needs what the tests need
# make bench   benchmarks
# make torture the store's torture at full length: 800,000 lines on SQLite and PostgreSQL while everything is killed
# make documents the published comparisons: all templates trained at their smallest scale, their reports checked; half an hour
# make docs    the documentation as a site in build/site, which needs no network
# make lock    writes requirements.lock: the versions of constraints.txt with the hashes of their files
# make audit   known vulnerabilities of these versions; needs the network
# make sbom    what the environment is made of, as CycloneDX, into build/sbom.json
# make clean   removes what these targets made
PYTHON ?= python3
SKIP ?=
PYTEST_ARGS ?=
SOAK_SECONDS ?= 1200
SEED ?=

BIN := .venv/bin
STAMP := .venv/installed
SMALL := .venv/installed-small
TOOLS := .tools/bin
BENCHMARKS := $(wildcard benchmarks/*.py) benchmarks/oom benchmarks/train

# Thousands of processes load the same modules, and each one would compile them anew.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo check test test-all soak lint bench torture documents docs lock audit sbom clean
.DELETE_ON_ERROR:

demo: $(STAMP)
	PATH="$(CURDIR)/$(BIN):$$PATH" scripts/demo.sh

# What DeepSpeed and Inductor compile is kept with the environment that it was compiled for.
test test-all: export TORCH_EXTENSIONS_DIR := $(CURDIR)/.venv/torch_extensions
test test-all: export TORCHINDUCTOR_CACHE_DIR := $(CURDIR)/.venv/inductor
# Models of tests are tiny: threads that wait for work would only keep the cores busy.
test test-all: export OMP_NUM_THREADS := 1
test: PYTEST_LANE := -m "not nightly"
test-all: export MACHINE_EXAMPLES ?= 5000
test-all: export OURS_HISTORIES ?= 100
test-all: export TORTURE_LINES ?= 200000
test-all: export STRATEGY_STEPS ?= 50
test test-all: $(STAMP)
	SKIP="$(SKIP) $(if $(filter test,$@),nvme)" scripts/test_dependencies.sh
	$(BIN)/pytest -n 6 --dist loadfile --no-loadscope-reorder $(PYTEST_LANE) $(addprefix --without=,$(SKIP)) $(PYTEST_ARGS)

# Needs no torch: a small environment does, and the full one will do.
check: $(if $(wildcard $(STAMP)),$(STAMP),$(SMALL))
	BIN="$(BIN)" scripts/check.sh $(PYTEST_ARGS)

soak: $(STAMP)
	scripts/test_dependencies.sh
	$(BIN)/python -m tests.faults.soak --seconds $(SOAK_SECONDS) $(addprefix --seed ,$(SEED))

lint: $(STAMP)
	BIN="$(BIN)" scripts/lint.sh

bench: $(STAMP)
	for benchmark in $(BENCHMARKS); do echo "== $$benchmark" && $(BIN)/python "$$benchmark" || exit 1; done

torture: $(STAMP)
	SKIP="cluster" scripts/test_dependencies.sh
	TORTURE_LINES=800000 $(BIN)/pytest -s tests/integration/test_torture.py $(PYTEST_ARGS)

documents: $(STAMP)
	DOCUMENTS=all $(BIN)/pytest -v --durations=0 --durations-min=10 tests/integration/local/test_trained_documents.py $(PYTEST_ARGS)

docs: $(STAMP)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build -q

# Without torch: which of its builds fits is decided by the driver of a machine.
lock: .tools/installed
	$(TOOLS)/pip-compile -q --generate-hashes --unsafe-package torch --all-extras --strip-extras -c constraints.txt --no-annotate \
	  --no-header --no-emit-index-url --no-emit-find-links --no-emit-trusted-host -o requirements.lock pyproject.toml

# A version that could not be looked up is no version without vulnerabilities.
audit: .tools/installed
	$(TOOLS)/pip-audit --strict --progress-spinner off --require-hashes --disable-pip -r requirements.lock

sbom: .tools/installed $(STAMP)
	mkdir -p build
	$(TOOLS)/cyclonedx-py environment --pyproject pyproject.toml --mc-type application --output-reproducible -o build/sbom.json $(BIN)/python

.tools/installed: scripts/supply_chain_tools.txt
	$(PYTHON) -m venv .tools
	$(TOOLS)/python -m pip install -q --disable-pip-version-check -r scripts/supply_chain_tools.txt
	@touch $@

clean:
	rm -rf .venv .tools .lint .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache demo build dist *.egg-info

# Installs again only when what to install changed.
$(STAMP): EXTRAS := train,postgres,report,wandb,tensorboard,mlflow,pandas,parquet,live,notify,search,mcp,docs,fp8,check,dev
$(SMALL): EXTRAS := postgres,report,pandas,parquet,check
$(STAMP) $(SMALL): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "dscampaign needs Python 3.11 or newer: make PYTHON=/path/to/python3.11" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip' 2>/dev/null || { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && \
	  apt-get update -q && apt-get install -q -y --no-install-recommends python3-venv; } || \
	  { echo "$(PYTHON) cannot make environments: install its venv package (Debian: python3-venv)" >&2; exit 1; }
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt -e '.[$(EXTRAS)]'
	@touch $@
