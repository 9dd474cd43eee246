"""What the dropout functions of npu_ops and npu_aicore_ops share: checks of arguments, then the ops that work."""

from __future__ import annotations

import numbers
from typing import Any

import tensorflow.compat.v1 as tf

from mxrec import _loader
from mxrec import _npu_gradients as _npu_gradients

ops = _loader.ops


def graph_only(function: str) -> None:
  """RuntimeError, naming the function, under eager execution."""
  if tf.executing_eagerly():
    raise RuntimeError(f"{function} works in graphs only: eager execution is on (tf.disable_v2_behavior() turns it off)")


def _keep_prob(function: str, keep_prob: Any, dtype: tf.DType) -> tf.Tensor:
  """keep_prob as a scalar of the type of x."""
  if isinstance(keep_prob, numbers.Real):
    if not 0 < keep_prob <= 1:
      raise ValueError(f"{function}: keep_prob must be above 0 and at most 1: got {keep_prob!r}")
    return tf.convert_to_tensor(keep_prob, dtype, name="keep_prob")
  tensor = tf.convert_to_tensor(keep_prob, name="keep_prob")
  if not tensor.dtype.is_floating:
    raise ValueError(f"{function}: keep_prob must be of a floating type: got {tensor.dtype.name}")
  if not tensor.shape.is_compatible_with([]):
    raise ValueError(f"{function}: keep_prob must be a scalar: got shape {tensor.shape}")
  return tf.cast(tensor, dtype)


def _noise_shape(function: str, x: tf.Tensor, noise_shape: Any) -> Any:
  """The shape of the mask; None for that of x. Sizes of None are those of x."""
  if noise_shape is None:
    return None
  if tf.is_tensor(noise_shape) and not noise_shape.dtype.is_integer:
    raise ValueError(f"{function}: noise_shape must be integers: got {noise_shape.dtype.name}")
  try:
    static = tf.TensorShape(noise_shape)
  except (TypeError, ValueError):
    return noise_shape  # a tensor, or what the op will refuse
  if static.rank is None:
    return noise_shape
  if static.is_fully_defined():
    return None if x.shape.is_fully_defined() and static.as_list() == x.shape.as_list() else static.as_list()
  own = tf.shape(x)
  return tf.stack([own[d] if size is None else size for d, size in enumerate(static.as_list())])


def dropout(function: str, x: Any, keep_prob: Any, noise_shape: Any, seed: Any, name: str | None) -> tuple[Any, Any]:
  """The dropped-out x, and a function that gives the mask, one element a bit, of a type. A float 1.0 gives x itself."""
  graph_only(function)
  with tf.name_scope(name, "dropout", [x]):
    x = tf.convert_to_tensor(x, name="x")
    if x.dtype not in (tf.float16, tf.bfloat16, tf.float32, tf.float64):
      raise ValueError(f"{function}: x must be of a floating type: got {x.dtype.name}")
    if isinstance(keep_prob, float) and keep_prob == 1.0:
      return x, lambda dtype: tf.ones(tf.shape(x) if noise_shape is None else noise_shape, dtype)
    keep = _keep_prob(function, keep_prob, x.dtype)
    own = tf.shape(x, out_type=tf.int64)
    noise = _noise_shape(function, x, noise_shape)
    noise = own if noise is None else tf.cast(tf.convert_to_tensor(noise), tf.int64)
    graph_seed, op_seed = tf.get_seed(seed)
    bits = ops.drop_out_gen_mask(noise, keep, seed=graph_seed or 0, seed2=op_seed or 0, name="mask")
    full = bits if noise is own else ops.mxrec_drop_out_broadcast_mask(bits, noise, own, name="full_mask")
    return ops.drop_out_do_mask(x, full, keep), lambda dtype: ops.mxrec_drop_out_unpack_mask(bits, noise, dtype=dtype)
