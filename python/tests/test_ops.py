"""The raw table ops: shapes, types, errors, empty input, sessions, step order, threads."""

from __future__ import annotations

import json
import pathlib
import re
import subprocess
import threading
import time

import numpy as np
import ops_harness
import pytest
import tensorflow as tf
from ops_harness import (
  ADAGRAD,
  SGD,
  Table,
  c_api_fixture,  # noqa: F401
  config,
  normal,
  ops,
  tf1,
  threads,
)

INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1


@pytest.fixture(autouse=True)
def _fresh_graph():
  tf1.reset_default_graph()


def rows_by_key(session, table):
  """{key: row} of everything in the table."""
  keys, values = session.run(table.export())
  return {int(k): v for k, v in zip(keys, values, strict=True)}


# --- shapes, types, docs ---


def test_every_op_documents_itself_and_all_its_arguments():
  names = [n for n in dir(ops) if n.startswith("mxrec_") and "eager_fallback" not in n]
  assert len(names) == 46
  for name in names:
    doc = getattr(ops, name).__doc__
    assert not doc.startswith(("TODO", "\n")), name
    entries = re.split(r"\n    (?=\w+: )", doc.split("Args:")[1])
    for entry in entries[1:]:
      # TensorFlow writes the type of each argument by itself; our own words come after it.
      assert not entry.split("\n\n")[0].strip().endswith("`."), f"{name}: {entry} is not documented"


@pytest.mark.parametrize("dtype", [tf.int64, tf.int32, tf.uint64])
@pytest.mark.parametrize("shape", [None, [None], [5], [2, None, 3], []])
def test_lookup_and_expand_keep_static_shapes(dtype, shape):
  table = Table(dim=4)
  ids = tf1.placeholder(dtype, shape)
  found = table.lookup(ids)
  assert found.rows.shape.as_list() == [None, 4]
  assert found.inverse.shape.is_compatible_with(tf.TensorShape(shape)) and found.inverse.shape.rank == tf.TensorShape(shape).rank
  assert [t.shape.as_list() for t in (found.handles, found.keys, found.counts)] == [[None]] * 3
  assert found.generation.shape.as_list() == []
  assert [t.dtype for t in found] == [tf.float32, tf.int32, tf.int32, tf.int64, tf.int32, tf.int64]
  output = ops.mxrec_expand(found.rows, found.inverse)
  assert output.shape.rank is None if shape is None else output.shape.as_list() == [*shape, 4]
  values, is_found = table.find(tf1.placeholder(tf.int64, [3]))
  assert values.shape.as_list() == [3, 4] and is_found.shape.as_list() == [3]
  assert [t.shape.as_list() for t in table.export()] == [[None], [None, 4]]
  assert table.handle.shape.as_list() == []


def test_wrong_static_shapes_are_refused_while_the_graph_is_built():
  table = Table(dim=4)
  with pytest.raises(ValueError, match="default_row has 3 values; expected 0 or 4"):
    table.lookup(tf.constant([1], tf.int64), default=np.zeros([3], np.float32))
  with pytest.raises(ValueError, match="rank 2"):
    ops.mxrec_expand(tf.zeros([3]), tf.zeros([2], tf.int32))
  found = table.lookup(tf.constant([1, 2], tf.int64))
  with pytest.raises(ValueError, match="4 and 5"):
    table.apply([(found, tf.zeros([2, 5]), found.inverse)])
  with pytest.raises(ValueError, match="2 and 3"):
    table.apply([(found, tf.zeros([3, 4]), tf.zeros([2], tf.int32))])
  with pytest.raises(ValueError, match="one per part"):
    ops.mxrec_apply(table.handle, [], [], [], [], [], [], [], [], [], [], optimizer="sgd", dense=[True], shared=[])
  with pytest.raises(ValueError, match="rank 1"):
    ops.mxrec_table_erase(table.handle, tf.zeros([2, 2], tf.int64))


# --- lookup ---


@pytest.mark.parametrize("ids", [[[1, 2, 3, 4], [5, 6, 7, 8]], [7, 7, 9], [[[1], [1]], [[2], [3]]], 5, [], [[], []]])
def test_fact_10_output_is_ids_shape_plus_dim_and_equal_ids_give_bit_equal_rows(ids):
  table = Table(dim=8, initializer=normal())
  ids = np.array(ids, np.int64)
  found = table.lookup(ids)
  with tf1.Session() as session:
    got, output, size = session.run([found, ops.mxrec_expand(found.rows, found.inverse), table.size()])
    again = session.run(ops.mxrec_expand(found.rows, found.inverse))
  assert output.shape == (*ids.shape, 8)
  assert np.array_equal(got.keys[got.inverse], ids) and got.inverse.shape == ids.shape
  assert len(set(got.keys)) == len(got.keys) == len(set(ids.flat))
  assert got.counts.sum() == ids.size
  assert output.tobytes() == again.tobytes()
  for key in set(ids.flat):
    assert len({row.tobytes() for row in output[ids == key]}) == 1
  assert size == 0  # a lookup never changes a table


