"""Pooled lookups: sparse and ragged ids, combiners, weights, max_norm, padding, against TensorFlow's own on a variable."""

import ctypes

import helpers
import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest
import tensorflow.compat.v1 as tf

import mxrec
from mxrec import _loader
from mxrec import optimizer as optimizer_lib

VOCABULARY = 30
COMBINERS = ("sum", "mean", "sqrtn")


def tolerance():
  """(rtol, atol) of the subject "pooled" in the one tolerance table."""
  rtol, atol, ulp = ctypes.c_double(), ctypes.c_double(), ctypes.c_int64()
  assert _loader.c_library().mxrec_tolerance(b"pooled", ctypes.byref(rtol), ctypes.byref(atol), ctypes.byref(ulp)) == 0
  return {"rtol": rtol.value, "atol": atol.value}


def filled_table(sess, rows, name="t", **arguments):
  emb_table = helpers.table(name, rows.shape[1], **arguments)
  emb_table.insert(np.arange(len(rows)), rows, session=sess)
  return emb_table


def sparse_value(bags, weights=None, rows=None):
  """SparseTensorValues of ids and weights, one row a bag."""
  indices = np.array([(b, i) for b, bag in enumerate(bags) for i in range(len(bag))], np.int64).reshape(-1, 2)
  shape = np.array([len(bags) if rows is None else rows, max([len(bag) for bag in bags], default=0) + 1], np.int64)
  flat = np.array([key for bag in bags for key in bag], np.int64)
  ids = tf.SparseTensorValue(indices, flat, shape)
  if weights is None:
    return ids, None
  return ids, tf.SparseTensorValue(indices, np.array([w for bag in weights for w in bag], np.float32), shape)


# --- against TensorFlow ---

bags_of_ids = st.lists(st.lists(st.integers(0, VOCABULARY - 1), max_size=6), min_size=1, max_size=8)


@pytest.mark.parametrize("kind", ["sparse", "ragged"])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("max_norm", [None, 1.0])
def test_rows_and_gradients_equal_embedding_lookup_sparse_on_a_variable_through_a_step(kind, weighted, max_norm):
  """Also trailing rows without ids, which safe_embedding_lookup_sparse keeps."""
  dim, rate, bound = 3, 0.5, tolerance()
  values = np.random.RandomState(3).normal(size=(VOCABULARY, dim)).astype(np.float32)
  values[7] = 0  # a zero row under max_norm
  worst = 0.0
  with tf.Graph().as_default(), tf.Session() as sess:
    ids, weights = tf.sparse_placeholder(tf.int64, [None, None]), tf.sparse_placeholder(tf.float32, [None, None])
    table_models = []
    for combiner in COMBINERS:
      variable = tf.get_variable(f"v_{combiner}", initializer=values)
      ours_table = filled_table(sess, values, combiner)
      scale = tf.get_variable(f"s_{combiner}", initializer=1.5)  # weights are trained too
      given = tf.SparseTensor(weights.indices, weights.values * scale, weights.dense_shape) if weighted else None
      theirs = tf.nn.safe_embedding_lookup_sparse(variable, ids, given, combiner=combiner, max_norm=max_norm)
      our_ids, our_weights = ids, given
      if kind == "ragged":
        our_ids = tf.RaggedTensor.from_value_rowids(ids.values, ids.indices[:, 0], nrows=ids.dense_shape[0])
        our_weights = our_ids.with_flat_values(given.values) if weighted else None
      ours = mxrec.embedding_lookup(ours_table, our_ids, weights=our_weights, combiner=combiner, max_norm=max_norm)
      of_output = tf.reshape(tf.cast(tf.range(tf.size(theirs)), tf.float32), tf.shape(theirs)) * 0.01 - 0.1
      their_loss, our_loss = tf.reduce_sum(theirs * theirs * of_output), tf.reduce_sum(ours * ours * of_output)
      their_gradient = tf.gradients(their_loss, [variable] + ([scale] if weighted else []))
      our_gradient_of_scale = tf.gradients(our_loss, scale) if weighted else []
      their_step = tf.convert_to_tensor(their_gradient[0])
      rows = mxrec.get_sparse_embedding()[-1]
      [our_rows_gradient] = tf.gradients(our_loss, [rows])
      gradients = optimizer_lib.row_gradients([(our_rows_gradient, rows)])
      assert (gradients[0].shared is not None) == (max_norm is None)  # fused but where the clip lies between
      [update] = optimizer_lib.apply_rows(gradients, optimizer_lib.RowRule("sgd", (rate,)), combiner)
      table_models.append((ours_table, theirs, ours, their_step, update, their_gradient[1:], our_gradient_of_scale))
    sess.run(tf.global_variables_initializer())

    @hypothesis.settings(max_examples=40, deadline=None, derandomize=True)
    @hypothesis.given(bags_of_ids, st.data(), st.integers(0, 3))
    def compare(bags, data, empty_rows):
      nonlocal worst
      given = [[data.draw(st.floats(0.25, 4, width=32)) for _ in bag] for bag in bags]
      ids_value, weights_value = sparse_value(bags, given, len(bags) + empty_rows)
      feed = {ids: ids_value, weights: weights_value}
      for ours_table, theirs, ours, their_step, update, their_scale, our_scale in table_models:
        before = ours_table.lookup_numpy(np.arange(VOCABULARY), sess)
        a, b, step, t, o, _ = sess.run([theirs, ours, their_step, their_scale, our_scale, update], feed)
        assert b.shape == (len(bags) + empty_rows, dim)
        np.testing.assert_allclose(b, a, **bound)
        worst = max(worst, float(np.max(np.abs(b - a), initial=0)))
        after = ours_table.lookup_numpy(np.arange(VOCABULARY), sess)
        np.testing.assert_allclose(after, before - rate * step, **bound)
        # The gradient for the scale of all weights is a sum over all of them, in another order.
        np.testing.assert_allclose(o, t, rtol=1e-4, atol=1e-5)
        ours_table.insert(np.arange(VOCABULARY), values, session=sess)  # as the variable, which does not move

    compare()
  print(f"{kind}, weighted {weighted}, max_norm {max_norm}: worst difference {worst:.3g}")


