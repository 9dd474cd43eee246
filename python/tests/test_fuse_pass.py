"""The pass that makes few ops of a run's lookups and of its updates: same results, fewer ops, and what it must not fuse."""

import collections
import re
import threading
import time

import helpers
import numpy as np
import ops_harness
import pytest
import tensorflow as tf2
import tensorflow.compat.v1 as tf
from tensorflow.python.client import timeline

import mxrec

TABLES = 26
TRACE = tf.RunOptions(trace_level=tf.RunOptions.FULL_TRACE)
FUSED = ("MxrecLookupMany", "MxrecApplyMany")
SINGLE = ("MxrecLookup", "MxrecApply")


def ids_of(*ids):
  """A constant of ids."""
  return tf.constant(ids, tf.int64)


def tables(count, **arguments):
  return [helpers.table(f"t{i}", dimension=2, **arguments) for i in range(count)]


def ran(sess, fetches, feed=None):
  """What fetches give, and how often each type of op ran for it."""
  metadata = tf.RunMetadata()
  result = sess.run(fetches, feed, options=TRACE, run_metadata=metadata)
  return result, types(metadata)


def types(metadata):
  labels = [node.timeline_label for device in metadata.step_stats.dev_stats for node in device.node_stats]
  return collections.Counter(match[1] for match in (re.search(r" = (\w+)\(", label) for label in labels) if match)


def counts(by_type):
  """How many (fused lookups, fused updates, lookups, updates) ran."""
  return tuple(by_type[name] for name in FUSED + SINGLE)


def slow_ids(*ids):
  """The ids, some time later."""
  out = tf.py_func(lambda: (time.sleep(0.005), np.array(ids, np.int64))[1], [], tf.int64, stateful=True)
  out.set_shape([len(ids)])
  return out


@pytest.fixture(autouse=True)
def fuse(monkeypatch):
  """All that can be fused is in one op, however many threads there are."""
  monkeypatch.setenv("MXREC_FUSE", "64")


@pytest.fixture
def fuse_few(monkeypatch, fuse):
  monkeypatch.setenv("MXREC_FUSE", "1")


# --- same results ---


class Mixed:
  """26 tables: of several dims, admission, default rows, padding, pooled and clipped lookups, two lookups of one table, two
  optimizers in one step, of which one clips by global norm."""

  def __init__(self, clip_norm=None):
    self.ids = tf.placeholder(tf.int64, [TABLES, 48])
    self.step = tf.train.get_or_create_global_step()
    losses, self.outputs, self.tables = ([], []), [], []
    for t in range(TABLES):
      rules = {"min_used_times": 3} if t % 4 == 1 else {}
      emb_table = helpers.table(f"t{t}", dimension=1 + t % 5, initializer=tf.random_normal_initializer(seed=t), **rules)
      self.tables.append(emb_table)
      ids = self.ids[t] if t % 3 else tf.cast(self.ids[t], tf.int32)
      if t % 5 == 2:
        bags = tf.RaggedTensor.from_row_lengths(ids, tf.constant([0, 5, 40, 3], tf.int64))
        outputs = [mxrec.embedding_lookup(emb_table, bags, combiner="mean", max_norm=2.0 if t % 2 else None)]
      elif t % 5 == 3:
        outputs = [mxrec.embedding_lookup(emb_table, ids, default=0.25), mxrec.embedding_lookup(emb_table, ids[:20])]
      else:
        outputs = [mxrec.embedding_lookup(emb_table, ids, padding_id=3 if t % 2 else None)]
      self.outputs += outputs
      losses[t % 2].extend(tf.reduce_sum(tf.square(output - 0.5)) for output in outputs)
    self.train = [
      mxrec.minimize(tf.add_n(losses[0]), tf.train.AdagradOptimizer(0.1), clip_norm=clip_norm),
      mxrec.minimize(tf.add_n(losses[1]), tf.train.AdamOptimizer(0.01), global_step=self.step),
    ]

  def run(self, threads, steps=20):
    """The outputs of some steps and the contents after them, as bytes; the types of op of the last step."""
    rng, seen = np.random.default_rng(5), []
    with tf.Session(config=ops_harness.threads(threads, inter=threads)) as session:
      session.run(tf.global_variables_initializer())
      for _ in range(steps):
        ids = rng.integers(0, 60, [TABLES, 48])
        (outputs, _), by_type = ran(session, [self.outputs, self.train], {self.ids: ids})
        seen.append([output.tobytes() for output in outputs])
      for emb_table in self.tables:
        keys, values = emb_table.export(session)
        seen.append([keys.tobytes(), values.tobytes()])
        stats = emb_table.stats(session)
        seen.append([stats[name] for name in ("rows", "optimizer_step", "optimizer")])
    return seen, by_type


def test_words_switch_the_pass_on_and_off(sess, monkeypatch):
  ids = tf.placeholder(tf.int64, [2, None])
  fetches = [mxrec.embedding_lookup(emb_table, ids[t]) for t, emb_table in enumerate(tables(2))]

  def ops(setting, more_ids):
    monkeypatch.setenv("MXREC_FUSE", setting)
    with tf.Session(config=ops_harness.threads(1, inter=1)) as session:  # a graph is rewritten once a session
      return counts(ran(session, fetches, {ids: np.zeros([2, more_ids], np.int64)})[1])

  for on in ("1", "yes", "ON", "true", " on "):
    assert ops(on, 3) == (1, 0, 0, 0)
  for off in ("0", "no", "Off", "false"):
    assert ops(off, 3) == (0, 0, 2, 0)
  for wrong in ("maybe", "-1", "2.5", "4 tables"):
    with pytest.raises(tf.errors.InvalidArgumentError, match=f'MXREC_FUSE must be 1, true, yes or on, .*found "{wrong}"'):
      ops(wrong, 3)


