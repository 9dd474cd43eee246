"""Two tables, sum pooling, two heads."""

import mxrec
import tensorflow as tf


class Model(object):
  def __init__(self, settings, batch, is_train):
    self.settings = settings
    self.is_train = is_train
    self.tables = []
    user = self._pooled("user_table", settings.user_dim, batch["user_ids"])
    item = self._pooled("item_table", settings.item_dim, batch["item_ids"])
    with tf.variable_scope("heads", reuse=tf.AUTO_REUSE):
      joined = tf.concat([user, item], axis=1)
      self.logits = [self._head(joined, name) for name in ("click", "buy")]
    self.labels = [batch["label_0"], batch["label_1"]]
    losses = [
      tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(labels=label, logits=logits))
      for label, logits in zip(self.labels, self.logits)
    ]
    self.data_loss = tf.add_n(losses)
    self.predictions = [tf.math.sigmoid(logits) for logits in self.logits]

  def _pooled(self, name, dim, ids):
    table = mxrec.get_embedding_table(
      name=name,
      dimension=dim,
      device_vocabulary_size=self.settings.id_range,
      initializer=tf.truncated_normal_initializer(-0.01, 0.01, seed=99),
      key_dtype=tf.int64,
      value_dtype=tf.float32,
    )
    self.tables.append(table)
    return tf.reduce_sum(mxrec.embedding_lookup(table, ids), axis=1)

  def _head(self, inputs, name):
    hidden = tf.layers.dense(
      inputs,
      16,
      activation="relu",
      kernel_initializer=tf.truncated_normal_initializer(0.0, 0.01, seed=7),
      kernel_regularizer=tf.contrib.layers.l1_regularizer(1e-6),
      name=name + "_hidden",
    )
    return tf.squeeze(tf.layers.dense(hidden, 1, kernel_initializer=tf.zeros_initializer(), name=name + "_out"), axis=1)
