"""One rank that checks mxrec.horovod against what numpy says; started by test_horovod.py, alone or by `mxrec launch`.

Usage: horovod_worker.py graph|eager CHECK...; every check works for any number of ranks, and says so when it is done.
"""
# ruff: noqa: B023 (functions that a loop makes are called in the same turn)

from horovod_common import FLOATS, MODE, NUMBERS, dense_of, equal, everybody, of, refused, run, slices_of

# isort: split
import os
import sys
import time

import horovod_training
import mxrec.horovod as hvd
import numpy as np
import tensorflow as tf


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
    check = f"check_{name}"
    (globals().get(check) or getattr(horovod_training, check))()
    print("done", name, flush=True)
  hvd.shutdown()


if __name__ == "__main__":
  main()
