"""Lookups: shapes, id types, every id an ordinary id, and that a lookup never changes a table."""

import helpers
import numpy as np
import pytest
import tensorflow.compat.v1 as tf

import mxrec

INT64 = np.iinfo(np.int64)


def test_fact_10_g_05_shapes_and_equal_ids_give_equal_rows(sess):
  emb_table = mxrec.get_embedding_table(
    name="user_table", dimension=8, device_vocabulary_size=10000, key_dtype=tf.int64, value_dtype=tf.float32
  )
  output = mxrec.embedding_lookup(emb_table, tf.constant([[1, 2, 3, 4], [5, 6, 7, 8]], tf.int64))
  assert output.shape.as_list() == [2, 4, 8] and output.dtype == tf.float32
  ids = tf.placeholder(tf.int64, None)
  any_shape = mxrec.embedding_lookup(emb_table, ids)
  for shape in ((), (1,), (6,), (2, 3), (2, 1, 3), (1, 2, 3, 1)):
    value = sess.run(any_shape, {ids: np.full(shape, 5)})
    assert value.shape == shape + (8,)
    assert (value == value.reshape(-1, 8)[0]).all()
  assert sess.run(output).shape == (2, 4, 8)


def test_static_shapes_are_kept_where_known():
  emb_table = helpers.table()
  assert mxrec.embedding_lookup(emb_table, tf.placeholder(tf.int64, [None, 3])).shape.as_list() == [None, 3, 4]
  assert mxrec.embedding_lookup(emb_table, tf.placeholder(tf.int64, None)).shape.rank is None
  assert mxrec.get_sparse_embedding()[0].shape.as_list() == [None, 4]


@pytest.mark.parametrize("shape", [(0,), (0, 3), (2, 0, 3)])
def test_fact_10_d_13_no_ids_at_all_forward_and_backward(shape, sess):
  model = helpers.SumModel(helpers.table(), mxrec.AdamWOptimizer())
  assert model.step(sess, np.zeros(shape)).shape == shape + (4,)
  assert model.table.size(sess) == 0
  model.step(sess, [[1, 2]])
  assert model.table.size(sess) == 2
  assert model.step(sess, np.zeros(shape)).shape == shape + (4,)


def test_no_ids_as_a_plain_empty_list(sess):
  assert sess.run(mxrec.embedding_lookup(helpers.table(), [])).shape == (0, 4)


@pytest.mark.parametrize("dtype", [tf.int64, tf.int32, tf.uint64])
def test_id_types_meet_in_the_same_rows(dtype, sess):
  model = helpers.SumModel(helpers.table(), id_dtype=dtype)
  model.step(sess, [1, 2, 2])
  assert sorted(helpers.contents(model.table, sess)) == [1, 2]


def test_d_24_int32_is_sign_extended_and_uint64_taken_by_its_bits(sess):
  emb_table = helpers.table()
  small = helpers.SumModel(emb_table, id_dtype=tf.int32)
  small.step(sess, [-1, -(2**31)])
  assert sorted(helpers.contents(emb_table, sess)) == [-(2**31), -1]
  big = helpers.SumModel(emb_table, id_dtype=tf.uint64)
  np.testing.assert_array_equal(big.look(sess, np.array([2**64 - 1], np.uint64)), small.look(sess, [-1]))
  np.testing.assert_array_equal(emb_table.lookup_numpy(np.array([2**64 - 1], np.uint64), sess), small.look(sess, [-1]))
  np.testing.assert_array_equal(emb_table.lookup_numpy([2**64 - 1], sess), small.look(sess, [-1]))


