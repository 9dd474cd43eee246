#!/usr/bin/env bash
# Builds dist/mxrec-<version>-py3-none-<platform>.whl from this tree with the packages of .venv.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
export CCACHE_BASEDIR=$root CCACHE_NOHASHDIR=1 CXX=g++ CMAKE_CXX_COMPILER_LAUNCHER=ccache CMAKE_BUILD_PARALLEL_LEVEL=$jobs
say "building the wheel"
rm -rf dist
quietly "$venv_python" -m build --wheel --no-isolation --outdir dist . || die "the wheel could not be built (see above)"
say "wheel: $(ls dist/*.whl)"
