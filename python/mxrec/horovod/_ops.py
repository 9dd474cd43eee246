"""The collective operations, for graphs, functions and eager mode.

In a graph an operation goes by the name of the tensor that it reduces, so ranks need not build their graphs in the same order, nor
the same other ops.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import tensorflow as tf

from mxrec import _collective, _slices
from mxrec.horovod import _basics
from mxrec.horovod._compression import Compression
from mxrec.horovod._process_sets import ProcessSet, global_process_set, process_set_by_id
from mxrec.horovod.common import exceptions

Average, Sum, Adasum, Min, Max, Product = range(6)
_REDUCTIONS = {Average: "sum", Sum: "sum", Adasum: "adasum", Min: "min", Max: "max", Product: "prod"}
_Result = TypeVar("_Result")
# Inside tf.function nothing here depends on values: AutoGraph need not rewrite it.
_as_it_is = tf.autograph.experimental.do_not_convert


def reduce_op(op: int | None, average: bool | None) -> int:
  """The reduction that the two arguments ask for; Average when neither does.

  Raises:
    ValueError: both are given; an unknown op.
  """
  if op is not None and average is not None:
    raise ValueError("op and average exclude each other: use op=hvd.Average or op=hvd.Sum")
  if op is None:
    return Sum if average is False else Average
  if isinstance(op, bool) or op not in _REDUCTIONS:
    raise ValueError(f"op must be hvd.Average, Sum, Adasum, Min, Max or Product: got {op!r}")
  return op


def group_of(process_set: ProcessSet) -> str:
  """Name of the group; ValueError when this rank is not in it, before init(), and when the set is not registered."""
  if not isinstance(process_set, ProcessSet):
    raise ValueError(f"process_set must be a ProcessSet: got {process_set!r}")
  if not process_set.included():
    raise ValueError(f"rank {_basics.rank()} is not in the process set with the ranks {process_set.ranks}")
  return process_set.group


def _check_adasum(op: int, process_set: ProcessSet) -> None:
  if op == Adasum and not _basics.check_num_rank_power_of_2(process_set.size() or 1):
    raise NotImplementedError(f"Adasum needs a power of 2 of ranks: there are {process_set.size()}")


def _before_asking(op_type: str, process_set: Any, name: str | None, parts: int = 1) -> contextlib.AbstractContextManager[None]:
  """What is raised inside is told to the other ranks of the process set, in eager mode (_collective.before_asking)."""
  group = ""
  with contextlib.suppress(ValueError, AttributeError):
    group = process_set.group
  return _collective.before_asking(op_type, group, name, parts)


def agreed_name(kind: str, tensor: Any, name: str | None, ignore_name_scope: bool = False) -> str | None:
  """What the ranks call an operation: unique in its graph, None in eager mode without a name."""
  if tf.executing_eagerly():
    return name
  if name is None:
    name = f"{kind}_{re.sub('[^a-zA-Z0-9_]', '_', tensor.name)}" if tensor is not None else kind
  if ignore_name_scope:
    return name
  return tf.compat.v1.get_default_graph().unique_name(re.sub(r"[^\w.\\/>-]", "_", name))


def _run(call: Callable[[], _Result]) -> _Result:
  """Calls; in eager mode the failure of a rank is HorovodInternalError."""
  try:
    return call()
  except exceptions.BROKEN as error:
    exceptions.raise_broken(error)
    raise


@_as_it_is
def allreduce(
  tensor: Any,
  average: bool | None = None,
  device_dense: str = "",
  device_sparse: str = "",
  compression: Any = Compression.none,
  op: int | None = None,
  prescale_factor: float = 1.0,
  postscale_factor: float = 1.0,
  name: str | None = None,
  process_set: ProcessSet = global_process_set,
) -> Any:
  """A tensor reduced over the ranks.

  Args:
    tensor: a tensor or what becomes one, of the same shape and type on all ranks; a variable; or tf.IndexedSlices, whose rows may
      differ in number: equal rows of a rank are summed before they travel, and the rows of all ranks follow each other.
    average: older form of op.
    device_dense, device_sparse: ignored.
    compression: Compression.none, fp16, bf16, or a Compressor of your own.
    op: Average (default; integers are rounded down), Sum, Min, Max, Product or Adasum.
    prescale_factor: each rank's values are multiplied by it first; integers are cut off towards zero.
    postscale_factor: the result is multiplied by it, likewise.
    name: what the ranks call it; None: after the tensor.
    process_set: the ranks that take part.

  Returns:
    As `tensor`.

  Raises:
    ValueError: a wrong argument; before init(); this rank is not in the process set.
    NotImplementedError: Adasum with another number of ranks than a power of 2; IndexedSlices with another op than Average and Sum.
    HorovodInternalError: in eager mode, a rank is gone.
  """
  with _before_asking("MxrecAllReduce", process_set, name):
    op = reduce_op(op, average)
  if isinstance(tensor, tf.IndexedSlices):
    return _allreduce_slices(tensor, op, prescale_factor, postscale_factor, name, process_set)
  values = _allreduce_all([tensor], op, compression, prescale_factor, postscale_factor, name, process_set, "HorovodAllreduce")
  return values[0]


@_as_it_is
def grouped_allreduce(
  tensors: Sequence[Any],
  average: bool | None = None,
  device_dense: str = "",
  device_sparse: str = "",
  compression: Any = Compression.none,
  op: int | None = None,
  prescale_factor: float = 1.0,
  postscale_factor: float = 1.0,
  process_set: ProcessSet = global_process_set,
  name: str | None = None,
) -> list[Any]:
  """Several tensors reduced over the ranks in one operation. Arguments and errors as allreduce.

  Returns:
    A list of as many tensors; IndexedSlices among them are reduced each alone.
  """
  tensors = list(tensors)
  with _before_asking("MxrecAllReduce", process_set, name, len(tensors)):
    op = reduce_op(op, average)
  results: list[Any] = [None] * len(tensors)
  dense = [index for index, tensor in enumerate(tensors) if not isinstance(tensor, tf.IndexedSlices)]
  for index, tensor in enumerate(tensors):
    if isinstance(tensor, tf.IndexedSlices):
      own = None if name is None else f"{name}_{index}"
      results[index] = _allreduce_slices(tensor, op, prescale_factor, postscale_factor, own, process_set)
  if dense or not tensors:
    reduced = _allreduce_all(
      [tensors[index] for index in dense],
      op,
      compression,
      prescale_factor,
      postscale_factor,
      name,
      process_set,
      "HorovodGroupedAllreduce",
    )
    for index, value in zip(dense, reduced):
      results[index] = value
  return results


def _allreduce_all(
  tensors: list[Any],
  op: int,
  compression: Any,
  prescale: float,
  postscale: float,
  name: str | None,
  process_set: ProcessSet,
  kind: str,
) -> list[tf.Tensor]:
  with _before_asking("MxrecAllReduce", process_set, name, len(tensors)):
    group = group_of(process_set)
    _check_adasum(op, process_set)
    values = [tf.convert_to_tensor(tensor) for tensor in tensors]
    name = agreed_name(kind, values[0] if values else None, name)
    values, prescale, after = _scaled_integers(values, prescale, postscale)
    postscale = 1.0 if after is not None else postscale
    wire = getattr(compression, "wire", None)
    if wire is not None and any(value.dtype != tf.float32 for value in values):
      wire = None
    contexts: list[Any] = []
    if wire is None:
      packed = [compression.compress(value) for value in values]
      values, contexts = [value for value, _ in packed], [context for _, context in packed]
  results = _run(
    lambda: _collective.allreduce(
      values,
      _REDUCTIONS[op],
      average=op == Average,
      prescale=prescale,
      postscale=postscale,
      wire=wire,
      group=group,
      name=name,
    )
  )
  if wire is None:
    results = [compression.decompress(value, context) for value, context in zip(results, contexts)]
  return list(results) if after is None else after(results)


def _scaled_integers(
  values: list[tf.Tensor], prescale: float, postscale: float
) -> tuple[list[tf.Tensor], float, Callable[[Sequence[Any]], list[Any]] | None]:
  """The collective operations scale floating values only. Where integers are to be scaled, it is done here, before and after them.

  Returns:
    (the values, the prescale factor that is left, None or what scales the results).
  """
  if (prescale, postscale) == (1, 1) or not any(value.dtype.is_integer for value in values):
    return values, prescale, None
  return [_scaled(value, prescale) for value in values], 1.0, lambda results: [_scaled(value, postscale) for value in results]


def _scaled(value: tf.Tensor, factor: float) -> tf.Tensor:
  """A value times a factor: of integers what double precision gives, cut off towards zero; float16 and bfloat16 in float32."""
  if factor == 1:
    return value
  wide = tf.float64 if value.dtype.is_integer else tf.float32 if value.dtype.size == 2 else value.dtype
  return tf.cast(tf.cast(value, wide) * tf.cast(factor, wide), value.dtype)


def _allreduce_slices(
  slices: tf.IndexedSlices, op: int, prescale: float, postscale: float, name: str | None, process_set: ProcessSet
) -> tf.IndexedSlices:
  if op not in (Average, Sum):
    raise NotImplementedError("tf.IndexedSlices take op=hvd.Average and hvd.Sum; sparse_as_dense=True takes every op")
  values, factor = slices.values, prescale * postscale
  if factor != 1:
    values = values * tf.cast(factor, values.dtype)
  name = agreed_name("HorovodAllgather", slices.values, name)
  scaled = tf.IndexedSlices(values, slices.indices, slices.dense_shape)
  return _run(lambda: _slices.allreduce(scaled, op == Average, group_of(process_set), name))


@_as_it_is
def allgather(
  tensor: Any, name: str | None = None, ignore_name_scope: bool = False, process_set: ProcessSet = global_process_set
) -> tf.Tensor:
  """The tensors of all ranks one after another.

  Args:
    tensor: [n, ...]; n may differ from rank to rank, the rest and the type may not.
    name: what the ranks call it; None: after the tensor.
    ignore_name_scope: the name is used as it is.
    process_set: the ranks that take part.

  Returns:
    [sum of all n, ...].

  Raises:
    ValueError: a scalar; before init(); this rank is not in the process set.
    HorovodInternalError: in eager mode, a rank is gone.
  """
  return grouped_allgather([tensor], name, ignore_name_scope, process_set, "HorovodAllgather")[0]


@_as_it_is
def grouped_allgather(
  tensors: Sequence[Any],
  name: str | None = None,
  ignore_name_scope: bool = False,
  process_set: ProcessSet = global_process_set,
  kind: str = "HorovodGroupedAllgather",
) -> list[tf.Tensor]:
  """Several tensors gathered in one operation. Arguments and errors as allgather."""
  with _before_asking("MxrecAllGather", process_set, name, len(tensors)):
    group = group_of(process_set)
    values = [tf.convert_to_tensor(tensor) for tensor in tensors]
    name = agreed_name(kind, values[0] if values else None, name, ignore_name_scope)
  results, _ = _run(lambda: _collective.allgather(values, group=group, name=name))
  return list(results)


@_as_it_is
def broadcast(
  tensor: Any,
  root_rank: int,
  name: str | None = None,
  ignore_name_scope: bool = False,
  process_set: ProcessSet = global_process_set,
) -> tf.Tensor:
  """The tensor of one rank, on all.

  Args:
    tensor: of the same shape and type on all ranks.
    root_rank: the rank, in the world, whose tensor all get.
    name: what the ranks call it; None: after the tensor.
    ignore_name_scope: the name is used as it is.
    process_set: the ranks that take part.

  Returns:
    As `tensor`.

  Raises:
    ValueError: no such rank; before init(); this rank is not in the process set.
    HorovodInternalError: in eager mode, a rank is gone.
  """
  return broadcast_all([tensor], root_rank, name, ignore_name_scope, process_set)[0]


@_as_it_is
def broadcast_all(
  tensors: Sequence[Any],
  root_rank: int,
  name: str | None = None,
  ignore_name_scope: bool = False,
  process_set: ProcessSet = global_process_set,
) -> list[tf.Tensor]:
  """Several tensors broadcast in one operation. Arguments and errors as broadcast."""
  with _before_asking("MxrecBroadcast", process_set, name, len(tensors)):
    group = group_of(process_set)
    ranks = process_set.ranks or []
    if isinstance(root_rank, bool) or root_rank not in ranks:
      raise ValueError(f"root_rank must be one of the ranks {ranks if len(ranks) < 20 else f'0 to {ranks[-1]}'}: got {root_rank!r}")
    values = [tf.convert_to_tensor(tensor) for tensor in tensors]
    name = agreed_name("HorovodBroadcast", values[0] if values else None, name, ignore_name_scope)
  return list(_run(lambda: _collective.broadcast(values, ranks.index(root_rank), group=group, name=name)))


@_as_it_is
def broadcast_(
  variables: Sequence[Any], root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Any:
  """Variables that all get the values of one rank, in place.

  Returns:
    In eager mode the variables; in a graph the tensors of their new values.
  """
  variables = list(variables)
  values = broadcast_all([read(variable) for variable in variables], root_rank, name, process_set=process_set)
  assigned = [variable.assign(value) for variable, value in zip(variables, values)]
  return variables if tf.executing_eagerly() else [tf.convert_to_tensor(value) for value in assigned]


def read(variable: Any) -> tf.Tensor:
  """The value of a variable of TensorFlow or Keras."""
  reader = getattr(variable, "read_value", None)
  return reader() if reader is not None else tf.convert_to_tensor(variable)


@_as_it_is
def alltoall(
  tensor: Any,
  splits: Any = None,
  name: str | None = None,
  ignore_name_scope: bool = False,
  process_set: ProcessSet = global_process_set,
) -> Any:
  """Each rank sends rows of its tensor to each rank.

  Args:
    tensor: [n, ...].
    splits: integers [ranks], how many rows go to each, zeros allowed; None: n / ranks to each.
    name: what the ranks call it; None: after the tensor.
    ignore_name_scope: the name is used as it is.
    process_set: the ranks that take part.

  Returns:
    The rows for this rank; with `splits` also int32 [ranks], how many came from each.

  Raises:
    ValueError: a scalar; before init(); this rank is not in the process set.
    InvalidArgumentError: when it runs, splits that do not add up to n.
    HorovodInternalError: in eager mode, a rank is gone.
  """
  with _before_asking("MxrecAllToAll", process_set, name):
    group = group_of(process_set)
    value = tf.convert_to_tensor(tensor)
    name = agreed_name("HorovodAlltoall", value, name, ignore_name_scope)
  output, received = _run(lambda: _collective.alltoall(value, splits, group=group, name=name))
  return output if splits is None else (output, tf.cast(received, tf.int32))


@_as_it_is
def reducescatter(
  tensor: Any,
  device_dense: str = "",
  compression: Any = Compression.none,
  op: int = Average,
  name: str | None = None,
  process_set: ProcessSet = global_process_set,
  prescale_factor: float = 1.0,
  postscale_factor: float = 1.0,
) -> tf.Tensor:
  """This rank's rows of a tensor reduced over the ranks; of n rows each rank gets n // ranks, the first n % ranks one more.

  Args:
    tensor: [n, ...], of the same shape and type on all ranks.
    device_dense: ignored.
    compression: as for allreduce.
    op: Average, Sum, Min, Max or Product.
    name: what the ranks call it; None: after the tensor.
    process_set: the ranks that take part.
    prescale_factor, postscale_factor: as for allreduce.

  Raises:
    ValueError: a scalar; a wrong argument; before init(); this rank is not in the process set.
    NotImplementedError: Adasum; tf.IndexedSlices.
    HorovodInternalError: in eager mode, a rank is gone.
  """
  values = grouped_reducescatter(
    [tensor], device_dense, compression, op, name, process_set, prescale_factor, postscale_factor, "HorovodReducescatter"
  )
  return values[0]


@_as_it_is
def grouped_reducescatter(
  tensors: Sequence[Any],
  device_dense: str = "",
  compression: Any = Compression.none,
  op: int = Average,
  name: str | None = None,
  process_set: ProcessSet = global_process_set,
  prescale_factor: float = 1.0,
  postscale_factor: float = 1.0,
  kind: str = "HorovodGroupedReducescatter",
) -> list[tf.Tensor]:
  """Several tensors reduced and scattered in one operation. Arguments and errors as reducescatter."""
  with _before_asking("MxrecReduceScatter", process_set, name, len(tensors)):
    op = reduce_op(op, None)
    if op == Adasum:
      raise NotImplementedError("reducescatter has no op=hvd.Adasum")
    if any(isinstance(tensor, tf.IndexedSlices) for tensor in tensors):
      raise NotImplementedError("reducescatter takes tensors, not tf.IndexedSlices")
    group = group_of(process_set)
    packed = [compression.compress(tf.convert_to_tensor(tensor)) for tensor in tensors]
    values = [value for value, _ in packed]
    name = agreed_name(kind, values[0] if values else None, name)
    values, prescale, after = _scaled_integers(values, prescale_factor, postscale_factor)
    postscale = 1.0 if after is not None else postscale_factor
  results = _run(
    lambda: _collective.reducescatter(
      values, _REDUCTIONS[op], average=op == Average, prescale=prescale, postscale=postscale, group=group, name=name
    )
  )
  results = [compression.decompress(value, context) for value, (_, context) in zip(results, packed)]
  return results if after is None else after(results)


def barrier(process_set: ProcessSet = global_process_set) -> None:
  """Waits, at once, in graph mode too, until all ranks are here.

  Raises:
    ValueError: before init(); this rank is not in the process set.
    HorovodInternalError: a rank is gone.
  """
  group = group_of(process_set)

  def build() -> tf.Tensor:
    waited = _collective.barrier(group=group, name="HorovodBarrier")
    with tf.control_dependencies([] if waited is None or tf.executing_eagerly() else [waited]):
      return tf.constant(0)

  _basics.run_now(build)


@_as_it_is
def join(process_set: ProcessSet = global_process_set) -> Any:
  """Says that this rank has no more work, and waits for the others, to whose reductions it gives zeros until then.

  Returns:
    The rank that joined last: an int in eager mode, else an int32 tensor.

  Raises:
    ValueError: before init().
    HorovodInternalError: in eager mode, a rank is gone.
  """
  group = group_of(process_set)
  last = _run(lambda: _collective.join(group=group, name="HorovodJoin"))
  return int(last) if tf.executing_eagerly() else last


# Numbers as ops


def size_op(process_set_id: int = 0, name: str | None = None) -> tf.Tensor:
  """int32 scalar: the number of ranks of a process set. ValueError before init()."""
  return tf.constant(process_set_by_id(process_set_id).size() if process_set_id else _basics.size(), tf.int32, name=name or "size")


def rank_op(name: str | None = None) -> tf.Tensor:
  """int32 scalar: rank(). ValueError before init()."""
  return tf.constant(_basics.rank(), tf.int32, name=name or "rank")


def local_size_op(name: str | None = None) -> tf.Tensor:
  """int32 scalar: local_size(). ValueError before init()."""
  return tf.constant(_basics.local_size(), tf.int32, name=name or "local_size")


def local_rank_op(name: str | None = None) -> tf.Tensor:
  """int32 scalar: local_rank(). ValueError before init()."""
  return tf.constant(_basics.local_rank(), tf.int32, name=name or "local_rank")


def process_set_included_op(process_set_id: int = 0, name: str | None = None) -> tf.Tensor:
  """int32 scalar: 1 when this rank is in the process set, else 0. ValueError before init(), or when there is no such set."""
  included = process_set_by_id(process_set_id).included() if process_set_id else bool(_basics.world())
  return tf.constant(int(bool(included)), tf.int32, name=name or "process_set_included")
