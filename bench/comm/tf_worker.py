"""One rank of a contestant of run.py: collectives and training steps through session.run.

usage: tf_worker.py --system mxrec|horovod --folder FOLDER --name NAME [--rank R] [--seed N]

Cases:
  allreduce-BYTES   one float32 variable summed over the ranks
  gradients-200     200 variables of 16 KiB, a node for each, as the gradients of a step
  slices            the sum of tf.IndexedSlices: 65,536 ids a rank, each twice, dim 64
  table             (mxrec) the same ids in an MP table: lookup, sum of squares, Adagrad
  dlrm              (mxrec) 26 tables of 2,048 ids, 13 numbers, MLPs, Adagrad; MP tables where there are several ranks
The graph is built when the first command names it. Protocol: channel.py.
"""

from __future__ import annotations

import argparse
import collections
import os
import pathlib
import sys

from channel import Channel

ROOT = pathlib.Path(__file__).resolve().parents[2]
parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--system", choices=("mxrec", "horovod"), required=True)
parser.add_argument("--folder", type=pathlib.Path, required=True)
parser.add_argument("--name", required=True)
launched = os.environ.get("OMPI_COMM_WORLD_RANK") or os.environ.get("HOROVOD_RANK") or "0"
parser.add_argument("--rank", type=int, default=int(launched), help="as mpirun or horovodrun said")
parser.add_argument("--seed", type=int, default=0, help="tells the data of ranks apart that do not know of each other")
args = parser.parse_args()
channel = Channel(args.folder, args.name, args.rank)
os.environ.update(TF_CPP_MIN_LOG_LEVEL="3", CUDA_VISIBLE_DEVICES="")
if args.system == "mxrec":
  os.environ["TF_USE_LEGACY_KERAS"] = "1"

import numpy as np
import tensorflow as tf

v1 = tf.compat.v1
v1.disable_v2_behavior()
IDS, DIM, ID_RANGE = 65_536, 64, 1_000_000
SLOTS, SAMPLES, NUMBERS, TABLE_KEYS, TABLE_DIM = 26, 2048, 13, 100_000, 16

if args.system == "mxrec":
  sys.path.insert(0, str(ROOT / "python"))
  import mxrec
  from mxrec import _collective, _groups, _slices

  world = _groups.world()
  _groups.start()
  rank, size = world.rank or 0, world.size
  facts = {"version": mxrec.__version__}

  def summed(value: tf.Tensor, name: str) -> tf.Tensor:
    """The sum over the ranks."""
    return _collective.allreduce(value, name=name)

  def summed_slices(slices: tf.IndexedSlices) -> tf.IndexedSlices:
    """The same for sparse gradients."""
    return _slices.allreduce(slices, False, name="slices")

  counters = _groups.statistics

else:
  import horovod.tensorflow as hvd

  hvd.init()
  rank, size = hvd.rank(), hvd.size()
  facts = {"version": hvd.__version__ if hasattr(hvd, "__version__") else "0.28.1"}

  def summed(value: tf.Tensor, name: str) -> tf.Tensor:
    """The sum over the ranks."""
    return hvd.allreduce(value, op=hvd.Sum, name=name)

  def summed_slices(slices: tf.IndexedSlices) -> tf.IndexedSlices:
    """The same for sparse gradients."""
    return hvd.allreduce(slices, op=hvd.Sum)

  def counters() -> dict[str, int]:
    """Horovod does not count."""
    return {}


def variable(name: str, value: np.ndarray) -> tf.Tensor:
  """A variable that holds `value`: nothing is fed in a step."""
  holder = v1.placeholder(value.dtype, value.shape)
  made = v1.get_variable(name, initializer=holder, trainable=False, use_resource=True)
  feeds[holder] = value
  return made


