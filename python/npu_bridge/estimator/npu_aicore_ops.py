"""Ops of the NPU's cores that scripts call by name. What computes is in the op library; here arguments are checked."""

from __future__ import annotations

import numbers
from collections.abc import Iterable
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


def centralization(x: Any, axes: Any, name: str | None = None) -> tf.Tensor:
  """x minus its mean over axes.

  Args:
    x: Tensor of a floating type.
    axes: A dimension of x or a list of them; negative numbers count from the last.
    name: Name of the op.

  Returns:
    A tensor like x. ValueError for an axis that x does not have, TypeError for axes that are no integers.
  """
  axes = list(axes) if isinstance(axes, Iterable) and not tf.is_tensor(axes) else [axes]
  if not all(isinstance(axis, numbers.Integral) for axis in axes):
    raise TypeError(f"npu_aicore_ops.centralization: axes must be an int or a list of ints: got {axes!r}")
  return npu_aicore_ops.centralization(x, axes=axes, name=name)


def prelu(x: Any, weight: Any, name: str | None = None) -> tf.Tensor:
  """max(0, x) + weight min(0, x), with gradients for both.

  Args:
    x: Tensor of a floating type.
    weight: Tensor or variable that broadcasts to x: a scalar, one number a channel (the last dimension), the shape of x without
      the batch.
    name: Name of the op.

  Returns:
    A tensor like x. ValueError for a weight that does not broadcast to x.
  """
  return npu_aicore_ops.p_relu(x, weight, name=name)


def layer_norm(
  x: Any,
  gamma: Any,
  beta: Any,
  begin_norm_axis: int = 0,
  begin_params_axis: int = 0,
  epsilon: float = 1e-7,
  name: str | None = None,
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
  """Normalizes x over its dimensions from begin_norm_axis on, with gradients for x, gamma and beta.

  Args:
    x: Tensor of a floating type, rank at least 1.
    gamma: Scale, of the shape of x from begin_params_axis on.
    beta: Offset, of the same shape.
    begin_norm_axis: First normalized dimension; negative numbers count from the last.
    begin_params_axis: First dimension of the parameters.
    epsilon: Added to the variance.
    name: Name of the op.

  Returns:
    The result, like x; mean and variance, of the shape of x with 1 for the normalized dimensions. ValueError for axes that x
    does not have and for parameters of another shape.
  """
  return npu_aicore_ops.layer_norm(
    x, gamma, beta, begin_norm_axis=begin_norm_axis, begin_params_axis=begin_params_axis, epsilon=epsilon, name=name
  )


def nonzero(x: Any, transpose: bool = False, output_type: tf.DType = tf.int64, name: str | None = None) -> tf.Tensor:
  """Where x is not zero, in row-major order: [found, rank of x], or [rank of x, found] with transpose, of int32 or int64."""
  return npu_aicore_ops.non_zero(x, transpose=transpose, output_type=output_type, name=name)


def nonzerowithvalue(
  x: Any, transpose: bool = False, output_type: tf.DType = tf.int64, name: str | None = None
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
  """The values of x that are not zero [found], their places as nonzero gives them, and their number [1]."""
  return npu_aicore_ops.non_zero_with_value(x, transpose=transpose, output_type=output_type, name=name)


def _not_here(name: str, what: str) -> Any:
  def function(*args: Any, **kwargs: Any) -> Any:
    raise NotImplementedError(f"npu_aicore_ops.{name}: {what} is not available here")

  function.__name__ = function.__qualname__ = name
  function.__doc__ = f"{what[0].upper()}{what[1:]}: NotImplementedError when called."
  return function


lru_cache_v2 = _not_here("lru_cache_v2", "the cache in device memory")
tabulate_fusion_se_a = _not_here("tabulate_fusion_se_a", "the table of DeePMD's embedding net")
prod_env_mat_a = _not_here("prod_env_mat_a", "the environment matrix of DeePMD")
prod_force_se_a = _not_here("prod_force_se_a", "the force of DeePMD")
prod_virial_se_a = _not_here("prod_virial_se_a", "the virial of DeePMD")