@pytest.mark.parametrize("combiner", COMBINERS)
def test_any_rank_pools_the_last_dimension_as_safe_embedding_lookup_sparse(combiner, sess):
  values = np.random.RandomState(1).normal(size=(9, 4)).astype(np.float32)
  emb_table = filled_table(sess, values)
  indices = [[0, 0, 0], [0, 0, 2], [0, 2, 1], [1, 1, 0], [1, 1, 1], [1, 1, 2]]
  ids = tf.SparseTensor(indices, tf.constant([1, 2, 3, 4, 5, 4], tf.int64), [3, 3, 3])
  weights = tf.SparseTensor(indices, [0.5, 2.0, 1.0, 3.0, 0.25, 1.0], [3, 3, 3])
  ours = mxrec.embedding_lookup(emb_table, ids, weights=weights, combiner=combiner)
  assert ours.shape.as_list() == [3, 3, 4]
  theirs = tf.nn.safe_embedding_lookup_sparse(tf.constant(values), ids, weights, combiner=combiner)
  a, b = sess.run([ours, theirs])
  np.testing.assert_allclose(a, b, **tolerance())
  unknown_rank = tf.sparse_placeholder(tf.int64)
  fed = mxrec.embedding_lookup(emb_table, unknown_rank, combiner=combiner)
  unweighted = tf.nn.safe_embedding_lookup_sparse(tf.constant(values), ids, None, combiner=combiner)
  a, b = sess.run([fed, unweighted], {unknown_rank: sess.run(ids)})
  np.testing.assert_allclose(a, b, **tolerance())


def test_the_default_combiner_of_sparse_ids_is_mean_and_of_ragged_ids_none(sess):
  emb_table = filled_table(sess, np.array([[1.0], [2.0], [6.0]], np.float32))
  ids, _ = sparse_value([[0, 2], [], [1]])
  np.testing.assert_array_equal(sess.run(mxrec.embedding_lookup(emb_table, ids)), [[3.5], [0], [2]])
  rows = sess.run(mxrec.embedding_lookup(emb_table, tf.ragged.constant([[0, 2], [], [1]], dtype=tf.int64)))
  assert rows.to_list() == [[[1.0], [6.0]], [], [[2.0]]]


@pytest.mark.parametrize("splits", [tf.int32, tf.int64])
def test_ragged_ids_of_two_ragged_dimensions_keep_the_outer_one(splits, sess):
  emb_table = filled_table(sess, np.array([[1.0], [2.0], [6.0]], np.float32))
  ids = tf.ragged.constant([[[0, 1], []], [], [[2], [2, 2]]], dtype=tf.int32, row_splits_dtype=splits)
  weights = tf.ragged.constant([[[1.0, 10.0], []], [], [[1.0], [1.0, 0.5]]], row_splits_dtype=splits)
  pooled = mxrec.embedding_lookup(emb_table, ids, combiner="sum", weights=weights)
  assert pooled.ragged_rank == 1 and pooled.shape.as_list() == [3, None, 1]
  assert sess.run(pooled).to_list() == [[[21.0], [0.0]], [], [[6.0], [9.0]]]
  rows = mxrec.embedding_lookup(emb_table, ids)
  assert rows.ragged_rank == 2
  assert sess.run(rows).to_list() == [[[[1.0], [2.0]], []], [], [[[6.0]], [[6.0], [6.0]]]]


