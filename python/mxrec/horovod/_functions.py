"""Variables and Python objects made equal on all ranks."""

from __future__ import annotations

import contextlib
import io
import pickle
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from mxrec import _collective
from mxrec.horovod import _basics, _ops
from mxrec.horovod._process_sets import ProcessSet, global_process_set

_AT_ONCE = 64  # variables in one operation: more would need more memory at once, fewer more agreement


def broadcast_variables(
  variables: Iterable[Any], root_rank: int, inplace: bool = False, process_set: ProcessSet = global_process_set
) -> tf.Operation | None:
  """Gives all ranks the values that the variables have on one.

  Args:
    variables: of TensorFlow or Keras, the same on all ranks, in any order that is the same on all.
    root_rank: the rank whose values all get.
    inplace: makes no difference here.
    process_set: the ranks that take part.

  Returns:
    In a graph the op that does it; in eager mode it is done, and the result is None.

  Raises:
    ValueError: no such rank; before init(); this rank is not in the process set.
    HorovodInternalError: in eager mode, a rank is gone.
  """
  todo = list(variables)
  done = []
  for begin in range(0, len(todo), _AT_ONCE):
    part = todo[begin : begin + _AT_ONCE]
    # Named by their place: what a variable's read is called depends on what else a rank has built.
    name = f"HorovodBroadcastVariables_{begin}"
    values = _ops.broadcast_all([_ops.read(variable) for variable in part], root_rank, name, process_set=process_set)
    done += [variable.assign(value) for variable, value in zip(part, values)]
  if tf.executing_eagerly():
    return None
  return tf.group(*done)


def broadcast_global_variables(root_rank: int, process_set: ProcessSet = global_process_set) -> tf.Operation:
  """The op that gives all ranks the values that the graph's global variables have on one.

  Raises:
    RuntimeError: in eager mode, which has no list of variables.
    ValueError: as broadcast_variables.
  """
  if tf.executing_eagerly():
    raise RuntimeError(
      "hvd.broadcast_global_variables() needs a graph: in eager mode there is no list of all variables; call "
      "hvd.broadcast_variables(variables of the model and the optimizer, root_rank)"
    )
  return broadcast_variables(tf.compat.v1.global_variables(), root_rank, process_set=process_set)


class BroadcastGlobalVariablesHook(tf.compat.v1.train.SessionRunHook):
  """Gives all ranks the values of one, when a session has been made and its checkpoint restored.

  Args:
    root_rank: the rank whose values all get.
    device: ignored.
    process_set: the ranks that take part.
  """

  def __init__(self, root_rank: int, device: str = "", process_set: ProcessSet = global_process_set):
    super().__init__()
    self.root_rank, self.device, self.process_set = root_rank, device, process_set
    self.bcast_op: tf.Operation | None = None

  def begin(self) -> None:
    """Makes the op, once for a graph."""
    if self.bcast_op is None or self.bcast_op.graph is not tf.compat.v1.get_default_graph():
      self.bcast_op = broadcast_global_variables(self.root_rank, self.process_set)

  def after_create_session(self, session: Any, coord: Any) -> None:
    """Runs it."""
    session.run(self.bcast_op)


# Objects


def _pickled(value: Any, kind: str, process_set: ProcessSet, name: str) -> np.ndarray:
  """The bytes of an object. The other ranks, which wait for it in that operation, hear of what cannot be pickled."""
  try:
    import cloudpickle as pickler
  except ImportError:
    pickler = pickle
  stream = io.BytesIO()
  try:
    pickler.dump(value, stream)
  except Exception as error:
    with contextlib.suppress(ValueError):
      _collective.tell_others(kind, process_set.group, name, 1, f"its object cannot be pickled: {type(error).__name__}: {error}")
    raise
  return np.frombuffer(stream.getbuffer(), np.uint8)


def broadcast_object(
  obj: Any, root_rank: int = 0, session: Any = None, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Any:
  """A Python object of one rank, on all; at once, in graph mode too. It is pickled, with cloudpickle where that is installed.

  Args:
    obj: the object; ignored on other ranks than the root.
    root_rank: the rank whose object all get.
    session: ignored.
    name: what the ranks call it.
    process_set: the ranks that take part.

  Returns:
    The object; on the root the one given.

  Raises:
    ValueError: no such rank; before init(); this rank is not in the process set.
    HorovodInternalError: a rank is gone.
  """
  name = name or "object"
  mine = _basics.rank() == root_rank
  data = _pickled(obj, "MxrecBroadcast", process_set, f"{name}.size") if mine else np.zeros([0], np.uint8)
  count = _now(lambda: _ops.broadcast(tf.constant(data.size, tf.int64), root_rank, f"{name}.size", True, process_set))
  whole = data if mine else np.zeros([int(count)], np.uint8)
  found = _now(lambda: _ops.broadcast(_bytes(whole), root_rank, f"{name}.bytes", True, process_set))
  return obj if mine else pickle.loads(found.tobytes())


def broadcast_object_fn(
  root_rank: int = 0, session: Any = None, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Callable[[Any], Any]:
  """A function that does broadcast_object with these arguments."""
  return lambda obj: broadcast_object(obj, root_rank, session, name, process_set)


def allgather_object(
  obj: Any, session: Any = None, name: str | None = None, process_set: ProcessSet = global_process_set
) -> list[Any]:
  """The Python objects of all ranks, at once, in graph mode too. Pickled as in broadcast_object.

  Args:
    obj: this rank's object.
    session: ignored.
    name: what the ranks call it.
    process_set: the ranks that take part.

  Returns:
    A list with an object of each rank, in their order.

  Raises:
    ValueError: before init(); this rank is not in the process set.
    HorovodInternalError: a rank is gone.
  """
  name, group = f"{name or 'objects'}.bytes", _ops.group_of(process_set)
  data = _pickled(obj, "MxrecAllGather", process_set, name)
  found, counts = _now(lambda: _collective.allgather(_bytes(data), group=group, name=name))
  ends = np.cumsum(counts)
  return [pickle.loads(found[end - count : end].tobytes()) for end, count in zip(ends, counts)]


def _bytes(data: np.ndarray) -> tf.Tensor:
  """As a tensor: not as a constant of the graph, of which 2 GiB are the limit."""
  if tf.executing_eagerly():
    return tf.constant(data)
  return tf.numpy_function(lambda: data, [], tf.uint8) if data.size > 1 << 20 else tf.constant(data)


def _now(build: Callable[[], Any]) -> Any:
  return _basics.run_now(build)


def metric_average(values: Sequence[float], process_set: ProcessSet = global_process_set) -> list[float]:
  """The means over the ranks of some numbers, at once."""
  found = _now(
    lambda: _ops.allreduce(tf.constant(list(values), tf.float64), op=_ops.Average, name="metrics", process_set=process_set)
  )
  return [float(value) for value in found]
