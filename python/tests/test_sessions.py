"""Sessions, graphs, input pipelines: as with stock TensorFlow."""

import gc
import os
import threading
import weakref

import helpers
import numpy as np
import pytest
import tensorflow.compat.v1 as tf

import mxrec


def test_each_session_has_its_own_rows_and_close_frees_them():
  model = helpers.SumModel(helpers.table())
  with tf.Session() as first, tf.Session() as second:
    model.step(first, [1, 2])
    assert (model.table.size(first), model.table.size(second)) == (2, 0)
    model.step(second, [3])
    assert (sorted(helpers.contents(model.table, first)), sorted(helpers.contents(model.table, second))) == ([1, 2], [3])
  with tf.Session() as third:
    assert model.table.size(third) == 0


def test_sessions_of_a_server_share_their_rows(tmp_path):
  model = helpers.SumModel(helpers.table())
  saver, stock = mxrec.EmbeddingTableSaver([model.table]), tf.train.Saver()
  server = tf.train.Server.create_local_server()
  with tf.Session(server.target) as first:
    model.step(first, [1, 2])
    saver.save(first, tmp_path, 1)
    stock.save(first, str(tmp_path / "model"))
  with tf.Session(server.target) as second:
    assert model.table.size(second) == 2
    second.run(mxrec.get_init_hashtable_op())
    stock.restore(second, str(tmp_path / "model"))
    assert model.table.size(second) == saver.load(second, tmp_path)[0]["rows"] == 2
  with tf.Session() as direct:
    assert model.table.size(direct) == 0


def test_several_graphs_live_side_by_side():
  graphs = []
  for dimension in (2, 3):
    graph = tf.Graph()
    with graph.as_default():
      graphs.append((graph, helpers.SumModel(helpers.table(dimension=dimension))))
  sessions = [tf.Session(graph=graph) for graph, _ in graphs]
  for (_, model), session in zip(graphs, sessions):
    model.step(session, [1] * model.table.dimension)
    assert model.table.size(session) == 1
  for session in sessions:
    session.close()


def test_reset_default_graph_starts_anew_and_leaves_live_sessions_alone():
  model = helpers.SumModel(helpers.table(dimension=4))
  session = tf.Session()
  model.step(session, [1])
  tf.reset_default_graph()
  assert mxrec.get_existing_tables() == []
  other = helpers.SumModel(helpers.table(dimension=2))  # the same name, other arguments: another graph
  assert model.table.size(session) == 1
  session.close()
  with tf.Session() as fresh:
    assert other.table.size(fresh) == 0


def test_registries_do_not_keep_graphs_alive():
  with tf.Graph().as_default() as graph:
    helpers.SumModel(helpers.table())
    kept = weakref.ref(graph)
  del graph
  gc.collect()
  assert kept() is None


def test_hooks_and_every_kind_of_session_reach_the_table(tmp_path):
  model = helpers.SumModel(helpers.table())
  saver = mxrec.EmbeddingTableSaver([model.table])
  tf.train.get_or_create_global_step()
  seen = []

  class Hook(tf.train.SessionRunHook):
    def after_run(self, run_context, run_values):
      seen.append(model.table.size(run_context.session))
      saver.save(run_context.session, tmp_path, len(seen))

  with tf.train.SingularMonitoredSession(hooks=[Hook()]) as session:
    session.run(model.train, {model.ids: [1]})
    session.run(model.train, {model.ids: [2]})
    with pytest.raises(ValueError, match="default session"):
      model.table.size()
    assert model.table.size(session) == 2
  assert seen == [1, 2]
  session = tf.InteractiveSession()
  saver.load(None, tmp_path)
  assert model.table.size() == 2
  session.close()


def test_use_after_close_is_a_clear_error():
  emb_table = helpers.table()
  session = tf.Session()
  session.close()
  with pytest.raises(RuntimeError, match="closed"):
    emb_table.size(session)