@pytest.mark.parametrize("clip_norm", [None, 1.0])
def test_twenty_steps_of_26_tables_are_equal_to_the_bit_with_the_pass_on_and_off(clip_norm, monkeypatch):
  model = Mixed(clip_norm)
  results = {}
  for setting in ("64", "1", "0"):
    monkeypatch.setenv("MXREC_FUSE", setting)
    for threads in (1, 4):
      results[setting, threads] = model.run(threads)
  expected, by_type = results["0", 1]
  lookups = TABLES + sum(t % 5 == 3 for t in range(TABLES))
  assert counts(by_type) == (0, 0, lookups, TABLES)
  for (setting, _), (seen, by_type) in results.items():
    assert all(one == other for one, other in zip(seen, expected, strict=True))  # no diff of megabytes
    if setting == "64":
      assert counts(by_type) == (1, 1, 0, 0)


@pytest.mark.usefixtures("fuse_few")
def test_ops_of_up_to_four_tables_keep_all_threads_busy():
  looked = [mxrec.embedding_lookup(emb_table, ids_of(1, 2)) for emb_table in tables(TABLES)]
  train = mxrec.minimize(tf.add_n([tf.reduce_sum(tf.square(rows)) for rows in looked]), tf.train.AdagradOptimizer(0.1))
  some = tf.group(*looked[:4])
  for inter, expected, expected_of_four in (
    (1, (7, 7, 0, 0), (1, 0, 0, 0)),
    (2, (7, 7, 0, 0), (0, 0, 4, 0)),
    (8, (10, 10, 6, 6), (0, 0, 4, 0)),
  ):
    with tf.Session(config=ops_harness.threads(1, inter=inter)) as session:
      _, by_type = ran(session, train)
      assert counts(by_type) == expected and by_type["MxrecExpand"] == expected[2]
      assert counts(ran(session, some)[1]) == expected_of_four


def test_rows_are_spread_over_repeated_ids_by_the_fused_op(sess):
  emb_tables = tables(6)
  kinds = [{}, {"training": False}, {"default": 2.0}, {"max_norm": 0.5}, {"padding_id": 4}, {}]
  looked = [
    mxrec.embedding_lookup(emb_table, tf.constant([[4, 7, 4], [7, 7, 7]]), **kind) for emb_table, kind in zip(emb_tables, kinds)
  ]
  with tf.control_dependencies([looked[0]]):
    late = mxrec.embedding_lookup(emb_tables[5], ids_of(7), training=False)
  apart = ops_harness.ops.mxrec_expand(looked[5].op.inputs[0], tf.constant([1, 0]))
  (values, alone, again), by_type = ran(sess, [looked, late, apart])
  assert counts(by_type)[0] == 1
  # Clipped rows and those of other places than the lookup's own are spread by ops of their own.
  assert 2 <= by_type["MxrecExpand"] <= 4
  for t, (emb_table, kind) in enumerate(zip(emb_tables, kinds)):
    rows = emb_table.lookup_numpy([4, 7], sess)
    if kind.get("training") is False:
      rows = np.zeros_like(rows)
    if "padding_id" in kind:
      rows[0] = 0
    if "max_norm" not in kind:
      np.testing.assert_array_equal(values[t], rows[np.array([[0, 1, 0], [1, 1, 1]])])
  assert (alone == 0).all() and again.shape == (2, 2)


def test_fewer_ops_run(sess, monkeypatch):
  looked = [mxrec.embedding_lookup(emb_table, ids_of(1, 2)) for emb_table in tables(TABLES)]
  train = mxrec.minimize(tf.add_n([tf.reduce_sum(tf.square(rows)) for rows in looked]), tf.train.AdagradOptimizer(0.1))
  _, fused = ran(sess, train)
  monkeypatch.setenv("MXREC_FUSE", "0")
  _, single = ran(sess, [train, tf.no_op()])
  assert counts(fused) == (1, 1, 0, 0) and counts(single) == (0, 0, TABLES, TABLES)
  assert sum(single.values()) - sum(fused.values()) >= 2 * (TABLES - 1) + TABLES


def test_a_timeline_of_a_fused_step_can_be_read(sess):
  looked = [mxrec.embedding_lookup(emb_table, ids_of(1)) for emb_table in tables(3)]
  metadata = tf.RunMetadata()
  sess.run(looked, options=TRACE, run_metadata=metadata)
  trace = timeline.Timeline(metadata.step_stats).generate_chrome_trace_format(show_memory=True)
  assert "MxrecLookupMany" in trace and "mxrec_fused/3_lookups_" in trace


def test_tables_of_different_optimizers_share_one_update_op(sess):
  emb_tables = tables(3)
  updates = []
  for emb_table, optimizer in zip(emb_tables, helpers.optimizers().values()):
    updates.append(mxrec.minimize(tf.reduce_sum(mxrec.embedding_lookup(emb_table, ids_of(1))), optimizer))
  assert counts(ran(sess, updates)[1]) == (1, 1, 0, 0)
  assert [emb_table.stats(sess)["optimizer"] for emb_table in emb_tables] == ["sgd", "adagrad", "adam"]


