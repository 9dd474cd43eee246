"""Stand-ins for what tensorflow-estimator imports of TensorFlow and TensorFlow 2.16 removed.

A name that TensorFlow still has is left alone, so that the same code serves 2.15. Stand-ins for TPUs can be imported and named,
and refuse to be used.
"""

from __future__ import annotations

import contextlib
import importlib
import sys
import types
from collections.abc import Iterable, Iterator
from typing import Any

# Module of TensorFlow -> the classes and functions that are looked up in it while the package is imported.
_TPU_MODULES = {
  "tensorflow.python.tpu.session_support": ("GracefulShutdownHook",),
  "tensorflow.python.tpu.tpu_embedding": (
    "AdagradParameters",
    "AdamParameters",
    "FtrlParameters",
    "MomentumParameters",
    "ProximalAdagradParameters",
    "RMSPropParameters",
    "StochasticGradientDescentParameters",
    "FeatureConfig",
    "TableConfig",
    "TPUEmbedding",
  ),
  "tensorflow.python.tpu.tpu_embedding_gradient": ("create_dummy_table_variables",),
}
_TRAINING_MODULE = "tensorflow.python.distribute.estimator_training"


def install() -> None:
  """Puts the stand-ins in place; a second call changes nothing."""
  _name_the_api()
  if not _exists(_TRAINING_MODULE):
    _put(_training_module())
  for name, classes in _TPU_MODULES.items():
    if not _exists(name):
      _put(_refusing_module(name, classes))


@contextlib.contextmanager
def without_deprecation() -> Iterator[None]:
  """While the package is imported, its export decorator wraps no class in a warning that Keras should be used instead.

  It would wrap TensorFlow's own hooks too, so that each MonitoredTrainingSession would warn from then on.
  """
  from tensorflow.python.util import deprecation

  deprecated = deprecation.deprecated
  deprecation.deprecated = lambda *args, **arguments: lambda symbol: symbol
  try:
    yield
  finally:
    deprecation.deprecated = deprecated


def _name_the_api() -> None:
  """TensorFlow's export decorator again knows the API name "estimator", under which the package exports."""
  from tensorflow.python.util import tf_export

  name = "estimator"
  if not hasattr(tf_export, "ESTIMATOR_API_NAME"):
    tf_export.ESTIMATOR_API_NAME = name
  for attributes, version in ((tf_export.API_ATTRS, ""), (tf_export.API_ATTRS_V1, "_v1")):
    if name not in attributes:
      attributes[name] = tf_export._Attributes(f"_{name}_api_names{version}", f"_{name}_api_constants{version}")


def _exists(name: str) -> bool:
  if name in sys.modules:
    return True
  try:
    importlib.import_module(name)
  except ModuleNotFoundError:
    return False
  return True


def _put(module: types.ModuleType) -> None:
  """Makes a module importable, also as `from parent import child`."""
  sys.modules[module.__name__] = module
  parent, _, child = module.__name__.rpartition(".")
  setattr(importlib.import_module(parent), child, module)


def _training_module() -> types.ModuleType:
  """What RunConfig, Estimator and train_and_evaluate ask for. TF_CONFIG works the classic way, without distribute coordinator."""
  module = types.ModuleType(_TRAINING_MODULE, "Stand-in of mxrec._estimator.")
  module.init_run_config = _init_run_config
  module.should_run_distribute_coordinator = lambda config: False
  for name in ("estimator_train", "estimator_evaluate", "train_and_evaluate"):
    setattr(module, name, _refuse(f"{name} of the distribute coordinator"))
  return module


def _init_run_config(config: Any, tf_config: dict[str, Any]) -> None:
  """Finishes a RunConfig that has distribution strategies."""
  given = config._experimental_distribute
  if given is not None:
    for place in ("train_distribute", "eval_distribute"):
      if not getattr(given, place):
        continue
      if getattr(config, f"_{place}") is not None:
        raise ValueError(f"{place} is given twice: as an argument of RunConfig and in experimental_distribute")
      setattr(config, f"_{place}", getattr(given, place))
  config._distribute_coordinator_mode = None
  config._init_distributed_setting_from_environment_var(tf_config)
  config._maybe_overwrite_session_config_for_distributed_training()


def _refusing_module(name: str, called: Iterable[str]) -> types.ModuleType:
  module = types.ModuleType(name, "Stand-in of mxrec._estimator: TPUs are not supported.")
  for each in called:
    setattr(module, each, _refusing_class(each))
  return module


def _refusing_class(name: str) -> type:
  """A class, since the package asks isinstance of it; making an object is refused."""
  return type(name, (), {"__init__": _refuse(f"{name} (TPUs are not supported)")})


def _refuse(what: str) -> Any:
  def refuse(*args: Any, **arguments: Any) -> Any:
    raise NotImplementedError(f"tensorflow-estimator asks for {what}, which TensorFlow has removed")

  return refuse
