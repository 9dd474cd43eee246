"""How the distributed optimizers split gradients into segments: those of one are exchanged together, when all of it are there.

A hint about speed: it changes no result. Without one, gradients are exchanged as they come, small ones of the same moment together.
"""

from __future__ import annotations

import numbers
from typing import Any

from hccl.manage import api as _manage
from mxrec import _groups

MAX_SEGMENTS = 8
_strategies: dict[str, dict[str, list[Any]]] = {}


def _check_list(label: str, values: Any) -> list[Any]:
  if not isinstance(values, list) or not values:
    raise ValueError(f"{label} must be a list that is not empty: got {values!r}")
  if len(values) > MAX_SEGMENTS:
    raise ValueError(f"{label} must have at most {MAX_SEGMENTS} entries: got {len(values)}")
  return values


def _keep(group: str, kind: str, values: list[Any]) -> None:
  _groups.ranks_of(_manage._check_group(group))
  _strategies.setdefault(group, {})[kind] = list(values)


def set_split_strategy_by_idx(idxList: list[int], group: str = _groups.WORLD) -> None:
  """Splits gradients after those with the given indices.

  Args:
    idxList: 1 to 8 strictly ascending ints, 0 to 2**32 - 1; the last is the index of the last gradient.
    group: name of the group.

  Raises:
    ValueError: anything else, or an unknown group.
  """
  previous = -1
  for index in _check_list("idxList", idxList):
    if not isinstance(index, int) or isinstance(index, bool) or not 0 <= index < 1 << 32:
      raise ValueError(f"idxList must hold ints of 0 to 2**32 - 1: got {index!r}")
    if index <= previous:
      raise ValueError(f"idxList must ascend: got {index} after {previous}")
    previous = index
  _keep(group, "idx", idxList)


def set_split_strategy_by_size(dataSizeList: list[float], group: str = _groups.WORLD) -> None:
  """Splits gradients by their share of the data. Wins over a split by index.

  Args:
    dataSizeList: 1 to 8 percentages of at least 0 whose sum is 100.
    group: name of the group.

  Raises:
    ValueError: anything else, or an unknown group.
  """
  for share in _check_list("dataSizeList", dataSizeList):
    if not isinstance(share, numbers.Real) or isinstance(share, bool) or not share >= 0:
      raise ValueError(f"dataSizeList must hold numbers of at least 0: got {share!r}")
  if abs(sum(dataSizeList) - 100) > 1e-9:
    raise ValueError(f"dataSizeList must sum up to 100: got {sum(dataSizeList)}")
  _keep(group, "size", dataSizeList)


def chosen_split_strategy(group: str) -> tuple[str, list[Any]] | None:
  """What was set for a group (ours), as get_split_strategy gives it; None if nothing was."""
  return get_split_strategy(group) if group in _strategies else None


def get_split_strategy(group: str = _groups.WORLD) -> tuple[str, list[Any]]:
  """What was set for a group (ours): ("size" or "idx", values); ("size", [96.54, 3.46]) if nothing was."""
  strategies = _strategies.get(group, {})
  for kind in ("size", "idx"):
    if kind in strategies:
      return kind, list(strategies[kind])
  return "size", [96.54, 3.46]
