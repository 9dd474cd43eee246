#!/usr/bin/env bash
# Runs tests and says at the end which steps passed. Usage: scripts/test.sh check|test|full|asan|tsan
#   check  the fast part: build, layers, ctest and pytest without what is marked slow or thorough, orphan check
#   test   also thorough tests, the engine under sanitizers, the wheel; what CI runs
#   full   also slow tests, and every engine test under both sanitizers
#   asan, tsan   every engine test (but slow ones) under that sanitizer alone
# A failing step does not keep later ones from running, except that nothing runs after a failed build. Up to five failing tests of a
# step get a second try by themselves; the summary names them, also when they pass then: each is a fault of the test or of the code.
set -uo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
mode=${1:?usage: scripts/test.sh check|test|full|asan|tsan}
summary=()
failed=0
export PYTHONDONTWRITEBYTECODE=1 TF_CPP_MIN_LOG_LEVEL=${TF_CPP_MIN_LOG_LEVEL:-1}

# step NAME COMMAND...: runs it, remembers the time, the outcome and what the command left in `remark`.
step() {
  local name=$1 start=$SECONDS outcome=passed
  shift
  remark=''
  say "$name ..."
  "$@" || { outcome=FAILED; failed=1; }
  summary+=("$(printf '%-42s %5d s  %s%s' "$name" $((SECONDS - start)) "$outcome" "${remark:+: $remark}")")
  [[ $outcome == passed ]]
}

# twice COMMAND...: when it fails, `failed_tests` prints the tests that did and `COMMAND --again` runs those alone.
twice() {
  local names
  "$@" && return
  mapfile -t names < <(failed_tests)
  remark=${names[*]}
  ((${#names[@]} >= 1 && ${#names[@]} <= 5)) || return 1
  say "second try of $remark"
  "$@" --again || return 1
  remark="at the second try: $remark"
}

# run_ctest PREFIX PRESET CTEST_FILTER...
run_ctest() {
  local preset=$2
  failed_tests() { sed 's/^[0-9]*://' "build/$preset/Testing/Temporary/LastTestsFailed.log"; }
  rm -f "build/$preset/Testing/Temporary/LastTestsFailed.log"
  twice ctest_once "$@"
}
ctest_once() {
  local prefix=$1 preset=$2
  shift 2
  if [[ ${!#} == --again ]]; then set -- --rerun-failed; fi
  $prefix ctest --preset "$preset" -j "$jobs" "$@"
}

run_pytest() { # PYTEST_ARGUMENT...
  failed_tests() { "$venv_python" -c 'import json; print(*json.load(open(".pytest_cache/v/cache/lastfailed")), sep="\n")'; }
  rm -f .pytest_cache/v/cache/lastfailed
  twice pytest_once "$@"
}
pytest_once() {
  if [[ ${!#} == --again ]]; then set -- "${@:1:$#-1}" --last-failed; fi
  "$venv_python" -m pytest "$@"
}

finish() {
  say "summary"
  printf '        %s\n' "${summary[@]}"
  if ((failed)); then die "some steps failed"; fi
  say "all steps passed"
}

# Some kernels give addresses so random that ThreadSanitizer cannot place its shadow memory: switch that off where allowed.
plain_addresses=''
if setarch "$(uname -m)" -R true 2>/dev/null; then plain_addresses="setarch $(uname -m) -R"; fi

sanitize() { # sanitize PRESET TARGET CTEST_FILTER...
  local preset=$1 target=$2
  shift 2
  step "$preset: build" scripts/build.sh "$preset" "$target" || finish
  step "$preset: ctest" run_ctest "$plain_addresses" "$preset" "$@"
}

case $mode in
  asan) sanitize asan all -LE '^slow$'; finish ;;
  tsan) sanitize tsan all -LE '^slow$'; finish ;;
  check) skip_ctest='^(slow|thorough)$' skip_pytest='not slow and not thorough' ;;
  test) skip_ctest='^slow$' skip_pytest='not slow' ;;
  full) skip_ctest='^none$' skip_pytest='' ;;
  *) die "unknown mode '$mode', expected check, test, full, asan or tsan" ;;
esac

step "build" scripts/build.sh release || finish
step "layers" "$venv_python" scripts/check_layers.py
step "ctest" run_ctest '' release -LE "$skip_ctest"
step "pytest" run_pytest -m "$skip_pytest" --ignore=tests/wheel
step "no test file is forgotten" "$venv_python" scripts/check_orphan_tests.py build/release

if [[ $mode == test ]]; then
  sanitize asan mxrec_tests_quick -LE '^(slow|thorough)$'
  sanitize tsan mxrec_tests_concurrency -L '^concurrency$' -LE '^slow$'
elif [[ $mode == full ]]; then
  sanitize asan all
  sanitize tsan all -LE '^slow$'
fi
if [[ $mode != check ]]; then
  step "wheel: build" scripts/wheel.sh && step "wheel: pytest" "$venv_python" -m pytest tests/wheel
fi
finish