def test_two_updates_of_one_table_are_not_in_one_op(sess):
  emb_table, other = tables(2)
  losses = [tf.reduce_sum(mxrec.embedding_lookup(table, ids_of(1))) for table in (emb_table, emb_table, other)]
  updates = [mxrec.minimize(loss, tf.train.GradientDescentOptimizer(1.0)) for loss in losses]
  first = emb_table.lookup_numpy([1], sess)
  assert counts(ran(sess, updates)[1]) == (1, 1, 0, 1)
  np.testing.assert_array_equal(emb_table.lookup_numpy([1], sess), first - 2)


def test_the_environment_switches_the_pass_off(sess, monkeypatch):
  monkeypatch.setenv("MXREC_FUSE", "0")
  looked = [mxrec.embedding_lookup(emb_table, ids_of(1)) for emb_table in tables(2)]
  assert counts(ran(sess, looked)[1]) == (0, 0, 2, 0)


def test_a_graph_without_tables_and_one_with_a_single_lookup_stay_as_they_are(sess):
  assert counts(ran(sess, tf.constant(1) + tf.placeholder_with_default(1, []))[1]) == (0, 0, 0, 0)
  assert counts(ran(sess, mxrec.embedding_lookup(helpers.table(), ids_of(1)))[1]) == (0, 0, 1, 0)


# --- by size ---


@pytest.fixture
def fuse_by_size(monkeypatch, fuse):
  """What sessions do when the environment says nothing."""
  monkeypatch.delenv("MXREC_FUSE")


def train_step(ids):
  """Lookups of these ids, each in a table of its own, and one update of all."""
  looked = [mxrec.embedding_lookup(emb_table, each) for emb_table, each in zip(tables(len(ids)), ids)]
  loss = tf.add_n([tf.reduce_sum(tf.square(rows)) for rows in looked])
  return mxrec.minimize(loss, tf.train.AdagradOptimizer(0.1))


@pytest.mark.usefixtures("fuse_by_size")
@pytest.mark.parametrize("setting", [None, ""])
@pytest.mark.parametrize("inter", [1, 2])
def test_by_default_small_tables_share_few_ops(setting, inter, monkeypatch):
  if setting is not None:
    monkeypatch.setenv("MXREC_FUSE", setting)
  fed = tf.placeholder(tf.int64, [TABLES, 8, 16])
  train = train_step(tf.unstack(fed))
  with tf.Session(config=ops_harness.threads(1, inter=inter)) as session:
    for _ in range(2):
      fused_lookups, fused_updates, lookups, updates = counts(ran(session, train, {fed: np.zeros([TABLES, 8, 16])})[1])
      assert 0 < fused_lookups <= 4 and 0 < fused_updates <= 4 and (lookups, updates) == (0, 0)


@pytest.mark.usefixtures("fuse_by_size")
@pytest.mark.parametrize("shape", [[TABLES, 2048], [TABLES, 129], [TABLES, None], None])
def test_by_default_lookups_of_many_ids_or_of_an_unknown_number_stay_single(shape, sess):
  fed = tf.placeholder(tf.int64, shape)
  train = train_step([fed[t] for t in range(TABLES)])
  size = (shape or [0, None])[1] or 5
  _, by_type = ran(sess, train, {fed: np.zeros([TABLES, size])})
  assert counts(by_type) == (0, 0, TABLES, TABLES)


@pytest.mark.usefixtures("fuse_by_size")
def test_by_default_small_tables_are_fused_beside_large_ones():
  fed = tf.placeholder(tf.int64, [None])
  emb_tables = tables(12)
  small = [mxrec.embedding_lookup(emb_table, ids_of(1, 2)) for emb_table in emb_tables[:10]]
  large = [mxrec.embedding_lookup(emb_table, tf.zeros([200], tf.int64)) for emb_table in emb_tables[9:11]]
  unknown = mxrec.embedding_lookup(emb_tables[11], fed)
  loss = tf.add_n([tf.reduce_sum(tf.square(rows)) for rows in (*small, *large, unknown)])
  train = mxrec.minimize(loss, tf.train.AdagradOptimizer(0.1))
  with tf.Session(config=ops_harness.threads(1)) as session:
    _, by_type = ran(session, train, {fed: [1]})
    # The table of a small and a large lookup is updated by an op of its own.
    assert by_type["MxrecLookup"] == 3 and by_type["MxrecApply"] == 3
    assert by_type["MxrecLookupMany"] > 0 and by_type["MxrecApplyMany"] > 0
    assert [emb_table.size(session) for emb_table in emb_tables] == [2] * 9 + [3, 1, 1]


def test_steps_fused_by_size_are_equal_to_the_bit(monkeypatch):
  model = Mixed()
  results = []
  for setting in (None, "0"):
    if setting is None:
      monkeypatch.delenv("MXREC_FUSE")
    else:
      monkeypatch.setenv("MXREC_FUSE", setting)
    seen, by_type = model.run(1, steps=5)
    results.append(seen)
    assert (counts(by_type)[0] > 0) == (counts(by_type)[1] > 0) == (setting is None)
  assert all(one == other for one, other in zip(*results, strict=True))


