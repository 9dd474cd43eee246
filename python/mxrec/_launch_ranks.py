"""Starts processes, passes their output on line by line, and leaves none behind.

Each process leads a session of its own, so that it and all it starts can be ended together. Before the first one starts, a
watcher is forked: should the launcher die, by SIGKILL too, the watcher ends the processes. A process on another machine is
started by a guard there, which ends it when its connection goes.
"""

from __future__ import annotations

import ctypes
import dataclasses
import json
import os
import pathlib
import re
import selectors
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, BinaryIO

GUARD = "--guard"

_PR_SET_PDEATHSIG = 1
_MAX_LINE = 1 << 16
# mpirun puts this before each piece of output that it gets, also in the middle of a line.
_TAG = re.compile(rb"\[\d+,(\d+)\]<(?:stdout|stderr|stddiag)>:")
_BEGINNING_OF_TAG = re.compile(rb"\[[\d,]*(?:\](?:<(?:\w*>?)?)?)?\Z")
_COLOURS = (36, 32, 33, 35, 34, 31)
_FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@dataclasses.dataclass(frozen=True)
class Start:
  """One process. `rank` None: an mpirun, whose lines carry the ranks. `first_input`: for the guard on another machine."""

  rank: int | None
  command: Sequence[str]
  environment: dict[str, str]
  first_input: bytes = b""


@dataclasses.dataclass(frozen=True)
class Settings:
  """How to look after the processes.

  Attributes:
    linger: seconds from the first failure to SIGTERM for the others, so that they can say what they saw.
    grace: seconds from SIGTERM to SIGKILL.
    prefix: the rank stands before each line.
    output_folder: also write output below it.
    private_folder: to be removed when all have ended.
    verbose: say what is started.
  """

  linger: float = 2.0
  grace: float = 10.0
  prefix: bool = True
  output_folder: str | None = None
  private_folder: str = ""
  verbose: bool = False


def say(text: str) -> None:
  """A line of the launcher itself."""
  print(f"mxrec launch: {text}", file=sys.stderr, flush=True)


def _die_with(parent: int) -> Callable[[], None]:
  """For a child before exec: it gets SIGKILL when its parent dies, at once if that has happened."""
  prctl = ctypes.CDLL(None).prctl

  def prepare() -> None:
    prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    if os.getppid() != parent:
      os._exit(1)

  return prepare


def _signal_group(group: int, number: int) -> bool:
  """Signals a process and all it started; False when none is left."""
  try:
    os.killpg(group, number)
  except ProcessLookupError:
    return False
  except PermissionError:
    pass
  return True


def _end_groups(groups: Sequence[int], grace: float) -> None:
  """SIGTERM, and SIGKILL for what is left after the grace."""
  left = [group for group in groups if _signal_group(group, signal.SIGTERM)]
  deadline = time.monotonic() + grace
  while left and time.monotonic() < deadline:
    time.sleep(0.02)
    left = [group for group in left if _alive(group)]
  for group in left:
    _signal_group(group, signal.SIGKILL)


def _alive(group: int) -> bool:
  """Whether a group has a process that is no zombie."""
  if not _signal_group(group, 0):
    return False
  for entry in os.listdir("/proc"):
    if entry.isdigit():
      try:
        fields = pathlib.Path("/proc", entry, "stat").read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()
      except OSError:
        continue
      if int(fields[2]) == group and fields[0] not in ("Z", "X"):
        return True
  return False


