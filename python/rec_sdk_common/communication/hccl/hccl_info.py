"""Rank, number of ranks and device of this process. All work before `mxrec.init` and need no environment variable."""

import os

from mxrec.config import get_local_rank_size, get_rank_id, get_rank_size

__all__ = ["get_device_id", "get_local_rank_size", "get_rank_id", "get_rank_size"]


def get_device_id() -> int:
  """The device that `mxrec.init` named in ASCEND_DEVICE_ID; 0 before it. CPUs have no devices to choose from."""
  return int(os.environ.get("ASCEND_DEVICE_ID", "0"))