@pytest.mark.usefixtures("fuse_by_size")
def test_a_lookup_knows_how_many_ids_the_graph_says_it_has(sess):
  emb_table = helpers.table("t", dimension=2)
  for ids, expected in (
    (tf.zeros([2, 3], tf.int64), 6),
    (tf.zeros([0], tf.int64), 0),
    (tf.constant(5, tf.int64), 1),
    (tf.placeholder(tf.int64, [None, 3]), -1),
    (tf.placeholder(tf.int64, None), -1),
  ):
    mxrec.embedding_lookup(emb_table, ids)
    assert mxrec.get_sparse_embedding()[-1].op.get_attr("static_ids") == expected


# --- what depends on each other ---


def test_a_lookup_whose_ids_come_from_another_lookup_is_not_fused_with_it(sess):
  first, second, other = tables(3)
  first.insert([1], [[5, 5]], session=sess)
  found = mxrec.embedding_lookup(first, ids_of(1))
  chained = mxrec.embedding_lookup(second, tf.cast(found[:, 0], tf.int64))
  aside = mxrec.embedding_lookup(other, ids_of(1))
  (_, rows, _), by_type = ran(sess, [found, chained, aside])
  assert counts(by_type) == (1, 0, 1, 0)
  np.testing.assert_array_equal(rows, second.lookup_numpy([5], sess))
  # Updates of all three: those of the first level's tables go together.
  train = mxrec.minimize(tf.reduce_sum(found) + tf.reduce_sum(chained) + tf.reduce_sum(aside), tf.train.AdagradOptimizer(0.1))
  sess.run(train)
  assert [emb_table.size(sess) for emb_table in (first, second, other)] == [1, 1, 1]


def test_a_lookup_after_another_by_a_control_edge_is_not_fused_with_it(sess):
  first, second = tables(2)
  found = mxrec.embedding_lookup(first, ids_of(1))
  with tf.control_dependencies([found]):
    ids = tf.identity(ids_of(2))
  assert counts(ran(sess, [found, mxrec.embedding_lookup(second, ids)])[1]) == (0, 0, 2, 0)


def test_lookups_before_and_after_an_update_see_the_old_and_the_new_row(sess):
  first, second = tables(2)
  sgd = tf.train.GradientDescentOptimizer(1.0)
  before = [mxrec.embedding_lookup(emb_table, ids_of(1)) for emb_table in (first, second)]
  train = mxrec.minimize(tf.reduce_sum(before[0]) + tf.reduce_sum(before[1]), sgd)
  with tf.control_dependencies([train]):
    ids = tf.identity(ids_of(1))
  after = [mxrec.embedding_lookup(emb_table, ids, training=False) for emb_table in (first, second)]
  for _ in range(3):
    (old, new), by_type = ran(sess, [before, after])
    np.testing.assert_array_equal(np.array(old) - 1, new)
    assert counts(by_type) == (2, 1, 0, 0)


def test_a_late_lookup_still_comes_before_the_update(sess):
  first, second = tables(2)
  losses = [tf.reduce_sum(mxrec.embedding_lookup(emb_table, ids_of(1))) for emb_table in (first, second)]
  train = mxrec.minimize(tf.add_n(losses), tf.train.GradientDescentOptimizer(1.0))
  late = mxrec.embedding_lookup(first, slow_ids(1), training=False)
  sess.run(train)
  for _ in range(10):
    old = first.lookup_numpy([1], sess)
    rows = sess.run([late, train])[0]
    np.testing.assert_array_equal(rows, old)


def test_a_lookup_that_a_loop_makes_dependent_is_not_fused(sess):
  """The second lookup's ids come out of a loop that the first one's rows enter only through its second turn."""
  first, second = tables(2)
  first.insert([1], [[5, 5]], session=sess)
  found = mxrec.embedding_lookup(first, ids_of(1), training=False)[0, 0]
  total = tf.while_loop(lambda i, total: i < 2, lambda i, total: (i + 1, total + found), [tf.constant(0), tf.constant(0.0)])[1]
  chained = mxrec.embedding_lookup(second, tf.cast(total, tf.int64)[None])
  (_, rows), by_type = ran(sess, [found, chained])
  assert counts(by_type) == (0, 0, 2, 0)
  np.testing.assert_array_equal(rows, second.lookup_numpy([10], sess))


def test_lookups_in_a_while_loop_stay_and_those_around_it_are_fused(sess):
  inner, *outer = tables(3)
  inner.insert([0, 1, 2], [[1, 1], [2, 2], [4, 4]], session=sess)
  _, total = tf.while_loop(
    lambda i, total: i < 3,
    lambda i, total: (i + 1, total + tf.reduce_sum(mxrec.embedding_lookup(inner, [i], training=False))),
    [tf.constant(0, tf.int64), tf.constant(0.0)],
  )
  looked = [mxrec.embedding_lookup(emb_table, ids_of(1)) for emb_table in outer]
  (value, _), by_type = ran(sess, [total, looked])
  assert value == 14 and counts(by_type) == (1, 0, 3, 0)


# --- branches ---


