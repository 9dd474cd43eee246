"""What one rank finds wrong before it asks for a collective ends the wait of the others at once, with the reason (D-40, D-45).

The ranks wait much longer for one another (`ranks.LIMITS`) than these tests may take. After each refusal the same step works.
"""

import re
import resource
import threading

import numpy as np
import pytest
import ranks
import tensorflow.compat.v1 as tf
from hccl.manage import api
from npu_bridge.hccl import hccl_ops

import mxrec
from mxrec import _collective, _loader

SECONDS = 15  # below MXREC_STALL_ABORT
NAMED = r"rank 1 \(.*does not take part: .*"


def failure(session, fetches, feeds):
  try:
    session.run(fetches, feeds)
  except tf.errors.OpError as error:
    return error.message
  return ""


def expect(outcome, told, own=None):
  """Rank 0 was told of what rank 1 found wrong; the step after it worked."""
  (first, *after), (second, *also) = outcome.results()
  assert re.search(own or told, second, re.DOTALL), outcome.report()
  assert re.search(NAMED + told, first, re.DOTALL), outcome.report()
  assert after == also, outcome.report()


def wrong_then_right(fetches, place, values, feeds=None):
  """What a step says whose `place` gets the first of `values` on rank 1, and what the next ones give, which get the other one."""
  wrong, right = values
  with tf.Session() as session:
    session.run(tf.global_variables_initializer())
    seen = [failure(session, fetches, {place: wrong if api.get_rank_id() == 1 else right, **(feeds or {})})]
    seen += [np.asarray(session.run(fetches, {place: right, **(feeds or {})})).tolist() for _ in range(2)]
  return seen


def exchanges(kind):
  ids, ones = tf.constant([1, 2], tf.int64), tf.ones([2, 3])
  splits = tf.placeholder(tf.int64, [None])
  if kind == "keys":
    result = _loader.ops.mxrec_exchange_keys([ids], [tf.constant([1, 1])], [splits]).received_counts[0]
  elif kind == "rows":
    [result] = _loader.ops.mxrec_exchange_rows([ones], [tf.constant([0, 1])], [splits], [tf.constant([1, 1], tf.int64)])
  else:
    [result] = _loader.ops.mxrec_exchange_gradients([ones], [splits], [tf.constant([1, 1], tf.int64)], mean=[True])
  # Another collective of the step, which may have been asked for already, or not yet, when it fails.
  return wrong_then_right([tf.reduce_sum(result), hccl_ops.allreduce(tf.constant(1), "sum")], splits, ([2, 1], [1, 1]))


@pytest.mark.parametrize("kind", ["keys", "rows", "gradients"])
def test_d_40_splits_that_one_rank_finds_wrong_fail_the_exchange_on_all(kind):
  expect(ranks.run(2, exchanges, kind, seconds=SECONDS), f"MxrecExchange{kind.title()}.*splits of lookup 0 add up to 3")


def negative_split():
  splits = tf.placeholder(tf.int64, [None])
  keys = _loader.ops.mxrec_exchange_keys([tf.constant([1, 2], tf.int64)], [tf.constant([1, 1])], [splits])
  return wrong_then_right(tf.reduce_sum(keys.received_counts[0]), splits, ([3, -1], [1, 1]))


def test_d_40_a_negative_split_on_one_rank_fails_the_exchange_on_all():
  expect(ranks.run(2, negative_split, seconds=SECONDS), "must not be negative, found -1")


def merged_slices():
  indices = tf.placeholder(tf.int64, [None])
  values, _ = _loader.ops.mxrec_merge_slices(tf.ones([2, 3]), indices)
  return wrong_then_right(tf.reduce_sum(values), indices, ([1], [1, 2]))


def test_d_40_sparse_gradients_that_one_rank_finds_wrong_fail_on_all():
  expect(ranks.run(2, merged_slices, seconds=SECONDS), "MxrecMergeSlices: values must have shape")


def merged_without_memory():
  """Rank 1 has room for its own row, but not for those of rank 0, of which it learns when all have agreed."""
  me, rows, dim = api.get_rank_id(), 16, 2 << 20
  values, indices = tf.placeholder(tf.float32, [None, dim]), tf.placeholder(tf.int64, [None])
  merged, _ = _loader.ops.mxrec_merge_slices(values, indices)
  total = tf.reduce_sum(merged[:, 0])
  small = {values: np.ones([1, dim], np.float32), indices: [100]}
  big = small if me == 1 else {values: np.ones([rows, dim], np.float32), indices: np.arange(rows)}
  with tf.Session() as session:
    session.run(total, small)
    if me == 1:
      with open("/proc/self/statm", encoding="ascii") as file:
        used = int(file.read().split()[0]) * resource.getpagesize()
      resource.setrlimit(resource.RLIMIT_AS, (used + rows * dim * 2, resource.RLIM_INFINITY))
    seen = failure(session, total, big)
    resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    return seen


@pytest.mark.thorough
def test_memory_that_is_exhausted_once_the_ranks_have_agreed_is_named_on_all():
  outcome = ranks.run(2, merged_without_memory, seconds=SECONDS)
  for told in outcome.results():
    assert re.search("MxrecMergeSlices/1' failed on rank 1: no memory for", told), outcome.report()


