#!/usr/bin/env python3
"""Fails on test files that nothing runs: a *_test.cc that ctest does not know, a Python test file that pytest does not collect.

Usage: check_orphan_tests.py BUILD_DIR  (a configured build of this tree)
Exit code 0: every file is run, 1: orphans, 2: ctest or pytest could not be asked.
"""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
SKIPPED_FOLDERS = {".git", ".venv", "build", "dist", "__pycache__"}
# Suffixes of C++ files that ctest must know, each under the name of the file without suffix.
CPP_SUFFIXES = ("_test.cc", "_fuzz.cc")


def files_on_disk(root: pathlib.Path) -> tuple[list[str], list[str]]:
  """Returns the C++ and the Python test files below root, as paths relative to it."""
  cpp, python = [], []
  for folder, subfolders, names in os.walk(root):
    subfolders[:] = sorted(n for n in subfolders if n not in SKIPPED_FOLDERS and not n.startswith("build-"))
    for name in sorted(names):
      path = (pathlib.Path(folder) / name).relative_to(root).as_posix()
      if name.endswith(CPP_SUFFIXES):
        cpp.append(path)
      elif name.endswith(".py") and (name.startswith("test_") or name.endswith("_test.py")):
        python.append(path)
  return cpp, python


def orphans(cpp: list[str], ctest_names: set[str], python: list[str], collected: set[str]) -> list[str]:
  """Returns one sentence per file of `cpp` and `python` that is not among what ctest and pytest know."""
  problems = []
  for path in cpp:
    name = pathlib.PurePosixPath(path).stem
    if name not in ctest_names:
      problems.append(f"{path}: ctest knows no test named {name}; add it to the CMakeLists.txt beside it")
  for path in python:
    if path not in collected:
      problems.append(f"{path}: pytest collects nothing from it")
  return problems


def ask(command: list[str]) -> str:
  """Returns what a command prints; ends the program with code 2 when it fails."""
  done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
  if done.returncode != 0:
    print(f"{' '.join(command)} failed:\n{done.stdout}{done.stderr}", file=sys.stderr)
    sys.exit(2)
  return done.stdout


def main(argv: list[str]) -> int:
  if len(argv) != 2:
    print(__doc__, file=sys.stderr)
    return 2
  cpp, python = files_on_disk(ROOT)
  listing = json.loads(ask(["ctest", "--test-dir", argv[1], "--show-only=json-v1"]))
  # A test whose program was not configured has no command: ctest would not run it.
  ctest_names = {test["name"] for test in listing["tests"] if test.get("command")}
  nodes = ask([sys.executable, "-m", "pytest", "--collect-only", "-q"]).splitlines()
  collected = {node.split("::")[0] for node in nodes if "::" in node}
  problems = orphans(cpp, ctest_names, python, collected)
  for problem in problems:
    print(problem, file=sys.stderr)
  print(f"check_orphan_tests: {len(cpp)} C++ and {len(python)} Python test files, {len(problems)} that nothing runs")
  return 1 if problems else 0


if __name__ == "__main__":
  sys.exit(main(sys.argv))
