"""Trains every model of models.py in one dialect and prints the losses as JSON.

usage: worker.py stock|migrated
Output: {model: {"losses": [50 losses without dropout], "dropout_losses": [200 losses at the first weights, dropout on]}}

A process of its own for each dialect: the star import of npu_bridge wraps tf.Session, which a stock script does not have.
"""

import json
import os
import pathlib
import sys

os.environ["TF_USE_LEGACY_KERAS"] = "1"
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent.parent / "python"))

import numpy as np
import tensorflow.compat.v1 as tf

tf.disable_v2_behavior()
tf.logging.set_verbosity(tf.logging.ERROR)

import models

STEPS, DRAWS, KEEP_PROB = 50, 200, 0.8


def stock_gelu(x):
  return x * (0.5 * (1.0 + tf.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * tf.pow(x, 3)))))


def stock():
  return models.Dialect(
    name="stock",
    dropout=lambda x, keep_prob: tf.nn.dropout(x, keep_prob=keep_prob),
    gelu=stock_gelu,
    optimizer=lambda optimizer: optimizer,
    config=tf.ConfigProto,
  )


def migrated():
  import npu_bridge.npu_init as hub

  return models.Dialect(
    name="migrated",
    dropout=hub.npu_ops.dropout,
    gelu=hub.npu_unary_ops.gelu,
    optimizer=hub.npu_tf_optimizer,
    config=hub.npu_config_proto,
  )


def session_of(dialect):
  config = dialect.config()
  config.intra_op_parallelism_threads = config.inter_op_parallelism_threads = 1
  return tf.Session(config=config)


def losses_of(model, dialect):
  rng = np.random.default_rng(5)
  with tf.Graph().as_default():
    feeds, loss, train = model.build(dialect, 1.0)
    with session_of(dialect) as session:
      session.run(tf.global_variables_initializer())
      losses = []
      for _ in range(STEPS):
        batch = model.batch(rng)
        losses.append(float(session.run([loss, train], {feeds[name]: batch[name] for name in feeds})[0]))
      return losses


def dropout_losses_of(model, dialect):
  batch = model.batch(np.random.default_rng(6))
  with tf.Graph().as_default():
    tf.set_random_seed(7)
    feeds, loss, _ = model.build(dialect, KEEP_PROB)
    with session_of(dialect) as session:
      session.run(tf.global_variables_initializer())
      return [float(session.run(loss, {feeds[name]: batch[name] for name in feeds})) for _ in range(DRAWS)]


def main():
  dialect = {"stock": stock, "migrated": migrated}[sys.argv[1]]()
  result = {
    model.name: {"losses": losses_of(model, dialect), "dropout_losses": dropout_losses_of(model, dialect)}
    for model in models.MODELS
  }
  json.dump(result, sys.stdout)


if __name__ == "__main__":
  main()
