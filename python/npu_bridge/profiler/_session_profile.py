"""TensorFlow's profiler between the first and the last run of sessions with the option profiling_mode.

TensorFlow can profile a process once at a time. Sessions that profile at the same time share one profile: it starts with the first
run of any and is written when the last of them closes, or at the end of the process.
"""

from __future__ import annotations

import atexit
import os
import threading

_lock = threading.Lock()
_open = 0
_registered = False


def start_profiler(output: str) -> None:
  """Starts TensorFlow's profiler; what it sees goes to `output`/plugins/profile/<time> when it stops.

  Raises:
    RuntimeError: the folder cannot be made, or a profile is being taken already.
  """
  from tensorflow.python.framework import errors
  from tensorflow.python.profiler import profiler_v2

  try:
    os.makedirs(output, exist_ok=True)
    profiler_v2.start(output)
  except (OSError, errors.OpError) as error:
    raise RuntimeError(f"no profile can be taken for the folder {output!r}: {error}") from error


def stop_profiler() -> None:
  """Stops TensorFlow's profiler and writes the profile.

  Raises:
    RuntimeError: none is being taken, or it cannot be written.
  """
  from tensorflow.python.framework import errors
  from tensorflow.python.profiler import profiler_v2

  try:
    profiler_v2.stop()
  except errors.OpError as error:
    raise RuntimeError(f"the profile cannot be written: {error}") from error


def _warn(error: Exception) -> None:
  from tensorflow.python.platform import tf_logging

  tf_logging.warning("NpuOptimizer option 'profiling_mode': %s", error)


class SessionProfile:
  """The share of one session. A failure is a line in the log and ends the profile, never the training."""

  def __init__(self, output: str):
    self._output = output
    self._started = self._stopped = False

  def start(self) -> None:
    """Called before each run of the session; the first call counts."""
    global _open, _registered
    if self._started:
      return
    with _lock:
      if self._started:
        return
      self._started = True
      _open += 1
      if _open > 1:
        return
      if not _registered:
        atexit.register(_finish)
        _registered = True
      try:
        start_profiler(self._output)
      except RuntimeError as error:
        _open = 0
        self._stopped = True
        _warn(error)

  def stop(self) -> None:
    """Called when the session closes; the first call counts."""
    global _open
    with _lock:
      if not self._started or self._stopped:
        return
      self._stopped = True
      _open = max(0, _open - 1)
      if _open == 0:
        _write()


def _write() -> None:
  try:
    stop_profiler()
  except RuntimeError as error:
    _warn(error)


def _finish() -> None:
  """At the end of the process: writes what no session has closed."""
  global _open
  with _lock:
    if _open > 0:
      _open = 0
      _write()