@pytest.mark.parametrize("v2", [False, True])
def test_lookups_in_a_branch_are_not_fused_with_those_outside_or_in_the_other_one(v2, sess):
  which = tf.placeholder(tf.bool, [])
  outside, taken, also_taken, other = tables(4)
  (tf.enable_control_flow_v2 if v2 else tf.disable_control_flow_v2)()
  try:
    branch = tf.cond(
      which,
      lambda: [mxrec.embedding_lookup(emb_table, ids_of(1), training=False) for emb_table in (taken, also_taken)],
      lambda: [mxrec.embedding_lookup(other, ids_of(1), training=False), tf.zeros([1, 2])],
    )
  finally:
    tf.disable_control_flow_v2()
  looked = mxrec.embedding_lookup(outside, ids_of(1))
  train = mxrec.minimize(tf.reduce_sum(looked), tf.train.GradientDescentOptimizer(1.0))
  for steps, value in enumerate((True, False, True)):
    rows = outside.lookup_numpy([1], sess)
    (seen, _, _), _ = ran(sess, [looked, branch, train], {which: value})
    np.testing.assert_array_equal(seen, rows)
    assert outside.stats(sess)["optimizer_step"] == steps + 1


def test_lookups_of_one_branch_are_fused_with_each_other(sess):
  which = tf.placeholder(tf.bool, [])
  emb_tables = tables(4)

  def sums(some):
    return lambda: tf.add_n([tf.reduce_sum(mxrec.embedding_lookup(emb_table, ids_of(1))) for emb_table in some])

  loss = tf.cond(which, sums(emb_tables[:2]), sums(emb_tables[2:3])) + sums(emb_tables[3:])()
  step = tf.train.get_or_create_global_step()
  train = mxrec.minimize(loss, tf.train.GradientDescentOptimizer(1.0), global_step=step)
  sess.run(tf.global_variables_initializer())
  for value, sizes in ((True, [1, 1, 0, 1]), (False, [1, 1, 1, 1])):
    sess.run(train, {which: value})
    assert [emb_table.size(sess) for emb_table in emb_tables] == sizes
  assert sess.run(step) == 2


def test_updates_in_a_branch_are_skipped_with_it_and_with_nothing_else(sess):
  """Loss scaling: the updates of two tables inside a cond, one outside."""
  emb_tables = tables(3)
  finite = tf.placeholder(tf.bool, [])
  losses = [tf.reduce_sum(mxrec.embedding_lookup(emb_table, ids_of(1))) for emb_table in emb_tables]
  rows = mxrec.get_sparse_embedding()
  pairs = list(zip(tf.gradients(tf.add_n(losses), rows), rows))
  inside = tf.cond(finite, lambda: tf.group(mxrec.AdamWOptimizer().apply_gradients(pairs[:2])), tf.no_op)
  outside = mxrec.AdamWOptimizer().apply_gradients(pairs[2:])
  for value, steps in ((False, [0, 0, 1]), (True, [1, 1, 2])):
    _, by_type = ran(sess, [inside, outside], {finite: value})
    assert [emb_table.stats(sess)["optimizer_step"] for emb_table in emb_tables] == steps
    assert by_type["MxrecLookupMany"] == 1


# --- what must run apart ---


def run_in_time(sess, fetches, feed=None):
  """Deadlocks become errors."""
  return sess.run(fetches, feed, options=tf.RunOptions(timeout_in_ms=20_000))


def test_a_lookup_that_waits_for_a_queue_which_another_one_fills_is_not_fused_with_it(sess):
  first, second = tables(2)
  queue = tf.FIFOQueue(1, tf.int64, shapes=[[]])
  found = mxrec.embedding_lookup(first, ids_of(1), training=False)
  fill = queue.enqueue(tf.cast(tf.size(found), tf.int64) + 5)
  waiting = mxrec.embedding_lookup(second, queue.dequeue()[None])
  for _ in range(2):
    rows, _ = run_in_time(sess, [waiting, fill])
    np.testing.assert_array_equal(rows, second.lookup_numpy([7], sess))


def test_a_lookup_that_waits_for_python_which_another_one_wakes_is_not_fused_with_it(sess):
  first, second = tables(2)
  woken = threading.Event()

  def wait():
    assert woken.wait(10)
    return np.array([1], np.int64)

  ids = tf.py_func(wait, [], tf.int64, stateful=True)
  ids.set_shape([1])
  waiting = mxrec.embedding_lookup(second, ids, training=False)
  found = mxrec.embedding_lookup(first, ids_of(1), training=False)
  wake = tf.py_func(lambda rows: (woken.set(), rows)[1], [found], tf.float32, stateful=True)
  with tf.Session(config=ops_harness.threads(2, inter=4)) as session:
    run_in_time(session, [waiting, wake])


def test_lookups_of_one_input_queue_or_iterator_are_fused(sess):
  emb_tables = tables(4)
  queue = tf.FIFOQueue(10, [tf.int64, tf.int64], shapes=[[2], [2]])
  sess.run(queue.enqueue([np.array([1, 2]), np.array([3, 4])]))
  iterator = tf.data.make_one_shot_iterator(tf.data.Dataset.from_tensors((np.array([1, 2]), np.array([3, 4]))).repeat())
  sources = [*queue.dequeue(), *iterator.get_next()]
  looked = [mxrec.embedding_lookup(emb_table, ids) for emb_table, ids in zip(emb_tables, sources)]
  train = mxrec.minimize(tf.add_n([tf.reduce_sum(rows) for rows in looked]), tf.train.AdagradOptimizer(0.1))
  assert counts(ran(sess, train)[1]) == (1, 1, 0, 0)
  assert [sorted(helpers.contents(emb_table, sess)) for emb_table in emb_tables] == [[1, 2], [3, 4]] * 2


