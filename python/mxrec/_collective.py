"""Collective operations for Python code of this project: what npu_bridge's optimizers and mxrec.horovod stand on.

Works in graphs and in eager mode. The world, its groups and the ops under the original's names: `_groups`, `npu_bridge.hccl`.

An op that has no `name` goes by the name of its node, which every rank has to build alike; ops with one name must not run at the
same time (AlreadyExistsError). What the ranks disagree on (type, shape, reduction, root) is an InvalidArgumentError on all of them.
When a rank is gone or silent, InternalError names it, and everything later fails with it too. In eager mode a call that is refused
here, before it asks (a wrong argument), fails on the other ranks too, which would wait for it: InvalidArgumentError says which rank
and why. A graph that cannot be built runs nowhere.
"""

from __future__ import annotations

import contextlib
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tensorflow.compat.v1 as tf
from tensorflow.python.framework import ops as _ops

from mxrec import _groups, _loader

REDUCTIONS = ("sum", "min", "max", "prod", "adasum")
WIRES = (None, "float16", "bfloat16")
_SUMMABLE = ("uint8", "int8", "int16", "int32", "int64", "float16", "bfloat16", "float32", "float64")
_OWN_PACKAGES = ("mxrec.", "npu_bridge.", "npu_device.", "hccl.", "tensorflow.", "tf_keras.", "keras.", "horovod.", "contextlib.")


def _line() -> str:
  """File and line of the caller outside of this project and TensorFlow, for messages."""
  frame = sys._getframe(1)
  while frame is not None:
    module = str(frame.f_globals.get("__name__", "")) + "."
    if not module.startswith(_OWN_PACKAGES):
      return f"{frame.f_code.co_filename}:{frame.f_lineno}"
    frame = frame.f_back
  return ""


def note_line(made: Any) -> Any:
  """Writes into the op that makes `made` (a tensor, a list of them, or an op) which Python line built it. Returns `made`.

  Into one that reduces a tensor of known size also how large that is, for the graph pass that merges small ones.
  """
  first = made[0] if isinstance(made, (list, tuple)) else made
  op = first if isinstance(first, tf.Operation) else None
  if op is None and isinstance(first, tf.Tensor) and not hasattr(first, "numpy"):
    op = first.op
  if op is not None:
    from tensorflow.core.framework import attr_value_pb2

    op._set_attr("_mxrec_line", attr_value_pb2.AttrValue(s=_line().encode()))
    if op.type in ("MxrecAllReduce", "HcomAllReduce") and len(op.inputs) == 1:
      elements = op.inputs[0].shape.num_elements()
      if elements is not None:
        op._set_attr("_mxrec_bytes", attr_value_pb2.AttrValue(i=elements * op.inputs[0].dtype.size))
  return made


def arguments(group: str, name: str | None) -> dict[str, Any]:
  """The attributes that collective ops have in common. ValueError: an unknown group."""
  _groups.ranks_of(group)
  # TensorFlow allows fewer characters in the name of a node than there may be in ours.
  node = re.sub(r"[^A-Za-z0-9_.\\/>-]", "_", name or "").lstrip("_\\/>-")
  return {"group": group, "tensor_name": name or "", "name": node or None}


def _own_arguments(group: str, name: str | None) -> dict[str, Any]:
  """The attributes of the Mxrec collective ops. An op that runs at once has no node into which note_line could write."""
  return {**arguments(group, name), "line": _line() if tf.executing_eagerly() else ""}


def tell_others(kind: str, group: str, name: str | None, parts: int, why: str) -> None:
  """Tells the other ranks of the group, which wait now, that this one does not take part; ValueError for an unknown group."""
  ranks = _groups.ranks_of(group)
  if len(ranks) > 1 and (_groups.world().rank or 0) in ranks:
    _groups.refuse(group, name or kind, max(parts, 1), f"{why} ({_line()})")


