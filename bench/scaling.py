"""Predicts what collectives cost on 8 to 512 ranks from what a message, a byte and a reduced byte cost on this machine.

    python bench/scaling.py                         measures (build/bench/bench/scaling_bench), checks the model, predicts
    python bench/scaling.py --measured FILE.json    without measuring again
    python bench/scaling.py --network 30 1.1        a network of 30 us and 1.1 GB/s for each rank, in place of the loopback
    python bench/scaling.py --doc docs/scaling.md --svg docs/scaling.svg     writes the tables and the plot of the document

The formulas are those of docs/collectives.md; docs/scaling.md says what is measured and what is extrapolated.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import pathlib
import statistics
import subprocess
import sys
import tempfile
from typing import Any

ROOT = pathlib.Path(__file__).resolve().parents[1]
RANKS = [8, 16, 32, 64, 128, 256, 512]
KIB, MIB = 1 << 10, 1 << 20
FITTED = (8, 16 * MIB)  # the messages that the costs come from; all else is a check
BEGIN, END = "<!-- bench/scaling.py: begin -->", "<!-- bench/scaling.py: end -->"


@dataclasses.dataclass(frozen=True)
class Costs:
  """Of one rank that has a processor to itself."""

  alpha: float  # seconds a message
  beta: float  # seconds a byte that is sent while another comes in
  gamma: float  # seconds a byte that is added

  def ring(self, ranks: int, size: float) -> float:
    """Allreduce: 2(N-1) steps of n/N; half of them add."""
    return 2 * (ranks - 1) * (self.alpha + size / ranks * self.beta) + (ranks - 1) / ranks * size * self.gamma

  def halving_doubling(self, ranks: int, size: float) -> float:
    """Allreduce: 2 log2 N steps; ranks beyond a power of two fold into neighbours first, and are told last."""
    steps = int(math.log2(ranks))
    power = 1 << steps
    time = 2 * steps * self.alpha + (power - 1) / power * size * (2 * self.beta + self.gamma)
    return time if power == ranks else time + 2 * self.alpha + size * (2 * self.beta + self.gamma)

  def allreduce(self, ranks: int, size: float) -> float:
    """As kAuto chooses where no memory is shared, beyond 16 KiB."""
    return self.halving_doubling(ranks, size) if size <= 128 * KIB * ranks else self.ring(ranks, size)

  def exchange(self, ranks: int, size: float) -> float:
    """All-to-all of n bytes a rank, in equal parts: 16 peers at a time."""
    return math.ceil((ranks - 1) / 16) * self.alpha + (ranks - 1) / ranks * size * self.beta + size / ranks * self.gamma

  def shared(self, processors: int, ranks: int) -> Costs:
    """Where ranks share processors, all that takes processor time takes longer."""
    factor = max(1.0, ranks / processors)
    return Costs(self.alpha * factor, self.beta * factor, self.gamma * factor)


@dataclasses.dataclass(frozen=True)
class Step:
  """What a rank does in a step of data parallel DLRM with tables spread over the ranks."""

  compute: float = 20e-3  # seconds
  dense: int = 2 * MIB  # bytes of gradients of variables
  names: int = 20  # reductions a step
  ids: int = 26 * 1500  # distinct ids of a batch of 2,048 rows, over 26 tables
  dim: int = 16

  def parts(self, costs: Costs, agreement: float, ranks: int) -> dict[str, float]:
    return {
      "agreement": agreement,
      "allreduce": costs.allreduce(ranks, self.dense),
      "ids": costs.exchange(ranks, 12 * self.ids),
      "rows": costs.exchange(ranks, 4 * self.dim * self.ids),
      "gradients": costs.exchange(ranks, 4 * self.dim * self.ids),
    }


def fit(rows: list[dict[str, Any]], transport: str) -> Costs:
  """From messages between two ranks."""
  of_two = {(row["what"], row["bytes"]): row["seconds"] for row in rows if row["transport"] == transport and row["ranks"] == 2}
  small, large = (of_two["message", size] for size in FITTED)
  [gamma] = [seconds / size for (what, size), seconds in of_two.items() if what == "reduce"]
  return Costs(small, (large - small) / (FITTED[1] - FITTED[0]), gamma)


def predicted(row: dict[str, Any], costs: Costs, processors: int) -> float | None:
  """What the model says of a measured row."""
  ranks, size, costs = row["ranks"], row["bytes"], costs.shared(processors, row["ranks"])
  if row["what"] == "message":
    return None if ranks == 2 and size in FITTED else costs.alpha + size * costs.beta
  if row["what"] == "exchange" and size < 4096:
    return None  # nothing to send to anybody
  models = {"allreduce ring": costs.ring, "allreduce halving-doubling": costs.halving_doubling, "exchange": costs.exchange}
  return models[row["what"]](ranks, size) if row["what"] in models else None


def agreement(measured: dict[str, Any], costs: Costs, ranks: int, names: int) -> float:
  """Rank 0 computes, and has a message from and to each other rank; half of a message's time is its own."""
  [coordinator] = [row for row in measured["coordinator"] if row["ranks"] == ranks]
  return coordinator["seconds"] * names / coordinator["names"] + (ranks - 1) * costs.alpha


