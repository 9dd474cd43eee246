# Shared by the shell scripts here: where the project is, how to report, how to find Python. Source it; it prints nothing.
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root"
venv_python=$root/.venv/bin/python
jobs=${MXREC_JOBS:-$(nproc)}

say() { printf '[mxrec] %s\n' "$*"; }
die() {
  printf '[mxrec] error: %s\n' "$*" >&2
  exit 1
}

# The entries of a requirement list, without comments.
entries() { sed -e 's/#.*//' -e '/^[[:space:]]*$/d' "$1"; }

# One number for the content of files.
content_key() { cat "$@" | sha256sum | cut -c1-16; }

# Runs a command silently; shows what it printed only when it fails.
quietly() {
  local log
  log=$(mktemp)
  if "$@" >"$log" 2>&1; then
    rm -f "$log"
  else
    cat "$log" >&2
    rm -f "$log"
    return 1
  fi
}
