"""Collectives and distributed steps through TensorFlow on two ranks, beside the raw engines and, where it is installed, Horovod.

usage: run.py --raw PROGRAM --out FOLDER [--horovod PYTHON] [--turns 5] [--only GROUP ...]

A contestant is a pair of processes (tf_worker.py, raw_worker.cc), each rank with one thread of TensorFlow. In a group all
contestants are there at once and take turns (A B C, A B C, ...); those whose turn it is not are stopped (SIGSTOP), so that no
background thread of theirs takes part. A time is that of the slower rank. Figures are medians over the turns, ratios medians of the
ratio within a turn; the first turn does not count. What cannot be had is skipped, with the reason. Groups: dense, sparse, dlrm.
Writes a table and OUT/comm_tf.json. Docs: docs/performance.md.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import os
import pathlib
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any

from channel import Peer

HERE = pathlib.Path(__file__).resolve().parent
RANKS = 2
START_SECONDS, ANSWER_SECONDS = 180, 120
ALLREDUCE = {1 << 10: "1 KiB", 1 << 20: "1 MiB", 64 << 20: "64 MiB"}
# Steps of a turn.
STEPS = {
  "allreduce-1024": 200,
  "allreduce-1048576": 40,
  "allreduce-67108864": 4,
  "gradients-200": 30,
  "slices": 5,
  "table": 5,
  "dlrm": 20,
}
RAW_SYSTEMS = ("mpi", "ring", "ring_chunked", "halving_doubling")
RAW_STEPS = {1 << 10: 1000, 1 << 20: 40, 64 << 20: 4}
_STALE = ("RANK_", "CM_", "OMPI_", "PMI", "SLURM_", "HCCL_", "HOROVOD_", "MXREC_", "JOB_ID")
MPIRUN = ("mpirun", "--allow-run-as-root", "--bind-to", "none", "-np", str(RANKS))


@dataclasses.dataclass
class Group:
  """The ranks of one contestant, or of several independent ones that run at the same time."""

  name: str
  peers: list[Peer]
  processes: list[subprocess.Popen]
  pids: list[int] = dataclasses.field(default_factory=list)
  seconds: dict[str, list[float]] = dataclasses.field(default_factory=dict)

  def _alive(self) -> bool:
    return all(process.poll() is None for process in self.processes)

  def ready(self) -> None:
    """Waits until all ranks are there."""
    self.pids = [peer.read(START_SECONDS, self._alive)["ready"]["pid"] for peer in self.peers]
    self.stop()

  def _signal(self, number: signal.Signals) -> None:
    for pid in self.pids:
      with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)

  def stop(self) -> None:
    """Lets the ranks stand still."""
    self._signal(signal.SIGSTOP)

  def ask(self, *words: object) -> list[Any]:
    """The answers of all ranks to one command."""
    self._signal(signal.SIGCONT)
    try:
      for peer in self.peers:
        peer.send(*words)
      return [peer.read(ANSWER_SECONDS, self._alive)["answer"] for peer in self.peers]
    finally:
      self.stop()

  def turn(self, case: str, steps: int, counts: bool) -> None:
    """One turn: the seconds of a step on the slower rank."""
    took = max(self.ask("run", case, steps)) / steps
    if counts:
      self.seconds.setdefault(case, []).append(took)

  def end(self) -> None:
    """Ends the processes."""
    self._signal(signal.SIGCONT)
    self._signal(signal.SIGTERM)
    for process in self.processes:
      process.terminate()
    for process in self.processes:
      try:
        process.wait(10)
      except subprocess.TimeoutExpired:
        self._signal(signal.SIGKILL)
        process.kill()
        process.wait()


class Starter:
  """Starts contestants below a folder of their own."""

  def __init__(self, folder: pathlib.Path, raw: pathlib.Path, horovod: pathlib.Path | None) -> None:
    self._folder, self._raw, self._horovod = folder, raw, horovod
    self._environment = {name: value for name, value in os.environ.items() if not name.startswith(_STALE)}
    self._environment.update(OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1", PYTHONUNBUFFERED="1")

  def _start(self, command: list[object], **more: str) -> subprocess.Popen:
    with open(self._folder / "log", "a", encoding="utf-8") as log:
      # A session of their own: Ctrl-C reaches this process, which ends them.
      return subprocess.Popen(
        [str(word) for word in command],
        env={**self._environment, **more},
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
        start_new_session=True,
      )

  def _worker(self, python: str | pathlib.Path, system: str, name: str) -> list[object]:
    return [python, HERE / "tf_worker.py", "--system", system, "--folder", self._folder, "--name", name]

  def start(self, name: str) -> Group:
    """A contestant by its name."""
    peers = [Peer(self._folder, name, rank) for rank in range(RANKS)]
    if name in ("mxrec shm", "mxrec gloo"):
      processes = [
        self._start(
          [*self._worker(sys.executable, "mxrec", name), "--rank", rank],
          RANK_ID=str(rank),
          RANK_SIZE=str(RANKS),
          MXREC_STORE_PATH=str(self._folder / f"{name}.address"),
          MXREC_TRANSPORT=name.split()[1],
        )
        for rank in range(RANKS)
      ]
    elif name == "mxrec alone":  # as many processes, which know nothing of each other
      processes = [
        self._start([*self._worker(sys.executable, "mxrec", name), "--rank", rank, "--seed", rank]) for rank in range(RANKS)
      ]
    elif name == "mxrec mpi":
      processes = [self._start([*MPIRUN, *self._worker(sys.executable, "mxrec", name)], MXREC_TRANSPORT="mpi")]
    elif name == "raw":
      processes = [self._start([*MPIRUN, self._raw, self._folder, name])]
    elif name == "Horovod mpi":
      processes = [self._start([*MPIRUN, *self._worker(self._horovod, "horovod", name)])]
    else:
      run = [self._horovod.parent / "horovodrun", "--gloo", "-np", RANKS, "-H", f"localhost:{RANKS}", "--network-interfaces", "lo"]
      processes = [self._start([*run, *self._worker(self._horovod, "horovod", name)])]
    return Group(name, peers, processes)

  def log(self) -> str:
    """What the processes wrote last."""
    return "\n".join((self._folder / "log").read_text(encoding="utf-8", errors="replace").splitlines()[-12:])


class Report:
  """The rows, on the terminal and for the file."""

  def __init__(self) -> None:
    self.rows: list[dict[str, Any]] = []
    self.skipped: list[str] = []

  def skip(self, what: str, why: str) -> None:
    """Says what is left out."""
    self.skipped.append(f"{what}: {why}")
    print(f"SKIPPED {what}: {why}", flush=True)

  def note(self, what: str, figure: float, unit: str, **more: Any) -> None:
    """A figure without a bar."""
    self.rows.append({"what": what, "figure": figure, "unit": unit, **more})
    print(f"{what:<72} {figure:9.3f}  {unit}", flush=True)

  def add(self, what: str, figure: float, bar: float, at_least: bool = False, **more: Any) -> None:
    """A figure against its bar."""
    met = figure >= bar if at_least else figure <= bar
    self.rows.append({"what": what, "figure": figure, "bar": bar, "met": met, **more})
    print(f"{what:<72} {figure:9.3f}  {'>=' if at_least else '<='} {bar:6.3f}  {'met' if met else 'MISSED'}", flush=True)


class Field:
  """The contestants of a group, while they are there."""

  def __init__(self, starter: Starter, report: Report, names: list[str]) -> None:
    self._report = report
    self.groups: dict[str, Group] = {}
    started = []
    for name in names:
      started.append(starter.start(name))
    for group in started:
      try:
        group.ready()
        self.groups[group.name] = group
      except (RuntimeError, OSError) as error:
        group.end()
        report.skip(group.name, f"{error}; the last words of its log:\n{starter.log()}")

  def play(self, case_of: Callable[[str], dict[str, int]], turns: int) -> None:
    """All turns. case_of(contestant): its cases, with the steps of a turn."""
    for name, group in list(self.groups.items()):
      for case in case_of(name):
        try:
          group.ask("prepare", case)
        except RuntimeError as error:
          self._report.skip(f"{name}, {case}", str(error))
          group.end()
          del self.groups[name]
          break
    for turn in range(-1, turns):
      for name, group in self.groups.items():
        for case, steps in case_of(name).items():
          group.turn(case, steps, turn >= 0)

  def seconds(self, name: str, case: str) -> list[float] | None:
    """Seconds of a step by turn; None when there are none."""
    return self.groups[name].seconds.get(case) if name in self.groups else None

  def end(self) -> None:
    """Ends all."""
    for group in self.groups.values():
      group.end()


@contextlib.contextmanager
def field(starter: Starter, report: Report, names: list[str]) -> Iterator[Field]:
  """Contestants that are ended in the end."""
  made = Field(starter, report, names)
  try:
    yield made
  finally:
    made.end()


def ratio(ours: list[float], others: list[list[float]]) -> float:
  """Median over turns of ours / the best of the others."""
  return statistics.median(mine / min(theirs) for mine, theirs in zip(ours, zip(*others)))


def raw_cases() -> dict[str, int]:
  """The cases of raw_worker."""
  return {f"{system}:{size}": RAW_STEPS[size] for size in ALLREDUCE for system in RAW_SYSTEMS}


def versus_horovod(play: Field, report: Report, case: str, title: str, bar: float) -> None:
  """Ours beside Horovod, transport by transport."""
  for transport in ("gloo", "mpi"):
    ours, theirs = play.seconds(f"mxrec {transport}", case), play.seconds(f"Horovod {transport}", case)
    if ours and theirs:
      report.add(f"{title}: mxrec / Horovod, both over {transport}", ratio(ours, [theirs]), bar)
  ours = play.seconds("mxrec shm", case)
  theirs = [found for found in (play.seconds(f"Horovod {t}", case) for t in ("gloo", "mpi")) if found]
  if ours and theirs:
    report.note(f"{title}: mxrec (shared memory) / Horovod's best", ratio(ours, theirs), "")


def times(play: Field, report: Report, case: str, title: str, scale: float = 1e3, unit: str = "ms") -> None:
  """The time of each contestant."""
  for name in play.groups:
    if taken := play.seconds(name, case):
      report.note(f"{title}: {name}", statistics.median(taken) * scale, unit, turns=[one * scale for one in taken])


def dense(starter: Starter, report: Report, turns: int, peers: list[str]) -> None:
  """allreduce and the gradients of a step."""
  ours = {case: steps for case, steps in STEPS.items() if case.startswith(("allreduce", "gradients"))}
  with field(starter, report, ["mxrec shm", "mxrec gloo", "mxrec mpi", "raw", *peers]) as play:
    play.play(lambda name: raw_cases() if name == "raw" else ours, turns)
    for size, label in ALLREDUCE.items():
      case, title = f"allreduce-{size}", f"allreduce {label}"
      times(play, report, case, title)
      raw = {system: play.seconds("raw", f"{system}:{size}") for system in RAW_SYSTEMS}
      for system, taken in raw.items():
        if taken:
          report.note(f"{title}: raw {system}", statistics.median(taken) * 1e3, "ms")
      mine = play.seconds("mxrec shm", case)
      if mine and size == 1 << 10:
        report.add(f"{title}, shared memory, ms", statistics.median(mine) * 1e3, 0.3)
      if size == 64 << 20 and mine and all(raw.values()):
        report.add(f"{title}: mxrec (shared memory) / best raw engine", ratio(mine, list(raw.values())), 1.1)
        tcp = play.seconds("mxrec gloo", case)
        gloo = [taken for system, taken in raw.items() if system != "mpi"]
        if tcp:
          report.add(f"{title}: mxrec over gloo / Gloo's best (TCP)", ratio(tcp, gloo), 1.1)
      versus_horovod(play, report, case, title, {1 << 10: 0.25, 1 << 20: 0.5}.get(size, 1.1))
    title = "200 gradients of 16 KiB"
    times(play, report, "gradients-200", title)
    versus_horovod(play, report, "gradients-200", title, 0.6)
    if "mxrec shm" in play.groups:
      steps = 50
      before = play.groups["mxrec shm"].ask("counters")[0]
      play.groups["mxrec shm"].ask("run", "gradients-200", steps)
      after = play.groups["mxrec shm"].ask("counters")[0]
      operations = (after["operations"] - before["operations"]) / steps
      report.note(f"{title}: reductions a step that 200 names were packed into", operations, "")


def sparse(starter: Starter, report: Report, turns: int, peers: list[str]) -> None:
  """Sparse gradients: of variables, and of an MP table."""

  def cases(name: str) -> dict[str, int]:
    names = ("slices", "table") if name.startswith("mxrec") else ("slices",)
    return {case: STEPS[case] for case in names}

  with field(starter, report, ["mxrec shm", "mxrec gloo", "mxrec mpi", *peers]) as play:
    play.play(cases, turns)
    title = "sparse gradients, 65,536 ids a rank, each twice, dim 64"
    for case, of in (("slices", f"{title}, tf.IndexedSlices"), ("table", f"{title}, whole step of an MP table")):
      times(play, report, case, of)
    versus_horovod(play, report, "slices", f"{title}, tf.IndexedSlices", 0.25)
    for transport in ("gloo", "mpi"):
      ours, theirs = play.seconds(f"mxrec {transport}", "table"), play.seconds(f"Horovod {transport}", "slices")
      if ours and theirs:
        report.note(f"{title}: MP table's step / Horovod's allgather, {transport}", ratio(ours, [theirs]), "")
    if group := play.groups.get("mxrec shm"):
      distinct = group.ask("distinct", "table")
      dim = distinct[0]["dim"]
      bounds = {
        # Each id that another rank owns: its number, the row and its gradient.
        "table": ("MP table", sum(one["elsewhere"] for one in distinct) * (8 + 2 * 4 * dim)),
        # What one rank has, the other must get: the number and the gradient of each distinct id.
        "slices": ("tf.IndexedSlices", sum(one["distinct"] for one in distinct) * (8 + 4 * dim)),
      }
      for case, (of, bound) in bounds.items():
        before, steps = group.ask("counters"), 4
        group.ask("run", case, steps)
        sent = sum(b["data_bytes"] - a["data_bytes"] for a, b in zip(before, group.ask("counters"))) / steps
        report.note(f"{title}, {of}: bytes of a step", sent / 1e6, "MB")
        report.add(f"{title}, {of}: bytes / lower bound", sent / bound, 1.05)


def dlrm(starter: Starter, report: Report, turns: int, _peers: list[str]) -> None:
  """26 MP tables on two ranks beside two processes that know nothing of each other."""
  with field(starter, report, ["mxrec shm", "mxrec alone"]) as play:
    play.play(lambda name: {"dlrm": STEPS["dlrm"]}, turns)
    title = "DLRM, 26 tables, 2,048 samples a rank, one thread a rank"
    for name, of in (("mxrec shm", "2 ranks, MP tables"), ("mxrec alone", "2 unconnected processes")):
      if taken := play.seconds(name, "dlrm"):
        report.note(f"{title}: {of}, steps/s", 1 / statistics.median(taken), "", turns=taken)
    ranks, alone = play.seconds("mxrec shm", "dlrm"), play.seconds("mxrec alone", "dlrm")
    if ranks and alone:
      report.add(f"{title}: 2 ranks / unconnected", 1 / ratio(ranks, [alone]), 0.8, at_least=True)
    if "mxrec shm" in play.groups:
      found = play.groups["mxrec shm"].ask("exchanges", "dlrm")[0]
      exchanges = sum(count for kind, count in found.items() if kind.startswith("MxrecExchange"))
      report.add("DLRM: exchanges a step", exchanges, 3, ops=found)


GROUPS = {"dense": dense, "sparse": sparse, "dlrm": dlrm}


def main() -> None:
  """Runs the groups, prints, writes."""
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument("--raw", type=pathlib.Path, required=True, help="the program raw_worker")
  parser.add_argument("--out", type=pathlib.Path, required=True, help="folder for the figures")
  parser.add_argument("--horovod", type=pathlib.Path, help="a Python that has Horovod")
  parser.add_argument("--turns", type=int, default=5)
  parser.add_argument("--only", nargs="*", choices=GROUPS, default=list(GROUPS))
  args = parser.parse_args()
  # So that the contestants are ended then too.
  signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
  report = Report()
  peers = []
  if args.horovod is None:
    report.skip("Horovod", "not asked for (make bench-comm ARGS=--horovod)")
  elif not args.horovod.exists():
    report.skip("Horovod", "not installed (scripts/install_horovod.sh says why)")
  else:
    peers = ["Horovod gloo", "Horovod mpi"]
  if shutil.which("mpirun") is None:
    report.skip("everything over Open MPI", "mpirun (package openmpi-bin) is not there")
  begin = time.time()
  for name in args.only:
    folder = pathlib.Path(tempfile.mkdtemp(prefix="mxrec-comm-bench-"))
    try:
      GROUPS[name](Starter(folder, args.raw.resolve(), args.horovod.absolute() if peers else None), report, args.turns, peers)
    finally:
      shutil.rmtree(folder, ignore_errors=True)
  args.out.mkdir(parents=True, exist_ok=True)
  result = {"subject": "comm_tf", "seconds": time.time() - begin, "skipped": report.skipped, "rows": report.rows}
  (args.out / "comm_tf.json").write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
  main()
