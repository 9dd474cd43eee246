"""`make demo`: examples/adult_demo.py and the data it uses."""

from __future__ import annotations

import importlib
import importlib.util
import lzma
import pathlib
import re
import subprocess
import sys

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

ROOT = pathlib.Path(__file__).resolve().parents[2]
DEMO = ROOT / "examples" / "adult_demo.py"


def load_module(path: pathlib.Path):
  spec = importlib.util.spec_from_file_location(path.stem, path)
  module = importlib.util.module_from_spec(spec)
  spec.loader.exec_module(module)
  return module


@pytest.fixture(name="demo", scope="module")
def demo_module():
  return load_module(DEMO)


@pytest.fixture(name="maker", scope="module")
def maker_module():
  return load_module(ROOT / "scripts" / "make_adult_data.py")


def run_demo(*arguments: str) -> subprocess.CompletedProcess:
  return subprocess.run([sys.executable, str(DEMO), *arguments], capture_output=True, text=True, timeout=300, check=False)


@pytest.mark.parametrize("part,rows,positives", [("train", 32561, 7841), ("test", 16281, 3846)])
def test_the_committed_data_is_the_official_split(demo, part: str, rows: int, positives: int) -> None:
  data = demo.load(part)
  assert len(data) == rows
  assert int(data.labels.sum()) == positives
  assert [data.ids[name].shape for name in ("category", "bucket", "cross")] == [(rows, 8), (rows, 5), (rows, 8)]
  assert data.numbers.shape == (rows, demo.NUMBERS)
  assert np.isfinite(data.numbers).all()


def test_the_committed_data_is_small() -> None:
  assert sum(path.stat().st_size for path in (ROOT / "examples" / "data").glob("*.xz")) < 700_000


def test_equal_values_of_different_features_have_different_ids(demo) -> None:
  assert demo.hash_id("age_bucket", "3") != demo.hash_id("education_num_bucket", "3")
  assert -(2**63) <= demo.hash_id("sex", "Male") < 2**63


def test_auc_agrees_with_scikit_learn_also_with_ties(demo) -> None:
  rng = np.random.default_rng(5)
  labels = (rng.random(1000) < 0.3).astype(np.float32)
  for scores in (rng.random(1000), np.round(rng.random(1000), 1), np.zeros(1000)):
    assert demo.auc(labels, scores) == pytest.approx(roc_auc_score(labels, scores), abs=1e-12)


def test_missing_values_header_and_trailing_dots_are_converted(maker) -> None:
  text = (
    "age, workclass, fnlwgt, education, education-num, marital-status, occupation, relationship, race, sex, capital-gain, "
    "capital-loss, hours-per-week, native-country, Y\n"
    "25, ?, 226802, 11th, 7, Never-married, ?, Own-child, Black, Male, 0, 0, 40, ?, <=50K.\n"
    "\n"
    "44, Private, 1, Masters, 14, Divorced, Sales, Unmarried, White, Female, 7688, 0, 40, Cuba, >50K\n"
  )
  assert maker.convert(text, "adult.test") == [
    "25,,226802,11th,7,Never-married,,Own-child,Black,Male,0,0,40,,0",
    "44,Private,1,Masters,14,Divorced,Sales,Unmarried,White,Female,7688,0,40,Cuba,1",
  ]


@pytest.mark.parametrize(
  "line,message",
  [
    ("25, Private, 1, <=50K", "adult.data, line 1: expected 15 fields, found 4"),
    ("x, P, 1, a, 7, b, c, d, e, f, 0, 0, 40, g, <=50K", "adult.data, line 1: expected a whole number in age, found 'x'"),
    ("1, P, 1, a, 7, b, c, d, e, f, 0, 0, 40, g, maybe", "adult.data, line 1: expected a label"),
  ],
)
def test_a_damaged_line_is_named(maker, line: str, message: str) -> None:
  with pytest.raises(ValueError, match=re.escape(message)):
    maker.convert(line, "adult.data")


