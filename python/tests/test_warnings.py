"""What would fail in silence warns, once, naming the table; what is right does not."""

import re
import warnings

import helpers
import pytest
import tensorflow.compat.v1 as tf

import mxrec
from mxrec import _checks, _loader


def warned(function):
  with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    function()
  return [str(item.message) for item in caught if "table '" in str(item.message)]


def dense_loss(emb_table, **lookup):
  weight = tf.get_variable("w", [4, 1])
  return tf.reduce_sum(tf.matmul(mxrec.embedding_lookup(emb_table, [1, 2], **lookup), weight))


def train(sess, *train_ops):
  sess.run([tf.global_variables_initializer(), mxrec.get_init_hashtable_op()])
  sess.run(list(train_ops))


def untrained(capfd):
  """Names of the tables that the log has called untrained since the last look."""
  return re.findall(r"WARNING mxrec: table '([^']*)' is not trained: .*mxrec\.minimize", capfd.readouterr().err)


def test_a_step_that_leaves_a_table_untrained_warns_at_once_and_once(sess, capfd):
  step = tf.train.AdamOptimizer(0.1).minimize(dense_loss(helpers.table("forgotten")))
  sess.run(tf.global_variables_initializer())
  assert untrained(capfd) == []
  sess.run(step)
  assert untrained(capfd) == ["forgotten"]
  sess.run(step)
  sess.run([step, mxrec.get_sparse_embedding()])  # another run of the graph is pruned anew
  assert untrained(capfd) == []


@pytest.mark.parametrize(
  "optimizer",
  [
    tf.train.GradientDescentOptimizer,
    tf.train.AdagradOptimizer,
    tf.train.AdamOptimizer,
    tf.train.FtrlOptimizer,
    tf.train.RMSPropOptimizer,
    lambda rate: tf.train.MomentumOptimizer(rate, 0.9),
  ],
)
@pytest.mark.parametrize("use_resource", [False, True])
def test_every_stock_optimizer_is_seen(optimizer, use_resource, sess, capfd):
  with tf.variable_scope("", use_resource=use_resource):
    train(sess, optimizer(0.1).minimize(dense_loss(helpers.table())))
  assert untrained(capfd) == ["t"]


def test_only_the_forgotten_one_of_two_tables_is_named(sess, capfd):
  trained, forgotten = helpers.table("trained"), helpers.table("forgotten")
  weight = tf.get_variable("w", [4, 1])
  loss = tf.reduce_sum(tf.matmul(mxrec.embedding_lookup(trained, [1]) + mxrec.embedding_lookup(forgotten, [1]), weight))
  rows = mxrec.get_sparse_embedding()[:1]
  sparse = mxrec.AdamWOptimizer().apply_gradients(zip(tf.gradients(loss, rows), rows))
  train(sess, tf.train.AdamOptimizer(0.1).minimize(loss), sparse)
  assert untrained(capfd) == ["forgotten"]


def test_a_later_graph_with_a_table_of_the_same_name_warns_on_its_own(capfd):
  for _ in range(2):
    with tf.Graph().as_default(), tf.Session() as session:
      loss = dense_loss(helpers.table())
      train(session, mxrec.minimize(loss, tf.train.AdamOptimizer(0.1)))
      assert untrained(capfd) == []
    with tf.Graph().as_default(), tf.Session() as session:
      train(session, tf.train.AdamOptimizer(0.1).minimize(dense_loss(helpers.table())))
      assert untrained(capfd) == ["t"]


def test_a_monitored_session_and_a_server_warn_too(capfd, tmp_path):
  step = tf.train.AdamOptimizer(0.1).minimize(dense_loss(helpers.table("monitored")))
  with tf.train.MonitoredTrainingSession() as session:
    session.run(step)
  assert untrained(capfd) == ["monitored"]
  tf.reset_default_graph()
  server = tf.train.Server.create_local_server()
  step = tf.train.AdamOptimizer(0.1).minimize(dense_loss(helpers.table("served")))
  with tf.Session(server.target) as session:
    train(session, step)
  assert untrained(capfd) == ["served"]


def test_right_graphs_do_not_warn(sess, tmp_path, capfd):
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
  assert untrained(capfd) == []


def test_a_graph_that_is_not_complete_yet_does_not_warn(sess, capfd):
  """Methods and init ops between a stock minimize and the update of the tables."""
  emb_table = helpers.table()
  loss = dense_loss(emb_table)
  rows = mxrec.get_sparse_embedding()
  dense = tf.train.AdamOptimizer(0.1).minimize(loss)
  init = mxrec.get_init_hashtable_op()
  assert warned(lambda: (mxrec.get_init_hashtable_op(), emb_table.size(sess), emb_table.insert([5], session=sess))) == []
  sparse = mxrec.AdamWOptimizer().apply_gradients(zip(tf.gradients(loss, rows), rows))
  sess.run([tf.global_variables_initializer(), init])
  sess.run([dense, sparse])
  assert untrained(capfd) == []


def test_variables_and_tables_trained_in_runs_of_their_own_do_not_warn(sess, capfd):
  loss = dense_loss(helpers.table())
  rows = mxrec.get_sparse_embedding()
  dense = tf.train.AdamOptimizer(0.1).minimize(loss)
  sparse = mxrec.AdamWOptimizer().apply_gradients(zip(tf.gradients(loss, rows), rows))
  train(sess, dense)
  sess.run(sparse)
  assert untrained(capfd) == []