def test_fact_12_d_03_d_04_every_64_bit_value_is_an_ordinary_id(sess, tmp_path):
  odd = [-1, 0, 1, -3, -7, INT64.min, INT64.max, INT64.min + 1, 2**32, -(2**32), 2**63 - 2]
  model = helpers.SumModel(helpers.table())
  before = model.look(sess, odd)
  assert len(np.unique(before, axis=0)) == len(odd)
  model.step(sess, odd)
  np.testing.assert_array_equal(model.look(sess, odd), before - np.float32(0.5))
  assert model.table.size(sess) == len(odd)
  saver = mxrec.EmbeddingTableSaver([model.table])
  saver.save(sess, str(tmp_path), 1)
  sess.run(mxrec.get_init_hashtable_op())
  saver.load(sess, str(tmp_path), 1)
  np.testing.assert_array_equal(model.look(sess, odd), before - np.float32(0.5))
  assert sorted(helpers.contents(model.table, sess)) == sorted(odd)


def test_d_05_a_new_id_has_one_row_everywhere_in_a_step(sess):
  emb_table = helpers.table()
  first, second = (mxrec.embedding_lookup(emb_table, ids) for ids in ([9, 9, 9], [[9]]))
  rows = mxrec.get_sparse_embedding()
  gradients = tf.gradients(tf.reduce_sum(first) * 0.0, rows[:1])
  train = mxrec.AdamWOptimizer(weight_decay=0.0).apply_gradients(zip(gradients, rows))
  a, b, _ = sess.run([first, second, train])
  assert (a == b[0, 0]).all()
  np.testing.assert_array_equal(helpers.contents(emb_table, sess)[9], a[0])


def test_fact_16_d_14_evaluation_lookups_change_nothing(sess):
  mxrec.testing.set_clock(100.0)
  emb_table = helpers.table(min_used_times=2, max_cold_secs=10)
  model = helpers.SumModel(emb_table)
  model.step(sess, [1, 1])
  flagged = mxrec.embedding_lookup(emb_table, model.ids, training=False, default=0.25)
  mxrec.testing.set_clock(109.0)
  before = emb_table.stats(sess)
  for _ in range(3):
    sess.run([flagged, model.output], {model.ids: [1, 2, 2]})
  after = emb_table.stats(sess)
  for counter in ("rows", "candidates", "inserts", "updates", "generation"):
    assert before[counter] == after[counter], counter
  mxrec.testing.set_clock(111.0)
  assert emb_table.evict(sess) == 1  # the lookups at 109 did not count as use


def test_fact_16_unseen_ids_get_the_default_with_the_flag_and_their_first_row_without(sess):
  emb_table = helpers.table()
  ids = [5, 6]
  plain = mxrec.embedding_lookup(emb_table, ids)
  zeros = mxrec.embedding_lookup(emb_table, ids, training=False)
  number = mxrec.embedding_lookup(emb_table, ids, training=False, default=1.5)
  row = mxrec.embedding_lookup(emb_table, ids, training=False, default=[1, 2, 3, 4])
  fed = tf.placeholder(tf.float32, [])
  tensor = mxrec.embedding_lookup(emb_table, ids, training=False, default=fed)
  emb_table.insert([5], [[9, 9, 9, 9]], session=sess)
  a, b, c, d, e = sess.run([plain, zeros, number, row, tensor], {fed: -2.0})
  np.testing.assert_array_equal(a, emb_table.lookup_numpy(ids, sess))
  for value, default in ((b, [0] * 4), (c, [1.5] * 4), (d, [1, 2, 3, 4]), (e, [-2] * 4)):
    np.testing.assert_array_equal(value, [[9] * 4, default])
  assert np.any(a[1] != 0)


def test_a_lookup_without_training_lets_no_gradient_through():
  emb_table = helpers.table()
  trained, frozen = mxrec.embedding_lookup(emb_table, [1]), mxrec.embedding_lookup(emb_table, [1], training=False)
  rows = mxrec.get_sparse_embedding()
  gradients = tf.gradients(tf.reduce_sum(trained * frozen), rows)
  assert gradients[0] is not None and gradients[1] is None
  with pytest.raises(ValueError, match="training=False"):
    mxrec.AdamWOptimizer().apply_gradients([(tf.ones([1, 4]), rows[1])])


