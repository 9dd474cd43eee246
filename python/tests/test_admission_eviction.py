"""Which ids get a row, and when they lose it. The clock is ours."""

import helpers
import numpy as np
import pytest
import tensorflow.compat.v1 as tf

import mxrec


def test_fact_14_threshold_two_counts_over_batches_and_within_one(sess):
  model = helpers.SumModel(helpers.table(min_used_times=2))
  model.step(sess, [1, 2, 3, 1, 2, 4])
  assert sorted(helpers.contents(model.table, sess)) == [1, 2]
  assert model.table.stats(sess)["candidates"] == 2
  model.step(sess, [3])
  assert sorted(helpers.contents(model.table, sess)) == [1, 2, 3]


def test_fact_14_a_forward_pass_alone_counts_nothing(sess):
  model = helpers.SumModel(helpers.table(min_used_times=2))
  for _ in range(5):
    model.look(sess, [1])
  model.step(sess, [1])
  assert model.table.size(sess) == 0
  model.step(sess, [1])
  assert model.table.size(sess) == 1


def test_fact_15_an_unadmitted_id_gets_the_default_no_update_and_no_row(sess):
  emb_table = helpers.table(min_used_times=3)
  model = helpers.SumModel(emb_table, default=0.75)
  own = emb_table.lookup_numpy([8], sess)
  for _ in range(2):
    np.testing.assert_array_equal(model.step(sess, [8]), np.full([1, 4], 0.75, np.float32))
    assert emb_table.size(sess) == 0
  np.testing.assert_array_equal(model.step(sess, [8]), own)  # admitted: starts from its own first row
  np.testing.assert_array_equal(model.look(sess, [8]), own - np.float32(0.5))


def test_fact_15_default_is_zeros_when_none_is_given(sess):
  model = helpers.SumModel(helpers.table(min_used_times=2))
  np.testing.assert_array_equal(model.step(sess, [8]), np.zeros([1, 4]))


@pytest.mark.parametrize("threshold", [None, 0, 1])
def test_fact_09_none_zero_and_one_admit_at_once(threshold, sess):
  model = helpers.SumModel(helpers.table(min_used_times=threshold))
  model.step(sess, [1])
  assert model.table.size(sess) == 1


def test_two_lookups_of_one_step_add_their_counts(sess):
  emb_table = helpers.table(min_used_times=2)
  losses = [tf.reduce_sum(mxrec.embedding_lookup(emb_table, [5])) for _ in range(2)]
  train = mxrec.minimize(tf.add_n(losses), tf.train.GradientDescentOptimizer(1.0))
  own = emb_table.lookup_numpy([5], sess)
  sess.run(train)
  assert emb_table.size(sess) == 1
  np.testing.assert_array_equal(emb_table.lookup_numpy([5], sess), own)  # both were answered by the default: no gradient


def test_fact_17_ten_seconds_kept_eleven_evicted_at_save(sess, tmp_path):
  model = helpers.SumModel(helpers.table(max_cold_secs=10))
  mxrec.testing.set_clock(1000.0)
  model.step(sess, [1])
  mxrec.testing.set_clock(1001.0)
  model.step(sess, [2])
  mxrec.testing.set_clock(1011.999)  # 11.999 s and 10.999 s ago: 11 and 10 whole seconds
  mxrec.EmbeddingTableSaver([model.table]).save(sess, str(tmp_path), 1)
  assert sorted(helpers.contents(model.table, sess)) == [2]


def test_fact_17_an_evicted_id_comes_back_with_its_first_row_and_zero_moments(sess):
  model = helpers.SumModel(helpers.table(max_cold_secs=10), mxrec.AdamWOptimizer(learning_rate=0.1))
  mxrec.testing.set_clock(0.0)
  own = model.look(sess, [1])
  for _ in range(3):
    model.step(sess, [1])
  moved = model.look(sess, [1])
  assert np.any(moved != own)
  mxrec.testing.set_clock(11.0)
  assert model.table.evict(sess) == 1 and model.table.size(sess) == 0
  np.testing.assert_array_equal(model.look(sess, [1]), own)
  # A fresh id trained from here on moves by the same amount: no old moments.
  fresh_own = model.look(sess, [99])
  model.step(sess, [1, 99])
  decayed = 1 - 0.1 * 0.004
  np.testing.assert_allclose(model.look(sess, [1]) - own * decayed, model.look(sess, [99]) - fresh_own * decayed, atol=1e-6)


def test_fact_17_freed_rows_are_used_again(sess):
  model = helpers.SumModel(helpers.table(max_cold_secs=1))
  sizes = []
  for round_number in range(6):
    mxrec.testing.set_clock(10.0 * round_number)
    model.table.evict(sess)
    model.step(sess, np.arange(5000) + 5000 * round_number)
    sizes.append(model.table.stats(sess)["bytes_rows"])
    assert model.table.size(sess) == 5000
  assert sizes[-1] <= sizes[1]


@pytest.mark.parametrize("limit", [None, 0])
def test_fact_09_without_a_limit_nothing_is_evicted(limit, sess):
  model = helpers.SumModel(helpers.table(max_cold_secs=limit))
  mxrec.testing.set_clock(0.0)
  model.step(sess, [1])
  mxrec.testing.set_clock(1e9)
  assert model.table.evict(sess) == 0 and model.table.size(sess) == 1


def test_candidates_age_out_too(sess):
  model = helpers.SumModel(helpers.table(min_used_times=2, max_cold_secs=10))
  mxrec.testing.set_clock(0.0)
  model.step(sess, [1])
  mxrec.testing.set_clock(11.0)
  model.table.evict(sess)
  model.step(sess, [1])
  assert model.table.size(sess) == 0  # its first use was forgotten


def test_d_30_counts_and_times_survive_a_save_and_load(sess, tmp_path):
  model = helpers.SumModel(helpers.table(min_used_times=2, max_cold_secs=10))
  saver = mxrec.EmbeddingTableSaver([model.table])
  mxrec.testing.set_clock(0.0)
  model.step(sess, [1, 1, 3])
  mxrec.testing.set_clock(5.0)
  model.step(sess, [2, 2, 4])
  saver.save(sess, str(tmp_path), 1)
  for _ in range(2):  # as it is, then reloaded: the same survivors
    mxrec.testing.set_clock(11.0)
    model.table.evict(sess)
    assert sorted(helpers.contents(model.table, sess)) == [2]
    model.step(sess, [3, 4])
    assert sorted(helpers.contents(model.table, sess)) == [2, 4]
    mxrec.testing.set_clock(5.0)
    sess.run(mxrec.get_init_hashtable_op())
    saver.load(sess, str(tmp_path), 1)


def test_a_stale_handle_is_not_trusted(sess):
  """A row erased between lookup and apply, its place taken by another id: the update reaches the right ids."""
  emb_table = helpers.table(dimension=2)
  emb_table.insert([1], [[5, 5]], session=sess)
  output = mxrec.embedding_lookup(emb_table, tf.constant([1], tf.int64))
  lookup = mxrec.get_sparse_embedding()[0].op
  train = mxrec.minimize(tf.reduce_sum(output), tf.train.GradientDescentOptimizer(1.0))
  seen = sess.run(list(lookup.outputs))
  emb_table.erase([1], session=sess)
  emb_table.insert([2], [[7, 7]], session=sess)
  sess.run(train, dict(zip(lookup.outputs, seen)))
  np.testing.assert_array_equal(emb_table.lookup_numpy([2], sess), [[7, 7]])
  assert emb_table.size(sess) == 2
