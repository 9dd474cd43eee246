"""Groups of ranks and collectives, with one rank."""

import dataclasses
import json
import subprocess
import sys

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from hccl.manage import api
from hccl.split import api as split
from npu_bridge.hccl import hccl_ops

from mxrec import _groups, _loader, _world

RANK_VARIABLES = ("RANK_SIZE", "RANK_ID", "RANK_TABLE_FILE", "CM_WORKER_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE")


@pytest.fixture(autouse=True)
def alone(monkeypatch):
  for name in RANK_VARIABLES:
    monkeypatch.delenv(name, raising=False)
  yield
  for group in ("g", "other"):
    try:
      api.destroy_group(group)
    except ValueError:
      pass


def numbers():
  return api.get_rank_size(), api.get_rank_id(), api.get_local_rank_size(), api.get_local_rank_id()


def test_fact_6_group_api_alone():
  assert numbers() == (1, 0, 1, 0)
  with tf.Session() as session:
    session.run(_loader.ops.npu_init())
    assert numbers() == (1, 0, 1, 0)
    session.run(_loader.ops.npu_shutdown())
  for arguments in (
    ("", 1, [0]),
    ("g", 2, [0]),
    ("g", 1, (0,)),
    ("a" * 128, 1, [0]),
    ("hccl_world_group", 1, [0]),
    (1, 1, [0]),
    ("g", 0, []),
    ("g", "1", [0]),
    ("g", True, [0]),
    ("g", 1, ["0"]),
    ("g", 1, [-1]),
    ("g", 1, [True]),
    ("g", 1, [1]),
    ("g", 1, [2**40]),
    ("g", 2, [0, 0]),
    ("g\0h", 1, [0]),
  ):
    with pytest.raises(ValueError):
      api.create_group(*arguments)
  api.create_group("g", 1, [0])
  with pytest.raises(ValueError, match="exists"):
    api.create_group("g", 1, [0])
  with pytest.raises(ValueError, match="nope"):
    api.get_rank_size("nope")


def test_a_group_is_asked_and_destroyed():
  api.create_group("a" * 127, 1, [0])
  api.destroy_group("a" * 127)
  api.create_group("g", 1, [0])
  assert (api.get_rank_size("g"), api.get_rank_id("g"), api.get_local_rank_size("g"), api.get_local_rank_id("g")) == (1, 0, 1, 0)
  assert api.get_world_rank_from_group_rank("g", 0) == 0
  assert api.get_group_rank_from_world_rank(0, "g") == 0
  for call in (
    lambda: api.get_world_rank_from_group_rank("g", 1),
    lambda: api.get_world_rank_from_group_rank("g", -1),
    lambda: api.get_world_rank_from_group_rank("g", "0"),
    lambda: api.get_group_rank_from_world_rank(1, "g"),
    lambda: api.get_group_rank_from_world_rank(True, "g"),
    lambda: api.destroy_group("hccl_world_group"),
    lambda: api.destroy_group("nope"),
    lambda: api.destroy_group(None),
  ):
    with pytest.raises(ValueError):
      call()
  api.destroy_group("g")
  with pytest.raises(ValueError, match="'g'"):
    api.get_rank_size("g")


def test_fact_5_split_strategy():
  split.set_split_strategy_by_idx([20, 159])
  assert split.get_split_strategy() == ("idx", [20, 159])
  for wrong in ([], [3, 2], [1, 1], [-1], ["1"], (1, 2), [2**32], [True], list(range(9))):
    with pytest.raises(ValueError):
      split.set_split_strategy_by_idx(wrong)
  split.set_split_strategy_by_size([60, 20, 20])
  assert split.get_split_strategy() == ("size", [60, 20, 20])
  for wrong in ([60, 20], [], [-10, 110], ["100"], (100,), [float("nan"), 100], [True, 99], [12.5] * 9):
    with pytest.raises(ValueError):
      split.set_split_strategy_by_size(wrong)
  split.set_split_strategy_by_size([96.54, 3.46])
  with pytest.raises(ValueError, match="nope"):
    split.set_split_strategy_by_size([100], "nope")


