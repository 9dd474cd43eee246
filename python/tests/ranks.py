"""Runs a function of a test module on several ranks at once, each a process of its own.

    def on_each_rank(scale):                # the job: any function at the top of a test module
      return api.get_rank_id() * scale      # what JSON can carry; NumPy arrays come back as lists

    def test_something():
      assert ranks.run(2, on_each_rank, 10).results() == [0, 10]

A fork server imports TensorFlow and mxrec once and forks each rank before any session has run. It has its own process, so neither
sessions nor threads of the tests are in the ranks. A rank that is not done in time is killed; ranks die with the server, and
the server with the tests.

As a script (started by `run`): reads one request a line from standard input and writes one answer a line.
"""

from __future__ import annotations

import atexit
import dataclasses
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable
from typing import Any

SECONDS = 60
# Short, so that what hangs is named by the library, not by the deadline of the test.
LIMITS = {
  "MXREC_CONNECT_TIMEOUT": "30",
  "MXREC_STALL_WARNING": "5",
  "MXREC_STALL_ABORT": "20",
  "MXREC_HEARTBEAT_TIMEOUT": "20",
}
_WORLD_VARIABLES = ("RANK_", "CM_", "OMPI_", "PMI", "SLURM_", "HCCL_", "HOROVOD_", "MXREC_", "JOB_ID", "DEVICE_ID")


@dataclasses.dataclass
class Rank:
  """What became of one rank."""

  value: Any = None  # what the job returned
  error: str = ""  # its exception, with the traceback
  status: int | None = 0  # exit code; negative: the signal that ended it; None: it was not done in time
  output: str = ""  # what it printed, errors too
  seconds: float = 0.0  # until it was gone


@dataclasses.dataclass
class Outcome:
  """What became of all ranks, in their order."""

  ranks: list[Rank]

  def results(self) -> list[Any]:
    """What the job returned on each rank; an AssertionError that tells everything when one failed."""
    assert all(rank.status == 0 and not rank.error for rank in self.ranks), self.report()
    return [rank.value for rank in self.ranks]

  def errors(self) -> list[str]:
    """The exception on each rank; an AssertionError when one had none."""
    assert all(rank.error for rank in self.ranks), self.report()
    return [rank.error for rank in self.ranks]

  def report(self) -> str:
    """Everything about all ranks."""
    texts = []
    for number, rank in enumerate(self.ranks):
      texts.append(f"--- rank {number}: status {rank.status} after {rank.seconds:.1f} s, returned {rank.value!r}")
      texts += [rank.error, rank.output[-4000:]]
    return "\n".join(texts)


def run(
  size: int, job: Callable[..., Any], *arguments: Any, seconds: float = SECONDS, environment: dict[str, str] | None = None
) -> Outcome:
  """Runs job(*arguments) on `size` ranks.

  Args:
    size: the number of ranks.
    job: a function at the top of a module that can be imported from python/tests.
    *arguments: what JSON can carry.
    seconds: how long it may take.
    environment: variables for all ranks; None as a value unsets one.
  """
  folder = tempfile.mkdtemp(prefix="mxrec-ranks-")
  try:
    request = {
      "size": size,
      "module": job.__module__,
      "job": job.__name__,
      "arguments": arguments,
      "seconds": seconds,
      "folder": folder,
      "environment": {**LIMITS, **(environment or {})},
    }
    answer = _server().ask(request, seconds + 60)
    return Outcome([Rank(**rank) for rank in answer])
  finally:
    shutil.rmtree(folder, ignore_errors=True)


