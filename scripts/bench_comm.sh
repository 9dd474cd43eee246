#!/usr/bin/env bash
# Measures allreduce over each transport beside the raw engines, two ranks on this machine: a table, and JSON in bench/out/comm_bench.json.
# Arguments go to the program (--turns N).
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
scripts/build.sh bench comm_bench
mkdir -p bench/out
exec build/bench/bench/comm_bench --json bench/out/comm_bench.json "$@"