def test_the_script_makes_the_committed_files_again(maker, tmp_path: pathlib.Path, monkeypatch, capsys) -> None:
  # Back to the form of the UCI files, with their first line and their trailing dots, then through the script.
  for part, name, end in (("train", "adult.data", ""), ("test", "adult.test", ".")):
    rows = lzma.decompress((ROOT / "examples" / "data" / f"adult.{part}.csv.xz").read_bytes()).decode().splitlines()[1:]
    lines = ["|1x3 Cross validator"] if part == "test" else []
    for row in rows:
      *fields, label = row.split(",")
      lines.append(", ".join([field or "?" for field in fields] + [("<=50K", ">50K")[int(label)] + end]))
    (tmp_path / name).write_text("\n".join(lines) + "\n")
  out = tmp_path / "out"
  out.mkdir()
  monkeypatch.setattr(sys, "argv", ["make_adult_data.py", str(tmp_path), "--out", str(out)])
  assert maker.main() == 0, capsys.readouterr().err
  for part in ("train", "test"):
    made = lzma.decompress((out / f"adult.{part}.csv.xz").read_bytes())
    assert made == lzma.decompress((ROOT / "examples" / "data" / f"adult.{part}.csv.xz").read_bytes())


def test_wrong_arguments_are_refused(demo, monkeypatch, capsys) -> None:
  monkeypatch.setattr(sys, "argv", ["adult_demo.py", "--epochs", "0"])
  with pytest.raises(SystemExit) as stop:
    demo.main()
  assert stop.value.code == 2
  assert "--epochs: expected 1 or more, found 0" in capsys.readouterr().err


@pytest.mark.parametrize("optimizer,epochs", [("adam", 1), pytest.param("adagrad", 2, marks=pytest.mark.thorough)])
def test_the_demo_trains_saves_reloads_and_predicts_the_same_bits(optimizer: str, epochs: int, tmp_path: pathlib.Path) -> None:
  done = run_demo("--epochs", str(epochs), "--optimizer", optimizer, "--out", str(tmp_path))
  assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
  for way in ("tf.train.Saver", "EmbeddingTableSaver"):
    assert f"loaded by {way}: 16281 of 16281 predictions are bit-equal" in done.stdout
  assert float(re.search(r"Test AUC ([0-9.]+)", done.stdout).group(1)) >= 0.89
  assert (tmp_path / "adult_demo.png").read_bytes().startswith(b"\x89PNG")


def test_the_demo_fails_when_the_auc_is_too_low(demo, capsys) -> None:
  assert demo.verdict(0.85, {}) == 1
  assert "test AUC: expected at least 0.89, found 0.8500" in capsys.readouterr().err
  assert demo.verdict(0.9, {"predictions are equal after loading": False}) == 1
  assert demo.verdict(0.9, {"predictions are equal after loading": True}) == 0


def test_losses_and_tables_are_bit_equal_for_1_2_4_16_threads(demo) -> None:
  tf, mxrec = demo.tf, importlib.import_module("mxrec")
  train = demo.load("test")

  def run(threads: int):
    config = tf.ConfigProto(intra_op_parallelism_threads=threads, inter_op_parallelism_threads=threads)
    with tf.Graph().as_default():
      tf.set_random_seed(3)
      lookups, tables = demo.mxrec_tables(train)
      model = demo.Model(lookups)
      train_op = mxrec.minimize(model.loss, tf.train.AdamOptimizer(0.002))
      with tf.Session(config=config) as sess:
        sess.run(tf.global_variables_initializer())
        feeds = [model.feed(train, slice(at, at + 256)) for at in range(0, 30 * 256, 256)]
        losses = [sess.run([model.loss, train_op], feed)[0] for feed in feeds]
        return [np.array(losses), *(part for table in tables for part in table.export(sess))]

  expected = run(1)
  for threads in (2, 4, 16):
    for one, found in zip(expected, run(threads)):
      np.testing.assert_array_equal(found, one)
