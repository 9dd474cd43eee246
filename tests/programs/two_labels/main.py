"""Trains two tables and two heads on made-up ids, evaluates, saves, and goes on from what was saved."""

import argparse
import glob
import os
import re

import numpy as np
import tensorflow as tf

import mxrec
from model import Model
from settings import Settings, session_config

if tf.__version__.startswith("1"):
  from npu_bridge.hccl import hccl_ops
else:
  from npu_device.compat.v1.hccl import hccl_ops


def make_batch(settings, seed):
  def generate():
    rng = np.random.RandomState(seed)
    while True:
      users = rng.randint(0, settings.id_range, [settings.batch_size, settings.user_features], dtype=np.int64)
      items = rng.randint(0, 1000, [settings.batch_size, settings.item_features], dtype=np.int64) + (2**63 - 1000)
      yield {
        "user_ids": users,
        "item_ids": items,
        "label_0": (items[:, 0] % 2 == 0).astype(np.float32),
        "label_1": (items[:, 1] % 2 == 1).astype(np.float32),
      }

  shapes = {
    "user_ids": tf.TensorShape([settings.batch_size, settings.user_features]),
    "item_ids": tf.TensorShape([settings.batch_size, settings.item_features]),
    "label_0": tf.TensorShape([settings.batch_size]),
    "label_1": tf.TensorShape([settings.batch_size]),
  }
  types = {"user_ids": tf.int64, "item_ids": tf.int64, "label_0": tf.float32, "label_1": tf.float32}
  dataset = tf.data.Dataset.from_generator(generate, types, shapes).prefetch(2)
  iterator = dataset.make_initializable_iterator()
  return iterator.get_next(), iterator.initializer


class Demo(object):
  def __init__(self, settings):
    self.settings = settings
    self.sess = tf.compat.v1.Session(config=session_config(settings))
    mxrec.init(settings.toml_path)
    batch, self.train_input = make_batch(settings, seed=1)
    self.train_model = Model(settings, batch, True)
    batch, self.eval_input = make_batch(settings, seed=2)
    self.eval_model = Model(settings, batch, False)
    self.train_op = self._train_op()
    self.saver = tf.train.Saver()
    self.table_saver = mxrec.EmbeddingTableSaver(mxrec.get_existing_tables())

  def __del__(self):
    self.sess.close()

  def _train_op(self):
    settings = self.settings
    loss = self.train_model.data_loss + tf.losses.get_regularization_loss()
    dense_vars = tf.trainable_variables()
    sparse = mxrec.get_sparse_embedding()[:2]
    grads = tf.gradients(loss, dense_vars + sparse)
    dense_grads, sparse_grads = grads[: -len(sparse)], grads[-len(sparse) :]
    if settings.rank_size > 1:
      dense_grads = [hccl_ops.allreduce(grad, "sum") for grad in dense_grads]
    updates = [tf.train.AdamOptimizer(learning_rate=settings.learning_rate).apply_gradients(zip(dense_grads, dense_vars))]
    optimizer = mxrec.AdamWOptimizer(learning_rate=settings.learning_rate)
    assert isinstance(optimizer, tf.compat.v1.train.Optimizer)
    updates.append(optimizer.apply_gradients(zip(sparse_grads, sparse)))
    return tf.group(updates)

  def start(self):
    self.sess.run(mxrec.get_init_hashtable_op())
    if self.settings.mode != "predict":
      self.sess.run(tf.global_variables_initializer())
    self.sess.run([self.train_input, self.eval_input])

  def last_step(self):
    steps = [0]
    for name in glob.glob(os.path.join(self.settings.saved_path, "model-*")):
      found = re.match(".*model-([0-9]+).*", name)
      steps.append(int(found.group(1)))
    return max(steps)

  def load(self):
    step = self.last_step()
    self.saver.restore(self.sess, os.path.join(self.settings.saved_path, "model-%d" % step))
    self.table_saver.load(self.sess, self.settings.saved_path, step)
    return step

  def train(self, first):
    settings = self.settings
    for step in range(first, first + settings.train_steps):
      _, loss = self.sess.run([self.train_op, self.train_model.data_loss])
      if step == first or (step + 1) % 10 == 0:
        print("step %d loss %.4f" % (step + 1, loss))
      if (step + 1) % settings.train_interval == 0:
        self.evaluate()
        self.save(step + 1)

  def evaluate(self):
    losses = [self.sess.run(self.eval_model.data_loss) for _ in range(self.settings.eval_steps)]
    print("evaluation loss %.4f" % np.mean(losses))

  def save(self, step):
    self.saver.save(self.sess, self.settings.saved_path + "/model", global_step=step)
    self.table_saver.save(self.sess, self.settings.saved_path, step)

  def run(self):
    first = 0
    self.start()
    if self.settings.mode in ("load_and_train", "predict"):
      first = self.load()
      print("loaded step %d" % first)
    if self.settings.mode == "predict":
      self.evaluate()
      print("predicted", self.sess.run(self.eval_model.predictions)[0].shape)
    else:
      self.train(first)
    print("Demo done.")


if __name__ == "__main__":
  parser = argparse.ArgumentParser()
  parser.add_argument("--toml_path", type=str, required=True)
  args = parser.parse_args()
  if tf.__version__.startswith("1"):
    tf.set_random_seed(128)
  else:
    tf.random.set_seed(128)
  Demo(Settings(args.toml_path)).run()
