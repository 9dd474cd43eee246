"""Gradients of the ops of tf/ops/npu_nn_ops.cc. Importing this module registers them; whoever makes such an op imports it."""

from __future__ import annotations

from typing import Any

import tensorflow as tf
from tensorflow.python.framework import ops as tf_ops

from mxrec import _loader

ops = _loader.ops


@tf_ops.RegisterGradient("DropOutDoMask")
def _do_mask(op: tf.Operation, gradient: Any) -> list[Any]:
  """For x: the same mask applied to the gradient. Mask and keep_prob have none."""
  _, mask, keep_prob = op.inputs
  return [ops.drop_out_do_mask(tf.convert_to_tensor(gradient), mask, keep_prob), None, None]


@tf_ops.RegisterGradient("Gelu")
def _gelu(op: tf.Operation, gradient: Any) -> tf.Tensor:
  """For features."""
  return ops.gelu_grad(gradient, op.inputs[0], op.outputs[0])


@tf_ops.RegisterGradient("FastGelu")
def _fast_gelu(op: tf.Operation, gradient: Any) -> tf.Tensor:
  """For x."""
  return ops.fast_gelu_grad(gradient, op.inputs[0])


@tf_ops.RegisterGradient("FastGeluV2")
def _fast_gelu_v2(op: tf.Operation, gradient: Any) -> tf.Tensor:
  """For x."""
  return ops.fast_gelu_v2_grad(gradient, op.inputs[0])


for _op in ("DropOutGenMask", "MxrecDropOutBroadcastMask", "MxrecDropOutUnpackMask"):
  tf_ops.NotDifferentiable(_op)
