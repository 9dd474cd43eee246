"""`mxrec options`: the keys of NpuOptimizer's parameter_map."""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from mxrec import _console

POLICIES = {"act": "acts", "valid": "checked, no effect", "accept": "no effect"}


def rows(word: str) -> list[dict[str, Any]]:
  """The table of npu_bridge, only keys that have to do with `word`; ImportError when it cannot be read."""
  os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
  from npu_bridge import _options

  word = word.lower()
  return [row for row in _options.table() if word in f"{row['key']} {row['meaning']} {row['allowed']}".lower()]


def show(word: str, as_json: bool) -> int:
  """Prints the table and returns the exit code: 1 when no key has to do with the word, or the table cannot be read."""
  try:
    found = rows(word)
  except ImportError as error:
    print(f"mxrec options: {error}", file=sys.stderr)
    return 1
  if as_json:
    print(json.dumps(found, indent=2))
  elif found:
    columns = ("key", "field", "policy", "allowed", "default", "meaning")
    cells = [[POLICIES.get(row[name], row[name]) if name == "policy" else row[name] for name in columns] for row in found]
    _console.table('custom_op.parameter_map["KEY"].FIELD = value', columns, cells)
  if not found:
    print(f"mxrec options: no key has to do with {word!r}", file=sys.stderr)
  return 0 if found else 1
