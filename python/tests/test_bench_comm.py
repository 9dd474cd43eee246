"""`make bench-comm` through TensorFlow, without raw engines and Horovod: it runs, writes its figures, and what it counts holds."""

from __future__ import annotations

import json
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]


@pytest.mark.slow
def test_sparse_gradients_and_dlrm_send_what_they_must(tmp_path: pathlib.Path) -> None:
  command = [sys.executable, ROOT / "bench" / "comm" / "run.py", "--raw", tmp_path / "none", "--out", tmp_path, "--turns", "1"]
  done = subprocess.run([*command, "--only", "sparse", "dlrm"], capture_output=True, text=True, timeout=600, check=False)
  assert done.returncode == 0, done.stderr[-4000:]
  assert "SKIPPED Horovod: not asked for" in done.stdout
  rows = {row["what"]: row for row in json.loads((tmp_path / "comm_tf.json").read_text())["rows"]}
  counted = [row for what, row in rows.items() if what.endswith("bytes / lower bound")]
  assert len(counted) == 2 and all(row["met"] for row in counted)
  assert rows["DLRM: exchanges a step"]["figure"] == 3
  assert any(what.endswith("2 ranks / unconnected") for what in rows)
