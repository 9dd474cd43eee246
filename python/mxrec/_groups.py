"""Groups of ranks: Python's side of tf/kernels/hcom_groups.h. The world is found, and told to the library, on first use."""

from __future__ import annotations

import ctypes
import json

from mxrec import _loader, _world

WORLD = "hccl_world_group"


def _call(name: str, *arguments: object) -> None:
  """Calls a function that returns what is wrong as text; ValueError with that text."""
  function = getattr(_loader.c_library(), name)
  function.restype = ctypes.c_char_p
  text = function(*arguments)
  if text is not None:
    raise ValueError(text.decode())


def world() -> _world.World:
  """The world that the collective ops work in.

  Raises:
    ValueError: the environment is malformed, or tells of several ranks.
  """
  try:
    found = _world.require_one_rank("collectives")
  except RuntimeError as error:
    raise ValueError(str(error)) from error
  _call("mxrec_comm_configure", json.dumps({"rank": found.rank or 0, "size": found.size}).encode())
  return found


def add(group: str, ranks: list[int]) -> None:
  """Makes a group; ValueError for a name that is taken or ranks outside of the world."""
  world()
  _call("mxrec_hcom_add_group", group.encode(), (ctypes.c_int * len(ranks))(*ranks), len(ranks))


def remove(group: str) -> None:
  """Forgets a group; ValueError for the world's and unknown ones."""
  world()
  _call("mxrec_hcom_remove_group", group.encode())


def ranks_of(group: str) -> list[int]:
  """World ranks of a group, in its order; ValueError for an unknown one."""
  capacity = world().size
  if not isinstance(group, str):
    raise ValueError(f"group must be a string: got {group!r}")
  ranks, count = (ctypes.c_int * capacity)(), ctypes.c_int()
  _call("mxrec_hcom_find_group", group.encode(), ranks, capacity, ctypes.byref(count))
  return list(ranks[: count.value])
