"""Ops of neural networks of npu_bridge: each against a composition of TensorFlow's, gradients against differences."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from npu_bridge.estimator import npu_aicore_ops, npu_ops, npu_unary_ops
from tensorflow.python.eager import context

from mxrec import _loader

generated = npu_unary_ops.npu_unary_ops
FLOATS = [tf.float32, tf.float64, tf.float16, tf.bfloat16]
TOLERANCE = {tf.float32: 2e-6, tf.float64: 1e-13, tf.float16: 1e-3, tf.bfloat16: 8e-3}


def threads(count):
  return tf.ConfigProto(intra_op_parallelism_threads=count, inter_op_parallelism_threads=count, use_per_session_threads=True)


def evaluate(fetches, feed=None, config=None):
  with tf.Session(config=config) as session:
    session.run(tf.global_variables_initializer())
    return session.run(fetches, feed)


def near(found, expected, dtype=tf.float32, scale=1.0):
  found, expected = np.asarray(found).astype(np.float64), np.asarray(expected).astype(np.float64)
  assert found.shape == expected.shape
  np.testing.assert_allclose(found, expected, rtol=TOLERANCE[dtype] * scale, atol=TOLERANCE[dtype] * scale)


def numbers(shape, seed=0, dtype=tf.float32, scale=2.0):
  values = np.random.default_rng(seed).normal(0, scale, shape)
  return tf.constant(values, dtype) if dtype != tf.bfloat16 else tf.cast(tf.constant(values, tf.float32), dtype)


def check_gradient(function, *shapes, bound=1e-6, scale=1.0, out=None):
  """Numeric against registered gradients, in float64, for every input."""
  inputs = [tf.constant(np.random.default_rng(7 + i).normal(0, scale, shape)) for i, shape in enumerate(shapes)]
  result = function(*inputs)
  with tf.Session() as session:
    for x, shape in zip(inputs, shapes):
      value = session.run(x)
      error = tf.test.compute_gradient_error(x, shape, result, out or result.shape.as_list(), x_init_value=value, delta=1e-5)
      assert error < bound, x


# --- dropout ---


def test_fact_3_dropout():
  x = tf.ones([1000, 1000])
  y = npu_ops.dropout(x, 0.5)
  gradient = tf.gradients(tf.reduce_sum(y), x)[0]
  value, slope = evaluate([y, gradient])
  assert set(np.unique(value)) == {0.0, 2.0}
  assert abs(np.mean(value != 0) - 0.5) < 0.005
  np.testing.assert_array_equal(value, slope)
  assert npu_ops.dropout(x, 1.0) is x
  for wrong in (0, -0.1, 1.5, float("nan"), 0.0, 2, np.float32(1.5)):
    with pytest.raises(ValueError, match=r"keep_prob must be above 0 and at most 1: got"):
      npu_ops.dropout(x, wrong)
  with pytest.raises(ValueError, match="x must be of a floating type: got int32"):
    npu_ops.dropout(tf.ones([2], tf.int32), 0.5)
  same, again = npu_ops.dropout(x, keep_prob=1 - 0), npu_ops.dropout(x, np.float32(1))
  keep = tf.placeholder(tf.float32, [])
  fed = npu_ops.dropout(x, keep)
  for value in evaluate([same, again, fed], {keep: 1.0}):
    np.testing.assert_array_equal(value, np.ones([1000, 1000]))
  with context.eager_mode():
    for call in (
      lambda: npu_ops.dropout(tf.ones([2]), 0.5),
      lambda: npu_ops.dropout(tf.ones([2]), 1.0),
      lambda: npu_aicore_ops.dropout_v3(tf.ones([2]), 0.5),
      npu_ops.initialize_system,
      npu_ops.shutdown_system,
      npu_ops.NPUInit,
      npu_ops.NPUShutdown,
    ):
      with pytest.raises(RuntimeError, match="works in graphs only"):
        call()


def test_wrong_keep_prob_tensors_name_what_is_wrong():
  x = tf.ones([4])
  with pytest.raises(ValueError, match="floating type: got int32"):
    npu_ops.dropout(x, tf.constant(1))
  with pytest.raises(ValueError, match="must be a scalar: got shape"):
    npu_ops.dropout(x, tf.constant([0.5, 0.5]))
  with pytest.raises(ValueError, match="keep_prob must be above 0"):
    npu_ops.dropout(x, tf.constant(0.0))
  keep = tf.placeholder(tf.float32, None)
  y = npu_ops.dropout(x, keep)
  with tf.Session() as session:
    for wrong in (0.0, -1.0, 1.01, float("nan")):
      with pytest.raises(tf.errors.InvalidArgumentError, match="mask.*keep_prob must be above 0 and at most 1, found"):
        session.run(y, {keep: wrong})
    with pytest.raises(tf.errors.InvalidArgumentError, match="keep_prob must be a scalar, found shape"):
      session.run(y, {keep: [0.5]})
    assert session.run(y, {keep: 1.0}).tolist() == [1, 1, 1, 1]


@pytest.mark.parametrize("dtype", FLOATS)
def test_kept_elements_are_divided_and_others_are_zero_in_every_type(dtype):
  x = numbers([33, 70], dtype=dtype)
  y = npu_ops.dropout(x, 0.7, seed=3)
  assert y.dtype == dtype and y.shape == x.shape
  given, found = evaluate([x, y])
  given, found = given.astype(np.float64), found.astype(np.float64)
  kept = found != 0
  assert 0.6 < kept.mean() < 0.8
  near(found, np.where(kept, given / 0.7, 0), dtype, scale=4)


def test_dropped_nan_and_inf_are_zero_and_kept_ones_stay():
  x = tf.constant([np.nan, np.inf, -np.inf] * 200)
  found = evaluate(npu_ops.dropout(x, 0.5, seed=1))
  dropped = found == 0
  assert 200 < dropped.sum() < 400
  assert np.isnan(found[0::3][~dropped[0::3]]).all() and (found[1::3][~dropped[1::3]] == np.inf).all()


def test_a_seed_gives_the_same_masks_in_every_session_and_for_any_number_of_threads():
  x = tf.ones([300, 1001])
  a, b, other = npu_ops.dropout(x, 0.4, seed=5), npu_ops.dropout(x, 0.4, seed=5), npu_ops.dropout(x, 0.4, seed=6)
  runs = []
  for count in (1, 2, 5):
    with tf.Session(config=threads(count)) as session:
      runs.append([session.run([a, b, other]) for _ in range(3)])
  np.testing.assert_array_equal(runs[0], runs[1])
  np.testing.assert_array_equal(runs[0], runs[2])
  first = runs[0]
  np.testing.assert_array_equal(first[0][0], first[0][1])
  for different in (first[0][2], first[1][0]):
    assert np.mean((first[0][0] != 0) == (different != 0)) == pytest.approx(0.52, abs=0.01)  # independent


def test_the_graph_seed_repeats_a_script():
  def run():
    tf.reset_default_graph()
    tf.set_random_seed(11)
    x = tf.ones([64, 64])
    return evaluate([npu_ops.dropout(x, 0.5), npu_ops.dropout(x, 0.5)])

  one, two = run(), run()
  np.testing.assert_array_equal(one, two)
  assert (one[0] != one[1]).any()
  tf.reset_default_graph()
  x = tf.ones([64, 64])
  y = npu_ops.dropout(x, 0.5)
  assert (evaluate(y) != evaluate(y)).any(), "without a seed sessions differ"


def test_the_mask_does_not_depend_on_the_type_of_x():
  masks = [evaluate(npu_ops.dropout(tf.ones([500], dtype), 0.5, seed=9)) != 0 for dtype in FLOATS]
  for mask in masks[1:]:
    np.testing.assert_array_equal(mask, masks[0])


def test_noise_shape_draws_once_for_a_repeated_dimension():
  x = tf.ones([40, 3, 50])
  for noise in (
    [40, 1, 50],
    [None, 1, None],
    tf.constant([40, 1, 50]),
    np.array([40, 1, 50]),
    tf.TensorShape([40, 1, 50]),
    [1, 50],
  ):
    y = npu_ops.dropout(x, 0.5, noise)
    gradient = tf.gradients(y, x)[0]
    value, slope = evaluate([y, gradient])
    np.testing.assert_array_equal(value, slope)
    np.testing.assert_array_equal(value, np.broadcast_to(value[:, :1], value.shape))
    assert abs((value != 0).mean() - 0.5) < (0.3 if isinstance(noise, list) and len(noise) == 2 else 0.1)
  one = evaluate(npu_ops.dropout(x, 0.5, [40, 1, 1]))
  np.testing.assert_array_equal(one, np.broadcast_to(one[:, :1, :1], one.shape))
  assert len(np.unique(evaluate(npu_ops.dropout(x, 0.5, [])))) == 1
  same = evaluate(npu_ops.dropout(x, 0.5, x.shape))
  assert (same[:, 0] != same[:, 1]).any()


def test_wrong_noise_shapes_are_refused():
  x = tf.ones([4, 6])
  with pytest.raises(ValueError, match=r"noise_shape \[4,5\] does not broadcast to shape \[4,6\]"):
    npu_ops.dropout(x, 0.5, [4, 5])
  with pytest.raises(ValueError, match="does not broadcast"):
    npu_ops.dropout(x, 0.5, [1, 4, 6])
  for wrong in (tf.constant([4.5, 1.0]), tf.constant([True, True])):
    with pytest.raises(ValueError, match="npu_ops.dropout: noise_shape must be integers: got"):
      npu_ops.dropout(x, 0.5, wrong)
  noise = tf.placeholder(tf.int32, [None])
  y = npu_ops.dropout(x, 0.5, noise)
  with tf.Session() as session:
    assert session.run(y, {noise: [4, 1]}).shape == (4, 6)
    for wrong in ([4, 5], [2, 4, 6], [3]):
      with pytest.raises(tf.errors.InvalidArgumentError, match="does not broadcast to shape"):
        session.run(y, {noise: wrong})
    with pytest.raises(tf.errors.InvalidArgumentError):
      session.run(y, {noise: [-1, 6]})


def test_dropout_of_unknown_shapes_scalars_and_nothing():
  x = tf.placeholder(tf.float32, None)
  y = npu_ops.dropout(x, 0.5)
  gradient = tf.gradients(y, x)[0]
  assert y.shape.rank is None
  partly = npu_ops.dropout(tf.placeholder(tf.float32, [None, 7]), 0.5)
  assert partly.shape.as_list() == [None, 7]
  with tf.Session() as session:
    for shape in ((), (0,), (3, 0, 2), (1,), (127,), (128,), (129,), (5, 77)):
      value, slope = session.run([y, gradient], {x: np.ones(shape, np.float32)})
      assert value.shape == shape and set(np.unique(value)) <= {0, 2}
      np.testing.assert_array_equal(value, slope)


def test_the_gradient_of_dropout_is_a_mask_again():
  check_gradient(lambda x: npu_ops.dropout(x, tf.constant(1.0, tf.float64)), [5, 9])
  x = tf.ones([100])
  y = npu_ops.dropout(x, 0.5, seed=1)
  first = tf.gradients(y, x, grad_ys=3 * tf.ones([100]) * x)[0]
  second = tf.gradients(first, x)[0]  # through the mask of the gradient
  value, of_first, of_second = evaluate([y, first, second])
  np.testing.assert_array_equal(3 * value, of_first)
  np.testing.assert_array_equal(3 * value, of_second)


def test_dropout_works_in_loops_functions_and_variables():
  step = tf.while_loop(lambda i, x: i < 5, lambda i, x: (i + 1, npu_ops.dropout(x, 0.9, seed=2)), [0, tf.ones([1000])])[1]

  @tf.function
  def half(x):
    return npu_ops.dropout(x, 0.5, seed=4)

  inside = half(tf.ones([1000]))
  variable = tf.Variable(tf.ones([1000]))
  trained = npu_ops.dropout(variable, 0.5, seed=4)
  slope = tf.gradients(trained, variable)[0]
  looped, called, value, of_variable = evaluate([step, inside, trained, slope])
  assert abs((looped != 0).mean() - 0.9**5) < 0.08
  np.testing.assert_array_equal(np.unique(called), [0, 2])
  np.testing.assert_array_equal(value, of_variable)
  data = tf.data.Dataset.from_tensors(np.ones(1000, np.float32)).map(lambda x: npu_ops.dropout(x, 0.5)).repeat(2)
  row = tf.data.make_one_shot_iterator(data).get_next()
  assert abs((evaluate(row) != 0).mean() - 0.5) < 0.1


def test_dropout_v3_and_v4_are_dropout_and_v4_gives_the_mask():
  x = numbers([20, 30], scale=1.0)
  plain, third = npu_ops.dropout(x, 0.6, seed=1), npu_aicore_ops.dropout_v3(x, 0.6, None, 1)
  for dtype in (tf.bool, tf.uint8, tf.float16, tf.float32, tf.bfloat16):
    fourth, mask = npu_aicore_ops.dropout_v4(x, 0.6, seed=1, output_dtype=dtype)
    assert mask.dtype == dtype and mask.shape == x.shape
    a, b, c, bits = evaluate([plain, third, fourth, mask])
    np.testing.assert_array_equal(a, b)
    np.testing.assert_array_equal(a, c)
    np.testing.assert_array_equal(a != 0, bits.astype(np.float32) == 1)
  narrow, mask = npu_aicore_ops.dropout_v4(x, 0.6, [20, 1])
  assert mask.shape.as_list() == [20, 1]
  value, bits = evaluate([narrow, mask])
  np.testing.assert_array_equal(value != 0, np.broadcast_to(bits, value.shape))
  same, mask = npu_aicore_ops.dropout_v4(x, 1.0)
  assert same is x and evaluate(mask).all()


def test_masks_have_one_bit_an_element_and_wrong_masks_are_refused():
  mask = generated.drop_out_gen_mask([3, 43], 1.0)
  assert mask.shape.as_list() == [32]
  value = np.unpackbits(evaluate(mask), bitorder="little")
  assert value[:129].all() and not value[129:].any()
  assert generated.drop_out_gen_mask(tf.placeholder(tf.int64, [2]), 0.5).shape.as_list() == [None]
  with pytest.raises(ValueError, match="one bit for each of 17"):
    generated.drop_out_do_mask(tf.ones([17]), tf.zeros([2], tf.uint8), 0.5)
  bits = tf.placeholder(tf.uint8, None)
  y = generated.drop_out_do_mask(tf.ones([17]), bits, 0.5)
  unpacked = generated.mxrec_drop_out_unpack_mask(bits, [17])
  with tf.Session() as session:
    assert session.run(y, {bits: [255, 0, 1]}).tolist() == [2] * 8 + [0] * 8 + [2]
    for fetch in (y, unpacked):
      with pytest.raises(tf.errors.InvalidArgumentError, match=r"mask must have shape \[at least 3\] for 17 elements, found"):
        session.run(fetch, {bits: [255, 0]})
  with pytest.raises((ValueError, TypeError)):
    generated.drop_out_do_mask(tf.ones([8], tf.int32), tf.zeros([16], tf.uint8), 1)


# --- the system ---


def test_the_system_starts_and_stops_any_number_of_times(sess):
  for _ in range(2):
    for make in (npu_ops.initialize_system, npu_ops.NPUInit, npu_ops.shutdown_system, npu_ops.NPUShutdown):
      op = make()
      assert isinstance(op, tf.Operation) and not op.outputs
      assert sess.run(op) is None
  assert npu_ops.initialize_system(name="up").name == "up"
  assert {npu_ops.initialize_system().type, npu_ops.NPUShutdown().type} == {"NPUInit", "NPUShutdown"}


# --- gelu ---


def tanh_gelu(x):
  return 0.5 * x * (1 + tf.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x * x * x)))


def quadratic_gelu(x):
  t = tf.minimum(tf.abs(x) * np.sqrt(0.5), 1.769) - 1.769
  return x * (0.5 + tf.sign(x) * (0.5 - 0.1444 * t * t))


GELUS = [
  (generated.gelu, tanh_gelu),
  (generated.fast_gelu, lambda x: x * tf.sigmoid(1.702 * x)),
  (npu_aicore_ops.fast_gelu, lambda x: x * tf.sigmoid(1.702 * x)),
  (npu_aicore_ops.fast_gelu_v2, quadratic_gelu),
]


def test_fact_4_gelu():
  x = tf.constant([-1, 0, 0.5, 1, 2], tf.float32)
  y = generated.gelu(x)
  at = tf.constant([-1, 0, 1], tf.float32)
  value, slope = evaluate([y, tf.gradients(generated.gelu(at), at)[0]])
  np.testing.assert_allclose(value, [-0.158808, 0, 0.345714, 0.841192, 1.954598], atol=1e-5)
  np.testing.assert_allclose(slope, [-0.082964, 0.5, 1.082964], atol=1e-4)


def test_fast_gelu_has_the_reference_values():
  np.testing.assert_allclose(evaluate(generated.fast_gelu([1.0, -1.0])), [0.845796, -0.154204], atol=1e-6)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("ours,theirs", GELUS)
def test_activations_are_those_of_a_composition_in_every_type(ours, theirs, dtype):
  x = tf.concat([numbers([3, 333], dtype=dtype), tf.cast([[-30.0, 30.0, 0.0] * 111] * 2, dtype)], 0)
  wide = tf.cast(x, tf.float64)
  y, expected = ours(x), theirs(wide)
  slope, expected_slope = tf.gradients(y, x)[0], tf.gradients(expected, wide)[0]
  assert y.dtype == dtype and y.shape == x.shape and slope.dtype == dtype
  found = evaluate([y, expected, slope, expected_slope])
  near(found[0], found[1], dtype)
  near(found[2], found[3], dtype)


@pytest.mark.parametrize("ours,_", GELUS)
def test_gradients_of_activations_are_their_slopes(ours, _):
  check_gradient(ours, [4, 11])


@pytest.mark.parametrize("ours,theirs", GELUS)
def test_activations_of_nan_inf_nothing_and_unknown_shapes(ours, theirs):
  x = tf.placeholder(tf.float32, None)
  y, expected = ours(x), theirs(x)
  slope = tf.gradients(y, x)[0]
  assert y.shape.rank is None
  with tf.Session() as session:
    found, wanted = session.run([y, expected], {x: [np.nan, np.inf, -np.inf, -1e30, 3e38, -0.0]})
    np.testing.assert_array_equal(found, wanted)
    assert np.isnan(session.run(slope, {x: [np.nan]})).all()
    np.testing.assert_array_equal(session.run(slope, {x: [1e30, -1e30]}), [1, 0])
    for shape in ((), (0,), (2, 0, 3), (1, 1), (5,)):
      given = np.full(shape, 0.5, np.float32)
      found, of_x = session.run([y, slope], {x: given})
      assert found.shape == of_x.shape == shape
      np.testing.assert_allclose(found, session.run(expected, {x: given}), rtol=1e-6)


@pytest.mark.parametrize("ours,_", GELUS)
def test_activations_refuse_numbers_that_are_not_floating(ours, _):
  with pytest.raises((TypeError, ValueError)):
    ours(tf.constant([1, 2], tf.int32))


def test_a_gradient_of_another_shape_is_refused():
  for op in (lambda g, x: generated.gelu_grad(g, x, x), generated.fast_gelu_grad, generated.fast_gelu_v2_grad):
    with pytest.raises(ValueError, match="Dimension 0 in both shapes must be equal"):
      op(tf.ones([3]), tf.ones([4]))
    gradient = tf.placeholder(tf.float32, None)
    result = op(gradient, tf.ones([4]))
    with tf.Session() as session, pytest.raises(tf.errors.InvalidArgumentError, match=r"one shape, found \[3\] and \[4\]"):
      session.run(result, {gradient: np.ones(3)})


@pytest.mark.parametrize("ours,_", GELUS)
def test_activations_do_not_depend_on_threads_and_work_in_loops_and_functions(ours, _):
  x = numbers([400, 333])
  y = ours(x)
  slope = tf.gradients(y, x)[0]
  np.testing.assert_array_equal(*[evaluate([y, slope], config=threads(count)) for count in (1, 4)])
  looped = tf.while_loop(lambda i, v: i < 3, lambda i, v: (i + 1, ours(v)), [0, x])[1]
  through = tf.gradients(looped, x)[0]
  called = tf.function(ours)(x)
  plain = ours(ours(ours(x)))
  found = evaluate([looped, through, called, plain, tf.gradients(plain, x)[0], y])
  np.testing.assert_array_equal(found[0], found[3])
  np.testing.assert_allclose(found[1], found[4], rtol=1e-6)
  np.testing.assert_array_equal(found[2], found[5])


def test_the_generated_module_is_what_star_imports_call_npu_unary_ops():
  assert generated is _loader.ops
  assert callable(generated.gelu) and callable(generated.drop_out_do_mask)


# --- prelu ---


def composed_prelu(x, weight):
  return tf.maximum(x, 0) + weight * tf.minimum(x, 0)


PRELU_SHAPES = [
  ([4, 6], []),
  ([4, 6], [1]),
  ([4, 6], [6]),
  ([4, 5, 6], [5, 6]),
  ([4, 5, 6], [5, 1]),
  ([4, 5, 6], [4, 1, 6]),
  ([3], [3]),
  ([], []),
]


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("shape,weight_shape", PRELU_SHAPES)
def test_prelu_is_that_of_a_composition(shape, weight_shape, dtype):
  x, weight = numbers(shape, 1, dtype), numbers(weight_shape, 2, dtype)
  y, expected = npu_aicore_ops.prelu(x, weight), composed_prelu(tf.cast(x, tf.float64), tf.cast(weight, tf.float64))
  assert y.dtype == dtype and y.shape == shape
  slopes = tf.gradients(y, [x, weight], tf.ones_like(y))
  wanted = [s for s in tf.gradients(expected, [x, weight])]
  found = evaluate([y, expected, *slopes, *wanted])
  near(found[0], found[1], dtype, scale=2)
  for ours, theirs in zip(found[2:4], found[4:]):
    assert ours.dtype == dtype.as_numpy_dtype
    near(ours, theirs, dtype, scale=4)


@pytest.mark.parametrize("shape,weight_shape", PRELU_SHAPES)
def test_gradients_of_prelu_are_its_slopes(shape, weight_shape):
  check_gradient(npu_aicore_ops.prelu, shape, weight_shape)


def test_prelu_of_many_elements_does_not_depend_on_threads():
  x, weights = numbers([300, 7, 31]), [numbers(s, 5) for s in ([], [31], [7, 1], [300, 1, 1])]
  fetches = [t for w in weights for y in [npu_aicore_ops.prelu(x, w)] for t in (y, *tf.gradients(tf.reduce_sum(y * y), [x, w]))]
  wanted = [t for w in weights for y in [composed_prelu(x, w)] for t in (y, *tf.gradients(tf.reduce_sum(y * y), [x, w]))]
  one, four = (evaluate(fetches, config=threads(count)) for count in (1, 4))
  for a, b, theirs in zip(one, four, evaluate(wanted)):
    np.testing.assert_array_equal(a, b)
    np.testing.assert_allclose(a, theirs, rtol=2e-4, atol=1e-3)


def test_prelu_of_unknown_empty_and_wrong_shapes():
  x, weight = tf.placeholder(tf.float32, None), tf.placeholder(tf.float32, None)
  y = npu_aicore_ops.prelu(x, weight)
  slopes = tf.gradients(y, [x, weight])
  with tf.Session() as session:
    value, of_x, of_weight = session.run([y, *slopes], {x: np.zeros([0, 3]), weight: [1, 2, 3]})
    assert value.shape == of_x.shape == (0, 3) and of_weight.tolist() == [0, 0, 0]
    assert np.isnan(session.run(y, {x: [np.nan], weight: [2.0]})).all()
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"weight of shape \[2\] does not broadcast to x of shape \[3\]"):
      session.run(y, {x: np.ones(3), weight: np.ones(2)})
    with pytest.raises(tf.errors.InvalidArgumentError, match="does not broadcast"):
      session.run(y, {x: np.ones(1), weight: np.ones([2, 1])})
  with pytest.raises(ValueError, match=r"weight of shape \[5\] does not broadcast to x of shape \[4,6\]"):
    npu_aicore_ops.prelu(tf.ones([4, 6]), tf.ones([5]))


# --- layer_norm and centralization ---


def composed_norm(x, gamma, beta, axis, epsilon):
  axes = list(range(axis % x.shape.rank, x.shape.rank))
  mean, variance = tf.nn.moments(x, axes, keep_dims=True)
  return (x - mean) / tf.sqrt(variance + epsilon) * gamma + beta, mean, variance


NORM_CASES = [  # shape, begin_norm_axis, begin_params_axis
  ([5, 8], 1, 1),
  ([5, 8], -1, -1),
  ([3, 4, 6], 1, 2),
  ([3, 4, 6], 2, 1),
  ([3, 4, 6], 1, 1),
  ([3, 4, 6], 0, 0),
  ([7], 0, 0),
]


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("shape,norm,params", NORM_CASES)
def test_layer_norm_is_that_of_a_composition(shape, norm, params, dtype):
  x = numbers(shape, 1, dtype)
  gamma, beta = numbers(shape[params:], 2, dtype), numbers(shape[params:], 3, dtype)
  ours = npu_aicore_ops.layer_norm(x, gamma, beta, norm, params, epsilon=1e-3)
  inputs = [tf.cast(t, tf.float64) for t in (x, gamma, beta)]
  theirs = composed_norm(*inputs, norm, float(np.float32(1e-3)))
  assert [t.shape.as_list() for t in ours] == [t.shape.as_list() for t in theirs]
  found, wanted = evaluate([list(ours), list(theirs)])
  for a, b in zip(found, wanted):
    near(a, b, dtype, scale=10)


@pytest.mark.parametrize("shape,norm,params", NORM_CASES)
def test_gradients_of_layer_norm_are_its_slopes(shape, norm, params):
  weights = tf.constant(np.random.default_rng(5).normal(size=shape))

  def mixed(x, gamma, beta):
    y, mean, variance = npu_aicore_ops.layer_norm(x, gamma, beta, norm, params, 1e-2)
    return y * weights + 3 * tf.reduce_sum(mean * mean) + tf.reduce_sum(variance * variance)

  check_gradient(mixed, shape, shape[params:], shape[params:], out=shape, bound=1e-5)


def test_layer_norm_of_long_rows_and_many_rows_does_not_depend_on_threads():
  fetches, wanted = [], []
  for shape, norm in (([3, 50000], 1), ([400, 257], 1), ([40, 60, 20], 0)):
    x = numbers(shape) + 3
    gamma, beta = numbers(shape[norm:], 2), numbers(shape[norm:], 3)
    ours = npu_aicore_ops.layer_norm(x, gamma, beta, norm, norm)[0]
    theirs = composed_norm(x, gamma, beta, norm, 1e-7)[0]
    fetches += [ours, *tf.gradients(tf.reduce_sum(ours**2), [x, gamma, beta])]
    wanted += [theirs, *tf.gradients(tf.reduce_sum(theirs**2), [x, gamma, beta])]
  one, four = (evaluate(fetches, config=threads(count)) for count in (1, 4))
  for a, b, theirs in zip(one, four, evaluate(wanted)):
    np.testing.assert_array_equal(a, b)
    np.testing.assert_allclose(a, theirs, rtol=1e-3, atol=2e-3)


def test_layer_norm_keeps_nan_in_its_row_and_refuses_wrong_shapes():
  x = tf.placeholder(tf.float32, None)
  gamma = tf.placeholder(tf.float32, None)
  y = npu_aicore_ops.layer_norm(x, gamma, gamma, 1, 1)
  slopes = tf.gradients(y[0], [x, gamma])
  with tf.Session() as session:
    value = session.run(y[0], {x: [[np.nan, 1, 2], [1, 2, 3]], gamma: [1, 1, 1]})
    assert np.isnan(value[0]).all() and np.isfinite(value[1]).all()
    found = session.run([*y, *slopes], {x: np.zeros([0, 3]), gamma: [1, 1, 1]})
    assert [a.shape for a in found] == [(0, 3), (0, 1), (0, 1), (0, 3), (3,)]
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"gamma must have shape \[3\], found \[2\]"):
      session.run(y, {x: np.zeros([2, 3]), gamma: [1, 1]})
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"begin_norm_axis is 1 for x of shape \[3\]"):
      session.run(y, {x: np.zeros([3]), gamma: [1, 1]})
  for axes in ((2, 0), (0, 2), (-3, 0)):
    with pytest.raises(ValueError, match="for x of rank 2"):
      npu_aicore_ops.layer_norm(tf.ones([2, 3]), tf.ones([3]), tf.ones([3]), *axes)
  with pytest.raises(ValueError, match="Dimension 0 in both shapes must be equal"):
    npu_aicore_ops.layer_norm(tf.ones([2, 3]), tf.ones([2]), tf.ones([3]), 1, 1)


def test_layer_norm_of_fed_rows_trains_known_parameters():
  """Graph optimizers take one unknown shape for two tensors as a promise that their shapes are equal."""
  x, gamma = tf.placeholder(tf.float32, [None, 6]), numbers([6], 2)
  y = npu_aicore_ops.layer_norm(x, gamma, gamma, 1, 1)[0]
  slopes = tf.gradients(tf.sin(y), [x, gamma])
  expected = composed_norm(x, gamma, gamma, 1, 1e-7)[0]
  wanted = tf.gradients(tf.sin(expected), [x, gamma])
  found, wanted = evaluate([slopes, wanted], {x: np.random.default_rng(1).normal(size=[5, 6])})
  for ours, theirs in zip(found, wanted):
    near(ours, theirs, scale=10)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("axes", [[0], [-1], [1], [0, 2], [0, 1, 2], [], [2, -1]])
def test_centralization_takes_the_mean_away(axes, dtype):
  x = numbers([4, 5, 6], dtype=dtype)
  y = npu_aicore_ops.centralization(x, axes)
  wide = tf.cast(x, tf.float64)
  distinct = sorted({axis % 3 for axis in axes})
  expected = wide - tf.reduce_mean(wide, distinct, keepdims=True) if axes else wide - wide
  found, wanted = evaluate([y, expected])
  near(found, wanted, dtype, scale=2)
  check_gradient(lambda v: npu_aicore_ops.centralization(v, axes), [4, 5, 6])


def test_centralization_of_large_unknown_and_wrong_inputs():
  x = tf.placeholder(tf.float32, None)
  outputs = [npu_aicore_ops.centralization(x, axes) for axes in (0, 1, [0, 1])]
  value = np.random.default_rng(1).normal(size=[700, 333]).astype(np.float32)
  runs = []
  for count in (1, 3):
    with tf.Session(config=threads(count)) as session:
      runs.append(session.run(outputs, {x: value}))
      with pytest.raises(tf.errors.InvalidArgumentError, match=r"axes has 1 for x of shape \[3\]"):
        session.run(outputs[1], {x: np.ones(3)})
      assert session.run(outputs[0], {x: np.ones([0, 2])}).shape == (0, 2)
  for a, b, axes in zip(*runs, (0, 1, (0, 1))):
    np.testing.assert_array_equal(a, b)
    np.testing.assert_allclose(a, value - value.mean(axes, keepdims=True, dtype=np.float64), atol=1e-6)
  with pytest.raises(ValueError, match="axes has 2 for x of rank 2"):
    npu_aicore_ops.centralization(tf.ones([2, 2]), [2])
  for wrong in (None, 0.5, tf.constant(0)):
    with pytest.raises(TypeError, match="centralization: axes must be an int or a list of ints: got"):
      npu_aicore_ops.centralization(tf.ones([2, 2]), wrong)


# --- LARS and Adam ---


def lars(w, g, decay, hyper=0.001, epsilon=1e-5):
  w, g = np.asarray(w, np.float64), np.asarray(g, np.float64)
  wn, gn = np.linalg.norm(w), np.linalg.norm(g)
  return (hyper * wn / (gn + decay * wn + epsilon) if wn > 0 and gn > 0 else 1.0) * (g + decay * w)


@pytest.mark.parametrize("dtype", FLOATS)
def test_lars_scales_each_layer_by_its_own_rate(dtype):
  shapes = [[300, 70], [5], [], [3], [0]]
  weights = [numbers(shape, i, dtype) for i, shape in enumerate(shapes)]
  weights[3] = tf.zeros([3], dtype)
  grads = [numbers(shape, 10 + i, dtype) for i, shape in enumerate(shapes)]
  new = npu_ops.LARS(weights, grads, 0.25, hyperpara=0.5)
  found, w, g = evaluate([new, weights, grads])
  for value, weight, grad in zip(found, w, g):
    near(value, lars(weight, grad, 0.25, 0.5), dtype, scale=3)
  two = npu_ops.LARSV2(weights[0], grads[0], 0.25, tf.constant(0.001, dtype), 0.5)
  clipped = npu_ops.LARSV2(weights[0], grads[0], 0.25, 0.001, 0.5, use_clip=True)
  a, b = evaluate([two, clipped])
  np.testing.assert_array_equal(a, found[0])
  near(b, g[0].astype(np.float64) + 0.25 * w[0].astype(np.float64), dtype, scale=3)


def test_lars_refuses_what_does_not_fit():
  one = tf.ones([2])
  with pytest.raises(ValueError, match="inputs_w has 1 tensors, inputs_g 2"):
    npu_ops.LARS([one], [one, one], 0.1)
  for lists, argument in (((None, [one]), "inputs_w"), (([one], one), "inputs_g")):
    with pytest.raises(TypeError, match=f"LARS: {argument} must be a list of tensors"):
      npu_ops.LARS(*lists, 0.1)
  with pytest.raises(ValueError, match="Dimension 0 in both shapes must be equal"):
    npu_ops.LARSV2(one, tf.ones([3]), 0.1, 0.1)
  with context.eager_mode():
    for call in (lambda: npu_ops.LARS([one], [one], 0.1), lambda: npu_ops.LARSV2(one, one, 0.1, 0.1)):
      with pytest.raises(RuntimeError, match="works in graphs only"):
        call()


@pytest.mark.parametrize("resource", [False, True])
@pytest.mark.parametrize("decay", [None, 0.1])
@pytest.mark.parametrize("dtype", [tf.float32, tf.float64, tf.float16])
def test_the_pieces_of_adam_make_its_step_in_place(resource, decay, dtype):
  shape = [100, 333]
  start = [np.abs(numbers_of(shape, 1)), numbers_of(shape, 2), numbers_of(shape, 3)]
  v, m, w = (tf.get_variable(n, initializer=tf.constant(x, dtype), use_resource=resource) for n, x in zip("vmw", start))
  grad = tf.constant(numbers_of(shape, 4), dtype)
  numbers = [0.01, 0.9, 0.1, 0.999, 0.001] + ([] if decay is None else [decay]) + [1e-3]
  call = npu_ops.adam_apply_one_assign if decay is None else npu_ops.adam_apply_one_with_decay_assign
  step = call(grad, v, m, w, *numbers)
  assert len(step) == 3
  with tf.Session() as session:
    session.run(tf.global_variables_initializer())
    ev, em, ew, g = (np.asarray(x).astype(np.float64) for x in session.run([v, m, w, grad]))
    for _ in range(2):
      returned = session.run(step)
      em, ev = em * 0.9 + g * 0.1, ev * 0.999 + g * g * 0.001
      ew = ew - 0.01 * (em / (np.sqrt(ev) + 1e-3) + (decay or 0) * ew)
      found = session.run([v, m, w])
      for ours, kept, expected in zip(returned, found, (ev, em, ew)):
        np.testing.assert_array_equal(ours, kept)
        near(kept, expected, dtype, scale=4)


def numbers_of(shape, seed):
  return np.random.default_rng(seed).normal(size=shape)


def test_adam_pieces_refuse_other_shapes_and_mixed_variables():
  make = lambda name, shape, resource: tf.get_variable(name, shape, use_resource=resource, initializer=tf.zeros_initializer())
  refs = [make(f"r{i}", [3], False) for i in range(3)]
  resources = [make(f"s{i}", [3], True) for i in range(3)]
  other = make("other", [4], True)
  numbers = [0.1] * 6
  with pytest.raises(ValueError, match="variables of one kind"):
    npu_ops.adam_apply_one_assign(tf.ones([3]), refs[0], resources[1], refs[2], *numbers)
  with pytest.raises(ValueError, match="must be equal"):
    npu_ops.adam_apply_one_assign(tf.ones([4]), *refs, *numbers)
  wrong = npu_ops.adam_apply_one_assign(tf.ones([3]), resources[0], resources[1], other, *numbers)
  twice = npu_ops.adam_apply_one_assign(tf.ones([3]), resources[0], resources[1], resources[1], *numbers)
  right = npu_ops.adam_apply_one_assign(tf.ones([3]), *resources, *numbers)
  with tf.Session() as session:
    with pytest.raises(tf.errors.FailedPreconditionError, match="input1 is a variable that is not initialized"):
      session.run(right)
    session.run(tf.global_variables_initializer())
    with pytest.raises(
      tf.errors.InvalidArgumentError, match=r"input3 must have the gradient's type and shape \[3\], found float \[4\]"
    ):
      session.run(wrong)
    with pytest.raises(tf.errors.InvalidArgumentError, match="must be three variables"):
      session.run(twice)
    assert not session.run(resources[0]).any(), "a refused step changes nothing"


# --- nonzero ---


@pytest.mark.parametrize(
  "dtype", [tf.bool, tf.int8, tf.uint16, tf.int32, tf.int64, tf.float16, tf.bfloat16, tf.float32, tf.float64]
)
@pytest.mark.parametrize("index", [tf.int32, tf.int64])
def test_nonzero_finds_what_is_not_zero(dtype, index):
  dense = np.random.default_rng(1).integers(0, 3, [7, 5, 4])
  x = tf.cast(tf.constant(dense), dtype)
  where = npu_aicore_ops.nonzero(x, output_type=index)
  across = npu_aicore_ops.nonzero(x, transpose=True, output_type=index)
  value, place, count = npu_aicore_ops.nonzerowithvalue(x, output_type=index)
  assert where.dtype == place.dtype == count.dtype == index and value.dtype == dtype
  assert where.shape.as_list() == [None, 3] and across.shape.as_list() == [3, None] and count.shape.as_list() == [1]
  given, found, turned, values, places, number = evaluate([x, where, across, value, place, count])
  expected = np.argwhere(given != 0)
  for got in (found, turned.T, places):
    np.testing.assert_array_equal(got, expected)
  np.testing.assert_array_equal(values, given[given != 0])
  assert number.tolist() == [len(expected)]


def test_nonzero_of_many_few_nan_and_unknown():
  x = tf.placeholder(tf.float32, None)
  where, (value, _, count) = npu_aicore_ops.nonzero(x), npu_aicore_ops.nonzerowithvalue(x)
  slope = tf.gradients(value, x)[0]
  many = (np.random.default_rng(1).random([300, 401]) < 0.3).astype(np.float32)
  with tf.Session(config=threads(4)) as session:
    np.testing.assert_array_equal(session.run(where, {x: many}), np.argwhere(many))
    np.testing.assert_array_equal(session.run(slope, {x: many}), many)
    assert session.run(where, {x: [np.nan, 0.0, -0.0, np.inf]}).tolist() == [[0], [3]]
    assert session.run(where, {x: np.zeros([0, 4])}).shape == (0, 2)
    assert session.run(where, {x: 5.0}).shape == (1, 0)
    assert session.run([where, count], {x: 0.0})[1].tolist() == [0]


# --- names without a meaning here ---


def test_what_is_not_available_says_so_when_called():
  from npu_bridge.image import image_ops
  from npu_bridge.tbe import npu_cube_ops, npu_vector_ops

  for function, name in (
    (npu_aicore_ops.lru_cache_v2, "npu_aicore_ops.lru_cache_v2"),
    (npu_aicore_ops.prod_force_se_a, "npu_aicore_ops.prod_force_se_a"),
    (image_ops.decode_and_resize, "npu_bridge.image.image_ops.decode_and_resize"),
    (npu_vector_ops.lamb_apply_weight_assign, "npu_vector_ops.lamb_apply_weight_assign"),
  ):
    with pytest.raises(NotImplementedError, match=name):
      function(1, 2)
  with pytest.raises(NotImplementedError, match="npu_cube_ops.deformable_conv2d"):
    npu_cube_ops.deformable_conv2d(1, 2, 3, 4, 5)
  with pytest.raises(AttributeError):
    image_ops.__path__  # noqa: B018


@pytest.mark.parametrize(
  ("shape", "norm", "params"), [([3, 0], 1, 1), ([3, 0], 1, 0), ([2, 4, 0], 2, 0), ([0, 4], 1, 0), ([2, 0, 4], 1, 2)]
)
def test_layer_norm_of_nothing_is_nothing(shape, norm, params):
  x = tf.zeros(shape)
  gamma, beta = tf.ones(shape[params:]), tf.zeros(shape[params:])
  y, mean, _ = npu_aicore_ops.layer_norm(x, gamma, beta, norm, params)
  gradients = tf.gradients(y, [x, gamma, beta])
  with tf.Session() as session:
    values, means, slopes = session.run([y, mean, gradients])
  assert values.shape == slopes[0].shape == tuple(shape)
  assert means.shape == (*shape[:norm], *[1] * (len(shape) - norm))
  assert all(not slope.any() for slope in slopes)


@pytest.mark.parametrize(
  "gelu", [npu_unary_ops.npu_unary_ops.gelu, npu_unary_ops.npu_unary_ops.fast_gelu, npu_aicore_ops.fast_gelu_v2]
)
def test_the_slope_of_gelu_at_infinity_is_that_of_its_ends(gelu, sess):
  x = tf.constant([-np.inf, np.inf, np.nan] * 8, tf.float32)
  slopes = sess.run(tf.gradients(gelu(x), x)[0]).reshape(-1, 3)
  np.testing.assert_array_equal(slopes[:, :2], [[0, 1]] * 8)
  assert np.isnan(slopes[:, 2]).all()
