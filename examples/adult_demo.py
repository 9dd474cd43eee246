#!/usr/bin/env python3
"""Trains a DLRM-style model with mxrec tables on the UCI Adult census data. This is `make demo`.

    7 numbers ------------------> bottom MLP ----+
     8 categories     -> table "category" -------+
     5 number buckets -> table "bucket"   -------+--> pairwise dot products --> top MLP --> P(income > 50K)
     8 crosses        -> table "cross"    -------+

An id is a 64-bit hash of feature name and value; no vocabulary is built. Shown in this order: training with progress, the AUC on
the official test part after each epoch, table statistics, saving, loading in a new process, and that the new process predicts
the same bits. <out>/adult_demo.png gets the curves.

`--plain` trains the same model with tf.Variable tables and dense row numbers instead, for comparison.

Exit codes: 0 all well; 1 AUC below 0.89, or a prediction differs after loading; 2 wrong arguments.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import io
import lzma
import os
import subprocess
import sys
import time
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")  # equal bits for any thread count: docs/differences.md

import numpy as np
import tensorflow.compat.v1 as tf

tf.logging.set_verbosity(tf.logging.ERROR)  # hides the notices that TF1 calls are old
tf.disable_v2_behavior()

DATA = Path(__file__).resolve().parent / "data"
MIN_AUC = 0.89
DIM = 16
BATCH = 256
EVAL_BATCH = 2048
NUMBERS = 7
INITIAL_STDDEV = 0.1

CATEGORIES = ("workclass", "education", "marital_status", "occupation", "relationship", "race", "sex", "native_country")
BUCKETS = {
  "age": (18, 21, 25, 30, 35, 40, 45, 50, 55, 60, 65, 75),
  "hours_per_week": (15, 25, 34, 39, 40, 44, 49, 54, 60, 70),
  "education_num": tuple(range(1, 16)),
  "capital_gain": (0, 2000, 3000, 4000, 4700, 5100, 6500, 7000, 7300, 10000, 20000),
  "capital_loss": (0, 1400, 1550, 1700, 1825, 1900, 1980, 2200, 2400, 2600),
}
CROSSES = (
  ("education", "occupation"),
  ("relationship", "age_bucket"),
  ("occupation", "workclass"),
  ("marital_status", "sex"),
  ("occupation", "hours_per_week_bucket"),
  ("education", "age_bucket"),
  ("relationship", "education"),
  ("occupation", "age_bucket"),
)


def hash_id(name: str, value: str) -> int:
  """The 64-bit id of one value of one feature. Signed, since TensorFlow ids are int64; every value is an ordinary key."""
  digest = hashlib.blake2b(f"{name}={value}".encode(), digest_size=8).digest()
  return int.from_bytes(digest, "little", signed=True)


class Features:
  """Arrays of one part: ids {table name: int64 [rows, features]}, numbers float32 [rows, NUMBERS], labels float32 [rows]."""

  def __init__(self, ids: dict[str, np.ndarray], numbers: np.ndarray, labels: np.ndarray):
    self.ids, self.numbers, self.labels = ids, numbers, labels

  def __len__(self) -> int:
    return len(self.labels)


def load(part: str) -> Features:
  """Reads examples/data/adult.<part>.csv.xz ("train" or "test")."""
  text = lzma.decompress((DATA / f"adult.{part}.csv.xz").read_bytes()).decode("ascii")
  rows = list(csv.DictReader(io.StringIO(text)))
  columns = {name: [row[name] for row in rows] for name in rows[0]}
  number = {name: np.array(columns[name], np.float64) for name in BUCKETS}
  for name, edges in BUCKETS.items():
    columns[f"{name}_bucket"] = [str(bucket) for bucket in np.searchsorted(edges, number[name])]
  for left, right in CROSSES:
    columns[f"{left}*{right}"] = [f"{a}*{b}" for a, b in zip(columns[left], columns[right])]

  known: dict[tuple[str, str], int] = {}

  def ids_of(names) -> np.ndarray:
    out = np.empty((len(rows), len(names)), np.int64)
    for j, name in enumerate(names):
      for i, value in enumerate(columns[name]):
        key = (name, value)
        if key not in known:
          known[key] = hash_id(name, value)
        out[i, j] = known[key]
    return out

  ids = {
    "category": ids_of(CATEGORIES),
    "bucket": ids_of([f"{name}_bucket" for name in BUCKETS]),
    "cross": ids_of([f"{left}*{right}" for left, right in CROSSES]),
  }
  numbers = np.stack(
    [
      (number["age"] - 39) / 14,
      ((number["age"] - 39) / 14) ** 2,
      (number["education_num"] - 10) / 2.6,
      (number["hours_per_week"] - 40) / 12,
      np.log1p(number["capital_gain"]) / 9,
      np.log1p(number["capital_loss"]) / 8,
      number["capital_gain"] / 20000,
    ],
    axis=1,
  ).astype(np.float32)
  return Features(ids, numbers, np.array(columns["label"], np.float32))


def auc(labels: np.ndarray, scores: np.ndarray) -> float:
  """Area under the ROC curve: P(score of a positive > score of a negative), ties count half."""
  _, inverse, counts = np.unique(scores, return_inverse=True, return_counts=True)
  mean_rank = np.cumsum(counts) - (counts - 1) / 2
  positives = labels > 0.5
  p, n = int(positives.sum()), int((~positives).sum())
  return float((mean_rank[inverse][positives].sum() - p * (p + 1) / 2) / (p * n))


def dense(x, units: int, name: str, activation=None):
  """A fully connected layer with variables <name>/w and <name>/b."""
  with tf.variable_scope(name):
    w = tf.get_variable("w", [x.shape[-1], units], initializer=tf.glorot_uniform_initializer())
    b = tf.get_variable("b", [units], initializer=tf.zeros_initializer())
  y = tf.matmul(x, w) + b
  return activation(y) if activation else y


class Model:
  """The graph: one loss for training, one prediction for everything else, over the same weights.

  `tables` maps a table name to (features per example, lookup); lookup(ids int64 [batch, features], training) gives rows
  float32 [batch, features, DIM].
  """

  def __init__(self, tables: dict):
    self.ids = {name: tf.placeholder(tf.int64, [None, width], f"{name}_ids") for name, (width, _) in tables.items()}
    self.numbers = tf.placeholder(tf.float32, [None, NUMBERS], "numbers")
    self.labels = tf.placeholder(tf.float32, [None], "labels")
    logits = self._logits(tables, training=True)
    self.loss = tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(labels=self.labels, logits=logits))
    self.prediction = tf.sigmoid(self._logits(tables, training=False))

  def _logits(self, tables: dict, training: bool):
    with tf.variable_scope("dlrm", reuse=tf.AUTO_REUSE):
      x = dense(self.numbers, 32, "bottom1", tf.nn.relu)
      x = dense(x, DIM, "bottom2", tf.nn.relu)
      rows = [lookup(self.ids[name], training) for name, (_, lookup) in tables.items()]
      vectors = tf.concat([x[:, None, :], *rows], axis=1)  # [batch, 22, DIM]
      count = int(vectors.shape[1])
      dots = tf.reshape(tf.matmul(vectors, vectors, transpose_b=True), [-1, count * count])
      below_diagonal = [i * count + j for i in range(count) for j in range(i)]
      y = tf.concat([x, tf.gather(dots, below_diagonal, axis=1)], axis=1)
      y = dense(y, 64, "top1", tf.nn.relu)
      y = dense(y, 32, "top2", tf.nn.relu)
      return dense(y, 1, "top3")[:, 0]

  def feed(self, data: Features, at) -> dict:
    """The feed_dict of the rows `at` (a slice or an index array)."""
    return {**{self.ids[n]: data.ids[n][at] for n in self.ids}, self.numbers: data.numbers[at], self.labels: data.labels[at]}

  def predict(self, sess, data: Features) -> np.ndarray:
    """float32 [rows]: probabilities in the order of `data`."""
    starts = range(0, len(data), EVAL_BATCH)
    return np.concatenate([sess.run(self.prediction, self.feed(data, slice(s, s + EVAL_BATCH))) for s in starts])


def mxrec_tables(data: Features) -> tuple[dict, list]:
  """The tables as mxrec gives them: addressed by the hashed ids themselves, growing as ids arrive."""
  import mxrec

  tables, lookups = [], {}
  for name, ids in data.ids.items():
    table = mxrec.get_embedding_table(
      name=name, dimension=DIM, device_vocabulary_size=10_000, initializer=tf.random_normal_initializer(stddev=INITIAL_STDDEV)
    )
    tables.append(table)
    lookups[name] = (ids.shape[1], lambda ids, training, table=table: mxrec.embedding_lookup(table, ids, training=training))
  return lookups, tables


def plain_tables(train: Features) -> tuple[dict, dict]:
  """The tables as stock TensorFlow has them: a fixed number of rows, known ids only, and one more row for all unknown ids."""
  vocabulary = {name: np.unique(ids) for name, ids in train.ids.items()}
  lookups = {}
  for name, known in vocabulary.items():
    variable = tf.get_variable(name, [len(known) + 1, DIM], initializer=tf.random_normal_initializer(stddev=INITIAL_STDDEV))
    lookups[name] = (train.ids[name].shape[1], lambda ids, training, variable=variable: tf.nn.embedding_lookup(variable, ids))
  return lookups, vocabulary


def with_row_numbers(data: Features, vocabulary: dict) -> Features:
  """The same data with ids replaced by row numbers of plain_tables."""
  ids = {}
  for name, known in vocabulary.items():
    at = np.minimum(np.searchsorted(known, data.ids[name]), len(known) - 1)
    ids[name] = np.where(known[at] == data.ids[name], at, len(known)).astype(np.int64)
  return Features(ids, data.numbers, data.labels)


def make_optimizer(kind: str, steps: int, global_step):
  """A stock TensorFlow optimizer whose learning rate falls to 2 % over the run."""
  start = {"adam": 0.002, "adagrad": 0.2}[kind]
  rate = tf.train.polynomial_decay(start, global_step, steps, 0.02 * start)
  return {"adam": tf.train.AdamOptimizer, "adagrad": tf.train.AdagradOptimizer}[kind](rate)


def fit(sess, model: Model, train_op, train: Features, test: Features, args) -> tuple[list, list, np.ndarray]:
  """Returns (loss per step, test AUC per epoch, last predictions of the test part)."""
  rng = np.random.default_rng(args.seed)
  losses: list[float] = []
  aucs: list[float] = []
  scores = np.zeros(0, np.float32)
  for epoch in range(1, args.epochs + 1):
    begin, first = time.perf_counter(), len(losses)
    order = rng.permutation(len(train))
    for at in range(0, len(order), BATCH):
      loss, _ = sess.run([model.loss, train_op], model.feed(train, order[at : at + BATCH]))
      losses.append(float(loss))
      if sys.stdout.isatty() and len(losses) % 8 == 0:
        print(f"  epoch {epoch}: {100 * at // len(order):3d} %, loss {np.mean(losses[-64:]):.4f}", end="\r", flush=True)
    seconds = time.perf_counter() - begin
    scores = model.predict(sess, test)
    aucs.append(auc(test.labels, scores))
    print(
      f"  epoch {epoch}/{args.epochs}: loss {np.mean(losses[first:]):.4f}, "
      f"test AUC {aucs[-1]:.4f}, {seconds:.1f} s, {len(order) / seconds:,.0f} examples/s",
      flush=True,
    )
  return losses, aucs, scores


def print_statistics(sess, train: Features) -> bool:
  """One line per table; False if a table lost or invented an id."""
  import mxrec

  complete = True
  print("  table     rows  ids trained  row bytes  slot bytes  index bytes  index load  mean probes  optimizer (step)")
  for name, stats in mxrec.stats(sess).items():
    trained = len(np.unique(train.ids[name]))
    complete &= stats["rows"] == trained
    print(
      f"  {name:8s} {stats['rows']:5d} {trained:12d} {stats['bytes_rows']:10d} {stats['bytes_slots']:11d} "
      f"{stats['bytes_index']:12d} {stats['load']:11.2f} {stats['mean_probe_length']:12.2f}  "
      f"{stats['optimizer']} ({stats['optimizer_step']})"
    )
  return complete


def draw(losses: list, aucs: list, path: Path, title: str) -> None:
  """Loss per step and AUC per epoch, side by side."""
  import matplotlib

  matplotlib.use("Agg")
  import matplotlib.pyplot as plt

  window = max(1, len(losses) // 40)
  smooth = np.convolve(losses, np.ones(window) / window, mode="valid")
  figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4.2), width_ratios=[3, 2], layout="constrained")
  left.plot(np.arange(1, len(losses) + 1), losses, color="#b9c9df", linewidth=0.8, label="each step")
  left.plot(np.arange(len(smooth)) + (window + 1) / 2, smooth, color="#1f4e9c", linewidth=2, label=f"mean of {window} steps")
  left.set(xlabel="step", ylabel="training loss", xlim=(0, len(losses) + 1), title="Loss")
  left.legend(frameon=False)
  epochs = np.arange(1, len(aucs) + 1)
  right.plot(epochs, aucs, color="#c0561f", marker="o", linewidth=2)
  right.axhline(MIN_AUC, color="#777777", linestyle="--", linewidth=1)
  right.annotate(
    f"required: {MIN_AUC}",
    (0.98, MIN_AUC),
    xycoords=("axes fraction", "data"),
    xytext=(0, 4),
    ha="right",
    textcoords="offset points",
    color="#777777",
    fontsize=9,
  )
  for epoch, value in zip(epochs, aucs):
    right.annotate(f"{value:.4f}", (epoch, value), xytext=(0, 8), textcoords="offset points", ha="center", fontsize=9)
  right.set(
    xlabel="epoch",
    ylabel="AUC",
    xticks=epochs,
    xlim=(0.5, len(aucs) + 0.5),
    title="AUC on the official test part",
    ylim=(min(MIN_AUC, *aucs) - 0.006, max(MIN_AUC, *aucs) + 0.008),
  )
  for axis in (left, right):
    axis.grid(alpha=0.25)
    axis.spines[["top", "right"]].set_visible(False)
  figure.suptitle(title, fontsize=11)
  figure.savefig(path, dpi=130)


def reload_and_predict(folder: Path, seed: int) -> int:
  """What the new process does: loads in both documented ways and stores the predictions of each."""
  import mxrec

  test = load("test")
  tf.set_random_seed(seed)  # ids that the checkpoint does not hold keep the first rows that they had
  lookups, tables = mxrec_tables(test)
  model = Model(lookups)
  tf.train.get_or_create_global_step()
  with tf.Session() as sess:
    tf.train.Saver().restore(sess, tf.train.latest_checkpoint(str(folder)))  # dense variables and tables
    by_saver = model.predict(sess, test)
    sess.run(mxrec.get_init_hashtable_op())  # empties the tables
    emptied = [stats["rows"] for stats in mxrec.stats(sess).values()]
    mxrec.EmbeddingTableSaver(tables).load(sess, str(folder), int(sess.run(tf.train.get_global_step())))
    by_table_saver = model.predict(sess, test)
  np.savez(folder / "reloaded.npz", by_saver=by_saver, by_table_saver=by_table_saver, emptied=emptied)
  return 0


def check_reload(folder: Path, scores: np.ndarray, seed: int) -> bool:
  """Starts the new process and compares every prediction bit by bit."""
  child = subprocess.run([sys.executable, __file__, "--reload", str(folder), "--seed", str(seed)], check=False)
  if child.returncode != 0:
    print(f"  the new process failed with exit code {child.returncode}")
    return False
  with np.load(folder / "reloaded.npz") as reloaded:
    equal = True
    for way, name in (("tf.train.Saver", "by_saver"), ("EmbeddingTableSaver", "by_table_saver")):
      same = int((reloaded[name].view(np.uint32) == scores.view(np.uint32)).sum()) if reloaded[name].shape == scores.shape else 0
      print(f"  loaded by {way}: {same} of {len(scores)} predictions are bit-equal")
      equal &= same == len(scores)
    return equal and not reloaded["emptied"].any()


def train_mxrec(args) -> int:
  """The demo. Returns the exit code."""
  import mxrec

  args.out.mkdir(parents=True, exist_ok=True)
  checkpoint = args.out / "adult_checkpoint"
  print(f"[1/4] data: {DATA}")
  train, test = load("train"), load("test")
  width = sum(ids.shape[1] for ids in train.ids.values())
  distinct = sum(len(np.unique(ids)) for ids in train.ids.values())
  print(
    f"  {len(train)} rows to train, {len(test)} to test; "
    f"{width} ids and {NUMBERS} numbers each; {distinct} distinct ids in training"
  )

  print(f"[2/4] training: mxrec tables, {args.optimizer}, {args.epochs} epochs, batch {BATCH}, seed {args.seed}")
  tf.set_random_seed(args.seed)
  lookups, tables = mxrec_tables(train)
  model = Model(lookups)
  global_step = tf.train.get_or_create_global_step()
  steps = args.epochs * -(-len(train) // BATCH)
  train_op = mxrec.minimize(model.loss, make_optimizer(args.optimizer, steps, global_step), global_step=global_step)
  saver, table_saver = tf.train.Saver(), mxrec.EmbeddingTableSaver(tables)
  with tf.Session() as sess:
    sess.run([tf.global_variables_initializer(), mxrec.get_init_hashtable_op()])
    losses, aucs, scores = fit(sess, model, train_op, train, test, args)

    print("[3/4] tables")
    complete = print_statistics(sess, train)

    print(f"[4/4] saving to {checkpoint}, loading in a new process")
    saver.save(sess, str(checkpoint / "model"), global_step=steps)
    table_saver.save(sess, str(checkpoint), steps)
  same = check_reload(checkpoint, scores, args.seed)

  picture = args.out / "adult_demo.png"
  draw(losses, aucs, picture, f"UCI Adult, DLRM with mxrec tables: {args.optimizer}, batch {BATCH}, {distinct} ids")
  print(f"  picture: {picture}")
  return verdict(
    aucs[-1],
    {
      "all tables hold exactly the ids they were trained with": complete,
      "predictions are equal after loading": same,
    },
  )


def train_plain(args) -> int:
  """The same model on tf.Variable tables. Returns the exit code."""
  train, test = load("train"), load("test")
  print(f"training: tf.Variable tables, {args.optimizer}, {args.epochs} epochs, batch {BATCH}, seed {args.seed}")
  tf.set_random_seed(args.seed)
  lookups, vocabulary = plain_tables(train)
  model = Model(lookups)
  global_step = tf.train.get_or_create_global_step()
  steps = args.epochs * -(-len(train) // BATCH)
  train_op = make_optimizer(args.optimizer, steps, global_step).minimize(model.loss, global_step=global_step)
  with tf.Session() as sess:
    sess.run(tf.global_variables_initializer())
    _, aucs, _ = fit(sess, model, train_op, with_row_numbers(train, vocabulary), with_row_numbers(test, vocabulary), args)
  return verdict(aucs[-1], {})


def verdict(final_auc: float, checks: dict[str, bool]) -> int:
  """Prints what did not hold, or that all is well; returns the exit code. `checks`: statement -> does it hold."""
  failures = [f"does not hold: {text}" for text, passed in checks.items() if not passed]
  if final_auc < MIN_AUC:
    failures.append(f"test AUC: expected at least {MIN_AUC}, found {final_auc:.4f}")
  for failure in failures:
    print(f"FAILED: {failure}", file=sys.stderr)
  if not failures:
    print(f"Done. Test AUC {final_auc:.4f} (required: {MIN_AUC}).")
  return 1 if failures else 0


def main() -> int:
  """Reads the arguments and runs what they ask for. Returns the exit code."""
  parser = argparse.ArgumentParser(
    description="Trains a DLRM-style model with mxrec tables on the UCI Adult data; saves, reloads "
    "in a new process, compares every prediction, draws the curves."
  )
  parser.add_argument("--epochs", type=int, default=4, help="passes over the training part (default: %(default)s)")
  parser.add_argument(
    "--optimizer", choices=("adam", "adagrad"), default="adam", help="for tables and dense weights (default: %(default)s)"
  )
  parser.add_argument(
    "--seed", type=int, default=1, help="fixes first weights, first rows and the order of examples (default: %(default)s)"
  )
  parser.add_argument(
    "--out",
    type=Path,
    default=Path(__file__).resolve().parent / "out",
    help="folder for checkpoint and picture (default: examples/out)",
  )
  parser.add_argument("--plain", action="store_true", help="train the same model with tf.Variable tables; nothing is saved")
  parser.add_argument(
    "--reload", type=Path, metavar="FOLDER", help="what the new process does: load the checkpoint in FOLDER and store predictions"
  )
  args = parser.parse_args()
  if args.epochs < 1:
    parser.error(f"--epochs: expected 1 or more, found {args.epochs}")
  if args.reload:
    return reload_and_predict(args.reload, args.seed)
  return train_plain(args) if args.plain else train_mxrec(args)


if __name__ == "__main__":
  sys.exit(main())
