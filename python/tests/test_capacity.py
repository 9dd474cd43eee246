"""Tables that evict by capacity, and the figures of tables for TensorBoard."""

import glob

import helpers
import numpy as np
import pytest
import tensorflow.compat.v1 as tf

import mxrec


def evicting(vocabulary=100, **arguments):
  return helpers.table("small", vocabulary=vocabulary, capacity_policy="evict", **arguments)


def test_the_ids_that_were_not_trained_for_the_longest_time_go(sess):
  model = helpers.SumModel(evicting())
  model.step(sess, np.arange(100))
  model.step(sess, np.arange(60))
  own = model.table.lookup_numpy([200], sess)
  model.step(sess, np.arange(200, 240))
  assert sorted(helpers.contents(model.table, sess)) == [*range(60), *range(200, 240)]
  np.testing.assert_array_equal(model.table.lookup_numpy([200], sess), own - np.float32(0.5))
  stats = model.table.stats(sess)
  assert (stats["rows"], stats["evictions"], stats["inserts"]) == (100, 40, 140)


def test_lookups_that_do_not_train_are_no_uses(sess):
  model = helpers.SumModel(evicting())
  model.step(sess, np.arange(50))
  model.step(sess, np.arange(50, 100))
  model.look(sess, np.arange(50))
  model.step(sess, np.arange(200, 250))
  assert sorted(helpers.contents(model.table, sess)) == [*range(50, 100), *range(200, 250)]


def test_ids_that_are_trained_often_stay_under_lfu(sess):
  model = helpers.SumModel(evicting(evict_by="lfu", evict_half_life=50))
  for _ in range(10):
    model.step(sess, np.arange(20))
  for start in range(1000, 1800, 80):
    model.step(sess, np.arange(start, start + 80))
  assert set(range(20)) <= set(helpers.contents(model.table, sess))
  for start in range(2000, 2600):
    model.step(sess, [start])
  assert not set(range(20)) & set(helpers.contents(model.table, sess))  # long ago


@pytest.mark.parametrize("optimizer", ["sgd", "adam", "lamb"])
def test_memory_stays_below_max_bytes(optimizer, sess):
  emb_table = evicting(10**9, dimension=16, max_bytes=200_000)
  model = helpers.SumModel(emb_table, helpers.optimizers()[optimizer])
  for start in range(0, 20_000, 200):
    model.step(sess, np.arange(start, start + 200))
    stats = emb_table.stats(sess)
    used = sum(stats[f"bytes_{part}"] for part in ("index", "rows", "slots", "candidates"))
    assert used <= 200_000
  assert used > 160_000 and stats["evictions"] > 15_000


def test_d_09_a_step_with_more_ids_than_fit_is_an_error_that_changes_nothing(sess):
  model = helpers.SumModel(evicting())
  model.step(sess, np.arange(80))
  before = helpers.contents(model.table, sess)
  text = r"table small holds at most 100 rows \(device_vocabulary_size = 100\), this step alone uses 250, 170 of them new"
  with pytest.raises(tf.errors.ResourceExhaustedError, match=text):
    model.step(sess, np.arange(250))
  after = helpers.contents(model.table, sess)
  assert sorted(after) == sorted(before)
  assert all((after[key] == before[key]).all() for key in before)
  model.step(sess, np.arange(80, 180))
  assert sorted(helpers.contents(model.table, sess)) == list(range(80, 180))


@pytest.mark.parametrize("by", ["lru", "lfu"])
def test_a_restored_table_evicts_what_the_saved_one_does(by, sess, tmp_path):
  model = helpers.SumModel(evicting(2000, evict_by=by, max_bytes=60_000), tf.train.AdagradOptimizer(0.1))
  random = np.random.default_rng(1)
  batches = [random.zipf(1.2, 300) % 50_000 for _ in range(60)]
  for batch in batches[:40]:
    model.step(sess, batch)
  saver = mxrec.EmbeddingTableSaver([model.table])
  saver.save(sess, str(tmp_path), 1)
  with tf.Session() as other:
    saver.load(other, str(tmp_path), 1)
    for batch in batches[40:]:
      model.step(sess, batch)
      model.step(other, batch)
    for mine, theirs in zip(model.table.export(sess), model.table.export(other)):
      np.testing.assert_array_equal(mine, theirs)
    assert model.table.stats(other)["evictions"] > 0


