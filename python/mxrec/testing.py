"""Help for tests of code that uses tables."""

from __future__ import annotations

import ctypes
import numbers

from mxrec import _loader, _validate


def set_clock(seconds: float | None) -> None:
  """Sets the process-wide clock that time stamps and eviction read.

  Args:
    seconds: since the epoch, >= 0, millisecond precision; None: the system's clock again.

  Raises:
    ValueError: not a number, or below 0.
  """
  if seconds is None:
    milliseconds = -1
  elif isinstance(seconds, bool) or not isinstance(seconds, numbers.Real) or not 0 <= seconds < 2**53:
    raise ValueError(f"seconds must be a number from 0 on, or None: got {_validate.found(seconds)}")
  else:
    milliseconds = round(seconds * 1000)
  set_ms = _loader.c_library().mxrec_set_clock_ms
  set_ms.argtypes, set_ms.restype = [ctypes.c_int64], None
  set_ms(milliseconds)


def now() -> float:
  """Seconds since the epoch as tables see them."""
  now_ms = _loader.c_library().mxrec_now_ms
  now_ms.argtypes, now_ms.restype = [], ctypes.c_int64
  return now_ms() / 1000.0