def test_partial_runs_get_each_lookup_when_its_own_feed_is_there(sess):
  first, second = tables(2)
  feeds = [tf.placeholder(tf.int64, [1]) for _ in range(2)]
  found = [mxrec.embedding_lookup(emb_table, ids) for emb_table, ids in zip((first, second), feeds)]
  handle = sess.partial_run_setup(found, feeds)
  np.testing.assert_array_equal(sess.partial_run(handle, found[0], {feeds[0]: [1]}), first.lookup_numpy([1], sess))
  np.testing.assert_array_equal(sess.partial_run(handle, found[1], {feeds[1]: [2]}), second.lookup_numpy([2], sess))


def test_lookups_on_two_devices_stay_there():
  config = ops_harness.threads(2)
  config.device_count["CPU"] = 2
  looked = []
  for i in range(6):
    with tf.device(f"/cpu:{i % 2}"):
      looked.append(mxrec.embedding_lookup(helpers.table(f"t{i}", dimension=2), ids_of(1)))
  train = mxrec.minimize(tf.add_n([tf.reduce_sum(rows) for rows in looked]), tf.train.AdagradOptimizer(0.1))
  with tf.Session(config=config) as session:
    metadata = tf.RunMetadata()
    session.run(train, options=TRACE, run_metadata=metadata)
    assert counts(types(metadata))[0] == 2 and counts(types(metadata))[2] == 0
    assert all(emb_table.size(session) == 1 for emb_table in mxrec.get_existing_tables())


# --- feeds, fetches, sessions, graphs ---


def test_tensors_and_ops_of_a_fused_lookup_can_be_fetched_by_name(sess):
  emb_tables = tables(3)
  looked = [mxrec.embedding_lookup(emb_table, ids_of(4, 4, 9)) for emb_table in emb_tables]
  lookups = [rows.op for rows in mxrec.get_sparse_embedding()]
  names = [tensor.name for op in lookups for tensor in op.outputs]
  values, by_type = ran(sess, [names, looked])
  assert counts(by_type) == (1, 0, 0, 0)
  for t, emb_table in enumerate(emb_tables):
    rows, inverse, handles, keys, uses, _ = values[0][6 * t : 6 * t + 6]
    assert (sorted(keys), keys[inverse].tolist(), sorted(uses)) == ([4, 9], [4, 4, 9], [1, 2])
    assert (handles < 0).all()
    np.testing.assert_array_equal(rows, emb_table.lookup_numpy(keys, sess))
  assert sess.run(lookups) == [None] * 3
  assert sess.run(lookups[1].name + ":3").tolist() == sorted([4, 9], key=list(keys).index)


def test_an_output_of_a_lookup_can_be_fed(sess):
  emb_tables = tables(3)
  looked = [mxrec.embedding_lookup(emb_table, ids_of(1, 2)) for emb_table in emb_tables]
  rows = mxrec.get_sparse_embedding()
  keys = rows[0].op.outputs[3]
  fed, by_type = ran(sess, [looked, keys], {rows[0]: np.full([2, 2], 7.0)})
  assert (fed[0][0] == 7).all() and sorted(fed[1]) == [1, 2]
  np.testing.assert_array_equal(fed[0][1], emb_tables[1].lookup_numpy([1, 2], sess))
  assert counts(by_type) == (1, 0, 0, 0)
  train = mxrec.minimize(tf.add_n([tf.reduce_sum(output) for output in looked]), tf.train.GradientDescentOptimizer(1.0))
  sess.run(train, {rows[0]: np.full([2, 2], 7.0)})  # an id that is new starts from the row that was fed
  np.testing.assert_array_equal(emb_tables[0].lookup_numpy([1], sess), [[6, 6]])


def test_the_same_graph_extended_and_run_again_is_fused_again(sess):
  emb_tables = tables(4)
  looked = [mxrec.embedding_lookup(emb_table, ids_of(1)) for emb_table in emb_tables[:2]]
  assert counts(ran(sess, looked)[1]) == (1, 0, 0, 0)
  assert counts(ran(sess, looked)[1]) == (1, 0, 0, 0)
  looked += [mxrec.embedding_lookup(emb_table, ids_of(1)) for emb_table in emb_tables[2:]]
  train = mxrec.minimize(tf.add_n([tf.reduce_sum(rows) for rows in looked]), tf.train.AdagradOptimizer(0.1))
  for _ in range(2):
    assert counts(ran(sess, [looked, train])[1]) == (1, 1, 0, 0)
  assert counts(ran(sess, looked[:3])[1]) == (1, 0, 0, 0)
  assert not [op for op in tf.get_default_graph().get_operations() if op.type in FUSED]


def test_a_lookup_of_a_reference_variable_stays_alone(sess):
  with tf.variable_scope("", use_resource=False):
    ids = tf.get_variable("ids", initializer=np.array([1, 2]), dtype=tf.int64, trainable=False)
  by_reference = [ops_harness.Table(name).lookup(ids._ref()).keys for name in "ab"]
  others = [ops_harness.Table(name).lookup(ids_of(1, 2)).keys for name in "cd"]
  sess.run(ids.initializer)
  keys, by_type = ran(sess, by_reference + others)
  assert [sorted(key) for key in keys] == [[1, 2]] * 4 and counts(by_type) == (1, 0, 2, 0)


