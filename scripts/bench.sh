#!/usr/bin/env bash
# Builds the benchmarks and runs them all: tables on the terminal, JSON in bench/out. Arguments go to bench/run.py.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
scripts/build.sh bench
mkdir -p bench/out
exec "$venv_python" bench/run.py --build build/bench/bench --out bench/out "$@"