def test_all_id_types_name_the_same_rows():
  table = Table(dim=3, initializer=normal())
  signed = np.array([-1, 0, 5, -(2**31), 2**31 - 1], np.int64)
  with tf1.Session() as session:
    a, b, c = session.run([table.lookup(signed), table.lookup(signed.astype(np.int32)), table.lookup(signed.view(np.uint64))])
  for other in (b, c):
    assert a.rows.tobytes() == other.rows.tobytes() and np.array_equal(a.keys, other.keys)


def test_fact_12_every_64_bit_value_is_an_ordinary_id():
  table = Table(dim=2, initializer=normal())
  extreme = [INT64_MIN, INT64_MIN + 1, -3, -2, -1, 0, 1, INT64_MAX - 1, INT64_MAX]
  with tf1.Session() as session:
    before = session.run(table.find(extreme))
    session.run(table.train(np.array(extreme, np.int64), 1.0))
    assert session.run(table.size()) == len(extreme)
    after = session.run(table.find(extreme))
  assert not before.found.any() and after.found.all()
  np.testing.assert_array_equal(after.values, before.values - np.float32(0.1))


def test_fact_16_prediction_answers_unseen_ids_with_the_default_and_changes_nothing():
  table = Table(dim=2, initializer=normal())
  default = np.array([5, 6], np.float32)
  with tf1.Session() as session:
    session.run(table.train(np.array([1], np.int64)))
    stats = session.run(ops.mxrec_table_stats(table.handle))
    found = session.run(table.lookup(np.array([1, 2], np.int64), training=False, default=default))
    zeros = session.run(table.lookup(np.array([2], np.int64), training=False))
    first = session.run(table.lookup(np.array([2], np.int64)))
    seen, _ = session.run(table.find([1]))
    assert session.run(table.size()) == 1
    inserts = json.loads(session.run(ops.mxrec_table_stats(table.handle)))["inserts"]
  assert inserts == json.loads(stats)["inserts"] == 1
  rows = found.rows[found.inverse]
  assert np.array_equal(rows[1], default) and np.array_equal(rows[0], seen[0])
  assert np.array_equal(zeros.rows, [[0, 0]]) and np.any(first.rows != 0)


def test_lookup_in_dataset_map_while_loop_and_function():
  table = Table(dim=2, initializer=normal())
  ids = np.array([3, 4], np.int64)

  def rows_of(x):
    found = table.lookup(x)
    return ops.mxrec_expand(found.rows, found.inverse)

  data = tf1.data.make_initializable_iterator(tf1.data.Dataset.from_tensors(ids).map(rows_of))
  batch = data.get_next()
  _, looped = tf.while_loop(lambda i, x: i < 3, lambda i, x: (i + 1, x + rows_of(ids)), [0, tf.zeros([2, 2])])
  in_function = tf.function(rows_of)(tf.constant(ids))
  with tf1.Session() as session:
    plain = session.run(rows_of(ids))
    session.run(data.initializer)
    assert np.array_equal(session.run(batch), plain)
    np.testing.assert_allclose(session.run(looped), 3 * plain, rtol=1e-6)
    assert np.array_equal(session.run(in_function), plain)


def test_expand_names_the_first_bad_place():
  rows, places = tf1.placeholder(tf.float32, [None, 2]), tf1.placeholder(tf.int32)
  output = ops.mxrec_expand(rows, places)
  two = np.ones([2, 2], np.float32)
  with tf1.Session() as session:
    for bad in (-1, 2, 2**31 - 1):
      wrong = np.zeros([100_000], np.int32)
      wrong[[70_000, 90_000]] = bad
      with pytest.raises(tf.errors.InvalidArgumentError, match=rf"inverse\[70000\] is {bad}, expected 0 <= inverse < 2"):
        session.run(output, {rows: two, places: wrong})
    assert session.run(output, {rows: np.zeros([0, 2]), places: np.zeros([3, 0], np.int32)}).shape == (3, 0, 2)


