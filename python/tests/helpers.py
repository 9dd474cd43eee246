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


def all_contents(tables, sess):
  """{table: {id: row}} of this rank, fit for JSON."""
  return {table.name: {str(key): row.tolist() for key, row in contents(table, sess).items()} for table in tables}


def merged(of_ranks, table=None):
  """The rows of all ranks together; no row may be at two of them."""
  rows = {}
  for rank in of_ranks:
    part = rank["rows"] if table is None else rank["rows"][table]
    assert not set(rows) & set(part)
    rows.update(part)
  return rows


def optimizers():
  """Fresh optimizer objects of every kind, by kind."""
  return {
    "sgd": TRAIN.GradientDescentOptimizer(0.1),
    "adagrad": TRAIN.AdagradOptimizer(0.1, initial_accumulator_value=0.1),
    "adam": TRAIN.AdamOptimizer(0.01),
    "adamw": mxrec.AdamWOptimizer(learning_rate=0.01),
    "momentum": TRAIN.MomentumOptimizer(0.1, 0.9),
    "nesterov": TRAIN.MomentumOptimizer(0.1, 0.9, use_nesterov=True),
    "rmsprop": TRAIN.RMSPropOptimizer(0.01, momentum=0.5),
    "rmsprop_centered": TRAIN.RMSPropOptimizer(0.01, momentum=0.5, centered=True),
    "adadelta": TRAIN.AdadeltaOptimizer(1.0),
    "ftrl": TRAIN.FtrlOptimizer(0.1, l1_regularization_strength=0.001, l2_regularization_strength=0.001),
    "amsgrad": mxrec.AMSGradOptimizer(0.01),
    "rowwise_adagrad": mxrec.RowWiseAdagradOptimizer(0.1),
    "lamb": mxrec.LambOptimizer(0.01, weight_decay=0.01),
    "group_ftrl": mxrec.GroupFtrlOptimizer(0.1, l21_regularization_strength=0.001),
    "decayed_and_clipped": mxrec.sparse_optimizer(
      TRAIN.AdagradOptimizer(0.1), weight_decay=0.01, l2_regularization=0.001, row_clip_norm=0.5
    ),
  }
