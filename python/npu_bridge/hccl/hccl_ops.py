"""Collective operations between ranks, as graph ops (HcomAllReduce, ...), all stateful.

In one process each is a copy, with every check of its arguments. Wrong attributes and shapes are a ValueError when the op is built.
Every rank of the group has to run an op of the same name, in any order: ops are matched by the names of their nodes. What the ranks
disagree on is an InvalidArgumentError on all of them; a rank that is gone, or silent for too long, an InternalError that names it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow.compat.v1 as tf
from tensorflow.python.framework import ops as _ops

from mxrec import _collective, _groups, _loader

_GROUP = _groups.WORLD


def allreduce(tensor: Any, reduction: str, fusion: int = 1, fusion_id: int = -1, group: str = _GROUP) -> tf.Tensor:
  """The reduction of the tensors of all ranks, the same on each. Its gradient is the sum over ranks of the incoming one.

  Args:
    tensor: int8, int16, int32, int64, float16, bfloat16, float32 or float64; a list of one tensor stands for that tensor.
    reduction: "min", "max", "prod" or "sum".
    fusion: 0 none, 1 by the gradient split strategy, 2 with ops of the same fusion_id. A hint: small ones that are ready at
      the same time travel together, whatever it says.
    fusion_id: from 0 on with fusion 2.
    group: name of the group.

  Returns:
    A tensor of the same type and shape.

  Raises:
    ValueError: a wrong argument.
    TypeError: another type.
  """
  if isinstance(tensor, (list, tuple)):
    if len(tensor) != 1:
      raise ValueError(f"allreduce takes a tensor, or a list of one: got a list of {len(tensor)}")
    (tensor,) = tensor
  return _allreduce(tensor, reduction, False, fusion, fusion_id, group)


def mean(tensor: Any, fusion: int = 1, fusion_id: int = -1, group: str = _GROUP) -> tf.Tensor:
  """The sum of the tensors of all ranks over their number, in one op; arguments as for allreduce.

  Half-precision values are divided before they are rounded to their type, so a sum that it cannot hold does no harm. Integers are
  rounded down.
  """
  return _allreduce(tensor, "sum", True, fusion, fusion_id, group)


def _allreduce(tensor: Any, reduction: str, average: bool, fusion: int, fusion_id: int, group: str) -> tf.Tensor:
  _groups.ranks_of(group)
  return _collective.note_line(
    _loader.ops.hcom_all_reduce(tensor, reduction=reduction, average=average, fusion=fusion, fusion_id=fusion_id, group=group)
  )


@_ops.RegisterGradient("HcomAllReduce")
def _allreduce_gradient(op: tf.Operation, gradient: tf.Tensor) -> tf.Tensor:
  return _allreduce(gradient, "sum", op.get_attr("average"), 0, -1, op.get_attr("group").decode())


def allgather(tensor: Any, rank_size: int, *positional: Any, **named: Any) -> tf.Tensor:
  """The tensors of all ranks, one after another along the first dimension in the order of ranks.

  Releases of the original differ in the order of the last three arguments. Both are taken, told apart by the third being a string
  or not: (tensor, rank_size, group="hccl_world_group", fusion=0, fusion_id=-1) and (tensor, rank_size, fusion, fusion_id, group).

  Args:
    tensor: numeric, of rank 1 or more and the same shape on all ranks.
    rank_size: size of the group.
    *positional: group, fusion and fusion_id in one of the two orders; fusion 0 or 2, fusion_id from 0 on with fusion 2.
    **named: the same by their names.

  Returns:
    [rank_size * n, ...] for a tensor [n, ...].

  Raises:
    ValueError: a wrong argument.
    TypeError: an argument too many, twice, or unknown.
  """
  group_first = not positional or isinstance(positional[0], str)
  order = ("group", "fusion", "fusion_id") if group_first else ("fusion", "fusion_id", "group")
  if len(positional) > len(order):
    raise TypeError(f"allgather takes at most 5 arguments: got {len(positional) + 2}")
  arguments = dict(zip(order, positional))
  for name, value in named.items():
    if name not in order or name in arguments:
      raise TypeError(f"allgather got {'twice the' if name in order else 'an unknown'} argument {name!r}")
    arguments[name] = value
  arguments = {"group": _GROUP, "fusion": 0, "fusion_id": -1, **arguments}
  _groups.ranks_of(arguments["group"])
  return _collective.note_line(_loader.ops.hcom_all_gather(tensor, rank_size=rank_size, **arguments))


def broadcast(tensor: Sequence[Any], root_rank: int, fusion: int = 2, fusion_id: int = 0, group: str = _GROUP) -> list[tf.Tensor]:
  """The tensors of one rank, on all ranks. Variables among them are assigned to whenever their result is run.

  Args:
    tensor: list of tensors and variables of any types.
    root_rank: the rank, in the group, whose values all get.
    fusion: 0 or 2.
    fusion_id: from 0 on with fusion 2.
    group: name of the group.

  Returns:
    A list of as many tensors. A variable has its new value when its result has run.

  Raises:
    ValueError: no list, or a wrong argument.
  """
  size = len(_groups.ranks_of(group))
  if not isinstance(tensor, (list, tuple)) or not tensor:
    raise ValueError(f"broadcast takes a list of tensors: got {tensor!r}")
  _check_member("root_rank", root_rank, size, group)
  results = _collective.note_line(
    list(
      _loader.ops.hcom_broadcast(
        [tf.convert_to_tensor(value) for value in tensor], root_rank=root_rank, fusion=fusion, fusion_id=fusion_id, group=group
      )
    )
  )
  return [_assigned(value, result) for value, result in zip(tensor, results)]


def _assigned(value: Any, result: tf.Tensor) -> tf.Tensor:
  """The result of a broadcast; for a variable, one that assigns it first."""
  if isinstance(value, tf.Tensor) or not hasattr(value, "assign"):
    return result
  with tf.name_scope("broadcast_to_variable"):
    assigned = value.assign(result)
    with tf.control_dependencies([assigned.op if hasattr(assigned, "op") else tf.group(*assigned)]):
      return tf.identity(result)


def _check_member(label: str, rank: Any, size: int, group: str) -> None:
  if not isinstance(rank, int) or isinstance(rank, bool) or not 0 <= rank < size:
    raise ValueError(f"{label} must be a rank of group {group!r}, 0 to {size - 1}: got {rank!r}")


def reduce(tensor: Any, reduction: str, root_rank: int, fusion: int = 0, fusion_id: int = -1, group: str = _GROUP) -> tf.Tensor:
  """The reduction of the tensors of all ranks, on one rank; the others get their own tensor back.

  Args:
    tensor: as for allreduce.
    reduction: "min", "max", "prod" or "sum".
    root_rank: the rank, in the group, that gets the result.
    fusion: 0 or 2.
    fusion_id: from 0 on with fusion 2.
    group: name of the group.

  Returns:
    A tensor of the same type and shape.

  Raises:
    ValueError: a wrong argument.
  """
  _check_member("root_rank", root_rank, len(_groups.ranks_of(group)), group)
  return _collective.note_line(
    _loader.ops.hcom_reduce(tensor, reduction=reduction, root_rank=root_rank, fusion=fusion, fusion_id=fusion_id, group=group)
  )


def reduce_scatter(
  tensor: Any, reduction: str, rank_size: int, group: str = _GROUP, fusion: int = 0, fusion_id: int = -1
) -> tf.Tensor:
  """This rank's part of the reduction of the tensors of all ranks.

  Args:
    tensor: as for allreduce, [n, ...] with n divisible by rank_size.
    reduction: "min", "max", "prod" or "sum".
    rank_size: size of the group.
    group: name of the group.
    fusion: 0 or 2.
    fusion_id: from 0 on with fusion 2.

  Returns:
    [n / rank_size, ...].

  Raises:
    ValueError: a wrong argument.
  """
  _groups.ranks_of(group)
  return _collective.note_line(
    _loader.ops.hcom_reduce_scatter(
      tensor, reduction=reduction, rank_size=rank_size, group=group, fusion=fusion, fusion_id=fusion_id
    )
  )


def send(tensor: Any, sr_tag: int, dest_rank: int, group: str = _GROUP) -> tf.Operation:
  """Sends a tensor to another rank, whose `receive` has the same tag.

  Args:
    tensor: numeric.
    sr_tag: pairs send and receive.
    dest_rank: the rank, in the group, that receives; another than this one.
    group: name of the group.

  Returns:
    An operation without outputs.

  Raises:
    ValueError: a wrong argument. When it runs, InvalidArgumentError in a group of one rank.
  """
  _groups.ranks_of(group)
  return _collective.note_line(_loader.ops.hcom_send(tensor, sr_tag=sr_tag, dest_rank=dest_rank, group=group))


def receive(shape: Any, data_type: Any, sr_tag: int, src_rank: int, group: str = _GROUP) -> tf.Tensor:
  """Receives a tensor from another rank, whose `send` has the same tag.

  Args:
    shape: its shape, fully defined.
    data_type: its type.
    sr_tag: pairs send and receive.
    src_rank: the rank, in the group, that sends; another than this one.
    group: name of the group.

  Returns:
    A tensor of that type and shape.

  Raises:
    ValueError: a wrong argument. When it runs, InvalidArgumentError in a group of one rank.
  """
  _groups.ranks_of(group)
  return _collective.note_line(
    _loader.ops.hcom_receive(T=tf.as_dtype(data_type), shape=shape, sr_tag=sr_tag, src_rank=src_rank, group=group)
  )


def all_to_all_v(
  send_data: Any, send_counts: Any, send_displacements: Any, recv_counts: Any, recv_displacements: Any, group: str = _GROUP
) -> tf.Tensor:
  """Each rank sends a part of its data to each rank.

  Args:
    send_data: numeric; taken as one row of elements.
    send_counts: int64 [ranks], how many elements go to each.
    send_displacements: int64 [ranks], where they begin.
    recv_counts: int64 [ranks], how many elements come from each.
    recv_displacements: int64 [ranks], where they begin in the result.
    group: name of the group.

  Returns:
    [n] of the same type, up to the end of the part that ends last.

  Raises:
    ValueError: wrong shapes. When it runs, InvalidArgumentError for counts that do not fit.
  """
  _groups.ranks_of(group)
  return _collective.note_line(
    _loader.ops.hcom_all_to_all_v(send_data, send_counts, send_displacements, recv_counts, recv_displacements, group=group)
  )


def all_to_all_v_c(
  send_data: Any, send_count_matrix: Any, rank: int, fusion: int = 0, fusion_id: int = -1, group: str = _GROUP
) -> tf.Tensor:
  """As all_to_all_v, with one matrix of all counts; parts follow each other without gaps.

  Args:
    send_data: numeric; taken as one row of elements.
    send_count_matrix: int64 [ranks, ranks]; row i, column j: how many elements go from rank i to rank j.
    rank: this rank.
    fusion: 0 or 2.
    fusion_id: from 0 on with fusion 2.
    group: name of the group.

  Returns:
    [n] of the same type, n the sum of column `rank`.

  Raises:
    ValueError: wrong shapes. When it runs, InvalidArgumentError for counts that do not fit.
  """
  _check_member("rank", rank, len(_groups.ranks_of(group)), group)
  return _collective.note_line(
    _loader.ops.hcom_all_to_all_vc(send_data, send_count_matrix, rank=rank, fusion=fusion, fusion_id=fusion_id, group=group)
  )


# The titles of the original's documentation.
alltoallv = all_to_all_v
alltoallvc = all_to_all_v_c
gather = allgather


def gather_all_to_all_v(
  addrinfo: Any,
  addrinfo_count_per_rank: Any,
  recv_counts: Any,
  recv_displacements: Any,
  dtype: Any,
  addr_length: Any,
  group: str = _GROUP,
) -> tuple[tf.Tensor, tf.Tensor]:
  """Reads device memory by its address. NotImplementedError: there is none here."""
  raise NotImplementedError("hccl_ops.gather_all_to_all_v reads device memory by its address, which this platform does not have")


def remote_read(tensorRemote: Any, data_type: Any) -> tf.Tensor:
  """Reads another rank's device memory. NotImplementedError: there is none here."""
  raise NotImplementedError("hccl_ops.remote_read needs RDMA between devices, which this platform does not have")


def remote_ref_read(tensorRemote: Any, cache: Any, offset: Any) -> tf.Tensor:
  """Reads another rank's device memory. NotImplementedError: there is none here."""
  raise NotImplementedError("hccl_ops.remote_ref_read needs RDMA between devices, which this platform does not have")


def remote_write(tensorRemote: Any, tensorLocal: Any, data_type: Any) -> tf.Operation:
  """Writes another rank's device memory. NotImplementedError: there is none here."""
  raise NotImplementedError("hccl_ops.remote_write needs RDMA between devices, which this platform does not have")


def remote_scatter_write(tensorRemote: Any, tensorLocal: Any, offset: Any) -> tf.Operation:
  """Writes another rank's device memory. NotImplementedError: there is none here."""
  raise NotImplementedError("hccl_ops.remote_scatter_write needs RDMA between devices, which this platform does not have")