def test_ids_may_be_fed_values_and_weights_dense(sess):
  emb_table = filled_table(sess, np.array([[1.0], [2.0], [6.0]], np.float32))
  ids, _ = sparse_value([[0, 2], [1]])
  np.testing.assert_array_equal(sess.run(mxrec.embedding_lookup(emb_table, ids, combiner="sum", weights=[1, 2, 3])), [[13], [6]])
  ragged = tf.ragged.constant_value([[0, 2], [1]], dtype=np.int64)
  half = tf.constant([1.0, 2.0, 3.0], tf.float16)
  np.testing.assert_array_equal(sess.run(mxrec.embedding_lookup(emb_table, ragged, combiner="sum", weights=half)), [[13], [6]])


# --- empty, zero, cancelling, NaN ---


@pytest.mark.parametrize("combiner", COMBINERS)
@pytest.mark.parametrize("kind", ["sparse", "ragged"])
def test_d_01_d_13_trailing_empty_rows_and_batches_without_ids_train_and_stay_zero(kind, combiner, sess):
  emb_table = helpers.table(dimension=2)
  ids = tf.sparse_placeholder(tf.int64, [None, None])
  given = ids if kind == "sparse" else tf.RaggedTensor.from_value_rowids(ids.values, ids.indices[:, 0], nrows=ids.dense_shape[0])
  output = mxrec.embedding_lookup(emb_table, given, combiner=combiner)
  train = mxrec.minimize(tf.reduce_sum(output), tf.train.AdagradOptimizer(0.1))
  for bags in ([[1], [], [2, 3], [], []], [[], [], []], [], [[4]]):
    value, _ = sess.run([output, train], {ids: sparse_value(bags)[0]})
    assert value.shape == (len(bags), 2) and np.isfinite(value).all()
    for row, bag in zip(value, bags):
      assert bag or not row.any()
  assert emb_table.size(sess) == 4


@pytest.mark.parametrize("combiner", COMBINERS)
@pytest.mark.parametrize("weights", [[0.0, 0.0], [1.0, -1.0], [-2.0, -1.0], [0.0, 3.0]])
def test_d_02_zero_cancelling_and_negative_weights_are_defined_and_finite_with_their_gradients(weights, combiner, sess):
  values = np.array([[1.0, 2.0], [3.0, -4.0]], np.float32)
  emb_table = filled_table(sess, values)
  given = tf.constant(weights)
  ids = tf.SparseTensor([[0, 0], [0, 1]], tf.constant([0, 1], tf.int64), [1, 2])
  output = mxrec.embedding_lookup(emb_table, ids, weights=given, combiner=combiner)
  rows = mxrec.get_sparse_embedding()[0]
  loss = tf.reduce_sum(output * output) + tf.reduce_sum(output)
  of_rows, of_weights = tf.gradients(loss, [rows, given])
  train = mxrec.minimize(loss, tf.train.GradientDescentOptimizer(0.1))
  got, a, b, _ = sess.run([output, of_rows, of_weights, train])
  assert np.isfinite(got).all() and np.isfinite(a).all() and np.isfinite(b).all()
  assert all(np.isfinite(row).all() for row in helpers.contents(emb_table, sess).values())
  sparse_weights = tf.SparseTensor(ids.indices, given, ids.dense_shape)
  theirs = tf.nn.embedding_lookup_sparse(tf.constant(values), ids, sparse_weights, combiner=combiner)
  np.testing.assert_allclose(got, sess.run(theirs), **tolerance())
  divisor = {"sum": 1.0, "mean": sum(weights), "sqrtn": sum(w * w for w in weights)}[combiner]
  if divisor == 0:
    assert not got.any() and not a.any() and not b.any()


def test_a_nan_weight_reaches_its_own_row_and_ids_only(sess):
  emb_table = filled_table(sess, np.ones([4, 2], np.float32))
  ids, weights = sparse_value([[0, 1], [2, 3]], [[np.nan, 1], [1, 1]])
  output = mxrec.embedding_lookup(emb_table, ids, weights=weights)
  train = mxrec.minimize(tf.reduce_sum(output), tf.train.GradientDescentOptimizer(0.1))
  got, _ = sess.run([output, train])
  assert np.isnan(got[0]).all() and np.isfinite(got[1]).all()
  rows = helpers.contents(emb_table, sess)
  assert np.isnan(rows[0]).all() and np.isnan(rows[1]).all()
  np.testing.assert_allclose(rows[2], [0.95, 0.95], rtol=1e-6)


