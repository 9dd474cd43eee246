"""Makes `import horovod` bring mxrec.horovod, where somebody asks for it: install(), or `mxrec run --horovod`.

The modules are the same objects under both names: `horovod.tensorflow is mxrec.horovod.tensorflow`. Imports nothing of TensorFlow.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import sys
import types
from collections.abc import Sequence
from typing import Any

OLD, NEW = "horovod", "mxrec.horovod"


class _Loader(importlib.abc.Loader):
  """Gives the module of the other name."""

  def __init__(self, name: str):
    self._name = name
    self._spec: Any = None

  def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
    module = importlib.import_module(self._name)
    self._spec = module.__spec__
    return module

  def exec_module(self, module: types.ModuleType) -> None:
    module.__spec__ = self._spec  # the import system has put the other name's there


class _Finder(importlib.abc.MetaPathFinder):
  """Finds horovod and its parts."""

  def find_spec(self, name: str, path: Sequence[str] | None, target: Any = None) -> importlib.machinery.ModuleSpec | None:
    if name != OLD and not name.startswith(f"{OLD}."):
      return None
    new = NEW + name[len(OLD) :]
    found = importlib.util.find_spec(new)
    if found is None:
      raise ModuleNotFoundError(f"No module named '{name}': mxrec.horovod has horovod.tensorflow and horovod.keras", name=name)
    return importlib.machinery.ModuleSpec(
      name, _Loader(new), origin=found.origin, is_package=found.submodule_search_locations is not None
    )


def install() -> None:
  """From now on `import horovod.tensorflow` and `import horovod.keras` bring mxrec.horovod, in this process. May be called again.

  Raises:
    RuntimeError: another package `horovod` has been imported already.
  """
  if installed():
    return
  there = sys.modules.get(OLD)
  if there is not None:
    raise RuntimeError(
      f"another horovod is imported already ({getattr(there, '__file__', 'no file')}): call install() before it is"
    )
  sys.meta_path.insert(0, _Finder())


def installed() -> bool:
  """Whether install() was called."""
  return any(isinstance(finder, _Finder) for finder in sys.meta_path)


def uninstall() -> None:
  """Undoes install(), for tests: modules imported meanwhile keep working."""
  sys.meta_path[:] = [finder for finder in sys.meta_path if not isinstance(finder, _Finder)]
  for name in [name for name in sys.modules if name == OLD or name.startswith(f"{OLD}.")]:
    del sys.modules[name]
