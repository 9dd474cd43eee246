"""Gradients of the gradient ops of tf/ops/npu_nn_ops.cc, as graphs of TensorFlow's ops: for penalties on gradients and the like.

Imported by _npu_gradients. They need not be fast; of 16-bit types they are computed in float32 and rounded once.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import tensorflow as tf
from tensorflow.python.framework import ops as tf_ops

from mxrec import _loader

ops = _loader.ops


def _registered(op_type: str) -> Callable[..., Any]:
  """Registers function(op, inputs, *gradients), called in the type to compute in, for an op whose tensors have one type."""

  def register(function: Callable[..., Any]) -> Callable[..., Any]:
    @tf_ops.RegisterGradient(op_type)
    @functools.wraps(function)
    def gradient(op: tf.Operation, *gradients: Any) -> list[tf.Tensor | None]:
      own = op.inputs[0].dtype
      wide = own if own.size >= 4 else tf.float32
      found = function(op, [tf.cast(x, wide) for x in op.inputs], *(tf.cast(g, wide) for g in gradients))
      return [None if x is None else tf.cast(x, own) for x in found]

    return function

  return register


# --- gelu: backprops = gradients y'(x), so the second derivative of y is what is needed ---


def _second_of_smooth(x: tf.Tensor, linear: float, cubic: float, end: float) -> tf.Tensor:
  """Of y = x s(z), z = linear x + cubic x^3, s the sigmoid; y'' is 0 from |x| = end on, where x^6 might overflow."""
  x = tf.clip_by_value(x, -end, end)
  z = x * (linear + cubic * x * x)
  slope, bend = linear + 3 * cubic * x * x, 6 * cubic * x
  s, rest = tf.sigmoid(z), tf.sigmoid(-z)
  return s * rest * (2 * slope + x * (bend + slope * slope * (rest - s)))


def _second_of_quadratic(x: tf.Tensor) -> tf.Tensor:
  """Of FastGeluV2 between the bends; 0 beyond. The kink at 0 counts for nothing."""
  scaled = tf.abs(x) * math.sqrt(0.5)
  return tf.where(scaled >= 1.769, tf.zeros_like(x), (-0.2888 * math.sqrt(0.5)) * (2 * (scaled - 1.769) + scaled))


_LINEAR = 2 * math.sqrt(2 / math.pi)


@_registered("GeluGrad")
def _gelu_grad(op, inputs, gradient):
  """For gradients and features; of outputs the op uses the shape alone."""
  incoming, x, y = inputs
  return [ops.gelu_grad(gradient, x, y), gradient * incoming * _second_of_smooth(x, _LINEAR, 0.044715 * _LINEAR, 30.0), None]


@_registered("FastGeluGrad")
def _fast_gelu_grad(op, inputs, gradient):
  """For dy and x."""
  incoming, x = inputs
  return [ops.fast_gelu_grad(gradient, x), gradient * incoming * _second_of_smooth(x, 1.702, 0.0, 500.0)]


@_registered("FastGeluV2Grad")
def _fast_gelu_v2_grad(op, inputs, gradient):
  """For dy and x."""
  incoming, x = inputs
  return [ops.fast_gelu_v2_grad(gradient, x), gradient * incoming * _second_of_quadratic(x)]


# --- prelu ---


def _sum_to(x: tf.Tensor, small: tf.Tensor) -> tf.Tensor:
  """Sums x over the dimensions along which `small` was repeated to its shape."""
  axes = tf.raw_ops.BroadcastGradientArgs(s0=tf.shape(x), s1=tf.shape(small)).r1
  return tf.reshape(tf.reduce_sum(x, axes), tf.shape(small))


@_registered("PReluGrad")
def _p_relu_grad(op, inputs, of_dx, of_da):
  """For grads, features and weights."""
  incoming, x, weights = inputs
  negative = tf.cast(x < 0, x.dtype)
  of_incoming = ops.p_relu_grad(of_dx, x, weights)[0] + of_da * tf.minimum(x, 0)
  return [of_incoming, of_da * incoming * negative, _sum_to(of_dx * incoming * tf.cast(x <= 0, x.dtype), weights)]


# --- layer_norm ---


def _norm_grad(op: tf.Operation, inputs: list[tf.Tensor], u: tf.Tensor, p: tf.Tensor, q: tf.Tensor) -> list[tf.Tensor]:
  """For all inputs of a gradient of LayerNorm; u, p and q are the gradients for pd_x, pd_gamma and pd_beta.

  With z = (x - mean) s, s = (variance + epsilon)^-1/2, g = dy gamma and A the average over the normalized dimensions of n elements:
  pd_x = s (g - A(g) - z A(g z)) + dmean / n + 2 dvariance (x - mean) / n, pd_gamma = sum(dy z), pd_beta = sum(dy).
  """
  dy, x, variance, mean, gamma, *statistics = inputs
  norm_axis = op.get_attr("begin_norm_axis")
  axes = tf.range(norm_axis if norm_axis >= 0 else norm_axis + tf.rank(x), tf.rank(x))

  def average(t: tf.Tensor) -> tf.Tensor:
    return tf.reduce_mean(t, axes, keepdims=True)

  def total(t: tf.Tensor) -> tf.Tensor:
    return tf.reduce_sum(t, axes, keepdims=True)

  n = tf.cast(tf.reduce_prod(tf.gather(tf.shape(x), axes)), x.dtype)
  c, s, g = x - mean, tf.math.rsqrt(variance + op.get_attr("epsilon")), dy * gamma
  z = c * s
  projected = s * (u - average(u) - z * average(u * z))
  of_z = p * dy - s * (u * average(g * z) + g * average(u * z))
  of_s = total(u * (g - average(g) - z * average(g * z))) + total(of_z * c)
  of_c = of_z * s
  if statistics:
    of_c += 2 / n * statistics[1] * u
  found = [gamma * projected + p * z + q, of_c, -0.5 * s * s * s * of_s, -total(of_c), _sum_to(dy * projected, gamma)]
  return found + ([average(u), 2 * average(u * c)] if statistics else [])


for _op in ("LayerNormGrad", "MxrecLayerNormGrad"):
  _registered(_op)(_norm_grad)
