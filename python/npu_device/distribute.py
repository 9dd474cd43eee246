"""Data parallelism of TensorFlow 2 scripts. In one process each function hands on what it is given."""

from __future__ import annotations

from typing import Any

from hccl.manage import api as _manage


def broadcast(values: Any, root_rank: int = 0, fusion: int = 2, fusion_id: int = 0, group: str = "hccl_world_group") -> None:
  """Gives variables the values they have on a rank. ValueError with several ranks, or no such rank."""
  _manage.get_world_rank_from_group_rank(group, root_rank)


def all_reduce(values: Any, reduction: str = "mean", fusion: int = 1, fusion_id: int = -1, group: str = "hccl_world_group") -> Any:
  """The reduction of values over the ranks: the values themselves in one process.

  Raises:
    ValueError: another reduction than "mean", "sum", "max", "min" or "prod"; several ranks.
  """
  if reduction not in ("mean", "sum", "max", "min", "prod"):
    raise ValueError(f"reduction must be mean, sum, max, min or prod: got {reduction!r}")
  _manage.get_rank_size(group)
  return values


def npu_distributed_keras_optimizer_wrapper(optimizer: Any, reduction: str = "mean", **fusion: Any) -> Any:
  """An optimizer that averages its gradients over the ranks: the optimizer itself in one process. ValueError with several ranks."""
  _manage.get_rank_size()
  return optimizer


def shard_and_rebatch_dataset(dataset: Any, global_bs: int) -> tuple[Any, int]:
  """This rank's part of a dataset, and its batch size.

  Args:
    dataset: a dataset of single elements.
    global_bs: the batch size over all ranks, divisible by their number.

  Returns:
    (dataset, batch size of this rank).

  Raises:
    ValueError: the batch size is not divisible; several ranks.
  """
  size = _manage.get_rank_size()
  if global_bs % size != 0:
    raise ValueError(f"global_bs must be divisible by the number of ranks, {size}: got {global_bs}")
  return (dataset.shard(size, _manage.get_rank_id()) if size > 1 else dataset), global_bs // size
