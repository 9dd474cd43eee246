"""The one place that wraps TensorFlow's session constructors.

Two things happen in the wrapped constructors of `tf.Session` and `tf.InteractiveSession`:

- **Checking**, from the first import of any npu_bridge module: a configuration that names the optimizer `NpuOptimizer` is validated
  before the session is made (npu_bridge._options). What its graph pass needs beyond the caller's configuration, such as running on
  graphs of fewer than four nodes, is set on a copy. Other sessions are passed on untouched.
- **Editing**, from the first star import of `npu_bridge.npu_init`: every new session gets the edits of `npu_config_proto`. They are
  made in the caller's own ConfigProto, which shows them afterwards, as on the NPU. `unpatch_sessions()` ends it.

What lets sessions repeat loop ops is put in place along with the wrapping (npu_bridge._loops).

TensorFlow's own sessions under MonitoredSession, Supervisor and Keras are made by the same constructors.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

from tensorflow.core.protobuf import config_pb2, rewriter_config_pb2
from tensorflow.python.client import session as session_lib
from tensorflow.python.eager import context

from npu_bridge import _loops, _options

OPTIMIZER = "NpuOptimizer"
_OFF = rewriter_config_pb2.RewriterConfig.OFF
_editing = False
_originals: dict[type, Callable[..., None]] = {}


def check(demand: str, sess: Any, method: str = "run") -> None:
  """TypeError that begins with the demand unless sess has the method of a session that is to be called."""
  if isinstance(sess, type) or not callable(getattr(sess, method, None)):
    raise TypeError(f"{demand}: got {type(sess).__name__} {sess!r}")


def npu_optimizer_of(config: config_pb2.ConfigProto) -> Any:
  """The custom optimizer `NpuOptimizer` of a configuration, or None. Looking creates nothing in the proto."""
  if not config.HasField("graph_options") or not config.graph_options.HasField("rewrite_options"):
    return None
  for optimizer in config.graph_options.rewrite_options.custom_optimizers:
    if optimizer.name == OPTIMIZER:
      return optimizer
  return None


def edit_config(config: Any = None) -> config_pb2.ConfigProto:
  """The edits of `npu_config_proto`, in place; a fresh ConfigProto for anything that is none. Returns the edited object."""
  if not isinstance(config, config_pb2.ConfigProto):
    config = config_pb2.ConfigProto()
  options = config.graph_options.rewrite_options
  if npu_optimizer_of(config) is None:
    options.custom_optimizers.add().name = OPTIMIZER
    options.memory_optimization = _OFF
  config.allow_soft_placement = True
  config.log_device_placement = False
  options.remapping = _OFF
  config.graph_options.optimizer_options.global_jit_level = config_pb2.OptimizerOptions.OFF
  return config


def patch_sessions() -> None:
  """Makes every new session get the edits of `npu_config_proto`, as the star import of npu_bridge.npu_init does."""
  global _editing
  install_validation()
  _editing = True


def unpatch_sessions() -> None:
  """Undoes the star import's effect on sessions: those made from now on keep the configuration they are given.

  Sessions that name NpuOptimizer are still checked. `patch_sessions()` switches the edits on again.
  """
  global _editing
  _editing = False


def install_validation() -> None:
  """Wraps the two constructors, once, and lets sessions repeat loop ops."""
  _loops.install()
  for kind in (session_lib.Session, session_lib.InteractiveSession):
    if kind not in _originals:
      _originals[kind] = kind.__init__
      kind.__init__ = wrap_constructor(kind.__init__, lambda: _editing)


def wrap_constructor(constructor: Callable[..., None], edits: Callable[[], bool]) -> Callable[..., None]:
  """A session constructor that edits (where edits() is true) and checks its configuration first.

  The configuration is taken from the keyword `config`, from the third position, or from the first, where scripts put it by
  mistake (`tf.Session(config)`). A None there is no configuration.
  """

  @functools.wraps(constructor)
  def construct(self: Any, *args: Any, **kwargs: Any) -> None:
    self._session = None  # what __del__ looks for, if an error ends this early
    try:
      arguments = inspect.signature(constructor).bind(self, *args, **kwargs).arguments
    except TypeError:
      constructor(self, *args, **kwargs)  # says what is wrong with the call
      raise
    del arguments[next(iter(arguments))]
    if isinstance(arguments.get("target"), config_pb2.ConfigProto):
      if arguments.get("config") is not None:
        raise TypeError("Session got a ConfigProto twice: as target and as config")
      arguments["config"] = arguments.pop("target")
    config = arguments.get("config")
    if config is not None and not isinstance(config, config_pb2.ConfigProto):
      raise TypeError(f"config of {type(self).__name__} must be a ConfigProto: got {type(config).__name__} {config!r}")
    if edits():
      config = edit_config(_default_config(self) if config is None else config)
    settings = None
    if config is not None and npu_optimizer_of(config) is not None:
      config, settings = checked_config(config)
    arguments["config"] = config
    constructor(self, **arguments)
    if settings is not None:
      _options.attach(self, settings)

  return construct


def _default_config(session: Any) -> config_pb2.ConfigProto:
  """What TensorFlow takes when a session is given no configuration."""
  if isinstance(session, session_lib.InteractiveSession):
    return config_pb2.ConfigProto(gpu_options=config_pb2.GPUOptions(allow_growth=True))
  return context.context().config


def checked_config(config: config_pb2.ConfigProto) -> tuple[config_pb2.ConfigProto, dict[str, Any]]:
  """Validates a configuration that names NpuOptimizer; returns the copy that TensorFlow gets, and what its options say.

  Raises:
    ValueError: a key of its parameter_map has a value that is not allowed, keys contradict each other, or one key has two values in
      several entries.
  """
  settings = _options.validate(config)
  given = config_pb2.ConfigProto()
  given.CopyFrom(config)
  options = given.graph_options.rewrite_options
  # Grappler skips graphs of fewer than four nodes, and our pass with them.
  options.min_graph_nodes = -1
  _join_entries(options.custom_optimizers)
  return given, settings


def _join_entries(optimizers: Any) -> None:
  """Leaves the first of several entries NpuOptimizer, with the options of all, so that the pass runs once and sees them all."""
  places = [i for i, optimizer in enumerate(optimizers) if optimizer.name == OPTIMIZER]
  for place in places[1:]:
    for key, value in optimizers[place].parameter_map.items():
      if value.WhichOneof("value") is not None:
        optimizers[places[0]].parameter_map[key].CopyFrom(value)
  for place in reversed(places[1:]):
    del optimizers[place]


__all__ = ["edit_config", "patch_sessions", "unpatch_sessions", "wrap_constructor"]