def test_max_norm_holds_for_dense_and_ragged_rows_and_lets_gradients_through(sess):
  values = np.array([[3.0, 4.0], [0.0, 0.0], [0.3, 0.4]], np.float32)
  emb_table = filled_table(sess, values)
  ids = tf.constant([[0, 1], [2, 0]], tf.int64)
  ours = mxrec.embedding_lookup(emb_table, ids, max_norm=1.0)
  variable = tf.constant(values)
  theirs = tf.nn.embedding_lookup(variable, ids, max_norm=1.0)
  factor = tf.constant([[[1.0, 2.0], [3.0, 4.0]], [[5.0, 6.0], [7.0, 8.0]]])
  expected = tf.convert_to_tensor(tf.gradients(tf.reduce_sum(theirs * factor), variable)[0])
  train = mxrec.minimize(tf.reduce_sum(ours * factor), tf.train.GradientDescentOptimizer(1.0))
  a, b, step, _ = sess.run([ours, theirs, expected, train])
  np.testing.assert_allclose(a, b, **tolerance())
  np.testing.assert_allclose(values - emb_table.lookup_numpy([0, 1, 2], sess), step, **tolerance())
  ragged = mxrec.embedding_lookup(emb_table, tf.ragged.constant([[0], [2]], dtype=tf.int64), max_norm=0.5)
  np.testing.assert_allclose(np.linalg.norm(sess.run(ragged.flat_values), axis=1), [0.5, 0.5], atol=1e-3)


# --- the update ---


def sparse_step_model(fused):
  """A pooled model whose row gradient goes to the update as it is, or (fused=False) through an op that hides where it is from."""
  emb_table = helpers.table(dimension=5, initializer=tf.random_normal_initializer(seed=1))
  ids, weights = tf.sparse_placeholder(tf.int64, [None, None]), tf.sparse_placeholder(tf.float32, [None, None])
  output = mxrec.embedding_lookup(emb_table, ids, weights=weights, combiner="sqrtn")
  rows = mxrec.get_sparse_embedding()[-1]
  [gradient] = tf.gradients(tf.reduce_sum(output * output), [rows])
  if not fused:
    gradient = tf.reshape(gradient, tf.shape(gradient))
  found = optimizer_lib.row_gradients([(gradient, rows)])
  assert (found[0].shared is not None) == fused
  return emb_table, ids, weights, optimizer_lib.apply_rows(found, optimizer_lib.RowRule("adagrad", (0.1,)), "step")


def test_the_fused_update_equals_the_unfused_one_to_the_bit_for_any_number_of_threads():
  rng = np.random.RandomState(5)
  batches = []
  for size in (3, 2000):
    bags = [rng.randint(0, 500, rng.randint(0, 9)).tolist() for _ in range(size)]
    batches.append(sparse_value(bags, [rng.normal(size=len(bag)).tolist() for bag in bags]))
  contents = set()
  for fused in (True, False):
    for threads in (1, 4):
      with tf.Graph().as_default():
        emb_table, ids, weights, update = sparse_step_model(fused)
        config = tf.ConfigProto(intra_op_parallelism_threads=threads, use_per_session_threads=True)
        with tf.Session(config=config) as session:
          for ids_value, weights_value in batches * 2:
            session.run(update, {ids: ids_value, weights: weights_value})
          keys, rows = emb_table.export(session)
          contents.add((keys.tobytes(), rows.tobytes()))
  assert len(contents) == 1


@pytest.mark.parametrize("kind", sorted(helpers.optimizers()))
def test_every_optimizer_trains_a_pooled_sum_as_the_sum_of_a_dense_lookup_to_the_bit(kind):
  ids = np.random.RandomState(6).randint(0, 40, [3, 60, 5])
  contents = []
  for pooled in (True, False):
    with tf.Graph().as_default():
      emb_table = helpers.table(dimension=3, initializer=tf.random_normal_initializer(seed=2))
      fed = tf.placeholder(tf.int64, [60, 5])
      if pooled:
        output = mxrec.embedding_lookup(emb_table, tf.RaggedTensor.from_tensor(fed), combiner="sum")
      else:
        output = tf.reduce_sum(mxrec.embedding_lookup(emb_table, fed), axis=1)
      factor = tf.constant(np.random.RandomState(7).normal(size=[60, 3]).astype(np.float32))
      train = mxrec.minimize(tf.reduce_sum(output * factor), helpers.optimizers()[kind])
      with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        for batch in ids:
          session.run(train, {fed: batch})
        keys, rows = emb_table.export(session)
        contents.append((keys.tobytes(), rows.tobytes()))
  assert contents[0] == contents[1]


@pytest.mark.parametrize("weighted", [False, True])
def test_the_fused_update_runs_no_op_that_makes_a_gradient_of_all_rows(weighted, sess):
  emb_table = helpers.table()
  ids, _ = sparse_value([[1, 2], [2]])
  # Trained weights: TensorFlow's optimizer then gates the gradients of pooling.
  weights = tf.get_variable("weights", initializer=[1.0, 2.0, 3.0]) if weighted else None
  output = mxrec.embedding_lookup(emb_table, ids, weights=weights)
  train = mxrec.minimize(tf.reduce_sum(output * output), tf.train.AdagradOptimizer(0.1))
  sess.run(tf.global_variables_initializer())
  options, metadata = tf.RunOptions(trace_level=tf.RunOptions.FULL_TRACE), tf.RunMetadata()
  sess.run(train, options=options, run_metadata=metadata)
  ran = {node.node_name for device in metadata.step_stats.dev_stats for node in device.node_stats}
  by_type = {op.type for op in tf.get_default_graph().get_operations() if op.name in ran}
  assert {"MxrecApply", "MxrecPool"} <= by_type and ("MxrecPoolWeightGradient" in by_type) == weighted
  assert not by_type & {"MxrecPoolGradient", "MxrecExpand", "UnsortedSegmentSum"}