def test_runs_that_fuse_different_lookups_of_one_session_do_not_share_a_kernel(sess):
  """TensorFlow keeps the kernels of stateful ops for the whole session, by the name of the node."""
  emb_tables = [helpers.table(f"t{i}", dimension=1 + i) for i in range(4)]
  looked = [mxrec.embedding_lookup(emb_table, ids_of(1)) for emb_table in emb_tables]
  updates = [mxrec.minimize(tf.reduce_sum(rows), tf.train.GradientDescentOptimizer(1.0 + i)) for i, rows in enumerate(looked)]
  expected = [emb_table.lookup_numpy([1], sess) for emb_table in emb_tables]
  for some in ([0, 1], [2, 3], [1, 3], [0, 1, 2, 3], [0, 3]):
    sess.run([updates[i] for i in some])
    for i in some:
      expected[i] = expected[i] - np.float32(1 + i)
    for rows, i in zip(sess.run([looked[i] for i in some]), some):
      np.testing.assert_array_equal(rows, expected[i])


def test_a_callable_of_a_fused_step_works(sess):
  feed = tf.placeholder(tf.int64, [None])
  looked = [mxrec.embedding_lookup(emb_table, feed) for emb_table in tables(2)]
  call = sess.make_callable(looked, [feed])
  assert [rows.shape for rows in call([1, 2, 3])] == [(3, 2), (3, 2)]


def test_function_bodies_are_left_alone(sess):
  emb_tables = tables(2)

  @tf2.function(autograph=False, experimental_attributes={"_noinline": True})
  def total(ids):
    return tf.add_n([mxrec.embedding_lookup(emb_table, ids) for emb_table in emb_tables])

  rows, by_type = ran(sess, total(ids_of(1)))
  np.testing.assert_array_equal(rows, sum(emb_table.lookup_numpy([1], sess) for emb_table in emb_tables))
  assert counts(by_type)[:2] == (0, 0)


def test_an_imported_meta_graph_trains_the_same(tmp_path, monkeypatch):
  feed = tf.placeholder(tf.int64, [None], name="feed")
  looked = [mxrec.embedding_lookup(emb_table, feed) for emb_table in tables(5)]
  train = mxrec.minimize(tf.add_n([tf.reduce_sum(tf.square(rows)) for rows in looked]), tf.train.AdagradOptimizer(0.1))
  tf.train.Saver().export_meta_graph(str(tmp_path / "graph.meta"))
  contents = []
  for setting in ("64", "0"):
    monkeypatch.setenv("MXREC_FUSE", setting)
    with tf.Graph().as_default(), tf.Session() as session:
      tf.train.import_meta_graph(str(tmp_path / "graph.meta"))
      for _ in range(3):
        _, by_type = ran(session, train.name, {"feed:0": [1, 2, 1]})
      assert counts(by_type) == ((1, 1, 0, 0) if setting == "64" else (0, 0, 5, 5))
      exported = [emb_table.export(session) for emb_table in mxrec.get_existing_tables()]
      contents.append([(keys.tobytes(), values.tobytes()) for keys, values in exported])
  assert len(contents[0]) == 5 and contents[0] == contents[1]


def test_a_monitored_session_trains_saves_and_resumes_with_fused_steps(tmp_path):
  def run(steps):
    with tf.Graph().as_default():
      emb_tables = tables(3)
      looked = [mxrec.embedding_lookup(emb_table, ids_of(1, 2)) for emb_table in emb_tables]
      step = tf.train.get_or_create_global_step()
      loss = tf.add_n([tf.reduce_sum(rows) for rows in looked])
      train = mxrec.minimize(loss, tf.train.GradientDescentOptimizer(1.0), global_step=step)
      hooks = [tf.train.StopAtStepHook(num_steps=steps)]
      with tf.train.MonitoredTrainingSession(checkpoint_dir=str(tmp_path), hooks=hooks, save_checkpoint_steps=2) as session:
        while not session.should_stop():
          metadata = tf.RunMetadata()
          _, rows = session.run([train, looked], options=TRACE, run_metadata=metadata)
          assert counts(types(metadata)) == (1, 1, 0, 0)
        return rows

  first, second = run(3), run(2)
  np.testing.assert_array_equal(np.array(first) - 2, second)


def test_server_sessions_fuse_what_depends_on_the_same_feeds():
  server = tf.train.Server.create_local_server()
  emb_tables = tables(4)
  feeds = [tf.placeholder(tf.int64, [1]) for _ in range(2)]
  sources = [feeds[0], feeds[0], feeds[1], ids_of(1)]
  looked = [mxrec.embedding_lookup(emb_table, ids) for emb_table, ids in zip(emb_tables, sources)]
  with tf.colocate_with(mxrec.get_sparse_embedding()[0].op):
    near = tf.identity(looked[0])
  train = mxrec.minimize(tf.add_n([tf.reduce_sum(rows) for rows in looked]), tf.train.AdagradOptimizer(0.1))
  with tf.Session(server.target) as session:
    (rows, _), by_type = ran(session, [near, train], {feeds[0]: [5], feeds[1]: [6]})
    assert rows.shape == (1, 2) and counts(by_type) == (1, 1, 2, 2)
    assert [sorted(helpers.contents(emb_table, session)) for emb_table in emb_tables] == [[5], [5], [6], [1]]


# --- errors ---


