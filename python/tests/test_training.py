"""Whole models: they learn, and as a tf.Variable would."""

import helpers
import numpy as np
import pytest
import tensorflow.compat.v1 as tf

import mxrec


def learnable(seed, rows=2000, users=50, items=40):
  """Clicks that follow from hidden user and item vectors."""
  rng = np.random.RandomState(seed)
  user, item = rng.randint(0, users, rows), rng.randint(0, items, rows)
  hidden = rng.randn(users, 3) @ rng.randn(3, items)
  ids = rng.permutation(10**6)[: users + items].astype(np.int64) - 500000
  return ids[user], ids[users + item], (hidden[user, item] > 0).astype(np.float32)


def test_g_03_a_plain_session_loop_learns_and_rows_change(sess):
  users, items, clicks = learnable(1)
  user_table, item_table = helpers.table("user", 8), helpers.table("item", 8)
  user_ids, item_ids = tf.placeholder(tf.int64, [None]), tf.placeholder(tf.int64, [None])
  labels = tf.placeholder(tf.float32, [None])
  logits = tf.reduce_sum(mxrec.embedding_lookup(user_table, user_ids) * mxrec.embedding_lookup(item_table, item_ids), 1)
  loss = tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(labels=labels, logits=logits))
  rows = mxrec.get_sparse_embedding()
  optimizer = mxrec.AdamWOptimizer(learning_rate=0.05)
  train = optimizer.apply_gradients(zip(tf.gradients(loss, rows), rows))
  sess.run([tf.global_variables_initializer(), mxrec.get_init_hashtable_op()])
  before = user_table.lookup_numpy(np.unique(users), sess)
  losses = []
  for _ in range(8):
    for start in range(0, len(users), 100):
      feed = {user_ids: users[start : start + 100], item_ids: items[start : start + 100], labels: clicks[start : start + 100]}
      losses.append(sess.run([loss, train], feed)[0])
  assert np.mean(losses[-20:]) < 0.5 * np.mean(losses[:5])
  assert (user_table.size(sess), item_table.size(sess)) == (len(np.unique(users)), len(np.unique(items)))
  assert np.all(np.any(user_table.lookup_numpy(np.unique(users), sess) != before, axis=1))


@pytest.mark.parametrize(
  "make",
  [
    lambda: tf.train.GradientDescentOptimizer(0.3),
    lambda: tf.train.AdagradOptimizer(0.1),
    lambda: tf.train.AdamOptimizer(0.01),
  ],
  ids=["sgd", "adagrad", "adam"],
)
def test_g_07_same_loss_curve_as_a_variable(make, sess):
  """One graph with a dense layer and a lookup that stays a tf.Variable; the other lookup once as variable, once as table."""
  vocabulary, dim = 30, 6
  rng = np.random.RandomState(2)
  start, stay, weights = (rng.randn(*shape).astype(np.float32) * 0.3 for shape in ((vocabulary, dim), (5, dim), (dim, 1)))
  ids, other, labels = tf.placeholder(tf.int64, [None]), tf.placeholder(tf.int64, [None]), tf.placeholder(tf.float32, [None, 1])
  emb_table = helpers.table(dimension=dim)

  def model(scope, lookup):
    with tf.variable_scope(scope):
      kept = tf.get_variable("kept", initializer=stay)
      dense = tf.get_variable("dense", initializer=weights)
      hidden = tf.nn.tanh(lookup + tf.nn.embedding_lookup(kept, other))
      loss = tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(labels=labels, logits=tf.matmul(hidden, dense)))
    return loss

  variable = tf.get_variable("rows", initializer=start)
  theirs = model("theirs", tf.nn.embedding_lookup(variable, ids))
  ours = model("ours", mxrec.embedding_lookup(emb_table, ids))
  train = [make().minimize(theirs), mxrec.minimize(ours, make())]
  sess.run([tf.global_variables_initializer(), mxrec.get_init_hashtable_op()])
  emb_table.insert(np.arange(vocabulary), start, session=sess)
  for _ in range(60):
    batch = np.concatenate([np.arange(vocabulary), rng.randint(0, vocabulary, 20)])  # all rows: Adam is lazy in a table
    feed = {ids: batch, other: rng.randint(0, 5, len(batch)), labels: rng.randint(0, 2, [len(batch), 1])}
    a, b, _ = sess.run([theirs, ours, train], feed)
    assert abs(a - b) <= 1e-5


def test_g_12_a_short_last_batch_is_trained_rightly(sess):
  emb_table = helpers.table(dimension=2, min_used_times=1)
  dataset = tf.data.Dataset.from_tensor_slices(np.arange(10, dtype=np.int64)).batch(4)
  batch = tf.data.make_one_shot_iterator(dataset).get_next()
  train = mxrec.minimize(tf.reduce_sum(mxrec.embedding_lookup(emb_table, batch)), tf.train.GradientDescentOptimizer(1.0))
  before = emb_table.lookup_numpy(np.arange(12), sess)
  steps = 0
  with pytest.raises(tf.errors.OutOfRangeError):
    while True:
      sess.run(train)
      steps += 1
  assert steps == 3 and emb_table.size(sess) == 10
  np.testing.assert_array_equal(emb_table.lookup_numpy(np.arange(10), sess), before[:10] - 1)