@pytest.mark.parametrize("in_a_function", [False, True])
def test_a_function_of_another_run_may_train_the_table(in_a_function, capfd):
  """Without notes, as after import_graph_def: the graph of a run has only the functions that this run calls."""
  with tf.Graph().as_default() as graph:
    step = tf.train.AdamOptimizer(0.1).minimize(dense_loss(helpers.table(f"in_function_{in_a_function}")))
    init = tf.global_variables_initializer()
    graph_def = graph.as_graph_def()
  if in_a_function:
    function = graph_def.library.function.add()
    function.signature.name = "update"
    function.node_def.add(name="apply", op="MxrecApply")
  with tf.Graph().as_default(), tf.Session() as session:
    tf.import_graph_def(graph_def, name="")
    session.run(init.name)
    session.run(step.name)
  assert untrained(capfd) == ([] if in_a_function else ["in_function_False"])


def test_the_same_after_import_meta_graph_does_not_warn(tmp_path, capfd):
  loss = dense_loss(helpers.table())
  mxrec.minimize(loss, tf.train.AdamOptimizer(0.1), global_step=tf.train.get_or_create_global_step())
  with tf.Session() as session:
    session.run(tf.global_variables_initializer())
    tf.train.Saver().save(session, str(tmp_path / "model"))
  tf.reset_default_graph()
  saver = tf.train.import_meta_graph(str(tmp_path / "model.meta"))
  with tf.Session() as session:
    saver.restore(session, str(tmp_path / "model"))
    session.run(tf.get_collection(tf.GraphKeys.TRAIN_OP))
  assert untrained(capfd) == []


def test_prediction_and_evaluation_graphs_do_not_warn(sess, capfd):
  """The graph trains in the wrong way; what is run is the forward pass, a metric, a moving average."""
  emb_table = helpers.table()
  weight = tf.get_variable("w", [4, 1])
  predicted = tf.matmul(mxrec.embedding_lookup(emb_table, [1, 2]), weight)
  tf.train.AdamOptimizer(0.1).minimize(tf.reduce_sum(predicted))
  mean, update = tf.metrics.mean(predicted)
  average = tf.train.ExponentialMovingAverage(0.9).apply([weight])
  sess.run([tf.global_variables_initializer(), tf.local_variables_initializer(), mxrec.get_init_hashtable_op()])
  sess.run([predicted, update, average, tf.gradients(predicted, weight)])
  sess.run(mean)
  assert untrained(capfd) == []


def test_an_update_inside_a_function_counts(sess, capfd):
  from tensorflow.python.ops import cond_v2

  emb_table = helpers.table()
  loss = dense_loss(emb_table)
  rows = mxrec.get_sparse_embedding()
  pairs = list(zip(tf.gradients(loss, rows), rows))
  train_op = tf.group(
    tf.train.AdamOptimizer(0.1).minimize(loss),
    cond_v2.cond_v2(tf.constant(True), lambda: tf.group(mxrec.AdamWOptimizer().apply_gradients(pairs)), tf.no_op),
  )
  train(sess, train_op)
  assert emb_table.size(sess) == 2
  _loader.note_table(emb_table.handle.op.name)  # as if another program had built the graph: the pass alone must see it
  sess.run([train_op, loss])
  assert untrained(capfd) == []


def test_frozen_and_unused_tables_do_not_warn(sess, capfd):
  frozen, unused = helpers.table("frozen"), helpers.table("unused")
  mxrec.embedding_lookup(unused, [1])
  train(sess, tf.train.AdamOptimizer(0.1).minimize(dense_loss(frozen, training=False)), *mxrec.get_sparse_embedding())
  assert untrained(capfd) == []


def dense_warnings(function):
  with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    function()
  mine = [item for item in caught if " trains tables only" in str(item.message)]
  assert all(item.filename == __file__ for item in mine)  # points at the script's line
  return [str(item.message) for item in mine]


@pytest.mark.parametrize("use_resource", [False, True])
@pytest.mark.parametrize("method", ["minimize", "compute_gradients"])
def test_adamw_warns_once_of_variables_that_it_leaves_alone(method, use_resource, sess):
  with tf.variable_scope("", use_resource=use_resource):
    loss = dense_loss(helpers.table()) + tf.reduce_sum(tf.get_variable("b", [1]))
    tf.get_variable("elsewhere", [1])
  optimizer = mxrec.AdamWOptimizer()
  messages = dense_warnings(lambda: getattr(optimizer, method)(loss))
  assert len(messages) == 1
  for words in (
    "AdamWOptimizer trains tables only: 2 trainable variables",
    "first: w:0",
    "mxrec.minimize(loss, optimizer)",
    "var_list=",
  ):
    assert words in messages[0]
  assert dense_warnings(lambda: mxrec.AdamWOptimizer().minimize(loss)) == []
  others = mxrec.LambOptimizer(), mxrec.sparse_optimizer(tf.train.AdamOptimizer(0.1))
  messages = [dense_warnings(lambda other=other: getattr(other, method)(loss)) for other in others]
  assert [len(those) for those in messages] == [1, 1]
  assert messages[0][0].startswith("LambOptimizer trains") and messages[1][0].startswith("mxrec.sparse_optimizer trains")


def test_adamw_does_not_warn_where_variables_are_trained_or_left_alone_on_purpose(sess):
  loss = dense_loss(helpers.table())
  rows = mxrec.get_sparse_embedding()
  assert dense_warnings(lambda: mxrec.AdamWOptimizer().minimize(loss, var_list=rows)) == []
  only_rows = tf.reduce_sum(mxrec.embedding_lookup(helpers.table("other"), [1]))
  assert dense_warnings(lambda: mxrec.AdamWOptimizer().minimize(only_rows)) == []
  tf.train.AdamOptimizer(0.1).minimize(loss)
  assert dense_warnings(lambda: mxrec.AdamWOptimizer().minimize(loss)) == []


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
