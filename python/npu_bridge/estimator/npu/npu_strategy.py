"""The distribution strategy of migrated scripts: one device here, as many replicas as there are ranks."""

from __future__ import annotations

from typing import Any

from hccl.manage import api as _manage
from tensorflow.python.distribute import distribute_lib, one_device_strategy


class NPUStrategy(distribute_lib.StrategyV1):
  """A strategy of one device in each process, whose replicas are the ranks, and which shards datasets among them.

  Args:
    device: "/cpu:0".

  Raises:
    ValueError: another device.
  """

  def __init__(self, device: str = "/cpu:0") -> None:
    if device != "/cpu:0":
      raise ValueError(f"device of NPUStrategy must be /cpu:0: got {device!r}")
    super().__init__(_Extended(self, device))


class _Extended(one_device_strategy.OneDeviceExtended):
  """One device, `get_rank_size()` replicas."""

  @property
  def _num_replicas_in_sync(self) -> int:
    return _manage.get_rank_size()

  def _shard(self, dataset: Any) -> Any:
    size = _manage.get_rank_size()
    return dataset.shard(size, _manage.get_rank_id()) if size > 1 else dataset

  def _make_dataset_iterator(self, dataset: Any) -> Any:
    return super()._make_dataset_iterator(self._shard(dataset))

  def _experimental_distribute_dataset(self, dataset: Any, options: Any) -> Any:
    return super()._experimental_distribute_dataset(self._shard(dataset), options)
