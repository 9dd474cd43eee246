"""Start and end, ranks and sizes, and what this build can do."""

from __future__ import annotations

import os
import pathlib
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from mxrec import _collective, _groups, _loader, _world
from mxrec.horovod.common import exceptions

_started: _world.World | None = None
_machines: list[tuple[int, int]] = []  # of each rank: its place on its machine, and the number of ranks there


def init(comm: Sequence[int] | None = None, process_sets: Any = None) -> None:
  """Meets the other ranks. May be called again, and again after shutdown().

  Args:
    comm: None, or the list of all ranks: a world of some of them is what `process_sets` is for.
    process_sets: ProcessSets to make at once, or "dynamic", which changes nothing: they can be made at any time.

  Raises:
    ValueError: the environment is malformed, or does not say how to find the other ranks; another `comm`; a wrong process set.
    HorovodInternalError: the other ranks did not come.
  """
  global _started, _machines
  from mxrec.horovod import _process_sets

  world = _groups.world()
  if comm is not None and (not isinstance(comm, (list, tuple)) or sorted(comm) not in ([], list(range(world.size)))):
    raise ValueError(f"comm must be None or the list of all {world.size} ranks: got {comm!r}; process sets are for some of them")
  _start()
  if _started is None:
    _machines = _everybodys_machine(world)
    _started = world
    _process_sets.begin()
  if process_sets is not None and process_sets != "dynamic":
    for process_set in process_sets:
      if process_set.process_set_id is None:
        _process_sets.add_process_set(process_set)


def _start() -> None:
  start = getattr(_groups, "start", None)
  if start is None:
    return
  try:
    start()
  except RuntimeError as error:
    raise exceptions.HorovodInternalError(str(error)) from error


def _everybodys_machine(world: _world.World) -> list[tuple[int, int]]:
  """The ranks tell each other: what starts them tells each about its own machine at most."""
  mine = (world.local_rank or 0, world.local_size)
  if world.size == 1:
    return [mine]
  found = run_now(lambda: _collective.allgather(tf.constant([mine]), name="HorovodInit")[0])
  return [(int(local_rank), int(local_size)) for local_rank, local_size in found]


def shutdown() -> None:
  """Waits for the other ranks to do the same, and leaves them. Nothing when there was no init()."""
  global _started
  from mxrec.horovod import _process_sets

  if _started is None:
    return
  _process_sets.end()
  _started = None
  stop = getattr(_groups, "shutdown", None)
  if stop is not None:
    stop()


def is_initialized() -> bool:
  """Whether init() was called, and no shutdown() since."""
  return _started is not None


def world() -> _world.World:
  """The world; ValueError before init()."""
  if _started is None:
    raise ValueError("mxrec.horovod has not been initialized: call hvd.init() first")
  return _started


def rank() -> int:
  """This process among all, from 0. ValueError before init()."""
  return world().rank or 0


def size() -> int:
  """The number of processes. ValueError before init()."""
  return world().size


def local_rank() -> int:
  """This process among those of its machine. ValueError before init()."""
  return world().local_rank or 0


def local_size() -> int:
  """The number of processes on this machine. ValueError before init()."""
  return world().local_size


def _same_place() -> list[int]:
  """The ranks that have the place of this one, one on each machine that has so many ranks."""
  place = local_rank()
  return [other for other, (local, _) in enumerate(_machines) if local == place]


def cross_rank() -> int:
  """This process among those of its local_rank(), one on each machine. ValueError before init()."""
  return _same_place().index(rank())


def cross_size() -> int:
  """The number of machines that have a rank of this local_rank(). ValueError before init()."""
  return len(_same_place())


def is_homogeneous() -> bool:
  """Whether all machines have the same number of ranks. ValueError before init()."""
  world()
  return len({count for _, count in _machines}) == 1


def run_now(build: Any) -> Any:
  """Runs the ops that `build()` makes, at once, in eager mode or in a graph and a session of their own.

  Returns:
    Their values as numpy arrays.

  Raises:
    HorovodInternalError: a rank is gone.
  """
  try:
    if tf.executing_eagerly():
      return tf.nest.map_structure(lambda value: value.numpy(), build())
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
      return session.run(build())
  except tf.errors.OpError as error:
    exceptions.raise_broken(error)


# What this build can do


def mpi_built(verbose: bool = False) -> bool:
  """Whether collectives can go through Open MPI."""
  folder = pathlib.Path(_loader.library_path()).parent
  return any("mpi" in path.name for path in folder.glob("*.so*"))


def mpi_enabled() -> bool:
  """Whether they do: the ranks were started by mpirun, or MXREC_TRANSPORT asks for it. ValueError before init()."""
  found = world()
  if found.transport == "auto":
    return mpi_built() and found.size > 1 and found.source.startswith("OMPI_") and found.local_size < found.size
  return found.transport == "mpi"


def mpi_threads_supported() -> bool:
  """True: one thread alone calls MPI, whatever threads the script has. ValueError before init()."""
  world()
  return True


def gloo_built(verbose: bool = False) -> bool:
  """True: processes can meet without MPI."""
  return True


def gloo_enabled() -> bool:
  """Whether the processes meet without MPI. ValueError before init()."""
  return not mpi_enabled()


def nccl_built(verbose: bool = False) -> int:
  """0: there is no NCCL."""
  return 0


def ddl_built(verbose: bool = False) -> bool:
  """False: there is no DDL."""
  return False


def ccl_built(verbose: bool = False) -> bool:
  """False: there is no oneCCL."""
  return False


def cuda_built(verbose: bool = False) -> bool:
  """False: everything is in host memory."""
  return False


def rocm_built(verbose: bool = False) -> bool:
  """False: everything is in host memory."""
  return False


def gpu_available(ext_base_name: str = "", verbose: bool = False) -> bool:
  """False: everything is in host memory."""
  return False


def check_extension(ext_name: str = "", ext_env_var: str = "", pkg_path: str = "", *args: Any) -> None:
  """Horovod's check that its library was built; here, that mxrec's was. ImportError when it was not."""
  _loader.library_path()


def check_num_rank_power_of_2(num_rank: int) -> bool:
  """Whether num_rank is a power of 2."""
  return num_rank > 0 and num_rank & (num_rank - 1) == 0


def start_timeline(file_path: str, mark_cycles: bool = False) -> None:
  """Refused: RuntimeError says how to have a trace, which is that of the whole run."""
  raise RuntimeError(
    f"a trace begins when the ranks meet: set MXREC_TIMELINE={os.fspath(file_path)} before hvd.init(), or start with "
    "mxrec launch --timeline"
  )


def stop_timeline() -> None:
  """Nothing: a trace ends with shutdown()."""
