"""Where the ranks of a world meet, by environment variables: chief or store, secret, interface, transport, time limits."""

from __future__ import annotations

import dataclasses
import hashlib
import os
import pathlib
import re
import stat
import tempfile
from collections.abc import Mapping

from mxrec import _environment
from mxrec._world import LOOPBACK, World, find

TRANSPORTS = ("auto", "shm", "gloo", "mpi")
DEFAULT_PORT = 60000
NEVER = 10 * 365 * 86400.0  # in seconds

_MPI_KEY = "OMPI_MCA_orte_precondition_transports"  # random, one for all processes of an mpirun
_MPI_HEAD = ("OMPI_MCA_orte_hnp_uri", "PMIX_SERVER_URI2")


@dataclasses.dataclass(frozen=True)
class Limits:
  """Time limits in seconds, and what else of a communicator's options the environment may set; None: its own default."""

  connect_timeout: float | None = None
  stall_warning: float | None = None
  stall_abort: float | None = None
  heartbeat_timeout: float | None = None
  fusion_bytes: int | None = None
  deterministic: bool | None = None
  timeline_path: str = ""


def limits(environment: Mapping[str, str] = os.environ, rank: int | None = None) -> Limits:
  """Reads Limits: MXREC_ variables first, then those of HCCL and Horovod.

  The timeline is that of rank 0, unless {rank} stands in its name: then every rank has one. `rank` is by default the one that the
  environment tells.

  Raises:
    ValueError: a variable is malformed; the text names it.
  """
  timeline = _environment.text(environment, "MXREC_TIMELINE", "HOROVOD_TIMELINE")
  if rank is None and timeline:
    rank = find(environment).rank
  if "{rank}" in timeline:
    timeline = timeline.replace("{rank}", str(rank))
  elif rank != 0:
    timeline = ""
  connect = _environment.seconds(environment, "MXREC_CONNECT_TIMEOUT", 0.1, 86400)
  if connect is None:
    connect = _environment.number(environment, "HCCL_CONNECT_TIMEOUT", 120, 7200)
  warning = _limit(environment, "MXREC_STALL_WARNING", "HOROVOD_STALL_CHECK_TIME_SECONDS")
  if _environment.switch(environment, "HOROVOD_STALL_CHECK_DISABLE") and not _environment.text(environment, "MXREC_STALL_WARNING"):
    warning = NEVER
  abort = _limit(environment, "MXREC_STALL_ABORT", "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS", "HCCL_EXEC_TIMEOUT")
  deterministic = _environment.switch(environment, "MXREC_DETERMINISTIC")
  if deterministic is None:
    deterministic = _environment.switch(environment, "HCCL_DETERMINISTIC")
  fusion = _environment.number(environment, "MXREC_FUSION_BYTES", 0, 1 << 40)
  if fusion is None:
    fusion = _environment.number(environment, "HOROVOD_FUSION_THRESHOLD", 0, 1 << 40)
  return Limits(
    connect,
    warning,
    abort,
    _limit(environment, "MXREC_HEARTBEAT_TIMEOUT"),
    fusion,
    deterministic,
    timeline,
  )


def _limit(environment: Mapping[str, str], *variables: str) -> float | None:
  """The first limit that is set; 0 means never."""
  for variable in variables:
    found = _environment.seconds(environment, variable, 0, NEVER)
    if found is not None:
      return found or NEVER
  return None


def complete(world: World, environment: Mapping[str, str]) -> World:
  """The world with chief or store, secret, interface, job and transport, or with the reason why there is no way to the others.

  Raises:
    ValueError: a value is malformed.
  """
  world = dataclasses.replace(
    world,
    secret=_environment.secret(environment, "MXREC_SECRET", "MXREC_SECRET_FILE"),
    bind_host=_bind_host(environment),
    job=_job(environment),
    transport=_transport(environment),
  )
  world = _meeting_place(world, environment)
  if world.missing:
    return world
  several = world.cross_size > 1 or not (world.store_path or _environment.is_loopback(world.chief_host))
  if world.bind_host and _environment.is_loopback(world.bind_host) and not _environment.is_loopback(world.chief_host):
    raise ValueError(
      f"the network interface with address {world.bind_host} reaches no other machine, but rank 0 is at {world.chief_host}: name "
      "another one in HCCL_IF_IP or HCCL_SOCKET_IFNAME"
    )
  if several and not world.secret:
    return dataclasses.replace(
      world,
      missing="between machines a secret is needed, the same for all ranks: MXREC_SECRET_FILE names a file that holds it and that "
      "nobody else may read (head -c 32 /dev/urandom | base64 > FILE; chmod 600 FILE), or MXREC_SECRET is the secret",
    )
  return world


def _bind_host(environment: Mapping[str, str]) -> str:
  host = _environment.text(environment, "MXREC_BIND_HOST", "HCCL_IF_IP")
  if host:
    return host
  for variable in ("HCCL_SOCKET_IFNAME", "HOROVOD_GLOO_IFACE"):
    wanted = _environment.text(environment, variable)
    if wanted:
      return _environment.interface_address(variable, wanted)
  return ""


