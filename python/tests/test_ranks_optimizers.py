"""Distributed optimizers, reductions of gradients, hooks and loss scaling on 2 and 3 ranks (facts 8 to 10, 15; G-28 to G-36)."""

import helpers
import numpy as np
import pytest
import ranks
import tensorflow.compat.v1 as tf
from hccl.manage import api
from hccl.split import api as split
from npu_bridge.estimator.npu import (
  npu_hook,
  npu_loss_scale_manager,
  npu_loss_scale_optimizer,
  npu_optimizer,
  npu_strategy,
)

from mxrec import _collective, _groups, _slices

SGD = tf.train.GradientDescentOptimizer


def trained(session_steps, train, *fetches):
  with tf.Session() as session:
    session.run(tf.global_variables_initializer())
    for _ in range(session_steps):
      session.run(train)
    return session.run(list(fetches))


def wrapped(kind, optimizer):
  if kind == "wrapper":
    same = npu_optimizer.npu_distributed_optimizer_wrapper(optimizer)
    assert same is optimizer
    return same
  if kind == "class":
    return npu_optimizer.NPUDistributedOptimizer(optimizer)
  return npu_optimizer.NPUOptimizer(optimizer, is_distributed=True)


def wrapper(kind):
  me = api.get_rank_id()
  v = tf.get_variable("v", initializer=0.0)
  unused = tf.get_variable("unused", initializer=5.0)
  opt = wrapped(kind, SGD(1.0))
  pairs = opt.compute_gradients(v * float(me + 1), [v, unused])
  assert pairs[1] == (None, unused)
  train = opt.apply_gradients(pairs)
  kinds = [op.type for op in tf.get_default_graph().get_operations()]
  return [kinds.count("HcomAllReduce"), *trained(1, train, v, unused)]


@pytest.mark.parametrize("kind", ["wrapper", "class", "npu"])
def test_fact_8_g_28_g_34_gradients_are_averaged(kind):
  assert ranks.run(2, wrapper, kind).results() == [[1, -1.5, 5.0]] * 2


def sparse(counts, dtype):
  """Rank r gives counts[r] rows, from row r on."""
  me = api.get_rank_id()
  v = tf.get_variable("v", initializer=tf.zeros([5, 2], dtype))
  ids = tf.constant(list(range(me, me + counts[me])), tf.int32)
  loss = tf.reduce_sum(tf.gather(v, ids)) + tf.reduce_sum(tf.gather(v, ids[:0]))
  train = npu_optimizer.npu_distributed_optimizer_wrapper(SGD(1.0)).minimize(loss)
  return trained(1, train, tf.cast(v[:, 0], tf.float64))


@pytest.mark.parametrize("counts", [[2, 2], [3, 1], [0, 2], [2, 2, 3]])
@pytest.mark.parametrize("dtype", ["float32", "float16", "float64"])
def test_fact_9_g_36_d_43_indexed_slices_of_any_row_counts(counts, dtype):
  size = len(counts)
  expected = np.zeros(5)
  for rank, count in enumerate(counts):
    expected[rank : rank + count] -= 1 / size
  for (found,) in ranks.run(size, sparse, counts, dtype).results():
    np.testing.assert_allclose(found, expected, rtol=2e-3 if dtype == "float16" else 1e-6)


def slices():
  """Duplicates are summed before they travel; sums that half precision cannot hold; integers."""
  me = api.get_rank_id()
  ids = tf.constant([4, 2, 4, 4][: 3 + me])
  made = tf.IndexedSlices(tf.ones([3 + me, 2]), ids, tf.constant([9, 2]))
  summed = _slices.allreduce(made, False)
  big = _slices.allreduce(tf.IndexedSlices(tf.fill([2], tf.constant(60000, tf.float16)), tf.constant([1, 2])), True)
  whole = _slices.allreduce(tf.IndexedSlices(tf.constant([-1 - me]), tf.constant([0])), True)
  with tf.Session() as session:
    found = session.run([summed.indices, summed.values, big.values, whole.values])
  return [*found, _groups.statistics()["data_bytes"]]


