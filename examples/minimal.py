"""A table, a model, a training loop, a checkpoint."""

import numpy as np
import tensorflow.compat.v1 as tf

import mxrec

tf.disable_v2_behavior()
table = mxrec.get_embedding_table("words", 8, 10_000, initializer=tf.random_normal_initializer(stddev=0.05))
ids = tf.placeholder(tf.int64, [None, 4])  # any 64-bit ids; no vocabulary
labels = tf.placeholder(tf.float32, [None])
rows = mxrec.embedding_lookup(table, ids)  # [batch, 4, 8]
logits = tf.reduce_sum(rows, axis=[1, 2])
loss = tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(labels=labels, logits=logits))
train = mxrec.minimize(loss, tf.train.AdagradOptimizer(0.1))

rng = np.random.default_rng(0)
with tf.Session() as sess:
  sess.run([tf.global_variables_initializer(), mxrec.get_init_hashtable_op()])
  for _ in range(200):
    batch = rng.integers(0, 500, [256, 4]) << 40  # label: are most of the four ids in the lower half?
    value, _ = sess.run([loss, train], {ids: batch, labels: (batch < 250 << 40).sum(axis=1) > 2})
  print(f"loss {value:.3f}, {table.size(sess)} rows")
  mxrec.EmbeddingTableSaver([table]).save(sess, "minimal_checkpoint", 200)
