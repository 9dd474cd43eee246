"""Modules as the script's own code sees them: another module, which is not changed, with some names added or replaced."""

from __future__ import annotations

import difflib
import types
from collections.abc import Callable, Iterable, Mapping
from typing import Any


class Lazy:
  """A value that is made when it is first asked for."""

  def __init__(self, make: Callable[[], Any]):
    self.make = make


class View(types.ModuleType):
  """`base` with `extra` names on top.

  Names of the base are looked up each time, so a later change of it is seen; what the script assigns stays in the view.
  """

  def __init__(
    self,
    name: str,
    base: Any,
    extra: Mapping[str, Any] | None = None,
    *,
    note: Callable[[str], None] | None = None,
    explain: Callable[[str], str] | None = None,
  ):
    """Makes the view.

    Args:
      name: the module's name as the script knows it.
      base: the module behind it, or Lazy.
      extra: name -> value, or Lazy.
      note: called with the full name of each extra at its first use.
      explain: gives the message for a name that is nowhere.
    """
    super().__init__(name)
    vars(self).update(_base=base, _extra=dict(extra or {}), _note=note, _explain=explain)

  def _loaded(self) -> Any:
    if isinstance(self._base, Lazy):
      vars(self)["_base"] = self._base.make()
    return self._base

  def __getattr__(self, name: str) -> Any:
    own = vars(self)
    if name in own["_extra"]:
      value = own["_extra"][name]
      value = value.make() if isinstance(value, Lazy) else value
      own[name] = value
      if own["_note"] and not isinstance(value, types.ModuleType):
        own["_note"](f"{self.__name__}.{name}")
      return value
    try:
      return getattr(self._loaded(), name)
    except AttributeError:
      if name.startswith("__") or own["_explain"] is None:
        raise
      raise AttributeError(own["_explain"](name)) from None

  def __dir__(self) -> list[str]:
    return sorted({*dir(self._loaded()), *self._extra, *(name for name in vars(self) if not name.startswith("_"))})

  @property
  def __all__(self) -> list[str]:
    base = self._loaded()
    public = getattr(base, "__all__", None) or [name for name in dir(base) if not name.startswith("_")]
    return sorted({*public, *(name for name in self._extra if not name.startswith("_"))})


def nearest(name: str, known: Iterable[str]) -> str:
  """ ", nearest: x, y" for a misspelt name, else nothing."""
  close = difflib.get_close_matches(name, list(known), n=3, cutoff=0.75)
  return f"; near it: {', '.join(close)}" if close else ""