class _Watcher:
  """A forked process that ends the groups it knows when this process is gone without saying so."""

  def __init__(self, settings: Settings):
    reader, self._writer = os.pipe()
    self._pid = os.fork()
    if self._pid == 0:
      try:
        self._watch(reader, settings)
      finally:
        os._exit(0)
    os.close(reader)

  def _watch(self, reader: int, settings: Settings) -> None:
    os.close(self._writer)
    os.setsid()
    for number in _FORWARDED:
      signal.signal(number, signal.SIG_IGN)
    null = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
      os.dup2(null, stream)
    groups: set[int] = set()
    with os.fdopen(reader, "r") as lines:
      for line in lines:
        if line == "bye\n":
          return
        number = int(line)
        if number > 0:
          groups.add(number)
        else:
          groups.discard(-number)
    _end_groups(sorted(groups), settings.grace)
    if settings.private_folder:
      shutil.rmtree(settings.private_folder, ignore_errors=True)

  def _tell(self, line: str) -> None:
    try:
      os.write(self._writer, line.encode())
    except BrokenPipeError:
      pass

  def add(self, group: int) -> None:
    self._tell(f"{group}\n")

  def remove(self, group: int) -> None:
    self._tell(f"-{group}\n")

  def close(self) -> None:
    self._tell("bye\n")
    os.close(self._writer)
    os.waitpid(self._pid, 0)


class _Stream:
  """One output of one process: cuts it into lines and writes each as a whole."""

  def __init__(self, process: _Process, source: BinaryIO, name: str):
    self._process, self._source, self._name = process, source, name
    self._rests: dict[int | None, bytes] = {}  # of each rank
    self._speaker = process.rank
    self._held = b""
    os.set_blocking(source.fileno(), False)

  def fileno(self) -> int:
    return self._source.fileno()

  def read(self) -> bool:
    """Takes what is there; False at the end."""
    while True:
      try:
        data = os.read(self.fileno(), 1 << 16)
      except BlockingIOError:
        return True
      except OSError:
        data = b""
      if not data:
        return False
      if self._process.rank is None:
        self._take_tagged(data)
      else:
        self._take(self._speaker, data)

  def _take_tagged(self, data: bytes) -> None:
    """Output of mpirun: what follows a tag is that rank's."""
    data = self._held + data
    half = _BEGINNING_OF_TAG.search(data)
    self._held = data[half.start() :] if half else b""
    mine, *tagged = _TAG.split(data[: half.start()] if half else data)
    self._take(self._speaker, mine)
    for rank, text in zip(tagged[::2], tagged[1::2]):
      self._speaker = int(rank)
      self._take(self._speaker, text)
      if text.endswith(b"\n"):
        self._speaker = None  # what comes without a tag is mpirun's own

  def _take(self, rank: int | None, data: bytes) -> None:
    # Progress bars end their lines with a carriage return alone.
    *lines, rest = re.split(rb"\r?\n|\r(?=.)", self._rests.get(rank, b"") + data, flags=re.DOTALL)
    while len(rest) > _MAX_LINE:
      lines.append(rest[:_MAX_LINE])
      rest = rest[_MAX_LINE:]
    self._rests[rank] = rest
    self._process.write(rank, self._name, lines)

  def close(self) -> None:
    self._take(self._speaker, self._held)
    for rank, rest in self._rests.items():
      if rest:
        self._process.write(rank, self._name, [rest])
    self._rests, self._held = {}, b""
    self._source.close()


