"""The pass that makes few ops of a run's small allreduces: same results, fewer ops, and what it must not merge."""

import collections
import os
import re

import numpy as np
import pytest
import ranks
import tensorflow.compat.v1 as tf
from hccl.manage import api
from npu_bridge.hccl import hccl_ops

from mxrec import _collective

TRACE = tf.RunOptions(trace_level=tf.RunOptions.FULL_TRACE)


def variables(count, elements=8):
  return [tf.get_variable(f"v{i}", initializer=tf.fill([elements], float(i)), use_resource=True) for i in range(count)]


def merged(session, fetches, feed=None):
  """What fetches give, how many tensors each merged op had, and how many single allreduces ran."""
  metadata = tf.RunMetadata()
  result = session.run(fetches, feed, options=TRACE, run_metadata=metadata)
  names = [node.node_name for device in metadata.step_stats.dev_stats for node in device.node_stats]
  labels = [node.timeline_label for device in metadata.step_stats.dev_stats for node in device.node_stats]
  sizes = sorted(int(re.match(r"mxrec_merged/(\d+)_", name)[1]) for name in names if name.startswith("mxrec_merged/"))
  kinds = collections.Counter(match[1] for match in (re.search(r" = (\w+)\(", label) for label in labels) if match)
  return result, sizes, kinds["MxrecAllReduce"] + kinds["HcomAllReduce"] - len(sizes)


@pytest.fixture(autouse=True)
def merge(monkeypatch):
  """In one process too."""
  monkeypatch.setenv("MXREC_MERGE", "1")


def initialized(session):
  session.run(tf.global_variables_initializer())
  return session


def test_independent_small_allreduces_become_one_op(sess):
  results = [_collective.allreduce(v, name=f"of {i}") for i, v in enumerate(variables(10))]
  values, sizes, single = merged(initialized(sess), results)
  assert (sizes, single) == ([10], 0)
  np.testing.assert_array_equal(values, [[float(i)] * 8 for i in range(10)])
  # Fetched alone, by name, as an op, fed: the next run has other nodes.
  assert sess.run(results[3].name).tolist() == [3.0] * 8
  assert sess.run(results[4].op) is None
  values, sizes, single = merged(sess, results, {results[0]: [7.0] * 8})
  assert (sizes, single) == ([9], 0) and values[0].tolist() == [7.0] * 8 and values[9].tolist() == [9.0] * 8
  assert merged(sess, results[:2])[1:] == ([2], 0)


def test_the_environment_switches_the_pass_and_sets_how_many_tensors_an_op_has(monkeypatch):
  results = [_collective.allreduce(v) for v in variables(6)]

  def ops(setting):
    if setting is None:
      monkeypatch.delenv("MXREC_MERGE")
    else:
      monkeypatch.setenv("MXREC_MERGE", setting)
    with tf.Session() as session:
      return merged(initialized(session), results)[1:]

  assert ops("yes") == ([6], 0)
  assert ops("off") == ([], 6)
  assert ops("4") == ([3, 3], 0)
  with pytest.raises(tf.errors.InvalidArgumentError, match='MXREC_MERGE must be 1, true, yes or on, .*found "maybe"'):
    ops("maybe")
  assert ops(None) == ([], 6)  # one process