def test_d_18_d_43_slices_are_merged():
  for indices, values, big, whole, travelled in ranks.run(2, slices).results():
    assert indices == [4, 2] and values == [[5.0, 5.0], [2.0, 2.0]]
    assert big == [60000.0, 60000.0]
    assert whole == [-2]
    assert travelled == 2 * (4 + 8) + 2 * (4 + 4) + (4 + 4)  # of 3 or 4 rows, 2 and 1


def routed(rows):
  """Indices that some ranks share, -1 and none at all among them; values of any rank; bits compared by all."""
  me = api.get_rank_id()
  random = np.random.RandomState(me)
  ids = random.randint(-1, 40, rows[me]).astype(np.int64)
  values = random.randn(rows[me], 3, 2).astype(np.float32)
  summed = _slices.allreduce(tf.IndexedSlices(tf.constant(values), tf.constant(ids)), False, name="routed")
  vector = _slices.allreduce(tf.IndexedSlices(tf.constant(values[:, 0, 0]), tf.constant(ids.astype(np.int32))), True)
  assert summed.values.shape.as_list() == [None, 3, 2] and vector.indices.dtype == tf.int32
  kinds = {op.type for op in tf.get_default_graph().get_operations()}
  with tf.Session() as session:
    found = session.run([summed.indices, summed.values, vector.indices, vector.values])
  if len(rows) == 2:  # what is distinct here went to the other rank once
    statistics = _groups.statistics()
    assert statistics["data_bytes"] == len(set(ids)) * (8 + 6 * 4 + 4 + 4)
    assert statistics["operations"] == 2 * 2  # indices and rows, whether or not ranks share some
  return ["MxrecAllToAll" in kinds, *(part.tolist() for part in found), ids.tolist(), values.tolist()]


@pytest.mark.parametrize("rows", [pytest.param([30, 0, 50, 7], marks=pytest.mark.thorough), [30, 7], [50, 0, 30]])
def test_slices_of_many_ranks_go_by_their_owners(rows):
  results = ranks.run(len(rows), routed, rows).results()
  expected = {}
  for *_, ids, values in results:
    for index, value in zip(ids, values):
      expected[index] = expected.get(index, 0) + np.array(value)
  for over_owners, indices, values, indices32, vector, *_ in results:
    assert over_owners == (len(rows) == 4)
    assert [indices, values, indices32, vector] == results[0][1:5]  # the same bits
    assert sorted(indices) == sorted(indices32) == sorted(expected)
    for index, value in zip(indices, values):
      np.testing.assert_allclose(value, expected[index], rtol=1e-5, atol=1e-6)
    for index, value in zip(indices32, vector):
      np.testing.assert_allclose(value, expected[index][0, 0] / len(rows), rtol=1e-5, atol=1e-6)


def many_slices():
  """Sums that are longer than what TensorFlow allocates for them, of changing sizes, several at once."""
  me = api.get_rank_id()
  random = np.random.RandomState(me)
  feeds, sums = [tf.placeholder(tf.int64, [None]) for _ in range(3)], []
  for index, ids in enumerate(feeds):
    rows = tf.tile(tf.cast(ids, tf.float32)[:, None] + index, [1, 200])
    made = _slices.allreduce(tf.IndexedSlices(rows, ids), False)
    sums.append(tf.scatter_nd(made.indices[:, None], made.values, [5000, 200]))
  with tf.Session(config=tf.ConfigProto(inter_op_parallelism_threads=1)) as session:
    for _ in range(3):
      given = [random.randint(0, 5000, random.randint(1500, 6000)) for _ in feeds]
      found = session.run(sums, dict(zip(feeds, given)))
      expected = [
        tf.scatter_nd(ids[:, None], np.tile(ids[:, None] + float(i), [1, 200]), [5000, 200]) for i, ids in enumerate(given)
      ]
      expected = session.run([_collective.allreduce(one) for one in expected])
      assert all(np.array_equal(*pair) for pair in zip(found, expected))
  return True


def test_slices_of_many_rows_equal_the_dense_sum():
  assert ranks.run(2, many_slices).results() == [True, True]


def slices_of_other_widths():
  """Rows of 2 numbers on one rank, of 3 on the other; then the same op with rows that fit."""
  me = api.get_rank_id()
  rows = tf.placeholder(tf.float32, [None, None])
  summed = _slices.allreduce(tf.IndexedSlices(rows, tf.constant([4, 5 + me])), False, name="rows")
  with tf.Session() as session:
    with pytest.raises(tf.errors.InvalidArgumentError, match="rank 1"):
      session.run(summed.values, {rows: np.ones([2, 2 + me])})
    return session.run([summed.indices, summed.values], {rows: np.ones([2, 2])})


