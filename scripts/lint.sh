#!/usr/bin/env bash
# Reports what the formatters and linters find (make lint), or rewrites the sources (make format). Usage: scripts/lint.sh [--fix]
set -uo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
mapfile -t cpp < <(find mxrec tf fuzz bench tools tests examples \( -name '*.h' -o -name '*.cc' \) -print | sort)
ruff=.venv/bin/ruff

if [[ ${1:-} == --fix ]]; then
  say "formatting ${#cpp[@]} C++ files and the Python files"
  clang-format -i "${cpp[@]}" && "$venv_python" scripts/make_stubs.py && "$venv_python" scripts/make_npu_reference.py && "$ruff" check -q --fix . && "$ruff" format -q .
  exit
fi

failed=0
say "clang-format"
clang-format --dry-run -Werror "${cpp[@]}" || failed=1
say "ruff"
"$ruff" check . || failed=1
"$ruff" format --check . || failed=1
say "types (mypy), the package's stub and the reference of npu_bridge"
"$venv_python" -m mypy || failed=1
"$venv_python" scripts/make_stubs.py --check || failed=1
"$venv_python" scripts/make_npu_reference.py --check || failed=1
say "layers"
"$venv_python" scripts/check_layers.py || failed=1
say "clang-tidy (engine; takes minutes)"
scripts/build.sh debug >/dev/null || failed=1
mapfile -t engine < <(find mxrec -name '*.cc' -not -name '*_test.cc' | sort)
printf '%s\n' "${engine[@]}" | xargs -P "$jobs" -n 1 clang-tidy -p build/debug --quiet 2>/dev/null || failed=1
((failed)) && die "lint found something (see above); make format repairs the layout"
say "nothing found"
