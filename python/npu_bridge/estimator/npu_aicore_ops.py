"""Ops of the NPU's cores that scripts call by name. What computes is in the op library; here arguments are checked."""

from __future__ import annotations

from typing import Any

import tensorflow.compat.v1 as tf

from mxrec import _loader
from mxrec import _npu_gradients as _npu_gradients
from npu_bridge.estimator import _dropout

npu_aicore_ops = _loader.ops


def fast_gelu(x: Any, name: str | None = None) -> tf.Tensor:
  """x / (1 + exp(-1.702 x)), of the shape and floating type of x."""
  return npu_aicore_ops.fast_gelu(x, name=name)


def fast_gelu_v2(x: Any, name: str | None = None) -> tf.Tensor:
  """The gelu in pieces of a quadratic polynomial, of the shape and floating type of x: see the op FastGeluV2."""
  return npu_aicore_ops.fast_gelu_v2(x, name=name)


def dropout_v3(x: Any, keep_prob: Any, noise_shape: Any = None, seed: int | None = None, name: str | None = None) -> tf.Tensor:
  """As npu_ops.dropout."""
  return _dropout.dropout("npu_aicore_ops.dropout_v3", x, keep_prob, noise_shape, seed, name)[0]


def dropout_v4(
  x: Any,
  keep_prob: Any,
  noise_shape: Any = None,
  seed: int | None = None,
  name: str | None = None,
  output_dtype: tf.DType = tf.bool,
) -> tuple[tf.Tensor, tf.Tensor]:
  """As npu_ops.dropout, and the mask.

  Returns:
    A tensor like x, and the mask: of noise_shape (default: the shape of x), true (1) where an element is kept, of output_dtype:
    bool, uint8, float16, bfloat16 or float32.
  """
  dropped, mask = _dropout.dropout("npu_aicore_ops.dropout_v4", x, keep_prob, noise_shape, seed, name)
  return dropped, mask(tf.as_dtype(output_dtype))
