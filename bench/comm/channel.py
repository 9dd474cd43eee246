"""How run.py talks with the ranks of a contestant: two named pipes for each, FOLDER/NAME.RANK.in and .out; a message is a line.

A rank says `{"ready": facts}` (with its process id) and then answers commands until its input ends, in JSON: prepare CASE, run CASE
STEPS (the answer is the seconds), and what else the worker serves. What libraries print goes to standard error.
"""

from __future__ import annotations

import collections.abc
import json
import os
import pathlib
import time
import traceback
from typing import Any


class Channel:
  """The worker's end."""

  def __init__(self, folder: pathlib.Path, name: str, rank: int) -> None:
    os.dup2(2, 1)
    path = str(folder / f"{name}.{rank}")
    self._in = open(path + ".in", encoding="utf-8")
    self._out = open(path + ".out", "w", encoding="utf-8")

  def _say(self, message: dict[str, Any]) -> None:
    print(json.dumps(message), file=self._out, flush=True)

  def serve(self, facts: dict[str, Any], run: collections.abc.Callable[[str, int], None], **verbs: Any) -> None:
    """Answers until the input ends."""
    self._say({"ready": facts})
    for line in self._in:
      verb, *words = line.split()
      try:
        if verb == "run":
          begin = time.perf_counter()
          run(words[0], int(words[1]))
          self._say({"answer": time.perf_counter() - begin})
        else:
          self._say({"answer": verbs[verb](*words)})
      except BaseException:
        self._say({"error": traceback.format_exc()[-2000:]})


class Peer:
  """run.py's end of one rank's channel."""

  def __init__(self, folder: pathlib.Path, name: str, rank: int) -> None:
    self._path = str(folder / f"{name}.{rank}")
    for end in (".in", ".out"):
      os.mkfifo(self._path + end)
    # Opened for both, so that neither open waits for the other side.
    self._in = os.fdopen(os.open(self._path + ".in", os.O_RDWR), "w")
    self._out = os.open(self._path + ".out", os.O_RDWR)
    self._text = b""

  def send(self, *words: object) -> None:
    """One command."""
    print(*words, file=self._in, flush=True)

  def read(self, seconds: float, alive: collections.abc.Callable[[], bool]) -> dict[str, Any]:
    """The next message; RuntimeError when none comes or the rank says what went wrong."""
    import select

    deadline = time.monotonic() + seconds
    while b"\n" not in self._text:
      if select.select([self._out], [], [], 0.5)[0]:
        self._text += os.read(self._out, 1 << 16)
      elif not alive():
        raise RuntimeError("the process has ended")
      elif time.monotonic() > deadline:
        raise RuntimeError(f"no answer in {seconds:.0f} s")
    line, _, self._text = self._text.partition(b"\n")
    message = json.loads(line)
    if "error" in message:
      raise RuntimeError(message["error"])
    return message
