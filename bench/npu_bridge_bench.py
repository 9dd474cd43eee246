"""Measures what a script migrated to npu_bridge costs over its stock twin, a step.

usage: npu_bridge_bench.py [--json FILE] [--rounds 40] [--steps 20] [--models NAME ...]

The ten models of tests/parity, without dropout, each built and trained in both dialects in this one process, one thread. The two
take turns of `steps` steps; the figure of a model is the median over the rounds of (migrated / stock).
"""

import argparse
import json
import pathlib
import statistics
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests" / "parity"))

import worker  # isort: skip  (sets the environment that TensorFlow needs, and the path of the packages)
import numpy as np
import tensorflow.compat.v1 as tf
from models import MODELS

STEP_BAR = 1.03


class Trainer:
  """One model in one dialect, and its feeds."""

  def __init__(self, model, dialect):
    self.graph = tf.Graph()
    with self.graph.as_default():
      feeds, _, self.train = model.build(dialect, 1.0)
      self.session = worker.session_of(dialect)
      self.session.run(tf.global_variables_initializer())
    rng = np.random.default_rng(3)
    self.feeds = []
    for _ in range(8):
      batch = model.batch(rng)
      self.feeds.append({feeds[name]: batch[name] for name in feeds})

  def seconds(self, steps):
    begin = time.perf_counter()
    for step in range(steps):
      self.session.run(self.train, self.feeds[step % len(self.feeds)])
    return time.perf_counter() - begin


def main():
  """Measures, prints a table, writes JSON when asked to."""
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument("--json", type=pathlib.Path, help="file for the figures")
  parser.add_argument("--rounds", type=int, default=40)
  parser.add_argument("--steps", type=int, default=20)
  parser.add_argument("--models", nargs="*", default=[model.name for model in MODELS])
  args = parser.parse_args()
  chosen = [model for model in MODELS if model.name in args.models]
  # The stock sessions come first: the star import wraps the constructor of later ones.
  dialect = worker.stock()
  stock = {model.name: Trainer(model, dialect) for model in chosen}
  dialect = worker.migrated()
  migrated = {model.name: Trainer(model, dialect) for model in chosen}
  rows = []
  for name in stock:
    ratios = []
    for trainer in (stock[name], migrated[name]):
      trainer.seconds(args.steps)
    for turn in range(args.rounds):
      pair = {}
      for side in (stock, migrated) if turn % 2 else (migrated, stock):
        pair[id(side)] = side[name].seconds(args.steps)
      ratios.append(pair[id(migrated)] / pair[id(stock)])
    rows.append({"what": f"{name}: migrated step / stock step", "figure": statistics.median(ratios), "bar": STEP_BAR})
  rows.append({"what": "median of the models", "figure": statistics.median(row["figure"] for row in rows), "bar": STEP_BAR})
  for row in rows:
    row["met"] = row["figure"] <= row["bar"]
    print(f"{row['what']:<78} {row['figure']:9.3f}  <=  {row['bar']:.3f}  {'met' if row['met'] else 'MISSED'}")
  if args.json:
    args.json.write_text(json.dumps({"subject": "npu_bridge", "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
  main()
