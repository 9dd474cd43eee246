"""Runs the benchmarks and collects their figures.

usage: run.py --build FOLDER --out FOLDER [--quick] [--only NAME ...]

Each program (the ones in Python need the built op library) prints a table and writes JSON; this script adds the start-up
benchmark (seconds that our imports cost beyond TensorFlow's own, median of fresh processes) and writes everything
to OUT/bench.json.
"""

import argparse
import json
import pathlib
import statistics
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
QUICK = {
  "table_bench": ["--keys", "1000000", "--repeats", "3", "--batches", "8"],
  "memory_bench": ["--keys", "1000000"],
  "checkpoint_bench": ["--keys", "1000000", "--repeats", "3"],
}
PYTHON_QUICK = {
  "tf_step_bench": ["--keys", "10000", "--repeats", "2", "--seconds", "0.5"],
  "npu_ops_bench": ["--rows", "256", "--repeats", "2", "--seconds", "0.1"],
  "npu_bridge_bench": ["--rounds", "3", "--models", "deep_fm"],
}
IMPORTS = {"import mxrec": 0.3, "from npu_bridge.npu_init import *": 0.5}  # seconds allowed beyond TensorFlow's own import
START = """
import time
import tensorflow
begin = time.perf_counter()
{statement}
print(time.perf_counter() - begin)
"""


def start_up(repeats):
  """Median seconds of each import after `import tensorflow`, over fresh processes."""
  env = {"PYTHONPATH": str(ROOT / "python"), "TF_CPP_MIN_LOG_LEVEL": "3", "PATH": "/usr/bin:/bin"}
  rows = []
  for statement, bar in IMPORTS.items():
    seconds = []
    for _ in range(repeats):
      program = [sys.executable, "-c", START.format(statement=statement)]
      out = subprocess.run(program, env=env, capture_output=True, text=True, check=True, timeout=120)
      seconds.append(float(out.stdout.split()[-1]))
    figure = statistics.median(seconds)
    what = f"{statement} beyond import tensorflow, seconds"
    print(f"{what:<72} {figure:8.3f}  <=  {bar:.3f}  {'met' if figure <= bar else 'MISSED'}")
    rows.append({"what": f"{statement}, seconds", "figure": figure, "bar": bar, "met": figure <= bar})
  return {"subject": "start", "rows": rows}


def main():
  """Runs what was asked for and writes the figures."""
  names = [*QUICK, *PYTHON_QUICK, "start"]
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument("--build", type=pathlib.Path, required=True, help="build folder that holds the programs")
  parser.add_argument("--out", type=pathlib.Path, required=True, help="folder for the JSON files")
  parser.add_argument("--quick", action="store_true", help="small tables, few turns: a check that everything runs")
  parser.add_argument("--only", nargs="*", default=None, help="names: " + " ".join(names))
  args = parser.parse_args()
  args.out.mkdir(parents=True, exist_ok=True)
  results = []
  for name, quick in {**QUICK, **PYTHON_QUICK}.items():
    if args.only is not None and name not in args.only:
      continue
    print(f"== {name}", flush=True)
    file = args.out / f"{name}.json"
    program = [sys.executable, ROOT / "bench" / f"{name}.py"] if name in PYTHON_QUICK else [args.build / name]
    subprocess.run([*program, "--json", file, *(quick if args.quick else [])], check=True)
    results.append(json.loads(file.read_text()))
  if args.only is None or "start" in args.only:
    print("== start", flush=True)
    results.append(start_up(3 if args.quick else 5))
  (args.out / "bench.json").write_text(json.dumps(results, indent=1) + "\n")
  missed = [row["what"] for result in results for row in result["rows"] if row.get("met") is False]
  print(f"figures: {args.out / 'bench.json'}; bars missed: {len(missed)}")
  for what in missed:
    print(f"  missed: {what}")


if __name__ == "__main__":
  main()
