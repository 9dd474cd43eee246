"""Tables inside tf.train.Saver checkpoints."""

import os

import helpers
import numpy as np
import pytest
import tensorflow.compat.v1 as tf

import mxrec


def build(extra_lookups=0):
  tf.reset_default_graph()
  step = tf.train.get_or_create_global_step()
  emb_table = helpers.table(dimension=3)
  ids = tf.placeholder(tf.int64, [None], name="ids")
  output = tf.identity(mxrec.embedding_lookup(emb_table, ids), name="output")
  for _ in range(extra_lookups):
    mxrec.embedding_lookup(emb_table, ids)
  weight = tf.get_variable("w", [3, 1], initializer=tf.ones_initializer())
  loss = tf.reduce_sum(tf.square(tf.matmul(output, weight)))
  train = mxrec.minimize(loss, tf.train.AdamOptimizer(0.1), global_step=step)
  return emb_table, ids, output, train


def steps(session, train, ids, count, first=0):
  for i in range(first, first + count):
    session.run(train, {ids: [i, i + 1, 7]})


@pytest.mark.parametrize("sharded", [False, True])
def test_save_restore_and_go_on_bit_equal(sharded, tmp_path):
  emb_table, ids, _, train = build()
  saver = tf.train.Saver(sharded=sharded)
  with tf.Session() as session:
    session.run(tf.global_variables_initializer())
    steps(session, train, ids, 3)
    if sharded:  # TensorFlow's own shards do not make the folder; ours does
      (tmp_path / "new").mkdir()
    prefix = saver.save(session, str(tmp_path / "new" / "model"), global_step=3)
    steps(session, train, ids, 3, 3)
    expected = emb_table.export(session)
  emb_table, ids, _output, train = build(extra_lookups=2)  # restoring into a graph with other lookups
  saver = tf.train.Saver(sharded=sharded)
  with tf.Session() as session:
    saver.restore(session, prefix)
    assert emb_table.stats(session)["optimizer_step"] == 3
    steps(session, train, ids, 3, 3)
    for a, b in zip(expected, emb_table.export(session)):
      np.testing.assert_array_equal(a, b)


def test_retention_deletes_side_files_and_resaving_a_step_is_safe(tmp_path):
  emb_table, ids, _, train = build()
  saver = tf.train.Saver(max_to_keep=2)
  with tf.Session() as session:
    session.run(tf.global_variables_initializer())
    for step in range(5):
      steps(session, train, ids, 1, step)
      saver.save(session, str(tmp_path / "model"), global_step=step)
    sides = sorted(path.name for path in tmp_path.glob("*-of-mxrec"))
    assert [name.split(".")[0] for name in sides] == ["model-3", "model-4"]
    before = emb_table.export(session)
    saver.save(session, str(tmp_path / "model"), global_step=4)
    saver.restore(session, str(tmp_path / "model-4"))
    for a, b in zip(before, emb_table.export(session)):
      np.testing.assert_array_equal(a, b)
  assert tf.train.latest_checkpoint(str(tmp_path)) == str(tmp_path / "model-4")


@pytest.mark.parametrize("name", ["", "model"])
def test_the_other_saver_is_told_whose_files_these_are(tmp_path, name):
  emb_table, ids, _, train = build()
  own = mxrec.EmbeddingTableSaver([emb_table])
  with tf.Session() as session:
    session.run(tf.global_variables_initializer())
    steps(session, train, ids, 1)
    tf.train.Saver().save(session, str(tmp_path / "model"))
    with pytest.raises(tf.errors.NotFoundError, match="was written by tf.train.Saver: restore the tables with such a saver"):
      own.load(session, str(tmp_path / name))
    with pytest.raises(tf.errors.NotFoundError) as caught:
      own.load(session, str(tmp_path / "nothing"))
    assert "tf.train.Saver" not in str(caught.value)


