#!/usr/bin/env bash
# Makes the machine ready: Debian packages, .venv, pinned Python packages. Does only what is missing, so a second call takes
# no time. Usage: scripts/setup.sh [--lint]   (--lint adds the formatters and linters)
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

apt_lists=(requirements/apt.txt)
pip_lists=(requirements/python.txt)
if [[ ${1:-} == --lint ]]; then
  apt_lists+=(requirements/apt-lint.txt)
  pip_lists+=(requirements/python-lint.txt)
fi

# A Python 3.11 that can make virtual environments; empty when there is none.
find_python() {
  local candidate
  for candidate in "${MXREC_BASE_PYTHON:-}" python3.11 python3 /usr/bin/python3.11; do
    if [[ -n $candidate ]] &&
      "$candidate" -c 'import ensurepip, sys, venv; sys.exit(sys.version_info[:2] != (3, 11))' >/dev/null 2>&1; then
      command -v "$candidate"
      return
    fi
  done
}

install_system_packages() {
  local missing=() package list
  command -v dpkg-query >/dev/null || {
    say "not a Debian system: assuming that the packages of requirements/apt.txt are there under their names here"
    return
  }
  for list in "${apt_lists[@]}"; do
    for package in $(entries "$list"); do
      [[ $(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null) == installed ]] || missing+=("$package")
    done
  done
  # Any Python 3.11 with venv will do, not only Debian's own.
  if [[ " ${missing[*]} " == *" python3-venv "* && -n $(find_python) ]]; then
    missing=($(printf '%s\n' "${missing[@]}" | grep -vx python3-venv || true))
  fi
  ((${#missing[@]})) || return 0
  [[ $(id -u) == 0 ]] || die "system packages are missing; as root run: apt-get install -y ${missing[*]}"
  say "installing system packages: ${missing[*]} ..."
  export DEBIAN_FRONTEND=noninteractive
  # The first try saves an update where the lists are fresh.
  quietly apt-get install -y -q --no-install-recommends "${missing[@]}" 2>/dev/null && return
  quietly apt-get update -q || say "apt-get update reported problems; trying to install all the same"
  quietly apt-get install -y -q --no-install-recommends "${missing[@]}" ||
    die "could not install: ${missing[*]} (see above)"
}

install_python_packages() {
  local stamp python conflicts
  stamp=.venv/.installed-$(content_key "${pip_lists[@]}")
  if [[ -e $stamp ]] && "$venv_python" -c '' 2>/dev/null; then
    return
  fi
  if [[ -e .venv ]] && ! "$venv_python" -m pip --version >/dev/null 2>&1; then
    say "replacing a .venv whose Python does not run"
    rm -rf .venv
  fi
  if [[ ! -e .venv ]]; then
    python=$(find_python)
    [[ -n $python ]] || die "no Python 3.11 with the venv module found; install python3.11 and python3.11-venv"
    say "making .venv with $python"
    "$python" -m venv .venv
  fi
  say "installing Python packages into .venv (TensorFlow is large: this can take some minutes) ..."
  quietly "$venv_python" -m pip install -q --disable-pip-version-check --no-input --no-deps \
    $(printf -- '-r %s ' "${pip_lists[@]}") || die "pip could not install ${pip_lists[*]} (see above)"
  # tf_keras names the full tensorflow as a dependency; tensorflow-cpu, which it runs on, does not count as that for pip.
  conflicts=$("$venv_python" -m pip check 2>&1 | grep -v -e '^tf-keras .* requires tensorflow, which is not installed' \
    -e '^No broken requirements' || true)
  [[ -z $conflicts ]] || die "the pinned Python packages do not fit together: $conflicts"
  touch "$stamp"
}

# Programs run by .venv/bin/python find the packages of this tree, and .venv/bin/mxrec is its command.
link_tree() {
  local site command=.venv/bin/mxrec
  local text="#!$root/.venv/bin/python
import sys

from mxrec.cli import main

sys.exit(main())"
  [[ -x $command && $(<"$command") == "$text" ]] || { echo "$text" >"$command" && chmod +x "$command"; }
  for site in .venv/lib/python3.*/site-packages; do
    [[ -e $site/mxrec_tree.pth && $(<"$site/mxrec_tree.pth") == "$root/python" ]] || echo "$root/python" >"$site/mxrec_tree.pth"
  done
}

install_system_packages
install_python_packages
link_tree
