"""What becomes of a job of TensorFlow in which a rank goes wrong: who ends, how soon, and what the message names.

    killed        here: while ranks meet, before the first collective, in one, between steps of a table
    stopped       here; test_horovod_failures.py
    disagreement  shape, type, reduction, root, kind: test_ranks_ops.py (D-40); order, branch, one rank alone: here
    step counts   test_ranks_ops.py (D-39), test_horovod_failures.py
    name twice    test_ranks_ops.py (D-41)
    NaN           here; agreement of overflow: test_ranks_optimizers.py (fact 15)
    start         interface, port, rank that never comes: test_horovod_failures.py; the same port again: here
The layers below have tests of their own: mxrec/comm/communicator_failure_test.cc.
"""

import os
import re
import signal
import socket
import threading

import numpy as np
import pytest
import ranks
import tensorflow.compat.v1 as tf
from hccl.manage import api
from npu_bridge.estimator.npu import npu_optimizer
from npu_bridge.hccl import hccl_ops

import mxrec
from mxrec import _groups

LINE = re.escape(os.path.basename(__file__)) + r"(:|\", line )[0-9]+"  # of the script that made the operation
# What waits is given up after 4 s, what is silent after 3 s.
SOON = {"MXREC_STALL_WARNING": "1", "MXREC_STALL_ABORT": "4", "MXREC_HEARTBEAT_TIMEOUT": "3", "MXREC_CONNECT_TIMEOUT": "3"}
SECONDS = 25


@pytest.fixture(autouse=True)
def nothing_is_left():
  def shared_memory():
    return {name for name in os.listdir("/dev/shm") if "mxrec" in name}

  before = shared_memory()
  yield
  assert shared_memory() <= before


def run(size, job, *arguments, seconds=SECONDS, **more):
  return ranks.run(size, job, *arguments, seconds=seconds, environment={**SOON, **more})


def assert_named(outcome, rank, *patterns):
  """The rank ended in time, with an error that says all this."""
  found = outcome.ranks[rank]
  assert found.error and found.status is not None, outcome.report()
  for pattern in patterns:
    assert re.search(pattern, found.error), f"{pattern} is not in\n{outcome.report()}"


def kill_myself():
  os.kill(os.getpid(), signal.SIGKILL)


def dies(when, victim):
  me = api.get_rank_id()
  total = hccl_ops.allreduce(tf.ones([8 << 20 if when == "in" else 8]), "sum")
  if when == "meeting" and me == victim:
    kill_myself()
  _groups.start()
  if when == "before" and me == victim:
    kill_myself()
  with tf.Session() as session:
    if when == "in" and me == victim:
      session.run(total)
      threading.Timer(0.1, kill_myself).start()
    while True:
      session.run(total)


@pytest.mark.parametrize(("when", "victim"), [("meeting", 1), ("before", 0), ("before", 1), ("in", 1)])
def test_d_45_the_survivor_of_a_killed_rank_ends_and_names_it(when, victim):
  outcome = run(2, dies, when, victim)
  assert outcome.ranks[victim].status == -signal.SIGKILL, outcome.report()
  patterns = [] if when == "meeting" else ["HcomAllReduce", LINE]
  assert_named(outcome, 1 - victim, rf"rank {victim}\b|\[{victim}\]", *patterns)


def stops():
  total = hccl_ops.allreduce(tf.ones([8]), "sum")
  with tf.Session() as session:
    session.run(total)
    if api.get_rank_id() == 1:
      os.kill(os.getpid(), signal.SIGSTOP)
    session.run(total)


@pytest.mark.thorough
def test_a_stopped_rank_is_given_up_and_named():
  outcome = run(2, stops, seconds=12)
  assert outcome.ranks[1].status is None, "it is still stopped when the test ends it"
  assert_named(outcome, 0, r"rank 1\b", "HcomAllReduce", LINE)


def other_order():
  me = api.get_rank_id()
  place = tf.placeholder_with_default(0.0, [])
  first = hccl_ops.allreduce(place + 1.0, "sum")
  second = hccl_ops.allreduce(place + 2.0, "sum")
  with tf.Session() as session:
    for tensor in (first, second)[:: -1 if me else 1]:
      session.run(tensor)


@pytest.mark.thorough
def test_another_order_on_one_rank_names_both_operations_and_who_asked():
  outcome = run(2, other_order)
  for rank in (0, 1):
    assert_named(outcome, rank, r"rank 0\b", r"rank 1\b", r"HcomAllReduce\b", LINE)


def other_branch():
  taken = tf.placeholder(tf.bool, [])
  value = tf.cond(taken, lambda: hccl_ops.allreduce(tf.ones([2]), "sum"), lambda: tf.ones([2]))
  after = hccl_ops.allreduce(tf.ones([3]), "sum")
  with tf.Session() as session:
    session.run(value, {taken: api.get_rank_id() == 0})
    session.run(after)