# --- apply ---


def test_fact_13_gradients_of_repeated_ids_are_summed_over_occurrences_and_lookups():
  table = Table(dim=2)
  a, b = table.lookup(np.array([7, 7, 9], np.int64)), table.lookup(np.array([9, 1], np.int64))
  step = table.apply([(a, tf.ones([3, 2]), a.inverse), (b, 10 * tf.ones([2, 2]), b.inverse)])
  with tf1.Session() as session:
    session.run(step)
    rows = rows_by_key(session, table)
  assert sorted(rows) == [1, 7, 9]
  np.testing.assert_allclose([rows[7][0], rows[9][0], rows[1][0]], [-0.2, -1.1, -1.0], rtol=1e-6)


def test_a_dense_gradient_has_one_row_for_each_distinct_id():
  table = Table(dim=2)
  found = table.lookup(np.array([7, 7, 9], np.int64))
  step = table.apply([(found, tf.ones_like(found.rows), None)])
  with tf1.Session() as session:
    session.run(step)
    rows = rows_by_key(session, table)
  np.testing.assert_allclose([rows[7][0], rows[9][0]], [-0.1, -0.1])


def test_an_apply_without_ids_or_parts_still_advances_the_optimizer():
  table = Table()
  none = table.train(np.array([], np.int64), optimizer=ADAGRAD)
  no_parts = table.apply([], ADAGRAD)
  with tf1.Session() as session:
    session.run(none)
    session.run(no_parts)
    stats = json.loads(session.run(ops.mxrec_table_stats(table.handle)))
    assert session.run(table.size()) == 0
  assert 2 in [v for k, v in stats.items() if "step" in k]


@pytest.mark.parametrize(
  "field,shape,expected",
  [
    ("values", [3, 5], r"gradient of part 1 of an apply: expected shape \[3,4\], found \[3,5\]"),
    ("values", [2, 4], r"gradient of part 1 of an apply: expected shape \[3,4\], found \[2,4\]"),
    ("values", [3], r"gradient of part 1 of an apply: expected shape \[3,4\], found \[3\]"),
    ("dense", [3, 4], r"dense gradient of part 1 of an apply: expected shape \[2,4\], found \[3,4\]"),
    ("handles", [3], r"handles of part 1 of an apply: expected shape \[2\], found \[3\]"),
    ("counts", [1], r"counts of part 1 of an apply: expected shape \[2\], found \[1\]"),
    ("first_rows", [2, 3], r"first_rows of part 1 of an apply: expected shape \[2,4\], found \[2,3\]"),
    ("keys", [2, 1], r"keys of part 1 of an apply: expected shape \[\?\], found \[2,1\]"),
    ("index", [3, 1], r"index of part 1 of an apply: expected shape \[\?\], found \[3,1\]"),
    ("generations", [1], r"generation of part 1 of an apply: expected shape \[\], found \[1\]"),
    ("hyper", [1], r"hyperparameter 0 of an apply: expected shape \[\], found \[1\]"),
  ],
)
def test_wrong_shapes_name_table_part_expected_and_found_and_change_nothing(field, shape, expected):
  table = Table("clicks", dim=4)
  good = {
    "keys": np.array([1, 2], np.int64),
    "handles": np.array([-1, -1], np.int32),
    "counts": np.array([2, 1], np.int32),
    "generations": np.int64(0),
    "first_rows": np.zeros([2, 4], np.float32),
    "values": np.ones([3, 4], np.float32),
    "index": np.array([0, 1, 0], np.int32),
    "value_rows": np.array([], np.int32),
    "scales": np.array([], np.float32),
  }
  fed = {name: tf1.placeholder(value.dtype) for name, value in good.items()}
  rate = tf1.placeholder(tf.float32)
  lists = {name: [tf.constant(value), fed[name]] for name, value in good.items()}
  step = ops.mxrec_apply(table.handle, [rate], **lists, optimizer="sgd", dense=[False, field == "dense"], shared=[False, False])
  feed = {fed[name]: value for name, value in good.items()} | {rate: np.float32(0.1)}
  if field == "hyper":
    feed[rate] = np.ones(shape, np.float32)
  elif field == "dense":
    feed[fed["index"]] = np.zeros([0], np.int32)
  else:
    feed[fed[field]] = np.ones(shape, good[field].dtype)
  with tf1.Session() as session:
    with pytest.raises(tf.errors.InvalidArgumentError, match='table "clicks": ' + expected):
      session.run(step, feed)
    assert session.run(table.size()) == 0


