#!/usr/bin/env bash
# Measures mxrec beside other libraries: a table on the terminal, JSON in bench/out. Arguments go to bench/peers/run.py; with --no-peers
# nothing is installed, and only the rows that need no other library are run.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
[[ " $* " == *" --no-peers "* ]] || scripts/install_peers.sh
scripts/build.sh bench engine_worker
mkdir -p bench/out build/peers
exec "$venv_python" bench/peers/run.py --out bench/out --work build/peers "$@"
