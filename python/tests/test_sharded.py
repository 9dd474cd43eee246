"""Tables that several ranks train: the same rows, losses and checkpoints as one process has on the joined batches."""

import json
import pathlib
import subprocess
import sys

import numpy as np
import pytest
from helpers import merged

WORKER = pathlib.Path(__file__).with_name("sharded_worker.py")
SIZES = (1, 2, 3, 4)
JOINED = (
  "joined",
  "joined_adam",
  "joined_hash",
  "joined_replicated",
  "joined_clipped",
  "joined_clipped_by_horovod",
  "joined_sparse_variable",
)
JOBS = [f"{job}:{size}" for job in JOINED for size in ((1, 2, 3, 4) if job == "joined" else (1, 2))]
JOBS += [
  "joined_clipped_by_horovod:2",
  "joined_admission:1",
  "joined_admission:2",
  "fact_11_ids_go_to_their_owners:1",
  "fact_11_ids_go_to_their_owners:2",
]
JOBS += [
  "fact_13_sums_add_over_ranks:2",
  "unequal_and_empty_batches:1",
  "unequal_and_empty_batches:2",
  "unequal_and_empty_batches:3",
]
JOBS += ["save:1", "save:2", "save:3", *(f"load_from_{by}:{size}" for by in (1, 2, 3) for size in SIZES)]
JOBS += ["save_fails_at_one_rank:2", "refusals:2", "exchanges_of_26_tables:2"]


@pytest.fixture(scope="module")
def report(tmp_path_factory):
  folder = tmp_path_factory.mktemp("sharded")
  with open(folder / "log", "w") as log:
    subprocess.run([sys.executable, WORKER, folder, *JOBS], stdout=log, stderr=log, timeout=900, check=False)
  found = json.loads((folder / "report.json").read_text()) if (folder / "report.json").exists() else {}
  return found, (folder / "log").read_text()


def results(report, job, size):
  """What each rank returned."""
  found, log = report
  ranks = found.get(f"{job}:{size}")
  assert ranks is not None, log[-3000:]
  errors = [rank["error"] for rank in ranks if "error" in rank]
  assert not errors, "\n".join(errors) + log[-2000:]
  return [rank["result"] for rank in ranks]


def assert_same_rows(found, expected, tolerance=1e-5):
  assert set(found) == set(expected)
  for key, row in expected.items():
    np.testing.assert_allclose(found[key], row, rtol=tolerance, atol=tolerance, err_msg=f"row of id {key}")


@pytest.mark.parametrize(
  ("job", "size"),
  [("joined", 2), ("joined", 3), ("joined", 4), ("joined_adam", 2), ("joined_hash", 2), ("joined_sparse_variable", 2)],
)
def test_d6_d18_ranks_train_as_one_process_on_the_joined_batch(report, job, size):
  [alone] = results(report, job, 1)
  ranks = results(report, job, size)
  for rank in ranks:
    np.testing.assert_allclose(rank["losses"], alone["losses"], rtol=1e-5, atol=1e-6)
    assert rank["weights"] == ranks[0]["weights"]  # to the bit
    np.testing.assert_allclose(rank["weights"], alone["weights"], rtol=1e-5, atol=1e-6)
  for table in alone["rows"]:
    assert_same_rows(merged(ranks, table), alone["rows"][table])


def test_rows_live_at_the_rank_that_owns_their_id(report):
  for place, rank in enumerate(results(report, "joined", 3)):
    assert {int(key) % 3 for key in rank["rows"]["t0"]} == {place}
  hashed = results(report, "joined_hash", 2)
  assert all({int(key) % 2 for key in rank["rows"]["t0"]} == {0, 1} for rank in hashed)


def test_replicated_tables_are_equal_to_the_bit_and_train_as_one_process(report):
  [alone] = results(report, "joined_replicated", 1)
  first, second = results(report, "joined_replicated", 2)
  assert first["rows"] == second["rows"]
  np.testing.assert_allclose(first["losses"], alone["losses"], rtol=1e-5, atol=1e-6)
  for table in alone["rows"]:
    assert_same_rows(first["rows"][table], alone["rows"][table])