def test_g_13_inference_with_a_padded_last_batch_writes_each_example_and_changes_nothing(sess):
  mxrec.testing.set_clock(0.0)
  emb_table = helpers.table(min_used_times=2, max_cold_secs=5)
  model = helpers.SumModel(emb_table)
  model.step(sess, [1, 1, 9])
  predicted = mxrec.embedding_lookup(emb_table, model.ids, training=False)
  before = emb_table.stats(sess)
  mxrec.testing.set_clock(4.0)
  examples, written = np.arange(10), 0
  for start in range(0, 10, 4):
    part = examples[start : start + 4]
    padded = np.concatenate([part, np.full(4 - len(part), 9)])
    written += len(sess.run(predicted, {model.ids: padded})[: len(part)])
  assert written == len(examples)
  after = emb_table.stats(sess)
  assert (after["rows"], after["candidates"]) == (before["rows"], before["candidates"])
  model.step(sess, [1])
  mxrec.testing.set_clock(6.0)
  emb_table.evict(sess)
  model.step(sess, [9])
  assert emb_table.size(sess) == 1  # 9 was forgotten: looking it up at 4.0 was no use of it


def test_minimize_trains_variables_and_tables_and_counts_steps(sess):
  emb_table = helpers.table(dimension=2)
  weight = tf.get_variable("w", [2, 1])
  loss = tf.reduce_sum(tf.matmul(mxrec.embedding_lookup(emb_table, [1, 2]), weight))
  step = tf.train.get_or_create_global_step()
  train = mxrec.minimize(loss, tf.train.AdamOptimizer(0.1), global_step=step)
  sess.run(tf.global_variables_initializer())
  weights, first = sess.run(weight), emb_table.lookup_numpy([1, 2], sess)
  for _ in range(3):
    sess.run(train)
  assert sess.run(step) == 3
  assert np.all(sess.run(weight) != weights) and np.all(emb_table.lookup_numpy([1, 2], sess) != first)
  assert train in tf.get_collection(tf.GraphKeys.TRAIN_OP)


def test_minimize_with_resource_variables_and_their_step(sess):
  with tf.variable_scope("r", use_resource=True):
    weight = tf.get_variable("w", [4])
    step = tf.get_variable("step", [], tf.int64, tf.zeros_initializer(), trainable=False)
  loss = tf.reduce_sum(mxrec.embedding_lookup(helpers.table(), [1]) * weight)
  train = mxrec.minimize(loss, tf.train.AdagradOptimizer(0.1), global_step=step)
  sess.run(tf.global_variables_initializer())
  sess.run(train)
  assert sess.run(step) == 1


def test_clip_norm_is_the_norm_over_variables_and_ids(sess):
  """Gradients: variable (3, 4); id 1 twice in one lookup and once in another, so (3, 0); id 2 once: (1, 0)."""
  emb_table = helpers.table(dimension=2)
  weight = tf.get_variable("w", [2])
  first, second = mxrec.embedding_lookup(emb_table, [1, 2, 1]), mxrec.embedding_lookup(emb_table, [1])
  loss = tf.reduce_sum(weight * [3.0, 4.0]) + tf.reduce_sum(first[:, 0]) + tf.reduce_sum(second[:, 0])
  train = mxrec.minimize(loss, tf.train.GradientDescentOptimizer(1.0), clip_norm=2.0)
  sess.run(tf.global_variables_initializer())
  weights, rows = sess.run(weight), emb_table.lookup_numpy([1, 2], sess)
  sess.run(train)
  scale = 2.0 / np.sqrt(9 + 16 + 9 + 1)
  np.testing.assert_allclose(weights - sess.run(weight), np.array([3, 4]) * scale, rtol=1e-5)
  np.testing.assert_allclose(rows - emb_table.lookup_numpy([1, 2], sess), np.array([[3, 0], [1, 0]]) * scale, atol=1e-6)


def test_clip_norm_leaves_small_gradients_alone(sess):
  model_loss = tf.reduce_sum(mxrec.embedding_lookup(helpers.table(dimension=2), [1]))
  train = mxrec.minimize(model_loss, tf.train.GradientDescentOptimizer(1.0), clip_norm=tf.constant(100.0))
  emb_table = mxrec.get_existing_tables()[0]
  before = emb_table.lookup_numpy([1], sess)
  sess.run(train)
  np.testing.assert_allclose(before - emb_table.lookup_numpy([1], sess), 1.0, rtol=1e-6)


def test_a_lookup_in_the_same_run_as_the_update_sees_the_rows_before_it(sess):
  emb_table = helpers.table(dimension=1)
  model = helpers.SumModel(emb_table, tf.train.GradientDescentOptimizer(1.0))
  evaluation = mxrec.embedding_lookup(emb_table, model.ids, training=False, default=0.0)
  model.step(sess, [1])
  for _ in range(300):
    before = emb_table.lookup_numpy([1], sess)[0, 0]
    trained, seen, _ = sess.run([model.output, evaluation, model.train], {model.ids: [1]})
    assert trained[0, 0] == before and seen[0, 0] == before


@pytest.mark.parametrize("kind", list(helpers.optimizers()))
def test_d_19_tables_are_bit_equal_for_any_number_of_threads_and_on_every_run(kind):
  def run(threads):
    with tf.Graph().as_default():
      tf.set_random_seed(4)
      emb_table = helpers.table(dimension=16, max_cold_secs=100, min_used_times=2)
      ids = tf.placeholder(tf.int64, [None])
      loss = tf.reduce_sum(tf.square(mxrec.embedding_lookup(emb_table, ids)))
      train = mxrec.minimize(loss, helpers.optimizers()[kind])
      rng = np.random.RandomState(6)
      with tf.Session(config=tf.ConfigProto(intra_op_parallelism_threads=threads, inter_op_parallelism_threads=threads)) as sess:
        for _ in range(4):
          sess.run(train, {ids: rng.zipf(1.2, 20000) % 30000})
        return emb_table.export(sess)

  reference = run(1)
  assert len(reference[0]) > 1000
  for threads in (1, 2, 4, 16):
    keys, values = run(threads)
    np.testing.assert_array_equal(reference[0], keys)
    np.testing.assert_array_equal(reference[1], values)
