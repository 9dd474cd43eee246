"""The guide's two migration examples, examples/little_demo.py and examples/dlrm.py, on 1 and 2 processes."""

import pathlib
import re
import subprocess
import sys

import pytest
from test_launch import environment

EXAMPLES = pathlib.Path(__file__).resolve().parents[2] / "examples"
SIZES = [1, pytest.param(2, marks=pytest.mark.thorough)]


def run(size, script, *arguments):
  """The output of an example, of rank 0 alone where there are several."""
  launch = [] if size == 1 else ["-m", "mxrec", "launch", "-np", size]
  words = [sys.executable, *launch, EXAMPLES / script, *arguments]
  done = subprocess.run([str(word) for word in words], capture_output=True, text=True, timeout=150, check=False, env=environment())
  assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
  lines = done.stdout.splitlines()
  return "\n".join(lines if size == 1 else [line[4:] for line in lines if line.startswith("[0] ")])


@pytest.mark.parametrize("size", SIZES)
def test_g_85_little_demo_trains_evaluates_saves_and_goes_on(size, tmp_path):
  arguments = ("--folder", tmp_path, "--batch", 64, "--ids", 300)
  first, second = (run(size, "little_demo.py", *arguments) for _ in range(2))
  assert float(re.search("step 1: loss ([0-9.]+)", first).group(1)) == pytest.approx(1.386, abs=0.02)  # 2 ln 2
  evaluations = [re.findall("step ([0-9]+): evaluation loss ([0-9.]+)", text) for text in (first, second)]
  assert [step for step, _ in evaluations[0] + evaluations[1]] == ["100", "200", "300", "400"]
  assert float(evaluations[1][-1][1]) < 1.0
  assert "restored" not in first and "restored step 200" in second
  assert first.endswith("Demo done.") and second.endswith("Demo done.")
  assert float(re.search("step 201: loss ([0-9.]+)", second).group(1)) < 1.2
  assert sorted(path.name for path in tmp_path.glob("mxrec-*")) == [f"mxrec-{step}" for step in (100, 200, 300, 400)]


@pytest.mark.parametrize("size", SIZES)
def test_g_86_dlrm_learns_from_criteo_records(size, tmp_path):
  run(1, "dlrm.py", "make-data", "--data", tmp_path, "--examples", 40, "--ids", 50)
  text = run(size, "dlrm.py", "train", "--data", tmp_path, "--batch", 1024, "--epochs", 2, "--rate", 0.01)
  steps, first, last = re.search("([0-9]+) steps, loss ([0-9.]+) to ([0-9.]+)", text).groups()
  assert int(steps) == 80 // size and float(last) < 0.95 * float(first), text
  found, rows = re.search("test AUC ([0-9.]+) on ([0-9]+) rows", text).groups()
  assert int(rows) == 5 * 1024 // size // 1024 * size * 1024 and float(found) > 0.6, text
  assert re.search("step 10: loss [0-9.]+, [0-9]+ rows a second", text)
