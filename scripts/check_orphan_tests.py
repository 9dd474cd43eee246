#!/usr/bin/env python3
"""Fails on test files that nothing runs: a *_test.cc that ctest does not know, a Python test file that pytest does not collect.

Usage: check_orphan_tests.py BUILD_DIR  (a configured build of this tree)
Exit code 0: every file is run, 1: orphans, 2: ctest or pytest could not be asked.
"""

from __future__ import annotations

import json
import os
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
SKIPPED_FOLDERS = {".git", ".venv", "build", "dist", "__pycache__"}
# Suffixes of C++ files that a program known to ctest must be compiled from.
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


def files_that_ctest_runs(root: pathlib.Path, tests: list[dict], compile_commands: list[dict]) -> set[str]:
  """Returns the sources, relative to root, of the programs among `tests` (ctest's JSON) by `compile_commands` (CMake's)."""
  # A test whose program was not configured has no command: ctest would not run it.
  programs = {pathlib.PurePath(test["command"][0]).name for test in tests if test.get("command")}
  known = set()
  for entry in compile_commands:
    target = re.search(r" -o \S*CMakeFiles/([^/ ]+)\.dir/", entry["command"])
    file = pathlib.PurePath(entry["file"])
    if target and target[1] in programs and file.is_relative_to(root):
      known.add(file.relative_to(root).as_posix())
  return known


def orphans(cpp: list[str], known: set[str], python: list[str], collected: set[str]) -> list[str]:
  """Returns one sentence per file of `cpp` and `python` that is not among what ctest and pytest know."""
  problems = []
  for path in cpp:
    if path not in known:
      problems.append(f"{path}: no program known to ctest is built from it; add it to the CMakeLists.txt beside it")
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
  """Checks this tree against the build folder argv[1]; returns the exit code."""
  if len(argv) != 2:
    print(__doc__, file=sys.stderr)
    return 2
  cpp, python = files_on_disk(ROOT)
  listing = json.loads(ask(["ctest", "--test-dir", argv[1], "--show-only=json-v1"]))
  compile_commands = json.loads((pathlib.Path(argv[1]) / "compile_commands.json").read_text(encoding="utf-8"))
  known = files_that_ctest_runs(ROOT, listing["tests"], compile_commands)
  # Without the options of pyproject.toml: a second -q would print files instead of tests.
  nodes = ask([sys.executable, "-m", "pytest", "-o", "addopts=", "--collect-only", "-q"]).splitlines()
  collected = {node.split("::")[0] for node in nodes if "::" in node}
  problems = orphans(cpp, known, python, collected)
  for problem in problems:
    print(problem, file=sys.stderr)
  print(f"check_orphan_tests: {len(cpp)} C++ and {len(python)} Python test files, {len(problems)} that nothing runs")
  return 1 if problems else 0


if __name__ == "__main__":
  sys.exit(main(sys.argv))
