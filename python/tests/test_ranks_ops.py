"""Collectives of npu_bridge and mxrec on 2 and 3 ranks: values, groups, agreement, loops, threads (facts 10 to 13)."""

import threading

import numpy as np
import pytest
import ranks
import tensorflow.compat.v1 as tf
from hccl.manage import api
from npu_bridge.hccl import hccl_ops

from mxrec import _collective, _groups, _loader


def evaluate(*tensors):
  with tf.Session() as session:
    session.run(tf.global_variables_initializer())
    return session.run(list(tensors))


# --- jobs that run on every rank ---


def reductions():
  me = api.get_rank_id()
  value = tf.constant([1.0, 3.0][me])
  named = {how: hccl_ops.allreduce(value, how) for how in ("sum", "max", "min", "prod")}
  named["reduce"] = hccl_ops.reduce(tf.constant([10 * (me + 1)]), "sum", 1)
  named["scatter"] = hccl_ops.reduce_scatter(tf.constant([[0, 1, 2, 3], [10, 11, 12, 13]][me]), "sum", 2)
  # Results that lie in memory that is kept: one that somebody holds is left alone by the steps after it.
  large = tf.Variable(tf.fill([9 << 20], me + 1.0), use_resource=True)
  total, twice = hccl_ops.allreduce(large, "sum"), large.assign(large * 2)
  with tf.Session() as session:
    session.run(large.initializer)
    held = session.run(total)
    for expected in (6, 12):
      session.run(twice.op)
      assert np.array_equal(session.run(total), np.full(9 << 20, expected, np.float32))
    assert np.array_equal(held, np.full(9 << 20, 3, np.float32))
    return {name: session.run(tensor) for name, tensor in named.items()}


@pytest.mark.parametrize("transport", ["auto", "gloo"])
def test_reductions_of_two_ranks(transport):
  if transport == "gloo" and not _loader.library_path().with_name("libmxrec_gloo.so").is_file():
    pytest.skip("this build has no gloo transport")
  first, second = ranks.run(2, reductions, environment={"MXREC_TRANSPORT": transport}).results()
  assert first == {"sum": 4, "max": 3, "min": 1, "prod": 3, "reduce": [10], "scatter": [10, 12]}
  assert second == {**first, "reduce": [30], "scatter": [14, 16]}


def gather_and_exchange():
  me = api.get_rank_id()
  t = tf.constant([[me]])
  gathered = [hccl_ops.allgather(t, 2, "hccl_world_group"), hccl_ops.allgather(t, 2, 0, -1, "hccl_world_group")]
  assert all(one.shape == [2, 1] for one in gathered)
  data = tf.constant([[1, 2, 3], [4, 5, 6]][me])
  send, receive = [[1, 2], [2, 1]][me], [[1, 2], [2, 1]][me]
  gathered.append(hccl_ops.all_to_all_v(data, send, [0, send[0]], receive, [0, receive[0]]))
  gathered.append(hccl_ops.all_to_all_v_c(data, [[1, 2], [2, 1]], me))
  # Places with gaps, and in another order.
  gathered.append(hccl_ops.all_to_all_v(data, [1, 1], [2, 0], [1, 1], [3, 0]))
  errors = []
  for build in (
    lambda: hccl_ops.allgather(t, 0),
    lambda: hccl_ops.reduce_scatter(tf.ones([3]), "sum", 2),
    lambda: hccl_ops.allreduce(t, "avg"),
  ):
    with pytest.raises(ValueError) as raised:
      build()
    errors.append(str(raised.value))
  return [one.tolist() for one in evaluate(*gathered)]


def test_fact_12_gather_scatter_all_to_all():
  first, second = ranks.run(2, gather_and_exchange).results()
  assert first == [[[0], [1]], [[0], [1]], [1, 4, 5], [1, 4, 5], [6, 0, 0, 3]]
  assert second == [[[0], [1]], [[0], [1]], [2, 3, 6], [2, 3, 6], [4, 0, 0, 1]]


def gradients():
  x = tf.constant([1.0, 2.0])
  summed = tf.gradients(tf.reduce_sum(hccl_ops.allreduce(x, "sum")), x)[0]
  greatest = tf.gradients(tf.reduce_sum(hccl_ops.allreduce(x, "max")), x)[0]
  for result in (hccl_ops.allgather(x, 2), hccl_ops.broadcast([x], 0)[0]):
    with pytest.raises(LookupError):
      tf.gradients(result, x)
  return evaluate(summed, greatest)


def test_fact_13_the_gradient_of_allreduce_is_a_sum():
  assert ranks.run(2, gradients).results() == [[[2.0, 2.0], [2.0, 2.0]]] * 2


