#!/usr/bin/env bash
# Configures (when needed) and builds one preset. Usage: scripts/build.sh PRESET [TARGET...]
# The release preset also puts the op library where the Python package of this tree looks for it.
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
  library=$(find "$dir" -name libmxrec_tf.so -print -quit)
  if [[ -n $library ]] && ! cmp -s "$library" python/mxrec/_lib/libmxrec_tf.so; then
    mkdir -p python/mxrec/_lib
    # Published by rename: a running process keeps the file that it has mapped.
    cp "$library" python/mxrec/_lib/.libmxrec_tf.so.new
    mv python/mxrec/_lib/.libmxrec_tf.so.new python/mxrec/_lib/libmxrec_tf.so
  fi
fi