def test_an_index_out_of_range_changes_nothing():
  table = Table()
  found = table.lookup(np.array([1, 2], np.int64))
  for bad in (2, -1):
    step = table.apply([(found, tf.ones([3, 4]), tf.constant([0, bad, 1]))])
    with tf1.Session() as session:
      with pytest.raises(tf.errors.InvalidArgumentError, match="t"):
        session.run(step)
      assert session.run(table.size()) == 0


def test_optimizer_mistakes_are_named():
  table = Table()
  with tf1.Session() as session:
    with pytest.raises(tf.errors.InvalidArgumentError, match="nonsense"):
      session.run(table.train(np.array([1], np.int64), optimizer=("nonsense", [0.1], {})))
    with pytest.raises(tf.errors.InvalidArgumentError, match="no_such_option"):
      session.run(table.train(np.array([1], np.int64), optimizer=("sgd", [0.1], {"no_such_option": 1.0})))
    with pytest.raises(tf.errors.InvalidArgumentError):
      session.run(table.train(np.array([1], np.int64), hyper=[0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7]))
    assert session.run(table.size()) == 0
    session.run(table.train(np.array([1], np.int64), optimizer=ADAGRAD))
    with pytest.raises(tf.errors.FailedPreconditionError, match="adagrad"):
      session.run(table.train(np.array([1], np.int64), optimizer=("adam", [0.1, 0.9, 0.999, 1e-7], {})))


def test_non_finite_gradients_under_error_leave_the_table_alone():
  table = Table(non_finite="error")
  with tf1.Session() as session:
    session.run(table.train(np.array([1], np.int64)))
    before = session.run(table.export())
    with pytest.raises(tf.errors.OpError, match="t"):
      session.run(table.train(np.array([1, 2], np.int64), float("nan")))
    after = session.run(table.export())
  assert before.values.tobytes() == after.values.tobytes() and np.array_equal(before.keys, after.keys)


def test_fact_23_a_full_table_fails_by_name_and_keeps_its_rows():
  table = Table("small", vocabulary=100, capacity_policy="error")
  with tf1.Session() as session:
    session.run(table.train(np.arange(100)))
    before = session.run(table.export())
    with pytest.raises(tf.errors.ResourceExhaustedError, match="(?s)small.*100"):
      session.run(table.train(np.arange(1, 102)))
    after = session.run(table.export())
  assert before.values.tobytes() == after.values.tobytes()


# --- methods ---


def test_insert_find_erase_reset():
  table = Table(dim=2, initializer=normal())
  keys = np.array([5, -1, 5], np.int64)
  values = np.arange(6, dtype=np.float32).reshape(3, 2)
  no_values = np.zeros([0, 2], np.float32)
  with tf1.Session() as session:
    first, _ = session.run(table.find([8]))
    assert session.run(ops.mxrec_table_insert(table.handle, keys, values)) == 2
    assert session.run(ops.mxrec_table_insert(table.handle, [8, 5], no_values)) == 1
    got = session.run(table.find([5, -1, 8, 9]))
    assert got.found.tolist() == [True, True, True, False]
    assert np.array_equal(got.values[:3], [values[2], values[1], first[0]])
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"values of an insert: expected shape \[2,2\], found \[2,3\]"):
      session.run(ops.mxrec_table_insert(table.handle, [1, 2], tf1.placeholder_with_default(np.zeros([2, 3], np.float32), None)))
    assert session.run(ops.mxrec_table_insert(table.handle, np.zeros([0], np.int64), no_values)) == 0
    assert session.run(ops.mxrec_table_erase(table.handle, [5, 77])) == 1
    assert session.run(table.size()) == 2
    session.run(ops.mxrec_table_reset(table.handle))
    assert session.run(table.size()) == 0
    assert session.run(table.export()).values.shape == (0, 2)


def test_stale_handles_do_not_reach_a_reused_row():
  table = Table(dim=2)
  found = table.lookup(np.array([1], np.int64))
  fed = {name: tf1.placeholder(getattr(found, name).dtype) for name in ("keys", "handles", "counts", "generation", "rows")}
  late = ops.mxrec_apply(
    table.handle,
    [0.1],
    [fed["keys"]],
    [fed["handles"]],
    [fed["counts"]],
    [fed["generation"]],
    [fed["rows"]],
    [tf.ones([1, 2])],
    [tf.zeros([1], tf.int32)],
    [tf.zeros([0], tf.int32)],
    [tf.zeros([0])],
    optimizer="sgd",
    dense=[False],
    shared=[False],
  )
  with tf1.Session() as session:
    session.run(table.train(np.array([1], np.int64)))
    old = session.run(found)
    session.run(ops.mxrec_table_erase(table.handle, [1]))
    session.run(table.train(np.array([2], np.int64)))  # may take the place of 1
    session.run(late, {fed[name]: getattr(old, name) for name in fed})
    rows = rows_by_key(session, table)
  np.testing.assert_allclose(rows[2], [-0.1, -0.1])
  assert sorted(rows) == [1, 2]


