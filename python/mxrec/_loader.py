"""Imports TensorFlow and loads the op library once; every failure becomes one ImportError that says what to do.

The library is `_lib/libmxrec_tf.so` beside this file; the environment variable MXREC_LIBRARY_PATH (a file, or a folder
that holds one) overrides that.
"""

from __future__ import annotations

import ctypes
import os
import pathlib
import types
from collections.abc import Sequence

LIBRARY_NAME = "libmxrec_tf.so"
LIBRARY_VARIABLE = "MXREC_LIBRARY_PATH"
OLDEST, NEWEST = (2, 15), (2, 21)
PIP_LINE = "pip install tensorflow-cpu==2.21.0"
BUILD_LINE = "build it with `make demo` in the project's folder, or install the wheel"


def _version_pair(text: str) -> tuple[int, int]:
  numbers = text.split(".")
  try:
    return int(numbers[0]), int(numbers[1])
  except (IndexError, ValueError):
    return 0, 0


def import_tensorflow() -> types.ModuleType:
  """Returns the module `tensorflow`; ImportError when it is absent, broken or of a version this package does not support."""
  try:
    import tensorflow as tf
  except ImportError as error:
    raise ImportError(
      f"mxrec needs TensorFlow {OLDEST[0]}.{OLDEST[1]} to {NEWEST[0]}.{NEWEST[1]}, which cannot be imported "
      f"({error}). Run: {PIP_LINE}"
    ) from error
  found = str(getattr(tf, "__version__", "unknown"))
  if not OLDEST <= _version_pair(found) <= NEWEST:
    raise ImportError(f"mxrec needs TensorFlow {OLDEST[0]}.{OLDEST[1]} to {NEWEST[0]}.{NEWEST[1]}, found {found}. Run: {PIP_LINE}")
  return tf


def library_path() -> pathlib.Path:
  """The file that holds the ops; ImportError when there is none."""
  override = os.environ.get(LIBRARY_VARIABLE)
  path = pathlib.Path(override) if override else pathlib.Path(__file__).resolve().parent / "_lib" / LIBRARY_NAME
  if path.is_dir():
    path = path / LIBRARY_NAME
  if not path.is_file():
    source = f" (from {LIBRARY_VARIABLE})" if override else ""
    raise ImportError(f"mxrec's op library is missing: {path}{source} does not exist; {BUILD_LINE}")
  return path


def explain_load_failure(path: pathlib.Path, text: str, tensorflow_version: str) -> str:
  """One message for what the dynamic linker said about `path`."""
  if "cannot open shared object file" in text:
    needed = text.split(": cannot open shared object file", maxsplit=1)[0].strip().split()[-1]
    return (
      f"mxrec's op library {path} needs the shared library {needed}, which this system does not have: install the system "
      f"package that brings it, or install the wheel, which carries its libraries ({text.strip()})"
    )
  if "undefined symbol" in text or "version `" in text:
    return (
      f"mxrec's op library {path} was built for another TensorFlow than the one found, {tensorflow_version}: rebuild it, or "
      f"run: {PIP_LINE} ({text.strip()})"
    )
  return f"mxrec's op library {path} cannot be loaded: {text.strip()}; {BUILD_LINE}"


def _load() -> types.ModuleType:
  tf = import_tensorflow()
  path = library_path()
  try:
    return tf.load_op_library(str(path))
  except (tf.errors.OpError, OSError) as error:
    raise ImportError(explain_load_failure(path, str(getattr(error, "message", error)), tf.__version__)) from error


ops = _load()


def c_library() -> ctypes.CDLL:
  """The same library, for its few plain C functions."""
  return ctypes.CDLL(str(library_path()))


def check_optimizer(kind: str, options: Sequence[tuple[str, float]]) -> None:
  """ValueError, with the engine's text, when it has no optimizer of that kind with those options."""
  check = c_library().mxrec_check_optimizer
  check.restype = ctypes.c_char_p
  names = (ctypes.c_char_p * len(options))(*(name.encode() for name, _ in options))
  values = (ctypes.c_double * len(options))(*(value for _, value in options))
  text = check(kind.encode(), names, values, len(options))
  if text is not None:
    raise ValueError(text.decode())


def note_table(handle_name: str) -> None:
  """Tells the pass that looks for untrained tables that a graph has got a new table."""
  c_library().mxrec_note_table(handle_name.encode())


def note_table_update(handle_name: str) -> None:
  """Tells that pass that the graph has got an op which updates the table."""
  c_library().mxrec_note_table_update(handle_name.encode())