@contextlib.contextmanager
def before_asking(kind: str, group: str, name: str | None, parts: int = 1) -> Iterator[None]:
  """What is raised inside, before a collective op is asked for, is told to the other ranks in eager mode: they wait for this one.

  Args:
    kind: the type of the op, which is the name of one that has no other.
    group: its group; an unknown one, or one without this rank, is told to nobody.
    name: as for the op.
    parts: its number of tensors.
  """
  try:
    yield
  except (ValueError, TypeError, NotImplementedError) as error:
    if tf.executing_eagerly() and not getattr(error, "mxrec_told", False):
      error.mxrec_told = True  # type: ignore[attr-defined]
      with contextlib.suppress(ValueError):
        tell_others(kind, group, name, parts, str(error))
    raise


def _parts(values: Any) -> int:
  return len(values) if isinstance(values, (list, tuple)) else 1


def _nothing(kind: str, group: str, name: str | None) -> list[tf.Tensor]:
  """The result for an empty list, which asks for nothing: ranks with tensors hear of it in eager mode."""
  if tf.executing_eagerly():
    tell_others(kind, group, name, 1, "it gave an empty list of tensors")
  return []


def _check_summable(tensors: Sequence[tf.Tensor]) -> None:
  """TypeError for what cannot be reduced."""
  for number, tensor in enumerate(tensors):
    if tensor.dtype.base_dtype.name not in _SUMMABLE:
      raise TypeError(
        f"tensors of type {tensor.dtype.base_dtype.name} cannot be reduced: input {number}, of {', '.join(_SUMMABLE)}"
      )


def _tensors(values: Any) -> tuple[list[tf.Tensor], bool]:
  """Values as a list of tensors, and whether they were one value alone."""
  alone = not isinstance(values, (list, tuple))
  return [tf.convert_to_tensor(value) for value in ([values] if alone else values)], alone


def _scaling(reduction: str, average: bool, prescale: float, postscale: float) -> dict[str, Any]:
  if reduction not in REDUCTIONS:
    raise ValueError(f"reduction must be one of {', '.join(REDUCTIONS)}: got {reduction!r}")
  if average and reduction != "sum":
    raise ValueError(f"average=True goes with the reduction sum: got {reduction!r}")
  return {
    "reduction": reduction,
    "average": bool(average),
    "prescale": repr(float(prescale)),
    "postscale": repr(float(postscale)),
  }


def allreduce(
  values: Any,
  reduction: str = "sum",
  average: bool = False,
  prescale: float = 1.0,
  postscale: float = 1.0,
  wire: str | None = None,
  group: str = _groups.WORLD,
  name: str | None = None,
) -> Any:
  """Tensors reduced over the ranks. Its gradient is the same reduction of the incoming one (sum and average).

  Args:
    values: a tensor, or a list of tensors, which travel together; (u)int8, int16, int32, int64 or floating, of any shapes.
    reduction: "sum", "min", "max", "prod" or "adasum".
    average: divide the sum by the number of ranks; integers are rounded down.
    prescale: each rank's floating values are multiplied by it first.
    postscale: the result is multiplied by it.
    wire: "float16" or "bfloat16": float32 values travel as that type.
    group: name of the group of ranks.
    name: what the ranks call it; None: the name of the node.

  Returns:
    As `values`: a tensor, or a list of them.

  Raises:
    ValueError: a wrong argument; an unknown group.
    TypeError: a tensor of another type.
  """
  with before_asking("MxrecAllReduce", group, name, _parts(values)):
    if wire not in WIRES:
      raise ValueError(f"wire must be float16, bfloat16 or None: got {wire!r}")
    tensors, alone = _tensors(values)
    if not tensors:
      return _nothing("MxrecAllReduce", group, name)
    scaling = _scaling(reduction, average, prescale, postscale)
    _check_summable(tensors)
    attributes = {**scaling, "wire": wire or "", **_own_arguments(group, name)}
  results = note_line(list(_loader.ops.mxrec_all_reduce(tensors, **attributes)))
  return results[0] if alone else results