def test_fact_17_cold_rows_go_after_more_than_the_limit(c_api):
  table = Table(dim=2, max_cold_secs=10)
  with tf1.Session() as session:
    c_api.mxrec_set_clock_ms(1_000_000)
    session.run(table.train(np.array([1], np.int64)))
    c_api.mxrec_set_clock_ms(1_001_000)
    session.run(table.train(np.array([2], np.int64)))
    c_api.mxrec_set_clock_ms(1_010_999)
    assert session.run(ops.mxrec_table_evict(table.handle)) == 0
    c_api.mxrec_set_clock_ms(1_011_000)
    assert session.run(ops.mxrec_table_evict(table.handle)) == 1
    assert session.run(table.export()).keys.tolist() == [2]


def test_fact_14_admission_counts_only_what_was_trained():
  table = Table(dim=2, min_used_times=2, initializer=normal())
  with tf1.Session() as session:
    for _ in range(3):
      session.run(table.lookup(np.array([3], np.int64)))
    session.run(table.train(np.array([1, 2, 3, 1, 2, 4], np.int64)))
    assert sorted(session.run(table.export()).keys) == [1, 2]
    session.run(table.train(np.array([3], np.int64)))
    assert sorted(session.run(table.export()).keys) == [1, 2, 3]


# --- sessions ---


def test_each_direct_session_has_its_own_table_and_handle_ops_of_one_name_share_it():
  table = Table()
  other = ops.mxrec_table(shared_name="mxrec/t", config=config())
  step, size = table.train(np.array([1, 2], np.int64)), table.size()
  a, b = tf1.Session(), tf1.Session()
  a.run(step)
  assert a.run(ops.mxrec_table_size(other)) == 2
  assert b.run(size) == 0
  tf1.reset_default_graph()  # does not touch live sessions
  assert a.run(size) == 2
  with tf1.Session(graph=size.graph) as c:
    assert c.run(size) == 0
  a.close()
  b.close()
  with pytest.raises(RuntimeError):
    a.run(size)


@pytest.mark.parametrize(
  "change,text",
  [
    ({"dim": 8}, "dim: 4 against 8"),
    ({"vocabulary": 5}, "vocabulary: 1000 against 5"),
    ({"seed": 8}, "seed: 7 against 8"),
    ({"max_cold_secs": 3}, "max_cold_secs: .* against 3"),
    ({"min_used_times": 2}, "min_used_times: .* against 2"),
    ({"initializer": normal()}, "initializer: "),
    ({"capacity_policy": "error"}, 'capacity_policy: "grow" against "error"'),
    ({"non_finite": "skip"}, 'non_finite: "apply" against "skip"'),
    ({"name": "u"}, 'name: "t" against "u"'),
  ],
)
def test_another_config_under_the_same_name_is_refused_by_field(change, text):
  table = Table()
  other = ops.mxrec_table(shared_name="mxrec/t", config=config(**change))
  with tf1.Session() as session:
    session.run(table.size())
    with pytest.raises(tf.errors.FailedPreconditionError, match="in this session with another config than in this graph: " + text):
      session.run(ops.mxrec_table_size(other))


@pytest.mark.parametrize("text", ["", "{", "[]", '{"name": "t"}', config(dim=0), config(colour="red"), config(vocabulary="many")])
def test_a_bad_config_is_an_invalid_argument(text):
  handle = ops.mxrec_table(shared_name="x", config=text)
  with tf1.Session() as session, pytest.raises(tf.errors.InvalidArgumentError):
    session.run(ops.mxrec_table_size(handle))


def test_an_op_built_for_another_dim_is_refused():
  table = Table(dim=4)
  with tf1.Session() as session:
    for wrong in (
      ops.mxrec_lookup(table.handle, np.array([1], np.int64), np.zeros([0], np.float32), dim=5).rows,
      ops.mxrec_table_find(table.handle, [1], dim=5).values,
      ops.mxrec_table_export(table.handle, dim=5).keys,
    ):
      with pytest.raises(tf.errors.FailedPreconditionError, match='table "t" has dim 4.*built for dim 5'):
        session.run(wrong)


