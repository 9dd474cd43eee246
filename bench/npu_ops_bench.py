"""Measures dropout and gelu of npu_bridge beside TensorFlow's compositions: forward and gradient in one run of a session.

usage: npu_ops_bench.py [--json FILE] [--rows 4096] [--columns 1024] [--threads 1 2] [--seconds 0.3] [--repeats 9]

The contestants work on equal float32 variables and take turns; the figure is the median rate of `repeats` turns, and a ratio
above 1 says that ours is faster. Dropout is beside tf.nn.dropout; gelu beside the formula as scripts write it (with tf.pow) and
beside tf.nn.gelu(approximate=True).
"""

import argparse
import json
import os
import pathlib
import statistics
import sys
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "python"))

import numpy as np
import tensorflow as tensorflow_v2
import tensorflow.compat.v1 as tf
from npu_bridge.estimator import npu_ops, npu_unary_ops


def written_out(x):
  """The gelu of public scripts."""
  return x * 0.5 * (1.0 + tf.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * tf.pow(x, 3))))


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
}


class Contestant:
  """A session whose run makes the function's value and its gradient."""

  def __init__(self, function, shape, threads):
    graph = tf.Graph()
    with graph.as_default():
      x, incoming = (tf.Variable(tf.random.normal(shape, seed=seed)) for seed in (1, 2))
      y = function(x)
      self.fetches = [y.op, tf.gradients(y, x, incoming)[0].op]
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
  contestants = {name: Contestant(function, shape, threads) for name, function in SUBJECTS[subject]}
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
    ratio = figures[ours] / figures[other]
    rows.append({"what": f"{what}: {ours} / {other}", "figure": ratio, "bar": 1.0, "met": ratio >= 1.0})
  return rows


def main():
  """Measures, prints a table, writes JSON when asked to."""
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument("--json", type=pathlib.Path, help="file for the figures")
  for name, value in (("rows", 4096), ("columns", 1024), ("repeats", 9)):
    parser.add_argument(f"--{name}", type=int, default=value)
  parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
  parser.add_argument("--seconds", type=float, default=0.3, help="of each turn")
  args = parser.parse_args()
  tf.disable_v2_behavior()
  rows = [row for subject in SUBJECTS for threads in args.threads for row in measure(subject, args, threads)]
  for row in rows:
    tail = f"  >=  {row['bar']:.3f}  {'met' if row['met'] else 'MISSED'}" if "bar" in row else ""
    print(f"{row['what']:<78} {row['figure']:9.3f}{tail}")
  if args.json:
    args.json.write_text(json.dumps({"subject": "npu_ops", "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
  main()