def test_the_default_session_is_used_when_none_is_given(sess):
  emb_table = helpers.table()
  assert emb_table.insert([1, 2]) == 2
  assert emb_table.size() == emb_table.size(sess) == 2
  emb_table.erase([1])
  assert emb_table.stats()["rows"] == 1 and len(emb_table.export()[0]) == 1 and emb_table.lookup_numpy([2]).shape == (1, 4)


def test_g_25_a_hundred_sessions_leave_memory_threads_and_files_flat():
  model = helpers.SumModel(helpers.table(dimension=64))

  def once():
    with tf.Session() as session:
      model.step(session, np.arange(5000))

  def figures():
    gc.collect()
    with open("/proc/self/status", encoding="ascii") as file:
      fields = dict(line.split(":", 1) for line in file)
    return int(fields["VmRSS"].split()[0]) / 1024, int(fields["Threads"]), len(os.listdir("/proc/self/fd"))

  for _ in range(20):
    once()
  memory, threads, files = figures()
  for _ in range(80):
    once()
  memory_after, threads_after, files_after = figures()
  assert memory_after - memory < 40, "80 tables hold 100 MiB"
  assert threads_after <= threads + 2 and files_after <= files + 2


def test_g_22_structure_iterator_feeds_nested_fetches_and_run_metadata(sess):
  dataset = tf.data.Dataset.from_tensor_slices((np.arange(8, dtype=np.int64), np.arange(8, dtype=np.float32))).batch(4)
  iterator = tf.data.Iterator.from_structure(tf.data.get_output_types(dataset), tf.data.get_output_shapes(dataset))
  ids, labels = iterator.get_next()
  start = iterator.make_initializer(dataset)
  emb_table = helpers.table(dimension=1)
  output = mxrec.embedding_lookup(emb_table, ids)
  loss = tf.reduce_mean(tf.square(output[:, 0] - labels))
  train = mxrec.minimize(loss, tf.train.GradientDescentOptimizer(0.1))
  metadata = tf.RunMetadata()
  for _ in range(2):
    sess.run(start)
    fetched = sess.run(
      {"loss": loss, "rest": [train, (ids, output)]},
      options=tf.RunOptions(trace_level=tf.RunOptions.FULL_TRACE),
      run_metadata=metadata,
    )
    assert fetched["rest"][1][0].tolist() == [0, 1, 2, 3] and fetched["rest"][1][1].shape == (4, 1)
  assert metadata.step_stats.dev_stats
  assert sess.run(output, {ids: [5, 5], labels: [0, 0]}).shape == (2, 1)


@pytest.mark.parametrize("kind", ["initializable", "one_shot"])
def test_other_iterators(kind, sess):
  dataset = tf.data.Dataset.range(6).batch(2)
  iterator = (tf.data.make_initializable_iterator if kind == "initializable" else tf.data.make_one_shot_iterator)(dataset)
  emb_table = helpers.table()
  train = mxrec.minimize(tf.reduce_sum(mxrec.embedding_lookup(emb_table, iterator.get_next())), tf.train.AdagradOptimizer(0.1))
  if kind == "initializable":
    sess.run(iterator.initializer)
  for _ in range(3):
    sess.run(train)
  assert emb_table.size(sess) == 6


def test_d_37_a_finalized_graph_trains_reads_changes_saves_and_loads(tmp_path):
  model = helpers.SumModel(helpers.table())
  graph = tf.get_default_graph()
  graph.finalize()
  with tf.Session() as session:
    model.step(session, [1, 2])
    emb_table = model.table
    emb_table.insert([5], session=session)
    emb_table.erase([2], session=session)
    emb_table.evict(session)
    emb_table.stats(session)
    saver = mxrec.EmbeddingTableSaver([emb_table])  # its few ops are made once
    version = graph.version
    for step in range(3):
      saver.save(session, str(tmp_path), step)
      saver.load(session, str(tmp_path), step)
    mxrec.EmbeddingTableSaver([emb_table]).save(session, str(tmp_path), 9)
    assert graph.version == version and graph.finalized
    assert sorted(helpers.contents(emb_table, session)) == [1, 5]


