"""What a run says about itself: one line at its end with how many notices of old names were hidden and what was supplied."""

from __future__ import annotations

import atexit
import logging
import re
import sys
import threading
import warnings
from typing import Any

_OLD = re.compile(r"deprecat|non-resource variables are not supported in the long term", re.IGNORECASE)
_LIBRARIES = ("tensorflow", "tf_keras", "keras", "tensorflow_estimator")
SHOWN = 6


class Notices(logging.Filter):
  """Hides and counts TensorFlow's deprecation notices, and collects the names that were supplied."""

  def __init__(self) -> None:
    super().__init__()
    self.hidden = 0
    self.supplied: list[str] = []
    self._lock = threading.Lock()

  def supply(self, name: str) -> None:
    """Remembers a name that the script used and TensorFlow 2 lacks."""
    with self._lock:
      if name not in self.supplied:
        self.supplied.append(name)

  def filter(self, record: logging.LogRecord) -> bool:
    if record.levelno != logging.WARNING or not _OLD.search(str(record.msg)):
      return True
    with self._lock:
      self.hidden += 1
    return False

  def install(self) -> None:
    """Starts hiding, for TensorFlow's log and for the Python warnings of its libraries."""
    for name in ("tensorflow", "absl"):
      logging.getLogger(name).addFilter(self)
    show = warnings.showwarning

    def showwarning(message: Any, category: Any, filename: str, lineno: int, file: Any = None, line: Any = None) -> None:
      if self._is_library_notice(message, filename):
        with self._lock:
          self.hidden += 1
      else:
        show(message, category, filename, lineno, file, line)

    warnings.showwarning = showwarning

  def _is_library_notice(self, message: Any, filename: str) -> bool:
    text = str(message)
    if not _OLD.search(text):
      return False
    folders = filename.replace("\\", "/").split("/")
    return text.startswith("`tf.") or any(library in folders for library in _LIBRARIES)

  def line(self) -> str:
    """The line, empty when there is nothing to say."""
    parts = []
    if self.hidden:
      notices = "notice" if self.hidden == 1 else "notices"
      parts.append(f"{self.hidden} deprecation {notices} hidden (--show-deprecations shows them)")
    if self.supplied:
      names = sorted(re.sub(r"^tensorflow\b", "tf", name) for name in self.supplied)
      more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
      parts.append(f"supplied beyond TensorFlow: {', '.join(names[:SHOWN])}{more}")
    return f"mxrec run: {'; '.join(parts)}" if parts else ""

  def print_at_exit(self) -> None:
    """Prints the line to the error output when the process ends."""

    def say() -> None:
      text = self.line()
      if text:
        print(text, file=sys.__stderr__, flush=True)

    atexit.register(say)
