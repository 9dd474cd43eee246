"""Data parallelism of TensorFlow 2 scripts, in eager mode and in graphs. In one process each function hands on what it is given."""

from __future__ import annotations

from typing import Any

from hccl.manage import api as _manage


def broadcast(values: Any, root_rank: int = 0, fusion: int = 2, fusion_id: int = 0, group: str = "hccl_world_group") -> Any:
  """Gives variables the values they have on a rank.

  Args:
    values: a variable, or a list of them.
    root_rank: the rank, in the group, whose values all get.
    fusion: 0 or 2.
    fusion_id: from 0 on with fusion 2.
    group: name of the group.

  Returns:
    None in eager mode and with one rank; in a graph, the op that does it.

  Raises:
    ValueError: no such rank, or an unknown group.
  """
  _manage.get_world_rank_from_group_rank(group, root_rank)
  if _manage.get_rank_size(group) == 1:
    return None
  import tensorflow as tf
  from npu_bridge.hccl import hccl_ops

  results = hccl_ops.broadcast(list(values) if isinstance(values, (list, tuple)) else [values], root_rank, fusion, fusion_id, group)
  return None if tf.executing_eagerly() else tf.group(*results)


def all_reduce(values: Any, reduction: str = "mean", fusion: int = 1, fusion_id: int = -1, group: str = "hccl_world_group") -> Any:
  """The reduction of values over the ranks: the values themselves in one process.

  Args:
    values: a tensor, or a list of them.
    reduction: "mean", "sum", "max", "min" or "prod".
    fusion: 0, 1 or 2.
    fusion_id: from 0 on with fusion 2.
    group: name of the group.

  Raises:
    ValueError: another reduction; an unknown group.
  """
  if reduction not in ("mean", "sum", "max", "min", "prod"):
    raise ValueError(f"reduction must be mean, sum, max, min or prod: got {reduction!r}")
  if _manage.get_rank_size(group) == 1:
    return values
  from npu_bridge.estimator.npu import npu_optimizer

  return npu_optimizer.npu_allreduce(values, reduction, fusion, fusion_id, group)


def npu_distributed_keras_optimizer_wrapper(optimizer: Any, reduction: str = "mean", **fusion: Any) -> Any:
  """An optimizer that reduces its gradients over the ranks: the optimizer itself in one process.

  Args:
    optimizer: of Keras.
    reduction: "mean".
    **fusion: accepted.

  Raises:
    ValueError: another reduction with several ranks.
  """
  if _manage.get_rank_size() == 1:
    return optimizer
  if reduction != "mean":
    raise ValueError(f"reduction of npu_distributed_keras_optimizer_wrapper must be mean: got {reduction!r}")
  from npu_bridge.estimator.npu import npu_optimizer

  return npu_optimizer.npu_distributed_optimizer_wrapper(optimizer)


def shard_and_rebatch_dataset(dataset: Any, global_bs: int) -> tuple[Any, int]:
  """This rank's part of a dataset, and its batch size.

  Args:
    dataset: a dataset of single elements.
    global_bs: the batch size over all ranks, divisible by their number.

  Returns:
    (dataset, batch size of this rank).

  Raises:
    ValueError: the batch size is not divisible.
  """
  size = _manage.get_rank_size()
  if global_bs % size != 0:
    raise ValueError(f"global_bs must be divisible by the number of ranks, {size}: got {global_bs}")
  return (dataset.shard(size, _manage.get_rank_id()) if size > 1 else dataset), global_bs // size
