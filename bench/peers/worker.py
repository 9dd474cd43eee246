"""How a contestant's process talks with run.py, in lines on standard input and output.

It loads its table, says `{"ready": {facts}}`, and then answers requests until its input ends:
  run SET FIRST COUNT   runs batches FIRST .. FIRST + COUNT - 1 of a set          -> {"seconds": s}
  check                 values that must agree between contestants, if it has any -> {"check": [...] or null}
  trace SET             microseconds of each op of a step, if it can tell         -> {"trace": {...} or null}
What libraries print goes to standard error.
"""

import collections.abc
import json
import os
import sys
import time


class Channel:
  """The line to run.py. Takes standard output away from everybody else."""

  def __init__(self) -> None:
    self._out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

  def _say(self, message: dict) -> None:
    print(json.dumps(message), file=self._out, flush=True)

  def serve(
    self,
    facts: dict,
    run: collections.abc.Callable[[str, int], object],
    check: collections.abc.Callable[[], list] | None = None,
    trace: collections.abc.Callable[[str], dict] | None = None,
  ) -> None:
    """Answers until the input ends. `run(set, batch)` handles one batch."""
    self._say({"ready": facts})
    for line in sys.stdin:
      verb, *words = line.split()
      if verb == "run":
        name, first, count = words[0], int(words[1]), int(words[2])
        begin = time.perf_counter()
        for batch in range(first, first + count):
          run(name, batch)
        self._say({"seconds": time.perf_counter() - begin})
      elif verb == "check":
        self._say({"check": check() if check else None})
      elif verb == "trace":
        self._say({"trace": trace(words[0]) if trace else None})
      else:
        raise ValueError(f"expected run, check or trace, got {line!r}")