def test_fact_13_gradient_of_a_repeated_id_is_the_sum(sess):
  emb_table = helpers.table()
  output = mxrec.embedding_lookup(emb_table, [7, 7, 9])
  rows = mxrec.get_sparse_embedding()[0]
  gradient = tf.gradients(tf.reduce_sum(output), rows)[0]
  assert isinstance(gradient, tf.IndexedSlices)
  keys, dense = sess.run([rows.op.outputs[3], tf.convert_to_tensor(gradient)])
  by_key = dict(zip(keys, dense))
  np.testing.assert_array_equal(by_key[7], 2 * by_key[9])
  train = mxrec.minimize(tf.reduce_sum(output), tf.train.GradientDescentOptimizer(1.0))
  before = emb_table.lookup_numpy([7, 9], sess)
  sess.run(train)
  np.testing.assert_array_equal(emb_table.lookup_numpy([7, 9], sess), before - np.array([[2], [1]], np.float32))


def test_gradients_through_gather_and_several_uses_add_up(sess):
  emb_table = helpers.table(dimension=1)
  output = mxrec.embedding_lookup(emb_table, [1, 2, 3])
  loss = tf.reduce_sum(tf.gather(output, [0, 0, 2])) + tf.reduce_sum(tf.reshape(output, [3]) * [0.0, 4.0, 0.0])
  train = mxrec.minimize(loss, tf.train.GradientDescentOptimizer(1.0))
  before = emb_table.lookup_numpy([1, 2, 3], sess)
  sess.run(train)
  np.testing.assert_allclose(before - emb_table.lookup_numpy([1, 2, 3], sess), [[2], [4], [1]], rtol=1e-6)


def test_d_07_three_lookups_of_different_sizes_on_one_table(sess):
  shared = helpers.table("shared")
  ids = [tf.constant(values, tf.int64) for values in (np.arange(21), [3, 4, 4], [[20, 50], [3, 51]])]
  losses = [tf.reduce_sum(mxrec.embedding_lookup(shared, part)) * (i + 1) for i, part in enumerate(ids)]
  train = mxrec.minimize(tf.add_n(losses), tf.train.GradientDescentOptimizer(0.125))
  expected = {}
  for i, part in enumerate(sess.run(ids)):
    for key in part.reshape(-1):
      expected[int(key)] = expected.get(int(key), 0) + (i + 1)
  keys = sorted(expected)
  before = shared.lookup_numpy(keys, sess)
  sess.run(train)
  assert shared.size(sess) == len(keys)
  moved = before - shared.lookup_numpy(keys, sess)
  np.testing.assert_allclose(moved, np.repeat([[0.125 * expected[key]] for key in keys], 4, axis=1), rtol=1e-6)


def test_get_sparse_embedding_lists_lookups_in_order_evaluation_included():
  a, b = helpers.table("a", dimension=2), helpers.table("b", dimension=3)
  for emb_table, ids in ((a, [1]), (b, [[1, 2]]), (a, [3]), (b, [4])):
    mxrec.embedding_lookup(emb_table, ids)
  assert [rows.shape[1] for rows in mxrec.get_sparse_embedding()] == [2, 3, 2, 3]
  assert mxrec.get_existing_tables() == [a, b]
  assert [op.name for op in mxrec.get_init_hashtable_op()] == ["mxrec/a/reset", "mxrec/b/reset"]
  with tf.Graph().as_default():
    assert mxrec.get_sparse_embedding() == [] and mxrec.get_existing_tables() == [] and mxrec.get_init_hashtable_op() == []


def test_init_op_empties_the_table_and_global_initializer_does_not(sess):
  model = helpers.SumModel(helpers.table())
  first = model.look(sess, [1])
  model.step(sess, [1])
  sess.run(tf.global_variables_initializer())
  assert model.table.size(sess) == 1
  sess.run(mxrec.get_init_hashtable_op())
  assert model.table.size(sess) == 0
  np.testing.assert_array_equal(model.look(sess, [1]), first)


