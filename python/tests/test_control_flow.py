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


def lookup_of(kind, emb_table, ids):
  """sum over a lookup's output: of each kind of gradient that an update takes."""
  bags = tf.SparseTensor(tf.stack([tf.zeros_like(ids), tf.range(tf.size(ids, out_type=tf.int64))], 1), ids, [1, 5])
  output = {
    "dense": lambda: mxrec.embedding_lookup(emb_table, ids),  # IndexedSlices
    "pooled": lambda: mxrec.embedding_lookup(emb_table, bags, combiner="sum"),  # shared
    "clipped": lambda: mxrec.embedding_lookup(emb_table, bags, combiner="sum", max_norm=1000.0),  # a tensor
  }[kind]()
  return tf.reduce_sum(output)


@pytest.mark.parametrize("kind", ["dense", "pooled", "clipped"])
@pytest.mark.parametrize("clip_norm", [None, 1000.0])
def test_a_branch_of_a_v1_cond_that_is_not_taken_trains_no_row_and_the_step_goes_on(kind, clip_norm, sess):
  emb_table = helpers.table(dimension=1)
  dense = tf.get_variable("dense", initializer=1.0)
  which, ids = tf.placeholder(tf.bool, []), tf.placeholder(tf.int64, [None])
  loss = dense + tf.cond(which, lambda: 2.0 * lookup_of(kind, emb_table, ids), lambda: dense * 3.0)
  step = tf.train.get_or_create_global_step()
  train = mxrec.minimize(loss, tf.train.GradientDescentOptimizer(0.5), global_step=step, clip_norm=clip_norm)
  sess.run(tf.global_variables_initializer())
  first = emb_table.lookup_numpy([7], sess)
  sess.run(train, {which: False, ids: [7, 7]})
  assert emb_table.size(sess) == 0 and sess.run(step) == 1 and sess.run(dense) == -1
  assert emb_table.stats(sess)["optimizer_step"] == 1
  sess.run(train, {which: True, ids: [7, 7]})
  assert sess.run(step) == 2 and sess.run(dense) == -1.5
  np.testing.assert_array_equal(emb_table.lookup_numpy([7], sess), first - 2)
  sess.run(train, {which: False, ids: [7]})
  np.testing.assert_array_equal(emb_table.lookup_numpy([7], sess), first - 2)
  assert sess.run(step) == 3


@pytest.mark.parametrize("kind", ["dense", "pooled"])
def test_lookups_in_both_branches_and_outside_of_a_v1_cond_train_one_table(kind, sess):
  emb_table = helpers.table(dimension=1)
  which = tf.placeholder(tf.bool, [])
  ids = tf.constant([1, 2], tf.int64)  # made outside: alive whichever branch is taken
  loss = lookup_of(kind, emb_table, tf.constant([1], tf.int64)) + tf.cond(
    which, lambda: 10.0 * lookup_of(kind, emb_table, ids), lambda: 100.0 * lookup_of(kind, emb_table, tf.constant([3], tf.int64))
  )
  rows = mxrec.get_sparse_embedding()
  pairs = zip(tf.gradients(loss, rows), rows)
  train = mxrec.AdamWOptimizer(learning_rate=0.5, weight_decay=0.0).apply_gradients(pairs)
  first = emb_table.lookup_numpy([1, 2, 3], sess)[:, 0]
  for taken, moved in ((True, [1, 1, 0]), (False, [2, 1, 1])):
    sess.run(train, {which: taken})
    step = first - emb_table.lookup_numpy([1, 2, 3], sess)[:, 0]
    np.testing.assert_array_equal(step > 0, np.array(moved) > 0)
    assert sorted(helpers.contents(emb_table, sess)) == ([1, 2] if taken else [1, 2, 3])
  assert emb_table.stats(sess)["optimizer_step"] == 2


def test_a_lookup_in_nested_v1_conds_trains_only_when_both_are_taken(sess):
  emb_table = helpers.table(dimension=1)
  outer, inner = tf.placeholder(tf.bool, []), tf.placeholder(tf.bool, [])
  zero = tf.constant(0.0)
  loss = tf.cond(
    outer,
    lambda: tf.cond(tf.logical_not(inner), lambda: zero + 1.0, lambda: lookup_of("pooled", emb_table, tf.constant([4], tf.int64))),
    lambda: zero + 2.0,
  )
  step = tf.train.get_or_create_global_step()
  train = mxrec.minimize(loss, SGD, global_step=step)
  sess.run(tf.global_variables_initializer())
  for count, (a, b) in enumerate([(False, False), (False, True), (True, False)]):
    sess.run(train, {outer: a, inner: b})
    assert emb_table.size(sess) == 0 and sess.run(step) == count + 1
  sess.run(train, {outer: True, inner: True})
  assert emb_table.size(sess) == 1 and sess.run(step) == 4


def test_an_update_in_one_v1_cond_of_a_lookup_in_a_further_one(sess):
  """The update is skipped with its own branch, and only with that."""
  emb_table = helpers.table(dimension=1)
  outer, inner = tf.placeholder(tf.bool, []), tf.placeholder(tf.bool, [])

  def body():
    loss = tf.cond(inner, lambda: lookup_of("dense", emb_table, tf.constant([4], tf.int64)), lambda: tf.constant(0.0))
    rows = mxrec.get_sparse_embedding()
    with tf.control_dependencies([mxrec.AdamWOptimizer().apply_gradients(zip(tf.gradients(loss, rows), rows))]):
      return tf.identity(loss)

  result = tf.cond(outer, body, lambda: tf.constant(0.0))
  for a, b, steps, rows in ((False, True, 0, 0), (True, False, 1, 0), (True, True, 2, 1)):
    sess.run(result, {outer: a, inner: b})
    stats = emb_table.stats(sess)
    assert (stats["optimizer_step"], stats["rows"]) == (steps, rows)


def test_an_update_in_another_v1_cond_than_the_lookup(sess):
  """Loss scaling around a model that looks ids up in a branch."""
  emb_table = helpers.table(dimension=1)
  looks, finite = tf.placeholder(tf.bool, []), tf.placeholder(tf.bool, [])
  loss = tf.cond(looks, lambda: lookup_of("pooled", emb_table, tf.constant([4], tf.int64)), lambda: tf.constant(0.0))
  rows = mxrec.get_sparse_embedding()
  pairs = list(zip(tf.gradients(loss, rows), rows))
  train = tf.cond(finite, lambda: tf.group(mxrec.AdamWOptimizer().apply_gradients(pairs)), tf.no_op)
  for a, b, steps, size in ((True, False, 0, 0), (False, False, 0, 0), (False, True, 1, 0), (True, True, 2, 1)):
    sess.run(train, {looks: a, finite: b})
    stats = emb_table.stats(sess)
    assert (stats["optimizer_step"], stats["rows"]) == (steps, size)


def test_a_lookup_in_one_v1_branch_cannot_be_trained_from_the_other():
  emb_table = helpers.table()
  rows, refused = [], []

  def first():
    mxrec.embedding_lookup(emb_table, [1])
    rows.extend(mxrec.get_sparse_embedding())
    return tf.constant(0.0)

  def second():
    with pytest.raises(ValueError, match="table 't'.*branch") as error:
      mxrec.AdamWOptimizer().apply_gradients([(tf.ones([1, 4]), rows[0])])
    refused.append(error)
    return tf.constant(0.0)

  tf.cond(tf.placeholder(tf.bool, []), first, second)
  assert refused


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
