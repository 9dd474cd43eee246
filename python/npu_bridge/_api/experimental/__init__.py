"""The same as npu_bridge.experimental."""

from npu_bridge.experimental import file_constant as file_constant
from npu_bridge.experimental import get_shape as get_shape
from npu_bridge.experimental import hccl_ops as hccl_ops
