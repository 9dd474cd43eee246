"""Measures whole training steps in TensorFlow: many tables, with the fuse pass and without, against one merged table.

usage: tf_step_bench.py [--json FILE] [--tables 26] [--ids 2048] [--dim 16] [--keys 1000000] [--threads 1]
                        [--seconds 3] [--repeats 5]

A step is session.run of lookups, loss (sum of squares), gradients and Adagrad. Three models train the same ids: `tables`
tables of `ids` ids each as they run by default, the same with MXREC_FUSE=0, and one table with all ids of the step. Ids come
from a pool of batches that all models share, drawn evenly from `keys` keys a table; the pool was trained once before the
clock starts. The models take turns; rates are medians of `repeats` turns, and ratios are medians of the ratio within a turn.
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
import tensorflow.compat.v1 as tf

import mxrec

BAR = 0.8  # of the merged table's rate
BATCHES = 16


class Model:
  """A graph with its session, and the batches it trains."""

  def __init__(self, args, merged=False, fuse=None):
    self.fuse = fuse
    count, each = (1, args.tables * args.ids) if merged else (args.tables, args.ids)
    rng = np.random.default_rng(1)
    ids = rng.integers(0, args.keys, [BATCHES, args.tables, args.ids])
    if merged:  # the same keys, told apart by their table
      ids = ids + np.arange(args.tables)[:, None] * args.keys
    self.batches = ids.reshape([BATCHES, count, each])
    graph = tf.Graph()
    with graph.as_default():
      # One feed, as an input pipeline hands out one batch.
      self.ids = tf.placeholder(tf.int64, [count, each])
      losses = []
      for t in range(count):
        table = mxrec.get_embedding_table(f"t{t}", args.dim, args.keys)
        losses.append(tf.reduce_sum(tf.square(mxrec.embedding_lookup(table, self.ids[t]))))
      self.train = mxrec.minimize(tf.add_n(losses), tf.train.AdagradOptimizer(0.01))
    config = tf.ConfigProto(use_per_session_threads=True)
    config.intra_op_parallelism_threads = config.inter_op_parallelism_threads = args.threads
    self.session = tf.Session(graph=graph, config=config)
    self.step = 0
    self.run(BATCHES)

  def run(self, steps):
    """Trains, and returns the seconds that it took."""
    os.environ.pop("MXREC_FUSE", None)  # read when the session builds its step, at the first run
    if self.fuse is not None:
      os.environ["MXREC_FUSE"] = self.fuse
    begin = time.perf_counter()
    for _ in range(steps):
      self.session.run(self.train, {self.ids: self.batches[self.step % BATCHES]})
      self.step += 1
    return time.perf_counter() - begin

  def ops(self):
    """How many ops a step runs."""
    metadata = tf.RunMetadata()
    options = tf.RunOptions(trace_level=tf.RunOptions.FULL_TRACE)
    self.session.run(self.train, {self.ids: self.batches[0]}, options=options, run_metadata=metadata)
    return sum(len(device.node_stats) for device in metadata.step_stats.dev_stats)


def main():
  """Measures, prints a table, writes JSON when asked to."""
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument("--json", type=pathlib.Path, help="file for the figures")
  for name, value in (("tables", 26), ("ids", 2048), ("dim", 16), ("keys", 1_000_000), ("threads", 1), ("repeats", 5)):
    parser.add_argument(f"--{name}", type=int, default=value)
  parser.add_argument("--seconds", type=float, default=3, help="of each turn")
  args = parser.parse_args()
  tf.disable_v2_behavior()
  models = {
    "default": Model(args),
    "MXREC_FUSE=0": Model(args, fuse="0"),
    "one merged table": Model(args, merged=True),
  }
  steps = {name: max(1, round(args.seconds / (model.run(5) / 5))) for name, model in models.items()}
  rates = {name: [] for name in models}
  for _ in range(args.repeats):
    for name, model in models.items():
      rates[name].append(steps[name] / model.run(steps[name]))
  against = {}
  for name in ("MXREC_FUSE=0", "one merged table"):
    against[name] = statistics.median(ours / other for ours, other in zip(rates["default"], rates[name], strict=True))
  ratio = against["one merged table"]
  what = f"{args.tables} tables x {args.ids} ids, dim {args.dim}, Adagrad, {args.threads} thread(s)"
  rows = []
  for name, model in models.items():
    rows.append(
      {"what": f"{what}: {name}, steps/s", "figure": statistics.median(rates[name]), "ops": model.ops(), "turns": rates[name]}
    )
  rows.append({"what": f"{what}: default / MXREC_FUSE=0", "figure": against["MXREC_FUSE=0"]})
  rows.append({"what": f"{what}: default / one merged table", "figure": ratio, "bar": BAR, "met": ratio >= BAR})
  for row in rows:
    tail = f"  >=  {row['bar']:.3f}  {'met' if row['met'] else 'MISSED'}" if "bar" in row else ""
    tail += f"  {row['ops']} ops" if "ops" in row else ""
    print(f"{row['what']:<78} {row['figure']:9.3f}{tail}")
  if args.json:
    args.json.write_text(json.dumps({"subject": "tf_step", "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
  main()