def test_an_error_in_one_lookup_names_its_table_and_node_and_stops_the_step(sess):
  emb_tables = tables(3)
  default = tf.placeholder(tf.float32, None)
  looked = [mxrec.embedding_lookup(emb_table, ids_of(1)) for emb_table in emb_tables]
  looked.append(mxrec.embedding_lookup(emb_tables[1], ids_of(1), default=tf.reshape(default, [-1]), name="wrong"))
  step = tf.train.get_or_create_global_step()
  loss = tf.add_n([tf.reduce_sum(rows) for rows in looked])
  train = mxrec.minimize(loss, tf.train.GradientDescentOptimizer(1.0), global_step=step)
  sess.run(tf.global_variables_initializer())
  with pytest.raises(tf.errors.InvalidArgumentError, match='table "t1": default_row.*expected shape') as error:
    sess.run(train, {default: [1.0, 2.0, 3.0]})
  assert "wrong" in str(error.value)
  assert sess.run(step) == 0 and [emb_table.size(sess) for emb_table in emb_tables] == [0, 0, 0]
  sess.run(train, {default: [1.0, 2.0]})
  assert sess.run(step) == 1 and [emb_table.size(sess) for emb_table in emb_tables] == [1, 1, 1]


def test_an_error_in_one_update_leaves_that_table_and_the_others_are_updated(sess):
  policies = ["grow", "error", "grow"]
  emb_tables = [mxrec.get_embedding_table(f"t{i}", 2, 1, capacity_policy=policy) for i, policy in enumerate(policies)]
  looked = [mxrec.embedding_lookup(emb_table, ids_of(1, 2)) for emb_table in emb_tables]
  step = tf.train.get_or_create_global_step()
  loss = tf.add_n([tf.reduce_sum(rows) for rows in looked])
  train = mxrec.minimize(loss, tf.train.GradientDescentOptimizer(1.0), global_step=step)
  sess.run(tf.global_variables_initializer())
  with pytest.raises(tf.errors.ResourceExhaustedError, match="t1") as error:
    sess.run(train)
  assert "update_t1" in str(error.value)
  assert sess.run(step) == 0 and [emb_table.size(sess) for emb_table in emb_tables] == [2, 0, 2]


# --- the ops themselves ---


def test_attributes_that_do_not_fit_are_refused_while_the_graph_is_built():
  ops = ops_harness.ops
  handle = ops_harness.Table(dim=2).handle
  empty = [tf.zeros([0])] * 2
  more = {"training": [True, True], "never_trained_counts": [0, 0], "names": ["a", "b"]}
  with pytest.raises(ValueError, match="attribute dims has 1 entries; expected 2"):
    ops.mxrec_lookup_many([handle, handle], [ids_of(1), ids_of(2)], empty, dims=[2], **more)
  with pytest.raises(ValueError, match="attribute Tids has 1 entries; expected 2"):
    ops.mxrec_lookup_many([handle, handle], [ids_of(1)], empty, dims=[2, 2], **more)
  lists = [[] for _ in range(10)]
  fields = {"option_counts": [0], "hyper_counts": [1], "part_counts": [0], "dense": [], "shared": [], "names": ["a"]}
  with pytest.raises(ValueError, match="attribute hyper_counts adds up to 1; expected H, 0"):
    ops.mxrec_apply_many([handle], *lists, optimizers=["sgd"], **fields)
  with pytest.raises(ValueError, match="attribute optimizers has 0 entries; expected 1"):
    ops.mxrec_apply_many([handle], *lists, optimizers=[], **fields)


def test_many_lookups_keep_static_shapes():
  handle = ops_harness.Table(dim=2).handle
  found = ops_harness.ops.mxrec_lookup_many(
    [handle, handle],
    [tf.placeholder(tf.int64, [None, 3]), tf.placeholder(tf.int32, [5])],
    [tf.zeros([0]), tf.zeros([2])],
    dims=[2, 2],
    training=[True, False],
    never_trained_counts=[0, 0],
    names=["a", "b"],
  )
  assert [rows.shape.as_list() for rows in found.rows] == [[None, 2]] * 2
  assert [inverse.shape.as_list() for inverse in found.inverse] == [[None, 3], [5]]
  assert [vector.shape.as_list() for vector in found.handles + found.keys + found.counts] == [[None]] * 6
  assert [generation.shape.as_list() for generation in found.generations] == [[], []]


def test_many_lookups_expand_those_that_the_attribute_names(sess):
  emb_table = ops_harness.Table(dim=2)

  def many(expanded_of, count):
    return ops_harness.ops.mxrec_lookup_many(
      [emb_table.handle] * 2,
      [ids_of(1, 2, 1), tf.placeholder_with_default(tf.constant([[3], [3]]), [None, 1])],
      [tf.zeros([0])] * 2,
      E=count,
      expanded_of=expanded_of,
      dims=[2, 2],
      training=[True, True],
      never_trained_counts=[0, 0],
      names=["a", "b"],
    )

  found = many([1, 0], 2)
  assert [expanded.shape.as_list() for expanded in found.expanded] == [[None, 1, 2], [3, 2]]
  rows, inverse, expanded = sess.run([found.rows, found.inverse, found.expanded])
  for e, t in enumerate([1, 0]):
    np.testing.assert_array_equal(expanded[e], rows[t][inverse[t]])
  with pytest.raises(ValueError, match="attribute expanded_of has 1 entries; expected 2"):
    many([1], 2)
  with pytest.raises(ValueError, match="attribute expanded_of names lookup 2"):
    many([2], 1)
  with pytest.raises(tf.errors.InvalidArgumentError, match="expanded_of must name different lookups below 2, found 1"):
    sess.run(many([1, 1], 2).expanded)
