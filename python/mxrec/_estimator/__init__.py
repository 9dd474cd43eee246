"""TensorFlow's Estimator on TensorFlow releases that no longer carry it.

    estimator = _estimator.load()          # what tf.estimator was
    estimator.Estimator(model_fn, config=estimator.RunConfig())

The code is the package tensorflow-estimator 2.15.0, its last release. It names private modules that TensorFlow 2.16 removed;
`load` puts stand-ins in their places (_stand_ins.py) and lets Estimators warm-start tables (_tables.py). Nothing happens before
`load` is called.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import types
from typing import Any

from mxrec import _loader  # noqa: F401 - says what is missing when TensorFlow is

PACKAGE = "tensorflow-estimator"
VERSION = "2.15.0"
PIP_LINE = f"pip install --no-deps {PACKAGE}=={VERSION}"

_loaded: types.ModuleType | None = None
_joined: dict[type, type] = {}


def load() -> types.ModuleType:
  """The module that was `tf.estimator` in TensorFlow 1 (Estimator, EstimatorSpec, RunConfig, train_and_evaluate, ...).

  Imports the package on the first call (some tenths of a second); later calls return the same module.

  Raises:
    ImportError: the package is missing, is of another version or is broken; the message has the pip line.
  """
  global _loaded
  if _loaded is None:
    _loaded = _import()
  return _loaded


class _Module(types.ModuleType):
  """What `tf.estimator` is: imports the package when something of it is asked for, and has the NPU's classes beside it."""

  _ours = ("NPUEstimator", "NPUEstimatorSpec", "NPURunConfig")

  def __getattr__(self, name: str) -> Any:
    if name.startswith("__"):
      raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
    if name in self._ours:
      folder = "npu_bridge.estimator.npu."
      found = getattr(importlib.import_module(folder + ("npu_config" if name == "NPURunConfig" else "npu_estimator")), name)
    else:
      found = getattr(load(), name)
    setattr(self, name, found)
    return found

  def __dir__(self) -> list[str]:
    return sorted({*dir(load()), *self._ours})


_module = _Module("tensorflow.estimator", "tf.estimator of TensorFlow 1: tensorflow-estimator, and the classes of npu_bridge.")


def module() -> types.ModuleType:
  """`tf.estimator` with NPUEstimator, NPUEstimatorSpec and NPURunConfig; nothing is imported before a name of it is used."""
  return _module


def supply(tf: types.ModuleType) -> None:
  """Gives a module of TensorFlow the name `estimator`, where it has none."""
  if "estimator" not in dir(tf):
    tf.estimator = _module


def joined(kind: type, name: str) -> type:
  """The class `kind`, deriving from the class `name` of the Estimator module as well.

  For `__new__` of classes that are to derive from an Estimator class and whose modules are to be imported without loading it.
  """
  base = getattr(load(), name)
  if issubclass(kind, base):
    return kind
  if kind not in _joined:
    _joined[kind] = type(kind.__name__, (kind, base), {"__doc__": kind.__doc__, "__module__": kind.__module__})
  return _joined[kind]


def _import() -> types.ModuleType:
  try:
    found = importlib.metadata.version(PACKAGE)
  except importlib.metadata.PackageNotFoundError:
    raise ImportError(f"Estimators need the package {PACKAGE}, which is not installed. Run: {PIP_LINE}") from None
  if found != VERSION:
    raise ImportError(f"Estimators need {PACKAGE} {VERSION}, found {found}. Run: {PIP_LINE}")
  from mxrec._estimator import _stand_ins

  _stand_ins.install()
  try:
    with _stand_ins.without_deprecation():
      estimator = importlib.import_module("tensorflow_estimator._api.v1.estimator")
    from mxrec._estimator import _tables
  except (ImportError, AttributeError) as error:
    raise ImportError(f"{PACKAGE} {found} cannot be imported ({error}). Run: {PIP_LINE}") from error
  _tables.install()
  return estimator