def test_fact_7_several_ranks_are_refused_not_trained_apart(monkeypatch):
  for name, value in (("RANK_SIZE", "4"), ("CM_WORKER_SIZE", "3"), ("OMPI_COMM_WORLD_SIZE", "2")):
    with monkeypatch.context() as patch:
      patch.setenv(name, value)
      for call in (
        api.get_rank_size,
        api.get_rank_id,
        api.get_local_rank_id,
        lambda: api.create_group("g", 1, [0]),
        lambda: hccl_ops.allreduce(tf.constant(1.0), "sum"),
        lambda: hccl_ops.broadcast([tf.constant(1.0)], 0),
        lambda: hccl_ops.allgather(tf.constant([1.0]), 2),
      ):
        with pytest.raises(ValueError, match=f"{name}={value}"):
          call()


TYPES = (np.int8, np.int16, np.int32, np.int64, np.float16, np.float32, tf.bfloat16.as_numpy_dtype)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("reduction", ["min", "max", "prod", "sum"])
def test_reductions_of_one_rank_are_the_input(sess, dtype, reduction):
  value = np.array([[1, 2], [3, 4]], dtype)
  for result in (
    hccl_ops.allreduce(value, reduction),
    hccl_ops.allreduce([tf.constant(value)], reduction),
    hccl_ops.reduce(value, reduction, 0),
    hccl_ops.reduce_scatter(value, reduction, 1),
  ):
    assert result.shape == (2, 2) and result.dtype == value.dtype
    np.testing.assert_array_equal(sess.run(result), value)


def test_fact_10_an_unknown_reduction_is_refused_when_the_graph_is_built():
  for call in (
    lambda: hccl_ops.allreduce(tf.constant(1.0), "avg"),
    lambda: hccl_ops.reduce(tf.constant(1.0), "avg", 0),
    lambda: hccl_ops.reduce_scatter(tf.constant([1.0]), "avg", 1),
  ):
    with pytest.raises((ValueError, tf.errors.InvalidArgumentError), match="avg"):
      call()


def test_types_without_an_order_or_a_sum_are_refused():
  with pytest.raises(TypeError):
    hccl_ops.allreduce(tf.constant("x"), "sum")
  with pytest.raises(TypeError):
    hccl_ops.allreduce(tf.constant([1], tf.uint8), "sum")
  with pytest.raises(ValueError, match="list of 2"):
    hccl_ops.allreduce([tf.constant(1.0)] * 2, "sum")


def test_fact_11_broadcast_assigns_variables(sess):
  value = tf.get_variable("v", [2], initializer=tf.constant_initializer(3.0))
  count = tf.get_variable("n", [], tf.int64, initializer=tf.constant_initializer(7), use_resource=True)
  results = hccl_ops.broadcast([value, count], 0)
  assert [result.dtype for result in results] == [tf.float32, tf.int64]
  assert [result.shape for result in results] == [[2], []]
  assigns = [op for op in sess.graph.get_operations() if op.type in ("Assign", "AssignVariableOp")]
  assert len(assigns) == 4, "one each for the initializer and the broadcast"
  sess.run(tf.global_variables_initializer())
  got = sess.run(results)
  np.testing.assert_array_equal(got[0], [3, 3])
  assert got[1] == 7
  # Running the result is what assigns: both ops are ancestors of it.
  for result, name in zip(results, ("v", "n")):
    (assign,) = result.op.control_inputs
    assert assign.type in ("Assign", "AssignVariableOp") and assign.inputs[0].op.name == name


def test_the_guides_broadcast_of_all_variables_runs(sess):
  value = tf.get_variable("w", [3], initializer=tf.constant_initializer(1.0))
  steps = []
  for variable in tf.trainable_variables():
    outputs = hccl_ops.broadcast(tensor=[variable], root_rank=0)
    steps += [outputs[0].op, tf.assign(variable, outputs[0])]
  sess.run(tf.global_variables_initializer())
  sess.run(tf.group(steps))
  np.testing.assert_array_equal(sess.run(value), [1, 1, 1])


def test_broadcast_works_for_partitioned_variables_and_any_type(sess):
  parts = tf.get_variable("p", [4, 2], partitioner=tf.fixed_size_partitioner(2), initializer=tf.ones_initializer())
  results = hccl_ops.broadcast([parts, tf.constant("text"), tf.constant([True])], 0, fusion=0)
  sess.run(tf.global_variables_initializer())
  rows, text, flags = sess.run(results)
  np.testing.assert_array_equal(rows, np.ones([4, 2]))
  assert text == b"text" and flags.tolist() == [True]


