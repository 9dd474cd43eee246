"""A contestant of run.py: one training step of a TensorFlow graph, by session.run; rows from one of several sources.

usage: tf_worker.py --rows mxrec|variable|tfra|constant --model MODEL --keys FOLDER [--dim 16] [--optimizer adagrad] [--threads 1]

Models (the ids of each batch lie in the runtime already; rows start at zero, all are trained once before):
  squares   looks a batch of 65,536 ids up; loss = sum of (row - 1)^2
  pooled    the same ids (mxrec only): one by one, and as a SparseTensor in bags of 8 with combiner sum
  tables    26 columns of 2,048 ids (mxrec only): one merged table, or with --tables 26 a table for each column
  dlrm      26 columns of 2,048 ids in one table, 13 numbers: MLPs of 64-dim and 128-64-1, pairwise dots, cross-entropy
Sets: squares, dlrm, tables: STREAM; pooled: dense/STREAM and pooled/STREAM. Variables are addressed by dense ids (no hash).
"""

import argparse
import collections
import os
import pathlib

from keys import BATCH
from worker import Channel

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--rows", choices=("mxrec", "variable", "tfra", "constant"), required=True)
parser.add_argument("--model", choices=("squares", "pooled", "tables", "dlrm"), required=True)
parser.add_argument("--keys", type=pathlib.Path, required=True)
parser.add_argument("--dim", type=int, default=16)
parser.add_argument("--optimizer", choices=("adagrad", "adam"), default="adagrad")
parser.add_argument("--tables", type=int, default=1)
parser.add_argument("--threads", type=int, default=1)
args = parser.parse_args()
channel = Channel()
os.environ.update(TF_USE_LEGACY_KERAS="1", TF_CPP_MIN_LOG_LEVEL="2", CUDA_VISIBLE_DEVICES="")

import numpy as np
import tensorflow as tf

v1 = tf.compat.v1
v1.disable_eager_execution()
SLOTS, SAMPLES, NUMBERS, BAG = 26, 2048, 13, 8
in_columns = args.model in ("tables", "dlrm")
batch_ids = SLOTS * SAMPLES if in_columns else BATCH
hashed = args.rows in ("mxrec", "tfra")


def read(name: str) -> np.ndarray:
  """Values of a key file."""
  return np.fromfile(args.keys / f"{name}.bin", "<i8")


all_keys = read("all_keys")
rows = len(all_keys)


