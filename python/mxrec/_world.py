"""Which rank this process is, of how many, and where it meets the others: the one place that reads it from the environment.

The first of these that is there counts:

1. RANK_TABLE_FILE and RANK_ID: a rank table in JSON, in each of the three forms in use.
2. RANK_SIZE and RANK_ID; what `mxrec launch` sets.
3. CM_WORKER_SIZE; the chief hands out the ranks.
4. OMPI_COMM_WORLD_*, as mpirun sets it, PMI_*, or SLURM_* of a job step (which counts where srun set PMI_* beside it).
5. Nothing: one process.

Sizes that contradict each other are an error: whoever is right, the other processes would be trained apart.
docs/guide/distributed.md lists all variables.
"""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
import re
from collections.abc import Mapping
from typing import Any

from mxrec import _environment
from mxrec._environment import MAX_RANKS, number

__all__ = ["MAX_RANKS", "World", "find", "number", "require_one_rank", "resolve"]

LOOPBACK = "127.0.0.1"


@dataclasses.dataclass(frozen=True)
class World:
  """This process among the others.

  Attributes:
    rank: None where several ranks do not say which one this is; resolve() asks the chief.
    size: the number of ranks.
    local_rank: this rank among those on its machine; None where it is not known.
    local_size: the number of ranks on this machine.
    source: the variable that said so, for messages.
    cross_rank, cross_size: this machine among the machines, and their number.
    here: the ranks on this machine, where a rank table names them.
    chief_host: where rank 0 listens; "" with a store.
    chief_port: its port; 0 with a store.
    store_path: a file that all ranks see, in which rank 0 publishes its address; "" with a chief.
    secret: what ranks show each other in their first message; may be "" on loopback only.
    bind_host: the address that this rank listens at; "": the one that reaches the chief.
    job: tells two jobs apart that meet at one port by accident.
    transport: "auto", "shm", "gloo" or "mpi".
    missing: why the others cannot be found, and what to set; "" when they can.
  """

  rank: int | None = 0
  size: int = 1
  local_rank: int | None = 0
  local_size: int = 1
  source: str = "one process"
  cross_rank: int = 0
  cross_size: int = 1
  here: tuple[int, ...] = ()
  chief_host: str = ""
  chief_port: int = 0
  store_path: str = ""
  secret: str = dataclasses.field(default="", repr=False)
  bind_host: str = ""
  job: str = ""
  transport: str = "auto"
  missing: str = ""


@dataclasses.dataclass(frozen=True)
class _Row:
  """An entry of a rank table. `server` "" where the form names none."""

  rank: int
  server: str
  local: int | None = None


def _rows_of(table: Any) -> list[_Row]:
  """Every entry of a rank table, in any of its forms."""
  rows = []
  if "server_list" in table:
    for server in table["server_list"]:
      rows += [_Row(int(device["rank_id"]), str(server.get("server_id", ""))) for device in server["device"]]
  elif "group_list" in table:
    for group in table["group_list"]:
      for instance in group["instance_list"]:
        rank = instance.get("rank_id", len(rows))
        rows += [_Row(int(device.get("rank_id", rank)), str(instance.get("server_id", ""))) for device in instance["devices"]]
  elif "rank_list" in table:
    rows = [
      _Row(int(entry["rank_id"]), str(entry.get("server_id", "")), int(entry.get("local_id", 0))) for entry in table["rank_list"]
    ]
    if len({row.local for row in rows}) < len(rows) and not any(row.server for row in rows):
      # Several machines without names: the smallest number of each machine begins it.
      machine = -1
      named = []
      for row in sorted(rows, key=lambda row: row.rank):
        machine += not named or (row.local or 0) <= (named[-1].local or 0)
        named.append(_Row(row.rank, f"machine {machine}", row.local))
      rows = named
  else:
    raise ValueError("expected server_list, group_list or rank_list")
  return sorted(rows, key=lambda row: row.rank)


def _read_table(path: str) -> list[_Row]:
  try:
    rows = _rows_of(json.loads(pathlib.Path(path).read_text(encoding="utf-8")))
  except OSError as error:
    raise ValueError(f"environment variable RANK_TABLE_FILE: {path} cannot be read: {error.strerror}") from error
  except (KeyError, TypeError, AttributeError, ValueError) as error:
    raise ValueError(f"environment variable RANK_TABLE_FILE: {path} is not a rank table: {error}") from error
  ranks = [row.rank for row in rows]
  if ranks != list(range(len(rows))) or not rows:
    raise ValueError(f"environment variable RANK_TABLE_FILE: {path} must name the ranks 0, 1, ... once each: found {ranks}")
  return rows


