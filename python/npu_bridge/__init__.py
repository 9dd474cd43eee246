"""npu_bridge: the names of the NPU adapter for TensorFlow, on ordinary machines.

    from npu_bridge.npu_init import *

Importing any module of the package loads the op library and makes TensorFlow's session constructors check configurations that name
`NpuOptimizer` (npu_bridge._session); nothing else changes. The star import above also edits the configuration of every new
session, as it does on the NPU. It needs no environment variable, no accelerator and no network.
"""

from mxrec import _loader as _loader
from npu_bridge import _session as _session
from npu_bridge._session import patch_sessions as patch_sessions
from npu_bridge._session import unpatch_sessions as unpatch_sessions

__version__ = "v1.15.0"
npu_bridge_handle = _loader.ops
_session.install_validation()