@pytest.mark.parametrize("arguments", [{"fusion": 1}, {"root_rank": 1}, {"root_rank": -1}, {"fusion_id": -1}, {"group": "nope"}])
def test_fact_11_wrong_broadcasts_are_refused(arguments):
  with pytest.raises((ValueError, tf.errors.InvalidArgumentError)):
    hccl_ops.broadcast([tf.constant(1.0)], **{"root_rank": 0, **arguments})


@pytest.mark.parametrize("tensor", [tf.float32, [], None, 1.0])
def test_broadcast_takes_a_list(tensor):
  with pytest.raises(ValueError, match="list"):
    hccl_ops.broadcast(tensor, 0)


@pytest.mark.parametrize(
  "rest", [(), ("hccl_world_group",), (0,), (0, -1), (0, -1, "hccl_world_group"), ("hccl_world_group", 0, -1), (2, 5), (2, 5, "g")]
)
def test_fact_12_allgather_takes_both_orders(sess, rest):
  api.create_group("g", 1, [0])
  result = hccl_ops.allgather(tf.constant([[3]]), 1, *rest)
  assert result.shape == [1, 1]
  assert sess.run(result).tolist() == [[3]]
  assert result.op.get_attr("group").decode() == (rest[-1] if rest and isinstance(rest[-1], str) else "hccl_world_group")
  assert (result.op.get_attr("fusion"), result.op.get_attr("fusion_id")) == ((2, 5) if 2 in rest else (0, -1))


def test_fact_12_allgather_by_names_and_wrong_calls():
  t = tf.constant([[3]])
  assert hccl_ops.allgather(tensor=t, rank_size=1, group="hccl_world_group", fusion=2, fusion_id=1).op.get_attr("fusion_id") == 1
  assert hccl_ops.allgather(t, 1, 2, group="hccl_world_group", fusion_id=3).op.get_attr("fusion_id") == 3
  for call in (
    lambda: hccl_ops.allgather(t, 1, 0, -1, "hccl_world_group", 1),
    lambda: hccl_ops.allgather(t, 1, "hccl_world_group", group="hccl_world_group"),
    lambda: hccl_ops.allgather(t, 1, nonsense=1),
  ):
    with pytest.raises(TypeError):
      call()


def test_fact_12_shapes_of_allgather():
  assert hccl_ops.allgather(tf.constant([[0]]), 2).shape == [2, 1]
  assert hccl_ops.allgather(tf.placeholder(tf.float32, [None, 3]), 2).shape.as_list() == [None, 3]
  assert hccl_ops.allgather(tf.placeholder(tf.float32), 2).shape.rank is None
  for rank_size in (0, -1, 32769):
    with pytest.raises((ValueError, tf.errors.InvalidArgumentError), match="rank_size"):
      hccl_ops.allgather(tf.constant([[0]]), rank_size)
  with pytest.raises((ValueError, tf.errors.InvalidArgumentError)):
    hccl_ops.allgather(tf.constant(0), 1)


def test_fact_12_a_rank_size_that_is_not_the_groups_fails_when_run(sess):
  for result in (hccl_ops.allgather(tf.constant([[0]]), 2), hccl_ops.reduce_scatter(tf.constant([[0], [1]]), "sum", 2)):
    with pytest.raises(tf.errors.InvalidArgumentError, match="rank_size is 2"):
      sess.run(result)


def test_fact_12_shapes_of_reduce_scatter(sess):
  assert hccl_ops.reduce_scatter(tf.constant([0, 1, 2, 3]), "sum", 2).shape == [2]
  assert hccl_ops.reduce_scatter(tf.placeholder(tf.float32, [None, 2]), "sum", 2).shape.as_list() == [None, 2]
  with pytest.raises((ValueError, tf.errors.InvalidArgumentError), match="divisible"):
    hccl_ops.reduce_scatter(tf.constant([0, 1, 2]), "sum", 2)
  fed = tf.placeholder(tf.float32)
  with pytest.raises(tf.errors.InvalidArgumentError, match="scalar"):
    sess.run(hccl_ops.reduce_scatter(fed, "sum", 1), {fed: 1.0})


