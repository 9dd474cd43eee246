"""Groups of ranks: make, destroy, ask. Works before and after the collective runtime is started; one process is rank 0 of 1.

Every failure is a ValueError, so also several ranks that cannot find each other. Making a group of several ranks meets them.
"""

from __future__ import annotations

from typing import Any

from mxrec import _groups

MAX_GROUP_NAME_LEN = 127
HCCL_WORLD_GROUP = _groups.WORLD


def _check_group(group: Any) -> str:
  if not isinstance(group, str) or not 0 < len(group.encode()) <= MAX_GROUP_NAME_LEN or "\0" in group:
    raise ValueError(f"group must be a string of 1 to {MAX_GROUP_NAME_LEN} bytes: got {group!r}")
  return group


def _check_rank(label: str, rank: Any) -> int:
  if not isinstance(rank, int) or isinstance(rank, bool) or rank < 0:
    raise ValueError(f"{label} must be an int of at least 0: got {rank!r}")
  return rank


def create_group(group: str, rank_num: int, rank_ids: list[int]) -> None:
  """Makes a group of ranks. Every member has to call it.

  Args:
    group: its name, 1 to 127 bytes.
    rank_num: how many ranks it has.
    rank_ids: their world ranks, in the order of the group.

  Raises:
    ValueError: a wrong argument, a name that is taken (the world's is `hccl_world_group`), a rank outside of the world.
  """
  _check_group(group)
  if not isinstance(rank_num, int) or isinstance(rank_num, bool) or rank_num <= 0:
    raise ValueError(f"rank_num must be an int above 0: got {rank_num!r}")
  if not isinstance(rank_ids, list):
    raise ValueError(f"rank_ids must be a list: got {type(rank_ids).__name__}")
  if len(rank_ids) != rank_num:
    raise ValueError(f"rank_ids must have rank_num = {rank_num} entries: got {len(rank_ids)}")
  for rank in rank_ids:
    _check_rank("rank_ids", rank)
    if rank >= 1 << 31:
      raise ValueError(f"rank_ids must be below 2**31: got {rank}")
  _groups.add(group, rank_ids)


def destroy_group(group: str) -> None:
  """Forgets a group. ValueError for a bad or unknown name, and for the world's group."""
  _groups.remove(_check_group(group))


def get_rank_size(group: str = HCCL_WORLD_GROUP) -> int:
  """The number of ranks of a group; 1 in one process. ValueError for a bad or unknown name."""
  return len(_groups.ranks_of(_check_group(group)))


def get_rank_id(group: str = HCCL_WORLD_GROUP) -> int:
  """This process's rank in a group; 0 in one process. ValueError for a bad or unknown name, or if it is no member."""
  return get_group_rank_from_world_rank(_groups.world().rank or 0, group)


def get_local_rank_size(group: str = HCCL_WORLD_GROUP) -> int:
  """How many ranks of a group are on this machine; 1 in one process. ValueError as get_rank_size."""
  return _groups.place_here(_check_group(group))[1]


def get_local_rank_id(group: str = HCCL_WORLD_GROUP) -> int:
  """This process's place among the ranks of a group on this machine; 0 in one process. ValueError as get_rank_id."""
  get_rank_id(group)
  return _groups.place_here(group)[0]


def get_world_rank_from_group_rank(group: str, group_rank_id: int) -> int:
  """The world rank of a rank of a group. ValueError for a bad or unknown name, and for a rank the group does not have."""
  ranks = _groups.ranks_of(_check_group(group))
  if _check_rank("group_rank_id", group_rank_id) >= len(ranks):
    raise ValueError(f"group_rank_id must be below the size of group {group!r}, {len(ranks)}: got {group_rank_id}")
  return ranks[group_rank_id]


def get_group_rank_from_world_rank(world_rank_id: int, group: str) -> int:
  """The rank in a group of a world rank. ValueError for a bad or unknown name, and for a rank that is no member."""
  ranks = _groups.ranks_of(_check_group(group))
  if _check_rank("world_rank_id", world_rank_id) not in ranks:
    raise ValueError(f"world_rank_id {world_rank_id} is not in group {group!r}, which has the world ranks {ranks}")
  return ranks.index(world_rank_id)