def test_monitored_training_session_trains_saves_and_resumes(tmp_path):
  def build():
    tf.reset_default_graph()
    emb_table = helpers.table(dimension=2)
    step = tf.train.get_or_create_global_step()
    output = mxrec.embedding_lookup(emb_table, tf.constant([1, 2], tf.int64))
    return emb_table, mxrec.minimize(tf.reduce_sum(output), tf.train.AdamOptimizer(0.1), global_step=step), step

  def run(steps):
    emb_table, train, step = build()
    with tf.train.MonitoredTrainingSession(
      checkpoint_dir=str(tmp_path / "mts"),
      save_checkpoint_steps=2,
      save_summaries_steps=None,
      save_summaries_secs=None,
      log_step_count_steps=None,
    ) as session:
      for _ in range(steps):
        session.run(train)
      assert emb_table.size(session) == 2
      saver = mxrec.EmbeddingTableSaver([emb_table])
      saver.save(session, str(tmp_path / "own"), 3)
      saver.load(session, str(tmp_path / "own"), 3)
      assert emb_table.stats(session)["optimizer_step"] == session.run(step)
      return emb_table.lookup_numpy([1, 2], session)

  run(3)
  resumed = run(2)
  for path in sorted((tmp_path / "mts").iterdir()):
    path.unlink()
  np.testing.assert_array_equal(run(5), resumed)


def test_d_27_lookups_updates_saves_and_evictions_from_many_threads(tmp_path):
  mxrec.testing.set_clock(0.0)
  model = helpers.SumModel(helpers.table(max_cold_secs=10**6))
  saver = mxrec.EmbeddingTableSaver([model.table], keep=2)
  failures = []

  def guarded(function):
    def body():
      try:
        for turn in range(15):
          function(turn)
      except Exception as error:
        failures.append(error)

    return body

  with tf.Session() as session:
    work = [
      guarded(lambda turn: model.step(session, np.arange(200) + turn)),
      guarded(lambda turn: model.step(session, np.arange(200) * 3 + turn)),
      guarded(lambda turn: model.look(session, np.arange(300))),
      guarded(lambda turn: saver.save(session, str(tmp_path), turn)),
      guarded(lambda turn: model.table.evict(session)),
      guarded(lambda turn: model.table.erase(np.arange(5), session=session)),
    ]
    threads = [threading.Thread(target=body) for body in work]
    for thread in threads:
      thread.start()
    for thread in threads:
      thread.join()
    assert not failures
    saver.load(session, str(tmp_path))
    values = model.table.export(session)[1]
    assert np.isfinite(values).all()


def test_stats_of_all_tables_take_one_run_of_the_session(monkeypatch):
  tables = [helpers.table(f"table_{i}") for i in range(20)]
  with tf.Session() as session:
    tables[3].insert([1, 2], session=session)
    runs = []
    run = session.run
    monkeypatch.setattr(session, "run", lambda *arguments: runs.append(1) or run(*arguments))
    found = mxrec.stats(session)
    assert len(runs) == 1
    assert list(found) == [f"table_{i}" for i in range(20)]
    assert found["table_3"]["rows"] == 2 and found["table_4"]["rows"] == 0
    monkeypatch.undo()
    assert found == {emb_table.name: emb_table.stats(session) for emb_table in tables}
    assert mxrec.stats() == found  # the default session


def test_stats_of_all_tables_work_in_a_monitored_session_and_without_tables():
  with tf.Session() as session:
    assert mxrec.stats(session) == {}
  helpers.table("one")
  with tf.train.MonitoredTrainingSession() as session:
    assert list(mxrec.stats(session)) == ["one"]