def _rank(environment: Mapping[str, str], size: int, source: str) -> int | None:
  rank = number(environment, "RANK_ID", 0)
  if rank is None:
    return 0 if size == 1 else None
  if rank >= size:
    raise ValueError(f"environment variable RANK_ID must be below the number of ranks, {size} by {source}: got {rank}")
  return rank


def find(environment: Mapping[str, str] = os.environ) -> World:
  """Reads the world from environment variables. Opens nothing: World.missing says whether the others can be found.

  Raises:
    ValueError: a value is malformed, the rank is too big, or two variables contradict each other.
  """
  if environment is os.environ and _resolved is not None and _resolved[0] == _fingerprint():
    return _resolved[1]
  size, workers = number(environment, "RANK_SIZE", 1), number(environment, "CM_WORKER_SIZE", 0)
  workers = workers or None  # 0, the smallest allowed, says nothing
  table = environment.get("RANK_TABLE_FILE", "").strip()
  if workers is not None and (table or size is not None):
    raise ValueError(f"environment variables {'RANK_TABLE_FILE' if table else 'RANK_SIZE'} and CM_WORKER_SIZE exclude each other")
  mpi = _find_mpi(environment)
  if table:
    world = _by_table(environment, table, size)
  elif size is not None:
    world = _by_rank_size(environment, size)
  elif workers is not None:
    world = _by_chief(environment, workers)
  else:
    slurm = _find_slurm(environment)
    if mpi is not None and slurm is not None and mpi.source.startswith("PMI_") and (mpi.rank, mpi.size) == (slurm.rank, slurm.size):
      mpi = None  # srun sets these too; Slurm also says where the ranks are
    world = mpi or slurm or World()
  if mpi is not None and mpi.size != world.size:
    raise ValueError(f"{world.source} and {mpi.source} contradict each other: unset the one that is left from another run")
  if world.size == 1:
    return world
  from mxrec import _peers

  return _peers.complete(world, environment)


def _by_table(environment: Mapping[str, str], table: str, size: int | None) -> World:
  rows = _read_table(table)
  if size is not None and size != len(rows):
    raise ValueError(f"environment variable RANK_SIZE is {size}, but the rank table {table} has {len(rows)} ranks")
  rank = _rank(environment, len(rows), f"the rank table {table}")
  servers = list(dict.fromkeys(row.server for row in rows))
  here = [row.rank for row in rows if rank is not None and row.server == rows[rank].server]
  host = LOOPBACK if len(servers) == 1 else rows[0].server
  missing = ""
  if rank is None:
    missing = "set RANK_ID to this process's rank in it"
  elif len(servers) > 1 and not re.fullmatch(r"[\w.:-]+", host):
    host = ""
    missing = "it does not name the servers: set MXREC_CHIEF_ADDRESS to host:port, where rank 0 is to listen, on all ranks"
  return World(
    rank,
    len(rows),
    here.index(rank) if here else None,
    max(1, len(here)),
    f"RANK_TABLE_FILE={table}",
    cross_rank=servers.index(rows[rank].server) if rank is not None else 0,
    cross_size=len(servers),
    here=tuple(here),
    chief_host=host,
    missing=missing,
  )


