# Every command of the project. The work is done by the scripts in scripts/; `make help` lists what there is.
#
# Each command sets up whatever it needs first, so a fresh clone can start with any of them.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.PHONY: help setup demo test test-freethreaded test-versions check opinfo models tsan fuzz repeat soak mutants bench
.PHONY: bench-check bench-baseline bench-images docs-examples header lock clean
.PHONY: test-report report-images

help: ## List the commands
	@echo "Usage: make COMMAND"
	@echo
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-18s %s\n", $$1, $$2}' $(firstword $(MAKEFILE_LIST))
	@echo
	@echo "PYTHON=python3.12 picks the interpreter; TORCH_SPYRE_CACHE=DIR picks where packages are kept;"
	@echo "FREETHREADED_PYTHON=python3.13t is taken by test-freethreaded instead of building one."

setup: ## Check the tools, make .venv, build the extension (the other commands do this first)
	@scripts/setup.sh

demo: setup ## Train a small network on a device that is too small, without and with garbage collection
	@.venv/bin/python examples/digits/demo.py

test: setup ## Run the Rust and the Python tests
	@scripts/test.sh

test-freethreaded: ## Run the Python tests on a free-threaded CPython (the first time: builds one)
	@scripts/test_freethreaded.sh

test-versions: ## Run the Python tests with other versions of PyTorch (VERSIONS="2.14 2.13", PARTS="device ops")
	@PARTS="$(PARTS)" scripts/versions.sh $(VERSIONS)

test-report: setup ## Test the page of `flexmem report` in a headless Chromium (the first time: fetches one)
	@scripts/report_tests.sh

check: setup ## Formats, lints, types, documents, models, ThreadSanitizer, scenarios and soak with debug checks
	@scripts/check.sh

opinfo: setup ## Compare every sample of PyTorch's operator database with the CPU; `make test` takes some of them
	@scripts/opinfo.sh

models: ## Check the core with loom and shuttle: small models exhaustively, the whole ladder in random schedules
	@scripts/models.sh

tsan: ## Run the core's tests under ThreadSanitizer
	@scripts/tsan.sh

fuzz: ## Fuzz the core beside a naive model (SECONDS=60 of each target, or TARGET=arena)
	@FUZZ_SEED="$(SEED)" scripts/fuzz.sh "$(or $(SECONDS),60)" $(TARGET)

repeat: setup ## Run the pressure scenarios again and again (COUNT=100), up to the first failure
	@scripts/repeat.sh $(or $(COUNT),100)

soak: setup ## Do everything at once on many threads (SECONDS=60), and end with nothing lost; SEED=N repeats
	@SOAK_SECONDS="$(or $(SECONDS),$(SOAK_SECONDS),60)" SEED="$(SEED)" scripts/soak.sh

mutants: setup ## Break the contract on purpose and see that a check notices (ONLY=NAME for some of them)
	@.venv/bin/python scripts/mutants.py --only "$(ONLY)"

bench: setup ## Measure the allocator beside its peers, and tensors beside the CPU; FULL=1 for all seeds
	@scripts/bench.sh

bench-images: setup ## Draw the plots of the last `make bench` into docs/images, as docs/performance.md shows them
	@scripts/bench.sh images

bench-check: ## Compare instruction counts with benches/baselines.json; fails above +3 % (needs valgrind)
	@scripts/bench.sh check

bench-baseline: ## Write benches/baselines.json anew
	@scripts/bench.sh baseline

report-images: setup ## Draw the pictures of the report page into docs/images
	@scripts/report_tests.sh images

docs-examples: setup ## Write the outputs shown in the documents anew, by the commands named beside them
	@.venv/bin/python scripts/doc_examples.py

header: ## Write include/flex.h anew, from crates/flex-c
	@FLEX_WRITE_HEADER=1 cargo test --quiet --package flex-c --test header

lock: setup ## Renew requirements/lock.txt from requirements/dev.in
	@.venv/bin/python scripts/environment.py lock

clean: ## Remove what the other commands made in this checkout (the package cache stays)
	@scripts/clean.sh
