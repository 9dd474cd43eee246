"""A migrated script gives the losses of its stock twin, over ten small models (G-8, G-15, G-17)."""

import json
import pathlib
import subprocess
import sys

import numpy as np
import pytest
import scipy.stats

HERE = pathlib.Path(__file__).resolve().parent
MODELS = [
  "dense_classifier",
  "wide_and_deep",
  "deep_fm",
  "deep_and_cross",
  "interest_attention",
  "recurrent",
  "autoencoder",
  "mixture_of_experts",
  "factorisation",
  "bert_block",
]

pytestmark = pytest.mark.thorough


@pytest.fixture(scope="module")
def results():
  """Both dialects' output by name; the two processes run side by side."""
  processes = {
    dialect: subprocess.Popen(
      [sys.executable, str(HERE / "worker.py"), dialect], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    for dialect in ("stock", "migrated")
  }
  output = {}
  try:
    for dialect, process in processes.items():
      out, err = process.communicate(timeout=400)
      assert process.returncode == 0, f"{dialect}: {err[-4000:]}"
      output[dialect] = json.loads(out)
  finally:
    for process in processes.values():
      if process.poll() is None:
        process.kill()
        process.wait()
  return output


def test_all_models_ran_in_both_dialects(results):
  assert list(results["stock"]) == list(results["migrated"]) == MODELS


@pytest.mark.parametrize("model", MODELS)
def test_g8_losses_equal_those_of_the_stock_script(results, model):
  stock, migrated = (np.array(results[dialect][model]["losses"]) for dialect in ("stock", "migrated"))
  assert len(stock) == 50
  assert stock[-10:].mean() < 0.98 * stock[:10].mean(), "the model does not learn, so the comparison says little"
  np.testing.assert_allclose(migrated, stock, rtol=0, atol=1e-6)


@pytest.mark.parametrize("model", MODELS)
def test_g15_losses_under_dropout_have_the_same_distribution(results, model):
  stock, migrated = (results[dialect][model]["dropout_losses"] for dialect in ("stock", "migrated"))
  assert np.std(stock) > 0, "dropout was off"
  # Seeds are fixed, so the outcome is too: of two equal distributions one in a thousand would fail here, once and for all.
  assert scipy.stats.ks_2samp(stock, migrated).pvalue > 1e-3
