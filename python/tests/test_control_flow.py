"""Loops, branches, functions: evaluation works everywhere, training where it can be right, else it is refused."""

import helpers
import numpy as np
import pytest
import tensorflow.compat.v1 as tf

import mxrec

SGD = tf.train.GradientDescentOptimizer(1.0)


def test_evaluation_in_a_while_loop(sess):
  emb_table = helpers.table(dimension=1)
  emb_table.insert([0, 1, 2], [[1], [2], [4]], session=sess)
  _, total = tf.while_loop(
    lambda i, total: i < 3,
    lambda i, total: (i + 1, total + tf.reduce_sum(mxrec.embedding_lookup(emb_table, [i], training=False))),
    [tf.constant(0, tf.int64), tf.constant(0.0)],
  )
  assert sess.run(total) == 7


def test_evaluation_in_a_dataset_map(sess):
  emb_table = helpers.table(dimension=1)
  emb_table.insert([0, 1, 2], [[1], [2], [4]], session=sess)
  look_up = tf.autograph.experimental.do_not_convert(lambda i: mxrec.embedding_lookup(emb_table, i, training=False))
  dataset = tf.data.Dataset.range(3).map(look_up)
  iterator = tf.data.make_initializable_iterator(dataset)
  row = iterator.get_next()
  sess.run(iterator.initializer)
  assert [sess.run(row)[0] for _ in range(3)] == [1, 2, 4]
  assert mxrec.get_sparse_embedding() == []


def test_evaluation_in_both_branches_of_a_cond(sess):
  emb_table = helpers.table(dimension=1)
  emb_table.insert([1, 2], [[1], [2]], session=sess)
  which = tf.placeholder(tf.bool, [])
  row = tf.cond(
    which,
    lambda: mxrec.embedding_lookup(emb_table, [1], training=False),
    lambda: mxrec.embedding_lookup(emb_table, [2], training=False),
  )
  assert [sess.run(row, {which: value})[0, 0] for value in (True, False)] == [1, 2]


def test_a_training_lookup_in_a_while_body_is_refused_naming_the_table():
  emb_table = helpers.table()
  _, total = tf.while_loop(
    lambda i, total: i < 3,
    lambda i, total: (i + 1, total + tf.reduce_sum(mxrec.embedding_lookup(emb_table, [i]))),
    [tf.constant(0, tf.int64), tf.constant(0.0)],
  )
  rows = mxrec.get_sparse_embedding()
  with pytest.raises(ValueError, match="table 't'.*while"):
    mxrec.AdamWOptimizer().apply_gradients([(tf.ones([1, 4]), rows[0])])
  with pytest.raises(ValueError, match="table 't'"):
    mxrec.minimize(total, SGD)


def test_a_training_lookup_in_a_v1_cond_is_refused_naming_the_table():
  emb_table = helpers.table()
  which = tf.placeholder(tf.bool, [])
  loss = tf.cond(which, lambda: tf.reduce_sum(mxrec.embedding_lookup(emb_table, [1])), lambda: tf.constant(0.0))
  rows = mxrec.get_sparse_embedding()
  gradients = tf.gradients(loss, rows)
  with pytest.raises(ValueError, match="table 't'.*cond"):
    mxrec.AdamWOptimizer().apply_gradients(zip(gradients, rows))
  with pytest.raises(ValueError, match="table 't'.*cond"):
    mxrec.minimize(loss, SGD)


def test_training_lookups_in_v2_cond_and_while_are_refused_naming_the_table():
  from tensorflow.python.ops import cond_v2, while_v2

  emb_table = helpers.table()
  cond = cond_v2.cond_v2(
    tf.placeholder(tf.bool, []), lambda: tf.reduce_sum(mxrec.embedding_lookup(emb_table, [1])), lambda: tf.constant(0.0)
  )
  loop = while_v2.while_loop(
    lambda i, total: i < 3,
    lambda i, total: (i + 1, total + tf.reduce_sum(mxrec.embedding_lookup(emb_table, [i]))),
    [tf.constant(0, tf.int64), tf.constant(0.0)],
  )[1]
  for loss in (cond, loop):
    with pytest.raises(ValueError, match="table 't'"):
      mxrec.minimize(loss, SGD)


def test_a_training_lookup_in_a_function_is_refused_naming_the_table():
  emb_table = helpers.table()

  @tf.function
  def loss_of(ids):
    return tf.reduce_sum(mxrec.embedding_lookup(emb_table, ids))

  with pytest.raises(ValueError, match="table 't'"):
    mxrec.minimize(loss_of(tf.constant([1], tf.int64)), SGD)


def test_rows_looked_up_outside_may_be_used_in_a_loop(sess):
  emb_table = helpers.table(dimension=1)
  output = mxrec.embedding_lookup(emb_table, tf.constant([1, 1], tf.int64))
  _, total = tf.while_loop(
    lambda i, total: i < 3, lambda i, total: (i + 1, total + tf.reduce_sum(output)), [tf.constant(0), tf.constant(0.0)]
  )
  train = mxrec.minimize(total, SGD)
  before = emb_table.lookup_numpy([1], sess)
  sess.run(train)
  np.testing.assert_array_equal(before - emb_table.lookup_numpy([1], sess), [[6]])


def test_an_update_inside_a_cond_works(sess):
  """Loss scaling: the step is left out when a gradient overflowed."""
  emb_table = helpers.table(dimension=1)
  output = mxrec.embedding_lookup(emb_table, tf.constant([1], tf.int64))
  rows = mxrec.get_sparse_embedding()
  pairs = list(zip(tf.gradients(tf.reduce_sum(output), rows), rows))
  finite = tf.placeholder(tf.bool, [])
  step = tf.train.get_or_create_global_step()
  train = tf.cond(finite, lambda: tf.group(mxrec.AdamWOptimizer().apply_gradients(pairs, global_step=step)), tf.no_op)
  sess.run(tf.global_variables_initializer())
  sess.run(train, {finite: False})
  assert (emb_table.size(sess), sess.run(step)) == (0, 0)
  sess.run(train, {finite: True})
  assert (emb_table.size(sess), sess.run(step)) == (1, 1)


def test_a_whole_step_inside_one_loop_body_works(sess):
  emb_table = helpers.table(dimension=1)

  def body(i):
    output = mxrec.embedding_lookup(emb_table, tf.reshape(i, [1]))
    rows = mxrec.get_sparse_embedding()[-1]
    train = mxrec.AdamWOptimizer().apply_gradients([(tf.gradients(tf.reduce_sum(output), rows)[0], rows)])
    with tf.control_dependencies([train]):
      return i + 1

  sess.run(tf.while_loop(lambda i: i < 5, body, [tf.constant(0, tf.int64)], parallel_iterations=1))
  assert sorted(helpers.contents(emb_table, sess)) == [0, 1, 2, 3, 4]


def test_a_table_made_inside_a_branch_belongs_to_the_graph(sess):
  row = tf.cond(
    tf.constant(True), lambda: mxrec.embedding_lookup(helpers.table(dimension=1), [1], training=False), lambda: tf.zeros([1, 1])
  )
  assert sess.run(row).shape == (1, 1)
  assert mxrec.get_existing_tables()[0].size(sess) == 0