class _Server:
  def __init__(self) -> None:
    self.process = subprocess.Popen(
      [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1, start_new_session=True
    )
    atexit.register(self.stop)

  def ask(self, request: dict[str, Any], seconds: float) -> Any:
    timer = threading.Timer(seconds + 60, self.process.kill)  # the first answer waits for TensorFlow
    timer.start()
    try:
      self.process.stdin.write(json.dumps(request) + "\n")
      self.process.stdin.flush()
      line = self.process.stdout.readline()
    finally:
      timer.cancel()
    assert line, f"the fork server ended with status {self.process.poll()}"
    return json.loads(line)

  def stop(self) -> None:
    self.process.stdin.close()
    try:
      self.process.wait(10)
    except subprocess.TimeoutExpired:
      self.process.kill()


_started: _Server | None = None


def _server() -> _Server:
  global _started
  if _started is None or _started.process.poll() is not None:
    _started = _Server()
  return _started


# --- the server ---


def _plain(value: Any) -> Any:
  """For json: NumPy's arrays and numbers."""
  if hasattr(value, "tolist"):
    return value.tolist()
  return value.decode() if isinstance(value, bytes) else str(value)


def _die_with_parent() -> None:
  import ctypes

  ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


def _be_rank(request: dict[str, Any], number: int) -> None:
  """Never returns."""
  _die_with_parent()
  os.setpgid(0, 0)
  folder = pathlib.Path(request["folder"])
  output = os.open(folder / f"output-{number}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
  os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
  os.dup2(output, 1)
  os.dup2(output, 2)
  for name in list(os.environ):
    if name.startswith(_WORLD_VARIABLES) and name != "MXREC_LIBRARY_PATH":
      del os.environ[name]
  if request["size"] > 1:
    os.environ.update(RANK_SIZE=str(request["size"]), RANK_ID=str(number), MXREC_STORE_PATH=str(folder / "store"))
  for name, value in request["environment"].items():
    if value is None:
      os.environ.pop(name, None)
    else:
      os.environ[name] = value.replace("{rank}", str(number))
  result: dict[str, Any] = {"value": None, "error": ""}
  status = 0
  try:
    import importlib

    result["value"] = getattr(importlib.import_module(request["module"]), request["job"])(*request["arguments"])
  except SystemExit as error:
    status = error.code if isinstance(error.code, int) else int(error.code is not None)
  except BaseException:
    result["error"] = traceback.format_exc()
  (folder / f"result-{number}").write_text(json.dumps(result, default=_plain), encoding="utf-8")
  # As a script ends: exit handlers run, daemon threads are left behind.
  import atexit as exits

  exits._run_exitfuncs()
  sys.stdout.flush()
  sys.stderr.flush()
  os._exit(status)


def _serve(request: dict[str, Any]) -> list[dict[str, Any]]:
  start = time.monotonic()
  folder = pathlib.Path(request["folder"])
  left: dict[int, int] = {}
  for number in range(request["size"]):
    child = os.fork()
    if child == 0:
      _be_rank(request, number)
    left[child] = number
  found: list[dict[str, Any]] = [{} for _ in range(request["size"])]
  while left:
    done, status = os.waitpid(-1, os.WNOHANG)
    if done in left:
      found[left.pop(done)] = {"status": os.waitstatus_to_exitcode(status), "seconds": time.monotonic() - start}
    elif time.monotonic() - start > request["seconds"]:
      for child, number in left.items():
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        found[number] = {"status": None, "seconds": time.monotonic() - start}
      left = {}
    elif done == 0:
      time.sleep(0.005)
  for number, rank in enumerate(found):
    result = folder / f"result-{number}"
    if result.is_file():
      rank.update(json.loads(result.read_text(encoding="utf-8")))
    output = folder / f"output-{number}"
    rank["output"] = output.read_text(encoding="utf-8", errors="replace") if output.is_file() else ""
  return found


def _main() -> None:
  _die_with_parent()
  answers = os.fdopen(os.dup(1), "w", buffering=1)
  os.dup2(2, 1)  # whatever libraries print
  os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
  os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")
  import numpy  # noqa: F401
  import tensorflow.compat.v1 as tf

  tf.disable_v2_behavior()
  tf.logging.set_verbosity(tf.logging.ERROR)
  import npu_bridge.npu_init  # noqa: F401

  import mxrec  # noqa: F401

  for line in sys.stdin:
    answers.write(json.dumps(_serve(json.loads(line))) + "\n")
    answers.flush()


if __name__ == "__main__":
  sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
  _main()
