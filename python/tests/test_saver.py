"""EmbeddingTableSaver in one process: exactness, damage, folders, retention."""

import json
import os
import pathlib
import stat

import helpers
import numpy as np
import pytest
import tensorflow.compat.v1 as tf

import mxrec


def files_of(folder, suffix):
  return sorted(path for path in pathlib.Path(folder).rglob("*") if path.is_file() and path.name.endswith(suffix))


@pytest.mark.parametrize("kind", list(helpers.optimizers()))
def test_fact_18_d_29_what_is_loaded_goes_on_as_what_was_saved(kind, sess, tmp_path):
  mxrec.testing.set_clock(50.0)
  emb_table = helpers.table(dimension=6, min_used_times=2, max_cold_secs=100)
  model = helpers.SumModel(emb_table, helpers.optimizers()[kind])
  rng = np.random.RandomState(1)
  batches = [rng.randint(0, 300, 200) for _ in range(8)]
  for batch in batches[:4]:
    model.step(sess, batch, scale=0.1)
  saver = mxrec.EmbeddingTableSaver([emb_table])
  saver.save(sess, str(tmp_path), 4)

  def go_on():
    for batch in batches[4:]:
      model.step(sess, batch, scale=0.1)
    stats = emb_table.stats(sess)
    return emb_table.export(sess) + (stats["candidates"], stats["optimizer_step"])

  straight = go_on()
  for _ in range(2):  # into the filled table, then into an emptied one
    saver.load(sess, str(tmp_path), 4)
    for a, b in zip(straight, go_on()):
      np.testing.assert_array_equal(a, b)
    sess.run(mxrec.get_init_hashtable_op())


def test_d_23_an_empty_table_is_saved_and_loaded(sess, tmp_path):
  emb_table = helpers.table()
  saver = mxrec.EmbeddingTableSaver([emb_table])
  saver.save(sess, str(tmp_path), 0)
  emb_table.insert([1], session=sess)
  report = saver.load(sess, str(tmp_path), 0)
  assert emb_table.size(sess) == 0 and report[0]["rows"] == 0


def test_d_25_ids_only_inserted_or_looked_up_keep_their_row(sess, tmp_path):
  emb_table = helpers.table()
  model = helpers.SumModel(emb_table)
  before = model.look(sess, [1, 2])
  emb_table.insert([1], session=sess)
  saver = mxrec.EmbeddingTableSaver([emb_table])
  saver.save(sess, str(tmp_path), 1)
  sess.run(mxrec.get_init_hashtable_op())
  saver.load(sess, str(tmp_path), 1)
  np.testing.assert_array_equal(model.look(sess, [1, 2]), before)


def test_several_tables_are_one_checkpoint_and_any_of_them_loads_alone(sess, tmp_path):
  tables = [helpers.table(name, dimension=2) for name in ("a", "b", "B")]
  for i, emb_table in enumerate(tables):
    emb_table.insert([i], [[i, i]], session=sess)
  path = mxrec.EmbeddingTableSaver(tables).save(sess, str(tmp_path), 7)
  assert path == str(tmp_path / "mxrec-7")
  sess.run(mxrec.get_init_hashtable_op())
  mxrec.EmbeddingTableSaver([tables[1]]).load(sess, str(tmp_path), 7)
  assert [emb_table.size(sess) for emb_table in tables] == [0, 1, 0]
  mxrec.EmbeddingTableSaver(list(reversed(tables))).load(sess, str(tmp_path))
  assert [list(helpers.contents(emb_table, sess)) for emb_table in tables] == [[0], [1], [2]]


def test_fact_24_saving_adds_no_graph_nodes(sess, tmp_path):
  emb_table = helpers.table()
  saver = mxrec.EmbeddingTableSaver([emb_table])
  version = tf.get_default_graph().version
  for step in range(3):
    saver.save(sess, str(tmp_path), step)
    saver.load(sess, str(tmp_path), step)
    mxrec.EmbeddingTableSaver([emb_table]).save(sess, str(tmp_path), step)
  assert tf.get_default_graph().version == version


