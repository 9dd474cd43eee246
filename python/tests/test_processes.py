"""What crosses processes: resuming in a new one, kill -9 while saving, Ctrl-C, a session left open."""

import json
import pathlib
import re
import subprocess
import sys

import numpy as np
import pytest

SECONDS = 400  # about 30 on an idle machine


@pytest.fixture(scope="module")
def report(tmp_path_factory):
  """One process imports TensorFlow and forks all others (process_worker.py)."""
  folder = tmp_path_factory.mktemp("processes")
  worker = pathlib.Path(__file__).with_name("process_worker.py")
  done = subprocess.run([sys.executable, str(worker), str(folder)], timeout=SECONDS, capture_output=True, text=True, check=False)
  assert (folder / "report.json").is_file(), done.stderr[-3000:]
  return folder, json.loads((folder / "report.json").read_text())


@pytest.mark.parametrize("kind", ["sgd", "adagrad", "adam", "adamw"])
def test_fact_18_a_new_process_goes_on_bit_equal_with_admission_and_eviction_on(kind, report):
  folder, content = report
  for result in content["resume"][kind]:
    assert "error" not in result, result
    assert result["rows"] > 100 and result["evicted"] > 0
  straight, resumed = (np.load(folder / f"resume-{kind}" / f"{kind}-{name}.npz") for name in ("straight", "resumed"))
  assert straight.files == resumed.files
  for name in straight.files:
    np.testing.assert_array_equal(straight[name], resumed[name])


def test_d_32_kill_nine_at_twenty_moments_of_a_save_leaves_a_complete_checkpoint(report):
  results = report[1]["kill"]
  assert len(results) == 20
  for result in results:
    assert "error" not in result, result
    assert result["own_equal"] and result["stock_equal"]
    assert result["own_size"] == result["stock_size"] == 20000
    assert result["own"] == result["own_latest"] and result["stock"] == result["stock_step"]
    assert result["complete"] <= result["stock"] <= result["own"] <= result["complete"] + 1


@pytest.mark.parametrize("saver", ["own", "stock"])
def test_ctrl_c_stops_a_save_by_either_saver_and_the_previous_checkpoint_stays(saver, report):
  result = report[1]["interrupt"]
  assert "error" not in result, result
  folder, content = report[0] / "interrupt" / "stock", result[saver]
  assert content["raised"] == "KeyboardInterrupt", content
  assert content["files"][0] == content["files"][1], "nothing half-written is left, nothing was published"
  assert content["first"] == 1.0
  assert result["latest"] == [1, str(folder / "model-1")]


def test_a_script_with_its_own_handler_of_sigint_saves_to_the_end(report):
  result = report[1]["interrupt"]
  assert result["handler"] == [None, 1] and result["latest_at_the_end"] == 3


def test_a_long_save_shows_its_progress_on_a_terminal_only(report):
  texts = report[1]["progress"]
  assert "error" not in texts, texts
  lines = texts["terminal"].split("\n")
  assert re.match(r"\rmxrec_saver/save: +\d+ % of 0\.01 GB.*\rmxrec_saver/save: done +\r$", lines[0]), lines
  assert re.match(r"\rmxrec_saver/load: +\d+ % of 0\.01 GB.*\rmxrec_saver/load: done +\r$", lines[1]), lines
  assert lines[2:] == ["END"]
  assert texts["patient"] == texts["pipe"] == "END"


def test_g_25_a_script_that_forgets_to_close_still_exits(report):
  assert report[1]["exit"] == {"ready": True, "status": 0}


def test_importing_costs_little_beyond_tensorflow(report):
  assert report[1]["import_share"] <= 0.1  # of TensorFlow's own, in the same process