def reducescatter(
  values: Any,
  reduction: str = "sum",
  average: bool = False,
  prescale: float = 1.0,
  postscale: float = 1.0,
  group: str = _groups.WORLD,
  name: str | None = None,
) -> Any:
  """This rank's rows of tensors reduced over the ranks; of n rows each rank gets n // ranks, the first n % ranks one more.

  Args:
    values: a tensor [n, ...], or a list of tensors.
    reduction: "sum", "min", "max" or "prod".
    average: as for allreduce.
    prescale: as for allreduce.
    postscale: as for allreduce.
    group: name of the group of ranks.
    name: what the ranks call it; None: the name of the node.

  Returns:
    As `values`.

  Raises:
    ValueError: a wrong argument; an unknown group.
    TypeError: a tensor of another type.
  """
  with before_asking("MxrecReduceScatter", group, name, _parts(values)):
    if reduction == "adasum":
      raise ValueError("reducescatter has no reduction adasum")
    tensors, alone = _tensors(values)
    if not tensors:
      return _nothing("MxrecReduceScatter", group, name)
    attributes = {**_scaling(reduction, average, prescale, postscale), **_own_arguments(group, name)}
    _check_summable(tensors)
  results = note_line(list(_loader.ops.mxrec_reduce_scatter(tensors, **attributes)))
  return results[0] if alone else results


def allgather(values: Any, group: str = _groups.WORLD, name: str | None = None) -> tuple[Any, tf.Tensor]:
  """The tensors of all ranks one after another along the first dimension, in which they may differ.

  Args:
    values: a tensor [n, ...], or a list of tensors.
    group: name of the group of ranks.
    name: what the ranks call it; None: the name of the node.

  Returns:
    (As `values`, int64 rows each rank gave: [ranks], or [tensors, ranks] for a list).

  Raises:
    ValueError: a scalar; an unknown group.
  """
  with before_asking("MxrecAllGather", group, name, _parts(values)):
    tensors, alone = _tensors(values)
    if not tensors:
      return _nothing("MxrecAllGather", group, name), tf.zeros([0, len(_groups.ranks_of(group))], tf.int64)
    attributes = _own_arguments(group, name)
  output, rows = _loader.ops.mxrec_all_gather(tensors, **attributes)
  results = note_line(list(output))
  rows = tf.ensure_shape(rows, [len(tensors), len(_groups.ranks_of(group))])
  return (results[0], rows[0]) if alone else (results, rows)


def broadcast(values: Any, root_rank: int, group: str = _groups.WORLD, name: str | None = None) -> Any:
  """The tensors of one rank, on all ranks. Any types, strings too.

  Args:
    values: a tensor, or a list of tensors.
    root_rank: the rank, in the group, whose tensors all get.
    group: name of the group of ranks.
    name: what the ranks call it; None: the name of the node.

  Returns:
    As `values`.

  Raises:
    ValueError: no such rank; an unknown group.
  """
  with before_asking("MxrecBroadcast", group, name, _parts(values)):
    size = len(_groups.ranks_of(group))
    if not isinstance(root_rank, int) or isinstance(root_rank, bool) or not 0 <= root_rank < size:
      raise ValueError(f"root_rank must be a rank of group {group!r}, 0 to {size - 1}: got {root_rank!r}")
    tensors, alone = _tensors(values)
    if not tensors:
      return _nothing("MxrecBroadcast", group, name)
    attributes = _own_arguments(group, name)
  results = note_line(list(_loader.ops.mxrec_broadcast(tensors, root_rank=root_rank, **attributes)))
  return results[0] if alone else results


def alltoall(value: Any, splits: Any = None, group: str = _groups.WORLD, name: str | None = None) -> tuple[tf.Tensor, tf.Tensor]:
  """Each rank sends rows of its tensor to each rank.

  Args:
    value: a tensor [n, ...].
    splits: [ranks] of integers, how many rows go to each rank, zeros allowed; None: the same number to each.
    group: name of the group of ranks.
    name: what the ranks call it; None: the name of the node.

  Returns:
    (the rows for this rank in the order of ranks, int64 [ranks] how many came from each).

  Raises:
    ValueError: a scalar; an unknown group.
  """
  with before_asking("MxrecAllToAll", group, name):
    value = tf.convert_to_tensor(value)
    splits = tf.zeros([0], tf.int64) if splits is None else tf.cast(splits, tf.int64)
    attributes = _own_arguments(group, name)
  output, received = _loader.ops.mxrec_all_to_all(value, splits, **attributes)
  note_line(output)
  return output, tf.ensure_shape(received, [len(_groups.ranks_of(group))])