def test_keep_n_latest_and_saving_a_step_again(sess, tmp_path):
  emb_table = helpers.table(dimension=1)
  saver = mxrec.EmbeddingTableSaver([emb_table], keep=2)
  assert saver.latest_step(tmp_path) is None and saver.latest_step(tmp_path / "none") is None
  for step in (1, 2, 3, 4294967295):
    emb_table.insert([1], [[step]], session=sess)
    saver.save(sess, tmp_path, step)
  assert sorted(path.name for path in tmp_path.glob("mxrec-*")) == ["mxrec-3", "mxrec-4294967295"]
  assert saver.latest_step(tmp_path) == 4294967295
  emb_table.insert([1], [[30]], session=sess)
  saver.save(sess, tmp_path, 3)  # again, after a resume: now the latest
  assert saver.latest_step(tmp_path) == 3
  emb_table.insert([1], [[0]], session=sess)
  saver.load(sess, tmp_path)
  assert emb_table.lookup_numpy([1], sess)[0, 0] == 30
  (tmp_path / "latest").unlink()
  assert saver.latest_step(tmp_path) == 4294967295


@pytest.mark.parametrize(
  "name", ["with blank", "日本語", "per%cent", "Key password privatekey", "a" * 200, "quote'\"", "new\nline"]
)
def test_d_51_odd_folder_names_work(name, sess, tmp_path):
  emb_table = helpers.table()
  emb_table.insert([1], session=sess)
  saver = mxrec.EmbeddingTableSaver([emb_table])
  saver.save(sess, str(tmp_path / name / "deeper"), 1)
  assert saver.load(sess, tmp_path / name / "deeper", 1)[0]["rows"] == 1


