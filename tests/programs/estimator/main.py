"""A TPUEstimator, as public BERT and ranking scripts have it, on feature columns and layers of contrib."""

import numpy as np
import tensorflow as tf
from tensorflow.contrib.tpu import TPUEstimator
from tensorflow.python.estimator import run_config
from tensorflow.python.estimator.estimator import Estimator

flags = tf.flags
FLAGS = flags.FLAGS
flags.DEFINE_integer("batch", 16, "rows of a training batch")
flags.DEFINE_string("model_dir", None, "where checkpoints go")

COLUMNS = [
  tf.feature_column.embedding_column(tf.feature_column.categorical_column_with_hash_bucket("kind", 10), 4),
  tf.feature_column.numeric_column("size"),
]


def input_fn(params):
  features = {"kind": np.array(["even", "odd"] * 32), "size": np.linspace(-1, 1, 64).astype(np.float32)}
  dataset = tf.data.Dataset.from_tensor_slices((features, np.arange(64) % 2))
  return dataset.shuffle(64, seed=1).repeat(8).apply(tf.contrib.data.batch_and_drop_remainder(params["batch_size"]))


def model_fn(features, labels, mode, params):
  hidden = tf.contrib.layers.fully_connected(tf.feature_column.input_layer(features, COLUMNS), params["width"])
  hidden = tf.contrib.layers.layer_norm(hidden)
  logits = tf.squeeze(tf.layers.dense(hidden, 1), 1)
  chance = tf.sigmoid(logits)
  if mode == tf.estimator.ModeKeys.PREDICT:
    return tf.contrib.tpu.TPUEstimatorSpec(mode, predictions={"chance": chance})
  loss = tf.losses.sigmoid_cross_entropy(labels, logits)
  train = tf.contrib.layers.optimize_loss(loss, tf.train.get_global_step(), 0.05, "Adam", clip_gradients=5.0)
  metrics = (lambda labels, chance: {"auc": tf.metrics.auc(labels, chance)}, [labels, chance])
  return tf.contrib.tpu.TPUEstimatorSpec(mode, loss=loss, train_op=train, eval_metrics=metrics)


def main(_):
  assert Estimator is tf.estimator.Estimator and run_config.RunConfig is tf.estimator.RunConfig
  config = tf.contrib.tpu.RunConfig(
    model_dir=FLAGS.model_dir, tpu_config=tf.contrib.tpu.TPUConfig(iterations_per_loop=10), save_checkpoints_steps=1000
  )
  estimator = TPUEstimator(
    model_fn,
    config=config,
    params={"width": 8},
    use_tpu=False,
    train_batch_size=FLAGS.batch,
    eval_batch_size=8,
    predict_batch_size=4,
  )
  estimator.train(input_fn, max_steps=30)
  found = estimator.evaluate(input_fn)
  print("step %d auc %.2f" % (found["global_step"], found["auc"]))
  print("chance %.1f" % next(estimator.predict(input_fn))["chance"])


if __name__ == "__main__":
  flags.mark_flag_as_required("model_dir")
  tf.app.run()