def test_the_marker_is_numeric_so_scripts_may_reshape_every_tensor(tmp_path):
  emb_table, ids, _, train = build()
  with tf.Session() as session:
    session.run(tf.global_variables_initializer())
    steps(session, train, ids, 1)
    prefix = tf.train.Saver().save(session, str(tmp_path / "model"))
  reader = tf.train.NewCheckpointReader(prefix)
  assert emb_table.handle.op.name in reader.get_variable_to_shape_map()
  for name in reader.get_variable_to_shape_map():
    flat = reader.get_tensor(name).reshape(-1)
    np.dot(flat, flat)


def test_import_meta_graph_restores_tables_and_finds_them_again(tmp_path):
  _emb_table, ids, output, train = build()
  with tf.Session() as session:
    session.run(tf.global_variables_initializer())
    steps(session, train, ids, 2)
    prefix = tf.train.Saver().save(session, str(tmp_path / "model"))
    expected = session.run(output, {ids: [0, 1, 2, 7]})
  tf.reset_default_graph()
  saver = tf.train.import_meta_graph(prefix + ".meta")
  with tf.Session() as session:
    saver.restore(session, prefix)
    np.testing.assert_array_equal(session.run("output:0", {"ids:0": [0, 1, 2, 7]}), expected)
    again = mxrec.get_existing_tables()
    assert [found.name for found in again] == ["t"]
    assert again[0].size(session) == 4
    assert helpers.table(dimension=3) is again[0]
    assert len(mxrec.get_sparse_embedding()) == 1
    with pytest.raises(ValueError, match="dimension"):
      helpers.table(dimension=4)
    second = tf.train.Saver()  # a new Saver in the imported graph covers the table too
    prefix = second.save(session, str(tmp_path / "second"))
    session.run(mxrec.get_init_hashtable_op())
    second.restore(session, prefix)
    assert again[0].size(session) == 4
    mxrec.EmbeddingTableSaver(again).save(session, str(tmp_path / "own"), 1)


def test_a_saver_in_a_name_scope_and_under_another_name(tmp_path):
  emb_table, ids, _, train = build()
  with tf.name_scope("outer"), tf.name_scope("inner"):
    saver = tf.train.Saver(name="mine")
  with tf.Session() as session:
    session.run(tf.global_variables_initializer())
    steps(session, train, ids, 1)
    prefix = saver.save(session, str(tmp_path / "model"))
    session.run(mxrec.get_init_hashtable_op())
    saver.restore(session, prefix)
    assert emb_table.size(session) == 3


def test_opting_out_lets_dense_checkpoints_restore(tmp_path):
  weight = tf.get_variable("w", [2])
  with tf.Session() as session:
    session.run(tf.global_variables_initializer())
    prefix = tf.train.Saver().save(session, str(tmp_path / "dense"))
  for way in ("argument", "function", "none"):
    tf.reset_default_graph()
    if way == "function":
      mxrec.save_with_tf_saver(False)
    weight = tf.get_variable("w", [2])
    helpers.table(save_with_tf_saver=False if way == "argument" else None)
    with tf.Session() as session:
      if way == "none":
        with pytest.raises(tf.errors.NotFoundError, match="mxrec/t"):
          tf.train.Saver().restore(session, prefix)
      else:
        tf.train.Saver().restore(session, prefix)
        assert session.run(weight).shape == (2,)
    mxrec.save_with_tf_saver(True)


def test_both_savers_share_a_folder_without_disturbing_each_other(tmp_path):
  emb_table, ids, _, train = build()
  saver, own = tf.train.Saver(), mxrec.EmbeddingTableSaver([emb_table])
  with tf.Session() as session:
    session.run(tf.global_variables_initializer())
    steps(session, train, ids, 2)
    saver.save(session, str(tmp_path / "model"), global_step=2)
    own.save(session, str(tmp_path), 2)
    own.load(session, str(tmp_path), 2)
    saver.restore(session, tf.train.latest_checkpoint(str(tmp_path)))
    assert emb_table.size(session) == 4
  import re

  found = {match[1] for path in tmp_path.glob("model-*") if (match := re.match(r".*model-([0-9]+).*", str(path)))}
  assert found == {"2"}