def test_pooled_and_dense_lookups_of_one_table_are_summed_in_one_update(sess):
  emb_table = filled_table(sess, np.zeros([4, 1], np.float32))
  pooled = mxrec.embedding_lookup(emb_table, sparse_value([[0, 1], [1, 1]])[0], combiner="sum")
  plain = mxrec.embedding_lookup(emb_table, tf.constant([1, 2], tf.int64))
  mean = mxrec.embedding_lookup(emb_table, tf.ragged.constant([[1, 3], []], dtype=tf.int64), combiner="mean")
  loss = tf.reduce_sum(pooled * [[1.0], [10.0]]) + tf.reduce_sum(plain) * 100 + tf.reduce_sum(mean) * 1000
  sess.run(mxrec.minimize(loss, tf.train.GradientDescentOptimizer(1.0)))
  np.testing.assert_array_equal(emb_table.lookup_numpy([0, 1, 2, 3], sess)[:, 0], [-1, -621, -100, -500])


def test_a_clip_by_the_global_norm_counts_the_summed_gradient_of_pooled_rows(sess):
  emb_table = filled_table(sess, np.zeros([3, 1], np.float32))
  pooled = mxrec.embedding_lookup(emb_table, sparse_value([[0, 1, 1]])[0], combiner="sum", padding_id=[2])
  train = mxrec.minimize(tf.reduce_sum(pooled) * 3.0, tf.train.GradientDescentOptimizer(1.0), clip_norm=1.0)
  sess.run(train)
  np.testing.assert_allclose(emb_table.lookup_numpy([0, 1], sess)[:, 0], -np.array([3, 6]) / np.sqrt(45), rtol=1e-6)


def test_second_derivatives_are_refused_instead_of_wrong():
  output = mxrec.embedding_lookup(helpers.table(), sparse_value([[1]])[0])
  rows = mxrec.get_sparse_embedding()[0]
  [first] = tf.gradients(tf.reduce_sum(output * output), [rows])
  with pytest.raises(LookupError, match="MxrecPoolGradient"):
    tf.gradients(tf.reduce_sum(first), [rows])


# --- training=False, padding ---


def test_a_pooled_lookup_without_training_trains_its_weights_but_no_rows(sess):
  emb_table = filled_table(sess, np.array([[1.0], [2.0]], np.float32))
  given = tf.constant([1.0, 3.0])
  ids, _ = sparse_value([[0, 1, 9]])
  output = mxrec.embedding_lookup(emb_table, ids, weights=tf.concat([given, [1.0]], 0), combiner="sum", training=False, default=5.0)
  rows = mxrec.get_sparse_embedding()[0]
  assert tf.gradients(output, [rows]) == [None]
  value, of_weights = sess.run([output, tf.gradients(output, [given])[0]])
  np.testing.assert_array_equal(value, [[12]])
  np.testing.assert_array_equal(of_weights, [1, 2])
  assert emb_table.size(sess) == 2


@pytest.mark.parametrize("kind", ["dense", "sparse", "ragged"])
@pytest.mark.parametrize("padding", [0, [0, -1]])
def test_a_padding_id_is_looked_up_but_never_trained_inserted_or_counted(kind, padding, sess):
  emb_table = helpers.table(dimension=2, min_used_times=0)
  ids = {
    "dense": tf.constant([[0, 5, 6], [0, 0, 5]], tf.int64),
    "sparse": sparse_value([[0, 5, 6], [0, 0, 5]])[0],
    "ragged": tf.ragged.constant([[0, 5, 6], [0, 0, 5]], dtype=tf.int64),
  }[kind]
  pooling = {} if kind == "dense" else {"combiner": "sum"}
  output = mxrec.embedding_lookup(emb_table, ids, padding_id=padding, default=100.0, **pooling)
  train = mxrec.minimize(tf.reduce_sum(output), tf.train.GradientDescentOptimizer(1.0))
  first = emb_table.lookup_numpy([5, 6], sess)
  value = sess.run([output, train])[0]
  if kind == "dense":
    np.testing.assert_array_equal(value[:, 0], [[100, 100]] * 2)
  else:
    np.testing.assert_allclose(value[1], 200 + first[0], rtol=1e-6)
  assert sorted(helpers.contents(emb_table, sess)) == [5, 6]
  np.testing.assert_array_equal(emb_table.lookup_numpy([5, 6], sess), first - np.array([[2], [1]], np.float32))
  # Once it has a row (another lookup, insert), that row is read and stays.
  emb_table.insert([0], [[1.0, 2.0]], session=sess)
  sess.run(train)
  np.testing.assert_array_equal(emb_table.lookup_numpy([0], sess), [[1.0, 2.0]])


