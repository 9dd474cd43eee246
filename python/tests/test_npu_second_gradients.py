"""Second derivatives of gelu, prelu and layer_norm: against TensorFlow's own of compositions of the same formulas."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from npu_bridge.estimator import npu_aicore_ops, npu_unary_ops
from test_npu_nn_ops import GELUS, NORM_CASES, PRELU_SHAPES, composed_prelu

generated = npu_unary_ops.npu_unary_ops


def values(shape, seed, scale=1.5):
  return np.random.default_rng(seed).normal(0, scale, shape)


def composed_norm(x, gamma, beta, axis, epsilon):
  """Without tf.nn.moments, which holds the mean back from gradients: right for first derivatives alone."""
  axes = list(range(axis % x.shape.rank, x.shape.rank))
  mean = tf.reduce_mean(x, axes, keepdims=True)
  variance = tf.reduce_mean(tf.square(x - mean), axes, keepdims=True)
  return (x - mean) / tf.sqrt(variance + epsilon) * gamma + beta, mean, variance


def second(function, inputs, dtype):
  """Gradients, for all inputs and for the incoming gradient, of a weighted sum of squares and of a penalty on the gradients."""
  inputs = [tf.cast(tf.constant(x), dtype) for x in inputs]
  outputs = function(*inputs)
  incoming = [tf.cast(tf.constant(values(y.shape.as_list(), 50 + i)), dtype) for i, y in enumerate(outputs)]
  slopes = tf.gradients(outputs, inputs, incoming)
  penalty = tf.add_n([tf.reduce_sum(tf.cast(tf.sin(s), tf.float64)) for s in slopes])
  return slopes + tf.gradients(penalty, [*inputs, *incoming], unconnected_gradients="zero")


def check(ours, theirs, inputs, dtype, bound):
  found, wanted = second(ours, inputs, dtype), second(theirs, inputs, tf.float64)
  with tf.Session() as session:
    found, wanted = session.run([found, wanted])
  for a, b in zip(found, wanted, strict=True):
    assert a.shape == b.shape and a.dtype == dtype.as_numpy_dtype
    size = np.abs(b).max(initial=1e-3)
    np.testing.assert_allclose(np.asarray(a, np.float64) / size, b / size, rtol=0, atol=bound)


WITHIN = [(tf.float64, 1e-12), (tf.float32, 1e-5), (tf.float16, 2e-2), (tf.bfloat16, 1e-1)]


@pytest.mark.parametrize("dtype,bound", WITHIN)
@pytest.mark.parametrize("ours,theirs", GELUS)
def test_second_derivatives_of_activations_are_those_of_a_composition(ours, theirs, dtype, bound):
  x = np.concatenate([values([60], 1, 2), [-8.0, 8.0, 2.4, -2.4, 2.6, -2.6, 1e-3]])
  check(lambda v: [ours(v)], lambda v: [theirs(v)], [x], dtype, bound)


@pytest.mark.parametrize("ours,_", GELUS)
@pytest.mark.parametrize("dtype", [tf.float32, tf.float64])
def test_second_derivatives_of_activations_at_the_ends_of_the_number_line(ours, _, dtype):
  x = tf.placeholder(dtype, [None])
  curve = tf.gradients(tf.gradients(ours(x), x), x)[0]
  with tf.Session() as session:
    far = [29.0, -31.0, 400.0, -600.0, 1e30, -1e30, np.inf, -np.inf]
    np.testing.assert_allclose(session.run(curve, {x: far}), np.zeros(len(far)), atol=1e-9)
    assert np.isnan(session.run(curve, {x: [np.nan]})).all()
    assert session.run(curve, {x: []}).shape == (0,)


@pytest.mark.parametrize("dtype,bound", WITHIN)
@pytest.mark.parametrize("shape,weight_shape", PRELU_SHAPES)
def test_second_derivatives_of_prelu_are_those_of_a_composition(shape, weight_shape, dtype, bound):
  inputs = [values(shape, 1), values(weight_shape, 2)]
  check(lambda *v: [npu_aicore_ops.prelu(*v)], lambda *v: [composed_prelu(*v)], inputs, dtype, bound)


@pytest.mark.parametrize("dtype,bound", WITHIN[:2])
@pytest.mark.parametrize("shape,norm,params", NORM_CASES)
def test_second_derivatives_of_layer_norm_are_those_of_a_composition(shape, norm, params, dtype, bound):
  inputs = [values(shape, 1), values(shape[params:], 2), values(shape[params:], 3)]

  def ours(x, gamma, beta):
    return list(npu_aicore_ops.layer_norm(x, gamma, beta, norm, params, 1e-2))

  def theirs(x, gamma, beta):
    return list(composed_norm(x, gamma, beta, norm, float(np.float32(1e-2))))

  check(ours, theirs, inputs, dtype, bound * 10)
  check(lambda *v: ours(*v)[:1], lambda *v: theirs(*v)[:1], inputs, dtype, bound * 10)


def test_the_gradient_op_of_layer_norm_that_scripts_call_has_gradients_too():
  """LayerNormGrad, which knows no gradients of mean and variance."""
  shape = [3, 4, 6]
  inputs = [values(shape, 1), values(shape, 2), np.abs(values([3, 1, 1], 3)), values([3, 1, 1], 4), values([4, 6], 5)]

  def ours(*given):
    return list(generated.layer_norm_grad(*given, begin_norm_axis=1, begin_params_axis=1, epsilon=1e-2))

  def theirs(dy, x, variance, mean, gamma):
    scale = 1 / tf.sqrt(variance + float(np.float32(1e-2)))
    z, g = (x - mean) * scale, dy * gamma
    average = lambda t: tf.reduce_mean(t, [1, 2], keepdims=True)
    return [scale * (g - average(g) - z * average(g * z)), tf.reduce_sum(dy * z, 0), tf.reduce_sum(dy, 0)]

  check(ours, theirs, inputs, tf.float64, 1e-12)


def test_a_penalty_on_gradients_trains_in_functions_and_with_unknown_shapes():
  x = tf.placeholder(tf.float32, [None, None])
  gamma = tf.constant(values([6], 3), tf.float32)

  def penalty(v, layer, gelu):
    y = gelu(layer(v))
    return tf.reduce_sum(tf.square(tf.gradients(y, v)[0]))

  def ours(v):
    return penalty(v, lambda t: npu_aicore_ops.layer_norm(t, gamma, gamma, 1, 1, 1e-3)[0], generated.gelu)

  def theirs(v):
    return penalty(v, lambda t: composed_norm(t, gamma, gamma, 1, 1e-3)[0], GELUS[0][1])

  fetches = [tf.gradients(f(x), x)[0] for f in (ours, tf.function(ours), theirs)]
  with tf.Session() as session:
    found = session.run(fetches, {x: values([5, 6], 1)})
    assert session.run(fetches[0], {x: np.zeros([0, 6])}).shape == (0, 6)
  np.testing.assert_allclose(found[0], found[2], rtol=1e-3, atol=1e-4)
  np.testing.assert_allclose(found[1], found[0], rtol=1e-4, atol=1e-5)
