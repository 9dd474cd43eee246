"""tf.train.Saver at one rank, at all, and for any number of ranks: tables that several ranks train."""

import os
import pathlib
import signal
import threading
import time

import numpy as np
import pytest
import ranks
import tensorflow.compat.v1 as tf
from helpers import all_contents, merged

import mxrec
from mxrec import _collective, _groups

STEPS = 4


def _here():
  return _groups.world()


def _model():
  tf.reset_default_graph()
  tf.set_random_seed(3)
  step = tf.train.get_or_create_global_step()
  ids = tf.placeholder(tf.int64, [None], name="ids")
  tables = [
    mxrec.get_embedding_table("spread", 4, 1000, min_used_times=2, max_cold_secs=3600),
    mxrec.get_embedding_table("copied", 2, 100, distribution_strategy="DP"),
  ]
  rows = tf.concat([mxrec.embedding_lookup(table, ids) for table in tables], 1)
  weight = tf.get_variable("w", [6, 1], initializer=tf.constant_initializer(0.3))
  loss = tf.reduce_mean(tf.square(tf.matmul(rows, weight) - 1.0))
  train = mxrec.minimize(loss, tf.train.AdamOptimizer(0.05), global_step=step)
  mean = _collective.allreduce(loss, average=True, name="loss")
  return ids, tables, train, mean


def _batch(step):
  """This rank's part of the joined batch of a step."""
  of_all = np.random.RandomState(step).randint(-20, 40, 24)
  part = len(of_all) // _here().size
  return of_all[_here().rank * part : (_here().rank + 1) * part] if _here().size > 1 else of_all


def _train(session, model, first, last):
  ids, _, train, mean = model
  return [float(session.run([mean, train], {ids: _batch(step)})[0]) for step in range(first, last)]


def save_at_rank_0(folder):
  model = _model()
  saver = tf.train.Saver()
  with tf.Session() as session:
    session.run(tf.global_variables_initializer())
    _train(session, model, 0, STEPS)
    if (_here().rank or 0) == 0:
      saver.save(session, f"{folder}/model", global_step=STEPS)
    return {"rows": all_contents(model[1], session), "losses": _train(session, model, STEPS, STEPS + 2)}


def restore(folder, everywhere):
  model = _model()
  saver = tf.train.Saver()
  with tf.Session() as session:
    session.run(tf.global_variables_initializer())
    rank = _here().rank or 0
    if everywhere or rank == 0:
      saver.restore(session, f"{folder}/model-{STEPS}")
    if not everywhere and _here().size > 1:  # dense variables, as the guide's broadcast does
      variables = tf.global_variables()
      session.run([tf.assign(v, x) for v, x in zip(variables, _collective.broadcast([tf.identity(v) for v in variables], 0))])
    return {
      "rows": all_contents(model[1], session),
      "losses": _train(session, model, STEPS, STEPS + 2),
      "steps": [table.stats(session)["optimizer_step"] for table in model[1]],
    }


def _merged(results):
  copied = results[0]["rows"]["copied"]
  assert all(rank["rows"]["copied"] == copied for rank in results)
  return {"spread": merged(results, "spread"), "copied": copied}


@pytest.fixture(scope="module")
def saved_by_2(tmp_path_factory):
  folder = tmp_path_factory.mktemp("saved-by-2")
  return folder, ranks.run(2, save_at_rank_0, str(folder)).results()