def test_d_40_slices_of_other_widths_end_on_all_ranks():
  for indices, values in ranks.run(2, slices_of_other_widths).results():
    assert indices == [4, 5, 6] and values == [[2.0, 2.0], [1.0, 1.0], [1.0, 1.0]]


def npu_allreduce():
  me = api.get_rank_id()
  value = tf.constant([1.0, 3.0][me])
  one = [npu_optimizer.npu_allreduce(value)] + [npu_optimizer.npu_allreduce(value, how) for how in ("max", "sum", "prod", "min")]
  several = npu_optimizer.npu_allreduce([value, None, tf.constant([2.0 * me])])
  assert isinstance(several, list) and several[1] is None and len(several) == 3
  with pytest.raises(ValueError, match="avg"):
    npu_optimizer.npu_allreduce(value, "avg")
  single = npu_optimizer.allreduce(value, average=False)
  integers = npu_optimizer.npu_allreduce(tf.constant(-1 - me * 2))
  with tf.Session() as session:
    return [float(found) for found in session.run([*one, several[0], several[2][0], single, integers])]


def test_fact_10_npu_allreduce():
  assert ranks.run(2, npu_allreduce).results() == [[2, 3, 4, 3, 1, 2, 1, 4, -2]] * 2


def rows_pass():
  """With tables refused on several ranks, their lookups are made before the world is."""
  import os

  size = os.environ.pop("RANK_SIZE")
  table = helpers.table(dimension=2)
  import mxrec

  output = mxrec.embedding_lookup(table, tf.constant([1, 2, 2], tf.int64))
  pooled = mxrec.embedding_lookup(table, tf.ragged.constant([[1, 2], [3]], dtype=tf.int64), combiner="sum")
  rows = mxrec.get_sparse_embedding()
  os.environ["RANK_SIZE"] = size
  w = tf.get_variable("w", initializer=[1.0, 2.0])
  loss = tf.reduce_sum(output * w) + tf.reduce_sum(pooled * w)
  gradients = tf.gradients(loss, [w, *rows])
  reduced = npu_optimizer.npu_allreduce(gradients)
  passed = [after is before for after, before in zip(reduced, gradients)]
  scaled = [tf.IndexedSlices(g.values * 0.5, g.indices) if isinstance(g, tf.IndexedSlices) else g * 0.5 for g in gradients]
  passed += [after is before for after, before in zip(npu_optimizer.npu_allreduce(scaled), scaled)]
  for kind in ("wrapper", "class", "npu"):
    pairs = wrapped(kind, SGD(1.0)).compute_gradients(loss, [w, *rows])
    passed.append([_has_collective(gradient) for gradient, _ in pairs])
  return passed


def _has_collective(gradient):
  return "HcomAllReduce" in (gradient.values if isinstance(gradient, tf.IndexedSlices) else gradient).op.type


def test_gradients_of_looked_up_rows_stay_as_they_are():
  expected = [False, True, True, False, True, True] + [[True, False, False]] * 3
  assert ranks.run(2, rows_pass).results() == [expected] * 2


def segments(kind):
  if kind == "idx":
    split.set_split_strategy_by_idx([0, 3])
  elif kind == "size":
    split.set_split_strategy_by_size([50, 50])
  variables = [tf.get_variable(f"v{i}", initializer=tf.fill([2], float(i))) for i in range(4)]
  loss = sum(tf.reduce_sum(variable) for variable in variables) * float(api.get_rank_id() + 1)
  train = npu_optimizer.npu_distributed_optimizer_wrapper(SGD(1.0)).minimize(loss)
  reductions = [op for op in tf.get_default_graph().get_operations() if op.type == "HcomAllReduce"]
  return [[len(op.control_inputs) for op in reductions], trained(1, train, *[variable[0] for variable in variables])]


