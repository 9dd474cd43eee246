"""bench/scaling.py: its formulas, and that it finds costs again that measurements were made from."""

import importlib.util
import json
import pathlib
import sys
import xml.etree.ElementTree

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]


@pytest.fixture(name="scaling", scope="module")
def scaling_module():
  spec = importlib.util.spec_from_file_location("scaling", ROOT / "bench" / "scaling.py")
  module = importlib.util.module_from_spec(spec)
  sys.modules["scaling"] = module
  spec.loader.exec_module(module)
  yield module
  del sys.modules["scaling"]


def test_the_formulas_count_steps_and_bytes(scaling):
  alpha, beta = scaling.Costs(1.0, 0.0, 0.0), scaling.Costs(0.0, 1.0, 0.0)
  assert alpha.ring(8, 800) == 14 and beta.ring(8, 800) == 2 * 7 * 100
  assert alpha.halving_doubling(8, 800) == 6 and beta.halving_doubling(8, 800) == 2 * 700
  assert alpha.halving_doubling(9, 800) == 8
  assert [alpha.exchange(ranks, 800) for ranks in (2, 17, 18)] == [1, 1, 2] and beta.exchange(8, 800) == 700
  assert alpha.allreduce(512, 64 << 20) == 18 and alpha.allreduce(8, 64 << 20) == 14
  assert scaling.Costs(1.0, 2.0, 3.0).shared(2, 4) == scaling.Costs(2.0, 4.0, 6.0)


@pytest.fixture(name="measured")
def what_the_model_says(scaling):
  costs, rows = scaling.Costs(5e-6, 2e-10, 1e-10), []
  for ranks in (2, 3, 4):
    own = costs.shared(2, ranks)
    for size in (8, 4096, 64 << 10, 1 << 20, 16 << 20):
      for what, seconds in (
        ("message", own.alpha + size * own.beta),
        ("exchange", own.exchange(ranks, size)),
        ("allreduce ring", own.ring(ranks, size)),
        ("allreduce halving-doubling", own.halving_doubling(ranks, size)),
        ("allreduce auto", 1.0),
      ):
        rows.append({"transport": "tcp", "ranks": ranks, "what": what, "bytes": size, "seconds": seconds})
    rows.append({"transport": "tcp", "ranks": ranks, "what": "reduce", "bytes": 1000, "seconds": 1000 * costs.gamma})
  coordinator = [{"ranks": ranks, "names": 200, "seconds": ranks * 1e-5} for ranks in scaling.RANKS]
  return {"machine": "m", "processors": 2, "steal_seconds": 0.0, "rows": rows, "coordinator": coordinator}


def test_costs_are_found_again_and_checked(scaling, measured, tmp_path, monkeypatch, capsys):
  costs = scaling.fit(measured["rows"], "tcp")
  assert (costs.alpha, costs.beta, costs.gamma) == pytest.approx((5e-6, 2e-10, 1e-10), rel=1e-3)
  (tmp_path / "m.json").write_text(json.dumps(measured))
  page = tmp_path / "page.md"
  page.write_text(f"head\n{scaling.BEGIN}\nold\n{scaling.END}\ntail\n")
  arguments = ["--measured", tmp_path / "m.json", "--doc", page, "--svg", tmp_path / "plot.svg", "--network", 30, 1]
  monkeypatch.setattr(sys, "argv", ["scaling.py", *map(str, arguments)])
  assert scaling.main() == 0
  text = page.read_text()
  assert text.startswith("head\n") and text.endswith("tail\n") and "old" not in text
  assert text.count("1.00 (1.00 to 1.00)") == 12, text
  assert "1.00 GB/s a rank (assumed)" in text and "| 512 | " in text and text.strip("\n") != capsys.readouterr().out
  plot = xml.etree.ElementTree.parse(tmp_path / "plot.svg")
  assert len([one for one in plot.iter() if one.tag.endswith("rect")]) == 1 + 6 * (len(scaling.RANKS) + 1)
