#!/usr/bin/env bash
# Installs what `make bench-peers` compares with, each library in an environment of its own below build/peers (about 8 GB). What cannot be had
# is reported with the reason, and is no failure. Does only what is missing.
set -uo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

# install NAME REQUIREMENTS IMPORT: an environment build/peers/NAME that can import IMPORT.
install() {
  local name=$1 list=$2 import=$3 folder=build/peers/$1 log=build/peers/$1.log stamp
  stamp=$folder/.installed-$(content_key "$list")
  [[ -e $stamp ]] && return
  say "installing $(entries "$list" | head -2 | paste -sd ' ') into $folder (some minutes) ..."
  mkdir -p build/peers
  rm -rf "$folder"
  if ! { "$venv_python" -m venv "$folder" && "$folder/bin/python" -m pip install -q --no-input --no-deps -r "$list"; } >"$log" 2>&1; then
    say "SKIPPED $name: cannot be installed: $(tail -1 "$log") (more in $log)"
    rm -rf "$folder"
  elif ! "$folder/bin/python" -c "import $import" >>"$log" 2>&1; then
    say "SKIPPED $name: installed, but does not load: $(tail -1 "$log") (more in $log)"
  else
    touch "$stamp"
  fi
}

install tensorflow216 requirements/peers-tensorflow.txt tensorflow_recommenders_addons
install fbgemm requirements/peers-fbgemm.txt fbgemm_gpu
exit 0