def own_gradients():
  me = api.get_rank_id()
  x = tf.constant([[1.0], [2.0], [3.0]][: me + 1])
  y = tf.constant([[1.0], [2.0]])
  weight = tf.constant(float(me + 1))
  results = [
    tf.gradients(weight * tf.reduce_sum(_collective.allreduce(y, average=True)), y)[0],
    tf.gradients(weight * tf.reduce_sum(_collective.allgather(x)[0] * [[1.0], [10.0], [100.0]]), x)[0],
    tf.gradients(weight * tf.reduce_sum(_collective.broadcast(y, 1)), y)[0],
    tf.gradients(weight * tf.reduce_sum(_collective.alltoall(y)[0]), y)[0],
    tf.gradients(weight * tf.reduce_sum(_collective.reducescatter(y, average=True)), y)[0],
  ]
  return evaluate(*results)


def test_gradients_of_own_collectives_cross_the_ranks():
  first, second = ranks.run(2, own_gradients).results()
  assert first == [[[1.5], [1.5]], [[3.0]], [[0], [0]], [[1], [2]], [[0.5], [1.0]]]
  assert second == [[[1.5], [1.5]], [[30.0], [300.0]], [[3], [3]], [[1], [2]], [[0.5], [1.0]]]


def own_ops():
  me = api.get_rank_id()
  size = api.get_rank_size()
  rows = tf.fill([me, 2], float(me))  # rank 0 gives none
  gathered, counts = _collective.allgather(rows)
  splits = [(me + other) % 3 for other in range(size)]
  sent = tf.constant([100 * me + other for other in range(size) for _ in range(splits[other])], shape=[sum(splits)])
  came, came_counts = _collective.alltoall(sent, splits)
  floats = _collective.allreduce([tf.constant([1.0 + me]), tf.constant(2.0 * me)], average=True, prescale=2, postscale=0.5)
  integers = _collective.allreduce(tf.constant([-1 - me, me]), average=True)
  halves = _collective.allreduce(tf.fill([4], tf.constant(30000, tf.float16)), average=True)
  texts = _collective.broadcast([tf.constant([f"from {me}", ""]), tf.constant(me == 1), tf.constant(me + 1j)], 1)
  part = _collective.reducescatter(tf.range(size + 1))
  empty = _collective.allreduce(tf.zeros([0, 3]))
  barrier = _collective.barrier()
  with tf.Session() as session:
    values = session.run([gathered, counts, came, came_counts, floats, integers, halves, texts[:2], tf.real(texts[2]), part, empty])
    session.run(barrier)
  return [np.asarray(one).tolist() if not isinstance(one, list) else one for one in values]


