"""Sets of ranks that reduce among themselves."""

from __future__ import annotations

from collections.abc import Sequence

from mxrec import _groups
from mxrec.horovod import _basics


class ProcessSet:
  """Some of the ranks. Before it is registered (init, add_process_set) it can do nothing.

  Args:
    ranks_or_comm: ranks of the world, each once.

  Attributes:
    process_set_id: its number, None while it is not registered.
    ranks: its ranks in ascending order.
  """

  def __init__(self, ranks_or_comm: Sequence[int]):
    if not isinstance(ranks_or_comm, (list, tuple, range, set)) or not all(
      isinstance(rank, int) and not isinstance(rank, bool) for rank in ranks_or_comm
    ):
      raise ValueError(f"a process set is made of a list of ranks: got {ranks_or_comm!r}")
    if len(set(ranks_or_comm)) < len(ranks_or_comm):
      raise ValueError(f"a process set has each rank once: got {list(ranks_or_comm)}")
    self.process_set_id: int | None = None
    self.ranks: list[int] | None = sorted(ranks_or_comm)

  mpi_comm = None

  def _registered(self) -> list[int]:
    _basics.world()
    if self.process_set_id is None or self.ranks is None:
      raise ValueError(f"{self} is not registered: give it to hvd.init(process_sets=[...]) or hvd.add_process_set()")
    return self.ranks

  @property
  def group(self) -> str:
    """Name of its group; ValueError while it is not registered."""
    self._registered()
    return _groups.WORLD if self.process_set_id == 0 else f"horovod_process_set_{self.process_set_id}"

  def initialized(self) -> bool:
    """Whether it is registered."""
    return self.process_set_id is not None and _basics.is_initialized()

  def size(self) -> int | None:
    """The number of its ranks; ValueError while it is not registered."""
    return len(self._registered())

  def rank(self) -> int | None:
    """This process among its ranks, -1 when it is not among them; ValueError while it is not registered."""
    ranks = self._registered()
    return ranks.index(_basics.rank()) if _basics.rank() in ranks else -1

  def included(self) -> bool | None:
    """Whether this process is one of its ranks; ValueError while it is not registered."""
    return _basics.rank() in self._registered()

  def __str__(self) -> str:
    return f"ProcessSet(process_set_id={self.process_set_id}, ranks={self.ranks}, mpi_comm=None)"


class _Global(ProcessSet):
  """All ranks: what everything works on unless told otherwise."""

  def __init__(self) -> None:
    super().__init__([])
    self.ranks = None


global_process_set = _Global()
_sets: dict[int, ProcessSet] = {}
_next = 1


def begin() -> None:
  """To be called by init()."""
  global_process_set.process_set_id = 0
  global_process_set.ranks = list(range(_basics.size()))
  _sets[0] = global_process_set


def end() -> None:
  """To be called by shutdown()."""
  global _next
  for number, process_set in list(_sets.items()):
    if number:
      remove_process_set(process_set)
  global_process_set.process_set_id = global_process_set.ranks = None
  _sets.clear()
  _next = 1


def add_process_set(process_set: ProcessSet | Sequence[int]) -> ProcessSet:
  """Registers a set. All ranks of the world call it, in the same order, those outside of the set too.

  Returns:
    The set itself, or one made of the ranks given.

  Raises:
    ValueError: before init(); ranks outside of the world; a set that is there already.
  """
  global _next
  if not isinstance(process_set, ProcessSet):
    process_set = ProcessSet(process_set)
  ranks, size = process_set.ranks or [], _basics.size()
  if process_set.process_set_id is not None:
    raise ValueError(f"{process_set} is registered already")
  if not ranks or not 0 <= ranks[0] <= ranks[-1] < size:
    raise ValueError(f"a process set needs ranks of 0 to {size - 1}: got {ranks}")
  for other in _sets.values():
    if other.ranks == ranks:
      raise ValueError(f"there is a process set with the ranks {ranks} already: number {other.process_set_id}")
  number, _next = _next, _next + 1
  _groups.add(f"horovod_process_set_{number}", ranks)
  process_set.process_set_id = number
  _sets[number] = process_set
  return process_set


def remove_process_set(process_set: ProcessSet) -> bool:
  """Forgets a set, on all ranks of the world. False for the set of all ranks and for one that is not registered."""
  number = process_set.process_set_id
  if not number or _sets.get(number) is not process_set:
    return False
  _groups.remove(process_set.group)
  del _sets[number]
  process_set.process_set_id = None
  return True


def process_set_by_id(process_set_id: int) -> ProcessSet:
  """The registered set of a number; ValueError when there is none."""
  if process_set_id not in _sets:
    raise ValueError(f"there is no process set with the number {process_set_id}: there are {sorted(_sets)}")
  return _sets[process_set_id]


def get_process_set_ids_and_ranks() -> dict[int, list[int]]:
  """The ranks of each registered set. ValueError before init()."""
  _basics.world()
  return {number: list(process_set.ranks or []) for number, process_set in _sets.items()}


def is_process_set_included(process_set_id: int = 0) -> bool:
  """Whether this process is in the set of that number. ValueError when there is none."""
  return bool(process_set_by_id(process_set_id).included())
