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