def test_ids_below_the_admission_threshold_count_with_the_default_row_and_train_nothing(sess):
  emb_table = helpers.table(dimension=1, min_used_times=2, initializer=tf.constant_initializer(1.0))
  output = mxrec.embedding_lookup(emb_table, sparse_value([[7, 7, 8], [8, 9]])[0], combiner="sum", default=10.0)
  train = mxrec.minimize(tf.reduce_sum(output), tf.train.GradientDescentOptimizer(0.25))
  np.testing.assert_array_equal(sess.run([output, train])[0], [[3], [11]])  # 7 and 8 occur twice, 9 once
  assert {key: row[0] for key, row in helpers.contents(emb_table, sess).items()} == {7: 0.5, 8: 0.5}
  np.testing.assert_array_equal(sess.run([output, train])[0], [[1.5], [1.5]])  # 9 for the second time


@pytest.mark.parametrize("dtype", [tf.int32, tf.int64, tf.uint64])
def test_sparse_and_ragged_ids_of_every_type_meet_in_the_same_rows(dtype, sess):
  emb_table = filled_table(sess, np.array([[1.0], [2.0], [6.0]], np.float32))
  values = tf.constant([0, 2, 1], dtype)
  for ids in (tf.SparseTensor([[0, 0], [0, 1], [1, 0]], values, [2, 2]), tf.RaggedTensor.from_row_lengths(values, [2, 1])):
    np.testing.assert_array_equal(sess.run(mxrec.embedding_lookup(emb_table, ids, combiner="sum")), [[7], [2]])


def test_pooled_evaluation_works_in_a_dataset_map_a_loop_and_a_branch(sess):
  emb_table = filled_table(sess, np.array([[1.0], [2.0], [4.0]], np.float32))

  def pooled(i):
    ids = tf.SparseTensor([[0, 0], [1, 0], [1, 1]], tf.stack([i, i, i]), [3, 2])
    return mxrec.embedding_lookup(emb_table, ids, combiner="sum", training=False)[:, 0]

  dataset = tf.data.Dataset.range(3).map(tf.autograph.experimental.do_not_convert(pooled))
  iterator = tf.data.make_initializable_iterator(dataset)
  row = iterator.get_next()
  sess.run(iterator.initializer)
  assert [sess.run(row).tolist() for _ in range(3)] == [[1, 2, 0], [2, 4, 0], [4, 8, 0]]
  start = [tf.constant(0, tf.int64), tf.zeros([3])]
  total = tf.while_loop(lambda i, total: i < 3, lambda i, total: (i + 1, total + pooled(i)), start)[1]
  assert sess.run(total).tolist() == [7, 14, 0]
  which = tf.placeholder(tf.bool, [])
  branch = tf.cond(which, lambda: pooled(tf.constant(1, tf.int64)), lambda: tf.zeros([3]))
  assert [sess.run(branch, {which: value}).tolist() for value in (True, False)] == [[2, 4, 0], [0, 0, 0]]


def test_a_pooled_lookup_keeps_training_after_save_load_and_import(sess, tmp_path):
  """The ops of an imported graph are whole: pooling, its gradient, the update."""
  emb_table = filled_table(sess, np.array([[1.0], [2.0]], np.float32))
  output = mxrec.embedding_lookup(emb_table, sparse_value([[0, 1], [1]])[0], combiner="mean", padding_id=0)
  tf.identity(output, name="output")
  train = mxrec.minimize(tf.reduce_sum(output), tf.train.GradientDescentOptimizer(1.0))
  saver = tf.train.Saver()
  prefix = saver.save(sess, str(tmp_path / "model"))
  sess.run(train)
  expected = sess.run("output:0")
  name = train.name
  with tf.Graph().as_default(), tf.Session() as session:
    tf.train.import_meta_graph(prefix + ".meta").restore(session, prefix)
    session.run(name)
    np.testing.assert_array_equal(session.run("output:0"), expected)


# --- refusals ---


