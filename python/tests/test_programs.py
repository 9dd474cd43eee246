"""The programs of tests/programs, which are written as TensorFlow 1 scripts of the original are, run unmodified by `mxrec run`."""

import os
import pathlib
import re
import subprocess
import sys

import pytest

PROGRAMS = pathlib.Path(__file__).resolve().parents[2] / "tests" / "programs"
DEADLINE = 240


def run(folder, program, *words):
  done = subprocess.run(
    [sys.executable, "-m", "mxrec", "run", str(PROGRAMS / program), *words],
    cwd=folder,
    capture_output=True,
    text=True,
    timeout=DEADLINE,
    check=False,
    env={name: value for name, value in os.environ.items() if not name.startswith("OMPI_")},
  )
  assert done.returncode == 0, done.stderr[-4000:]
  return done


def settings(folder, name="run.toml", **model):
  lines = ["[mxrec]", 'log_level = "INFO"', "use_ranktable = false", "[model]"]
  lines += [f'{key} = "{value}"' if isinstance(value, str) else f"{key} = {value}" for key, value in model.items()]
  (folder / name).write_text("\n".join(lines) + "\n", encoding="utf-8")
  return f"--toml_path={name}"


@pytest.mark.thorough
def test_the_program_of_two_labels_trains_goes_on_and_predicts(tmp_path):
  common = {
    "saved_path": "saved",
    "train_steps": 20,
    "train_interval": 10,
    "eval_steps": 2,
    "batch_number": 128,
    "deterministic": 0,
  }
  done = run(tmp_path, "two_labels/main.py", settings(tmp_path, mode="train_and_evaluate", **common))
  assert "step 1 loss 1.386" in done.stdout and done.stdout.count("evaluation loss") == 2 and done.stdout.endswith("Demo done.\n")
  assert {f"model-{step}.index" for step in (10, 20)} <= set(os.listdir(tmp_path / "saved"))
  trained = re.findall(r"evaluation loss ([\d.]+)", done.stdout)[-1]

  done = run(tmp_path, "two_labels/main.py", settings(tmp_path, mode="load_and_train", **{**common, "train_steps": 10}))
  assert "loaded step 20\nstep 21 loss" in done.stdout and "step 30 loss" in done.stdout and done.stdout.endswith("Demo done.\n")
  assert (tmp_path / "saved" / "model-30.index").is_file()

  for path in (tmp_path / "saved").glob("model-30.*"):
    path.unlink()
  done = run(tmp_path, "two_labels/main.py", settings(tmp_path, mode="predict", **common))
  assert "loaded step 20" in done.stdout and "predicted (128,)" in done.stdout and done.stdout.endswith("Demo done.\n")
  # Unseen user ids have another first row in each run of the table's seed, so only nearly equal.
  assert float(re.findall(r"evaluation loss ([\d.]+)", done.stdout)[0]) == pytest.approx(float(trained), abs=0.05)


@pytest.mark.thorough
def test_the_program_of_dot_products_learns_ten_steps_a_run(tmp_path):
  run(tmp_path, "dot_products/data.py", "files")
  toml = settings(tmp_path, train_steps=200, batch_number=256)
  done = run(tmp_path, "dot_products/main.py", "--data_path=files", toml)
  steps, auc, rows = re.search(r"trained (\d+) steps.*\nAUC ([\d.]+) over (\d+) rows", done.stdout).groups()
  assert (steps, rows) == ("200", "512"), done.stdout
  assert float(auc) > 0.9, done.stdout


@pytest.mark.thorough
def test_the_program_with_an_estimator_trains_evaluates_and_predicts(tmp_path):
  done = run(tmp_path, "estimator/main.py", "--model_dir=model", "--batch=16")
  step, auc = re.search(r"step (\d+) auc ([\d.]+)", done.stdout).groups()
  assert step == "30" and float(auc) > 0.9 and "chance" in done.stdout, done.stdout
  assert (tmp_path / "model" / "model.ckpt-30.index").is_file()
