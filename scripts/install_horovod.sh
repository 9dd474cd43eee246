#!/usr/bin/env bash
# Builds Horovod for `make bench-comm ARGS=--horovod` in an environment of its own, build/peers-horovod (about 10 minutes on one core,
# 1.5 GB). What cannot be had is reported with the reason, and is no failure. Does nothing when it is there.
set -uo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

list=requirements/peers-horovod.txt folder=build/peers-horovod log=build/peers-horovod.log
stamp=$folder/.installed-$(content_key "$list")
[[ -e $stamp ]] && exit 0
say "building Horovod in $folder (some minutes) ..."
mkdir -p build
rm -rf "$folder"
# One job at a time: its sources take much memory.
build() {
  "$venv_python" -m venv "$folder" &&
    "$folder/bin/python" -m pip install -q --no-input --no-deps -r "$list" &&
    PATH="$root/$folder/bin:$PATH" HOROVOD_WITH_TENSORFLOW=1 HOROVOD_WITH_GLOO=1 HOROVOD_WITH_MPI=1 HOROVOD_WITHOUT_PYTORCH=1 \
      HOROVOD_WITHOUT_MXNET=1 HOROVOD_WITHOUT_GPU=1 MAKEFLAGS=-j1 \
      "$folder/bin/python" -m pip install -q --no-input --no-build-isolation --no-deps horovod==0.28.1
}
if ! build >"$log" 2>&1; then
  say "SKIPPED Horovod: cannot be built: $(tail -1 "$log") (more in $log)"
elif ! "$folder/bin/python" -c "import horovod.tensorflow" >>"$log" 2>&1; then
  say "SKIPPED Horovod: built, but does not load: $(tail -1 "$log") (more in $log)"
else
  touch "$stamp"
fi
exit 0