def test_arguments_that_do_not_fit_are_value_errors_that_name_table_and_argument():
  emb_table = helpers.table("clicks")
  dense = tf.constant([1, 2], tf.int64)
  ids, weights = (tf.SparseTensor.from_value(value) for value in sparse_value([[1, 2], [3]], [[1, 2], [3]]))
  ragged = tf.ragged.constant([[1, 2], [3]], dtype=tf.int64)
  ragged_weights = tf.ragged.constant([[1.0, 2.0], [3.0]])
  cases = [
    (dense, {"combiner": "sum"}, "combiner"),
    (dense, {"weights": tf.ones([2])}, "weights"),
    (ids, {"combiner": "max"}, "combiner"),
    (ids, {"combiner": 3}, "combiner"),
    (ids, {"weights": ragged_weights}, "weights"),
    (ids, {"weights": tf.ones([4])}, "weights"),
    (ids, {"weights": tf.ones([3, 1])}, "weights"),
    (ids, {"weights": tf.constant([1, 2, 3])}, "weights"),
    (ids, {"weights": "heavy"}, "weights"),
    (ids, {"weights": tf.SparseTensor([[0, 0]], [1.0], [2, 3])}, "weights"),
    (ids, {"weights": tf.SparseTensor(weights.indices, tf.constant([1, 2, 3]), weights.dense_shape)}, "weights"),
    (ragged, {"weights": ragged_weights}, "weights"),
    (ragged, {"weights": weights, "combiner": "sum"}, "weights"),
    (ragged, {"weights": tf.ragged.constant([[1.0], [2.0, 3.0]]), "combiner": "sum"}, "weights"),
    (ragged, {"weights": tf.ragged.constant([[[1.0], [2.0]], [[3.0]]]), "combiner": "sum"}, "weights"),
    (tf.ragged.constant([[[1, 2]], [[3, 4]]], ragged_rank=1, dtype=tf.int64), {"combiner": "sum"}, "ids"),
    (tf.SparseTensor([[0]], tf.constant([1], tf.int64), [3]), {}, "ids"),
    (tf.SparseTensor([[0, 0]], tf.constant([1.0]), [1, 1]), {}, "ids"),
    (tf.ragged.constant([["a"]]), {}, "ids"),
    (dense, {"max_norm": 0}, "max_norm"),
    (ids, {"max_norm": -1.0}, "max_norm"),
    (ids, {"max_norm": float("nan")}, "max_norm"),
    (ids, {"max_norm": float("inf")}, "max_norm"),
    (ids, {"max_norm": True}, "max_norm"),
    (ids, {"max_norm": "1"}, "max_norm"),
    (dense, {"padding_id": 1.5}, "padding_id"),
    (dense, {"padding_id": []}, "padding_id"),
    (dense, {"padding_id": [[1]]}, "padding_id"),
    (dense, {"padding_id": True}, "padding_id"),
    (dense, {"padding_id": list(range(65))}, "padding_id"),
  ]
  for given, arguments, argument in cases:
    with pytest.raises(ValueError, match=f"(?s){argument}.*'clicks'"):
      mxrec.embedding_lookup(emb_table, given, **arguments)
  assert mxrec.get_sparse_embedding() == []


def test_rows_out_of_order_are_refused_with_the_remedy_and_reorder_is_one(sess):
  emb_table = filled_table(sess, np.array([[1.0], [2.0]], np.float32))
  ids = tf.SparseTensor([[1, 0], [0, 0]], tf.constant([0, 1], tf.int64), [2, 1])
  with pytest.raises(tf.errors.InvalidArgumentError, match="entry 1 is of row 0 after row 1; tf.sparse.reorder"):
    sess.run(mxrec.embedding_lookup(emb_table, ids))
  np.testing.assert_array_equal(sess.run(mxrec.embedding_lookup(emb_table, tf.sparse.reorder(ids))), [[2], [1]])


@pytest.mark.parametrize(
  "indices,shape,expected",
  [
    ([[0, 0], [3, 0]], [3, 2], "entry 1 lies outside"),
    ([[0, 0], [1, 2]], [3, 2], "entry 1 lies outside"),
    ([[0, 0], [1, -1]], [3, 2], "entry 1 lies outside"),
    ([[-1, 0], [1, 0]], [3, 2], "entry 0 lies outside"),
    ([[0, 0], [1, 0]], [-3, 2], r"dense_shape\[0\] is -3"),
    ([[0, 0], [1, 0]], [2**31, 2], "at most 2147483646 rows"),
    ([[0, 0], [1, 0]], [2**62, 2], "at most 2147483646 rows"),
    ([[0], [1]], [2], "rank >= 2"),
  ],
)
def test_indices_that_are_no_sparse_tensor_are_refused(indices, shape, expected, sess):
  at, of = tf.placeholder(tf.int64), tf.placeholder(tf.int64)
  offsets = _loader.ops.mxrec_sparse_offsets(at, of, at)
  with pytest.raises(tf.errors.InvalidArgumentError, match=expected):
    sess.run(offsets, {at: np.array(indices), of: np.array(shape)})