def test_relative_paths_and_soft_links_work_and_folders_can_be_entered(sess, tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  emb_table = helpers.table()
  emb_table.insert([1], session=sess)
  saver = mxrec.EmbeddingTableSaver([emb_table])
  saver.save(sess, "here/ckpt", 1)
  os.symlink(tmp_path / "here", tmp_path / "there")
  assert saver.load(sess, "there/ckpt", 1)[0]["rows"] == 1
  for folder in ("here/ckpt", "here/ckpt/mxrec-1"):
    assert stat.S_IMODE((tmp_path / folder).stat().st_mode) & 0o500 == 0o500
    assert stat.S_IMODE((tmp_path / folder).stat().st_mode) & 0o111  # the original's folders could not be entered


def test_our_files_do_not_look_like_those_that_scripts_search_for(sess, tmp_path):
  mxrec.EmbeddingTableSaver([helpers.table()]).save(sess, tmp_path, 5)
  assert not list(tmp_path.glob("model-*"))


def test_missing_folder_step_or_table_names_what_there_is(sess, tmp_path):
  a, b = helpers.table("a"), helpers.table("b")
  saver = mxrec.EmbeddingTableSaver([a])
  with pytest.raises(tf.errors.NotFoundError):
    saver.load(sess, tmp_path / "none", 1)
  with pytest.raises(tf.errors.NotFoundError):
    saver.load(sess, tmp_path)
  saver.save(sess, tmp_path, 3)
  with pytest.raises(tf.errors.NotFoundError, match="3"):
    saver.load(sess, tmp_path, 4)
  with pytest.raises(tf.errors.NotFoundError, match="b"):
    mxrec.EmbeddingTableSaver([b]).load(sess, tmp_path, 3)


def test_another_dimension_is_refused(tmp_path):
  for dimension in (2, 3):
    with tf.Graph().as_default(), tf.Session() as session:
      emb_table = helpers.table(dimension=dimension)
      saver = mxrec.EmbeddingTableSaver([emb_table])
      emb_table.insert([1], session=session)
      if dimension == 2:
        saver.save(session, tmp_path, 1)
      else:
        with pytest.raises(tf.errors.FailedPreconditionError, match="'t'|\"t\"|t"):
          saver.load(session, tmp_path, 1)
        assert emb_table.size(session) == 1


def test_another_optimizer_loads_rows_with_fresh_slots(tmp_path):
  for optimizer in (tf.train.AdagradOptimizer(0.1), tf.train.AdamOptimizer(0.1)):
    with tf.Graph().as_default(), tf.Session() as session:
      model = helpers.SumModel(helpers.table(), optimizer)
      model.step(session, [1])
      saver = mxrec.EmbeddingTableSaver([model.table])
      if isinstance(optimizer, tf.train.AdagradOptimizer):
        saver.save(session, tmp_path, 1)
        rows = model.look(session, [1])
      else:
        report = saver.load(session, tmp_path, 1)
        assert report[0]["slots_fresh"] and report[0]["file_optimizer"] == "adagrad"
        np.testing.assert_array_equal(model.look(session, [1]), rows)
        model.step(session, [1])


@pytest.mark.parametrize("damage", ["truncated", "bit flip", "emptied", "foreign", "removed", "manifest"])
def test_damaged_files_are_refused_and_the_table_is_untouched(damage, sess, tmp_path):
  emb_table = helpers.table(dimension=3)
  emb_table.insert(np.arange(2000), session=sess)
  saver = mxrec.EmbeddingTableSaver([emb_table])
  folder = pathlib.Path(saver.save(sess, tmp_path, 1))
  emb_table.insert([5, -5], np.ones([2, 3]), session=sess)
  before = helpers.contents(emb_table, sess)
  path = folder / "MANIFEST.json" if damage == "manifest" else files_of(folder, ".mxt")[0]
  content = path.read_bytes()
  if damage == "removed":
    path.unlink()
  else:
    middle = len(content) // 2
    path.write_bytes(
      {
        "truncated": content[:-7],
        "bit flip": content[:middle] + bytes([content[middle] ^ 4]) + content[middle + 1 :],
        "emptied": b"",
        "foreign": b"PK" + os.urandom(len(content) - 2),
        "manifest": content[:-20],
      }[damage]
    )
  with pytest.raises(tf.errors.OpError) as error:
    saver.load(sess, tmp_path, 1)
  assert path.name in str(error.value) or folder.name in str(error.value)
  after = helpers.contents(emb_table, sess)
  assert sorted(before) == sorted(after) and all((before[key] == after[key]).all() for key in before)


def test_a_newer_format_is_refused(sess, tmp_path):
  emb_table = helpers.table()
  saver = mxrec.EmbeddingTableSaver([emb_table])
  manifest = pathlib.Path(saver.save(sess, tmp_path, 1)) / "MANIFEST.json"
  content = json.loads(manifest.read_text())
  key = next(key for key in content if "version" in key)
  content[key] = 10**6
  manifest.write_text(json.dumps(content))
  with pytest.raises(tf.errors.OpError, match="version|1000000"):
    saver.load(sess, tmp_path, 1)


def test_saving_where_nothing_can_be_written_is_an_error(sess, tmp_path):
  saver = mxrec.EmbeddingTableSaver([helpers.table()])
  (tmp_path / "file").write_text("x")
  with pytest.raises(tf.errors.OpError, match="file"):
    saver.save(sess, tmp_path / "file", 1)
  with pytest.raises(tf.errors.OpError):
    saver.save(sess, "/proc/none", 1)


def test_d_28_loading_fifty_times_keeps_memory_flat(sess, tmp_path):
  emb_table = helpers.table(dimension=32)
  emb_table.insert(np.arange(40000), session=sess)
  saver = mxrec.EmbeddingTableSaver([emb_table])
  saver.save(sess, tmp_path, 1)

  def resident():
    with open("/proc/self/statm", encoding="ascii") as file:
      return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20

  for _ in range(5):
    saver.load(sess, tmp_path, 1)
  before = resident()
  for _ in range(45):
    saver.load(sess, tmp_path, 1)
  assert resident() - before < 16, "one copy of the rows is 5 MiB"


def test_d_22_rows_and_slots_are_saved_as_of_one_moment(tmp_path):
  """Saves while another thread trains: SGD-free proof by Adagrad, whose slot follows from the row."""
  import threading

  emb_table = helpers.table(dimension=1, initializer=tf.zeros_initializer())
  # Gradient 1 at each step, so after k steps the accumulator is k and the row -sum 1/sqrt(j).
  model = helpers.SumModel(emb_table, tf.train.AdagradOptimizer(1.0, initial_accumulator_value=1e-20))
  saver = mxrec.EmbeddingTableSaver([emb_table])
  with tf.Session() as session:
    stop = threading.Event()

    def train():
      while not stop.is_set():
        model.step(session, np.arange(500))

    model.step(session, np.arange(500))
    thread = threading.Thread(target=train)
    thread.start()
    for step in range(5):
      saver.save(session, tmp_path, step)
    stop.set()
    thread.join()
    for step in range(5):
      saver.load(session, tmp_path, step)
      rows = emb_table.lookup_numpy(np.arange(500), session)[:, 0]
      assert (rows == rows[0]).all()
      model.step(session, np.arange(500))
      moved = rows - emb_table.lookup_numpy(np.arange(500), session)[:, 0]
      steps = round(1 / float(moved[0]) ** 2)
      np.testing.assert_allclose(moved, 1 / np.sqrt(steps), rtol=1e-3)
      np.testing.assert_allclose(-rows[0], np.sum(1 / np.sqrt(np.arange(1, steps))), rtol=1e-3)