def test_a_lost_table_is_a_failed_precondition():
  table = Table()
  with tf1.control_dependencies([tf.raw_ops.DestroyResourceOp(resource=table.handle, ignore_lookup_error=False)]):
    size, rows = table.size(), table.lookup(np.array([1], np.int64)).rows
  with tf1.Session() as session:
    for use in (size, rows):
      with pytest.raises(tf.errors.FailedPreconditionError, match='table "mxrec/t" is not in this session'):
        session.run(use)


def test_server_sessions_share_tables_until_reset():
  server = tf1.train.Server({"local": ["localhost:0"]}, protocol="grpc", job_name="local", task_index=0, start=True)
  table = Table()
  step = table.train(np.array([1, 2], np.int64))
  found = table.lookup(np.array([1, 2], np.int64))
  with tf1.Session(server.target) as session:
    session.run(step)
  with tf1.Session(server.target) as session:
    assert session.run(table.size()) == 2
    # The order of a step holds in server sessions too.
    for _ in range(20):
      before = session.run(found.rows)
      rows, _ = session.run([found.rows, step])
      assert np.array_equal(before, rows)
  tf1.Session.reset(server.target)
  with tf1.Session(server.target) as session:
    assert session.run(table.size()) == 0


# --- the order within a step ---


def slow_ids(ids, seconds=0.01):
  """The ids, some time later."""

  def wait():
    time.sleep(seconds)
    return np.array(ids, np.int64)

  out = tf1.py_func(wait, [], tf.int64, stateful=True)
  out.set_shape([len(ids)])
  return out


@pytest.fixture
def no_step_order(monkeypatch):
  """Turns the pass off; it reads the environment in every run's first build of a graph."""
  monkeypatch.setenv("MXREC_DISABLE_STEP_ORDER", "on")


def fetch_late_lookup_with_step(times):
  """How many of `times` runs saw the rows as of their start, in a lookup that is ready long after the update."""
  table = Table(dim=2)
  step = table.train(np.array([1], np.int64))
  late = table.lookup(slow_ids([1], 0.002)).rows
  same = 0
  with tf1.Session() as session:
    for i in range(times):
      rows, _ = session.run([late, step])
      same += bool(np.allclose(rows, -0.1 * i, rtol=1e-5))
  return same


def test_d_order_a_lookup_fetched_with_an_update_sees_the_rows_of_the_start_200_times():
  assert fetch_late_lookup_with_step(200) == 200


@pytest.mark.usefixtures("no_step_order")
def test_without_the_pass_a_lookup_that_is_ready_after_the_update_sees_it():
  table = Table(dim=2)
  step = table.train(np.array([1], np.int64))
  updated = threading.Event()
  with tf1.control_dependencies([step]):
    tell = tf1.py_func(lambda: np.int64(updated.set() is None), [], tf.int64, stateful=True)

  def wait():
    updated.wait(10)
    return np.array([1], np.int64)

  ids = tf1.py_func(wait, [], tf.int64, stateful=True)
  ids.set_shape([1])
  with tf1.Session(config=threads(2, inter=4)) as session:
    rows, _ = session.run([table.lookup(ids).rows, tell])
  np.testing.assert_allclose(rows, [[-0.1, -0.1]])


def test_a_lookup_that_depends_on_the_update_sees_it():
  table = Table(dim=2)
  step = table.train(np.array([1], np.int64))
  with tf1.control_dependencies([step]):
    after = table.lookup(np.array([1], np.int64)).rows
  with tf1.Session() as session:
    np.testing.assert_allclose(session.run([after, step])[0], [[-0.1, -0.1]])


def test_two_updates_of_one_table_both_come_after_all_lookups():
  table = Table(dim=2)
  fast, late = table.lookup(np.array([1], np.int64)), table.lookup(slow_ids([1]))
  steps = [table.apply([(found, tf.ones([1, 2]), found.inverse)]) for found in (fast, late)]
  with tf1.Session() as session:
    a, b, _ = session.run([fast.rows, late.rows, steps])
    assert not a.any() and not b.any()
    np.testing.assert_allclose(session.run(table.find([1])).values, [[-0.2, -0.2]])