@pytest.mark.parametrize("job", ["joined_clipped", "joined_clipped_by_horovod"])
def test_clipping_goes_by_the_norm_over_all_ranks(report, job):
  [alone] = results(report, "joined_clipped", 1)
  ranks = results(report, job, 2)
  np.testing.assert_allclose(ranks[0]["losses"], alone["losses"], rtol=1e-5, atol=1e-6)
  for table in alone["rows"]:
    assert_same_rows(merged(ranks, table), alone["rows"][table])


def test_admission_counts_the_ids_of_all_ranks(report):
  [alone] = results(report, "joined_admission", 1)
  ranks = results(report, "joined_admission", 2)
  np.testing.assert_allclose(ranks[0]["losses"], alone["losses"], rtol=1e-5, atol=1e-6)
  for table in alone["rows"]:
    assert_same_rows(merged(ranks, table), alone["rows"][table])


def test_fact_11_ids_go_to_their_owners(report):
  [alone] = results(report, "fact_11_ids_go_to_their_owners", 1)
  first, second = results(report, "fact_11_ids_go_to_their_owners", 2)
  assert first["received"] == [[2, 2, 6]]
  assert second["received"] == [[1, 3, 1, 5]]
  assert first["rows"] + second["rows"] == alone["rows"]


def test_fact_13_sums_add_over_ranks_and_means_divide(report):
  for part in results(report, "fact_13_sums_add_over_ranks", 2):
    summed, mean = part
    assert all(row == [4.0, 4.0] if key == "7" else row == [2.0, 2.0] for key, row in summed.items())
    assert all(row == [2.0, 2.0] if key == "7" else row == [1.0, 1.0] for key, row in mean.items())


@pytest.mark.parametrize("size", [2, 3])
def test_d47_d48_unequal_and_empty_batches(report, size):
  [alone] = results(report, "unequal_and_empty_batches", 1)
  ranks = results(report, "unequal_and_empty_batches", size)
  assert [rank["shape"][0] for rank in ranks] == {2: [0, 5], 3: [3, 0, 2]}[size]
  rows = merged(ranks)
  assert set(rows) == set(alone["rows"])
  for key, row in rows.items():  # the mean over the ranks: a sum over the batch becomes smaller by their number
    np.testing.assert_allclose(np.array(row) - 1.0, (np.array(alone["rows"][key]) - 1.0) / size, rtol=1e-5)


@pytest.mark.parametrize("saved_by", [1, 2, 3])
@pytest.mark.parametrize("size", SIZES)
def test_fact_24_checkpoints_of_any_number_of_ranks_load_on_any_other(report, saved_by, size):
  found = {}
  for by in (saved_by, size):
    ranks = results(report, f"load_from_{saved_by}", by)
    found[by] = {table: merged(ranks, table) for table in ranks[0]["rows"]}
    assert all(stats["optimizer"] == "adam" and stats["optimizer_step"] == 3 for rank in ranks for stats in rank["stats"].values())
  assert found[size] == found[saved_by]


def test_a_save_that_fails_at_one_rank_fails_at_all_and_the_next_one_works(report):
  first, second = results(report, "save_fails_at_one_rank", 2)
  assert "rank 1: " in first["failed"] and first["failed"].split("rank 1: ")[1] == second["failed"].split("rank 1: ")[1]
  assert not first["published"] and not second["published"]
  assert first["latest"] == second["latest"] == 2


def test_what_would_hang_or_mislead_is_refused(report):
  for rank, messages in enumerate(results(report, "refusals", 2)):
    assert "cannot stand inside tf.cond or tf.while_loop" in messages["cond"]
    assert "cannot stand inside a function" in messages["map"]
    assert '"DP" and min_used_times = 2 exclude each other' in messages["admission"]
    assert messages["inserted"] == messages["size"] == 5
    assert f"rank {1 - rank} owns id {rank + 1}, this is rank {rank}" in messages["read"]
    assert messages["own"] == "[True]"


def test_26_tables_make_three_exchanges_a_step(report):
  for rank in results(report, "exchanges_of_26_tables", 2):
    assert rank["ops"] == {"MxrecExchangeKeys": 1, "MxrecExchangeRows": 1, "MxrecExchangeGradients": 1}
    assert rank["equal"]
