"""npu_device.compat.v1: npu_bridge under another name. Importing any module below it gives npu_bridge's module of that name."""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import sys
import types
from collections.abc import Sequence

_ALIAS, _REAL = "npu_device.compat.v1", "npu_bridge"


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
  """Answers for npu_device.compat.v1 and what is below it, with the modules of npu_bridge themselves."""

  def find_spec(
    self, fullname: str, path: Sequence[str] | None, target: types.ModuleType | None = None
  ) -> importlib.machinery.ModuleSpec | None:
    if fullname != _ALIAS and not fullname.startswith(_ALIAS + "."):
      return None
    real = _REAL + fullname[len(_ALIAS) :]
    if importlib.util.find_spec(real) is None:
      return None
    return importlib.machinery.ModuleSpec(fullname, self, is_package=True)

  def create_module(self, spec: importlib.machinery.ModuleSpec) -> None:
    return None

  def exec_module(self, module: types.ModuleType) -> None:
    # The import system takes the module from sys.modules afterwards, which is how a module may be another object.
    alias = module.__name__
    sys.modules[alias] = importlib.import_module(_REAL + alias[len(_ALIAS) :])


if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
  sys.meta_path.insert(0, _Finder())

v1 = importlib.import_module(_ALIAS)


def enable_v1() -> None:
  """Switches TensorFlow to the behaviour of its version 1 (graphs, sessions). The op library is loaded already."""
  import tensorflow.compat.v1 as tf

  tf.disable_v2_behavior()
