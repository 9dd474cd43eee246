"""Ops of the NPU that scripts call by name. What computes is in the op library; here arguments are checked."""

from __future__ import annotations

from typing import Any

import tensorflow.compat.v1 as tf

from mxrec import _loader
from npu_bridge.estimator import _dropout
from npu_bridge.estimator._cells_and_channels import basic_lstm_cell as basic_lstm_cell
from npu_bridge.estimator._cells_and_channels import channel_get_next as channel_get_next
from npu_bridge.estimator._cells_and_channels import k_means_centroids as k_means_centroids
from npu_bridge.estimator._cells_and_channels import npu_onnx_graph_op as npu_onnx_graph_op
from npu_bridge.estimator._cells_and_channels import outfeed_dequeue_op as outfeed_dequeue_op
from npu_bridge.estimator._cells_and_channels import outfeed_enqueue_op as outfeed_enqueue_op
from npu_bridge.estimator._cells_and_channels import scatter_elements as scatter_elements
from npu_bridge.estimator._cells_and_channels import stop_outfeed_dequeue_op as stop_outfeed_dequeue_op
from npu_bridge.estimator._dropout import graph_only as _graph_only

gen_npu_ops = _loader.ops


def NPUInit(name: str | None = None) -> tf.Operation:
  """An op that starts the collective runtime; running it again is harmless. RuntimeError under eager execution."""
  _graph_only("npu_ops.NPUInit")
  return gen_npu_ops.npu_init(name=name)


def NPUShutdown(name: str | None = None) -> tf.Operation:
  """An op that ends the collective runtime; running it again is harmless. RuntimeError under eager execution."""
  _graph_only("npu_ops.NPUShutdown")
  return gen_npu_ops.npu_shutdown(name=name)


def initialize_system(name: str | None = None) -> tf.Operation:
  """An op that starts the collective runtime; running it again is harmless. RuntimeError under eager execution."""
  _graph_only("npu_ops.initialize_system")
  return gen_npu_ops.npu_init(name=name)


def shutdown_system(name: str | None = None) -> tf.Operation:
  """An op that ends the collective runtime; running it again is harmless. RuntimeError under eager execution."""
  _graph_only("npu_ops.shutdown_system")
  return gen_npu_ops.npu_shutdown(name=name)


def dropout(x: Any, keep_prob: Any, noise_shape: Any = None, seed: int | None = None, name: str | None = None) -> tf.Tensor:
  """Keeps each element with probability keep_prob, divided by it, and sets the others to 0; the gradient uses the same mask.

  Args:
    x: Tensor of float16, bfloat16, float32 or float64, of any shape.
    keep_prob: Number or scalar tensor in (0, 1]. The Python float 1.0 gives x itself.
    noise_shape: Shape of the random mask, which is broadcast to x: sizes of x or 1 (one draw for the whole dimension). None in it
      stands for the size of x.
    seed: Seed of the op; with the graph's seed it makes runs repeatable (tf.set_random_seed).
    name: Name of the ops.

  Returns:
    A tensor like x.

  Raises:
    RuntimeError: under eager execution.
    ValueError: x is not of a floating type; keep_prob is outside (0, 1] or not a scalar. A fed keep_prob outside of it is
      InvalidArgumentError in the step.
  """
  return _dropout.dropout("npu_ops.dropout", x, keep_prob, noise_shape, seed, name)[0]