def test_d_08_d_10_table_methods_against_a_plain_dict(sess):
  rng = np.random.RandomState(7)
  emb_table = helpers.table(dimension=2)
  model = {}
  for round_number in range(60):
    keys = rng.randint(-50, 50, rng.randint(0, 30))
    if rng.rand() < 0.6:
      values = np.full([len(keys), 2], round_number, np.float32) + np.arange(len(keys))[:, None].astype(np.float32)
      assert emb_table.insert(keys, values, session=sess) == len(set(keys) - set(model))
      model.update({int(key): value for key, value in zip(keys, values)})
    else:
      gone = set(keys.tolist()) & set(model)
      assert emb_table.erase(keys, session=sess) == len(gone)
      for key in gone:
        del model[key]
    assert emb_table.size(sess) == len(model)
  assert {key: row.tolist() for key, row in helpers.contents(emb_table, sess).items()} == {
    key: row.tolist() for key, row in model.items()
  }
  values, found = emb_table.lookup_numpy(np.arange(-50, 50).reshape(10, 10), sess, return_found=True)
  assert values.shape == (10, 10, 2) and found.shape == (10, 10)
  assert found.sum() == len(model)


def test_stats_tell_rows_and_bytes(sess):
  model = helpers.SumModel(helpers.table())
  model.step(sess, np.arange(100))
  stats = model.table.stats(sess)
  assert stats["rows"] == 100 and stats["bytes_rows"] >= 100 * 16 and stats["bytes_index"] > 0


@pytest.mark.parametrize("policy", ["grow", "error"])
def test_fact_23_d_09_more_ids_than_slots_is_growth_or_an_error_that_names_the_table(policy, sess):
  model = helpers.SumModel(helpers.table("small", vocabulary=100, capacity_policy=policy))
  model.step(sess, np.arange(100))
  if policy == "grow":
    model.step(sess, np.arange(250))
    assert model.table.size(sess) == 250
    return
  before = helpers.contents(model.table, sess)
  with pytest.raises(tf.errors.ResourceExhaustedError, match="small.*100"):
    model.step(sess, np.arange(101))
  after = helpers.contents(model.table, sess)
  assert sorted(after) == sorted(before)
  assert all((after[key] == before[key]).all() for key in before)  # nothing half done
  model.step(sess, [5])


def test_byte_cap_stops_a_batch_as_a_whole(sess):
  model = helpers.SumModel(helpers.table("capped", dimension=64, max_bytes=1 << 20))
  model.step(sess, np.arange(100))
  before = model.table.lookup_numpy(np.arange(100), sess)
  with pytest.raises(tf.errors.ResourceExhaustedError, match="capped"):
    model.step(sess, np.arange(100000))
  assert model.table.size(sess) == 100
  np.testing.assert_array_equal(model.table.lookup_numpy(np.arange(100), sess), before)


def test_python_lists_with_ids_on_both_sides_of_two_to_the_63_are_exact(sess):
  """NumPy makes float64 of such a list, and neighbouring ids would become one."""
  emb_table = helpers.table(dimension=2)
  ids = [2**63 + 1, 2**63, 1, 2**64 - 1]
  bits = [(key - 2**64 if key >= 2**63 else key) for key in ids]
  emb_table.insert(ids, np.arange(8).reshape(4, 2), session=sess)
  assert sorted(helpers.contents(emb_table, sess)) == sorted(bits)
  expected = emb_table.lookup_numpy(np.array(bits), sess)
  np.testing.assert_array_equal(emb_table.lookup_numpy(ids, sess), expected)
  np.testing.assert_array_equal(emb_table.lookup_numpy([[key] for key in ids], sess)[:, 0], expected)
  np.testing.assert_array_equal(sess.run(mxrec.embedding_lookup(emb_table, ids)), expected)
  np.testing.assert_array_equal(sess.run(mxrec.embedding_lookup(emb_table, [tuple(ids)])), expected[None])
  assert emb_table.erase(ids[:1], session=sess) == 1 and emb_table.size(sess) == 3