def test_fact_12_all_to_all_v_moves_elements(sess):
  got = sess.run(hccl_ops.all_to_all_v(tf.constant([1, 2, 3]), [2], [1], [2], [0]))
  assert got.tolist() == [2, 3]
  got = sess.run(hccl_ops.all_to_all_v(tf.constant([[1.5, 2], [3, 4]]), [2], [0], [2], [3]))
  assert got.tolist() == [0, 0, 0, 1.5, 2]
  got = sess.run(hccl_ops.all_to_all_v_c(tf.constant([1, 2, 3], tf.uint8), [[3]], 0))
  assert got.tolist() == [1, 2, 3] and got.dtype == np.uint8
  assert sess.run(hccl_ops.all_to_all_v(tf.constant([], tf.float32), [0], [0], [0], [0])).size == 0


@pytest.mark.parametrize(
  "send, at, receive, to, text",
  [
    ([4], [0], [4], [0], "3 elements"),
    ([-1], [0], [-1], [0], "3 elements"),
    ([1], [3], [1], [0], "3 elements"),
    ([1], [-1], [1], [0], "3 elements"),
    ([2**62], [2**62], [2**62], [0], "3 elements"),
    ([2], [0], [1], [0], "expects 1"),
    ([1], [0], [1], [-1], "recv_displacements"),
    ([1], [0], [1], [2**62], "recv_displacements"),
    ([1, 1], [0, 0], [1, 1], [0, 0], "1 ranks"),
  ],
)
def test_wrong_counts_of_all_to_all_v_are_named(sess, send, at, receive, to, text):
  result = hccl_ops.all_to_all_v(tf.constant([1, 2, 3]), send, at, receive, to)
  with pytest.raises(tf.errors.InvalidArgumentError, match=text):
    sess.run(result)


def test_wrong_shapes_of_all_to_all_are_refused_when_the_graph_is_built(sess):
  with pytest.raises((ValueError, tf.errors.InvalidArgumentError)):
    hccl_ops.all_to_all_v(tf.constant([1]), [1, 1], [0], [1], [0])
  with pytest.raises((ValueError, tf.errors.InvalidArgumentError)):
    hccl_ops.all_to_all_v_c(tf.constant([1]), [[1, 2]], 0)
  with pytest.raises(ValueError, match="rank must be"):
    hccl_ops.all_to_all_v_c(tf.constant([1]), [[1]], 1)
  with pytest.raises(tf.errors.InvalidArgumentError, match="send_count_matrix"):
    sess.run(hccl_ops.all_to_all_v_c(tf.constant([1]), [[1, 0], [0, 0]], 0))


def test_send_and_receive_need_another_rank(sess):
  sent = hccl_ops.send(tf.constant(1.0), 7, 0)
  received = hccl_ops.receive([2], tf.float32, 7, 0)
  assert sent.outputs == [] and received.shape == [2] and received.dtype == tf.float32
  for op in (sent, received):
    with pytest.raises(tf.errors.InvalidArgumentError, match="another rank"):
      sess.run(op)
  with pytest.raises((ValueError, tf.errors.InvalidArgumentError), match="fully defined"):
    hccl_ops.receive([None], tf.float32, 7, 0)


def test_fact_13_only_allreduce_has_a_gradient(sess):
  x = tf.constant([1.0, 2.0])
  for reduction in ("sum", "max"):
    (gradient,) = tf.gradients(tf.reduce_sum(hccl_ops.allreduce(x, reduction)), x)
    assert gradient.op.type == "HcomAllReduce" and gradient.op.get_attr("reduction") == b"sum"
    assert gradient.op.get_attr("fusion") == 0
    assert sess.run(gradient).tolist() == [1, 1]
  for result in (hccl_ops.allgather(x, 1), hccl_ops.broadcast([x], 0)[0], hccl_ops.reduce_scatter(x, "sum", 1)):
    with pytest.raises(LookupError):
      tf.gradients(tf.reduce_sum(result), x)


