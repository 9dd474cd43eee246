"""Real click logs from outside the project; skipped aloud when they are not there."""

import pathlib

import helpers
import numpy as np
import pytest
import tensorflow.compat.v1 as tf

import mxrec

DATA = pathlib.Path(__file__).resolve().parents[3] / "shared" / "data"


def need(relative):
  path = DATA / relative
  if not path.is_file():
    pytest.skip(f"{path} is not there: the test of real data does not run")
  return path


def auc(labels, scores):
  """Area under the ROC curve by ranks, ties shared."""
  _, place, counts = np.unique(scores, return_inverse=True, return_counts=True)
  ranks = (np.cumsum(counts) - (counts - 1) / 2)[place]
  positive = labels > 0
  n = positive.sum()
  return (ranks[positive].sum() - n * (n + 1) / 2) / (n * (len(labels) - n))


def test_criteo_clicks_are_learned_and_no_id_is_lost(sess):
  raw = [line.rstrip("\n").split("\t") for line in need("criteo_raw10k/criteo_first10000.txt").open(encoding="ascii")]
  labels = np.array([int(fields[0]) for fields in raw], np.float32)
  missing = 2**32
  ids = np.array(
    [[(column << 33) + (int(text, 16) if text else missing) for column, text in enumerate(row[14:40])] for row in raw], np.int64
  )
  numbers = np.array([[float(text) if text else 0.0 for text in fields[1:14]] for fields in raw], np.float32)
  numbers = np.log1p(np.maximum(numbers, 0))
  emb_table = helpers.table("criteo", 8, 100_000, initializer=tf.random_normal_initializer(stddev=0.01))
  feed_ids, feed_numbers = tf.placeholder(tf.int64, [None, 26]), tf.placeholder(tf.float32, [None, 13])
  feed_labels = tf.placeholder(tf.float32, [None])
  tf.set_random_seed(1)
  weight = tf.get_variable("w", [26 * 8 + 13, 32])
  top = tf.get_variable("top", [32, 1])

  def logits(training):
    rows = mxrec.embedding_lookup(emb_table, feed_ids, training=training)
    return tf.matmul(tf.nn.relu(tf.matmul(tf.concat([tf.reshape(rows, [-1, 26 * 8]), feed_numbers], 1), weight)), top)[:, 0]

  loss = tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(labels=feed_labels, logits=logits(True)))
  train = mxrec.minimize(loss, tf.train.AdamOptimizer(0.002))
  predict = logits(False)
  sess.run([tf.global_variables_initializer(), mxrec.get_init_hashtable_op()])
  cut, losses = 8000, []
  for _ in range(2):
    for start in range(0, cut, 256):
      part = slice(start, min(start + 256, cut))
      losses.append(sess.run([loss, train], {feed_ids: ids[part], feed_numbers: numbers[part], feed_labels: labels[part]})[0])
  assert np.mean(losses[-10:]) < np.mean(losses[:10]) - 0.05
  assert emb_table.size(sess) == len(np.unique(ids[:cut]))
  assert sorted(helpers.contents(emb_table, sess)) == np.unique(ids[:cut]).tolist()
  scores = sess.run(predict, {feed_ids: ids[cut:], feed_numbers: numbers[cut:]})
  area = auc(labels[cut:], scores)
  print(f"AUC on the last 2,000 rows: {area:.4f}")
  assert area > 0.6
  assert emb_table.size(sess) == len(np.unique(ids[:cut]))


def test_tencent_users_are_nearly_all_new_and_none_is_lost(sess):
  """Nothing in this sample tells the clicks of unseen users (the ads' click rates give an AUC of 0.495 there),
  so the AUC is that of the learned rows: it shows that each user's row was found again and trained."""
  path = need("tencent_lookalike100k/train_sample.csv")
  data = np.loadtxt(path, delimiter=",", skiprows=1, dtype=np.int64)
  ads, users, labels = data[:, 0], data[:, 1], (data[:, 2] > 0).astype(np.float32)
  ad_table = helpers.table("ads", 8, 1000, initializer=tf.zeros_initializer())
  user_table = helpers.table("users", 8, 100_000, initializer=tf.random_normal_initializer(stddev=0.01))
  feed_ads, feed_users = tf.placeholder(tf.int64, [None]), tf.placeholder(tf.int64, [None])
  feed_labels = tf.placeholder(tf.float32, [None])
  bias = tf.get_variable("bias", [], initializer=tf.constant_initializer(-3.0))

  def logits(training):
    ad, user = (mxrec.embedding_lookup(*pair, training=training) for pair in ((ad_table, feed_ads), (user_table, feed_users)))
    return tf.reduce_sum(ad + user, 1) + bias

  loss = tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(labels=feed_labels, logits=logits(True)))
  train = mxrec.minimize(loss, tf.train.AdagradOptimizer(0.05, initial_accumulator_value=1e-10))
  predict = logits(False)
  sess.run([tf.global_variables_initializer(), mxrec.get_init_hashtable_op()])
  order = np.random.RandomState(1).permutation(len(ads))
  learned, held_out = order[:80000], order[80000:]
  losses = []
  for _ in range(2):
    for start in range(0, len(learned), 1000):
      part = learned[start : start + 1000]
      losses.append(sess.run([loss, train], {feed_ads: ads[part], feed_users: users[part], feed_labels: labels[part]})[0])
  assert np.mean(losses[-20:]) < np.mean(losses[:20])
  assert user_table.size(sess) == len(np.unique(users[learned])) and ad_table.size(sess) == len(np.unique(ads[learned]))
  seen, unseen = (
    auc(labels[part], sess.run(predict, {feed_ads: ads[part], feed_users: users[part]})) for part in (learned, held_out)
  )
  print(f"AUC on 80,000 learned rows: {seen:.4f}, on 20,000 held-out rows: {unseen:.4f}")
  assert seen > 0.9
  assert user_table.size(sess) == len(np.unique(users[learned]))
