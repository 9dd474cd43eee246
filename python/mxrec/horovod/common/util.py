"""Helpers of horovod.common.util that scripts call."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mxrec.horovod._basics import check_extension, gloo_built, is_homogeneous, mpi_built, mpi_enabled, nccl_built

__all__ = ["check_extension", "gloo_built", "is_homogeneous", "mpi_built", "mpi_enabled", "nccl_built", "split_list"]


def split_list(values: Sequence[Any], parts: int) -> list[list[Any]]:
  """A list cut into `parts` lists of nearly equal length, the longer ones first."""
  size, more = divmod(len(values), parts)
  found, begin = [], 0
  for index in range(parts):
    end = begin + size + (index < more)
    found.append(list(values[begin:end]))
    begin = end
  return found