class _Process:
  """A started process."""

  def __init__(self, start: Start, settings: Settings, colours: dict[str, bool]):
    self.rank = start.rank
    self.guarded = bool(start.first_input)
    self._settings, self._colours = settings, colours
    self._files: dict[tuple[int, str], BinaryIO] = {}
    stdin: Any = subprocess.PIPE if start.first_input else (None if start.rank in (0, None) else subprocess.DEVNULL)
    self.popen = subprocess.Popen(
      start.command,
      env=start.environment,
      stdin=stdin,
      stdout=subprocess.PIPE,
      stderr=subprocess.PIPE,
      start_new_session=True,
      preexec_fn=_die_with(os.getpid()),
    )
    if start.first_input and self.popen.stdin is not None:
      try:
        self.popen.stdin.write(start.first_input)
        self.popen.stdin.flush()
      except BrokenPipeError:
        pass
    self.streams = [_Stream(self, self.popen.stdout, "stdout"), _Stream(self, self.popen.stderr, "stderr")]

  @property
  def name(self) -> str:
    return "mpirun" if self.rank is None else f"rank {self.rank}"

  def write(self, rank: int | None, stream: str, lines: list[bytes]) -> None:
    """Writes whole lines of a rank to the launcher's own output of that name, and to the rank's file."""
    for line in lines:
      if self._settings.output_folder and rank is not None:
        self._file(rank, stream).write(line + b"\n")
      out = sys.stdout.buffer if stream == "stdout" else sys.stderr.buffer
      prefix = b"" if not self._settings.prefix or rank is None else f"[{rank}] ".encode()
      if prefix and self._colours[stream]:
        prefix = b"\x1b[%dm%b\x1b[0m" % (_COLOURS[(rank or 0) % len(_COLOURS)], prefix)
      try:
        out.write(prefix + line + b"\n")
        out.flush()
      except BrokenPipeError:
        # Whoever read our output has gone; the ranks go on.
        os.dup2(os.open(os.devnull, os.O_WRONLY), out.fileno())

  def _file(self, rank: int, stream: str) -> BinaryIO:
    file = self._files.get((rank, stream))
    if file is None:
      folder = pathlib.Path(self._settings.output_folder or "") / f"rank.{rank}"
      folder.mkdir(parents=True, exist_ok=True)
      file = self._files[rank, stream] = (folder / stream).open("wb", buffering=0)
    return file

  def close(self) -> None:
    """Takes what is left of its output."""
    for stream in self.streams:
      stream.close()
    for file in self._files.values():
      file.close()
    if self.popen.stdin is not None:
      self.popen.stdin.close()


def _how(code: int, guarded: bool) -> str:
  """What a return code of subprocess means, in words; that of a guard tells how its rank ended."""
  if guarded and 128 < code < 255:  # ssh itself ends with 255
    code = 128 - code
  if code >= 0:
    return f"ended with exit code {code}"
  try:
    return f"was ended by {signal.Signals(-code).name}"
  except ValueError:
    return f"was ended by signal {-code}"


def _exit_code(code: int) -> int:
  return code if code >= 0 else 128 - code


