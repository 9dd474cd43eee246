"""A table, two MLPs and pairwise dot products between them."""

import argparse
import time

import numpy as np
import tensorflow as tf
import toml
from sklearn.metrics import roc_auc_score

import mxrec
from data import IDS, dataset
from optimizers import LOSS_SCALE, LossScaleWrapper, schedule, sparse_optimizers
from rec_sdk_common.communication.hccl.hccl_info import get_rank_id, get_rank_size

if not tf.__version__.startswith("1"):
  raise RuntimeError("this program is for TensorFlow 1: found %s" % tf.__version__)
from npu_bridge.hccl import hccl_ops
from npu_bridge.npu_init import *

LOOP = 10


class Config(object):
  rank_size = get_rank_size()
  rank_id = get_rank_id()
  dim = 8
  bottom = (32, 16, 8)
  top = (32, 16, 1)


class DotModel(object):
  def __init__(self, batch):
    self.label, ids, numbers = batch
    table = mxrec.get_embedding_table(
      name="sparse_embedding_table",
      dimension=Config.dim,
      device_vocabulary_size=100000 * Config.rank_size,
      initializer=tf.random_uniform_initializer(-0.05, 0.05, seed=5),
    )
    rows = mxrec.embedding_lookup(table, ids)
    with tf.variable_scope("mlp", reuse=tf.AUTO_REUSE):
      dense = self._mlp(numbers, Config.bottom, "bottom")
      vectors = tf.concat([tf.expand_dims(dense, 1), rows], axis=1)
      products = tf.matmul(vectors, vectors, transpose_b=True)
      mask = tf.constant(np.tril(np.ones([IDS + 1, IDS + 1], np.float32), -1))
      flat = tf.reshape(products * mask, [-1, (IDS + 1) ** 2])
      self.logits = self._mlp(tf.concat([flat, dense], axis=1), Config.top, "top")
    label = tf.cast(self.label, tf.float32)
    self.loss = tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(labels=label, logits=self.logits))
    self.prediction = tf.sigmoid(self.logits)

  def _mlp(self, inputs, sizes, name):
    initializer = tf.variance_scaling_initializer(mode="fan_avg", distribution="normal", seed=11)
    for index, size in enumerate(sizes):
      inputs = tf.layers.dense(
        inputs,
        size,
        activation=None if size == 1 else "relu",
        kernel_initializer=initializer,
        bias_initializer=tf.zeros_initializer(),
        kernel_regularizer=tf.contrib.layers.l2_regularizer(1e-7),
        name="%s_%d" % (name, index),
      )
    return inputs


def session_config():
  config = tf.ConfigProto(allow_soft_placement=False)
  custom_op = config.graph_options.rewrite_options.custom_optimizers.add()
  custom_op.name = "NpuOptimizer"
  custom_op.parameter_map["mix_compile_mode"].b = False
  custom_op.parameter_map["use_off_line"].b = True
  custom_op.parameter_map["iterations_per_loop"].i = LOOP
  custom_op.parameter_map["precision_mode"].s = tf.compat.as_bytes("must_keep_origin_dtype")
  custom_op.parameter_map["enable_dump"].b = False
  custom_op.parameter_map["op_execute_timeout"].i = 600
  config.graph_options.rewrite_options.remapping = RewriterConfig.OFF
  config.graph_options.rewrite_options.memory_optimization = RewriterConfig.OFF
  return config


def main():
  parser = argparse.ArgumentParser()
  parser.add_argument("--data_path", required=True)
  parser.add_argument("--toml_path", required=True)
  args = parser.parse_args()
  batch_size = toml.load(args.toml_path)["model"]["batch_number"]
  steps = toml.load(args.toml_path)["model"]["train_steps"]
  tf.set_random_seed(21)
  sess = tf.Session(config=session_config())
  step = tf.Variable(0, trainable=False, name="global_step", dtype=tf.int64)
  mxrec.init(args.toml_path)
  batch, train_input = dataset(args.data_path + "/train", batch_size, Config.rank_size, Config.rank_id, True)
  model = DotModel(batch)
  batch, eval_input = dataset(args.data_path + "/test", batch_size, Config.rank_size, Config.rank_id, False)
  eval_model = DotModel(batch)

  dense_vars = tf.compat.v1.trainable_variables()
  sparse = mxrec.get_sparse_embedding()
  assert len(sparse) == 2
  loss = (model.loss + tf.losses.get_regularization_loss()) * LOSS_SCALE
  grads = tf.gradients(loss, dense_vars + sparse)
  dense_grads, sparse_grads = grads[: -len(sparse)], grads[-len(sparse) :]
  if Config.rank_size > 1:
    dense_grads = [hccl_ops.allreduce(grad, "sum") / Config.rank_size for grad in dense_grads]
  rate = schedule(0.05, step, 20.0, 150.0, 200.0)
  dense = LossScaleWrapper(tf.train.GradientDescentOptimizer(rate))
  updates = [dense.apply_gradients(list(zip(dense_grads, dense_vars)))]
  for optimizer in sparse_optimizers(mxrec.get_existing_tables(), schedule(10.0, step, 20.0, 150.0, 200.0)):
    updates.append(LossScaleWrapper(optimizer).apply_gradients(list(zip(sparse_grads, sparse))))
  with tf.control_dependencies(updates + [tf.assign_add(step, 1)]):
    train_op = tf.no_op()

  sess.run(tf.global_variables_initializer())
  sess.run(mxrec.get_init_hashtable_op())
  sess.run(train_input)
  looped = util.set_iteration_per_loop(sess, train_op, LOOP)
  start = time.time()
  for _ in range(steps // LOOP):
    _, value = sess.run([looped, model.loss])
  speed = Config.rank_size * batch_size * steps / (time.time() - start)
  print("trained %d steps, loss %.4f, %.0f rows a second" % (sess.run(step), value, speed))

  sess.run(eval_input)
  labels, predictions = [], []
  while True:
    try:
      label, prediction = sess.run([eval_model.label, eval_model.prediction])
    except tf.errors.OutOfRangeError:
      break
    labels.append(label)
    predictions.append(prediction)
  print("AUC %.4f over %d rows" % (roc_auc_score(np.concatenate(labels), np.concatenate(predictions)), len(labels) * batch_size))
  sess.close()


if __name__ == "__main__":
  main()