@pytest.mark.parametrize("first", ["stock", "own"])
def test_two_savers_of_one_folder_write_each_table_once_and_load_it_once(first, tmp_path):
  emb_table, ids, _, train = build()
  saver, own = tf.train.Saver(max_to_keep=1), mxrec.EmbeddingTableSaver([emb_table], keep=1)

  def save(session, step):
    saves = [
      lambda: saver.save(session, str(tmp_path / "model"), global_step=step),
      lambda: own.save(session, tmp_path, step),
    ]
    for each in saves if first == "stock" else saves[::-1]:
      each()

  with tf.Session() as session:
    session.run(tf.global_variables_initializer())
    for step in (1, 2):
      steps(session, train, ids, 2, step)
      save(session, step)
      # The other saver's retention has taken the older names only.
      (side,), (table_file,) = tmp_path.glob("*-of-mxrec"), tmp_path.glob("mxrec-*/*.mxt")
      assert side.name.startswith(f"model-{step}.") and table_file.parent.name == f"mxrec-{step}"
      assert side.stat().st_ino == table_file.stat().st_ino and side.stat().st_nlink == 2
    expected = emb_table.export(session)

  emb_table, ids, _, train = build()
  saver, own = tf.train.Saver(), mxrec.EmbeddingTableSaver([emb_table])
  with tf.Session() as session:
    for again in range(2):
      saver.restore(session, tf.train.latest_checkpoint(str(tmp_path)))
      generation = emb_table.stats(session)["generation"]
      (report,) = own.load(session, tmp_path)
      assert report["rows"] == len(expected[0]) and not report["slots_fresh"] and report["file_optimizer"] == "adam"
      assert emb_table.stats(session)["generation"] == generation, "the second load was skipped"
      for a, b in zip(expected, emb_table.export(session)):
        np.testing.assert_array_equal(a, b)
      if again == 0:
        steps(session, train, ids, 1)
    steps(session, train, ids, 1)
    own.load(session, tmp_path)  # not skipped: the table has been trained
    for a, b in zip(expected, emb_table.export(session)):
      np.testing.assert_array_equal(a, b)


def test_two_tf_savers_of_one_folder_write_a_table_once(tmp_path):
  _emb_table, ids, _, train = build()
  with tf.Session() as session:
    session.run(tf.global_variables_initializer())
    steps(session, train, ids, 2)
    for name in ("model", "best"):
      tf.train.Saver(name=name).save(session, str(tmp_path / name), global_step=2)
    sides = sorted(tmp_path.glob("*-of-mxrec"))
    assert len(sides) == 2 and len({side.stat().st_ino for side in sides}) == 1
    tf.train.remove_checkpoint(str(tmp_path / "best-2"))
    tf.train.Saver().restore(session, str(tmp_path / "model-2"))


def test_damaged_or_missing_side_file_is_refused(tmp_path):
  emb_table, ids, _, train = build()
  saver = tf.train.Saver()
  with tf.Session() as session:
    session.run(tf.global_variables_initializer())
    steps(session, train, ids, 2)
    prefix = saver.save(session, str(tmp_path / "model"))
    side = next(tmp_path.glob("*-of-mxrec"))
    content = side.read_bytes()
    side.write_bytes(content[:-3])
    before = emb_table.export(session)
    with pytest.raises(tf.errors.OpError, match=side.name):
      saver.restore(session, prefix)
    os.remove(side)
    with pytest.raises(tf.errors.OpError, match="model"):
      saver.restore(session, prefix)
    for a, b in zip(before, emb_table.export(session)):
      np.testing.assert_array_equal(a, b)


def test_eviction_runs_before_the_save(tmp_path):
  tf.reset_default_graph()
  emb_table = helpers.table(max_cold_secs=10)
  model = helpers.SumModel(emb_table)
  saver = tf.train.Saver()
  with tf.Session() as session:
    mxrec.testing.set_clock(0.0)
    model.step(session, [1])
    mxrec.testing.set_clock(11.0)
    model.step(session, [2])
    saver.save(session, str(tmp_path / "model"))
    assert sorted(helpers.contents(emb_table, session)) == [2]
