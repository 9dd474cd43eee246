"""Speed of mxrec beside other libraries, each in an environment and a process of its own.

usage: run.py --out FOLDER --work FOLDER [--quick] [--no-peers] [--keys N] [--rows NAME ...]

The contestants of a row load their tables, then take turns (A B C, A B C, ...): each runs the same batches of the same stream, and
answers with the seconds. Every turn has fresh batches; the first turn does not count. A figure is the median over the turns
of the ratio within a turn. What cannot be had is skipped, with the reason; rows whose tables do not fit into memory together are
run in parts, each with the first contestant, or with fewer keys, which is said.

Writes a table, OUT/peers.json (all rows; rows run earlier stay in it) and OUT/peers.md. Every process has huge pages
(GLIBC_TUNABLES=glibc.malloc.hugetlb=1), one thread, one CPU. Method and bars: docs/performance.md.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import pathlib
import statistics
import subprocess
import sys

import keys as key_files

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
STREAMS = ("uniform", "zipf")
DLRM_SAMPLES = 2048


@dataclasses.dataclass(frozen=True)
class Contestant:
  """A process to start, and which of its sets to run."""

  name: str
  environment: str  # own, tensorflow216, fbgemm or engine
  arguments: tuple[str, ...]
  row_bytes: int  # resident bytes a key
  mode: str = ""  # prefix of the set's name
  units: int = key_files.BATCH  # what a batch counts as


@dataclasses.dataclass(frozen=True)
class Bar:
  """rate of `fast` / rate of `slow` must be at least `bar` (None: only reported)."""

  fast: str
  slow: str
  bar: float | None


@dataclasses.dataclass(frozen=True)
class Row:
  """Contestants that run together. Ratios are of the same turn."""

  name: str
  title: str
  contestants: tuple[Contestant, ...]
  bars: tuple[Bar, ...]
  batches: int  # of a turn
  unit: str = "M ids/s"
  scale: float = 1e6


def tf(name: str, environment: str, rows: str, model: str, dim: int, slots: int, *more: str, **fields) -> Contestant:
  """A process of tf_worker.py; `slots`: floats of optimizer state for each value."""
  floats = 4 * dim * (1 + slots)
  per_key = {"mxrec": floats + 20, "variable": floats + 4 * dim, "tfra": int(1.7 * floats) + 40 * (1 + slots), "constant": 0}
  arguments = ("tf_worker.py", "--rows", rows, "--model", model, "--dim", str(dim), *more)
  return Contestant(name, environment, arguments, per_key[rows], **fields)


def engine(dim: int, mode: str) -> Contestant:
  """The engine's own step."""
  return Contestant(f"engine {mode}", "engine", ("--dim", str(dim)), 8 * dim + 20, mode + "/")


def fbgemm(dim: int, mode: str) -> Contestant:
  """FBGEMM's step."""
  return Contestant(f"FBGEMM {mode}", "fbgemm", ("fbgemm_worker.py", "--dim", str(dim)), 8 * dim, mode + "/")


def engine_row(dim: int) -> Row:
  """Without TensorFlow: the engine and FBGEMM."""
  return Row(
    f"engine-{dim}",
    f"engine, whole Adagrad step without TensorFlow, dim {dim}",
    (engine(dim, "dense"), engine(dim, "pooled"), fbgemm(dim, "dense"), fbgemm(dim, "pooled")),
    (
      Bar("engine dense", "FBGEMM dense", 3.0 if dim == 16 else 2.3),
      Bar("engine pooled", "engine dense", 1.5),
      Bar("engine pooled", "FBGEMM pooled", 2.5),
    ),
    batches=10,
  )


