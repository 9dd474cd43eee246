# The front door. Each target does what is missing first: packages, .venv, build. `make help` lists them.
SHELL := bash
.DEFAULT_GOAL := help
.PHONY: help setup build demo test test-full check bench bench-comm bench-peers lint format asan tsan wheel clean

help:  ## this list
	@sed -n 's/^\([a-z-]*\):.*  ## \(.*\)/\1|\2/p' Makefile | column -t -s '|'

setup:  ## system packages (as root), .venv, pinned Python packages
	@scripts/setup.sh

build: setup  ## engine, TensorFlow op library, C++ tests
	@scripts/build.sh release

demo: build  ## train a model on census data, save, reload, compare
	@.venv/bin/python examples/adult_demo.py

test: setup  ## everything that CI runs
	@scripts/test.sh test

check: setup  ## the fast part of it
	@scripts/test.sh check

test-full: setup  ## also slow tests, full sanitizer runs
	@scripts/test.sh full

asan: setup  ## engine tests under AddressSanitizer and UndefinedBehaviorSanitizer
	@scripts/test.sh asan

tsan: setup  ## engine tests under ThreadSanitizer
	@scripts/test.sh tsan

bench: build  ## benchmarks: a table, and JSON in bench/out (ARGS=--quick: small tables)
	@scripts/bench.sh $(ARGS)

bench-comm: setup  ## collectives between two ranks, also through TensorFlow, beside raw Open MPI and Gloo (ARGS=--horovod: and Horovod)
	@scripts/bench_comm.sh $(ARGS)

bench-peers: build  ## the same beside other libraries, installed below build/peers (8 GB; ARGS="--quick --no-peers": a smoke run)
	@scripts/bench_peers.sh $(ARGS)

wheel: setup  ## dist/mxrec-*.whl
	@scripts/wheel.sh

lint:  ## formatting, clang-tidy, ruff, layers
	@scripts/setup.sh --lint
	@scripts/lint.sh

format:  ## rewrite C++ and Python sources in the house format
	@scripts/setup.sh --lint
	@scripts/lint.sh --fix

clean:  ## remove what was built (keeps .venv)
	rm -rf build dist python/mxrec/_lib
