"""Measures dropout, gelu, layer normalization and the finite check of npu_bridge beside TensorFlow's compositions.

usage: npu_ops_bench.py [--json FILE] [--subjects NAME ...]
                        [--rows 4096] [--columns 1024] [--threads 1 2] [--seconds 0.3] [--repeats 9]

The contestants work on equal float32 variables and take turns. A figure is the median over `repeats` turns: of the rate, or of the
ratio within a turn; a ratio above 1 says that ours is faster. Dropout is beside tf.nn.dropout; gelu beside the formula as scripts
write it (with tf.pow) and beside tf.nn.gelu(approximate=True); layer normalization over the columns, with gradients of scale and
offset too, beside tf.nn.moments and tf.nn.batch_normalization, as tf.contrib.layers.layer_norm writes it; the check that loss
scaling makes of gradients beside tf.reduce_all(tf.is_finite(g)) over the same tensors (16 of them, as many elements in all).
"""

import argparse
import json
import os
import pathlib
import statistics
import sys
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
# Else all sessions of the process share the pool of threads that the first one asks for.
os.environ["TF_OVERRIDE_GLOBAL_THREADPOOL"] = "1"
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "python"))

import numpy as np
import tensorflow as tensorflow_v2
import tensorflow.compat.v1 as tf
from npu_bridge.estimator import npu_aicore_ops, npu_ops, npu_unary_ops


def written_out(x):
  """The gelu of public scripts."""
  return x * 0.5 * (1.0 + tf.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * tf.pow(x, 3))))


def normalized(function):
  """A function of x alone of one of x, scale and offset, which are variables."""

  def call(x):
    return function(x, tf.Variable(tf.ones(x.shape[1:])), tf.Variable(tf.zeros(x.shape[1:])))

  return call


def norm_written_out(x, gamma, beta):
  """The layer normalization of public scripts."""
  mean, variance = tf.nn.moments(x, [-1], keep_dims=True)
  return tf.nn.batch_normalization(x, mean, variance, beta, gamma, 1e-7)


SUBJECTS = {  # subject -> (name, function) of ours and of the others
  "gelu": [
    ("npu_unary_ops.gelu", npu_unary_ops.npu_unary_ops.gelu),
    ("written out", written_out),
    ("tf.nn.gelu", lambda x: tensorflow_v2.nn.gelu(x, approximate=True)),
  ],
  "dropout": [
    ("npu_ops.dropout", lambda x: npu_ops.dropout(x, 0.9)),
    ("tf.nn.dropout", lambda x: tf.nn.dropout(x, rate=0.1)),
  ],
  "layer norm": [
    ("npu_aicore_ops.layer_norm", normalized(lambda x, gamma, beta: npu_aicore_ops.layer_norm(x, gamma, beta, 1, 1)[0])),
    ("written out", normalized(norm_written_out)),
  ],
  "finite check": [
    ("npu_all_finite", npu_unary_ops.npu_unary_ops.npu_all_finite),
    ("tf.is_finite", lambda gradients: tf.reduce_all(tf.stack([tf.reduce_all(tf.math.is_finite(g)) for g in gradients]))),
  ],
}


def value_and_gradient(function, shape):
  """What a run fetches of an activation, dropout or normalization: its value, and the gradients of x and of its own variables."""
  x, incoming = (tf.Variable(tf.random.normal(shape, seed=seed)) for seed in (1, 2))
  y = function(x)
  wanted = [variable for variable in tf.trainable_variables() if variable is not incoming]
  return [y.op, *[gradient.op for gradient in tf.gradients(y, wanted, incoming)]]


def all_finite(function, shape):
  """What a run fetches of a check of gradients."""
  pieces = 16
  gradients = [tf.Variable(tf.random.normal([shape[0] // pieces, shape[1]], seed=seed)) for seed in range(pieces)]
  return [function(gradients).op]


class Contestant:
  """A session whose run makes what `build` says of the function."""

  def __init__(self, build, function, shape, threads):
    graph = tf.Graph()
    with graph.as_default():
      self.fetches = build(function, shape)
      config = tf.ConfigProto(use_per_session_threads=True)
      config.intra_op_parallelism_threads = config.inter_op_parallelism_threads = threads
      self.session = tf.Session(graph=graph, config=config)
      self.session.run(tf.global_variables_initializer())
    self.call = self.session.make_callable(self.fetches)
    self.run(3)

  def run(self, times):
    """Runs, and returns the seconds that it took."""
    begin = time.perf_counter()
    for _ in range(times):
      self.call()
    return time.perf_counter() - begin


def measure(subject, args, threads):
  """Rows of one subject: rates, then ratios with their bar."""
  shape = [args.rows, args.columns]
  build = all_finite if subject == "finite check" else value_and_gradient
  contestants = {name: Contestant(build, function, shape, threads) for name, function in SUBJECTS[subject]}
  times = {name: max(1, round(args.seconds / (one.run(3) / 3))) for name, one in contestants.items()}
  rates = {name: [] for name in contestants}
  for _ in range(args.repeats):
    for name, one in contestants.items():
      rates[name].append(times[name] * args.rows * args.columns / one.run(times[name]) / 1e6)
  figures = {name: statistics.median(rate) for name, rate in rates.items()}
  what = f"{subject}, {args.rows} x {args.columns}, {threads} thread(s)"
  rows = [{"what": f"{what}: {name}, M elements/s", "figure": figure, "turns": rates[name]} for name, figure in figures.items()]
  ours, *others = figures
  for other in others:
    ratio = statistics.median(a / b for a, b in zip(rates[ours], rates[other]))
    rows.append({"what": f"{what}: {ours} / {other}", "figure": ratio, "bar": 1.0, "met": ratio >= 1.0})
  return rows


def main():
  """Measures, prints a table, writes JSON when asked to."""
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument("--json", type=pathlib.Path, help="file for the figures")
  for name, value in (("rows", 4096), ("columns", 1024), ("repeats", 9)):
    parser.add_argument(f"--{name}", type=int, default=value)
  parser.add_argument("--subjects", nargs="+", default=list(SUBJECTS), choices=list(SUBJECTS))
  parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
  parser.add_argument("--seconds", type=float, default=0.3, help="of each turn")
  args = parser.parse_args()
  tf.disable_v2_behavior()
  rows = [row for subject in args.subjects for threads in args.threads for row in measure(subject, args, threads)]
  for row in rows:
    tail = f"  >=  {row['bar']:.3f}  {'met' if row['met'] else 'MISSED'}" if "bar" in row else ""
    print(f"{row['what']:<78} {row['figure']:9.3f}{tail}")
  if args.json:
    args.json.write_text(json.dumps({"subject": "npu_ops", "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
  main()
