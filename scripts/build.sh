#!/usr/bin/env bash
# Configures (when needed) and builds one preset. Usage: scripts/build.sh PRESET [TARGET...]
# The release preset also puts the op library and the transport plug-ins where the Python package of this tree looks for them.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

preset=${1:?usage: scripts/build.sh PRESET [TARGET...]}
shift
dir=build/$preset
export CCACHE_BASEDIR=$root CCACHE_NOHASHDIR=1

# CMake itself notices changed CMakeLists; presets and the set of Python packages are ours to watch.
stamp=$dir/.configured-$(content_key CMakePresets.json requirements/python.txt)
if [[ ! -e $stamp || ! -e $dir/build.ninja ]]; then
  say "configuring $dir"
  quietly cmake --preset "$preset" || die "CMake could not configure the preset $preset (see above)"
  rm -f "$dir"/.configured-*
  touch "$stamp"
fi
say "building $dir${*:+ ($*)}"
cmake --build "$dir" -j "$jobs" ${*:+--target "$@"}

if [[ $preset == release ]]; then
  for name in libmxrec_tf.so libmxrec_gloo.so libmxrec_mpi.so; do
    library=$(find "$dir" -name "$name" -print -quit)
    if [[ -n $library ]] && ! cmp -s "$library" "python/mxrec/_lib/$name"; then
      mkdir -p python/mxrec/_lib
      # Published by rename: a running process keeps the file that it has mapped.
      cp "$library" "python/mxrec/_lib/.$name.new"
      mv "python/mxrec/_lib/.$name.new" "python/mxrec/_lib/$name"
    fi
  done
fi
