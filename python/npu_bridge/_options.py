"""The options of NpuOptimizer (its parameter_map) for Python: check, table, and what a session does because of them.

The table of all keys and every rule are in C++ (tf/graph/npu_options.h); docs/reference/parameter_map.md is generated from it.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import json
import weakref
from collections.abc import Iterator
from typing import Any

from tensorflow.core.protobuf import config_pb2
from tensorflow.python.framework import errors
from tensorflow.python.platform import tf_logging

from mxrec import _loader

OPTIMIZER = "NpuOptimizer"
_said: set[str] = set()


class OptionError(ValueError, errors.InvalidArgumentError):
  """A value in the parameter_map of NpuOptimizer that is not allowed; a ValueError and an InvalidArgumentError of TensorFlow."""

  def __init__(self, message: str):
    errors.InvalidArgumentError.__init__(self, None, None, message)
    self.args = (message,)

  def __str__(self) -> str:
    return self.message


@functools.cache
def _library() -> ctypes.CDLL:
  library = _loader.c_library()
  library.mxrec_npu_check.argtypes = [ctypes.c_char_p, ctypes.c_int64, ctypes.POINTER(ctypes.c_char_p)]
  library.mxrec_npu_table.restype = ctypes.c_char_p
  library.mxrec_npu_nearest.argtypes = [ctypes.c_char_p]
  library.mxrec_npu_nearest.restype = ctypes.c_char_p
  library.mxrec_collective_algorithm.restype = ctypes.c_char_p
  library.mxrec_collective_timeout_seconds.restype = ctypes.c_int64
  library.mxrec_npu_optimizer_runs.restype = ctypes.c_int64
  return library


@functools.cache
def _rows() -> tuple[dict[str, Any], ...]:
  return tuple(json.loads(_library().mxrec_npu_table()))


def table() -> list[dict[str, Any]]:
  """All keys of the parameter_map, in the order of the documentation.

  Returns:
    One dict a key: `key`; `field` ("b", "i" or "s"); `policy` ("act", "valid" or "accept"); `words`, the allowed texts or numbers
    as a list of str, empty where `allowed` says it in words; `allowed`, `default`, `meaning` (what the key does here) and `group`
    as text.
  """
  return [dict(row) for row in _rows()]


def nearest(key: str) -> str:
  """The known key that is written most like `key`."""
  return _library().mxrec_npu_nearest(key.encode()).decode()


def validate(config: config_pb2.ConfigProto | None) -> dict[str, Any]:
  """Checks the options of a session's configuration; changes nothing in it.

  One line goes to the log, once a process, for each unknown key, for each key without effect here, and for each rewrite option that
  contradicts a session with NpuOptimizer.

  Args:
    config: the configuration; without an entry NpuOptimizer, or None, everything has its default. The options of several entries
      count together.

  Returns:
    What the options say: `deterministic` (bool), `iterations_per_loop` (int, or None when the map has none), `profiling` (bool),
    `profiling_output` (a folder), `job` (str), `task_index` (int), `precision` (the key and value, or "").

  Raises:
    OptionError: a value that is not allowed, or keys that contradict each other. It is a ValueError and a
      tf.errors.InvalidArgumentError; the message has key, value and what is allowed.
  """
  data = b"" if config is None else config.graph_options.rewrite_options.SerializeToString()
  text = ctypes.c_char_p()
  code = _library().mxrec_npu_check(data, len(data), ctypes.byref(text))
  message = (text.value or b"").decode(errors="replace")
  if code != 0:
    raise OptionError(message)
  return json.loads(message)


def attach(session: Any, settings: dict[str, Any]) -> None:
  """Lets a new session do what its options ask for around its runs: op determinism, the profile and the trace.

  Args:
    session: a tf.compat.v1.Session or InteractiveSession. What all its runs go through is replaced, on this object alone, and only
      when the options need it: `run`, callables of `make_callable` and of CallableOptions, partial runs, and so the runs of a
      MonitoredSession around it. The trace has no partial runs, of which TensorFlow gives no statistics.
    settings: what `validate` has returned for its configuration.
  """
  if not settings["deterministic"] and not settings["profiling"]:
    return
  from npu_bridge.profiler import _session_profile

  profile = _session_profile.SessionProfile(settings["profiling_output"]) if settings["profiling"] else None
  itself, kind, deterministic = weakref.ref(session), type(session), settings["deterministic"]

  @contextlib.contextmanager
  def around() -> Iterator[None]:
    if profile is not None:
      profile.start()
    if not deterministic:
      yield
      return
    _library().mxrec_enter_deterministic_run()
    try:
      yield
    finally:
      _library().mxrec_leave_deterministic_run()

  def surround(name: str) -> None:
    def call(*args: Any, **kwargs: Any) -> Any:
      with around():
        return getattr(kind, name)(itself(), *args, **kwargs)

    setattr(session, name, functools.wraps(getattr(kind, name))(call))

  def run(options: Any, feed_dict: Any, fetch_list: Any, target_list: Any, run_metadata: Any) -> Any:
    with around(), profile.traced(options, run_metadata) as (options, run_metadata):
      return kind._call_tf_sessionrun(itself(), options, feed_dict, fetch_list, target_list, run_metadata)

  def make_callable(callable_options: Any) -> Any:
    def make(options: Any) -> Any:
      with around():
        return kind._make_callable_from_options(itself(), options)

    made = make(callable_options) if profile is None else profile.traced_callable(make, callable_options)

    def call(*args: Any, **kwargs: Any) -> Any:
      with around():
        return made(*args, **kwargs)

    return call

  def close() -> None:
    if profile is not None:
      profile.stop()
    kind.close(itself())

  if profile is None:
    surround("_call_tf_sessionrun")
  else:
    session._call_tf_sessionrun = run
  surround("partial_run_setup")  # makes the executors
  surround("_call_tf_sessionprun")
  session._make_callable_from_options = make_callable
  session.close = functools.wraps(kind.close)(close)


def check_iterations_per_loop(config: config_pb2.ConfigProto | None, count: int) -> str | None:
  """Compares the option iterations_per_loop of a session with the count given to set_iteration_per_loop.

  Args:
    config: the configuration of the session.
    count: the number of steps of one run.

  Returns:
    None when they agree or the map has no iterations_per_loop; else the text of a warning, which has been written to TensorFlow's
    log, once a process for two numbers. The count counts.
  """
  key = "iterations_per_loop"
  entries = config.graph_options.rewrite_options.custom_optimizers if config is not None else ()
  maps = [entry.parameter_map for entry in entries if entry.name == OPTIMIZER]
  if not maps or key not in maps[0] or maps[0][key].i == count:
    return None
  configured = maps[0][key].i
  text = (
    f"{OPTIMIZER} option 'iterations_per_loop' = {configured} differs from the {count} iterations of set_iteration_per_loop: "
    f"a run does {count} steps"
  )
  if text not in _said:
    _said.add(text)
    tf_logging.warning("%s", text)
  return text


def collective_timeout_seconds() -> int | None:
  """The option hccl_timeout of the last session that had it; 0 means no limit, None that no session said."""
  seconds = _library().mxrec_collective_timeout_seconds()
  return None if seconds < 0 else seconds


def collective_algorithm() -> str:
  """The option HCCL_algorithm of the last session that had it, or ""."""
  return _library().mxrec_collective_algorithm().decode(errors="replace")


def forget_notes() -> None:
  """Lets lines that are written to the log once a process be written again. For tests."""
  _library().mxrec_forget_option_notes()
  _said.clear()


def optimizer_runs() -> int:
  """How often the graph pass of NpuOptimizer has run in this process."""
  return _library().mxrec_npu_optimizer_runs()


__all__ = [
  "OptionError",
  "attach",
  "check_iterations_per_loop",
  "collective_algorithm",
  "collective_timeout_seconds",
  "forget_notes",
  "nearest",
  "optimizer_runs",
  "table",
  "validate",
]
