"""One rank that checks mxrec.horovod against what numpy says; started by test_horovod.py, alone or by `mxrec launch`.

Usage: horovod_worker.py graph|eager CHECK...; every check works for any number of ranks, and says so when it is done.
"""
# ruff: noqa: B023 (functions that a loop makes are called in the same turn)

import contextlib
import os
import sys
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")

import numpy as np
import tensorflow as tf

MODE = sys.argv[1]
if MODE == "graph":
  tf.compat.v1.disable_v2_behavior()

import mxrec.horovod as hvd

NUMBERS = (tf.uint8, tf.int8, tf.int32, tf.int64, tf.float16, tf.bfloat16, tf.float32, tf.float64)
FLOATS = (tf.float16, tf.float32, tf.float64)


def run(build):
  """The values of what build() makes, in either mode."""
  if MODE == "eager":
    return tf.nest.map_structure(lambda value: value.numpy() if hasattr(value, "numpy") else value, build(), expand_composites=True)
  with tf.Graph().as_default(), tf.compat.v1.Session() as session:
    made = build()
    session.run([tf.compat.v1.global_variables_initializer(), tf.compat.v1.local_variables_initializer()])
    return session.run(made)


def of(rank, shape, dtype, low=-3, high=4):
  """A tensor's values on a rank, the same on whoever asks."""
  low = max(low, 0) if dtype.is_unsigned else low
  values = np.random.default_rng(1000 + rank).integers(low, high, shape)
  return values.astype(np.float32).astype(dtype.as_numpy_dtype) if dtype.is_floating else values.astype(dtype.as_numpy_dtype)


def equal(found, expected, tolerance=0.0):
  found, expected = np.asarray(found), np.asarray(expected)
  assert found.shape == expected.shape, (found.shape, expected.shape)
  np.testing.assert_allclose(found.astype(np.float64), expected.astype(np.float64), rtol=tolerance, atol=tolerance)


def refused(kind, text, call):
  try:
    call()
  except kind as error:
    assert text in str(error), error
    return
  raise AssertionError(f"expected {kind} with {text!r}")


def everybody():
  return range(hvd.size())


def check_basics():
  assert hvd.is_initialized() and 0 <= hvd.rank() < hvd.size()
  assert hvd.size() == int(os.environ.get("RANK_SIZE", 1)) and hvd.rank() == int(os.environ.get("RANK_ID", 0))
  assert (hvd.local_rank(), hvd.local_size(), hvd.cross_rank(), hvd.cross_size()) == (hvd.rank(), hvd.size(), 0, 1)
  assert hvd.is_homogeneous() and hvd.gloo_built() and not hvd.nccl_built() and not hvd.cuda_built() and hvd.mpi_threads_supported()
  assert hvd.mpi_enabled() != hvd.gloo_enabled()
  hvd.init()
  equal(
    run(lambda: [hvd.rank_op(), hvd.size_op(), hvd.local_rank_op(), hvd.local_size_op(), hvd.process_set_included_op()]),
    [hvd.rank(), hvd.size(), hvd.rank(), hvd.size(), 1],
  )
  refused(RuntimeError, "MXREC_TIMELINE", lambda: hvd.start_timeline("t.json"))


def check_shutdown_and_init_again():
  equal(run(lambda: hvd.allreduce(tf.constant(1), op=hvd.Sum)), hvd.size())
  size = hvd.size()
  hvd.shutdown()
  hvd.shutdown()
  assert not hvd.is_initialized()
  refused(ValueError, "call hvd.init() first", hvd.rank)
  refused(ValueError, "call hvd.init() first", lambda: hvd.allreduce(tf.constant(1)))
  hvd.init()
  equal(run(lambda: hvd.allreduce(tf.constant(2), op=hvd.Sum)), 2 * size)


def check_allreduce():
  numpy_of = {hvd.Sum: np.sum, hvd.Min: np.min, hvd.Max: np.max, hvd.Product: np.prod}
  for dtype in NUMBERS:
    for shape in ([], [17], [17, 17], [0], [5, 3, 2]):
      values = np.stack([of(rank, shape, dtype) for rank in everybody()])
      for op, reduce in numpy_of.items():
        if op == hvd.Product and (hvd.size() > 4 or dtype == tf.int8):
          continue
        expected = reduce(values.astype(np.float64), axis=0)
        equal(run(lambda: hvd.allreduce(tf.constant(of(hvd.rank(), shape, dtype), dtype), op=op, name=f"a{op}")), expected)