def test_of_other_attributes_sizes_and_devices_each_kind_is_merged_by_itself(sess):
  v = variables(2)
  small = [tf.constant([1.0, 2.0]), tf.constant([3], tf.int64)]
  of_kind = {
    "plain": [_collective.allreduce(value) for value in v],
    "other types": [_collective.allreduce(value, "max") for value in small],
    "average": [_collective.allreduce(value, average=True) for value in v],
    "scales": [_collective.allreduce(value, prescale=0.5, postscale=4) for value in v],
    "wire": [_collective.allreduce(value, wire="bfloat16") for value in v],
    "named": [_collective.allreduce(value, name=f"n{i}") for i, value in enumerate(v)],
    "hcom": [hccl_ops.allreduce(value, "sum") for value in v],
    "hcom by id": [hccl_ops.allreduce(value, "sum", fusion=2, fusion_id=3) for value in v],
    "hcom by another": [hccl_ops.mean(value, fusion=2, fusion_id=4) for value in v],
  }
  for kind, results in of_kind.items():
    assert merged(initialized(sess), results)[1:] == ([2], 0), kind
  values, sizes, single = merged(sess, of_kind)
  assert (sizes, single) == ([2] * 9, 0)
  assert values["scales"][1].tolist() == [2.0] * 8 and values["other types"][1].dtype == np.int64
  unknown = tf.placeholder_with_default([1.0], [None])
  alone = [
    [_collective.allreduce(tf.zeros([40000])) for _ in range(2)],  # too large
    [_collective.allreduce(unknown) for _ in range(2)],
    [hccl_ops.allreduce(value, "sum", fusion=0) for value in v],
    [_collective.allreduce([value, value]) for value in v],  # together already
  ]
  for results in alone:
    assert merged(sess, results)[1:] == ([], 2)


def test_ops_have_up_to_four_mebibytes(sess):
  results = [_collective.allreduce(v) for v in variables(160, 16384)]
  assert merged(initialized(sess), [result[0] for result in results])[1:] == ([52, 54, 54], 0)


def test_what_depends_on_another_collective_waits_for_no_more_than_before(sess):
  first, second = (_collective.allreduce(v) for v in variables(2))
  of_both = _collective.allreduce(first + second)
  with tf.control_dependencies([first]):
    late = _collective.allreduce(tf.constant([5.0]))
  _, sizes, single = merged(initialized(sess), [first, second, of_both])
  assert (sizes, single) == ([2], 1)
  assert merged(sess, [first, second, of_both, late])[1:] == ([], 4)  # only `late` waits for `first` alone
  queue = tf.FIFOQueue(2, tf.float32, [[]])
  pair = [_collective.allreduce(tf.constant(1.0)), _collective.allreduce(queue.dequeue() * 2)]
  assert merged(sess, [queue.enqueue(pair[0]), pair])[1:] == ([], 2)


def test_gradients_that_come_late_do_not_hold_up_early_ones(sess):
  x = v = tf.get_variable("x", initializer=tf.ones([4]))
  weights = variables(32, 4)
  for weight in weights:
    x = tf.tanh(x * (weight + 1))
  gradients = tf.gradients(tf.reduce_sum(x), [*weights, v])
  _, sizes, single = merged(initialized(sess), [_collective.allreduce(gradient, average=True) for gradient in gradients])
  assert sum(sizes) + single == 33 and len(sizes) >= 7 and max(sizes) <= 6


@pytest.mark.parametrize("v2", [False, True])
def test_branches_and_loops(sess, v2):
  (tf.enable_control_flow_v2 if v2 else tf.disable_control_flow_v2)()
  try:
    v, taken = variables(4), tf.placeholder(tf.bool, [])

    def branch(factor):
      return lambda: [_collective.allreduce(value * factor) for value in v]

    results = tf.cond(taken, branch(1.0), branch(2.0))
    looped = tf.while_loop(lambda i, _: i < 3, lambda i, x: (i + 1, _collective.allreduce(x) + _collective.allreduce(x)), [0, 1.0])
    outside = [_collective.allreduce(value) for value in v]
    initialized(sess)
    for value in (True, False):
      found, sizes, single = merged(sess, [results, outside, looped[1]], {taken: value})
      assert sizes == [4, 4] and single == 6  # what runs; the loop's six runs stay single
      assert found[0][3].tolist() == [3.0 if value else 6.0] * 8 and found[2] == 8
  finally:
    tf.disable_control_flow_v2()


