"""Small models that many tests share."""

import numpy as np
import tensorflow.compat.v1 as tf

import mxrec

TRAIN = tf.train


def table(name="t", dimension=4, vocabulary=1000, **arguments):
  return mxrec.get_embedding_table(name, dimension, vocabulary, **arguments)


class SumModel:
  """loss = sum(weights * rows of the fed ids); one train op."""

  def __init__(self, emb_table, optimizer=None, id_dtype=tf.int64, **lookup):
    self.table = emb_table
    self.ids = tf.placeholder(id_dtype, None, name="ids")
    self.output = mxrec.embedding_lookup(emb_table, self.ids, **lookup)
    self.rows = mxrec.get_sparse_embedding()[-1]
    self.scale = tf.placeholder_with_default(1.0, [], name="scale")
    self.loss = tf.reduce_sum(self.output) * self.scale
    optimizer = optimizer or TRAIN.GradientDescentOptimizer(0.5)
    self.train = mxrec.minimize(self.loss, optimizer)

  def step(self, sess, ids, scale=1.0):
    return sess.run([self.train, self.output], {self.ids: np.asarray(ids, self.ids.dtype.as_numpy_dtype), self.scale: scale})[1]

  def look(self, sess, ids):
    return sess.run(self.output, {self.ids: np.asarray(ids, self.ids.dtype.as_numpy_dtype)})


def contents(emb_table, sess):
  """{id: row} of a table."""
  keys, values = emb_table.export(sess)
  return {int(key): value for key, value in zip(keys, values)}


def optimizers():
  """Fresh optimizer objects of every kind, by kind."""
  return {
    "sgd": TRAIN.GradientDescentOptimizer(0.1),
    "adagrad": TRAIN.AdagradOptimizer(0.1, initial_accumulator_value=0.1),
    "adam": TRAIN.AdamOptimizer(0.01),
    "adamw": mxrec.AdamWOptimizer(learning_rate=0.01),
  }
