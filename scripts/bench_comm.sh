#!/usr/bin/env bash
# Measures collectives and distributed steps, two ranks on this machine: the engine's beside raw Open MPI and Gloo, then through
# TensorFlow. Tables, and JSON in bench/out/comm_bench.json and comm_tf.json. --horovod: beside Horovod 0.28.1 too, built first when it is
# missing. --turns N: of both programs. Other arguments go to bench/comm/run.py (--only GROUP ...).
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
arguments=() turns=() horovod=()
while (($#)); do
  case $1 in
    --horovod)
      scripts/install_horovod.sh
      horovod=(--horovod build/peers-horovod/bin/python)
      ;;
    --turns)
      turns=(--turns "$2")
      shift
      ;;
    *) arguments+=("$1") ;;
  esac
  shift
done
scripts/build.sh release mxrec_tf mxrec_plugins
scripts/build.sh bench comm_bench raw_worker
mkdir -p bench/out
build/bench/bench/comm_bench --json bench/out/comm_bench.json "${turns[@]}"
exec "$venv_python" bench/comm/run.py --raw build/bench/bench/raw_worker --out bench/out "${turns[@]}" "${horovod[@]}" "${arguments[@]}"
