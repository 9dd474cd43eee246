"""Lets the command `mxrec` start without TensorFlow.

`mxrec --version` and `mxrec doctor` have to work where TensorFlow is absent, and `mxrec run` sets environment variables before
TensorFlow is imported. So the package holds nothing yet while the command starts, and completes itself when one of its names is
first asked for.
"""

from __future__ import annotations

import importlib
import os
import sys
from typing import Any

_completed = False


def starting() -> bool:
  """True in a process started as `mxrec ...` or `python -m mxrec ...` until the package is completed."""
  if _completed or not sys.argv:
    return False
  if sys.argv[0] == "-m":  # Python looks for the module to run
    options = sys.orig_argv[1:]
    return "-m" in options and options[options.index("-m") + 1 : options.index("-m") + 2] == ["mxrec"]
  return os.path.basename(sys.argv[0]) in ("mxrec", "mxrec.exe")


def complete() -> None:
  """Imports everything public into the package; what `import mxrec` does elsewhere. ImportError says what is missing."""
  global _completed
  if _completed:
    return
  package = sys.modules["mxrec"]
  _completed = True
  try:
    importlib.reload(package)
  except BaseException:
    _completed = False
    raise
  vars(package).pop("__getattr__", None)


def lookup(name: str) -> Any:
  """`__getattr__` of the package while the command starts: a public name completes it, submodules are left to the import system."""
  package = sys.modules["mxrec"]
  if _completed or name not in vars(package).get("__all__", ()):
    raise AttributeError(f"module 'mxrec' has no attribute {name!r}")
  complete()
  return getattr(package, name)
