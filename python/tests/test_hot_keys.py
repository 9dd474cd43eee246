"""Hot keys of spread tables, and which tables "auto" replicates: results as without, fewer keys on their way."""

import numpy as np
import pytest
import ranks
import tensorflow.compat.v1 as tf
from hccl.manage import api

import mxrec
from mxrec import _collective

HOT = [7, -3, 0, 1, 12]  # 12 never occurs; of 2 and of 3 ranks each owns some


def batch(step, size):
  """Of all ranks: ids [size, 12] of which hot ones are most; in step 2 only rank 0 has any, in step 3 nobody has hot ones."""
  rng = np.random.RandomState(step)
  ids = np.where(rng.rand(size, 12) < 0.7, rng.choice(HOT[:4], [size, 12]), rng.randint(20, 40, [size, 12]))
  return ids + (40 if step == 3 else 0)


def trained(hot_keys, folder, **arguments):
  """Losses, rows and counts of own tables after 6 steps, keys and rows that travelled in the first; checkpoints in `folder`."""
  tf.reset_default_graph()
  tf.set_random_seed(3)
  me, size = api.get_rank_id(), api.get_rank_size()
  tables = [
    mxrec.get_embedding_table(f"t{t}", 3, 100, tf.random_normal_initializer(0.0, 0.5), hot_keys=hot_keys, **arguments)
    for t in range(2)
  ]
  ids = tf.placeholder(tf.int64, [None])
  rows = [mxrec.embedding_lookup(table, ids + t) for t, table in enumerate(tables)]
  w = tf.get_variable("w", initializer=tf.ones([6, 1]))
  loss = tf.reduce_sum(tf.square(tf.matmul(tf.tanh(tf.concat(rows, 1)), w) - 1.0)) / 12.0
  train = mxrec.minimize(loss, tf.train.AdamOptimizer(0.05), clip_norm=0.5)
  of_all = _collective.allreduce(loss, average=True, name="loss")
  seen = mxrec.embedding_lookup(tables[0], tf.constant([7, 0, 99], tf.int64), training=False, default=5.0)
  exchanges = [op for op in tf.get_default_graph().get_operations() if op.type == "MxrecExchangeKeys"]
  travelled = [tf.size(op.inputs[0]) for op in exchanges[:2]]
  saver = mxrec.EmbeddingTableSaver(tables)
  losses = []
  with tf.Session() as session:
    session.run(tf.global_variables_initializer())
    for step in range(6):
      fed = batch(step, size)[me]
      feed = {ids: fed[:0] if step == 2 and me else fed}
      if step == 0:
        keys = [int(number) for number in session.run(travelled, feed)]
      losses.append(session.run([of_all, train], feed)[0])
    saver.save(session, folder, 6)
    contents = {table.name: table.export(session) for table in tables}
    stats = [table.stats(session)["rows"] for table in tables]
    return {"losses": losses, "rows": contents, "sizes": stats, "seen": session.run(seen), "w": session.run(w), "keys": keys}


def with_and_without(folder, arguments):
  return [trained(hot_keys, f"{folder}/{bool(hot_keys)}", **arguments) for hot_keys in (None, HOT)]


def merged(of_ranks, name):
  rows = {}
  for rank in of_ranks:
    keys, values = rank["rows"][name]
    assert not rows.keys() & set(keys), "each row is at one rank"
    rows.update(zip(keys, values))
  return rows


