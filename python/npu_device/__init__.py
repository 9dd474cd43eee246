"""npu_device: the names of the NPU adapter for TensorFlow 2, on ordinary machines.

`npu_device.compat.v1` is `npu_bridge`, and so is every module below: the same objects, not copies.

    import npu_device
    npu_device.compat.enable_v1()
    from npu_device.compat.v1.npu_init import *

In TensorFlow 2 style, `npu_device.open().as_default()` is accepted and everything runs on the CPU.
"""

from __future__ import annotations

from npu_bridge import __version__ as __version__
from npu_bridge import npu_bridge_handle as gen_npu_ops

from npu_device import compat as compat
from npu_device import distribute as distribute
from npu_device._device import NpuDevice as NpuDevice
from npu_device._device import global_options as global_options
from npu_device._device import open as open
from npu_device._device import set_npu_loop_size as set_npu_loop_size

__all__ = ["NpuDevice", "compat", "distribute", "gen_npu_ops", "global_options", "open", "set_npu_loop_size"]