def _by_rank_size(environment: Mapping[str, str], size: int) -> World:
  rank = _rank(environment, size, "RANK_SIZE")
  world = World(rank, size, rank, size, f"RANK_SIZE={size}", chief_host=_environment.text(environment, "CM_CHIEF_IP") or LOOPBACK)
  if rank is None:
    return dataclasses.replace(world, missing="set RANK_ID to 0, 1, ... in each process, or start them with mxrec launch")
  local_size = number(environment, "MXREC_LOCAL_SIZE", 1, size)
  if local_size is not None:
    local_rank = number(environment, "MXREC_LOCAL_RANK", 0, local_size - 1)
    if local_rank is None:
      raise ValueError("environment variable MXREC_LOCAL_SIZE is set, but MXREC_LOCAL_RANK is not")
    cross_size = number(environment, "MXREC_CROSS_SIZE", 1, size) or -(-size // local_size)
    cross_rank = number(environment, "MXREC_CROSS_RANK", 0, cross_size - 1)
    return dataclasses.replace(
      world,
      local_rank=local_rank,
      local_size=local_size,
      cross_rank=min(rank // local_size, cross_size - 1) if cross_rank is None else cross_rank,
      cross_size=cross_size,
    )
  chief = _environment.address(environment, "MXREC_CHIEF_ADDRESS")
  if not _environment.is_loopback(chief[0] if chief else world.chief_host):
    # Nothing says which ranks share a machine: none is taken to.
    return dataclasses.replace(world, local_rank=0, local_size=1, cross_rank=rank, cross_size=size)
  return world


def _by_chief(environment: Mapping[str, str], workers: int) -> World:
  if workers == 1:
    return World(0, 1, 0, 1, "CM_WORKER_SIZE=1")
  host = _environment.text(environment, "CM_CHIEF_IP")
  missing = "" if host else "set CM_CHIEF_IP and CM_CHIEF_PORT to where the chief is to listen, on all ranks"
  return World(None, workers, None, 1, f"CM_WORKER_SIZE={workers}", chief_host=host, missing=missing)


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
    local_size = min(local_size or 1, size)
    return World(
      rank,
      size,
      local_rank or 0,
      local_size,
      f"{size_name}={size}",
      cross_rank=(rank or 0) // local_size,
      cross_size=-(-size // local_size),
      missing="" if rank is not None else f"{rank_name} is not set",
    )
  return None


def _find_slurm(environment: Mapping[str, str]) -> World | None:
  """A step that srun started; the batch script itself, which has other SLURM_ variables, is one process."""
  size = number(environment, "SLURM_STEP_NUM_TASKS", 1)
  if size is None:
    return None
  rank = number(environment, "SLURM_PROCID", 0, size - 1)
  node, nodes = number(environment, "SLURM_NODEID", 0) or 0, number(environment, "SLURM_STEP_NUM_NODES", 1) or 1
  counts = _tasks_per_node(_environment.text(environment, "SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE"))
  return World(
    0 if rank is None and size == 1 else rank,
    size,
    number(environment, "SLURM_LOCALID", 0) or 0,
    counts[node] if node < len(counts) else 1,
    f"SLURM_STEP_NUM_TASKS={size}",
    cross_rank=node,
    cross_size=nodes,
    missing="" if rank is not None else "SLURM_PROCID is not set",
  )


def _tasks_per_node(value: str) -> list[int]:
  """[2, 2, 1] for "2(x2),1"; what is not of this form gives nothing."""
  counts: list[int] = []
  for part in value.split(",") if value else []:
    match = re.fullmatch(r"(\d{1,6})(?:\(x(\d{1,6})\))?", part.strip())
    if match is None:
      return []
    counts += [int(match[1])] * min(int(match[2] or 1), MAX_RANKS)
  return counts


_resolved: tuple[tuple[str, ...], World] | None = None


def _fingerprint() -> tuple[str, ...]:
  names = ("CM_CHIEF_IP", "CM_CHIEF_PORT", "CM_WORKER_SIZE", "RANK_SIZE", "RANK_TABLE_FILE", "OMPI_COMM_WORLD_SIZE")
  return tuple(os.environ.get(name, "") for name in names)


def resolve() -> World:
  """The world, with a rank and a way to find the others; to be called before a connection is made.

  Where the chief hands out the ranks (CM_WORKER_SIZE), this meets it; afterwards find() knows the rank too.

  Raises:
    RuntimeError: there are several ranks, and nothing says how to find them, or the chief cannot be reached. The text says what to
      set.
    ValueError: as find().
  """
  global _resolved
  world = find()
  if world.missing:
    raise RuntimeError(f"{world.source} says {world.size} ranks, but they cannot find each other: {world.missing}")
  if world.store_path:
    from mxrec import _peers

    _peers.make_private_folder(world.store_path)
  if world.rank is None:
    from mxrec import _rank_hand_out

    world = _rank_hand_out.ask(world)
    _resolved = (_fingerprint(), world)
  return world


def require_one_rank(what: str) -> World:
  """The world, if it is this process alone.

  Raises:
    RuntimeError: there are several ranks. `what` names, in its message, what cannot be had then.
    ValueError: as find().
  """
  world = find()
  if world.size > 1:
    raise RuntimeError(
      f"{what}: {world.source} says {world.size} ranks, but this version has tables in one process only; each would train its own. "
      "Unset the variable to train in one process"
    )
  return world