def test_g46_rank_0_alone_saves_the_rows_of_all_ranks_for_one_process(saved_by_2, tmp_path):
  folder, results = saved_by_2
  assert sorted(path.name for path in folder.glob("*.index")) == [f"model-{STEPS}.index"]
  assert len(list(folder.glob("*-of-mxrec"))) == 2
  [alone] = ranks.run(1, restore, str(folder), True).results()
  assert alone["rows"] == _merged(results)
  assert alone["steps"] == [STEPS + 2] * 2
  np.testing.assert_allclose(alone["losses"], results[0]["losses"], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("everywhere", [False, True])
def test_rank_0_or_all_ranks_restore(saved_by_2, everywhere):
  folder, results = saved_by_2
  found = ranks.run(2, restore, str(folder), everywhere).results()
  assert _merged(found) == _merged(results)
  for rank in found:
    np.testing.assert_array_equal(rank["losses"], results[0]["losses"])


@pytest.mark.thorough
@pytest.mark.parametrize("everywhere", [False, True])
def test_what_2_ranks_saved_is_restored_by_3(saved_by_2, everywhere):
  folder, results = saved_by_2
  found = ranks.run(3, restore, str(folder), everywhere).results()
  assert _merged(found) == _merged(results)
  for rank in found:
    np.testing.assert_allclose(rank["losses"], results[0]["losses"], rtol=1e-5, atol=1e-6)


def test_what_one_process_saved_is_restored_by_2(tmp_path):
  [alone] = ranks.run(1, save_at_rank_0, str(tmp_path)).results()
  found = ranks.run(2, restore, str(tmp_path), False).results()
  assert _merged(found) == alone["rows"]
  for rank in found:
    np.testing.assert_allclose(rank["losses"], alone["losses"], rtol=1e-5, atol=1e-6)


class _Broadcast(tf.train.SessionRunHook):
  """All variables of rank 0 for all, the global step too."""

  def begin(self):
    from npu_bridge.npu_init import hccl_ops

    self._same = tf.group(*hccl_ops.broadcast(tf.global_variables(), 0))

  def after_create_session(self, session, coord):
    session.run(self._same)


def monitored(folder, steps):
  """The guide's loop: rank 0 alone has a checkpoint folder."""
  ids, _, train, mean = _model()
  hooks = [_Broadcast(), tf.train.StopAtStepHook(last_step=steps)]
  losses = []
  with tf.train.MonitoredTrainingSession(
    checkpoint_dir=folder if _here().rank == 0 else None, save_checkpoint_steps=3, save_summaries_steps=None, hooks=hooks
  ) as session:
    first = session.run(tf.train.get_global_step())
    step = first
    while not session.should_stop():
      losses.append(float(session.run([mean, train], {ids: _batch(step)})[0]))
      step += 1
  return {"first": int(first), "losses": losses}


def test_g46_monitored_session_saves_at_rank_0_and_all_ranks_go_on_from_it(tmp_path):
  whole = ranks.run(2, monitored, str(tmp_path / "whole"), 8).results()
  part = ranks.run(2, monitored, str(tmp_path / "parts"), 5).results()
  assert [rank["first"] for rank in part] == [0, 0]
  assert tf.train.latest_checkpoint(str(tmp_path / "parts")).endswith("-5")  # the last save, when rank 1 is done already
  rest = ranks.run(2, monitored, str(tmp_path / "parts"), 8).results()
  for rank in range(2):
    assert rest[rank]["first"] == 5
    np.testing.assert_array_equal(part[rank]["losses"] + rest[rank]["losses"], whole[rank]["losses"])


def all_save(folder):
  model = _model()
  saver = tf.train.Saver()
  with tf.Session() as session:
    session.run(tf.global_variables_initializer())
    for step in range(3):
      _train(session, model, step, step + 1)
      saver.save(session, f"{folder}/model", global_step=STEPS)  # the same name again
    rows, losses = all_contents(model[1], session), _train(session, model, STEPS, STEPS + 2)
    saver.restore(session, f"{folder}/model-{STEPS}")
    return {
      "rows": rows,
      "losses": losses,
      "again": all_contents(model[1], session),
      "same": _train(session, model, STEPS, STEPS + 2),
    }


def test_where_all_ranks_save_into_one_folder_the_checkpoint_is_whole(tmp_path):
  found = ranks.run(2, all_save, str(tmp_path)).results()
  for rank in found:
    assert rank["again"] == rank["rows"]
    assert rank["same"] == rank["losses"]
  [alone] = ranks.run(1, restore, str(tmp_path), True).results()
  assert alone["rows"] == _merged(found)


def forgetful(folder):
  """Rank 1 empties its rows after a step, so the ranks are not at one update any more."""
  ids = tf.placeholder(tf.int64, [None])
  table = mxrec.get_embedding_table("t", 2, 100)
  train = mxrec.minimize(tf.reduce_sum(mxrec.embedding_lookup(table, ids)), tf.train.GradientDescentOptimizer(0.1))
  saver = tf.train.Saver()
  with tf.Session() as session:
    session.run(tf.global_variables_initializer())
    session.run(train, {ids: [1, 2]})
    if _here().rank == 1:
      session.run(mxrec.get_init_hashtable_op())
      time.sleep(8)
    else:
      saver.save(session, f"{folder}/model")


def test_ranks_that_do_not_come_to_one_update_are_named(tmp_path):
  limits = {"MXREC_STALL_ABORT": "4", "MXREC_STALL_WARNING": "2"}
  outcome = ranks.run(2, forgetful, str(tmp_path), environment=limits)
  assert (
    'table "t": rank 1 has made 0 updates of it, rank 0, which saves, has made 1 update, still so after 4 s'
    in outcome.ranks[0].error
  )
  assert not list(tmp_path.glob("*.index")) and not list(tmp_path.glob("*mxrec*"))


def _die_in_the_save(folder, pattern):
  """Ends this rank like kill -9 as soon as a file of the save is there."""

  def watch():
    while not list(pathlib.Path(folder).glob(pattern)):
      time.sleep(0.0005)
    os.kill(os.getpid(), signal.SIGKILL)

  threading.Thread(target=watch, daemon=True).start()


def killed_while_saving(folder, kind):
  tf.reset_default_graph()
  table = mxrec.get_embedding_table("t", 64, 10**6)
  saver = tf.train.Saver([tf.train.get_or_create_global_step(), *tf.get_collection(tf.GraphKeys.SAVEABLE_OBJECTS)])
  own = mxrec.EmbeddingTableSaver([table])
  with tf.Session() as session:
    session.run(tf.global_variables_initializer())
    table.insert([1, 2, 3, 4], session=session)
    if kind == "own":
      own.save(session, folder, 1)
    elif _here().rank == 0:
      saver.save(session, f"{folder}/model", global_step=1)
    session.run(_collective.allreduce(tf.constant(1.0), name="saved"))  # inserts are no updates that a save could wait for
    table.insert(np.arange(200_000), session=session)
    session.run(_collective.allreduce(tf.constant(1.0), name="filled"))
    if _here().rank == 1:
      _die_in_the_save(folder, "mxrec-2/*00001-of-00002*" if kind == "own" else "model-2*")
    if kind == "own":
      own.save(session, folder, 2)
    elif _here().rank == 0:
      saver.save(session, f"{folder}/model", global_step=2)
    time.sleep(20)


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["own", "tf"])
def test_a_rank_that_is_killed_in_a_save_leaves_the_checkpoint_before_as_the_latest(kind, tmp_path):
  outcome = ranks.run(2, killed_while_saving, str(tmp_path), kind)
  assert outcome.ranks[1].status == -signal.SIGKILL, outcome.report()
  assert "rank 1" in outcome.ranks[0].error, outcome.report()
  table = mxrec.get_embedding_table("t", 64, 10**6)
  step = tf.train.get_or_create_global_step()
  with tf.Session() as session:
    session.run(tf.global_variables_initializer())
    if kind == "own":
      assert mxrec.EmbeddingTableSaver.latest_step(tmp_path) == 1
      mxrec.EmbeddingTableSaver([table]).load(session, tmp_path)
    else:
      latest = tf.train.latest_checkpoint(str(tmp_path))
      assert latest.endswith("model-1")
      assert not list(tmp_path.glob("model-2*"))
      tf.train.Saver([step, *tf.get_collection(tf.GraphKeys.SAVEABLE_OBJECTS)]).restore(session, latest)
    assert sorted(table.export(session)[0].tolist()) == [1, 2, 3, 4]


def evaluated_at_rank_0_only():
  table = mxrec.get_embedding_table("t", 2, 100)
  rows = mxrec.embedding_lookup(table, tf.constant([1, 2], tf.int64), training=False)
  with tf.Session() as session:
    session.run(rows)
    if _here().rank == 0:
      session.run(rows)
    else:
      time.sleep(8)


def test_an_evaluation_on_some_ranks_only_names_those_that_are_missing():
  limits = {"MXREC_STALL_ABORT": "4", "MXREC_STALL_WARNING": "2"}
  outcome = ranks.run(2, evaluated_at_rank_0_only, environment=limits)
  error = outcome.ranks[0].error
  assert "rank 1" in error and "keys" in error, outcome.report()
  assert outcome.ranks[0].seconds < 30