def step_row(dim: int, optimizer: str) -> Row:
  """A step of TensorFlow that is little more than a lookup and an update."""
  slots, more = (1, ()) if optimizer == "adagrad" else (2, ("--optimizer", "adam"))
  tfra = tf("TFRA", "tensorflow216", "tfra", "squares", dim, slots, *more)
  contestants = (tf("mxrec", "own", "mxrec", "squares", dim, slots, *more), tfra)
  bars = (Bar("mxrec", "TFRA", 7.0 if optimizer == "adagrad" else 10.0),)
  if optimizer == "adagrad":
    contestants += (
      tf("stock 2.16.2", "tensorflow216", "variable", "squares", dim, slots),
      tf("stock own", "own", "variable", "squares", dim, slots),
    )
    bars = (Bar("mxrec", "stock 2.16.2", 1.3), Bar("mxrec", "stock own", 4.0), *bars)
  title = f"TensorFlow step (lookup, sum of squares, {optimizer.capitalize()}), dim {dim}"
  return Row(f"step-{optimizer}-{dim}", title, contestants, bars, batches=6)


def dlrm_row() -> Row:
  """A whole model."""

  def one(name: str, environment: str, rows: str) -> Contestant:
    return tf(name, environment, rows, "dlrm", 16, 1, units=DLRM_SAMPLES)

  contestants = (
    one("mxrec", "own", "mxrec"),
    one("constant rows", "own", "constant"),
    one("stock 2.16.2", "tensorflow216", "variable"),
    one("stock own", "own", "variable"),
    one("TFRA", "tensorflow216", "tfra"),
  )
  bars = (Bar("mxrec", "constant rows", 0.75), *(Bar("mxrec", peer, None) for peer in ("stock 2.16.2", "stock own", "TFRA")))
  title = "DLRM end to end (26 slots, 13 numbers, batch 2048, dim 16, Adagrad)"
  return Row("dlrm", title, contestants, bars, batches=15, unit="k samples/s", scale=1e3)


def pooled_row(dim: int) -> Row:
  """Pooled sparse ids."""
  contestants = (
    tf("mxrec pooled", "own", "mxrec", "pooled", dim, 1, mode="pooled/"),
    tf("mxrec dense", "own", "mxrec", "pooled", dim, 1, mode="dense/"),
    fbgemm(dim, "pooled"),
  )
  bars = (Bar("mxrec pooled", "mxrec dense", 1.5), Bar("mxrec pooled", "FBGEMM pooled", 2.5))
  return Row(f"pooled-{dim}", f"TensorFlow step, SparseTensor in bags of 8, Adagrad, dim {dim}", contestants, bars, batches=8)


def tables_row() -> Row:
  """Many tables in one step."""
  units = 26 * DLRM_SAMPLES
  contestants = (
    tf("26 tables", "own", "mxrec", "tables", 16, 1, "--tables", "26", units=units),
    tf("one merged table", "own", "mxrec", "tables", 16, 1, units=units),
  )
  bars = (Bar("26 tables", "one merged table", 0.8),)
  return Row("tables", "TensorFlow step over 26 columns of 2,048 ids, Adagrad, dim 16", contestants, bars, batches=10)


ROWS = (
  engine_row(16),
  engine_row(64),
  step_row(16, "adagrad"),
  step_row(64, "adagrad"),
  step_row(16, "adam"),
  step_row(64, "adam"),
  dlrm_row(),
  pooled_row(16),
  pooled_row(64),
  tables_row(),
)


class Environments:
  """Which interpreters there are, and why others cannot be had."""

  def __init__(self, work: pathlib.Path, engine: pathlib.Path, with_peers: bool) -> None:
    self._commands = {"own": [sys.executable], "engine": [str(engine)]}
    self._problems: dict[str, str] = {}
    if not engine.exists():
      self._problems["engine"] = f"{engine.name} is not built (scripts/build.sh bench engine_worker)"
    for name, imports in {"tensorflow216": "tensorflow_recommenders_addons", "fbgemm": "fbgemm_gpu"}.items():
      python = work / name / "bin" / "python"
      self._commands[name] = [str(python)]
      if not with_peers:
        self._problems[name] = "run without peers"
      elif not python.exists():
        self._problems[name] = "not installed (scripts/install_peers.sh says why)"
      else:
        tried = subprocess.run([python, "-c", f"import {imports}"], capture_output=True, text=True, check=False)
        if tried.returncode != 0:
          self._problems[name] = "does not load: " + (tried.stderr.strip().splitlines() or ["no message"])[-1]

  def problem(self, contestant: Contestant) -> str | None:
    return self._problems.get(contestant.environment)

  def command(self, contestant: Contestant) -> list[str]:
    first, *rest = contestant.arguments
    program = [str(HERE / first), *rest] if first.endswith(".py") else [first, *rest]
    return self._commands[contestant.environment] + program


