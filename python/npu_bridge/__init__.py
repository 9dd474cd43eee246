"""npu_bridge: the names of the NPU adapter for TensorFlow, on ordinary machines.

    from npu_bridge.npu_init import *

Importing any module of the package loads the op library and makes TensorFlow's session constructors check configurations that name
`NpuOptimizer` (npu_bridge._session); nothing else changes. The star import above also edits the configuration of every new
session, as it does on the NPU. It needs no environment variable, no accelerator and no network.
"""

from typing import Any as _Any

from mxrec import _loader as _loader
from mxrec import _npu_gradients as _npu_gradients
from npu_bridge import _session as _session
from npu_bridge._session import patch_sessions as patch_sessions
from npu_bridge._session import unpatch_sessions as unpatch_sessions

__version__ = "v1.15.0"
npu_bridge_handle = _loader.ops
_session.install_validation()


class SessionConfigBuilder:
  """Builds a session configuration with the optimizer NpuOptimizer.

      builder = npu_device.compat.v1.SessionConfigBuilder()
      builder.parameter_map["precision_mode_v2"].s = b"mixed_bfloat16"
      tf.Session(config=builder.session_config)

  Args:
    config: a ConfigProto, edited in place as `npu_config_proto` does; None: a fresh one.

  Raises:
    TypeError: config is neither.
  """

  def __init__(self, config: _Any = None) -> None:
    from tensorflow.core.protobuf import config_pb2

    if config is not None and not isinstance(config, config_pb2.ConfigProto):
      raise TypeError(f"config must be a ConfigProto or None: got {type(config).__name__}")
    self._config = _session.edit_config(config)

  @property
  def parameter_map(self) -> _Any:
    return _session.npu_optimizer_of(self._config).parameter_map

  @property
  def session_config(self) -> _Any:
    return self._config