def lookup_at_the_owner():
  """The owners' lookup gets a default row, which is wrong on rank 1; no rank has asked for the exchange of rows yet."""
  table = mxrec.get_embedding_table("users", 3, 100, tf.zeros_initializer())
  default = tf.placeholder(tf.float32, [None])
  _, keys, counts, splits, *_ = _loader.ops.mxrec_route_ids(tf.constant([1, 2], tf.int64))
  [received], [times], [received_splits] = _loader.ops.mxrec_exchange_keys([keys], [counts], [splits])
  found = _loader.ops.mxrec_lookup_received(table.handle, received, default, times, dim=3)
  [rows] = _loader.ops.mxrec_exchange_rows([found.rows], [found.inverse], [received_splits], [splits])
  return wrong_then_right(rows, default, ([1.0], [1.0] * 3))


def test_d_40_a_lookup_that_fails_at_its_owner_fails_on_all():
  expect(ranks.run(2, lookup_at_the_owner, seconds=SECONDS), 'table "users".*default_row')


def kernel_before(kind):
  """A kernel of ours that fails between the begin of the step and the collective that needs its result."""
  shared = tf.placeholder(tf.int32, [None])
  summed = _loader.ops.mxrec_sum_routed(tf.ones([2, 3]), shared, tf.constant([2], tf.int64))
  if kind == "pair":
    if api.get_rank_id() == 1:
      fetched = hccl_ops.send(summed, 7, 0)
    else:
      fetched = hccl_ops.receive([2, 3], tf.float32, 7, 1)
    with tf.control_dependencies([fetched]):
      fetched = tf.constant(1.0)
  else:
    # Two, of which one needs the other.
    fetched = tf.reduce_sum(hccl_ops.allreduce(hccl_ops.allreduce(summed, "sum"), "max"))
  return wrong_then_right(fetched, shared, ([0, 7], [0, 1]))


@pytest.mark.parametrize("kind", ["all", "pair"])
def test_d_40_an_own_kernel_that_fails_on_one_rank_is_named_by_the_collectives_of_the_step(kind):
  expect(ranks.run(2, kernel_before, kind, seconds=SECONDS), "MxrecSumRouted")


def other_kernel_before():
  """Rank 1 tries again what has failed in TensorFlow; rank 0 need not hear of it."""
  place = tf.placeholder(tf.float32, [])
  total = hccl_ops.allreduce(tf.debugging.check_numerics(place, "not finite"), "sum")
  me = api.get_rank_id()
  with tf.Session() as session:
    seen = [failure(session, total, {place: float("nan")})] if me == 1 else [""]
    return [*seen, session.run(total, {place: 1.0})]


def test_a_step_that_fails_in_tensorflow_alone_may_be_tried_again():
  first, second = ranks.run(2, other_kernel_before, seconds=SECONDS).results()
  assert first == ["", 2.0]
  assert "not finite" in second[0] and second[1] == 2.0


def other_kernel_between():
  """Rank 0 has got the first sum and would not ask for it again, so rank 1 cannot try the step again by itself."""
  place = tf.placeholder(tf.float32, [])
  with tf.control_dependencies([hccl_ops.allreduce(tf.constant(1.0), "sum")]):
    checked = tf.debugging.check_numerics(place, "not finite")
  return wrong_then_right(hccl_ops.allreduce(hccl_ops.allreduce(checked, "sum"), "max"), place, (float("nan"), 1.0))


def test_a_step_that_fails_in_tensorflow_between_two_collectives_fails_on_all_and_the_next_works():
  expect(ranks.run(2, other_kernel_between, seconds=SECONDS), "its step has failed", "not finite")


def wrong_root():
  with tf.Session() as session:
    if api.get_rank_id() == 1:
      with tf.Graph().as_default(), tf.Session() as other:
        seen = [failure(other, _loader.ops.hcom_broadcast([tf.constant([2.0])], root_rank=5, name="given"), {})]
    else:
      seen = [failure(session, _loader.ops.hcom_broadcast([tf.constant([2.0])], root_rank=0, name="given"), {})]
    return [*seen, session.run(_loader.ops.hcom_broadcast([tf.constant([2.0])], root_rank=0, name="after"))[0].tolist()]


def test_d_40_an_attribute_that_one_rank_finds_wrong_fails_the_op_on_all():
  expect(ranks.run(2, wrong_root, seconds=SECONDS), "root_rank is 5")


def objects(kind, eager):
  import mxrec.horovod.tensorflow as hvd

  if eager:
    tf.enable_v2_behavior()
  hvd.init()
  wrong = threading.Lock() if hvd.rank() == 1 else 1
  give = (lambda value: hvd.broadcast_object(value, root_rank=1)) if kind == "broadcast" else hvd.allgather_object
  try:
    give(wrong)
    seen = [""]
  except Exception as error:
    seen = [f"{type(error).__name__} {error}"]
  return [*seen, give("value")]


@pytest.mark.parametrize("kind", ["broadcast", "allgather"])
@pytest.mark.parametrize("eager", [False, True])
def test_d_40_an_object_that_cannot_be_pickled_on_one_rank_fails_on_all(kind, eager):
  expect(ranks.run(2, objects, kind, eager, seconds=SECONDS), "cannot be pickled: TypeError", "TypeError")


def in_loop():
  size = tf.placeholder(tf.int64, [2])
  body = lambda i, total: (i + 1, total + tf.reduce_sum(_collective.alltoall(tf.ones([2]), size)[0]))
  _, total = tf.while_loop(lambda i, total: i < 2, body, (0, 0.0))
  with tf.Session() as session:
    return [failure(session, total, {size: [2, 1] if api.get_rank_id() == 1 else [1, 1]})]


def test_d_40_what_a_rank_finds_wrong_in_a_loop_is_told():
  expect(ranks.run(2, in_loop, seconds=SECONDS), "splits must")