class Worker:
  """A contestant's process; speaks the protocol of worker.py."""

  def __init__(self, command: list[str], log: pathlib.Path) -> None:
    environment = dict(os.environ, GLIBC_TUNABLES="glibc.malloc.hugetlb=1", PYTHONPATH=str(ROOT / "python"))
    self._log = log
    cpu = max(os.sched_getaffinity(0))
    with log.open("w") as errors:
      self._process = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=errors,
        text=True,
        env=environment,
        preexec_fn=lambda: os.sched_setaffinity(0, {cpu}),
      )
    self.facts = self._answer()["ready"]

  def _answer(self) -> dict:
    line = self._process.stdout.readline()
    if not line:
      self._process.wait()
      last = self._log.read_text(errors="replace").strip().splitlines()[-1:] or ["no message"]
      raise RuntimeError(f"ended with code {self._process.returncode}: {last[0]} (more in {self._log})")
    return json.loads(line)

  def ask(self, request: str) -> dict:
    """Sends a line, returns the answer."""
    self._process.stdin.write(request + "\n")
    self._process.stdin.flush()
    return self._answer()

  def close(self) -> None:
    self._process.stdin.close()
    try:
      self._process.wait(timeout=60)
    except subprocess.TimeoutExpired:
      self._process.kill()
      self._process.wait()


def available_bytes() -> int:
  """Memory that processes can still get."""
  with open("/proc/meminfo") as file:
    fields = dict(line.split(":") for line in file)
  return int(fields["MemAvailable"].split()[0]) * 1024


def needed_bytes(contestants: list[Contestant], key_count: int) -> int:
  """Memory of the processes of these contestants; contestants of equal arguments share one."""
  processes = {(c.environment, c.arguments): c.row_bytes for c in contestants}
  return sum(key_count * row_bytes + 1_000_000_000 for row_bytes in processes.values())


def parts_that_fit(row: Row, contestants: list[Contestant], key_count: int) -> tuple[list[list[Contestant]], int]:
  """The contestants in groups that fit into memory together, each with the first one, and the keys that this allows."""
  limit = 0.9 * available_bytes()
  first, *others = contestants
  while any(needed_bytes([first, other], key_count) > limit for other in others) and key_count > 100_000:
    key_count = key_count * 3 // 4
  groups = [[first]]
  for other in others:
    if needed_bytes([*groups[-1], other], key_count) > limit and len(groups[-1]) > 1:
      groups.append([first])
    groups[-1].append(other)
  return groups, key_count


def steal_seconds() -> float:
  """Seconds stolen by other guests of the host, all CPUs together."""
  with open("/proc/stat") as file:
    return int(file.readline().split()[8]) / os.sysconf("SC_CLK_TCK")


def close_enough(a: list[float], b: list[float]) -> bool:
  """Equal but for the rounding of different orders of summation."""
  return len(a) == len(b) and all(abs(x - y) <= 1e-3 * max(1e-2, abs(x), abs(y)) for x, y in zip(a, b))


