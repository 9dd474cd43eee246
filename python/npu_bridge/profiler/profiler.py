"""Profiler: takes a profile of a part of a program, as TensorFlow's profiler does."""

from __future__ import annotations

from typing import Any

from npu_bridge.profiler import _session_profile


class Profiler:
  """A context manager around what is to be profiled.

      with Profiler(output_path="/tmp/profile"):
        sess.run(train_op)

  The profile is in the folder plugins/profile/<time> below the output path, for TensorBoard's profile page.
  """

  def __init__(self, *, level: str = "L0", aic_metrics: str = "", output_path: str = ""):
    """Prepares a profile; nothing starts yet.

    Args:
      level: of detail on the NPU; no effect here.
      aic_metrics: counters of the NPU; no effect here.
      output_path: the folder; "" is the current one. It is made when it is missing.

    Raises:
      ValueError: an argument is not str.
    """
    for name, value in (("level", level), ("aic_metrics", aic_metrics), ("output_path", output_path)):
      if not isinstance(value, str):
        raise ValueError(f"{name} is not str: got {value!r} of type {type(value).__name__}")
    self._output = output_path or "./"
    self._running = False

  def __enter__(self) -> Profiler:
    self.start()
    return self

  def __exit__(self, *unused: Any) -> None:
    self.stop()

  def start(self) -> None:
    """Starts the profile.

    Raises:
      RuntimeError: it runs already, another one does, or the folder cannot be made.
    """
    if self._running:
      raise RuntimeError("the Profiler runs already")
    _session_profile.start_profiler(self._output)
    self._running = True

  def stop(self) -> None:
    """Ends the profile and writes it.

    Raises:
      RuntimeError: it was not started, or cannot be written.
    """
    if not self._running:
      raise RuntimeError("the Profiler was not started")
    self._running = False
    _session_profile.stop_profiler()


__all__ = ["Profiler"]
