"""TFRecord files with several rows in each Example; `python data.py folder` writes small ones."""

import os
import sys

import numpy as np
import tensorflow as tf

LINES = 64
IDS = 26
NUMBERS = 13


def write(path, examples, seed):
  rng = np.random.RandomState(seed)
  with tf.python_io.TFRecordWriter(path) as writer:
    for _ in range(examples):
      ids = rng.randint(0, 50, [LINES, IDS]) + np.arange(IDS) * 1000
      numbers = rng.uniform(0, 5, [LINES, NUMBERS])
      label = ids[:, 0] % 2
      feature = {
        "label": tf.train.Feature(int64_list=tf.train.Int64List(value=label)),
        "sparse_feature": tf.train.Feature(int64_list=tf.train.Int64List(value=ids.ravel())),
        "dense_feature": tf.train.Feature(float_list=tf.train.FloatList(value=numbers.ravel())),
      }
      writer.write(tf.train.Example(features=tf.train.Features(feature=feature)).SerializeToString())


def dataset(folder, batch_size, rank_size, rank_id, is_train):
  def parse(serialized):
    parsed = tf.io.parse_example(
      serialized,
      {
        "label": tf.io.FixedLenFeature([LINES], tf.int64),
        "sparse_feature": tf.io.FixedLenFeature([IDS * LINES], tf.int64),
        "dense_feature": tf.io.FixedLenFeature([NUMBERS * LINES], tf.float32),
      },
    )
    return (
      tf.reshape(parsed["label"], [-1, 1]),
      tf.reshape(parsed["sparse_feature"], [-1, IDS]),
      tf.log(tf.reshape(parsed["dense_feature"], [-1, NUMBERS]) + 3.0),
    )

  files = tf.gfile.Glob(os.path.join(folder, "*.tfrecord"))
  records = tf.data.TFRecordDataset(files).shard(rank_size, rank_id)
  if is_train:
    records = records.shuffle(100, seed=3).repeat()
  records = records.batch(batch_size // LINES, drop_remainder=True).map(parse, num_parallel_calls=tf.data.experimental.AUTOTUNE)
  iterator = records.prefetch(2).make_initializable_iterator()
  return iterator.get_next(), iterator.initializer


if __name__ == "__main__":
  for part, count in (("train", 40), ("test", 8)):
    os.makedirs(os.path.join(sys.argv[1], part))
    write(os.path.join(sys.argv[1], part, "part_0.tfrecord"), count, count)