def check_average():
  for dtype in FLOATS:
    values = np.mean([of(rank, [7], dtype).astype(np.float64) for rank in everybody()], axis=0)
    equal(run(lambda: hvd.allreduce(tf.constant(of(hvd.rank(), [7], dtype)))), values, 1e-3 if dtype == tf.float16 else 1e-6)
    equal(run(lambda: hvd.allreduce(tf.constant(of(hvd.rank(), [7], dtype)), average=True)), values, 1e-3)
    equal(run(lambda: hvd.allreduce(tf.constant(of(hvd.rank(), [7], dtype)), average=False)), values * hvd.size(), 1e-3)
  # The sum of float16 does not fit float16, the average does.
  equal(run(lambda: hvd.allreduce(tf.constant(30000, tf.float16))), 30000)
  # Integers are rounded down.
  total = sum(-3 - rank for rank in everybody())
  equal(run(lambda: hvd.allreduce(tf.constant([-3 - hvd.rank()]))), [total // hvd.size()])
  refused(ValueError, "op and average exclude each other", lambda: hvd.allreduce(tf.constant(1.0), average=True, op=hvd.Sum))
  refused(ValueError, "op must be", lambda: hvd.allreduce(tf.constant(1.0), op=7))


def check_scaling():
  for dtype in FLOATS:
    values = sum(of(rank, [9], dtype).astype(np.float64) for rank in everybody())
    mine = of(hvd.rank(), [9], dtype)
    found = run(lambda: hvd.allreduce(tf.constant(mine), op=hvd.Sum, prescale_factor=0.5, postscale_factor=4.0))
    equal(found, values * 2, 1e-3 if dtype == tf.float16 else 1e-6)
  # Integers are scaled in double precision and cut off.
  for dtype in (tf.int32, tf.int64):
    cut = sum(np.trunc(of(rank, [9, 2], dtype) * 0.7) for rank in everybody())
    mine = of(hvd.rank(), [9, 2], dtype)
    factors = {"prescale_factor": 0.7, "postscale_factor": 1.5}
    equal(run(lambda: hvd.allreduce(tf.constant(mine), op=hvd.Sum, **factors)), np.trunc(cut * 1.5))
    found = run(lambda: hvd.grouped_allreduce([tf.constant(mine), tf.constant([3.0])], op=hvd.Sum, **factors))
    equal(found[0], np.trunc(cut * 1.5))
    equal(found[1], [3 * 0.7 * 1.5 * hvd.size()], 1e-6)
    begin, end = rows_of(hvd.rank(), 9)
    equal(run(lambda: hvd.reducescatter(tf.constant(mine), op=hvd.Sum, **factors)), np.trunc(cut * 1.5)[begin:end])


def check_nan_passes_through():
  found = run(lambda: hvd.allreduce(tf.constant([1.0, np.nan if hvd.rank() == hvd.size() - 1 else 2.0]), op=hvd.Sum))
  assert found[0] == hvd.size() and np.isnan(found[1])


def check_grouped_allreduce():
  def build():
    tensors = [tf.constant(of(hvd.rank() + 10 * k, [k, 3], dtype), dtype) for k, dtype in enumerate(NUMBERS)]
    return hvd.grouped_allreduce(tensors, op=hvd.Sum)

  for k, (found, dtype) in enumerate(zip(run(build), NUMBERS)):
    equal(found, sum(of(rank + 10 * k, [k, 3], dtype).astype(np.float64) for rank in everybody()))
  assert run(lambda: hvd.grouped_allreduce([])) == []


def check_many_at_once():
  def build():
    return [hvd.allreduce(tf.constant(of(hvd.rank() + k, [k % 7, 3], tf.float32)), op=hvd.Sum, name=f"m{k}") for k in range(60)]

  for k, found in enumerate(run(build)):
    equal(found, sum(of(rank + k, [k % 7, 3], tf.float32) for rank in everybody()))


def check_compression():
  exact = sum(of(rank, [20], tf.float32) for rank in everybody())
  for compression in (hvd.Compression.none, hvd.Compression.fp16, hvd.Compression.bf16):
    for dtype in FLOATS:
      found = run(lambda: hvd.allreduce(tf.constant(of(hvd.rank(), [20], dtype)), op=hvd.Sum, compression=compression))
      assert found.dtype == dtype.as_numpy_dtype
      equal(found, exact)
    assert run(lambda: hvd.allreduce(tf.constant([3]), op=hvd.Sum, compression=compression)).dtype == np.int32

  class Doubling(hvd.tensorflow.compression.Compressor):
    @staticmethod
    def compress(tensor):
      return tf.cast(tensor, tf.float64) * 2, tensor.dtype

    @staticmethod
    def decompress(tensor, ctx):
      return tf.cast(tensor, ctx)

  equal(run(lambda: hvd.allreduce(tf.constant(of(hvd.rank(), [20], tf.float32)), op=hvd.Sum, compression=Doubling)), exact * 2)


def slices_of(rank, dtype=np.float32):
  """Rows of a matrix of 10: rank 0 has none, the others repeat some."""
  indices = np.repeat(np.arange(rank % 5), 2) + rank % 3
  return (np.arange(len(indices)).repeat(3).reshape(-1, 3) + 1 + rank).astype(dtype), indices


def dense_of(values, indices):
  found = np.zeros([10, 3])
  np.add.at(found, indices, values.astype(np.float64))
  return found


def check_slices():
  for dtype in FLOATS:
    expected = sum(dense_of(*slices_of(rank, dtype.as_numpy_dtype)) for rank in everybody())
    for op in (hvd.Sum, hvd.Average):

      def build():
        values, indices = slices_of(hvd.rank(), dtype.as_numpy_dtype)
        found = hvd.allreduce(
          tf.IndexedSlices(tf.constant(values), tf.constant(indices, tf.int64), tf.constant([10, 3], tf.int64)), op=op
        )
        assert isinstance(found, tf.IndexedSlices)
        return found.values, found.indices

      values, indices = run(build)
      assert len(indices) == len({index for rank in everybody() for index in slices_of(rank)[1]})  # each row once
      equal(dense_of(values, indices), expected / (hvd.size() if op == hvd.Average else 1), 2e-3)
  slices = lambda: tf.IndexedSlices(tf.ones([1, 3]), tf.constant([0]), tf.constant([10, 3]))
  refused(NotImplementedError, "hvd.Average and hvd.Sum", lambda: hvd.allreduce(slices(), op=hvd.Max))


def check_allgather():
  for dtype in (*NUMBERS, tf.bool):
    for tail in ([], [4], [2, 3]):
      # Rank 0 gives nothing.
      expected = np.concatenate([of(rank, [rank, *tail], dtype, 0, 2) for rank in everybody()])
      found = run(lambda: hvd.allgather(tf.constant(of(hvd.rank(), [hvd.rank(), *tail], dtype, 0, 2), dtype)))
      equal(found, expected)
  several = run(lambda: hvd.grouped_allgather([tf.fill([2], hvd.rank()), tf.fill([hvd.rank() + 1, 2], 1.0)]))
  equal(several[0], np.repeat(np.arange(hvd.size()), 2))
  equal(several[1], np.ones([sum(rank + 1 for rank in everybody()), 2]))
  refused((ValueError, tf.errors.InvalidArgumentError), "", lambda: hvd.allgather(tf.constant(1.0)))


def check_broadcast():
  for root in everybody():
    for dtype in (*NUMBERS, tf.bool):
      found = run(lambda: hvd.broadcast(tf.constant(of(hvd.rank(), [3, 2], dtype, 0, 2), dtype), root))
      equal(found, of(root, [3, 2], dtype, 0, 2))
    found = run(lambda: hvd.broadcast(tf.constant(["rank", "x" * (hvd.rank() + 1)]), root))
    assert list(found) == [b"rank", b"x" * (root + 1)]
  refused(ValueError, "root_rank must be one of the ranks", lambda: hvd.broadcast(tf.constant(1), hvd.size()))


def check_alltoall():
  me, size = hvd.rank(), hvd.size()
  for dtype in (*NUMBERS, tf.bool):
    # Rank r sends r + 1 rows of its number to each rank.
    found, received = run(lambda: hvd.alltoall(tf.fill([(me + 1) * size, 2], tf.cast(me % 2, dtype)), splits=[me + 1] * size))
    equal(found, np.concatenate([np.full([rank + 1, 2], rank % 2) for rank in everybody()]))
    equal(received, [rank + 1 for rank in everybody()])
    assert received.dtype == np.int32
  found = run(lambda: hvd.alltoall(tf.range(size * 2) + 100 * me))
  equal(found, np.concatenate([100 * rank + np.arange(2) + 2 * me for rank in everybody()]))
  # Many zeros: everybody sends all to rank 0, then nobody anything.
  splits = [3] + [0] * (size - 1)
  found, received = run(lambda: hvd.alltoall(tf.fill([3], me), splits=tf.constant(splits, tf.int32)))
  equal(found, np.repeat(np.arange(size), 3) if me == 0 else np.zeros([0]))
  equal(received, [3 if me == 0 else 0] * size)
  found, received = run(lambda: hvd.alltoall(tf.zeros([0, 2]), splits=[0] * size))
  equal(found, np.zeros([0, 2]))


def rows_of(rank, count):
  """First and one behind the last row of a rank in a reducescatter."""
  each, more = divmod(count, hvd.size())
  begin = rank * each + min(rank, more)
  return begin, begin + each + (rank < more)


def check_reducescatter():
  for count in (0, 1, 4, 7):
    values = np.stack([of(rank, [count, 3], tf.float32) for rank in everybody()])
    begin, end = rows_of(hvd.rank(), count)
    for op, expected in (
      (hvd.Sum, values.sum(0)),
      (hvd.Average, values.mean(0)),
      (hvd.Min, values.min(0)),
      (hvd.Max, values.max(0)),
    ):
      equal(run(lambda: hvd.reducescatter(tf.constant(of(hvd.rank(), [count, 3], tf.float32)), op=op)), expected[begin:end], 1e-6)
  several = run(lambda: hvd.grouped_reducescatter([tf.range(5), tf.ones([3], tf.float64)], op=hvd.Sum))
  begin, end = rows_of(hvd.rank(), 5)
  equal(several[0], np.arange(5)[begin:end] * hvd.size())
  refused(NotImplementedError, "Adasum", lambda: hvd.reducescatter(tf.ones([3]), op=hvd.Adasum))


def check_adasum():
  size = hvd.size()
  if size & (size - 1):
    refused(NotImplementedError, "power of 2", lambda: hvd.allreduce(tf.ones([3]), op=hvd.Adasum))
    return
  # Equal gradients count once, orthogonal ones add up.
  equal(run(lambda: hvd.allreduce(tf.constant([1.0, 2.0]), op=hvd.Adasum)), [1, 2], 1e-6)
  equal(run(lambda: hvd.allreduce(tf.one_hot(hvd.rank(), size), op=hvd.Adasum)), np.ones([size]), 1e-6)


def check_barrier():
  for _ in range(3):
    hvd.barrier()


def check_join():
  """Rank r has r + 1 steps."""

  def step(number):
    return run(lambda: hvd.allreduce(tf.constant([1.0, 2.0]), op=hvd.Sum, name=f"step{number}"))

  for number in range(hvd.rank() + 1):
    equal(step(number), np.array([1.0, 2.0]) * (hvd.size() - number))
  assert run(hvd.join) == hvd.size() - 1 or hvd.size() > 2
  equal(step(99), np.array([1.0, 2.0]) * hvd.size())


def gradient(call, value, upstream):
  """The gradient of sum(call(value) * upstream(shape of the result))."""

  def build():
    x = tf.constant(value)
    if MODE == "graph":
      y = call(x)
      return tf.gradients(y, x, tf.constant(upstream))[0]
    with tf.GradientTape() as tape:
      tape.watch(x)
      y = call(x)
    return tape.gradient(y, x, output_gradients=tf.constant(upstream))

  return run(build)


def check_gradients():
  me, size = hvd.rank(), hvd.size()
  total = sum(range(1, size + 1))
  mine = np.full([4, 2], me + 1, np.float32)
  ones = np.ones([4, 2], np.float32)
  equal(gradient(lambda x: hvd.allreduce(x, op=hvd.Sum), ones, mine), ones * total)
  equal(gradient(lambda x: hvd.allreduce(x, op=hvd.Average), ones, mine), ones * total / size, 1e-6)
  equal(gradient(lambda x: hvd.grouped_allreduce([x, x * 2], op=hvd.Sum)[1], ones, mine), ones * 2 * total)
  for root in everybody():
    equal(gradient(lambda x: hvd.broadcast(x, root), ones, mine), ones * (total if me == root else 0))
  rows = np.ones([me + 1, 2], np.float32)
  counts = [rank + 1 for rank in everybody()]
  upstream = np.arange(sum(counts) * 2, dtype=np.float32).reshape(-1, 2) * (me + 1)
  begin = sum(counts[:me])
  equal(gradient(hvd.allgather, rows, upstream), (upstream / (me + 1) * total)[begin : begin + me + 1])
  equal(
    gradient(
      lambda x: hvd.alltoall(x, splits=[me + 1] * size)[0],
      np.ones([(me + 1) * size], np.float32),
      np.full([total], me + 1, np.float32),
    ),
    np.repeat(np.arange(1, size + 1), me + 1),
  )
  begin, end = rows_of(me, 5)
  found = gradient(lambda x: hvd.reducescatter(x, op=hvd.Sum), np.ones([5], np.float32), np.full([end - begin], me + 1, np.float32))
  equal(found, np.concatenate([np.full([rows_of(rank, 5)[1] - rows_of(rank, 5)[0]], rank + 1) for rank in everybody()]))


def check_objects():
  mine = {"rank": hvd.rank(), "text": "x" * (hvd.rank() * 100), "array": np.arange(hvd.rank())}
  for root in everybody():
    found = hvd.broadcast_object(mine if hvd.rank() == root else None, root)
    assert found["rank"] == root and len(found["text"]) == root * 100 and len(found["array"]) == root
  assert hvd.broadcast_object_fn(0)(hvd.rank()) == 0
  assert [found["rank"] for found in hvd.allgather_object(mine)] == list(everybody())
  big = np.arange(300000 + hvd.rank())
  assert [len(found) for found in hvd.allgather_object(big)] == [300000 + rank for rank in everybody()]
  assert len(hvd.broadcast_object(big, hvd.size() - 1)) == 300000 + hvd.size() - 1


def check_variables():
  if MODE == "eager":
    variables = [tf.Variable(tf.fill([k + 1], float(hvd.rank()))) for k in range(70)] + [tf.Variable(hvd.rank())]
    assert hvd.broadcast_variables(variables, hvd.size() - 1) is None
    for variable in variables:
      equal(variable, np.full(variable.shape, hvd.size() - 1))
    hvd.broadcast_(variables, 0)
    refused(RuntimeError, "hvd.broadcast_variables", lambda: hvd.broadcast_global_variables(0))
    return
  for use_resource in (True, False):
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
      made = [
        tf.compat.v1.get_variable(f"v{k}", initializer=tf.fill([k + 1], float(hvd.rank())), use_resource=use_resource)
        for k in range(70)
      ]
      operation = hvd.broadcast_global_variables(hvd.size() - 1)
      session.run(tf.compat.v1.global_variables_initializer())
      session.run(operation)
      for value in session.run(made):
        equal(value, np.full(value.shape, hvd.size() - 1))
  with tf.Graph().as_default():
    step = tf.compat.v1.train.get_or_create_global_step()
    w = tf.compat.v1.get_variable("w", initializer=float(hvd.rank() + 5))
    hook = hvd.BroadcastGlobalVariablesHook(0)
    with tf.compat.v1.train.MonitoredTrainingSession(hooks=[hook]) as session:
      assert session.run(w) == 5.0 and session.run(step) == 0
  with tf.Graph().as_default():  # the same hook in another graph
    w = tf.compat.v1.get_variable("w", initializer=float(hvd.rank() + 6))
    tf.compat.v1.train.get_or_create_global_step()
    with tf.compat.v1.train.MonitoredTrainingSession(hooks=[hook]) as session:
      assert session.run(w) == 6.0


def check_process_sets():
  size, me = hvd.size(), hvd.rank()
  assert hvd.global_process_set.ranks == list(everybody()) and hvd.global_process_set.process_set_id == 0
  refused(ValueError, "already", lambda: hvd.add_process_set(list(everybody())))
  refused(ValueError, f"ranks of 0 to {size - 1}", lambda: hvd.add_process_set([size]))
  refused(ValueError, "each rank once", lambda: hvd.ProcessSet([0, 0]))
  if size == 1:
    return
  evens = hvd.add_process_set(hvd.ProcessSet(range(0, size, 2)))
  odds = hvd.add_process_set([rank for rank in everybody() if rank % 2])
  assert hvd.get_process_set_ids_and_ranks() == {0: list(everybody()), 1: evens.ranks, 2: odds.ranks}
  mine, other = (odds, evens) if me % 2 else (evens, odds)
  assert (
    mine.included() and not other.included() and mine.size() == len(mine.ranks) and mine.rank() == me // 2 and other.rank() == -1
  )
  equal(run(lambda: hvd.allreduce(tf.constant(float(me)), op=hvd.Sum, process_set=mine, name="of_set")), sum(mine.ranks))
  equal(run(lambda: hvd.allreduce(tf.constant(float(me)), process_set=mine, name="mean_of_set")), np.mean(mine.ranks))
  equal(run(lambda: hvd.allgather(tf.constant([me]), process_set=mine, name="gathered")), mine.ranks)
  equal(run(lambda: hvd.broadcast(tf.constant(me), mine.ranks[-1], process_set=mine, name="given")), mine.ranks[-1])
  assert hvd.broadcast_object(me, mine.ranks[0], process_set=mine) == mine.ranks[0]
  assert hvd.allgather_object(me, process_set=mine) == mine.ranks
  hvd.barrier(process_set=mine)
  refused(ValueError, "is not in the process set", lambda: hvd.allreduce(tf.constant(1.0), process_set=other))
  refused(ValueError, "root_rank must be one of the ranks", lambda: hvd.broadcast(tf.constant(1), other.ranks[0], process_set=mine))
  hvd.barrier()
  assert hvd.remove_process_set(odds) and not hvd.remove_process_set(odds) and not hvd.remove_process_set(hvd.global_process_set)
  refused(ValueError, "not registered", odds.size)
  again = hvd.add_process_set([rank for rank in everybody() if rank % 2])
  assert again.process_set_id == 3
  assert hvd.remove_process_set(again) and hvd.remove_process_set(evens)


# Training: N ranks against one that has the batches of all


def batch_of(rank, step):
  rng = np.random.default_rng(100 * step + rank)
  return rng.normal(size=[8, 4]).astype(np.float32), rng.integers(0, 20, [8]), rng.normal(size=[8]).astype(np.float32)


def optimizers():
  v1 = tf.compat.v1.train
  return {
    "sgd": lambda: v1.GradientDescentOptimizer(0.1),
    "momentum": lambda: v1.MomentumOptimizer(0.1, 0.9),
    "adagrad": lambda: v1.AdagradOptimizer(0.1),
    "adam": lambda: v1.AdamOptimizer(0.1),
  }


def train(make, batches, steps):
  """Weights after some steps; batches(step) gives what is fed in each."""
  v1 = tf.compat.v1
  with tf.Graph().as_default(), v1.Session() as session:
    x, ids, y = v1.placeholder(tf.float32, [None, 4]), v1.placeholder(tf.int64, [None]), v1.placeholder(tf.float32, [None])
    w = v1.get_variable("w", initializer=np.linspace(-1, 1, 4).astype(np.float32).reshape(4, 1))
    b = v1.get_variable("b", initializer=0.5)
    e = v1.get_variable("e", initializer=np.linspace(-1, 1, 40).astype(np.float32).reshape(20, 2), use_resource=True)
    unused = v1.get_variable("unused", initializer=1.0)
    predicted = tf.squeeze(tf.matmul(x, w), 1) + b + tf.reduce_sum(tf.nn.embedding_lookup(e, ids), 1)
    loss = tf.reduce_mean(tf.square(predicted - y))
    count = v1.train.get_or_create_global_step()
    optimizer = make()
    pairs = optimizer.compute_gradients(loss, [w, b, e, unused])
    assert pairs[3][0] is None
    step = optimizer.apply_gradients(pairs, global_step=count)
    assert step in v1.get_collection(v1.GraphKeys.TRAIN_OP)
    session.run(v1.global_variables_initializer())  # and no local ones: the sums of backward_passes_per_step are zero before
    for number in range(steps):
      session.run(step, dict(zip((x, ids, y), batches(number))))
    return session.run([w, b, e, count])


def joined(step):
  parts = [batch_of(rank, step) for rank in everybody()]
  return [np.concatenate(part) for part in zip(*parts)]


def check_training():
  for name, make in optimizers().items():
    expected = train(make, joined, 3)
    for options in (
      {},
      {"num_groups": 2},
      {"gradient_predivide_factor": 2.0},
      {"sparse_as_dense": True},
      {"compression": hvd.Compression.fp16},
    ):
      if name != "adam" and options:
        continue
      tolerance = 5e-3 if "compression" in options else 2e-5
      found = train(lambda: hvd.DistributedOptimizer(make(), **options), lambda step: batch_of(hvd.rank(), step), 3)
      if name == "adam" and not options.get("sparse_as_dense") and "compression" in options:
        tolerance = 5e-2  # Adam's first steps are the signs of gradients
      for one, other in zip(found, expected):
        equal(one, other, tolerance)
      equal(hvd.allgather_object([value.tobytes() for value in found]).count([value.tobytes() for value in found]), hvd.size())


def check_training_over_several_passes():
  for make in (optimizers()["sgd"], optimizers()["adagrad"]):

    def pair(step):
      parts = [joined(2 * step), joined(2 * step + 1)]
      return [np.concatenate(part) for part in zip(*parts)]

    expected = train(make, pair, 3)
    for options in ({}, {"sparse_as_dense": True}):
      distributed = lambda: hvd.DistributedOptimizer(
        make(), backward_passes_per_step=2, average_aggregated_gradients=True, **options
      )
      found = train(distributed, lambda step: batch_of(hvd.rank(), step), 6)
      for one, other in zip(found, expected):
        equal(one, other, 2e-5)
      found = train(distributed, lambda step: batch_of(hvd.rank(), step), 7)  # the seventh waits for an eighth
      equal(found[3], 3)
      for one, other in zip(found, expected):
        equal(one, other, 2e-5)
  refused(
    ValueError, "backward_passes_per_step", lambda: hvd.DistributedOptimizer(optimizers()["sgd"](), backward_passes_per_step=0)
  )
  refused(
    ValueError,
    "goes with op=hvd.Average",
    lambda: hvd.DistributedOptimizer(optimizers()["sgd"](), gradient_predivide_factor=2.0, op=hvd.Sum),
  )
  refused(ValueError, "takes an optimizer of", lambda: hvd.DistributedOptimizer("sgd"))


def check_local_variables_and_groups():
  v1 = tf.compat.v1
  with tf.Graph().as_default(), v1.Session() as session:
    a, b, c = (v1.get_variable(name, initializer=1.0) for name in "abc")
    optimizer = hvd.DistributedOptimizer(v1.train.GradientDescentOptimizer(1.0), groups=[[b, c]])
    optimizer.register_local_var(a)
    loss = (a + b * 2 + c * 3) * tf.cast(hvd.rank() + 1, tf.float32)
    found = optimizer.compute_gradients(loss, [a, b, c])
    session.run(v1.global_variables_initializer())
    mean = np.mean([rank + 1 for rank in everybody()])
    equal(session.run([gradient for gradient, _ in found]), [(hvd.rank() + 1) / hvd.size(), 2 * mean, 3 * mean], 1e-6)
    names = {gradient.op.name for gradient, _ in found[1:]}
    assert hvd.size() == 1 or len(names) == 1, names  # one operation


def check_looked_up_rows_pass():
  import mxrec

  v1 = tf.compat.v1
  with tf.Graph().as_default(), v1.Session() as session:
    table = mxrec.get_embedding_table("t", 4, 100)
    rows = mxrec.embedding_lookup(table, tf.constant([1, 2, 1], tf.int64))
    w = v1.get_variable("w", initializer=1.0)
    loss = tf.reduce_sum(rows) * w
    optimizer = hvd.DistributedOptimizer(v1.train.GradientDescentOptimizer(0.5))
    train_op = mxrec.minimize(loss, optimizer)
    session.run(v1.global_variables_initializer())
    first = session.run(rows)
    session.run(train_op)
    equal(session.run(rows), first - 0.5 * np.array([[2.0], [1.0], [2.0]]), 1e-5)
    late = hvd.DistributedOptimizer(v1.train.GradientDescentOptimizer(0.5), backward_passes_per_step=2)
    refused(ValueError, "does not go with looked-up rows", lambda: mxrec.minimize(loss, late))


def check_adasum_training():
  """The ranks' steps are combined, not their gradients: with Adam the two differ."""
  size, me = hvd.size(), hvd.rank()

  def steps(make, use_resource, rank):
    v1 = tf.compat.v1
    with tf.Graph().as_default(), v1.Session() as session:
      a = v1.get_variable("a", initializer=np.array([1.0, 2.0, -1.0], np.float32), use_resource=use_resource)
      b = v1.get_variable("b", initializer=np.ones([4, 2], np.float32), use_resource=use_resource)
      count = v1.train.get_or_create_global_step()
      loss = tf.reduce_sum(a * a) * (rank + 1) + a[rank % 3] * 5 + tf.reduce_sum(tf.gather(b, [rank, rank, 3]) ** 2)
      step = make().minimize(loss, global_step=count)
      assert step in v1.get_collection(v1.GraphKeys.TRAIN_OP) and len(v1.get_collection(v1.GraphKeys.TRAIN_OP)) == 1
      session.run([v1.global_variables_initializer(), v1.local_variables_initializer()])
      first = session.run([a, b])
      session.run(step)
      return first, session.run([a, b, count])

  def combined(x, y):
    dot, xx, yy = (x * y).sum(), (x * x).sum(), (y * y).sum()
    return (1 - dot / (2 * xx)) * x + (1 - dot / (2 * yy)) * y

  for name in ("sgd", "adam"):
    make = optimizers()[name]
    for use_resource in (True, False):
      first, found = steps(lambda: hvd.DistributedOptimizer(make(), op=hvd.Adasum), use_resource, me)
      assert found[2] == 1
      if size == 2:
        alone = [steps(make, use_resource, rank)[1] for rank in everybody()]
        for k in range(2):
          equal(found[k] - first[k], combined(*(one[k].astype(np.float64) - first[k] for one in alone)), 1e-5)
      for value in found:
        assert len({repr(other) for other in hvd.allgather_object(value.tobytes())}) == 1


def check_sets_and_joins_in_training():
  """Optimizers of some of the ranks; ranks that have fewer steps."""
  size, me = hvd.size(), hvd.rank()
  v1 = tf.compat.v1
  sets = [hvd.add_process_set([rank]) for rank in everybody()] if size > 1 else [hvd.global_process_set]
  with tf.Graph().as_default(), v1.Session() as session:
    w = v1.get_variable("w", initializer=1.0)
    loss = w * float(me + 1)
    train_op = hvd.DistributedOptimizer(v1.train.GradientDescentOptimizer(1.0), process_set=sets[me]).minimize(loss)
    session.run(v1.global_variables_initializer())
    session.run(train_op)
    equal(session.run(w), -float(me))
    if size > 1:
      other = sets[(me + 1) % size]
      for options in ({}, {"op": hvd.Adasum}, {"backward_passes_per_step": 2}):
        made = hvd.DistributedOptimizer(v1.train.GradientDescentOptimizer(1.0), process_set=other, **options)
        refused(ValueError, f"rank {me} is not in the process set with the ranks {other.ranks}", lambda: made.minimize(loss))
      made = hvd.DistributedOptimizer(v1.train.GradientDescentOptimizer(1.0), process_set=hvd.ProcessSet([0]))
      refused(ValueError, "not registered", lambda: made.minimize(loss))
  for process_set in sets[::-1]:
    assert hvd.remove_process_set(process_set) == (size > 1)
  with tf.Graph().as_default(), v1.Session() as session:
    w = v1.get_variable("w", initializer=np.zeros([2], np.float32))
    step = hvd.DistributedOptimizer(v1.train.GradientDescentOptimizer(1.0)).minimize(tf.reduce_sum(w) * size)
    last = hvd.join()
    session.run(v1.global_variables_initializer())
    for _ in range(me + 1):
      session.run(step)
    session.run(last)
    # Ranks that have joined count with zeros.
    equal(session.run(w), np.full([2], -float(sum(size - number for number in range(me + 1)))), 1e-6)


def check_sync_batch_norm():
  from mxrec.horovod.tensorflow import keras

  assert hvd.SyncBatchNormalization is keras.SyncBatchNormalization
  layer_of = hvd.SyncBatchNormalization
  for fused in (True, None):
    refused(ValueError, "has no fused form", lambda: layer_of(fused=fused))
  assert isinstance(layer_of(), tf.keras.layers.BatchNormalization)
  # Unequal batches, one of them empty where there are three; far from zero, where sums of squares lose everything.
  counts = [3, 6, 0, 2][: hvd.size()]
  me, offset = hvd.rank(), 1000.0
  for shape, axis in (([2], -1), ([4, 3, 2], -1), ([2, 4, 3], 1)):
    rng = np.random.default_rng(7)
    x = (rng.normal(size=[sum(counts), *shape]) + offset).astype(np.float32)
    upstream = rng.normal(size=x.shape).astype(np.float32)
    begin = sum(counts[:me])
    mine = slice(begin, begin + counts[me])

    def results(layer, x, upstream):
      if MODE == "eager":
        x = tf.constant(x)
        with tf.GradientTape() as tape:
          tape.watch(x)
          y = layer(x, training=True)
        found = [y, *tape.gradient(y, [x, layer.gamma, layer.beta], output_gradients=tf.constant(upstream))]
        return [value.numpy() for value in (*found, layer.moving_mean, layer.moving_variance, layer(x, training=False))]
      x = tf.constant(x)
      y = layer(x, training=True)
      gradients = tf.gradients(y, [x, layer.gamma, layer.beta], tf.constant(upstream))
      with tf.compat.v1.Session() as session:
        session.run(tf.compat.v1.global_variables_initializer())
        found = session.run([[y, *gradients], layer.updates])[0]
        return found + session.run([layer.moving_mean, layer.moving_variance, layer(x, training=False)])

    def of(kind, **options):
      return kind(axis=axis, momentum=0.5, epsilon=1e-3, **options)

    with tf.Graph().as_default() if MODE == "graph" else contextlib.nullcontext():
      alone = results(of(tf.keras.layers.BatchNormalization, fused=False), x, upstream)
    with tf.Graph().as_default() if MODE == "graph" else contextlib.nullcontext():
      found = results(of(layer_of), x[mine], upstream[mine])
    for k in (0, 1, 6):
      equal(found[k], alone[k][mine], 2e-3)
    for k in (4, 5):
      equal(found[k], alone[k], 1e-3)
    for k in (2, 3):  # of this rank's part of the loss; the optimizer averages them
      equal(run(lambda: hvd.allreduce(tf.constant(found[k]), op=hvd.Sum)), alone[k], 2e-3)
  if MODE == "eager":  # of Keras 3; in a function, and in a model that is saved
    import tempfile

    import keras as keras_3
    from mxrec.horovod import _sync_batch_norm

    alone, layer = keras_3.layers.BatchNormalization(), _sync_batch_norm.made_from(keras_3.layers.BatchNormalization)()
    assert type(layer).__name__ == "SyncBatchNormalization"
    equal(layer(x[mine], training=True), alone(x, training=True)[mine], 2e-3)
    equal(layer.moving_variance, alone.moving_variance, 1e-3)

    model = tf.keras.Sequential([tf.keras.layers.Dense(2, input_shape=[3]), layer_of(), tf.keras.layers.Dense(1)])
    model.compile(keras.DistributedOptimizer(tf.keras.optimizers.SGD(0.01)), loss="mse")
    data, target = keras_data()
    start = keras.callbacks.BroadcastGlobalVariablesCallback(0)
    model.fit(data[me :: hvd.size()], target[me :: hvd.size()], batch_size=8, epochs=2, verbose=0, callbacks=[start])
    weights = [value.tobytes() for value in model.get_weights()]
    assert all(other == weights for other in hvd.allgather_object(weights))
    with tempfile.TemporaryDirectory() as folder:
      model.save(f"{folder}/model.h5")
      loaded = keras.load_model(f"{folder}/model.h5")
    assert isinstance(loaded.layers[1], layer_of)
    equal(loaded.predict(data, verbose=0), model.predict(data, verbose=0), 1e-5)


# Eager mode


def check_tape():
  me, mean = hvd.rank(), np.mean([rank + 1 for rank in everybody()])
  x, y, e = tf.Variable(2.0), tf.Variable([1.0, 1.0]), tf.Variable(tf.ones([6, 2]))

  def loss():
    return float(me + 1) * (x * x + tf.reduce_sum(y) + tf.reduce_sum(tf.gather(e, [me, me, 5])))

  for make in (
    lambda: hvd.DistributedGradientTape(tf.GradientTape()),
    lambda: hvd.DistributedGradientTape(tf.GradientTape(persistent=True), compression=hvd.Compression.fp16),
    lambda: hvd.DistributedGradientTape(tf.GradientTape(), num_groups=1),
  ):
    with make() as tape:
      value = loss()
    found = tape.gradient(value, [x, y, {"e": e}])
    equal(found[0], 4 * mean, 1e-6)
    equal(found[1], [mean, mean], 1e-6)
    dense = np.zeros([6, 2])
    for rank in everybody():
      np.add.at(dense, [rank, rank, 5], (rank + 1) / hvd.size())
    equal(tf.convert_to_tensor(found[2]["e"]), dense, 1e-6)
  with tf.GradientTape() as tape:
    value = loss()
  tape = hvd.DistributedGradientTape(tape)
  tape.register_local_source(x)
  equal(tape.gradient(value, x), 4.0 * (me + 1) / hvd.size(), 1e-6)

  @tf.function
  def step(factor):
    with tf.GradientTape() as inside:
      value = factor * x * x
    return hvd.DistributedGradientTape(inside).gradient(value, x), hvd.allreduce(factor, op=hvd.Sum)

  for scale in (1.0, 3.0):
    gradient_, total = step(tf.constant(scale * (me + 1)))
    equal(gradient_, 4 * scale * mean, 1e-6)
    equal(total, scale * mean * hvd.size(), 1e-6)


def keras_data():
  rng = np.random.default_rng(5)
  x = rng.normal(size=[16 * hvd.size(), 3]).astype(np.float32)
  return x, (x @ np.array([[1.0], [2.0], [-1.0]], np.float32)) + 0.5


def keras_model(optimizer, run_eagerly=False):
  model = tf.keras.Sequential([tf.keras.layers.Dense(1, kernel_initializer="ones", input_shape=[3])])
  model.compile(optimizer, loss="mse", metrics=["mae"], run_eagerly=run_eagerly)
  return model


def check_keras():
  import mxrec.horovod.tensorflow.keras as keras

  size, me = hvd.size(), hvd.rank()
  x, y = keras_data()
  kinds = [lambda: tf.keras.optimizers.legacy.SGD(0.1, momentum=0.9), lambda: tf.keras.optimizers.legacy.Adam(0.05)]
  if MODE == "eager":
    kinds += [lambda: tf.keras.optimizers.SGD(0.1, momentum=0.9), lambda: tf.keras.optimizers.Adam(0.05)]
  for kind in kinds:
    alone = keras_model(kind())
    alone.fit(x, y, batch_size=len(x), epochs=3, shuffle=False, verbose=0)
    for wrap in (keras.DistributedOptimizer, hvd.DistributedOptimizer):
      model = keras_model(wrap(kind()))
      assert type(model.optimizer).__name__ == type(kind()).__name__
      model.layers[0].set_weights([np.full([3, 1], 1.0 + me, np.float32), np.zeros([1], np.float32)])
      callbacks = [keras.callbacks.BroadcastGlobalVariablesCallback(0), keras.callbacks.MetricAverageCallback()]
      mine = {"batch_size": 16, "epochs": 3, "shuffle": False, "verbose": 0, "callbacks": callbacks}
      history = model.fit(x[me::size], y[me::size], **mine)
      for found, expected in zip(model.get_weights(), alone.get_weights()):
        equal(found, expected, 1e-4)
      assert len({repr(losses) for losses in hvd.allgather_object(history.history["loss"])}) == 1
  refused(ValueError, "already", lambda: keras.DistributedOptimizer(keras.DistributedOptimizer(kinds[0]())))
  equal(keras.allreduce([1.0 + me, 2.0]), [np.mean([1.0 + rank for rank in everybody()]), 2.0], 1e-6)
  equal(keras.allgather([me]), list(everybody()))
  equal(keras.broadcast(7 + me, 0), 7)


def check_keras_over_several_passes():
  import mxrec.horovod.tensorflow.keras as keras

  x, y = keras_data()
  size, me = hvd.size(), hvd.rank()
  for kind in (lambda: tf.keras.optimizers.legacy.SGD(0.1), lambda: tf.keras.optimizers.SGD(0.1)):
    for run_eagerly in (False, True):
      alone = keras_model(kind())
      alone.fit(x, y, batch_size=len(x), epochs=2, shuffle=False, verbose=0)
      model = keras_model(
        keras.DistributedOptimizer(kind(), backward_passes_per_step=2, average_aggregated_gradients=True), run_eagerly=run_eagerly
      )
      model.fit(x[me::size], y[me::size], batch_size=8, epochs=2, shuffle=False, verbose=0)
      for found, expected in zip(model.get_weights(), alone.get_weights()):
        equal(found, expected, 1e-4)
      equal(model.optimizer.iterations.numpy(), 4)


def check_keras_learning_rates():
  import mxrec.horovod.keras as keras

  x, y = keras_data()
  x, y = x[:16], y[:16]
  seen = []

  class Look(tf.keras.callbacks.Callback):
    def on_batch_end(self, batch, logs=None):
      seen.append(round(float(tf.keras.backend.get_value(self.model.optimizer.learning_rate)), 5))

  model = keras_model(keras.DistributedOptimizer(tf.keras.optimizers.legacy.SGD(0.01, momentum=0.9)))
  warm_up = keras.callbacks.LearningRateWarmupCallback(0.01 * hvd.size(), warmup_epochs=2, verbose=1)
  drop = keras.callbacks.LearningRateScheduleCallback(0.01 * hvd.size(), 0.1, start_epoch=2)
  model.fit(x, y, batch_size=8, epochs=3, verbose=0, shuffle=False, callbacks=[warm_up, drop, Look()])
  size = hvd.size()
  rising = [0.01 * (1 + (k + 1) / 4 * (size - 1)) for k in range(4)]
  np.testing.assert_allclose(seen, [*rising, 0.001 * size, 0.001 * size], atol=1e-5)
  assert abs(float(tf.keras.backend.get_value(model.optimizer.momentum)) - 0.9) < 1e-6
  refused(ValueError, "initial_lr", lambda: keras.callbacks.LearningRateScheduleCallback(None, 1.0))


def check_keras_models_load():
  import tempfile

  import mxrec.horovod.tensorflow.keras as keras

  x, y = keras_data()
  for kind in (lambda: tf.keras.optimizers.legacy.Adam(0.05), lambda: tf.keras.optimizers.Adam(0.05)):
    model = keras_model(keras.DistributedOptimizer(kind()))
    model.fit(x[:16], y[:16], batch_size=16, epochs=2, verbose=0)
    with tempfile.TemporaryDirectory() as folder:
      model.save(f"{folder}/model.h5")
      loaded = keras.load_model(f"{folder}/model.h5")
      plain = tf.keras.models.load_model(f"{folder}/model.h5")
    assert hasattr(loaded.optimizer, "_hvd_reducer") and not hasattr(plain.optimizer, "_hvd_reducer")
    for one in (model, loaded):
      one.fit(x[:16], y[:16], batch_size=16, epochs=1, verbose=0)
    for found, expected in zip(loaded.get_weights(), model.get_weights()):
      equal(found, expected, 1e-6)


def check_keras_3():
  import keras

  x, y = keras_data()
  size, me = hvd.size(), hvd.rank()

  def model_of(optimizer):
    model = keras.Sequential([keras.Input([3]), keras.layers.Dense(1, kernel_initializer="ones")])
    model.compile(optimizer, loss="mse")
    return model

  for passes in (1, 2):
    alone = model_of(keras.optimizers.SGD(0.1))
    alone.fit(x, y, batch_size=len(x), epochs=3, shuffle=False, verbose=0)
    options = {"backward_passes_per_step": passes, "average_aggregated_gradients": True}
    model = model_of(hvd.DistributedOptimizer(keras.optimizers.SGD(0.1), **options))
    model.fit(x[me::size], y[me::size], batch_size=16 // passes, epochs=3, shuffle=False, verbose=0)
    for found, expected in zip(model.get_weights(), alone.get_weights()):
      equal(found, expected, 1e-4)


# Disagreement, with two ranks or more


def check_disagreement():
  me = hvd.rank()
  wrong = (tf.errors.InvalidArgumentError, tf.errors.FailedPreconditionError)
  if hvd.size() == 1:
    return
  cases = {
    "shape": lambda: hvd.allreduce(tf.ones([3 + me]), name="d_shape"),
    "dims": lambda: hvd.allreduce(tf.ones([2] * (1 + me)), name="d_dims"),
    "type": lambda: hvd.allreduce(tf.ones([3], tf.float32 if me else tf.float64), name="d_type"),
    "op": lambda: hvd.allreduce(tf.ones([3]), op=hvd.Max if me else hvd.Sum, name="d_op"),
    "kind": lambda: hvd.allreduce(tf.ones([3]), name="d_kind") if me else hvd.allgather(tf.ones([3]), name="d_kind"),
    "root": lambda: hvd.broadcast(tf.ones([3]), me % 2, name="d_root"),
    "tail": lambda: hvd.allgather(tf.ones([3, 2 + me]), name="d_tail"),
    "scale": lambda: hvd.allreduce(tf.ones([3]), op=hvd.Sum, prescale_factor=1.0 + me, name="d_scale"),
    "count": lambda: hvd.grouped_allreduce([tf.ones([2])] * (1 + me), name="d_count"),
    "length": lambda: hvd.grouped_allgather([tf.ones([2])] * (4 - me), name="d_length"),
  }
  for name, build in cases.items():
    refused(wrong, f"d_{name}", lambda: run(build))
    # The Python line of other ranks too.
    refused(wrong, "horovod_worker.py:", lambda: run(build))
    if name in ("count", "length"):
      refused(wrong, "the ranks disagree about the number of tensors: rank 0 has ", lambda: run(build))
    equal(run(lambda: hvd.allreduce(tf.constant(1.0), op=hvd.Sum, name=f"after_{name}")), hvd.size())  # and nothing hangs


def check_refusals():
  """What the last rank finds wrong before it asks ends the wait of the others, too, and the next operation works."""
  if hvd.size() == 1:
    return
  last = hvd.size() - 1
  wrong = hvd.rank() == last
  cases = {
    "splits": (lambda: hvd.alltoall(tf.ones([4]), splits=[wrong + 4] + [0] * last, name="r_splits"), "splits must"),
    "scalar": (lambda: hvd.allgather(tf.ones([] if wrong else [2]), name="r_scalar"), "scalar"),
    "several": (lambda: hvd.grouped_allgather([tf.ones([2]), tf.ones([] if wrong else [2])], name="r_several"), "scalar"),
    "type": (lambda: hvd.allreduce(tf.constant([True] if wrong else [1.0]), op=hvd.Sum, name="r_type"), "bool"),
    "root": (lambda: hvd.broadcast(tf.ones([2]), 99 if wrong else 0, name="r_root"), "root_rank must"),
    "op": (lambda: hvd.allreduce(tf.ones([2]), op=77 if wrong else hvd.Sum, name="r_op"), "op must be"),
    "nothing": (lambda: hvd.grouped_allreduce([] if wrong else [tf.ones([2])] * 3, name="r_nothing"), "empty list"),
    "unnamed": (lambda: hvd.reducescatter(tf.ones([] if wrong else [4])), "scalar"),
  }
  # Of a graph that cannot be built nobody hears: the script ends there, or its next operation is another one.
  names = cases if MODE == "eager" else ["splits"]
  for name in names:
    build, text = cases[name]
    begin = time.monotonic()
    try:
      run(build)
      assert wrong and name == "nothing"
    except (ValueError, TypeError, tf.errors.InvalidArgumentError) as error:
      assert text in str(error), error
      if not wrong:
        assert isinstance(error, tf.errors.InvalidArgumentError) and f"rank {last} (" in str(error), error
        assert "does not take part" in str(error) and "horovod_worker.py:" in str(error), error
    assert time.monotonic() - begin < 10, name
    equal(run(lambda: hvd.allreduce(tf.constant(1.0), op=hvd.Sum, name=f"after_{name}")), hvd.size())
    if name == "nothing":
      equal(run(lambda: hvd.grouped_allreduce([tf.ones([2])] * 3, op=hvd.Sum, name="r_nothing"))[2], [hvd.size()] * 2)


def check_duplicate_names():
  if MODE == "eager" or hvd.size() == 1:
    return

  def build():
    x = tf.constant(np.ones([1000], np.float32))
    return [
      hvd.broadcast(x, 0, name="twice", ignore_name_scope=True),
      hvd.broadcast(x + 1, 0, name="twice", ignore_name_scope=True),
    ]

  try:
    run(build)  # one may have ended before the other began; what one rank refuses, the others hear of
  except (tf.errors.AlreadyExistsError, tf.errors.InternalError) as error:
    assert "twice" in str(error)
  hvd.barrier()
  equal(run(lambda: hvd.allreduce(tf.constant(1.0), op=hvd.Sum, name="after")), hvd.size())


def main():
  hvd.init()
  for name in sys.argv[2:]:
    globals()[f"check_{name}"]()
    print("done", name, flush=True)
  hvd.shutdown()


if __name__ == "__main__":
  main()