@pytest.mark.parametrize("size", [2, 3])
def test_d_38_d_42_d_46_ragged_rows_zero_splits_means_and_texts(size):
  results = ranks.run(size, own_ops).results()
  everyone = range(size)
  for me, (gathered, counts, came, came_counts, floats, integers, halves, texts, real, part, empty) in enumerate(results):
    assert gathered == [[float(other)] * 2 for other in everyone for _ in range(other)] and counts == list(everyone)
    assert came_counts == [(me + other) % 3 for other in everyone]
    assert came == [100 * other + me for other in everyone for _ in range((me + other) % 3)]
    np.testing.assert_allclose(floats[0], [1 + (size - 1) / 2], rtol=1e-6)
    np.testing.assert_allclose(floats[1], size - 1, rtol=1e-6)
    assert integers == [sum(-1 - other for other in everyone) // size, sum(everyone) // size]  # down, below zero too
    assert halves == [30000] * 4
    assert texts == [["from 1", ""], True] and real == 1
    whole = [size * value for value in range(size + 1)]
    assert part == (whole[:2] if me == 0 else whole[me + 1 : me + 2])
    assert empty == []


def broadcasts():
  me = api.get_rank_id()
  v = tf.get_variable("v", initializer=float(me + 1))
  resource = tf.get_variable("r", initializer=[float(me + 1)] * 2, use_resource=True)
  whole = tf.get_variable("i", initializer=tf.constant(me + 7, tf.int64))
  alone = hccl_ops.broadcast([v], 0)
  both = hccl_ops.broadcast([v, resource, whole], 1)
  assert len(both) == 3
  with pytest.raises(ValueError):
    hccl_ops.broadcast([v], 0, fusion=1)
  values = []
  with tf.Session() as session:
    session.run(tf.global_variables_initializer())
    session.run(alone)
    values.append(session.run(v))
    session.run(tf.global_variables_initializer())
    values.append(session.run(both))
    values.append(session.run([v, resource, whole]))
  return values


def test_fact_11_g_31_g_32_broadcast_assigns_variables():
  expected = [1.0, [2.0, [2.0, 2.0], 8], [2.0, [2.0, 2.0], 8]]
  assert ranks.run(2, broadcasts).results() == [expected, expected]


def frozen():
  w = tf.get_variable("w", initializer=[float(api.get_rank_id())] * 3)
  op = tf.group(hccl_ops.broadcast([w], 1))
  supervisor = tf.train.Supervisor(logdir=None)
  with supervisor.managed_session() as session:
    with pytest.raises(RuntimeError, match="finalized"):
      hccl_ops.broadcast([w], 1)
    session.graph._unsafe_unfinalize()
    session.run([op, hccl_ops.broadcast([w], 1)])
    return session.run(w)


def test_g_33_a_broadcast_in_an_unfinalized_graph():
  assert ranks.run(2, frozen).results() == [[1.0] * 3] * 2


def send_and_receive():
  me = api.get_rank_id()
  with tf.Session() as session:
    if me == 0:
      session.run([hccl_ops.send(tf.constant([1, 2]), 7, 1), hccl_ops.send(tf.constant([3.5]), 8, 1)])
      return session.run(hccl_ops.receive([2, 1], tf.int64, 7, 1))
    values = session.run([hccl_ops.receive([1], tf.float32, 8, 0), hccl_ops.receive([2], tf.int32, 7, 0)])
    session.run(hccl_ops.send(tf.constant([[8], [9]], tf.int64), 7, 0))
    return values


def test_send_and_receive_are_paired_by_tag():
  assert ranks.run(2, send_and_receive).results() == [[[8], [9]], [[3.5], [1, 2]]]


def groups():
  me = api.get_rank_id()
  answers = [api.get_rank_size(), api.get_local_rank_size(), api.get_local_rank_id()]
  if me != 1:
    api.create_group("ends", 2, [2, 0])
    answers += [api.get_rank_size("ends"), api.get_rank_id("ends"), api.get_local_rank_id("ends")]
    answers += evaluate(hccl_ops.allgather(tf.constant([me]), 2, "ends"))
    with pytest.raises(ValueError, match="exists"):
      api.create_group("ends", 2, [2, 0])
    api.destroy_group("ends")
    with pytest.raises(ValueError, match="ends"):
      api.get_rank_size("ends")
  answers += evaluate(hccl_ops.allreduce(tf.constant(me), "sum"))
  return answers


def test_groups_of_some_ranks():
  results = ranks.run(3, groups).results()
  assert results == [[3, 3, 0, 2, 1, 1, [2, 0], 3], [3, 3, 1, 3], [3, 3, 2, 2, 0, 0, [2, 0], 3]]


def in_loops():
  """A loop whose iterations run at the same time, each with collectives that need not wait for those before."""
  me = api.get_rank_id()

  def body(i, total):
    one = hccl_ops.allreduce(tf.cast(i, tf.float32) * (me + 1), "sum")
    two = hccl_ops.allreduce(tf.fill([2], one), "max")
    return i + 1, total + two[0]

  looped = tf.while_loop(lambda i, _: i < 200, body, [0, 0.0], parallel_iterations=16)[1]
  branch = tf.cond(tf.constant(True), lambda: hccl_ops.allreduce(tf.constant(1.0), "sum"), lambda: tf.constant(0.0))
  with tf.Session() as session:
    return [session.run([looped, branch]), session.run(looped)]


def test_loops_and_branches():
  total = float(sum(3 * i for i in range(200)))
  assert ranks.run(2, in_loops).results() == [[[total, 2.0], total]] * 2


def many_sessions():
  """Graphs whose nodes have the same names, in threads, on the same world: each name waits for its turn."""
  me = api.get_rank_id()
  found = {}

  def train(number):
    with tf.Graph().as_default(), tf.Session() as session:
      with tf.name_scope(f"thread_{number}"):
        result = hccl_ops.allreduce(tf.fill([number + 1], float(me)), "sum")
      found[number] = [session.run(result).tolist() for _ in range(20)]

  threads = [threading.Thread(target=train, args=(number,)) for number in range(4)]
  for thread in threads:
    thread.start()
  for thread in threads:
    thread.join()
  # The same name with another shape, in a graph after another.
  values = []
  for length in (3, 4, 3):
    with tf.Graph().as_default(), tf.Session() as session:
      values.append(session.run(hccl_ops.allreduce(tf.fill([length], 1.0), "sum")).tolist())
  return [found[number] == [[1.0] * (number + 1)] * 20 for number in range(4)] + values


def test_sessions_in_threads_and_one_after_another():
  expected = [True] * 4 + [[2.0] * 3, [2.0] * 4, [2.0] * 3]
  assert ranks.run(2, many_sessions).results() == [expected] * 2


def start_and_stop():
  start, stop = _loader.ops.npu_init(), _loader.ops.npu_shutdown()
  _groups.world()
  values = []
  with tf.Session() as session:
    for _ in range(2):
      session.run(start)
      session.run(start)
      values.append(session.run(hccl_ops.allreduce(tf.constant(1), "sum")))
      session.run(stop)
      session.run(stop)
  return values


def test_g_45_the_runtime_is_started_and_ended_again():
  assert ranks.run(2, start_and_stop).results() == [[2, 2]] * 2


# --- what goes wrong ---


def disagree(kind):
  me = api.get_rank_id()
  with tf.Session() as session:
    if kind == "shape":
      wrong = hccl_ops.allreduce(tf.ones([3 + me]), "sum")
    elif kind == "type":
      wrong = hccl_ops.allreduce(tf.ones([3], [tf.float32, tf.float64][me]), "sum")
    elif kind == "reduction":
      wrong = hccl_ops.allreduce(tf.ones([3]), ["sum", "max"][me])
    elif kind == "root":
      wrong = hccl_ops.broadcast([tf.ones([3])], me)[0]
    else:
      wrong = _collective.allreduce(tf.ones([3]), name="same") if me else _collective.allgather(tf.ones([3]), name="same")[0]
    with pytest.raises(tf.errors.InvalidArgumentError) as raised:
      session.run(wrong)
    # The next step works.
    return [raised.value.message, session.run(hccl_ops.allreduce(tf.constant(1), "sum"))]


@pytest.mark.parametrize("kind", ["shape", "type", "reduction", "root", "collective"])
def test_d_40_disagreement_is_an_error_on_all_ranks(kind):
  for text, after in ranks.run(2, disagree, kind).results():
    assert after == 2
    assert "rank 0" in text and "rank 1" in text and __name__.rpartition(".")[2] + ".py:" in text, text


def name_twice():
  both = [_collective.allreduce(tf.constant(float(value)), name="one name") for value in (1, 2)]
  with tf.Session() as session:
    with pytest.raises(tf.errors.OpError) as raised:
      session.run(both)
    return [raised.value.message, session.run(_collective.allreduce(tf.constant(1), name="another"))]


def test_d_41_a_name_twice_in_a_step_is_refused_and_the_next_step_works():
  results = ranks.run(2, name_twice).results()
  assert [after for _, after in results] == [2, 2]
  assert any("one name" in text and "already running" in text for text, _ in results), results


def missing_on_one():
  me = api.get_rank_id()
  with tf.Session() as session:
    here = hccl_ops.allreduce(tf.constant(1.0), "sum")
    if me == 1:
      return "left"
    with pytest.raises(tf.errors.InternalError) as raised:
      session.run(here)
    return raised.value.message


def test_d_39_a_rank_that_leaves_is_named():
  text, left = ranks.run(2, missing_on_one, seconds=40).results()
  assert left == "left" and "rank 1" in text and "HcomAllReduce" in text, text


def steps(joining):
  """Rank 1 has one batch more."""
  me = api.get_rank_id()
  batches = tf.data.make_one_shot_iterator(tf.data.Dataset.range(10 + me)).get_next()
  mean = _collective.allreduce(tf.cast(batches, tf.float32), average=False)
  values = []
  with tf.Session() as session:
    try:
      while True:
        values.append(session.run(mean))
    except tf.errors.OutOfRangeError:
      pass
    if joining:
      values.append(session.run(_collective.join()))
  return values


def test_d_39_join_lets_ranks_have_different_numbers_of_steps():
  first, second = ranks.run(2, steps, True).results()
  assert first == [2.0 * value for value in range(10)] + [1]
  assert second == [2.0 * value for value in range(10)] + [10.0, 1]


def killed(number):
  import os
  import signal

  me = api.get_rank_id()
  mean = hccl_ops.allreduce(tf.ones([1000]), "sum")
  with tf.Session() as session:
    for step in range(1000):
      if me == 1 and step == number:
        os.kill(os.getpid(), signal.SIGKILL)
      session.run(mean)


def test_d_45_survivors_of_a_killed_rank_end_and_name_it():
  outcome = ranks.run(3, killed, 5, seconds=40)
  assert outcome.ranks[1].status == -9
  for rank in (outcome.ranks[0], outcome.ranks[2]):
    assert "rank 1" in rank.error and "HcomAllReduce" in rank.error and rank.seconds < 30, outcome.report()


def cancelled():
  """A session that closes while its run waits for the other rank."""
  import time

  me = api.get_rank_id()
  session = tf.Session()
  wait = hccl_ops.allreduce(tf.constant(1.0), "sum")
  if me == 1:
    _groups.start()
    time.sleep(3)
    return "idle"
  errors = []

  def run():
    try:
      session.run(wait)
    except tf.errors.OpError as error:
      errors.append(type(error).__name__)

  thread = threading.Thread(target=run)
  thread.start()
  time.sleep(1)
  session.close()
  thread.join(10)
  return [thread.is_alive(), errors]


def test_closing_a_session_ends_the_wait():
  assert ranks.run(2, cancelled, seconds=40).results() == [[False, ["CancelledError"]], "idle"]
