"""The world and its groups of ranks: Python's side of tf/comm_runtime.h and tf/kernels/hcom_groups.h.

The world is found, and told to the library, on first use. Connections are made by the first collective that runs, by `start`, or by
a group of several ranks.
"""

from __future__ import annotations

import atexit
import ctypes
import dataclasses
import json
from typing import Any

from mxrec import _loader, _world

WORLD = "hccl_world_group"
_told: str | None = None
_leaves_at_exit = False


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
    ValueError: the environment is malformed, or tells of several ranks that cannot find each other.
  """
  global _told
  try:
    found = _world.resolve()
  except RuntimeError as error:
    raise ValueError(str(error)) from error
  options = json.dumps(_options(found))
  if options != _told:
    _call("mxrec_comm_configure", options.encode())
    _told = options
  if found.size > 1:
    _leave_at_exit()
  return found


def _options(found: _world.World) -> dict[str, Any]:
  """The options of the communicator, as tf/kernels/comm_c_api.cc reads them."""
  options: dict[str, Any] = {"rank": found.rank or 0, "size": found.size}
  if found.size == 1:
    return options
  from mxrec import _peers

  for name in ("local_rank", "local_size", "chief_port", "store_path", "secret", "bind_host", "job", "transport"):
    options[name] = getattr(found, name)
  options["local_rank"] = options["local_rank"] or 0
  options["chief_host"] = found.chief_host or _world.LOOPBACK
  for name, value in dataclasses.asdict(_peers.limits()).items():
    if isinstance(value, float):
      options[name] = round(value * 1000)  # seconds
    elif value is not None:
      options[name] = value
  return options


def _leave_at_exit() -> None:
  global _leaves_at_exit
  if not _leaves_at_exit:
    _leaves_at_exit = True
    atexit.register(_loader.c_library().mxrec_comm_leave)


def start() -> None:
  """Meets the other ranks, if that has not happened yet. RuntimeError when they do not come; ValueError as world()."""
  world()
  try:
    _call("mxrec_comm_start")
  except ValueError as error:
    raise RuntimeError(str(error)) from error


def shutdown() -> None:
  """Waits until the other ranks call this too, and ends the collective runtime; the next collective starts it again."""
  _loader.c_library().mxrec_comm_shutdown()


def health() -> str | None:
  """Why the collective runtime is broken; None when it is not."""
  try:
    _call("mxrec_comm_health")
  except ValueError as error:
    return str(error)
  return None


def statistics() -> dict[str, int]:
  """What this rank's communicator has done so far (CommStats of mxrec/comm/communicator.h); zeros where there is none."""
  names = ("operations", "fused_buffers", "agreements", "full_requests", "control_bytes", "data_bytes", "data_parts")
  values = (ctypes.c_uint64 * len(names))()
  _loader.c_library().mxrec_comm_stats(values, len(names))
  return dict(zip(names, values))


def add(group: str, ranks: list[int]) -> None:
  """Makes a group; ValueError for a name that is taken, ranks outside of the world, or other ranks that gave another list."""
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


def _ranks_here() -> list[int]:
  """The ranks of the world that are on this machine."""
  found = world()
  if found.here:
    return list(found.here)
  rank = found.rank or 0
  if found.local_size in (1, found.size):
    return [rank] if found.local_size == 1 else list(range(found.size))
  start()
  machines = (ctypes.c_int * found.size)()
  _call("mxrec_comm_machines", machines, found.size)
  same = [other for other in range(found.size) if machines[other] == machines[rank]]
  if len(same) == found.local_size:
    return same
  # What started the ranks counts machines in another way (containers of one host, say): then those of a machine follow each other.
  first = rank - (found.local_rank or 0)
  return list(range(first, first + found.local_size))


def place_here(group: str) -> tuple[int, int]:
  """This process's place among the ranks of a group on this machine, -1 where it is no member, and their number.

  For another group than the world's the ranks meet first, unless a rank table says who is where.
  """
  ranks = ranks_of(group)
  found = world()
  if group == WORLD:
    return found.local_rank or 0, found.local_size
  here = set(_ranks_here())
  members = [rank for rank in ranks if rank in here]
  return members.index(found.rank or 0) if (found.rank or 0) in members else -1, len(members)


def refuse(group: str, name: str, parts: int, why: str) -> None:
  """Tells the other ranks of a group that this one does not take part in the operation of that name and number of tensors."""
  function = _loader.c_library().mxrec_comm_refuse
  function.restype = None
  function(group.encode(), name.encode(), ctypes.c_int(parts), why.encode())