@pytest.mark.parametrize(
  ("size", "arguments"),
  [(2, {}), pytest.param(3, {"owner": "hash", "min_used_times": 2}, marks=pytest.mark.thorough), (1, {})],
)
def test_hot_keys_change_no_result_and_travel_less(size, arguments, tmp_path):
  results = ranks.run(size, with_and_without, str(tmp_path), arguments).results()
  without, having = ([rank[kind] for rank in results] for kind in (0, 1))
  for rank in range(size):
    np.testing.assert_allclose(having[rank]["losses"], without[rank]["losses"], rtol=1e-6)
    np.testing.assert_allclose(having[rank]["w"], without[rank]["w"], rtol=1e-6)
    assert having[rank]["w"] == having[0]["w"]
    np.testing.assert_allclose(having[rank]["seen"], without[rank]["seen"], rtol=1e-5, atol=1e-6)
    assert having[rank]["sizes"] == without[rank]["sizes"]
    distinct = {int(key) for key in batch(0, size)[rank]}
    if size > 1:
      assert without[rank]["keys"] == [len(distinct)] * 2
      assert having[rank]["keys"] == [len(distinct - set(HOT)), len({key + 1 for key in distinct} - set(HOT))]
      assert having[rank]["keys"][0] < without[rank]["keys"][0]
  for name in ("t0", "t1"):
    expected, found = merged(without, name), merged(having, name)
    assert found.keys() == expected.keys()
    for key, row in expected.items():
      np.testing.assert_allclose(found[key], row, rtol=1e-5, atol=1e-6, err_msg=f"{name}, id {key}")


def loaded(folder):
  table = mxrec.get_embedding_table("t0", 3, 100)
  with tf.Session() as session:
    mxrec.EmbeddingTableSaver([table]).load(session, folder)
    return table.export(session)


def test_a_checkpoint_holds_each_hot_key_once_and_loads_anywhere(tmp_path):
  having = [rank[1] for rank in ranks.run(2, with_and_without, str(tmp_path), {}).results()]
  ((keys, values),) = ranks.run(1, loaded, str(tmp_path / "True")).results()
  assert len(keys) == len(set(keys)) and set(HOT[:4]) <= set(keys)
  assert dict(zip(keys, values)) == merged(having, "t0")


def imported():
  table = mxrec.get_embedding_table("t", 2, 100, tf.zeros_initializer(), hot_keys=[1, 2])
  ids = tf.placeholder(tf.int64, [None], name="ids")
  rows = mxrec.embedding_lookup(table, ids)
  tf.identity(tf.reduce_sum(rows), name="loss")
  graph = tf.train.Saver().export_meta_graph()
  tf.reset_default_graph()
  tf.train.import_meta_graph(graph)
  loss = tf.get_default_graph().get_tensor_by_name("loss:0")
  train = mxrec.minimize(loss, tf.train.GradientDescentOptimizer(1.0))
  (table,) = mxrec.get_existing_tables()
  with tf.Session() as session:
    session.run(train, {"ids:0": [1, 5 + api.get_rank_id()]})
    return dict(zip(*[found.tolist() for found in table.export(session)]))


def test_an_imported_graph_trains_hot_keys():
  first, second = ranks.run(2, imported).results()
  assert first == {"6": [-0.5, -0.5]} and second == {"1": [-1.0, -1.0], "5": [-0.5, -0.5]}


def chosen():
  def distribution(name, rows, **arguments):
    return mxrec.get_embedding_table(name, 64, rows, distribution_strategy="auto", **arguments).distribution

  return [
    distribution("small", 4096),
    distribution("large", 4097),
    distribution("small_and_cold", 4096, expected_batch_ids=1900),
    distribution("small_and_hot", 4096, expected_batch_ids=2000),
    distribution("tiny_and_hot", 1000, expected_batch_ids=10**9),
    distribution("admission", 10, min_used_times=2),
  ]


def test_auto_goes_by_size_and_by_what_a_step_uses():
  assert ranks.run(2, chosen).results() == [["DP", "MP", "DP", "MP", "DP", "MP"]] * 2


@pytest.mark.parametrize(
  ("hot_keys", "text"),
  [([], "a list of 1 to 65536 integers"), ([1.5], "integers"), ([[1]], "integers"), ("1", "integers"), ([3, 4, 3], "got 3 twice")],
)
def test_wrong_hot_keys_are_refused(hot_keys, text):
  with pytest.raises(ValueError, match=f"hot_keys of table 't' must be .*{text}"):
    mxrec.get_embedding_table("t", 2, 100, hot_keys=hot_keys)