def as_batches(dense_ids: np.ndarray, round_up: bool = False) -> np.ndarray:
  """Whole batches of what this contestant looks up."""
  if round_up:
    dense_ids = np.resize(dense_ids, -(-len(dense_ids) // batch_ids) * batch_ids)
  dense_ids = dense_ids[: len(dense_ids) // batch_ids * batch_ids].reshape(-1, batch_ids)
  if args.model == "tables":  # each column has a share of the ids
    share = rows // SLOTS
    dense_ids = dense_ids % share + np.tile(np.arange(SLOTS) * share, SAMPLES)
  return all_keys[dense_ids] if hashed else dense_ids


parts = {name: as_batches(read(f"{name}_ids")) for name in ("uniform", "zipf")}
parts["fill"] = as_batches(
  np.repeat(np.arange(-(-rows // SLOTS)), SLOTS) if args.model == "tables" else np.arange(rows), round_up=True
)
first_batch = dict(zip(parts, np.cumsum([0] + [len(part) for part in parts.values()])))
held = {}


def hold(name: str, values: np.ndarray) -> tf.Tensor:
  """values[position], out of a variable: nothing large is fed in a step."""
  start = v1.placeholder(values.dtype, values.shape)
  held[name] = (v1.get_variable(name, initializer=start, trainable=False, use_resource=True), start, values)
  return tf.gather(held[name][0], position % len(values))


position = v1.placeholder(tf.int32, [])
ids = hold("ids", np.concatenate(list(parts.values())))
make_optimizer = {"adagrad": lambda: v1.train.AdagradOptimizer(0.1), "adam": lambda: v1.train.AdamOptimizer(0.001)}[args.optimizer]
optimizer = make_optimizer()
start_rows = v1.random_uniform_initializer(-0.05, 0.05) if args.model == "dlrm" else v1.zeros_initializer()
versions = {"tensorflow": tf.__version__, "numpy": np.__version__}

if args.rows == "mxrec":
  import mxrec

  versions["mxrec"] = mxrec.__version__
  tables = [mxrec.get_embedding_table(f"table_{i}", args.dim, rows, initializer=start_rows) for i in range(args.tables)]

  def look_up(some_ids: tf.Tensor, table: int = 0) -> tf.Tensor:
    """Rows of ids."""
    return mxrec.embedding_lookup(tables[table], some_ids)

  def minimize(loss: tf.Tensor) -> tf.Operation:
    """The train op."""
    return mxrec.minimize(loss, optimizer)

  def read_rows(session: v1.Session, some_ids: np.ndarray) -> np.ndarray:
    """Present rows."""
    return tables[0].lookup_numpy(some_ids, session)

elif args.rows == "tfra":
  import tensorflow_recommenders_addons as tfra
  from tensorflow_recommenders_addons import dynamic_embedding as de

  versions["tfra"] = tfra.__version__
  variable = de.get_variable("rows", tf.int64, tf.float32, dim=args.dim, initializer=start_rows, init_size=rows)
  optimizer = de.DynamicEmbeddingOptimizer(optimizer)
  some_keys = v1.placeholder(tf.int64, [None])
  some_rows = variable.lookup(some_keys)

  def look_up(some_ids: tf.Tensor) -> tf.Tensor:
    """Rows of ids."""
    return de.embedding_lookup_unique(variable, some_ids, name="lookup")

  def minimize(loss: tf.Tensor) -> tf.Operation:
    """The train op."""
    return optimizer.minimize(loss)  # the looked-up rows are in the collection of trainable variables

  def read_rows(session: v1.Session, some_ids: np.ndarray) -> np.ndarray:
    """Present rows."""
    return session.run(some_rows, {some_keys: some_ids})

else:
  if args.rows == "variable":
    variable = v1.get_variable("rows", [rows, args.dim], tf.float32, initializer=start_rows, use_resource=True)
    some_keys = v1.placeholder(tf.int64, [None])
    some_rows = tf.gather(variable, some_keys)

  def look_up(some_ids: tf.Tensor) -> tf.Tensor:
    """Rows of ids."""
    if args.rows == "constant":
      return tf.fill([batch_ids, args.dim], 0.01)
    return tf.nn.embedding_lookup(variable, some_ids)

  def minimize(loss: tf.Tensor) -> tf.Operation:
    """The train op."""
    return optimizer.minimize(loss)

  def read_rows(session: v1.Session, some_ids: np.ndarray) -> np.ndarray:
    """Present rows."""
    return session.run(some_rows, {some_keys: some_ids})


def squares(values: tf.Tensor) -> tf.Tensor:
  """Sum of squares of the distance from 1."""
  return tf.reduce_sum(tf.square(values - 1.0))


def layer(inputs: tf.Tensor, units: int, name: str) -> tf.Tensor:
  """inputs [n, k] times weights, plus bias: [n, units]."""
  with v1.variable_scope(name):
    weights = v1.get_variable("weights", [inputs.shape[1], units], initializer=v1.glorot_uniform_initializer(seed=1))
    return tf.matmul(inputs, weights) + v1.get_variable("bias", [units], initializer=v1.zeros_initializer())


def dlrm_loss(embedded: tf.Tensor) -> tf.Tensor:
  """Mean cross-entropy of a small DLRM over rows [SAMPLES * SLOTS, dim]; numbers and labels are random."""
  random = np.random.default_rng(3)
  numbers = hold("numbers", random.standard_normal((64, SAMPLES, NUMBERS), dtype=np.float32))
  labels = hold("labels", (random.random((64, SAMPLES, 1)) < 0.25).astype(np.float32))
  bottom = layer(tf.nn.relu(layer(numbers, 64, "bottom_0")), args.dim, "bottom_1")
  vectors = tf.concat([bottom[:, None, :], tf.reshape(embedded, [SAMPLES, SLOTS, args.dim])], 1)
  dots = tf.reshape(tf.matmul(vectors, vectors, transpose_b=True), [SAMPLES, (SLOTS + 1) ** 2])
  pairs = np.array([i * (SLOTS + 1) + j for i in range(SLOTS + 1) for j in range(i)], np.int32)
  features = tf.concat([bottom, tf.gather(dots, pairs, axis=1)], 1)
  features.set_shape([SAMPLES, args.dim + len(pairs)])
  hidden = tf.nn.relu(layer(tf.nn.relu(layer(features, 128, "top_0")), 64, "top_1"))
  return tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(labels=labels, logits=layer(hidden, 1, "top_2")))


losses = {}
if args.model == "squares":
  losses[""] = squares(look_up(ids))
elif args.model == "dlrm":
  losses[""] = dlrm_loss(look_up(ids))
elif args.model == "pooled":
  losses["dense/"] = squares(look_up(ids))
  entries = np.stack([np.arange(BATCH) // BAG, np.arange(BATCH) % BAG], 1)
  bags = tf.SparseTensor(tf.constant(entries, tf.int64), ids, [BATCH // BAG, BAG])
  losses["pooled/"] = squares(mxrec.embedding_lookup(tables[0], bags, combiner="sum"))
elif args.tables == 1:
  losses[""] = squares(look_up(ids))
else:
  columns = tf.unstack(tf.reshape(ids, [SAMPLES, SLOTS]), axis=1)
  losses[""] = tf.add_n([squares(look_up(column, table)) for table, column in enumerate(columns)])
steps = {mode: minimize(loss) for mode, loss in losses.items()}

config = v1.ConfigProto(intra_op_parallelism_threads=args.threads, inter_op_parallelism_threads=1)
session = v1.Session(config=config)
for holder, start, values in held.values():
  session.run(holder.initializer, {start: values})
started = {holder.name for holder, _, _ in held.values()}
session.run(v1.variables_initializer([variable for variable in v1.global_variables() if variable.name not in started]))
if args.rows == "mxrec":
  session.run(mxrec.get_init_hashtable_op())


def target(name: str, batch: int) -> tuple:
  """The op and the feed of a batch of a set."""
  mode, slash, stream = name.rpartition("/")
  return steps[mode + slash], {position: first_batch[stream] + batch % len(parts[stream])}


def run(name: str, batch: int) -> None:
  """One step."""
  op, feed = target(name, batch)
  session.run(op, feed)


def check() -> list:
  """Losses of a batch in a model with variables, else some rows."""
  if args.model == "dlrm":
    return [float(session.run(losses[""], {position: 0}))]
  return read_rows(session, parts["uniform"][0, :16]).ravel().tolist()


def trace(name: str) -> dict:
  """Mean microseconds of each kind of op over ten steps."""
  total = collections.Counter()
  for batch in range(10):
    metadata = v1.RunMetadata()
    op, feed = target(name, batch)
    session.run(op, feed, v1.RunOptions(trace_level=v1.RunOptions.FULL_TRACE), metadata)
    for device in metadata.step_stats.dev_stats:
      for node in device.node_stats:
        kind = node.timeline_label.split(" = ")[-1].split("(")[0] or node.node_name
        total[kind] += node.op_end_rel_micros - node.op_start_rel_micros
  return {kind: round(micros / 10) for kind, micros in total.most_common(14)}


for batch in range(len(parts["fill"]) if args.rows != "constant" else 1):
  run(("dense/" if args.model == "pooled" else "") + "fill", batch)
facts = dict(versions, rows=rows)
if args.rows == "mxrec":
  facts["rows"] = sum(table.size(session) for table in tables)
channel.serve(facts, run, check if args.model in ("squares", "dlrm") else None, trace)