def test_tables_that_wait_for_each_other_make_no_cycle():
  x, y = Table("x", dim=2), Table("y", dim=2)
  step_x, step_y = x.train(np.array([1], np.int64)), y.train(np.array([1], np.int64))
  with tf1.control_dependencies([step_x]):
    y_after_x = y.lookup(np.array([1], np.int64)).rows
  with tf1.control_dependencies([step_y]):
    x_after_y = x.lookup(np.array([1], np.int64)).rows
  with tf1.Session() as session:
    session.run([y_after_x, x_after_y, step_x, step_y])
    assert session.run([x.size(), y.size()]) == [1, 1]


@pytest.mark.parametrize("v2", [False, True])
def test_a_lookup_in_a_branch_not_taken_does_not_stop_the_update(v2):
  table = Table(dim=2)
  flag = tf1.placeholder(tf.bool, [])
  (tf1.enable_control_flow_v2 if v2 else tf1.disable_control_flow_v2)()
  try:

    def taken():
      return table.lookup(np.array([1], np.int64)).rows

    shown = tf1.cond(flag, taken, lambda: tf.fill([1, 2], 9.0))
    inner = tf1.cond(flag, lambda: tf1.cond(flag, taken, taken), lambda: tf.fill([1, 2], 8.0))
  finally:
    tf1.disable_control_flow_v2()
  step = table.train(np.array([1], np.int64))
  with tf1.Session() as session:
    for value in (True, False, True, False):
      session.run([shown, inner, step], {flag: value})
    np.testing.assert_allclose(session.run(table.find([1])).values, [[-0.4, -0.4]], rtol=1e-6)


def test_an_update_inside_a_cond_waits_for_lookups_outside():
  table = Table(dim=2)
  flag = tf1.placeholder(tf.bool, [])
  early, late = table.lookup(np.array([1], np.int64)), table.lookup(slow_ids([1]))

  def update():
    with tf1.control_dependencies([table.apply([(early, tf.ones([1, 2]), early.inverse)])]):
      return tf.constant(1)

  done = tf1.cond(flag, update, lambda: tf.constant(0))
  with tf1.Session() as session:
    for i, value in enumerate((True, False, True)):
      rows, ran = session.run([late.rows, done], {flag: value})
      assert ran == value
      np.testing.assert_allclose(rows, [[-0.1 * min(i, 1)] * 2])
    np.testing.assert_allclose(session.run(table.find([1])).values, [[-0.2, -0.2]])


def test_updates_and_lookups_inside_while_loops_run():
  table = Table(dim=2)

  def body(i):
    with tf1.control_dependencies([table.train(np.array([1], np.int64))]):
      return i + 1

  def reading(i, total):
    return i + 1, total + tf.ensure_shape(table.lookup(np.array([1], np.int64)).rows, [1, 2])

  trained = tf.while_loop(lambda i: i < 5, body, [0])
  read = tf.while_loop(lambda i, total: i < 5, reading, [0, tf.zeros([1, 2])])
  step = table.train(np.array([1], np.int64))
  with tf1.Session() as session:
    session.run([trained, read, step])
    np.testing.assert_allclose(session.run(table.find([1])).values, [[-0.6, -0.6]], rtol=1e-6)


def test_a_graph_of_many_tables_starts_fast():
  tables = [Table(f"t{i}", dim=2) for i in range(100)]
  steps, rows = [], []
  for table in tables:
    found = table.lookup(np.array([1], np.int64))
    rows.append(found.rows)
    steps.append(table.apply([(found, tf.ones([1, 2]), found.inverse)]))
  begin = time.monotonic()
  with tf1.Session() as session:
    session.run([rows, steps])
    assert session.run(tf.add_n([t.size() for t in tables])) == 100
  assert time.monotonic() - begin < 20


# --- threads ---


def trained_table(intra, optimizer=ADAGRAD):
  """Bytes of a table trained for some steps on a session of `intra` threads."""
  tf1.reset_default_graph()
  table = Table(dim=8, initializer=normal(), min_used_times=0)
  ids, gradient = tf1.placeholder(tf.int64, [None]), tf1.placeholder(tf.float32, [None, 8])
  found = table.lookup(ids)
  step = table.apply([(found, gradient, found.inverse)], optimizer)
  rng = np.random.default_rng(5)
  with tf1.Session(config=threads(intra)) as session:
    for _ in range(4):
      batch = rng.zipf(1.2, 20_000).astype(np.int64) % 7000
      session.run(step, {ids: batch, gradient: rng.standard_normal([20_000, 8], np.float32)})
    keys, values = session.run(table.export())
    looked = session.run(found, {ids: batch})
  return keys.tobytes(), values.tobytes(), looked.rows.tobytes(), looked.keys.tobytes()


