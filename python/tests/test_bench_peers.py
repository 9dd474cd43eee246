"""`make bench-peers` without the peers: every row that needs no other library runs on small tables and writes its figures."""

from __future__ import annotations

import json
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]


@pytest.mark.slow
def test_the_comparison_runs_without_any_peer_and_skips_them_aloud(tmp_path: pathlib.Path) -> None:
  command = [sys.executable, ROOT / "bench" / "peers" / "run.py", "--quick", "--no-peers", "--keys", "20000"]
  rows = ["engine-16", "step-adagrad-16", "step-adam-16", "dlrm", "pooled-16", "tables"]
  folders = ["--out", tmp_path, "--work", tmp_path / "work", "--engine", tmp_path / "no_such_program"]
  done = subprocess.run([*command, *folders, "--rows", *rows], capture_output=True, text=True, timeout=900, check=False)
  assert done.returncode == 0, done.stderr[-4000:]
  results = {result["name"]: result for result in json.loads((tmp_path / "peers.json").read_text())}
  assert list(results) == rows
  compared = {name: sum("lowest" in row for row in result["rows"]) for name, result in results.items()}
  assert compared == {"engine-16": 0, "step-adagrad-16": 2, "step-adam-16": 0, "dlrm": 4, "pooled-16": 2, "tables": 2}
  for row in ("engine-16", "step-adam-16"):
    assert results[row]["skipped"][-1] == "the row: nothing is left to compare"
  assert "TFRA: run without peers" in results["step-adagrad-16"]["skipped"]
  assert not any(result.get("problems") for result in results.values())
  assert "SKIPPED TFRA: run without peers" in done.stdout
  assert results["dlrm"]["facts"]["mxrec"]["rows"] == 20000
  assert results["dlrm"]["traces"]["mxrec"]["MxrecApply"] > 0
  assert "| median rate |" in (tmp_path / "peers.md").read_text()


def test_parts_of_a_row_fit_into_memory_and_each_holds_the_first_contestant(monkeypatch: pytest.MonkeyPatch) -> None:
  monkeypatch.syspath_prepend(str(ROOT / "bench" / "peers"))
  run = __import__("run")
  row = run.step_row(64, "adagrad")
  monkeypatch.setattr(run, "available_bytes", lambda: 28 * 10**9)
  groups, keys = run.parts_that_fit(row, list(row.contestants), 10_000_000)
  assert keys == 10_000_000
  assert [len(group) for group in groups] == [2, 3]
  assert all(group[0] is row.contestants[0] for group in groups)
  assert {contestant for group in groups for contestant in group} == set(row.contestants)
  monkeypatch.setattr(run, "available_bytes", lambda: 6 * 10**9)
  groups, keys = run.parts_that_fit(row, list(row.contestants), 10_000_000)
  assert keys < 10_000_000
  assert all(run.needed_bytes(group, keys) <= 0.9 * 6 * 10**9 for group in groups)