def test_an_equal_table_is_the_same_one_and_another_rule_is_named():
  first = evicting(evict_by="lfu")
  assert evicting(evict_by="lfu", evict_half_life=10_000) is first
  with pytest.raises(ValueError, match="table 'small' exists with evict_by = 'lfu', now asked for with 'lru'"):
    evicting()
  with pytest.raises(ValueError, match="evict_half_life = 10000, now asked for with 5"):
    evicting(evict_by="lfu", evict_half_life=5)
  assert helpers.table("lru", capacity_policy="evict").config["evict_by"] == "lru"


def events(folder):
  """[{tag: value}] of the event files of a folder, by step."""
  found = {}
  for path in sorted(glob.glob(f"{folder}/*")):
    for event in tf.train.summary_iterator(path):
      for value in event.summary.value:
        found.setdefault(event.step, {})[value.tag] = value.simple_value
  return found


def test_summary_writes_scalars_that_tensorboard_reads(sess, tmp_path):
  model = helpers.SumModel(evicting(min_used_times=0))
  merged = mxrec.summary(model.table)
  assert merged.dtype == tf.string and merged.shape.rank == 0
  assert mxrec.summary(model.table) is merged
  writer = tf.summary.FileWriter(str(tmp_path))
  for step, ids in enumerate([[], np.arange(80), np.arange(60, 120)]):
    if len(ids):
      model.step(sess, ids)
    writer.add_summary(sess.run(merged), step)
  writer.close()
  found = events(tmp_path)
  tags = {f"mxrec/small/{tag}" for tag in ("rows", "hit_rate", "new_ids", "evictions", "bytes")}
  assert all(set(found[step]) == tags for step in range(3))
  figures = [{tag.split("/")[-1]: value for tag, value in found[step].items()} for step in range(3)]
  bytes_used = [figure.pop("bytes") for figure in figures]
  assert figures[0] == {"rows": 0, "hit_rate": 0, "new_ids": 0, "evictions": 0}
  assert figures[1] == {"rows": 80, "hit_rate": 0, "new_ids": 80, "evictions": 0}
  assert figures[2] == {"rows": 100, "hit_rate": pytest.approx(20 / 140), "new_ids": 120, "evictions": 20}
  stats = model.table.stats(sess)
  assert bytes_used[0] < bytes_used[1] < bytes_used[2]
  assert bytes_used[2] == sum(stats[f"bytes_{part}"] for part in ("index", "rows", "slots", "candidates"))


def test_summaries_of_several_tables_merge_with_those_of_the_script(sess):
  for name in ("a", "b.c"):
    table = helpers.table(name)
    with tf.name_scope("somewhere"), tf.control_dependencies([tf.no_op()]):
      mxrec.summary(table)
  tf.summary.scalar("loss", 1.0)
  text = tf.Summary.FromString(sess.run(tf.summary.merge_all()))
  parts = ("rows", "hit_rate", "new_ids", "evictions", "bytes")
  assert sorted(value.tag for value in text.value) == sorted(["loss", *(f"mxrec/{n}/{p}" for n in ("a", "b.c") for p in parts)])


def test_summary_of_a_table_of_an_imported_graph(sess):
  table = helpers.table("a")
  definition = tf.get_default_graph().as_graph_def()
  with tf.Graph().as_default(), tf.Session() as other:
    tf.import_graph_def(definition, name="")
    (imported,) = mxrec.get_existing_tables()
    assert imported is not table
    assert len(tf.Summary.FromString(other.run(mxrec.summary(imported))).value) == 5
