"""DLRM on data in the Criteo TFRecord format: 26 ids and 13 numbers a row, 1,024 rows in each Example. One process or several:

    python examples/dlrm.py make-data --data criteo            # synthetic rows in that format: criteo/train, criteo/test
    python examples/dlrm.py train --data criteo
    mxrec launch -np 2 examples/dlrm.py train --data criteo

The defaults suit a small machine; --dim 128 --bottom 512 256 --top 1024 1024 512 256 --batch 8192 is the full model.
"""

import argparse
import pathlib
import time

import numpy as np
import tensorflow.compat.v1 as tf
from npu_bridge.npu_init import get_rank_id, get_rank_size, hccl_ops, npu_config_proto, npu_distributed_optimizer_wrapper

import mxrec

tf.disable_v2_behavior()

ROWS, SPARSE, DENSE = 1024, 26, 13


def make_data(options):
  """Writes Examples whose labels depend on ids and numbers; ids are skewed, as in life."""
  rng = np.random.default_rng(1)
  weights = rng.normal(size=[SPARSE, options.ids])
  for part, examples in (("train", options.examples), ("test", max(2, options.examples // 8))):
    folder = options.data / part
    folder.mkdir(parents=True, exist_ok=True)
    with tf.io.TFRecordWriter(str(folder / "part-0.tfrecord")) as writer:
      for _ in range(examples):
        ids = (rng.random([ROWS, SPARSE]) ** 3 * options.ids).astype(np.int64)
        numbers = rng.exponential(5.0, [ROWS, DENSE]).astype(np.float32)
        logits = weights[np.arange(SPARSE), ids].sum(axis=1) / 2 + np.log(numbers[:, 0] + 3) - 2
        labels = rng.random(ROWS) < 1 / (1 + np.exp(-logits))
        features = {
          "label": tf.train.Feature(int64_list=tf.train.Int64List(value=labels.astype(np.int64))),
          "sparse_feature": tf.train.Feature(
            int64_list=tf.train.Int64List(value=(ids + np.arange(SPARSE) * options.ids).reshape(-1))
          ),
          "dense_feature": tf.train.Feature(float_list=tf.train.FloatList(value=numbers.reshape(-1))),
        }
        writer.write(tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString())
    print(f"{folder}: {examples * ROWS} rows")


def batches(options, part, epochs):
  """(labels [B], ids [B, 26], numbers [B, 13]) of this rank's share of the files."""

  def parse(examples):
    features = tf.io.parse_example(
      examples,
      {
        "label": tf.FixedLenFeature([ROWS], tf.int64),
        "sparse_feature": tf.FixedLenFeature([ROWS * SPARSE], tf.int64),
        "dense_feature": tf.FixedLenFeature([ROWS * DENSE], tf.float32),
      },
    )
    labels = tf.cast(tf.reshape(features["label"], [options.batch]), tf.float32)
    ids = tf.reshape(features["sparse_feature"], [options.batch, SPARSE])
    return labels, ids, tf.log(tf.reshape(features["dense_feature"], [options.batch, DENSE]) + 3.0)

  files = sorted(str(path) for path in (options.data / part).glob("*.tfrecord"))
  if not files:
    raise SystemExit(f"{options.data / part} holds no *.tfrecord: see make-data")
  # Examples that would give some ranks one more than others are left out: all ranks make the same number of steps.
  dataset = tf.data.TFRecordDataset(files).batch(get_rank_size() * options.batch // ROWS, drop_remainder=True).unbatch()
  dataset = dataset.shard(get_rank_size(), get_rank_id()).repeat(epochs)
  dataset = dataset.batch(options.batch // ROWS, drop_remainder=True).map(parse).prefetch(2)
  return tf.data.make_one_shot_iterator(dataset).get_next()


def dense(values, widths, name):
  """Layers; the last one of the top has no activation."""
  for number, width in enumerate(widths):
    depth = int(values.shape[1])
    weight = tf.get_variable(
      f"{name}_{number}", [depth, width], initializer=tf.variance_scaling_initializer(mode="fan_avg", seed=number)
    )
    values = tf.matmul(values, weight) + tf.get_variable(f"{name}_bias_{number}", [width], initializer=tf.zeros_initializer())
    values = values if name == "top" and number == len(widths) - 1 else tf.nn.relu(values)
  return values


def logits_of(options, ids, numbers):
  """Logits [B]: pairwise products of the 26 rows and of what the numbers become, then the top layers."""
  table = mxrec.get_embedding_table(
    name="sparse_embedding_table",
    dimension=options.dim,
    device_vocabulary_size=options.rows * get_rank_size(),
    initializer=tf.random_normal_initializer(0.0, 0.05),
    key_dtype=tf.int64,
    value_dtype=tf.float32,
  )
  rows = mxrec.embedding_lookup(table, ids)
  with tf.variable_scope("dlrm", reuse=tf.AUTO_REUSE):
    bottom = dense(numbers, [*options.bottom, options.dim], "bottom")
    vectors = tf.concat([bottom[:, None], rows], axis=1)
    products = tf.matmul(vectors, vectors, transpose_b=True)
    lower = np.tril(np.ones([SPARSE + 1, SPARSE + 1], np.float32), -1)
    pairs = tf.reshape(products * lower, [-1, (SPARSE + 1) ** 2])
    return dense(tf.concat([bottom, pairs], axis=1), [*options.top, 1], "top")[:, 0]


def auc(labels, scores):
  """Area under the ROC curve; equal scores count half."""
  order = np.argsort(scores, kind="stable")
  _, inverse, counts = np.unique(scores[order], return_inverse=True, return_counts=True)
  ranks = np.empty(len(scores))
  ranks[order] = (np.cumsum(counts) - (counts - 1) / 2)[inverse]
  ones = labels > 0.5
  return (ranks[ones].sum() - ones.sum() * (ones.sum() + 1) / 2) / (ones.sum() * (~ones).sum())


def train(options):
  """Trains, and tells the AUC of the rows of data/test."""
  mxrec.init(options.config)
  tf.set_random_seed(5)
  labels, ids, numbers = batches(options, "train", options.epochs)
  loss = tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(labels=labels, logits=logits_of(options, ids, numbers)))
  variables, rows = tf.trainable_variables(), mxrec.get_sparse_embedding()
  optimizer = npu_distributed_optimizer_wrapper(tf.train.AdamOptimizer(options.rate))
  steps = [optimizer.minimize(loss, var_list=variables)]
  # Gradients of rows are added up over the ranks: the share of one in the joined batch is this.
  sparse = tf.gradients(loss / get_rank_size(), rows)
  steps.append(mxrec.AdamWOptimizer(learning_rate=options.rate, weight_decay=1e-4).apply_gradients(zip(sparse, rows)))
  step = tf.group(*steps)

  test_labels, test_ids, test_numbers = batches(options, "test", 1)
  scores = logits_of(options, test_ids, test_numbers)
  if get_rank_size() > 1:
    test_labels, scores = (hccl_ops.allgather(values, get_rank_size()) for values in (test_labels, scores))
    same = tf.group(*hccl_ops.broadcast(tf.global_variables(), 0))
  else:
    same = tf.no_op()
  with tf.Session(config=npu_config_proto()) as sess:
    sess.run(mxrec.get_init_hashtable_op())
    sess.run(tf.global_variables_initializer())
    sess.run(same)
    losses, begin, done = [], time.perf_counter(), 0
    while True:
      try:
        losses.append(sess.run([loss, step])[0])
      except tf.errors.OutOfRangeError:
        break
      if len(losses) % options.report == 0:
        number = len(losses) - done
        rate = get_rank_size() * options.batch * number / (time.perf_counter() - begin)
        print(f"step {len(losses)}: loss {np.mean(losses[-number:]):.4f}, {rate:.0f} rows a second")
        begin, done = time.perf_counter(), len(losses)
    found = []
    while True:
      try:
        found.append(sess.run([test_labels, scores]))
      except tf.errors.OutOfRangeError:
        break
    all_labels, all_scores = (np.concatenate(values) for values in zip(*found))
    print(f"{len(losses)} steps, loss {losses[0]:.4f} to {np.mean(losses[-5:]):.4f}")
    print(f"test AUC {auc(all_labels, all_scores):.4f} on {len(all_labels)} rows")


def main():
  """The command."""
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  commands = parser.add_subparsers(dest="command", required=True)
  making, training = commands.add_parser("make-data"), commands.add_parser("train")
  for command in (making, training):
    command.add_argument("--data", type=pathlib.Path, required=True, help="folder of train/*.tfrecord and test/*.tfrecord")
  making.add_argument("--examples", type=int, default=256, help="of 1,024 rows")
  making.add_argument("--ids", type=int, default=10_000, help="different ids of a feature")
  training.add_argument("--dim", type=int, default=16)
  training.add_argument("--rows", type=int, default=10_000_000, help="expected rows a rank")
  training.add_argument("--bottom", type=int, nargs="*", default=[64, 32])
  training.add_argument("--top", type=int, nargs="*", default=[128, 64])
  training.add_argument("--batch", type=int, default=2048, help="rows a rank, a multiple of 1,024")
  training.add_argument("--epochs", type=int, default=1)
  training.add_argument("--rate", type=float, default=0.003)
  training.add_argument("--report", type=int, default=10, help="steps between lines")
  training.add_argument("--config", help="a TOML file for mxrec.init")
  options = parser.parse_args()
  if options.command == "make-data":
    make_data(options)
    return
  if options.batch % ROWS or options.batch < ROWS:
    parser.error(f"--batch: expected a multiple of {ROWS}, found {options.batch}")
  train(options)


if __name__ == "__main__":
  main()