@pytest.mark.parametrize("kind, waits", [("none", [0] * 4), ("idx", [0, 1, 1, 1]), ("size", [1] * 4)])
def test_a_split_strategy_makes_segments_and_changes_no_result(kind, waits):
  assert ranks.run(2, segments, kind).results() == [[waits, [-1.5, -0.5, 0.5, 1.5]]] * 2


def shared_updates():
  import os

  me = api.get_rank_id()
  variables = [tf.get_variable(f"v{i}", initializer=tf.fill([i + 1], 1.0)) for i in range(3)]
  loss = sum(tf.reduce_sum(variable) for variable in variables) * float(me + 1)
  opt = npu_optimizer.NPUDistributedOptimizer(tf.train.MomentumOptimizer(1.0, 0.5), is_weight_update_sharding=True)
  with pytest.raises(ValueError, match="DEVICE_ID"):
    opt.compute_gradients(loss)
  os.environ["DEVICE_ID"] = str(me)
  with pytest.raises(ValueError, match="2 ranks"):
    opt.compute_gradients(loss, variables[:1])
  step = tf.train.get_or_create_global_step()
  train = opt.minimize(loss, step)
  slots = sum(opt.get_slot(variable, "momentum") is not None for variable in variables)
  return [slots, *[np.asarray(value).tolist() for value in trained(2, train, step, *variables)]]


def test_weight_update_sharding():
  first, second = ranks.run(2, shared_updates).results()
  assert first[0] + second[0] == 3 and first[0] and second[0]
  assert first[1:] == second[1:]
  assert first[1] == 2
  np.testing.assert_allclose(np.concatenate(first[2:]), 1 - 1.5 - 1.5 * 1.5)


def loss_scaling(check):
  me = api.get_rank_id()
  v = tf.get_variable("v", initializer=1.0)
  step = tf.train.get_or_create_global_step()
  x = tf.placeholder(tf.float32, [])
  manager = npu_loss_scale_manager.FixedLossScaleManager(128, enable_overflow_check=check)
  opt = npu_loss_scale_optimizer.NPULossScaleOptimizer(SGD(0.5), manager, is_distributed=True)
  train = opt.minimize(v * x, step)
  seen = []
  with tf.Session() as session:
    session.run(tf.global_variables_initializer())
    for fed in (1.0, float("nan") if me == 1 else 1.0, 2.0):
      session.run(train, {x: fed})
      seen.append([str(session.run(v)), int(session.run(step))])
  return seen


def test_fact_15_an_overflow_on_one_rank_skips_the_step_on_all():
  assert ranks.run(2, loss_scaling, True).results() == [[["0.5", 1], ["0.5", 1], ["-0.5", 2]]] * 2
  first, second = ranks.run(2, loss_scaling, False).results()
  assert [count for _, count in first] == [1, 2, 3] and second[1][0] == "nan" and first[1][0] == "0.0"


def hooks(root):
  me = api.get_rank_id()
  v = tf.get_variable("v", initializer=[float(me)] * 3)
  kept = tf.get_variable("kept", initializer=float(me), trainable=False)
  hook = npu_hook.NPUBroadcastGlobalVariablesHook(root)
  with tf.train.MonitoredTrainingSession(hooks=[hook]) as session:
    return session.run([v, kept])


def test_g_31_the_hook_gives_trainable_variables_the_values_of_the_root():
  first, second = ranks.run(2, hooks, 1).results()
  assert (first, second) == ([[1.0] * 3, 0.0], [[1.0] * 3, 1.0])


def data():
  dataset = tf.data.Dataset.range(8).shard(api.get_rank_size(), api.get_rank_id())
  own = tf.data.make_one_shot_iterator(dataset.batch(8)).get_next()
  strategy = npu_strategy.NPUStrategy()
  iterator = strategy.make_dataset_iterator(tf.data.Dataset.range(8).batch(1))
  element = strategy.experimental_local_results(iterator.get_next())[0]
  with tf.Session() as session:
    session.run(iterator.initialize())
    return [strategy.num_replicas_in_sync, session.run(own), [int(session.run(element)[0]) for _ in range(4)]]


def test_g_30_shards_are_disjoint_and_complete():
  first, second = ranks.run(2, data).results()
  assert first == [2, [0, 2, 4, 6], [0, 2, 4, 6]]
  assert second == [2, [1, 3, 5, 7], [1, 3, 5, 7]]