def test_partial_runs_get_each_sum_when_its_feed_is_there(sess):
  feeds = [tf.placeholder(tf.float32, [2]) for _ in range(2)]
  sums = [_collective.allreduce(feed) for feed in feeds]
  handle = sess.partial_run_setup(sums, feeds)
  assert sess.partial_run(handle, sums[0], {feeds[0]: [1, 2]}).tolist() == [1, 2]
  assert sess.partial_run(handle, sums[1], {feeds[1]: [3, 4]}).tolist() == [3, 4]
  assert merged(sess, sums, {feeds[0]: [1, 2], feeds[1]: [3, 4]})[1:] == ([2], 0)


def test_gradients_of_a_split_strategy_are_merged_by_segment(sess):
  segments = []
  for some in (variables(3), variables_again(4)):
    doubled = [v * 2 for v in some]
    with tf.control_dependencies([tf.group(*doubled)]):
      segments.append([hccl_ops.allreduce(value, "sum") for value in doubled])
  assert merged(initialized(sess), segments)[1:] == ([3, 4], 0)


def variables_again(count):
  with tf.variable_scope("again"):
    return variables(count)


def test_attributes_that_do_not_fit_are_refused():
  with pytest.raises(tf.errors.InvalidArgumentError, match="must have 2 entries, found 1"):
    with tf.Graph().as_default() as graph, tf.Session() as session:
      both = _collective.allreduce([tf.constant(1.0), tf.constant(2.0)])
      definition = graph.as_graph_def()
      node = next(node for node in definition.node if node.op == "MxrecAllReduce")
      for attr in ("names", "nodes", "lines"):
        node.attr[f"_mxrec_merged_{attr}"].list.s.append(b"one")
      node.attr["_mxrec_merged_hcom"].b = False
      (again,) = tf.import_graph_def(definition, return_elements=[both[0].name])
      session.run(again)


def test_integers_with_a_scale_are_refused_one_by_one(sess):
  whole = [_collective.allreduce(tf.constant([i]), prescale=0.5, name=f"whole {i}") for i in range(3)]
  with pytest.raises(tf.errors.InvalidArgumentError, match="whole_[012]: prescale and postscale need a floating type"):
    sess.run(whole)


# --- several ranks ---


def differing_ranks(setting):
  """Rank 0 merges by default, rank 1 as the setting says; the second step runs other fetches, the third other graphs."""
  me = api.get_rank_id()
  if me == 1:
    os.environ["MXREC_MERGE"] = setting
  named = [_collective.allreduce(tf.fill([4], float(i + me)), name=f"tensor {i}") for i in range(20)]
  by_node = [hccl_ops.mean(tf.fill([3], float(i + me))) for i in range(10)]
  wrong = [_collective.allreduce(v, name=f"w{i}") for i, v in enumerate([tf.ones([2]), tf.ones([2 + me]), tf.ones([3])])]
  # Rank 1 never comes to ask for this one.
  with tf.control_dependencies([wrong[1]] if me else []):
    never = _collective.allreduce(tf.ones([5]), name="never asked")
  late = _collective.allreduce(tf.ones([4]), name="late")
  with tf.Session() as session:
    (values, means), sizes, single = merged(session, [named, by_node])
    assert np.allclose(values, [[2.0 * i + 1] * 4 for i in range(20)]) and np.allclose(means, [[i + 0.5] * 3 for i in range(10)])
    order = named[::-1] if me else named
    assert np.allclose(session.run(order[5:15]), [[2.0 * i + 1] * 4 for i in (range(14, 4, -1) if me else range(5, 15))])
    with pytest.raises(tf.errors.InvalidArgumentError) as raised:
      session.run([wrong, never])
    return [sizes, single, raised.value.message, session.run(late).tolist()]


@pytest.mark.parametrize("setting", ["0", "7"])
def test_ranks_need_not_merge_alike(setting):
  first, second = ranks.run(2, differing_ranks, setting).results()
  assert first[:2] == [[10, 20], 0]
  assert second[:2] == {"0": [[], 30], "7": [[5, 5, 6, 7, 7], 0]}[setting]
  for found in (first, second):
    assert found[3] == [2.0] * 4
    assert "'w1'" in found[2] and "node w1" in found[2] and "test_merge_pass.py:" in found[2], found[2]