def test_collectives_are_stateful_and_have_the_originals_type_names():
  x = tf.constant([1.0])
  counts = [1]
  ops = [
    hccl_ops.allreduce(x, "sum").op,
    hccl_ops.reduce(x, "sum", 0).op,
    hccl_ops.allgather(x, 1).op,
    hccl_ops.reduce_scatter(x, "sum", 1).op,
    hccl_ops.broadcast([x], 0)[0].op,
    hccl_ops.send(x, 0, 0),
    hccl_ops.receive([1], tf.float32, 0, 0).op,
    hccl_ops.all_to_all_v(x, counts, [0], counts, [0]).op,
    hccl_ops.all_to_all_v_c(x, [counts], 0).op,
  ]
  assert [op.type for op in ops] == [
    "HcomAllReduce",
    "HcomReduce",
    "HcomAllGather",
    "HcomReduceScatter",
    "HcomBroadcast",
    "HcomSend",
    "HcomReceive",
    "HcomAllToAllV",
    "HcomAllToAllVC",
  ]
  assert all(op.op_def.is_stateful for op in ops)


def test_a_group_that_was_destroyed_fails_when_run(sess):
  api.create_group("g", 1, [0])
  result = hccl_ops.allreduce(tf.constant(1.0), "sum", group="g")
  api.destroy_group("g")
  with pytest.raises(tf.errors.NotFoundError, match="'g'"):
    sess.run(result)


@pytest.mark.parametrize("name", ["gather_all_to_all_v", "remote_read", "remote_ref_read", "remote_write", "remote_scatter_write"])
def test_what_needs_device_memory_names_itself_when_called(name):
  function = getattr(hccl_ops, name)
  required = [0] * (function.__code__.co_argcount - len(function.__defaults__ or ()))
  with pytest.raises(NotImplementedError, match=name):
    function(*required)


def test_hccl_imports_alone_without_environment():
  code = "import hccl.split.api, hccl.manage.api as m; print(m.get_rank_size(), m.get_rank_id(), m.MAX_GROUP_NAME_LEN)"
  path = ":".join(p for p in sys.path if p.endswith("/python"))
  command = [sys.executable, "-c", code]
  done = subprocess.run(command, env={"PYTHONPATH": path}, capture_output=True, text=True, check=False, timeout=120)
  assert done.stdout.split() == ["1", "0", "127"], done.stderr


def test_the_world_is_told_once_and_groups_stay():
  api.create_group("g", 1, [0])
  assert _groups.world().size == 1
  assert api.get_rank_size("g") == 1


@pytest.mark.parametrize("machines", ["rank table", "meeting", "another count"])
def test_local_ranks_of_a_group_count_the_ranks_of_this_machine(machines, monkeypatch, tmp_path):
  """Ranks 0, 2 and 3 are on one machine, 1 and 4 on another."""
  table = {
    "server_list": [
      {"server_id": server, "device": [{"rank_id": rank} for rank in ranks]} for server, ranks in (("a", "023"), ("b", "14"))
    ]
  }
  (tmp_path / "table.json").write_text(json.dumps(table))
  environment = {"RANK_TABLE_FILE": str(tmp_path / "table.json"), "RANK_ID": "3", "MXREC_SECRET": "s"}
  found = _world.find(environment)
  assert (found.local_rank, found.local_size, found.here) == (2, 3, (0, 2, 3))
  if machines != "rank table":
    found = dataclasses.replace(found, here=())

  def numbers_of_meeting(name, *arguments):
    assert name == "mxrec_comm_machines"
    arguments[0][:] = [0, 1, 0, 0, 1] if machines == "meeting" else [0] * 5

  members = {_groups.WORLD: [0, 1, 2, 3, 4], "g": [3, 1, 0], "h": [4, 1]}
  with monkeypatch.context() as patched:
    patched.setattr(_groups, "start", lambda: None)
    patched.setattr(_groups, "world", lambda: found)
    patched.setattr(_groups, "_call", numbers_of_meeting)
    patched.setattr(_groups, "ranks_of", members.__getitem__)
    assert _groups.place_here(_groups.WORLD) == (2, 3)
    # Where the starter of the ranks counts machines in another way, ranks 1, 2 and 3 are taken to be those here.
    assert _groups.place_here("g") == (0, 2)
    assert _groups.place_here("h") == (-1, 1 if machines == "another count" else 0)
