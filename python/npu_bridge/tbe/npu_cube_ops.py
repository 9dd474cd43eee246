"""Operators of the NPU's matrix unit."""

from __future__ import annotations

from typing import Any


def deformable_conv2d(x: Any, filter: Any, offsets: Any, strides: Any, pads: Any, *args: Any, **kwargs: Any) -> Any:
  """Would convolve at learned offsets: NotImplementedError."""
  raise NotImplementedError("npu_cube_ops.deformable_conv2d: deformable convolution is not available here")