class _Run:
  """All processes of one launch. One thread."""

  def __init__(self, settings: Settings):
    self._settings = settings
    self._processes: list[_Process] = []
    self._running: list[_Process] = []
    self._selector = selectors.DefaultSelector()
    self._signals: list[int] = []
    self._wake_reader, self._wake_writer = os.pipe()
    os.set_blocking(self._wake_reader, False)
    os.set_blocking(self._wake_writer, False)
    self._selector.register(self._wake_reader, selectors.EVENT_READ, None)
    self._failure: int | None = None
    self._stage = 0  # of ending: 1 others may still speak, 2 SIGTERM was sent, 3 SIGKILL was
    self._deadline = float("inf")

  def __call__(self, starts: Sequence[Start]) -> int:
    watcher = _Watcher(self._settings)
    before = {number: signal.signal(number, self._note) for number in (*_FORWARDED, signal.SIGCHLD)}
    old_wakeup = signal.set_wakeup_fd(self._wake_writer, warn_on_full_buffer=False)
    try:
      self._start(starts, watcher)
      while self._running:
        self._step()
      return self._failure or 0
    finally:
      groups = [process.popen.pid for process in self._processes]
      _end_groups(groups, self._settings.grace)
      for process in self._processes:
        process.popen.wait()
        for stream in process.streams:
          stream.read()
        process.close()
      for group in groups:
        watcher.remove(group)
      watcher.close()
      signal.set_wakeup_fd(old_wakeup)
      for number, handler in before.items():
        signal.signal(number, handler)
      self._selector.close()
      os.close(self._wake_reader)
      os.close(self._wake_writer)

  def _note(self, number: int, frame: Any) -> None:
    if number != signal.SIGCHLD:
      self._signals.append(number)

  def _start(self, starts: Sequence[Start], watcher: _Watcher) -> None:
    coloured = "NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb"
    colours = {"stdout": coloured and sys.stdout.isatty(), "stderr": coloured and sys.stderr.isatty()}
    for start in starts:
      if self._signals:
        break
      try:
        process = _Process(start, self._settings, colours)
      except (OSError, subprocess.SubprocessError) as error:
        say(f"{start.command[0]} cannot be started: {error}")
        self._failure = 127
        self._end(signal.SIGTERM)
        return
      watcher.add(process.popen.pid)
      self._processes.append(process)
      self._running.append(process)
      for stream in process.streams:
        self._selector.register(stream, selectors.EVENT_READ, stream)
      if self._settings.verbose:
        say(f"{process.name} is process {process.popen.pid}")

  def _step(self) -> None:
    for key, _ in self._selector.select(max(0.0, min(self._deadline - time.monotonic(), 1.0))):
      if key.data is None:
        while True:
          try:
            os.read(self._wake_reader, 512)
          except BlockingIOError:
            break
      elif not key.data.read():
        self._selector.unregister(key.data)
    while self._signals:
      self._on_signal(self._signals.pop(0))
    for process in list(self._running):
      code = process.popen.poll()
      if code is not None:
        self._running.remove(process)
        self._on_end(process, code)
    if time.monotonic() >= self._deadline:
      self._end(signal.SIGTERM if self._stage < 2 else signal.SIGKILL)

  def _on_signal(self, number: int) -> None:
    if self._stage >= 2:
      self._end(signal.SIGKILL)
      return
    say(f"{signal.Signals(number).name}: ending all ranks")
    self._failure = self._failure or 128 + number
    self._end(number)

  def _on_end(self, process: _Process, code: int) -> None:
    for stream in process.streams:  # its last words before those of the launcher
      stream.read()
    if code == 0 or self._failure is not None:
      if code != 0 and self._settings.verbose:
        say(f"{process.name} {_how(code, process.guarded)}")
      return
    self._failure = _exit_code(code)
    others = ", ".join(other.name for other in self._running)
    say(f"{process.name} {_how(code, process.guarded)}" + (f"; ending {others}" if others else ""))
    self._stage, self._deadline = 1, time.monotonic() + self._settings.linger

  def _end(self, number: int) -> None:
    """Signals all that run, and sets when the next, harder signal is due."""
    hard = number == signal.SIGKILL
    if hard and self._stage == 2 and self._running:
      say(f"SIGKILL for {', '.join(process.name for process in self._running)}")
    self._stage = 3 if hard else 2
    self._deadline = time.monotonic() + (1.0 if hard else self._settings.grace)
    for process in self._running:
      _signal_group(process.popen.pid, number)


def run(starts: Sequence[Start], settings: Settings) -> int:
  """Starts all and returns when none is left: 0, or the exit code of the first that failed (128 + the signal that ended it)."""
  return _Run(settings)(starts)


def guard() -> int:
  """On another machine: starts what the first line of standard input says, and ends it when standard input ends.

  The line is JSON: {"command": [...], "environment": {...}, "folder": "...", "grace": seconds}.
  """
  message = json.loads(sys.stdin.buffer.readline())
  environment = {**os.environ, **message["environment"]}
  if os.path.isdir(message["folder"]):
    os.chdir(message["folder"])
  process = subprocess.Popen(
    message["command"],
    env=environment,
    stdin=subprocess.DEVNULL,
    start_new_session=True,
    preexec_fn=_die_with(os.getpid()),
  )
  for number in _FORWARDED:
    signal.signal(number, lambda got, _: _signal_group(process.pid, got))
  with selectors.DefaultSelector() as selector:
    selector.register(0, selectors.EVENT_READ)
    while process.poll() is None:
      if selector.select(0.1) and not os.read(0, 1 << 16):
        break
  _end_groups([process.pid], message["grace"])
  return _exit_code(process.wait())
