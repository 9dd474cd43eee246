"""Gradients of the ops of tf/ops/npu_nn_ops.cc. Importing this module registers them; whoever makes such an op imports it."""

from __future__ import annotations

from typing import Any

import tensorflow as tf
from tensorflow.python.framework import ops as tf_ops

from mxrec import _loader
from mxrec import _npu_second_gradients as _npu_second_gradients

ops = _loader.ops


@tf_ops.RegisterGradient("DropOutDoMask")
def _do_mask(op: tf.Operation, gradient: Any) -> list[Any]:
  """For x: the same mask applied to the gradient. Mask and keep_prob have none."""
  _, mask, keep_prob = op.inputs
  return [ops.drop_out_do_mask(tf.convert_to_tensor(gradient), mask, keep_prob), None, None]


@tf_ops.RegisterGradient("Gelu")
def _gelu(op: tf.Operation, gradient: Any) -> tf.Tensor:
  """For features, which stand for the outputs too: only their shape is used, and so nothing keeps the outputs in memory."""
  return ops.gelu_grad(gradient, op.inputs[0], op.inputs[0])


@tf_ops.RegisterGradient("FastGelu")
def _fast_gelu(op: tf.Operation, gradient: Any) -> tf.Tensor:
  """For x."""
  return ops.fast_gelu_grad(gradient, op.inputs[0])


@tf_ops.RegisterGradient("FastGeluV2")
def _fast_gelu_v2(op: tf.Operation, gradient: Any) -> tf.Tensor:
  """For x."""
  return ops.fast_gelu_v2_grad(gradient, op.inputs[0])


@tf_ops.RegisterGradient("PRelu")
def _p_relu(op: tf.Operation, gradient: Any) -> list[tf.Tensor]:
  """For x and weight."""
  return list(ops.p_relu_grad(gradient, *op.inputs))


@tf_ops.RegisterGradient("LayerNorm")
def _layer_norm(op: tf.Operation, of_y: Any, of_mean: Any, of_variance: Any) -> list[tf.Tensor]:
  """For x, gamma and beta, through all three outputs."""
  x, gamma, _ = op.inputs
  _, mean, variance = op.outputs
  attributes = {name: op.get_attr(name) for name in ("begin_norm_axis", "begin_params_axis", "epsilon")}
  return list(ops.mxrec_layer_norm_grad(of_y, x, variance, mean, gamma, of_mean, of_variance, **attributes))


@tf_ops.RegisterGradient("Centralization")
def _centralization(op: tf.Operation, gradient: Any) -> tf.Tensor:
  """For x: the gradient minus its own mean."""
  return ops.centralization(gradient, axes=op.get_attr("axes"))


@tf_ops.RegisterGradient("NonZeroWithValue")
def _non_zero_with_value(op: tf.Operation, of_value: Any, *_: Any) -> tf.Tensor:
  """For x: the gradient of the values, where they came from."""
  index = tf.transpose(op.outputs[1]) if op.get_attr("transpose") else op.outputs[1]
  return tf.scatter_nd(index, of_value, tf.shape(op.inputs[0], out_type=index.dtype))


for _op in ("DropOutGenMask", "MxrecDropOutBroadcastMask", "MxrecDropOutUnpackMask", "NonZero", "LARS", "LarsV2"):
  tf_ops.NotDifferentiable(_op)
