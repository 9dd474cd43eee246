"""TensorFlow's profiler between the first and the last run of sessions with the option profiling_mode, and a Chrome trace.

TensorFlow can profile a process once at a time. Sessions that profile at the same time share one profile: it starts with the first
run of any and is written when the last of them closes, or at the end of the process.

The trace is each session's own: the statistics that TensorFlow collects of its first runs (RunMetadata.step_stats), one after the
other on one axis of time, in a file that chrome://tracing and Perfetto open.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

TRACED_RUNS = 20
_lock = threading.Lock()
_open = 0
_registered = False
_live: set[SessionProfile] = set()  # started, and not stopped
_traces = 0  # written by this process


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
    self._runs_left = TRACED_RUNS
    self._statistics: list[bytes] = []  # a serialized RunMetadata a run

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
      _live.add(self)
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
        _live.discard(self)
        _warn(error)

  @contextlib.contextmanager
  def traced(self, options: Any, metadata: Any) -> Iterator[tuple[Any, Any]]:
    """Around a run by TensorFlow's C API, after start(): lets the first runs collect statistics.

    Args:
      options: the run's RunOptions as a TF_Buffer, or None.
      metadata: the TF_Buffer for its RunMetadata, or None.

    Yields:
      What to run with instead of the two. Options of the caller stay, and what is collected is in the caller's metadata too. But
      FULL_TRACE becomes SOFTWARE_TRACE, with the same statistics of CPUs: it would start a second profiler, an error.
    """
    trace = self._take_run()
    if not trace and options is None:
      yield options, metadata
      return
    from tensorflow.core.protobuf import config_pb2
    from tensorflow.python.client import pywrap_tf_session as c_api

    asked = config_pb2.RunOptions()
    if options is not None:
      asked.ParseFromString(c_api.TF_GetBuffer(options))
    if trace or asked.trace_level > config_pb2.RunOptions.SOFTWARE_TRACE:
      asked.trace_level = config_pb2.RunOptions.SOFTWARE_TRACE
    own_options = c_api.TF_NewBufferFromString(asked.SerializeToString())
    if not trace:
      try:
        yield own_options, metadata
      finally:
        c_api.TF_DeleteBuffer(own_options)
      return
    own_metadata = c_api.TF_NewBuffer() if metadata is None else metadata
    try:
      yield own_options, own_metadata
      self._statistics.append(bytes(c_api.TF_GetBuffer(own_metadata)))
    finally:
      c_api.TF_DeleteBuffer(own_options)
      if metadata is None:
        c_api.TF_DeleteBuffer(own_metadata)

  def traced_callable(self, make: Callable[[Any], Any], options: Any) -> Callable[..., Any]:
    """A callable whose first calls collect statistics, to be called after start().

    Args:
      make: makes a callable of CallableOptions; it takes run_metadata by name.
      options: the CallableOptions. FULL_TRACE becomes SOFTWARE_TRACE, as in traced().
    """
    from tensorflow.core.protobuf import config_pb2

    tracing = config_pb2.CallableOptions()
    tracing.CopyFrom(options)
    tracing.run_options.trace_level = config_pb2.RunOptions.SOFTWARE_TRACE
    made = make(tracing if options.run_options.trace_level > config_pb2.RunOptions.SOFTWARE_TRACE else options)
    made_to_trace: list[Any] = []

    def call(*args: Any, **kwargs: Any) -> Any:
      if not self._take_run():
        return made(*args, **kwargs)
      if not made_to_trace:
        made_to_trace.append(make(tracing))
      metadata = kwargs.pop("run_metadata", None) or config_pb2.RunMetadata()
      result = made_to_trace[0](*args, run_metadata=metadata, **kwargs)
      self._statistics.append(metadata.SerializeToString())
      return result

    return call

  def _take_run(self) -> bool:
    """Whether the run that begins now is traced."""
    with _lock:
      trace = self._started and not self._stopped and self._runs_left > 0
      self._runs_left -= trace
    return trace

  def _write_trace(self) -> None:
    """Writes what the traced runs have left; nothing if there was none."""
    global _traces
    statistics, self._statistics = self._statistics, []
    if not statistics:
      return
    try:
      os.makedirs(self._output, exist_ok=True)
      _traces += 1
      name = f"timeline_{time.strftime('%Y%m%d%H%M%S')}_{os.getpid()}{f'_{_traces}' if _traces > 1 else ''}.json"
      with tempfile.NamedTemporaryFile("w", dir=self._output, suffix=".part", delete=False) as file:
        file.write(chrome_trace(statistics))
      os.chmod(file.name, 0o644)
      os.rename(file.name, os.path.join(self._output, name))
    except OSError as error:
      _warn(error)

  def stop(self) -> None:
    """Called when the session closes; the first call counts."""
    global _open
    with _lock:
      if not self._started or self._stopped:
        return
      self._stopped = True
      _live.discard(self)
      _open = max(0, _open - 1)
      if _open == 0:
        _write()
      self._write_trace()


def chrome_trace(statistics: list[bytes]) -> str:
  """The JSON text of a Chrome trace.

  Args:
    statistics: of each run, in their order, its RunMetadata with step_stats, serialized.
  """
  from tensorflow.core.framework import step_stats_pb2
  from tensorflow.core.protobuf import config_pb2
  from tensorflow.python.client import timeline

  devices: dict[str, step_stats_pb2.DeviceStepStats] = {}
  for run in statistics:
    for stats in config_pb2.RunMetadata.FromString(run).step_stats.dev_stats:
      devices.setdefault(stats.device, step_stats_pb2.DeviceStepStats()).MergeFrom(stats)
  together = step_stats_pb2.StepStats(dev_stats=devices.values())
  # Arrows between ops would join ops of different runs, which have the same names.
  return timeline.Timeline(together).generate_chrome_trace_format(show_dataflow=False)


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
    for profile in list(_live):
      profile._write_trace()
    _live.clear()