def text_of(seconds: float) -> str:
  """Seconds for people."""
  return f"{seconds * 1e6:.1f} us" if seconds < 1e-3 else f"{seconds * 1e3:.1f} ms" if seconds < 1 else f"{seconds:.2f} s"


def size_of(size: int) -> str:
  """Bytes for people."""
  return f"{size} B" if size < KIB else f"{size // KIB} KiB" if size < MIB else f"{size // MIB} MiB"


def table(head: list[str], rows: list[list[str]]) -> list[str]:
  """Lines of a Markdown table."""
  return ["| " + " | ".join(head) + " |", "|" + " --- |" * len(head), *("| " + " | ".join(row) + " |" for row in rows), ""]


def report(measured: dict[str, Any], network: Costs | None, step: Step) -> tuple[list[str], dict[str, list[float]]]:
  """Markdown lines, and for the plot the seconds of a step by number of ranks."""
  rows, processors = measured["rows"], measured["processors"]
  transports = sorted({row["transport"] for row in rows})
  costs = {transport: fit(rows, transport) for transport in transports}
  lines = [f"Machine: {measured['machine']}; time stolen by its host during the run: {measured['steal_seconds']:.1f} s.", ""]
  lines += ["**Measured: costs at 2 ranks**", ""]
  lines += table(
    ["transport", "alpha: a message", "beta: a byte", "gamma: adding a byte"],
    [
      [name, text_of(c.alpha), f"{c.beta * 1e9:.3f} ns ({1e-9 / c.beta:.1f} GB/s)", f"{c.gamma * 1e9:.3f} ns"]
      for name, c in costs.items()
    ],
  )
  lines += ["**Checked: predicted / measured in the same run** (the median over sizes, then the extremes)", ""]
  checks = []
  for transport in transports:
    for what in ("message", "exchange", "allreduce halving-doubling", "allreduce ring"):
      cells = []
      for ranks in (2, 3, 4):
        ratios = [
          prediction / row["seconds"]
          for row in rows
          if (row["transport"], row["what"], row["ranks"]) == (transport, what, ranks)
          and (prediction := predicted(row, costs[transport], processors)) is not None
        ]
        cells.append(f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})")
      checks.append([transport, what.removeprefix("allreduce "), *cells])
  lines += table(["transport", "what", "2 ranks", "3 ranks", "4 ranks"], checks)
  tcp = network or costs.get("tcp") or costs["shm"]
  where = (
    f"a network of {text_of(tcp.alpha)} a message and {1e-9 / tcp.beta:.2f} GB/s a rank (assumed)"
    if network
    else "TCP as over the loopback here"
  )
  lines += [f"**Extrapolated: one operation, {where}**", ""]
  lines += table(
    [
      "ranks",
      *(f"allreduce {size_of(size)}" for size in (64 * KIB, MIB, 64 * MIB)),
      *(f"exchange {size_of(size)}" for size in (64 * KIB, MIB, 16 * MIB)),
    ],
    [
      [
        str(ranks),
        *(text_of(tcp.allreduce(ranks, size)) for size in (64 * KIB, MIB, 64 * MIB)),
        *(text_of(tcp.exchange(ranks, size)) for size in (64 * KIB, MIB, 16 * MIB)),
      ]
      for ranks in RANKS
    ],
  )
  lines += [f"**Extrapolated: a step of DLRM, {where}**; agreement: the coordinator's part is measured with as many ranks", ""]
  seconds: dict[str, list[float]] = {}
  steps = []
  for ranks in RANKS:
    parts = step.parts(tcp, agreement(measured, tcp, ranks, step.names), ranks)
    whole = step.compute + sum(parts.values())
    for name, value in {"compute": step.compute, **parts}.items():
      seconds.setdefault(name, []).append(value)
    steps.append([str(ranks), *(text_of(value) for value in parts.values()), text_of(whole), f"{100 * step.compute / whole:.0f} %"])
  lines += table(["ranks", *step.parts(tcp, 0, 2), "step", "of it computing"], steps)
  return lines, seconds


