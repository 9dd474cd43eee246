"""Hooks and callbacks of npu_bridge."""

import io
import os

import pytest
import tensorflow.compat.v1 as tf
from npu_bridge.estimator import npu_ops
from npu_bridge.estimator.npu import _gradients, npu_callbacks, npu_hook, util
from npu_bridge.npu_init import NpuEmptyHook

from mxrec import _groups


@pytest.fixture(autouse=True)
def alone(monkeypatch):
  for name in ("RANK_SIZE", "RANK_ID", "RANK_TABLE_FILE", "CM_WORKER_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE"):
    monkeypatch.delenv(name, raising=False)


def counter():
  step = tf.train.get_or_create_global_step()
  return step, tf.assign_add(step, 1).op


def run(hooks, fetches, times=3, **arguments):
  with tf.train.MonitoredSession(hooks=hooks, **arguments) as session:
    return [session.run(fetches) for _ in range(times)]


def test_an_empty_hook_does_nothing():
  step, train = counter()
  assert len(run([NpuEmptyHook()], [step, train])) == 3


def test_with_one_rank_the_broadcast_hook_adds_nothing_to_the_graph():
  tf.get_variable("v", [])
  tf.train.get_or_create_global_step()
  before = tf.get_default_graph().as_graph_def()
  hook = npu_hook.NPUBroadcastGlobalVariablesHook()
  hook.begin()
  hook.after_create_session(None, None)
  assert tf.get_default_graph().as_graph_def() == before


def test_with_several_ranks_the_broadcast_hook_says_so(monkeypatch):
  monkeypatch.setenv("RANK_SIZE", "2")
  tf.get_variable("v", [])
  hook = npu_hook.NPUBroadcastGlobalVariablesHook(0, 0)
  with pytest.raises(ValueError, match="RANK_SIZE=2"):
    hook.begin()


def test_the_broadcast_hook_gives_trainable_variables_only(monkeypatch):
  """As with several ranks, but with the world's group of one."""
  monkeypatch.setattr(_gradients, "rank_size", lambda: 2)
  trainable = tf.get_variable("v", [2], initializer=tf.ones_initializer())
  tf.get_variable("moving", [], trainable=False)
  _, train = counter()
  hook = npu_hook.NPUBroadcastGlobalVariablesHook(0)
  run([hook], train)
  ops = [op for op in tf.get_default_graph().get_operations() if op.type == "HcomBroadcast"]
  assert len(ops) == 1
  assert trainable.op in [before.op for op in ops for before in op.inputs[0].op.inputs] + [ops[0].inputs[0].op]
  assert hook._broadcast.graph is tf.get_default_graph()


def test_broadcast_global_variables_runs(sess):
  value = tf.get_variable("v", [2], initializer=tf.ones_initializer())
  op = npu_hook.broadcast_global_variables(0)
  assert isinstance(op, tf.Operation)
  sess.run(tf.global_variables_initializer())
  sess.run(op)
  assert sess.run(value).tolist() == [1, 1]
  with pytest.raises(ValueError, match="root_rank"):
    npu_hook.broadcast_global_variables(1)
  assert _groups.world().size == 1


def test_the_checkpoint_hook_saves_and_logs(tmp_path, monkeypatch):
  lines = []
  monkeypatch.setattr(npu_hook.tf_logging, "info", lambda text, *args: lines.append(text % args))
  _, train = counter()
  hook = npu_hook.NPUCheckpointSaverHook(str(tmp_path), save_steps=2)
  assert isinstance(hook, tf.train.CheckpointSaverHook)
  run([hook], train, 5)
  assert tf.train.latest_checkpoint(str(tmp_path)).endswith("-5")
  assert len([line for line in lines if line.startswith("global_step: ")]) == 5


@pytest.mark.parametrize("every, calls", [(0, [5]), (1, [1] * 5), (2, [2, 2, 1]), (5, [5])])
def test_output_tensor_hook_hands_on_what_it_collected(every, calls):
  step, train = counter()
  seen = []
  hook = npu_hook.NPUOutputTensorHook({"step": step}, dependencies=train, output_fn=seen.append, output_every_n_steps=every)
  run([hook], train, 5)
  assert [len(values) for values in seen] == calls
  assert [entry["step"] for values in seen for entry in values] == [1, 2, 3, 4, 5]


def test_output_tensor_hook_takes_names_and_lists_and_logs(monkeypatch):
  lines = []
  monkeypatch.setattr(npu_hook.tf_logging, "info", lambda text, *args: lines.append(text % args))
  step, train = counter()
  run([npu_hook.NPUOutputTensorHook([step.value().name])], train, 2)
  assert [line for line in lines if "=" in line] == ["global_step/read:0 = 1", "global_step/read:0 = 2"]
  with pytest.raises(ValueError, match="output_every_n_steps"):
    npu_hook.NPUOutputTensorHook({}, output_every_n_steps=-1)
  with pytest.raises(TypeError, match="output_every_n_steps must be int: got str '2'"):
    npu_hook.NPUOutputTensorHook({}, output_every_n_steps="2")
  for wrong, found in ((None, "NoneType None"), ("x:0", "str 'x:0'"), (step, "RefVariable")):
    with pytest.raises(TypeError, match=f"tensors must be a dict .*{found}"):
      npu_hook.NPUOutputTensorHook(wrong)


