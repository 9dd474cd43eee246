"""Session hooks of migrated scripts."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import tensorflow.compat.v1 as tf
from tensorflow.python.platform import tf_logging

from npu_bridge.estimator import npu_ops
from npu_bridge.estimator.npu import _gradients, util

_LOG_CHANNEL = "_npu_log"


def broadcast_global_variables(root_rank: int, index: int | None = None) -> tf.Operation:
  """Gives every trainable variable the value it has on a rank; one operation.

  Despite the name, which is the original's, other variables (slots, global step, moving statistics) stay as they are.

  Args:
    root_rank: the rank whose values all get.
    index: this process's rank; not needed.

  Raises:
    ValueError: no such rank.
  """
  from npu_bridge.hccl import hccl_ops

  with tf.name_scope("broadcast_global_variables"):
    return tf.group(*[hccl_ops.broadcast([variable], root_rank)[0].op for variable in tf.trainable_variables()])


def checked_root_rank(who: str, root_rank: Any) -> int:
  """The root rank that a hook or callback is given; 0 for None."""
  if root_rank is None:
    return 0
  util.check_nonnegative_integer(root_rank, f"root_rank of {who}")
  return root_rank


class NPUBroadcastGlobalVariablesHook(tf.train.SessionRunHook):
  """Gives trainable variables the values of one rank when a session has been created. With one rank: nothing.

  Args:
    root_rank: the rank whose values all get; None: 0.
    index: this process's rank; not needed.

  Raises:
    TypeError: root_rank is no int.
    ValueError: root_rank is negative; RANK_SIZE and CM_WORKER_SIZE are both set.
  """

  def __init__(self, root_rank: int | None = None, index: int | None = None) -> None:
    self._root_rank = checked_root_rank("NPUBroadcastGlobalVariablesHook", root_rank)
    self._index = index
    util.get_ranksize()  # a contradiction in the environment is an error now
    self._several = False
    self._broadcast: tf.Operation | None = None

  def begin(self) -> None:
    self._several = _gradients.rank_size() > 1
    if self._several and (self._broadcast is None or self._broadcast.graph is not tf.get_default_graph()):
      self._broadcast = broadcast_global_variables(self._root_rank, self._index)

  def after_create_session(self, session: tf.Session, coord: tf.train.Coordinator) -> None:
    if self._several:
      session.run(self._broadcast)


class NPUCheckpointSaverHook(tf.train.CheckpointSaverHook):
  """tf.train.CheckpointSaverHook, with the same arguments, that also logs the global step of each run."""

  def after_run(self, run_context: Any, run_values: Any) -> None:
    tf_logging.info("global_step: %s", run_values.results)
    super().after_run(run_context, run_values)


class NPUOutputTensorHook(tf.train.SessionRunHook):
  """Collects the values of tensors, and hands them to a function.

  Args:
    tensors: {name: tensor}, or a list of tensors.
    dependencies: operations that run before the tensors are read.
    output_fn: called with a list of {name: value}, one entry a run; None: they are logged.
    output_every_n_steps: after how many runs it is called; what is left comes at the end. 0: only at the end.

  Raises:
    ValueError: a negative number.
    TypeError: tensors is no dict and no list, output_fn no function, or the number no int.
  """

  def __init__(
    self,
    tensors: Mapping[str, Any] | Sequence[Any],
    dependencies: Any = None,
    output_fn: Callable[[list[dict[str, Any]]], None] | None = None,
    output_every_n_steps: int = 0,
  ) -> None:
    util.check_nonnegative_integer(output_every_n_steps, "output_every_n_steps")
    if not isinstance(tensors, (Mapping, list, tuple, set, frozenset)):
      raise TypeError(f"tensors must be a dict {{name: tensor}} or a list of tensors: got {type(tensors).__name__} {tensors!r}")
    self._tensors = dict(tensors) if isinstance(tensors, Mapping) else {getattr(one, "name", str(one)): one for one in tensors}
    if output_fn is not None and not callable(output_fn):
      raise TypeError(f"output_fn must be a function of a list of dicts: got {type(output_fn).__name__} {output_fn!r}")
    self._dependencies = [] if dependencies is None else dependencies if isinstance(dependencies, (list, tuple)) else [dependencies]
    self._output_fn = output_fn
    self._every = output_every_n_steps
    self._collected: list[dict[str, Any]] = []

  def begin(self) -> None:
    self._collected = []
    if self._dependencies:
      with tf.control_dependencies([getattr(one, "op", one) for one in self._dependencies]):
        self._fetches = {name: tf.identity(self._element(tensor)) for name, tensor in self._tensors.items()}
    else:
      self._fetches = {name: self._element(tensor) for name, tensor in self._tensors.items()}

  def _element(self, tensor: Any) -> Any:
    return tf.get_default_graph().as_graph_element(tensor)

  def before_run(self, run_context: Any) -> tf.train.SessionRunArgs:
    return tf.train.SessionRunArgs(self._fetches)

  def after_run(self, run_context: Any, run_values: Any) -> None:
    self._collected.append(run_values.results)
    if self._every and len(self._collected) >= self._every:
      self._output()

  def end(self, session: tf.Session) -> None:
    self._output()

  def _output(self) -> None:
    collected, self._collected = self._collected, []
    if not collected:
      return
    if self._output_fn is not None:
      self._output_fn(collected)
    else:
      for values in collected:
        tf_logging.info("%s", ", ".join(f"{name} = {value}" for name, value in values.items()))


class SetIterationsVarHook(tf.train.SessionRunHook):
  """Sets the iterations of the graph's loop ops (util.IterationPerLoop) in each session that is created.

  Args:
    iterations_per_loop: the number; None: 1.

  Raises:
    TypeError, ValueError: no int, or below 1.
  """

  def __init__(self, iterations_per_loop: int | None = None) -> None:
    self._count = 1 if iterations_per_loop is None else iterations_per_loop
    util.check_positive_integer(self._count, "iterations_per_loop")

  def begin(self) -> None:
    for name in util._LOOP_VARIABLES:
      util.create_or_get_var(name)

  def after_create_session(self, session: tf.Session, coord: tf.train.Coordinator) -> None:
    util.load_loops(session, self._count)


class TellMeStepOrLossHook(tf.train.SessionRunHook):
  """Writes step and loss of each run into environment variables: STEP_NOW, TOTAL_STEP, LOSS_NOW, TARGET_LOSS.

  Args:
    step: tensor of the step now, or None.
    total_step: number of steps, or None.
    loss: tensor of the loss, or None.
    final_loss: the loss that training is to reach, or None.

  Raises:
    ValueError: step and loss are both None.
  """

  def __init__(self, step: Any = None, total_step: Any = None, loss: Any = None, final_loss: Any = None) -> None:
    if step is None and loss is None:
      raise ValueError("TellMeStepOrLossHook needs step or loss: both are None")
    self._fetches = {name: tensor for name, tensor in (("STEP_NOW", step), ("LOSS_NOW", loss)) if tensor is not None}
    given = (("TOTAL_STEP", total_step), ("TARGET_LOSS", final_loss))
    self._given = {name: str(value) for name, value in given if value is not None}

  def begin(self) -> None:
    os.environ.update(self._given)

  def before_run(self, run_context: Any) -> tf.train.SessionRunArgs:
    return tf.train.SessionRunArgs(self._fetches)

  def after_run(self, run_context: Any, run_values: Any) -> None:
    os.environ.update({name: str(value) for name, value in run_values.results.items()})


class NPUShutDownHook(tf.train.SessionRunHook):
  """Ends the collective runtime when training ends.

  Args:
    scaffold: not needed.
  """

  def __init__(self, scaffold: Any = None) -> None:
    self._scaffold = scaffold

  def begin(self) -> None:
    self._shutdown = npu_ops.shutdown_system()

  def end(self, session: tf.Session) -> None:
    session.run(self._shutdown)


class _OutfeedHook(tf.train.SessionRunHook):
  """Empties an outfeed channel on a thread of its own, from the creation of a session to its end."""

  def __init__(self, channel_name: str) -> None:
    self._channel = channel_name
    self._thread: threading.Thread | None = None
    self._failure: BaseException | None = None

  def _fetches(self) -> Any:
    raise NotImplementedError

  def _take(self, values: Any) -> None:
    """What one element of the channel is for."""

  def begin(self) -> None:
    self._stop = npu_ops.stop_outfeed_dequeue_op(self._channel)
    self._dequeue = self._fetches()

  def after_create_session(self, session: tf.Session, coord: tf.train.Coordinator) -> None:
    self._failure = None
    self._thread = threading.Thread(target=self._empty, args=(session,), name=f"outfeed {self._channel}", daemon=True)
    self._thread.start()

  def _empty(self, session: tf.Session) -> None:
    try:
      while True:
        self._take(session.run(self._dequeue))
    except (tf.errors.OutOfRangeError, tf.errors.CancelledError):
      pass  # the channel was stopped, or the session closed
    except Exception as error:  # handed to end()
      self._failure = error

  def end(self, session: tf.Session) -> None:
    session.run(self._stop)
    if self._thread is not None:
      self._thread.join()
      self._thread = None
    if self._failure is not None:
      raise self._failure


class NPUInfeedOutfeedSessionHook(_OutfeedHook):
  """Runs the dequeue ops of an outfeed channel over and over while a session trains (host_call).

  Args:
    dequeue_ops: what to run for each element of the channel.
    channel_name: the channel.
  """

  def __init__(self, dequeue_ops: Any, channel_name: str) -> None:
    super().__init__(channel_name)
    self._ops = dequeue_ops

  def _fetches(self) -> Any:
    return self._ops


class NPULogOutfeedSessionHook(_OutfeedHook):
  """Prints the lines that the graph sends to the log channel while a session trains.

  Args:
    output_stream: a file, or a function that takes a line; None: standard error.
  """

  def __init__(self, output_stream: Any = None) -> None:
    super().__init__(_LOG_CHANNEL)
    self._stream = sys.stderr if output_stream is None else output_stream

  def _fetches(self) -> Any:
    return npu_ops.outfeed_dequeue_op(channel_name=self._channel, output_types=[tf.string], output_shapes=[()])

  def _take(self, values: Any) -> None:
    for line in values if isinstance(values, Iterable) and not isinstance(values, (bytes, str)) else [values]:
      text = line.decode(errors="replace") if isinstance(line, bytes) else str(line)
      if callable(self._stream):
        self._stream(text)
      else:
        print(text, file=self._stream)