def _job(environment: Mapping[str, str]) -> str:
  step = _environment.text(environment, "SLURM_JOB_ID")
  if step:
    step = f"slurm-{step}.{_environment.text(environment, 'SLURM_STEP_ID')}"
  return _environment.text(environment, "MXREC_JOB", "JOB_ID", "PMIX_NAMESPACE") or step


def _transport(environment: Mapping[str, str]) -> str:
  transport = _environment.text(environment, "MXREC_TRANSPORT") or "auto"
  if transport not in TRANSPORTS:
    raise ValueError(f"environment variable MXREC_TRANSPORT must be one of {', '.join(TRANSPORTS)}: got {transport!r}")
  return transport


def _port(environment: Mapping[str, str], otherwise: int = DEFAULT_PORT) -> int:
  port = _environment.number(environment, "CM_CHIEF_PORT", 0, 65520)
  return port or _environment.number(environment, "HCCL_IF_BASE_PORT", 1, 65520) or otherwise


def _meeting_place(world: World, environment: Mapping[str, str]) -> World:
  store = _environment.text(environment, "MXREC_STORE_PATH")
  chief = _environment.address(environment, "MXREC_CHIEF_ADDRESS")
  if store and chief:
    raise ValueError("environment variables MXREC_STORE_PATH and MXREC_CHIEF_ADDRESS are both set: unset one")
  known = world if world.rank is None else dataclasses.replace(world, missing="")
  if store:
    return dataclasses.replace(known, store_path=store, chief_host="", chief_port=0)
  if chief:
    return dataclasses.replace(known, chief_host=chief[0], chief_port=chief[1])
  if world.missing:
    return world
  if world.chief_host:
    return dataclasses.replace(world, chief_port=_port(environment))
  if world.source.startswith("SLURM"):
    return _slurm_place(world, environment)
  return _mpi_place(world, environment)


def _slurm_place(world: World, environment: Mapping[str, str]) -> World:
  """Rank 0 is on the first node of the step."""
  host = first_of_node_list(_environment.text(environment, "SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST"))
  if world.cross_size == 1:
    host = LOOPBACK
  if not host:
    return dataclasses.replace(world, missing="SLURM_STEP_NODELIST is not set: set MXREC_CHIEF_ADDRESS to host:port on all ranks")
  return dataclasses.replace(world, chief_host=host, chief_port=_port(environment, _derived_port(world.job)))


def _derived_port(key: str) -> int:
  """A port that all processes of a job derive alike, below those that the system gives away."""
  return 20000 + int.from_bytes(hashlib.sha256(key.encode()).digest()[:4], "little") % 10000


def first_of_node_list(nodes: str) -> str:
  """The first host of a list as Slurm writes it: "a[03-05,9],b" gives "a03"."""
  match = re.match(r"([^,\[]+)(?:\[(\d+)[^\]]*\])?([^,\[]*)", nodes)
  return f"{match[1]}{match[2] or ''}{match[3]}" if match else ""


def _mpi_place(world: World, environment: Mapping[str, str]) -> World:
  """On one machine, a store in a private folder; else rank 0 is where mpirun was called, if its address is known."""
  key = _environment.text(environment, _MPI_KEY, *_MPI_HEAD)
  instructions = (
    "set MXREC_CHIEF_ADDRESS to host:port, where rank 0 is to listen, on all ranks (mpirun -x MXREC_CHIEF_ADDRESS=host:port), or "
    "start them with mxrec launch"
  )
  if not key:
    return dataclasses.replace(world, missing=instructions)
  secret = world.secret or hashlib.sha256(f"mxrec {key}".encode()).hexdigest()
  if world.local_size == world.size:
    name = hashlib.sha256(f"store {key} {world.job}".encode()).hexdigest()[:24]
    return dataclasses.replace(world, secret=secret, store_path=str(_private_path() / name))
  host = re.search(r"tcp://([\d.]+)", _environment.text(environment, *_MPI_HEAD))
  if host is None or not _environment.text(environment, _MPI_KEY):
    return dataclasses.replace(world, missing=instructions)
  if world.rank == 0 and host[1] not in _environment.interfaces().values():
    return dataclasses.replace(world, missing=f"rank 0 is not on the machine where mpirun was called: {instructions}")
  return dataclasses.replace(world, secret=secret, chief_host=host[1], chief_port=_port(environment, _derived_port(key)))


def _private_path() -> pathlib.Path:
  return pathlib.Path(tempfile.gettempdir()) / f"mxrec-{os.geteuid()}"


def make_private_folder(store_path: str) -> None:
  """Makes the folder of a store, if it is the one of this user below the system's temporary folder.

  Raises:
    ValueError: its name is taken by something else, or it may be used by others.
  """
  path = _private_path()
  if not store_path or pathlib.Path(store_path).parent != path:
    return
  path.mkdir(mode=0o700, exist_ok=True)
  status = path.lstat()
  if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o077:
    raise ValueError(f"{path} must be a folder of this user that nobody else may use: remove it, or set TMPDIR")
