"""Ops of the NPU that scripts call by name. What computes is in the op library; here arguments are checked."""

from __future__ import annotations

from typing import Any

import tensorflow.compat.v1 as tf
from tensorflow.python.ops import resource_variable_ops

from mxrec import _groups, _loader
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
  _groups.world()
  return gen_npu_ops.npu_init(name=name)


def NPUShutdown(name: str | None = None) -> tf.Operation:
  """An op that ends the collective runtime; running it again is harmless. RuntimeError under eager execution."""
  _graph_only("npu_ops.NPUShutdown")
  _groups.world()
  return gen_npu_ops.npu_shutdown(name=name)


def initialize_system(name: str | None = None) -> tf.Operation:
  """An op that starts the collective runtime, which means that it meets the other ranks; running it again is harmless.

  RuntimeError under eager execution; ValueError when there are several ranks that cannot find each other.
  """
  _graph_only("npu_ops.initialize_system")
  _groups.world()
  return gen_npu_ops.npu_init(name=name)


def shutdown_system(name: str | None = None) -> tf.Operation:
  """An op that waits for the other ranks to run it too, and ends the collective runtime; running it again is harmless.

  RuntimeError under eager execution; ValueError as initialize_system.
  """
  _graph_only("npu_ops.shutdown_system")
  _groups.world()
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


def LARS(
  inputs_w: list[Any],
  inputs_g: list[Any],
  weight_decay: Any,
  hyperpara: float = 0.001,
  epsilon: float = 0.00001,
  name: str | None = None,
) -> list[tf.Tensor]:
  """New gradients of several layers, by layer-wise adaptive rate scaling.

  Args:
    inputs_w: List of weights, all of one floating type.
    inputs_g: List of their gradients, of the same shapes.
    weight_decay: Number or scalar tensor.
    hyperpara: The trust coefficient.
    epsilon: Keeps the divisor above 0.
    name: Name of the op.

  Returns:
    List like inputs_g: r (g + weight_decay w), r = hyperpara |w| / (|g| + weight_decay |w| + epsilon); r is 1 where a norm is 0.

  Raises:
    RuntimeError: under eager execution.
    TypeError: no list.
    ValueError: lists of different lengths, shapes that differ.
  """
  _graph_only("npu_ops.LARS")
  for argument, value in (("inputs_w", inputs_w), ("inputs_g", inputs_g)):
    if not isinstance(value, (list, tuple)):
      raise TypeError(f"npu_ops.LARS: {argument} must be a list of tensors: got {type(value).__name__}")
  if len(inputs_w) != len(inputs_g):
    raise ValueError(f"npu_ops.LARS: inputs_w has {len(inputs_w)} tensors, inputs_g {len(inputs_g)}")
  return gen_npu_ops.lars(inputs_w, inputs_g, weight_decay, hyperpara=hyperpara, epsilon=epsilon, name=name)


def LARSV2(
  input_weight: Any,
  input_grad: Any,
  weight_decay: Any,
  learning_rate: Any,
  hyperpara: float = 0.001,
  epsilon: float = 0.00001,
  use_clip: bool = False,
  name: str | None = None,
) -> tf.Tensor:
  """The new gradient of one layer, by layer-wise adaptive rate scaling: the formula of LARS.

  Args:
    input_weight: Weights of a floating type.
    input_grad: Their gradient, of the same shape.
    weight_decay: Number or scalar tensor.
    learning_rate: Number or scalar tensor; used with use_clip only.
    hyperpara: The trust coefficient.
    epsilon: Keeps the divisor above 0.
    use_clip: Whether r becomes min(r / learning_rate, 1).
    name: Name of the op.

  Returns:
    A tensor like input_grad.

  Raises:
    RuntimeError: under eager execution.
    ValueError: shapes that differ.
  """
  _graph_only("npu_ops.LARSV2")
  return gen_npu_ops.lars_v2(
    input_weight, input_grad, weight_decay, learning_rate, hyperpara=hyperpara, epsilon=epsilon, use_clip=use_clip, name=name
  )


def _adam_apply_one(function: str, op: Any, resource_op: Any, states: list[Any], inputs: list[Any], name: str | None) -> list[Any]:
  """Runs the op for ref variables, or that for resource variables; gives the states after the step."""
  _graph_only(function)
  resources = [isinstance(state, resource_variable_ops.BaseResourceVariable) for state in states]
  grad = tf.convert_to_tensor(inputs[0], name="input0")
  if not any(resources):
    refs = [getattr(state, "_ref", lambda state=state: state)() for state in states]
    return list(op(grad, *refs, *inputs[1:], name=name))
  if not all(resources):
    raise ValueError(
      f"{function}: input1, input2 and input3 must be variables of one kind: got {[type(s).__name__ for s in states]}"
    )
  step = resource_op(grad, *[state.handle for state in states], *inputs[1:], name=name)
  with tf.control_dependencies([step]):
    return [state.read_value() for state in states]


def adam_apply_one_assign(
  input0: Any,
  input1: Any,
  input2: Any,
  input3: Any,
  input4: Any,
  mul0_x: Any,
  mul1_x: Any,
  mul2_x: Any,
  mul3_x: Any,
  add2_y: Any,
  name: str | None = None,
) -> list[tf.Tensor]:
  """One step of Adam without correction of the bias, in one pass, in place.

  m <- m mul0_x + g mul1_x; v <- v mul2_x + g^2 mul3_x; w <- w - input4 m / (sqrt(v) + add2_y)

  Args:
    input0: The gradient g, of a floating type.
    input1: The variable v, the second moment, like g.
    input2: The variable m, the first moment, like g.
    input3: The variable w, like g.
    input4: The learning rate, a scalar like all that follow.
    mul0_x: beta1.
    mul1_x: 1 - beta1.
    mul2_x: beta2.
    mul3_x: 1 - beta2.
    add2_y: epsilon.
    name: Name of the op.

  Returns:
    v, m and w after the step.

  Raises:
    RuntimeError: under eager execution.
    ValueError: shapes or types that differ; variables of two kinds.
  """
  return _adam_apply_one(
    "npu_ops.adam_apply_one_assign",
    gen_npu_ops.adam_apply_one_assign,
    gen_npu_ops.mxrec_resource_adam_apply_one_assign,
    [input1, input2, input3],
    [input0, input4, mul0_x, mul1_x, mul2_x, mul3_x, add2_y],
    name,
  )


def adam_apply_one_with_decay_assign(
  input0: Any,
  input1: Any,
  input2: Any,
  input3: Any,
  input4: Any,
  mul0_x: Any,
  mul1_x: Any,
  mul2_x: Any,
  mul3_x: Any,
  mul4_x: Any,
  add2_y: Any,
  name: str | None = None,
) -> list[tf.Tensor]:
  """As adam_apply_one_assign with weight decay mul4_x: w <- w - input4 (m / (sqrt(v) + add2_y) + mul4_x w)."""
  return _adam_apply_one(
    "npu_ops.adam_apply_one_with_decay_assign",
    gen_npu_ops.adam_apply_one_with_decay_assign,
    gen_npu_ops.mxrec_resource_adam_apply_one_with_decay_assign,
    [input1, input2, input3],
    [input0, input4, mul0_x, mul1_x, mul2_x, mul3_x, mul4_x, add2_y],
    name,
  )