class Measurement:
  """Rates of a row's contestants, turn by turn."""

  def __init__(self, row: Row, keys: pathlib.Path, turns: int, environments: Environments, logs: pathlib.Path) -> None:
    self._row, self._keys, self._turns, self._environments, self._logs = row, keys, turns, environments, logs
    self.ratios: dict[tuple[str, str, str], list[float]] = {}  # (fast, slow, stream) -> one a turn
    self.rates: dict[tuple[str, str], list[float]] = {}
    self.facts: dict[str, dict] = {}
    self.traces: dict[str, dict] = {}
    self.problems: list[str] = []

  def run(self, group: list[Contestant]) -> None:
    """Lets the contestants of a group take turns."""
    workers: dict[tuple, Worker] = {}
    present = []
    try:
      for contestant in group:
        process = (contestant.environment, contestant.arguments)
        try:
          if process not in workers:
            command = [*self._environments.command(contestant), "--keys", str(self._keys)]
            log = self._logs / f"{self._row.name}-{contestant.name}.log".replace(" ", "-")
            workers[process] = Worker(command, log)
          present.append((contestant, workers[process]))
          self.facts[contestant.name] = workers[process].facts
        except RuntimeError as error:
          self.problems.append(f"{contestant.name}: {error}")
      self._take_turns(present)
      self._compare(present)
      for contestant, worker in present:
        if contestant.environment in ("own", "tensorflow216"):
          self.traces[contestant.name] = worker.ask(f"trace {contestant.mode}uniform")["trace"]
    finally:
      for worker in workers.values():
        worker.close()

  def _take_turns(self, present: list[tuple[Contestant, Worker]]) -> None:
    for stream in STREAMS:
      for turn in range(-1, self._turns):
        first = (turn + 1) * self._row.batches
        rates = {}
        for contestant, worker in present:
          seconds = worker.ask(f"run {contestant.mode}{stream} {first} {self._row.batches}")["seconds"]
          rates[contestant.name] = self._row.batches * contestant.units / seconds
        if turn >= 0:
          for name, rate in rates.items():
            self.rates.setdefault((name, stream), []).append(rate)
          for bar in self._row.bars:
            if bar.fast in rates and bar.slow in rates:
              self.ratios.setdefault((bar.fast, bar.slow, stream), []).append(rates[bar.fast] / rates[bar.slow])

  def _compare(self, present: list[tuple[Contestant, Worker]]) -> None:
    """The same steps must have led to the same rows; models that start from random weights only report their loss."""
    answers = {
      contestant.name: worker.ask("check")["check"] for contestant, worker in present if contestant.environment != "engine"
    }
    answers = {name: values for name, values in answers.items() if values}
    for name, values in answers.items():
      if len(values) == 1:
        self.facts[name]["loss"] = values[0]
      elif not close_enough(values, next(iter(answers.values()))):
        other, expected = next(iter(answers.items()))
        self.problems.append(f"{name}: its rows differ from those of {other}: {values[::16]} against {expected[::16]}")


def label(name: str) -> str:
  """`own` TensorFlow by its version."""
  if "own" not in name:
    return name
  from importlib.metadata import version

  return name.replace("own", version("tensorflow-cpu"))


def measure(row: Row, args: argparse.Namespace, environments: Environments) -> dict:
  """Runs a row; returns its part of the JSON."""
  print(f"== {row.title}", flush=True)
  problems = {c.environment: environments.problem(c) for c in row.contestants}
  present = [c for c in row.contestants if not problems[c.environment]]
  skipped = [f"{label(c.name)}: {problems[c.environment]}" for c in row.contestants if problems[c.environment]]
  if len(present) < 2 or present[0] is not row.contestants[0]:
    skipped.append("the row: nothing is left to compare")
    present = []
  result = {"name": row.name, "title": row.title, "rows": [], "skipped": skipped}
  if present:
    groups, key_count = parts_that_fit(row, present, args.keys)
    keys = args.work / f"keys-{key_count}"
    key_files.make(keys, key_count, args.batches)
    measurement = Measurement(row, keys, args.turns, environments, args.out)
    steal = steal_seconds()
    for group in groups:
      measurement.run(group)
    result.update(
      keys=key_count,
      turns=args.turns,
      batches=row.batches,
      parts=[[label(c.name) for c in group] for group in groups],
      steal_seconds=round(steal_seconds() - steal, 2),
      facts={label(name): facts for name, facts in measurement.facts.items()},
      traces={label(name): trace for name, trace in measurement.traces.items()},
    )
    result["problems"] = measurement.problems
    for bar in row.bars:
      for stream in STREAMS:
        ratios = measurement.ratios.get((bar.fast, bar.slow, stream))
        if ratios:
          figure = statistics.median(ratios)
          what = f"{row.title}: {bar.fast} / {label(bar.slow)}, {stream}"
          entry = {"what": what, "figure": figure, "lowest": min(ratios), "highest": max(ratios)}
          if bar.bar is not None:
            entry.update(bar=bar.bar, met=figure >= bar.bar)
          result["rows"].append(entry)
          print_entry(entry)
    for (name, stream), rates in measurement.rates.items():
      entry = {"what": f"{label(name)}, {stream}", "figure": statistics.median(rates) / row.scale, "unit": row.unit}
      result["rows"].append(entry)
      print_entry(entry)
  for reason in skipped:
    print(f"  SKIPPED {reason}", flush=True)
  for problem in result.get("problems", []):
    print(f"  PROBLEM {problem}", flush=True)
  return result


