"""Two tables, two labels, synthetic ids; trains, evaluates, saves, and goes on from what was saved. One process or several:

    python examples/little_demo.py --folder demo
    mxrec launch -np 2 examples/little_demo.py --folder demo

A second start restores the newest step of the folder and trains as many steps more.
"""

import argparse
import pathlib
import re
import time

import numpy as np
import tensorflow.compat.v1 as tf
from npu_bridge.npu_init import get_rank_id, get_rank_size, hccl_ops, npu_config_proto

import mxrec

tf.disable_v2_behavior()

USER_FEATURES, ITEM_FEATURES = 8, 16


def batches(options, first):
  """(user ids [B, 8], item ids [B, 16], labels [B], labels [B]), without end: this rank's own, others from another step on."""

  def make():
    step = first
    while True:
      rng = np.random.default_rng([step, get_rank_id()])
      users = rng.integers(0, options.ids * get_rank_size(), [options.batch, USER_FEATURES])
      items = rng.integers(0, options.ids * get_rank_size(), [options.batch, ITEM_FEATURES])
      # An id counts as odd or even; a label says which kind are more.
      labels = [((of % 2).sum(axis=1) * 2 > of.shape[1]).astype(np.float32) for of in (users, items)]
      yield users, items, *labels
      step += 1

  shapes = ([options.batch, USER_FEATURES], [options.batch, ITEM_FEATURES], [options.batch], [options.batch])
  dataset = tf.data.Dataset.from_generator(make, (tf.int64, tf.int64, tf.float32, tf.float32), shapes)
  return tf.data.make_one_shot_iterator(dataset.prefetch(2)).get_next()


def model(options, first):
  """The loss of a batch; called for training and for evaluation, with the same tables and variables."""
  users, items, label_0, label_1 = batches(options, first)
  user_table = mxrec.get_embedding_table(
    name="user_table",
    dimension=32,
    device_vocabulary_size=options.ids * get_rank_size(),
    initializer=tf.truncated_normal_initializer(0.0, 0.05),
    key_dtype=tf.int64,
    value_dtype=tf.float32,
  )
  item_table = mxrec.get_embedding_table(
    name="item_table",
    dimension=8,
    device_vocabulary_size=options.ids * get_rank_size(),
    initializer=tf.truncated_normal_initializer(0.0, 0.05),
  )
  pooled = [tf.reduce_sum(mxrec.embedding_lookup(table, ids), axis=1) for table, ids in ((user_table, users), (item_table, items))]
  loss = 0.0
  with tf.variable_scope("towers", reuse=tf.AUTO_REUSE):
    for name, rows, label in (("user", pooled[0], label_0), ("item", pooled[1], label_1)):
      weight = tf.get_variable(name, [rows.shape[1], 16], initializer=tf.glorot_uniform_initializer(seed=1))
      last = tf.get_variable(f"{name}_last", [16, 1], initializer=tf.truncated_normal_initializer(0.0, 0.01, seed=2))
      logits = tf.matmul(tf.tanh(tf.matmul(rows, weight)), last)[:, 0]
      loss += tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(labels=label, logits=logits))
  return loss


def train_op(loss, rate):
  """Gradients of variables are averaged over the ranks here; those of rows are added up at their owners by the tables."""
  variables, rows = tf.trainable_variables(), mxrec.get_sparse_embedding()
  gradients = tf.gradients(loss, variables + rows)
  dense, sparse = gradients[: len(variables)], gradients[len(variables) :]
  if get_rank_size() > 1:
    dense = [hccl_ops.allreduce(gradient, "sum") / get_rank_size() for gradient in dense]
  dense_optimizer = tf.train.AdamOptimizer(rate)
  sparse_optimizer = mxrec.AdamWOptimizer(learning_rate=rate)
  return tf.group(dense_optimizer.apply_gradients(zip(dense, variables)), sparse_optimizer.apply_gradients(zip(sparse, rows)))


def newest(folder):
  """The highest step of the files model-<step> in a folder, or 0."""
  steps = [re.match(r".*model-([0-9]+).*", str(path)) for path in folder.glob("model-*")]
  return max((int(step.group(1)) for step in steps if step), default=0)


def main():
  """The command."""
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("--folder", type=pathlib.Path, default=pathlib.Path("little_demo_out"), help="of checkpoints")
  parser.add_argument("--steps", type=int, default=200)
  parser.add_argument("--interval", type=int, default=100, help="steps between evaluations and checkpoints")
  parser.add_argument("--eval-steps", type=int, default=10)
  parser.add_argument("--batch", type=int, default=4096, help="rows a rank")
  parser.add_argument("--ids", type=int, default=5_000_000, help="different ids a rank")
  parser.add_argument("--rate", type=float, default=0.05)
  parser.add_argument("--config", help="a TOML file for mxrec.init")
  options = parser.parse_args()
  options.folder.mkdir(parents=True, exist_ok=True)

  mxrec.init(options.config)
  tf.set_random_seed(7)
  begin = newest(options.folder)
  loss = model(options, begin)
  train = train_op(loss, options.rate)
  evaluation = model(options, 1 << 30)
  dense_saver = tf.train.Saver(tf.global_variables())
  table_saver = mxrec.EmbeddingTableSaver(mxrec.get_existing_tables())
  same = tf.group(*hccl_ops.broadcast(tf.global_variables(), 0)) if get_rank_size() > 1 else tf.no_op()

  with tf.Session(config=npu_config_proto()) as sess:
    sess.run(mxrec.get_init_hashtable_op())
    sess.run(tf.global_variables_initializer())
    if begin:
      if get_rank_id() == 0:
        dense_saver.restore(sess, f"{options.folder}/model-{begin}")
      table_saver.load(sess, str(options.folder), begin)
      print(f"restored step {begin}")
    sess.run(same)  # rank 0's variables for all
    start = time.perf_counter()
    for step in range(begin + 1, begin + options.steps + 1):
      value, _ = sess.run([loss, train])
      if step == begin + 1 or step % 20 == 0:
        print(f"step {step}: loss {value:.4f}")
      if step % options.interval == 0:
        rows = options.interval * options.batch * get_rank_size()
        seconds = time.perf_counter() - start
        found = np.mean([sess.run(evaluation) for _ in range(options.eval_steps)])
        print(f"step {step}: evaluation loss {found:.4f}; {rows / seconds:.0f} rows a second")
        table_saver.save(sess, str(options.folder), step)  # all ranks, one folder
        if get_rank_id() == 0:
          dense_saver.save(sess, f"{options.folder}/model", global_step=step)
        start = time.perf_counter()
  print("Demo done.")


if __name__ == "__main__":
  main()
