"""Private parts of TensorFlow 1's RNN cells that cells of scripts are built on."""

from __future__ import annotations

from typing import Any

import tensorflow.compat.v1 as tf


def like_rnncell(cell: Any) -> bool:
  """Whether an object can be used as an RNN cell."""
  return all(hasattr(cell, name) for name in ("output_size", "state_size", "zero_state")) and callable(cell)


def linear(args: Any, output_size: int, bias: bool, bias_initializer: Any = None, kernel_initializer: Any = None, **_: Any) -> Any:
  """concat(args) x kernel + bias, with the variables kernel and bias of the current scope."""
  args = list(args) if isinstance(args, (list, tuple)) else [args]
  if any(argument.shape.rank != 2 for argument in args):
    raise ValueError(f"linear takes matrices: got shapes {[argument.shape.as_list() for argument in args]}")
  width = sum(tf.dimension_value(argument.shape[1]) for argument in args)
  kind = args[0].dtype.base_dtype
  kernel = tf.get_variable("kernel", [width, output_size], dtype=kind, initializer=kernel_initializer)
  product = tf.matmul(args[0] if len(args) == 1 else tf.concat(args, 1), kernel)
  if not bias:
    return product
  initializer = bias_initializer if bias_initializer is not None else tf.zeros_initializer()
  return tf.nn.bias_add(product, tf.get_variable("bias", [output_size], dtype=kind, initializer=initializer))


class Linear:
  """`linear` that makes its variables once, at construction."""

  def __init__(self, args: Any, output_size: int, build_bias: bool, bias_initializer: Any = None, kernel_initializer: Any = None):
    """Arguments as of `linear`; those of `args` give the shapes."""
    args = list(args) if isinstance(args, (list, tuple)) else [args]
    width = sum(tf.dimension_value(argument.shape[1]) for argument in args)
    kind = args[0].dtype.base_dtype
    self._weights = tf.get_variable("kernel", [width, output_size], dtype=kind, initializer=kernel_initializer)
    initializer = bias_initializer if bias_initializer is not None else tf.zeros_initializer()
    self._biases = tf.get_variable("bias", [output_size], dtype=kind, initializer=initializer) if build_bias else None

  def __call__(self, args: Any) -> Any:
    args = list(args) if isinstance(args, (list, tuple)) else [args]
    product = tf.matmul(args[0] if len(args) == 1 else tf.concat(args, 1), self._weights)
    return product if self._biases is None else tf.nn.bias_add(product, self._biases)
