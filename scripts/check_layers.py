#!/usr/bin/env python3
"""Fails on includes that the layer list of docs/architecture.md does not allow.

The list holds lines such as `mxrec/table/  hash index, row slabs  <- base numeric kernels`. A folder may include itself, the
folders it names, and what those may include. `std` allows none of ours, `any` all. Names stand for `mxrec/<name>/`, or for
a folder of the top level. TensorFlow's headers are allowed under tf/ only, Python's nowhere.

Usage: check_layers.py [ROOT]. Exit code 0: clean, 1: violations, 2: the list itself is wrong.
"""

from __future__ import annotations

import pathlib
import re
import sys

LAYER_LINE = re.compile(r"^(?P<folder>[\w/]+)/\s.*<-\s*(?P<may>[\w\s/]+)$")
INCLUDE = re.compile(r'^\s*#\s*include\s*(?P<open>["<])(?P<path>[^">]+)[">]')
SOURCES = {".h", ".cc", ".inc"}
FOREIGN = {  # first path component -> the folders that may include it
  "tensorflow": ("tf",),
  "tsl": ("tf",),
  "xla": ("tf",),
  "google": (),  # protobuf
  "Python.h": (),
  "pybind11": (),
}


class LayerListError(Exception):
  """The layer list cannot be read or names a folder that it does not describe."""


def read_layers(text: str) -> dict[str, set[str]]:
  """Returns folder -> every folder it may include (itself included); `any` stands for all."""
  try:
    block = text.split("<!-- layers: begin -->")[1].split("<!-- layers: end -->")[0]
  except IndexError:
    raise LayerListError("no block between '<!-- layers: begin -->' and '<!-- layers: end -->'") from None
  direct: dict[str, list[str]] = {}
  for line in block.splitlines():
    if not line.strip() or line.startswith("```"):
      continue
    match = LAYER_LINE.match(line)
    if not match:
      raise LayerListError(f"expected 'folder/  what  <- folders', found: {line!r}")
    direct[match["folder"]] = match["may"].split()

  def resolve(name: str, where: str) -> str:
    for candidate in (f"mxrec/{name}", name):
      if candidate in direct:
        return candidate
    raise LayerListError(f"{where}/ names the folder {name!r}, which the list does not describe")

  closed: dict[str, set[str]] = {}

  def close(folder: str, path: tuple[str, ...]) -> set[str]:
    if folder in path:
      raise LayerListError("circle: " + " <- ".join((*path, folder)))
    if folder not in closed:
      allowed = {folder}
      for name in direct[folder]:
        if name == "any":
          allowed |= set(direct)
        elif name != "std":
          allowed |= close(resolve(name, folder), (*path, folder))
      closed[folder] = allowed
    return closed[folder]

  for folder in direct:
    close(folder, ())
  return closed


def folder_of(path: str, layers: dict[str, set[str]]) -> str | None:
  """The listed folder that holds a file, the deepest one first; None when no line covers it."""
  parts = path.split("/")[:-1]
  while parts:
    if "/".join(parts) in layers:
      return "/".join(parts)
    parts.pop()
  return None


def check_file(path: str, text: str, layers: dict[str, set[str]]) -> list[str]:
  """Returns one sentence per include of `text` that the file at `path` may not have."""
  here = folder_of(path, layers)
  if here is None:
    return [f"{path}: no line of docs/architecture.md covers this folder"]
  top_folders = {folder.split("/")[0] for folder in layers}
  problems = []
  for number, line in enumerate(text.splitlines(), 1):
    match = INCLUDE.match(line)
    if not match:
      continue
    included = match["path"]
    first = included.split("/")[0]
    if first in FOREIGN:
      if here.split("/")[0] in FOREIGN[first]:
        continue
      where = " or ".join(f"{folder}/" for folder in FOREIGN[first]) or "nowhere"
      problems.append(f"{path}:{number}: {included} may be included under {where} only")
    elif first in top_folders and "/" in included:
      there = folder_of(included, layers)
      if there is None:
        problems.append(f"{path}:{number}: {included} is in a folder that docs/architecture.md does not list")
      elif there not in layers[here]:
        problems.append(f"{path}:{number}: {here}/ may not include {there}/ ({included})")
    elif match["open"] == '"' and ("/" not in included or first == ".."):
      problems.append(f'{path}:{number}: write the path from the top of the tree, not "{included}"')
  return problems


def main(argv: list[str]) -> int:
  """Checks the tree at argv[1], this one by default; returns the exit code."""
  root = pathlib.Path(argv[1] if len(argv) > 1 else pathlib.Path(__file__).parent.parent).resolve()
  try:
    layers = read_layers((root / "docs/architecture.md").read_text(encoding="utf-8"))
  except (LayerListError, OSError) as error:
    print(f"docs/architecture.md: {error}", file=sys.stderr)
    return 2
  problems, files = [], 0
  for top in sorted({folder.split("/")[0] for folder in layers}):
    for file in sorted((root / top).rglob("*")):
      if file.suffix in SOURCES and file.is_file():
        files += 1
        name = file.relative_to(root).as_posix()
        problems += check_file(name, file.read_text(encoding="utf-8"), layers)
  for problem in problems:
    print(problem, file=sys.stderr)
  print(f"check_layers: {files} files, {len(problems)} includes against the layers of docs/architecture.md")
  return 1 if problems else 0


if __name__ == "__main__":
  sys.exit(main(sys.argv))
