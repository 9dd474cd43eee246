"""Which rank this process is, and of how many: the one place that reads it from the environment.

The first of these that is there counts:

1. RANK_TABLE_FILE and RANK_ID: a rank table in JSON, in each of the three forms in use.
2. RANK_SIZE and RANK_ID.
3. CM_WORKER_SIZE; the chief hands out the ranks.
4. OMPI_COMM_WORLD_*, as mpirun sets it, or PMI_*.
5. Nothing: one process.

Sizes that contradict each other are an error: whoever is right, the other processes would be trained apart.
"""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
from collections.abc import Mapping
from typing import Any

MAX_RANKS = 32768


@dataclasses.dataclass(frozen=True)
class World:
  """This process among the others. `rank` is None where several ranks do not say which one this is."""

  rank: int | None = 0
  size: int = 1
  local_rank: int | None = 0
  local_size: int = 1
  source: str = "one process"


def number(environment: Mapping[str, str], variable: str, low: int, high: int = MAX_RANKS) -> int | None:
  """A variable's value, None when it is not set or empty; ValueError when it is no number or out of its range."""
  text = environment.get(variable, "").strip()
  if not text:
    return None
  if not (text.isascii() and text.isdigit()) or not low <= int(text) <= high:
    raise ValueError(f"environment variable {variable} must be {low} to {high}: got {text!r}")
  return int(text)


def _rows_of(table: Any) -> list[tuple[int, str]]:
  """(rank, server) of every entry of a rank table, in any of its forms."""
  rows = []
  if "server_list" in table:
    for server in table["server_list"]:
      rows += [(int(device["rank_id"]), str(server.get("server_id", ""))) for device in server["device"]]
  elif "group_list" in table:
    for group in table["group_list"]:
      for instance in group["instance_list"]:
        rank = instance.get("rank_id", len(rows))
        rows += [(int(device.get("rank_id", rank)), str(instance.get("server_id", ""))) for device in instance["devices"]]
  elif "rank_list" in table:
    rows = [(int(entry["rank_id"]), str(entry.get("server_id", ""))) for entry in table["rank_list"]]
  else:
    raise ValueError("expected server_list, group_list or rank_list")
  return sorted(rows)


def _read_table(path: str) -> list[tuple[int, str]]:
  try:
    rows = _rows_of(json.loads(pathlib.Path(path).read_text(encoding="utf-8")))
  except OSError as error:
    raise ValueError(f"environment variable RANK_TABLE_FILE: {path} cannot be read: {error.strerror}") from error
  except (KeyError, TypeError, AttributeError, ValueError) as error:
    raise ValueError(f"environment variable RANK_TABLE_FILE: {path} is not a rank table: {error}") from error
  if [rank for rank, _ in rows] != list(range(len(rows))) or not rows:
    raise ValueError(
      f"environment variable RANK_TABLE_FILE: {path} must name the ranks 0, 1, ... once each: found {[rank for rank, _ in rows]}"
    )
  return rows


def _rank(environment: Mapping[str, str], size: int, source: str) -> int | None:
  rank = number(environment, "RANK_ID", 0)
  if rank is None:
    return 0 if size == 1 else None
  if rank >= size:
    raise ValueError(f"environment variable RANK_ID must be below the number of ranks, {size} by {source}: got {rank}")
  return rank


def find(environment: Mapping[str, str] = os.environ) -> World:
  """Reads the world from environment variables.

  Raises:
    ValueError: a value is malformed, the rank is too big, or two variables contradict each other.
  """
  size, workers = number(environment, "RANK_SIZE", 1), number(environment, "CM_WORKER_SIZE", 0)
  workers = workers or None  # 0, the smallest allowed, says nothing
  table = environment.get("RANK_TABLE_FILE", "").strip()
  if workers is not None and (table or size is not None):
    raise ValueError(f"environment variables {'RANK_TABLE_FILE' if table else 'RANK_SIZE'} and CM_WORKER_SIZE exclude each other")
  mpi = _find_mpi(environment)
  if table:
    rows = _read_table(table)
    if size is not None and size != len(rows):
      raise ValueError(f"environment variable RANK_SIZE is {size}, but the rank table {table} has {len(rows)} ranks")
    rank = _rank(environment, len(rows), f"the rank table {table}")
    here = [other for other, server in rows if rank is not None and server == rows[rank][1]]
    world = World(rank, len(rows), here.index(rank) if here else None, max(1, len(here)), f"RANK_TABLE_FILE={table}")
  elif size is not None:
    rank = _rank(environment, size, "RANK_SIZE")
    world = World(rank, size, rank, size, f"RANK_SIZE={size}")
  elif workers is not None:
    world = World(0, 1, 0, 1, "CM_WORKER_SIZE=1") if workers == 1 else World(None, workers, None, 1, f"CM_WORKER_SIZE={workers}")
  else:
    return mpi or World()
  if mpi is not None and mpi.size != world.size:
    raise ValueError(f"{world.source} and {mpi.source} contradict each other: unset the one that is left from another run")
  return world


def _find_mpi(environment: Mapping[str, str]) -> World | None:
  for size_name, rank_name, local_rank_name, local_size_name in (
    ("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"),
    ("PMI_SIZE", "PMI_RANK", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
  ):
    size = number(environment, size_name, 1)
    if size is None:
      continue
    rank = number(environment, rank_name, 0)
    if rank is not None and rank >= size:
      raise ValueError(f"environment variable {rank_name} must be below {size_name}, {size}: got {rank}")
    if rank is None and size == 1:
      rank = 0
    local_rank, local_size = number(environment, local_rank_name, 0), number(environment, local_size_name, 1)
    return World(rank, size, local_rank or 0, local_size or 1, f"{size_name}={size}")
  return None


def require_one_rank(what: str) -> World:
  """The world, if it is this process alone.

  Raises:
    RuntimeError: there are several ranks. `what` names, in its message, what cannot be had then.
    ValueError: as find().
  """
  world = find()
  if world.size > 1:
    raise RuntimeError(
      f"{what}: {world.source} says {world.size} ranks, but this version trains in one process; each would train on its own. "
      "Unset the variable to train in one process"
    )
  return world