@pytest.mark.parametrize("optimizer", [SGD, ADAGRAD, ("adam", [0.1, 0.9, 0.999, 1e-7], {})], ids=lambda o: o[0])
def test_tables_are_bit_equal_for_1_2_and_4_threads(optimizer):
  one = trained_table(1, optimizer)
  assert trained_table(2, optimizer) == one
  assert trained_table(4, optimizer) == one


def test_one_inter_op_thread_and_a_busy_pool_do_not_deadlock(tmp_path):
  table = Table(dim=8, initializer=normal())
  ids = tf1.placeholder(tf.int64, [None])
  steps = [table.train(ids) for _ in range(6)]
  busy = [tf.reduce_sum(tf.matmul(tf.random.normal([200, 200]), tf.random.normal([200, 200]))) for _ in range(6)]
  save = ops.mxrec_save([table.handle], str(tmp_path), np.int64(1), np.int64(0))
  with tf1.Session(config=threads(2, inter=1)) as session:
    for _ in range(3):
      session.run([steps, busy, save], {ids: np.arange(30_000)})
    assert session.run(table.size()) == 30_000


def test_lookups_updates_saves_and_evictions_may_overlap(tmp_path):
  table = Table(dim=4, initializer=normal(), max_cold_secs=100_000)
  ids = tf1.placeholder(tf.int64, [None])
  found = table.lookup(ids)
  step = table.train(ids)
  number = tf1.placeholder(tf.int64, [])
  save = ops.mxrec_save([table.handle], str(tmp_path), number, np.int64(2))
  erase = ops.mxrec_table_erase(table.handle, ids)
  others = [ops.mxrec_table_evict(table.handle), ops.mxrec_table_stats(table.handle), table.export().keys]
  failures = []

  def loop(body):
    rng = np.random.default_rng(threading.get_ident() % 2**32)
    try:
      for i in range(30):
        body(i, rng.integers(0, 5000, 3000))
    except Exception as error:  # pylint: disable=broad-except
      failures.append(error)

  with tf1.Session() as session:
    bodies = [
      lambda i, x: session.run(step, {ids: x}),
      lambda i, x: session.run(found, {ids: x}),
      lambda i, x: session.run(step, {ids: x}),
      lambda i, x: session.run(save, {number: i}),
      lambda i, x: session.run(erase, {ids: x[:50]}),
      lambda i, x: session.run(others),
    ]
    running = [threading.Thread(target=loop, args=(body,)) for body in bodies]
    for thread in running:
      thread.start()
    for thread in running:
      thread.join()
    assert not failures
    keys = session.run(table.export()).keys
    assert len(set(keys)) == len(keys) == session.run(table.size())


# --- the library itself ---


def test_only_the_plain_c_functions_are_visible():
  out = subprocess.run(["nm", "-D", "--defined-only", ops_harness.LIBRARY], check=True, capture_output=True, text=True).stdout
  names = {line.split()[-1] for line in out.splitlines()}
  declared = [path.read_text(encoding="utf-8") for path in (pathlib.Path(__file__).resolve().parents[2] / "tf").rglob("*.h")]
  functions = {name for text in declared for name in re.findall(r"^MXREC_EXPORT [^(;]*?\b(mxrec_\w+)\(", text, re.MULTILINE)}
  assert len(functions) > 20
  assert names == functions


def test_the_library_needs_only_tensorflow_highway_and_isal():
  out = subprocess.run(["readelf", "-d", ops_harness.LIBRARY], check=True, capture_output=True, text=True).stdout
  needed = {line.split("[")[1].split(".so")[0] for line in out.splitlines() if "(NEEDED)" in line}
  assert needed - {"libc", "libm", "libstdc++", "libgcc_s", "ld-linux-x86-64"} <= {"libtensorflow_framework", "libhwy", "libisal"}


def test_c_functions(c_api):
  assert c_api.mxrec_version().decode().count(".") == 2
  c_api.mxrec_set_clock_ms(12345)
  assert c_api.mxrec_now_ms() == 12345
  c_api.mxrec_set_clock_ms(-1)
  assert abs(c_api.mxrec_now_ms() - time.time() * 1000) < 5000
  assert c_api.mxrec_set_log_level(b"warning") == 0
  assert c_api.mxrec_set_log_level(b"TRACE") == -1 and c_api.mxrec_set_log_level(None) == -1
  assert c_api.mxrec_set_log_level(b"INFO") == 0
  assert c_api.mxrec_tolerance(b"no such subject", None, None, None) == -1
