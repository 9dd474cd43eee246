"""`npu_unary_ops.npu_unary_ops` is the module of generated op wrappers: `gelu`, `fast_gelu` and every other op of the library."""

from mxrec import _loader
from mxrec import _npu_gradients as _npu_gradients

npu_unary_ops = _loader.ops