def ids_of(seed: int) -> np.ndarray:
  """IDS ids, each of which occurs twice, in random order."""
  random = np.random.default_rng(seed)
  return random.permutation(np.repeat(random.choice(ID_RANGE, IDS // 2, replace=False).astype(np.int64), 2))


def allreduce_case(size_in_bytes: int) -> tuple:
  """The op of a step, and what must hold of its result."""
  result = summed(variable("x", np.full(size_in_bytes // 4, rank + 1, np.float32)), "x")
  return result.op, tf.stack([result[0], result[-1]]), [size * (size + 1) / 2] * 2


def gradients_case() -> tuple:
  """A step that needs all of 200 sums (TensorFlow prunes what nothing needs)."""
  results = [summed(variable(f"g{i}", np.full(4096, rank + 1, np.float32)), f"g{i}") for i in range(200)]
  return tf.add_n([result[0] for result in results]), tf.stack([results[0][0], results[-1][-1]]), [size * (size + 1) / 2] * 2


def slices_case() -> tuple:
  """The sum of sparse gradients; rows of one id may come several times, which their sum does not show."""
  values = variable("values", np.full([IDS, DIM], 1.0, np.float32))
  result = summed_slices(tf.IndexedSlices(tf.identity(values), variable("ids", ids_of(rank)).read_value(), [ID_RANGE, DIM]))
  # Fetched as numbers: Grappler drops an op that is not stateful, such as Horovod's allgather, when a step needs only its end.
  return (result.values[0, 0], result.indices[0]), tf.reduce_sum(result.values[:, 0]), float(size * IDS)


def optimizer() -> v1.train.Optimizer:
  """The same for all."""
  return v1.train.AdagradOptimizer(0.05)


def table_case() -> tuple:
  """A step of one MP table."""
  table = mxrec.get_embedding_table("rows", DIM, ID_RANGE)
  rows = mxrec.embedding_lookup(table, variable("ids", ids_of(rank)).read_value())
  return mxrec.minimize(tf.reduce_sum(tf.square(rows)) * 1e-3, optimizer()), tf.constant(0.0), 0.0


def layer(inputs: tf.Tensor, units: int, name: str) -> tf.Tensor:
  """inputs [n, k] times weights, plus bias: [n, units]."""
  with v1.variable_scope(name):
    weights = v1.get_variable("weights", [inputs.shape[1], units], initializer=v1.glorot_uniform_initializer(seed=1))
    return tf.matmul(inputs, weights) + v1.get_variable("bias", [units], initializer=v1.zeros_initializer())


def dlrm_case() -> tuple:
  """A step of a small DLRM. Ids come evenly from TABLE_KEYS keys a table, out of 16 batches."""
  random = np.random.default_rng(100 + rank + args.seed)
  batches = 16
  position = v1.get_variable("position", initializer=0, trainable=False, use_resource=True)
  here = position.assign_add(1) % batches
  ids = tf.gather(variable("ids", random.integers(0, TABLE_KEYS, [batches, SLOTS, SAMPLES])), here)
  numbers = tf.gather(variable("numbers", random.standard_normal((batches, SAMPLES, NUMBERS), dtype=np.float32)), here)
  labels = tf.gather(variable("labels", (random.random((batches, SAMPLES, 1)) < 0.25).astype(np.float32)), here)
  tables = [mxrec.get_embedding_table(f"t{i}", TABLE_DIM, TABLE_KEYS) for i in range(SLOTS)]
  bottom = layer(tf.nn.relu(layer(numbers, 64, "bottom_0")), TABLE_DIM, "bottom_1")
  rows = [mxrec.embedding_lookup(table, ids[i]) for i, table in enumerate(tables)]
  vectors = tf.stack([bottom, *rows], 1)
  dots = tf.reshape(tf.matmul(vectors, vectors, transpose_b=True), [SAMPLES, (SLOTS + 1) ** 2])
  pairs = np.array([i * (SLOTS + 1) + j for i in range(SLOTS + 1) for j in range(i)], np.int32)
  features = tf.concat([bottom, tf.gather(dots, pairs, axis=1)], 1)
  features.set_shape([SAMPLES, TABLE_DIM + len(pairs)])
  hidden = tf.nn.relu(layer(tf.nn.relu(layer(features, 128, "top_0")), 64, "top_1"))
  loss = tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(labels=labels, logits=layer(hidden, 1, "top_2")))
  return mxrec.minimize(loss, optimizer()), tf.constant(0.0), 0.0


class Case:
  """A graph with its session."""

  def __init__(self, name: str) -> None:
    feeds.clear()
    with tf.Graph().as_default():
      made = {"gradients-200": gradients_case, "slices": slices_case, "table": table_case}
      self.op, check, expected = {**made, "dlrm": dlrm_case}.get(name, lambda: allreduce_case(int(name.rpartition("-")[2])))()
      # One thread each, as there are as many processes as cores.
      config = v1.ConfigProto(intra_op_parallelism_threads=1, inter_op_parallelism_threads=1, use_per_session_threads=True)
      self.session = v1.Session(config=config)
      self.session.run(v1.global_variables_initializer(), feeds)
      found = np.asarray(self.session.run(check), np.float64)
      if not np.allclose(found, expected, rtol=1e-6):
        raise RuntimeError(f"{args.name}, {name}: expected {expected}, found {found}")

  def run(self, steps: int) -> None:
    """`steps` steps."""
    for _ in range(steps):
      self.session.run(self.op)

  def exchanges(self) -> dict[str, int]:
    """How often a step runs each of our collective ops."""
    metadata = v1.RunMetadata()
    self.session.run(self.op, options=v1.RunOptions(trace_level=v1.RunOptions.FULL_TRACE), run_metadata=metadata)
    kinds: collections.Counter = collections.Counter()
    for device in metadata.step_stats.dev_stats:
      for node in device.node_stats:
        kind = node.timeline_label.split(" = ")[-1].split("(")[0]
        if kind.startswith("MxrecExchange") or kind in ("MxrecAllReduce", "MxrecAllGather", "MxrecAllToAll"):
          kinds[kind] += 1
    return dict(kinds)


feeds: dict = {}
cases: dict[str, Case] = {}


def prepare(name: str) -> None:
  """Builds the graph of a case and runs it once."""
  if name not in cases:
    cases[name] = Case(name)
    cases[name].run(2)


def distinct_of_others() -> dict[str, int]:
  """The distinct ids of this rank in the cases slices and table, and how many of them another rank owns (id modulo ranks)."""
  ids = np.unique(ids_of(rank))
  return {"distinct": len(ids), "elsewhere": int(np.sum(ids % size != rank)), "dim": DIM, "ranks": size}


channel.serve(
  {**facts, "tensorflow": tf.__version__, "pid": os.getpid()},
  prepare=prepare,
  run=lambda name, steps: cases[name].run(steps),
  counters=counters,
  exchanges=lambda name: cases[name].exchanges(),
  distinct=lambda name: distinct_of_others(),
)