def barrier(group: str = _groups.WORLD, name: str | None = None) -> Any:
  """Waits until all ranks are here. The op (None in eager mode, where it has run)."""
  return note_line(_loader.ops.mxrec_barrier(**_own_arguments(group, name)))


def join(group: str = _groups.WORLD, name: str | None = None) -> tf.Tensor:
  """Says that this rank has no more work, and waits for the others, to whose reductions it gives zeros until then.

  Returns:
    int32 scalar, the rank that joined last.
  """
  return note_line(_loader.ops.mxrec_join(**_own_arguments(group, name)))


def _of_given(gradients: Sequence[Any], compute: Callable[..., Any]) -> list[Any]:
  """compute(the gradients that are not None), put back in their places; the others stay None (outputs of integers)."""
  places = [place for place, gradient in enumerate(gradients) if gradient is not None]
  results: list[Any] = [None] * len(gradients)
  for place, result in zip(places, compute([tf.convert_to_tensor(gradients[place]) for place in places], places)):
    results[place] = result
  return results


def _check_sum(op: tf.Operation) -> None:
  if op.get_attr("reduction") != b"sum":
    raise LookupError(f"{op.name}: only sums and averages have a gradient, not the reduction {op.get_attr('reduction').decode()}")


@_ops.RegisterGradient("MxrecAllReduce")
def _allreduce_gradient(op: tf.Operation, *gradients: Any) -> list[Any]:
  _check_sum(op)
  names = ("reduction", "average", "prescale", "postscale", "wire", "group", "line")
  attributes = {attribute: op.get_attr(attribute) for attribute in names}
  name = _name_of_gradient(op) or ""
  return _of_given(gradients, lambda given, _: note_line(list(_loader.ops.mxrec_all_reduce(given, **attributes, tensor_name=name))))


@_ops.RegisterGradient("MxrecReduceScatter")
def _reducescatter_gradient(op: tf.Operation, *gradients: Any) -> list[Any]:
  _check_sum(op)
  group = op.get_attr("group").decode()
  factor = float(op.get_attr("prescale")) * float(op.get_attr("postscale"))
  if op.get_attr("average"):
    factor /= len(_groups.ranks_of(group))

  def compute(given: list[tf.Tensor], _: list[int]) -> list[tf.Tensor]:
    gathered, _ = allgather(given, group, _name_of_gradient(op))
    return [value if factor == 1 else value * tf.cast(factor, value.dtype) for value in gathered]

  return _of_given(gradients, compute)


@_ops.RegisterGradient("MxrecAllGather")
def _allgather_gradient(op: tf.Operation, *gradients: Any) -> list[Any]:
  group = op.get_attr("group").decode()
  me, rows = _me(group), op.outputs[-1]

  def compute(given: list[tf.Tensor], places: list[int]) -> list[tf.Tensor]:
    results = []
    for place, value in zip(places, allreduce(given, group=group, name=_name_of_gradient(op))):
      begin = tf.reduce_sum(rows[place, :me])
      results.append(value[begin : begin + rows[place, me]])
    return results

  return _of_given(gradients[:-1], compute)


@_ops.RegisterGradient("MxrecBroadcast")
def _broadcast_gradient(op: tf.Operation, *gradients: Any) -> list[Any]:
  group = op.get_attr("group").decode()

  def compute(given: list[tf.Tensor], _: list[int]) -> list[tf.Tensor]:
    summed = allreduce(given, group=group, name=_name_of_gradient(op))
    if _me(group) == op.get_attr("root_rank"):
      return summed
    with tf.control_dependencies(None if tf.executing_eagerly() else [value.op for value in summed]):
      return [tf.zeros_like(value) for value in summed]

  return _of_given(gradients, compute)


@_ops.RegisterGradient("MxrecAllToAll")
def _alltoall_gradient(op: tf.Operation, gradient: tf.Tensor, unused_received: Any) -> list[Any]:
  back, _ = alltoall(gradient, op.outputs[1], op.get_attr("group").decode(), _name_of_gradient(op))
  return [back, None]


def _me(group: str) -> int:
  return _groups.ranks_of(group).index(_groups.world().rank or 0)


def _name_of_gradient(op: tf.Operation) -> str | None:
  named = op.get_attr("tensor_name").decode()
  return f"{named}/gradient" if named else None