def test_iterations_hook_sets_the_loops_of_every_session():
  step, train = counter()
  op = util.IterationPerLoop().create_iteration_per_loop_var(train)
  run([npu_hook.SetIterationsVarHook(10)], op, 1)
  with tf.train.MonitoredSession(hooks=[npu_hook.SetIterationsVarHook(4)]) as session:
    session.run(op)
    assert session.run(step) == 4
  with tf.train.MonitoredSession(hooks=[npu_hook.SetIterationsVarHook()]) as session:
    session.run(op)
    assert session.run(step) == 1
  for wrong, error in ((0, ValueError), ("3", TypeError)):
    with pytest.raises(error):
      npu_hook.SetIterationsVarHook(wrong)


def test_step_and_loss_go_to_the_environment(monkeypatch):
  for name in ("STEP_NOW", "TOTAL_STEP", "LOSS_NOW", "TARGET_LOSS"):
    monkeypatch.setenv(name, "before")
  step, train = counter()
  run([npu_hook.TellMeStepOrLossHook(step=step, total_step=30, loss=tf.constant(0.5), final_loss=0.1)], train, 3)
  assert os.environ["STEP_NOW"] in ("2", "3") and os.environ["TOTAL_STEP"] == "30"
  assert float(os.environ["LOSS_NOW"]) == 0.5 and os.environ["TARGET_LOSS"] == "0.1"
  with pytest.raises(ValueError, match="step or loss"):
    npu_hook.TellMeStepOrLossHook(total_step=3)


@pytest.mark.parametrize("kind", ["function", "file", "default"])
def test_the_log_hook_prints_each_line_that_the_graph_sends(kind, capsys):
  step, train = counter()
  with tf.control_dependencies([train]):
    send = npu_ops.outfeed_enqueue_op("_npu_log", [tf.strings.join(["step ", tf.as_string(step.read_value())])])
  lines, file = [], io.StringIO()
  stream = {"function": lines.append, "file": file, "default": None}[kind]
  hook = npu_hook.NPULogOutfeedSessionHook(*([] if stream is None else [stream]))
  for first in (1, 4):  # a hook serves one session after the other
    with tf.train.MonitoredSession(hooks=[hook]) as session:
      for _ in range(3):
        session.run(send)
    seen = lines if kind == "function" else (file.getvalue() if kind == "file" else capsys.readouterr().err).splitlines()
    assert [line for line in seen if line.startswith("step")][-3:] == ["step 1", "step 2", "step 3"], first
  assert hook._thread is None


def host_call(channel, act):
  """(op that sends the step into a channel, op that takes one and gives it to a function)."""
  step, train = counter()
  with tf.control_dependencies([train]):
    send = npu_ops.outfeed_enqueue_op(channel, [step.read_value()])
  return send, tf.py_func(act, npu_ops.outfeed_dequeue_op(channel, [tf.int64], [()]), [])


def test_the_outfeed_hook_runs_its_ops_for_each_element_before_the_session_ends():
  seen = []
  send, take = host_call("host", lambda value: seen.append(int(value)))
  run([npu_hook.NPUInfeedOutfeedSessionHook(take, "host")], send, 100)
  assert seen == list(range(1, 101))


def test_an_error_on_the_host_side_ends_the_training_with_that_error():
  def fail(value):
    if value == 2:
      raise ValueError("the host cannot take 2")

  send, take = host_call("failing", fail)
  with pytest.raises(tf.errors.InvalidArgumentError, match="the host cannot take 2"):
    run([npu_hook.NPUInfeedOutfeedSessionHook(take, "failing")], send, 5)


def test_the_outfeed_thread_ends_with_a_session_that_fails():
  send, take = host_call("broken", lambda value: None)
  hook = npu_hook.NPUInfeedOutfeedSessionHook(take, "broken")
  with pytest.raises(RuntimeError, match="in the script"):
    with tf.train.MonitoredSession(hooks=[hook]) as session:
      session.run(send)
      raise RuntimeError("in the script")
  hook._thread.join(30)
  assert not hook._thread.is_alive()


def test_shutdown_hook_ends_the_runtime():
  _, train = counter()
  run([npu_hook.NPUShutDownHook()], train)
  assert "NPUShutdown" in {op.type for op in tf.get_default_graph().get_operations()}


def test_the_callback_broadcasts_before_the_first_batch(monkeypatch):
  callback = npu_callbacks.NPUBroadcastGlobalVariablesCallback(0)
  callback.on_batch_begin(0)
  assert not tf.get_default_graph().get_operations(), "one rank: nothing"
  monkeypatch.setattr(_gradients, "rank_size", lambda: 2)
  value = tf.get_variable("v", [], initializer=tf.ones_initializer())
  callback = npu_callbacks.NPUBroadcastGlobalVariablesCallback(0)
  with tf.Session() as session:
    session.run(value.initializer)
    monkeypatch.setattr(npu_callbacks, "_keras_session", lambda: session)
    callback.on_train_batch_begin(0)
    callback.on_train_batch_begin(1)
  assert [op.type for op in tf.get_default_graph().get_operations()].count("HcomBroadcast") == 1


def test_wrong_arguments_are_refused_when_a_hook_is_made():
  for make in (npu_hook.NPUBroadcastGlobalVariablesHook, npu_callbacks.NPUBroadcastGlobalVariablesCallback):
    make(0)
    with pytest.raises(TypeError, match=f"root_rank of {make.__name__} must be int"):
      make("0")
    with pytest.raises(ValueError, match=f"root_rank of {make.__name__} must be at least 0"):
      make(-1)
  with pytest.raises(TypeError, match="output_fn must be a function"):
    npu_hook.NPUOutputTensorHook({}, output_fn="print")