def test_weights_with_other_indices_or_splits_are_refused_by_the_step(sess):
  emb_table = helpers.table("clicks")
  ids, weights = tf.sparse_placeholder(tf.int64, [None, None]), tf.sparse_placeholder(tf.float32, [None, None])
  output = mxrec.embedding_lookup(emb_table, ids, weights=weights)
  ids_value, weights_value = sparse_value([[1, 2], [3]], [[1, 2], [3]])
  assert sess.run(output, {ids: ids_value, weights: weights_value}).shape == (2, 4)
  for other in (sparse_value([[1], [2, 3]], [[1], [2, 3]])[1], sparse_value([[1, 2]], [[1, 2]])[1]):
    with pytest.raises(tf.errors.InvalidArgumentError, match="weights must have the indices of the ids"):
      sess.run(output, {ids: ids_value, weights: other})
  dense = tf.placeholder(tf.float32, [None])
  aligned = mxrec.embedding_lookup(emb_table, ids, weights=dense)
  with pytest.raises(tf.errors.InvalidArgumentError, match=r"weights must have shape \[0\] or \[3\], found \[2\]"):
    sess.run(aligned, {ids: ids_value, dense: [1, 2]})
  ragged_ids, ragged_weights = tf.ragged.placeholder(tf.int64, 1), tf.ragged.placeholder(tf.float32, 1)
  ragged = mxrec.embedding_lookup(emb_table, ragged_ids, weights=ragged_weights, combiner="sum")
  feed = {ragged_ids: tf.ragged.constant_value([[1, 2], [3]], dtype=np.int64)}
  assert sess.run(ragged, {**feed, ragged_weights: tf.ragged.constant_value([[1, 2], [3]], dtype=np.float32)}).shape == (2, 4)
  with pytest.raises(tf.errors.InvalidArgumentError, match="must have the row splits of the ids"):
    sess.run(ragged, {**feed, ragged_weights: tf.ragged.constant_value([[1], [2, 3]], dtype=np.float32)})


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
@pytest.mark.parametrize(
  "offsets,at", [([0, 2, 1, 3], 2), ([0, -1, 3], 1), ([0, 4, 3], 1), ([1, 3], 0), ([0, 2], 1), ([0], 0), ([-(2**31), 3], 0)]
)
def test_malformed_offsets_are_refused_never_read_past(offsets, at, dtype, sess):
  fed, of_output = tf.placeholder(dtype, [None]), tf.placeholder(tf.float32)
  rows, inverse = tf.ones([2, 4]), tf.constant([0, 1, 1])
  none, ops = tf.zeros([0]), _loader.ops
  tensors = [
    ops.mxrec_pool(rows, inverse, fed, none, combiner="mean"),
    ops.mxrec_pool_gradient(of_output, rows, inverse, fed, none, combiner="mean"),
    ops.mxrec_pool_weight_gradient(of_output, of_output, rows, inverse, fed, none, combiner="mean"),
    ops.mxrec_pool_shares(inverse, fed, none, combiner="mean").bags,
  ]
  feed = {fed: np.array(offsets, dtype), of_output: np.ones([len(offsets) - 1, 4])}
  for tensor in tensors:
    with pytest.raises(tf.errors.InvalidArgumentError, match=rf"offsets must begin with 0.*offsets\[{at}\] is {offsets[at]}"):
      sess.run(tensor, feed)


def test_an_inverse_out_of_range_is_refused_by_every_op_over_bags(sess):
  inverse, grads, ops = tf.placeholder(tf.int32), tf.ones([1, 4]), _loader.ops
  rows, offsets, none = tf.ones([2, 4]), tf.constant([0, 3]), tf.zeros([0])
  tensors = [
    ops.mxrec_pool(rows, inverse, offsets, none, combiner="sum"),
    ops.mxrec_pool_gradient(grads, rows, inverse, offsets, none, combiner="sum"),
    ops.mxrec_pool_weight_gradient(grads, grads, rows, inverse, offsets, none, combiner="sum"),
  ]
  for tensor in tensors:
    for bad in (2, -1, 2**31 - 1, -(2**31)):
      with pytest.raises(tf.errors.InvalidArgumentError, match=rf"inverse\[1\] is {bad}, expected 0 <= inverse < 2"):
        sess.run(tensor, {inverse: [0, bad, 1]})


def test_static_shapes_are_kept_where_known_and_checked():
  emb_table = helpers.table()
  ids, _ = sparse_value([[1, 2], [3], []])
  assert mxrec.embedding_lookup(emb_table, ids).shape.as_list() == [3, 4]
  assert mxrec.embedding_lookup(emb_table, tf.sparse_placeholder(tf.int64, [7, None])).shape.as_list() == [7, 4]
  assert mxrec.embedding_lookup(emb_table, tf.sparse_placeholder(tf.int64, [2, 3, None])).shape.as_list() == [2, 3, 4]
  ragged = tf.ragged.constant([[1], []], dtype=tf.int64)
  assert mxrec.embedding_lookup(emb_table, ragged, combiner="sum").shape.as_list() == [2, 4]
  ops = _loader.ops
  with pytest.raises(ValueError, match="weights has 2 values"):
    ops.mxrec_pool(tf.ones([2, 4]), tf.constant([0, 1, 1]), tf.constant([0, 3]), tf.ones([2]), combiner="sum")
  with pytest.raises(ValueError, match="max_norm must be above 0"):
    ops.mxrec_clip_rows(tf.ones([2, 4]), max_norm=0.0)
