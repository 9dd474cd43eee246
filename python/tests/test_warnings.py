"""What would fail in silence warns, once, naming the table; what is right does not."""

import warnings

import helpers
import pytest
import tensorflow.compat.v1 as tf

import mxrec
from mxrec import _checks


def warned(function):
  with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    function()
  return [str(item.message) for item in caught if "table '" in str(item.message)]


def dense_loss(emb_table, **lookup):
  weight = tf.get_variable("w", [4, 1])
  return tf.reduce_sum(tf.matmul(mxrec.embedding_lookup(emb_table, [1, 2], **lookup), weight))


def test_a_stock_optimizer_that_leaves_a_table_untrained_warns_once():
  tf.train.AdamOptimizer(0.1).minimize(dense_loss(helpers.table("forgotten")))
  messages = warned(mxrec.get_init_hashtable_op)
  assert len(messages) == 1 and "forgotten" in messages[0] and "mxrec.minimize" in messages[0]
  assert warned(mxrec.get_init_hashtable_op) == []
  assert warned(_checks._at_exit) == []


@pytest.mark.parametrize("optimizer", [tf.train.GradientDescentOptimizer, tf.train.AdagradOptimizer, tf.train.FtrlOptimizer])
@pytest.mark.parametrize("use_resource", [False, True])
def test_every_stock_optimizer_is_seen_also_by_table_methods(optimizer, use_resource, sess):
  emb_table = helpers.table()
  with tf.variable_scope("", use_resource=use_resource):
    optimizer(0.1).minimize(dense_loss(emb_table))
  assert len(warned(lambda: emb_table.size(sess))) == 1


def test_right_graphs_do_not_warn(sess, tmp_path):
  emb_table = helpers.table()
  loss = dense_loss(emb_table)
  rows = mxrec.get_sparse_embedding()
  dense = tf.train.AdamOptimizer(0.1).minimize(loss)
  sparse = mxrec.AdamWOptimizer().apply_gradients(zip(tf.gradients(loss, rows), rows))
  mxrec.embedding_lookup(emb_table, [3])  # an evaluation lookup without the flag

  def everything():
    sess.run([tf.global_variables_initializer(), mxrec.get_init_hashtable_op()])
    sess.run([dense, sparse])
    mxrec.EmbeddingTableSaver([emb_table]).save(sess, str(tmp_path), 1)
    tf.train.Saver().save(sess, str(tmp_path / "model"))
    emb_table.size(sess)
    _checks._at_exit()

  assert warned(everything) == []


def test_an_update_inside_a_function_counts(sess):
  from tensorflow.python.ops import cond_v2

  emb_table = helpers.table()
  loss = dense_loss(emb_table)
  rows = mxrec.get_sparse_embedding()
  pairs = list(zip(tf.gradients(loss, rows), rows))
  train = tf.group(
    tf.train.AdamOptimizer(0.1).minimize(loss),
    cond_v2.cond_v2(tf.constant(True), lambda: tf.group(mxrec.AdamWOptimizer().apply_gradients(pairs)), tf.no_op),
  )
  sess.run(tf.global_variables_initializer())
  sess.run(train)
  assert warned(lambda: emb_table.size(sess)) == [] and emb_table.size(sess) == 2


def test_frozen_and_unused_tables_do_not_warn(sess):
  frozen, unused = helpers.table("frozen"), helpers.table("unused")
  mxrec.embedding_lookup(unused, [1])
  tf.train.AdamOptimizer(0.1).minimize(dense_loss(frozen, training=False))
  assert warned(lambda: frozen.size(sess)) == []


def test_a_saver_made_before_the_table_warns(sess, tmp_path):
  tf.get_variable("w", [1])
  early = tf.train.Saver()
  messages = warned(lambda: helpers.table("late"))
  assert len(messages) == 1 and "late" in messages[0]
  assert early is not None
  assert warned(lambda: helpers.table("apart", save_with_tf_saver=False)) == []


def test_a_saver_of_a_list_of_variables_warns_unless_the_table_is_saved_otherwise(sess, tmp_path):
  tf.get_variable("v", [1])
  missed, own = helpers.table("missed"), helpers.table("own")
  tf.train.Saver(tf.global_variables())
  saver = mxrec.EmbeddingTableSaver([own])
  messages = warned(lambda: saver.save(sess, str(tmp_path), 1))
  assert len(messages) == 1 and "missed" in messages[0]
  assert missed.size(sess) == 0