def print_entry(entry: dict) -> None:
  """A line of the table."""
  text = f"{entry['what']:<118} {entry['figure']:8.3f}"
  if "unit" in entry:
    text += f"  {entry['unit']}"
  else:
    text += f"  ({entry['lowest']:.2f} .. {entry['highest']:.2f})"
  if "bar" in entry:
    text += f"  >= {entry['bar']:.2f}  {'met' if entry['met'] else 'MISSED'}"
  print(text, flush=True)


def as_markdown(results: list[dict]) -> str:
  """The tables of docs/performance.md."""
  lines = ["| figure | ratio | lowest .. highest turn | bar | |", "|---|---|---|---|---|"]
  rates = ["| what | median rate |", "|---|---|"]
  for result in results:
    for row in result["rows"]:
      if "unit" in row:
        rates.append(f"| {result['title']}: {row['what']} | {row['figure']:.2f} {row['unit']} |")
      else:
        bar = f">= {row['bar']:.2f} | {'met' if row['met'] else '**missed**'}" if "bar" in row else "- | "
        lines.append(f"| {row['what']} | {row['figure']:.2f} | {row['lowest']:.2f} .. {row['highest']:.2f} | {bar} |")
  return "\n".join([*lines, "", *rates, ""])


def main() -> None:
  """Runs what was asked for and writes the figures."""
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument("--out", type=pathlib.Path, required=True, help="folder for figures and logs")
  parser.add_argument("--work", type=pathlib.Path, required=True, help="folder of the peers' environments, gets the key files")
  parser.add_argument("--engine", type=pathlib.Path, default=ROOT / "build" / "bench" / "bench" / "engine_worker")
  parser.add_argument("--quick", action="store_true", help="small tables, few turns: a check that everything runs")
  parser.add_argument("--no-peers", action="store_true", help="only what needs no other library")
  parser.add_argument("--keys", type=int, default=10_000_000, help="rows of a table, at most")
  parser.add_argument("--turns", type=int, default=7)
  parser.add_argument("--rows", nargs="*", choices=[row.name for row in ROWS], default=None, help="only these")
  args = parser.parse_args()
  args.batches = 128
  if args.quick:
    args.keys, args.turns, args.batches = min(args.keys, 100_000), 1, 4
  args.out.mkdir(parents=True, exist_ok=True)
  environments = Environments(args.work, args.engine, not args.no_peers)
  file = args.out / "peers.json"
  results = {result["name"]: result for result in (json.loads(file.read_text()) if file.exists() else [])}
  for row in ROWS:
    if args.rows is None or row.name in args.rows:
      quick = dataclasses.replace(row, batches=1) if args.quick else row
      results[row.name] = measure(quick, args, environments)
      ordered = [results[known.name] for known in ROWS if known.name in results]
      file.write_text(json.dumps(ordered, indent=1) + "\n")
      (args.out / "peers.md").write_text(as_markdown(ordered))
  missed = [entry["what"] for result in results.values() for entry in result["rows"] if entry.get("met") is False]
  print(f"figures: {file}; bars missed: {len(missed)}")
  for what in missed:
    print(f"  missed: {what}")


if __name__ == "__main__":
  main()