@pytest.mark.thorough
def test_a_branch_that_one_rank_does_not_take_is_named():
  outcome = run(2, other_branch)
  for rank in (0, 1):
    assert_named(outcome, rank, r"cond/.*HcomAllReduce", r"rank 0\b", r"rank 1\b", LINE)


def lookup_on_one_rank():
  table = mxrec.get_embedding_table("users", 2, 100)
  found = mxrec.embedding_lookup(table, tf.constant([1, 2, 3], tf.int64), training=False)
  with tf.Session() as session:
    if api.get_rank_id() == 1:
      _groups.start()
      threading.Event().wait(9)
      return
    session.run(found)


def test_an_mp_table_that_one_rank_evaluates_alone_names_the_others():
  assert_named(run(2, lookup_on_one_rank), 0, "lookup_users", r"rank 1\b", LINE)


def not_a_number(table):
  """Rank 1 has a NaN in its second step."""
  me = api.get_rank_id()
  x = tf.placeholder(tf.float32, [])
  seen = []
  if table:
    rows = mxrec.embedding_lookup(mxrec.get_embedding_table("users", 2, 100, non_finite="error"), tf.constant([4, 5], tf.int64))
    shown = rows
    train = mxrec.minimize(tf.reduce_sum(rows) * x, tf.train.GradientDescentOptimizer(0.1))
  else:
    shown = tf.get_variable("w", initializer=[1.0, 2.0])
    optimizer = npu_optimizer.npu_distributed_optimizer_wrapper(tf.train.GradientDescentOptimizer(0.1))
    train = optimizer.minimize(tf.reduce_sum(shown) * x)
  with tf.Session() as session:
    session.run(tf.global_variables_initializer())
    for step in range(3):
      session.run(train, {x: float("nan") if step == me == 1 else 1.0})
      seen.append([str(value) for value in session.run(shown).ravel()])
  return seen


def test_a_nan_on_one_rank_is_the_same_nan_on_all():
  first, second = run(2, not_a_number, False).results()
  assert first == second
  assert [text for step in first for text in step] == ["0.9", "1.9"] + ["nan"] * 4


def test_a_nan_on_one_rank_for_a_table_that_refuses_it_ends_all():
  outcome = run(2, not_a_number, True)
  errors = outcome.errors()
  assert all("users" in text for text in errors), outcome.report()
  assert any("nan" in text.lower() or "finite" in text for text in errors), outcome.report()


def table_steps(folder, last, killed_at):
  me, size = api.get_rank_id(), api.get_rank_size()
  table = mxrec.get_embedding_table("users", 2, 100, tf.zeros_initializer())
  ids = tf.placeholder(tf.int64, [None])
  rows = mxrec.embedding_lookup(table, ids)
  train = mxrec.minimize(-tf.reduce_sum(rows) / 4.0 * size, tf.train.GradientDescentOptimizer(4.0))
  saver = mxrec.EmbeddingTableSaver([table])
  with tf.Session() as session:
    begin = mxrec.EmbeddingTableSaver.latest_step(folder) or 0
    if begin:
      saver.load(session, folder)
    for step in range(begin, last):
      if step == killed_at and me == 1:
        kill_myself()
      session.run(train, {ids: np.arange(8).reshape(size, -1)[me]})
      if step % 4 == 3:
        saver.save(session, folder, step + 1)
    keys, values = table.export(session)
  return [begin, dict(zip(keys.tolist(), values[:, 0].tolist()))]


def test_the_last_checkpoint_of_a_table_loads_after_a_rank_was_killed(tmp_path):
  outcome = run(2, table_steps, str(tmp_path), 1000, 6)
  assert_named(outcome, 0, r"rank 1\b", "lookup_users|update_users", LINE)
  ((begin, rows),) = run(1, table_steps, str(tmp_path), 6, None).results()
  assert begin == 4
  assert rows == {str(key): 6.0 for key in range(8)}


def one_sum():
  with tf.Session() as session:
    return session.run(hccl_ops.allreduce(tf.constant(1), "sum"))


def test_the_port_of_a_job_that_was_killed_serves_the_next_one():
  with socket.create_server(("127.0.0.1", 0)) as server:
    address = f"127.0.0.1:{server.getsockname()[1]}"
  place = {"MXREC_CHIEF_ADDRESS": address, "MXREC_STORE_PATH": None}
  outcome = run(2, dies, "before", 0, **place)
  assert_named(outcome, 1, r"rank 0\b")
  assert run(2, one_sum, **place).results() == [2, 2]