COLORS = {
  "compute": "#4c78a8",
  "agreement": "#e45756",
  "allreduce": "#f58518",
  "ids": "#72b7b2",
  "rows": "#54a24b",
  "gradients": "#b279a2",
}


def svg(seconds: dict[str, list[float]]) -> str:
  """Bars of a step by number of ranks."""
  width, height, left, bottom = 640, 320, 60, 40
  highest = max(sum(values[i] for values in seconds.values()) for i in range(len(RANKS)))
  tick = 10 ** math.floor(math.log10(highest))
  tick = tick / 5 if highest / tick < 2 else tick / 2 if highest / tick < 5 else tick
  scale = (height - bottom - 30) / highest
  parts = [
    f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" font-family="sans-serif" font-size="12">',
    f'<rect width="{width}" height="{height}" fill="white"/>',
    f'<text x="{left}" y="16">Predicted step of DLRM in ms, by number of ranks</text>',
  ]
  for i in range(int(highest / tick) + 1):
    y = height - bottom - i * tick * scale
    parts.append(f'<path d="M{left} {y:.1f}H{width - 110}" stroke="#ddd"/>')
    parts.append(f'<text x="{left - 6}" y="{y + 4:.1f}" text-anchor="end">{i * tick * 1e3:g}</text>')
  slot = (width - 110 - left) / len(RANKS)
  for i, ranks in enumerate(RANKS):
    x, y = left + i * slot + slot * 0.2, float(height - bottom)
    for name, values in seconds.items():
      tall = values[i] * scale
      y -= tall
      parts.append(f'<rect x="{x:.1f}" y="{y:.1f}" width="{slot * 0.6:.1f}" height="{tall:.1f}" fill="{COLORS[name]}"/>')
    parts.append(f'<text x="{x + slot * 0.3:.1f}" y="{height - bottom + 18}" text-anchor="middle">{ranks}</text>')
  for i, name in enumerate(reversed(seconds)):
    parts.append(f'<rect x="{width - 100}" y="{40 + 20 * i}" width="12" height="12" fill="{COLORS[name]}"/>')
    parts.append(f'<text x="{width - 82}" y="{50 + 20 * i}">{name}</text>')
  return "\n".join([*parts, "</svg>", ""])


def measure(quick: bool) -> dict[str, Any]:
  """What scaling_bench writes."""
  program = ROOT / "build" / "bench" / "bench" / "scaling_bench"
  if not program.is_file():
    sys.exit(f"{program} is not there: scripts/build.sh bench scaling_bench")
  with tempfile.TemporaryDirectory() as folder:
    file = pathlib.Path(folder) / "measured.json"
    subprocess.run([str(program), str(file), *(["--quick"] if quick else [])], check=True)
    return json.loads(file.read_text(encoding="utf-8"))


def main() -> int:
  """The command."""
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("--measured", type=pathlib.Path, help="what an earlier run wrote with --json")
  parser.add_argument("--json", type=pathlib.Path, help="write what was measured here")
  parser.add_argument("--quick", action="store_true", help="a smoke run: the figures mean little")
  parser.add_argument("--network", type=float, nargs=2, metavar=("US", "GB/S"), help="predict for this network")
  parser.add_argument("--compute-ms", type=float, default=1e3 * Step.compute, help="computing of a step (default %(default)s)")
  parser.add_argument("--doc", type=pathlib.Path, help="put the tables between the marks of this file")
  parser.add_argument("--svg", type=pathlib.Path, help="write a plot of the steps")
  options = parser.parse_args()
  measured = json.loads(options.measured.read_text(encoding="utf-8")) if options.measured else measure(options.quick)
  if options.json:
    options.json.write_text(json.dumps(measured, indent=1) + "\n", encoding="utf-8")
  network = None
  if options.network:
    gamma = fit(measured["rows"], measured["rows"][0]["transport"]).gamma
    network = Costs(options.network[0] * 1e-6, 1e-9 / options.network[1], gamma)
  lines, seconds = report(measured, network, Step(compute=options.compute_ms * 1e-3))
  print("\n".join(lines))
  if options.doc:
    text = options.doc.read_text(encoding="utf-8")
    head, rest = text.split(BEGIN, 1)
    options.doc.write_text(f"{head}{BEGIN}\n\n" + "\n".join(lines) + END + rest.split(END, 1)[1], encoding="utf-8")
  if options.svg:
    options.svg.write_text(svg(seconds), encoding="utf-8")
  return 0


if __name__ == "__main__":
  sys.exit(main())
