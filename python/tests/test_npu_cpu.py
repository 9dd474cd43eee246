"""The embedding hash tables, feature mappings, sharded places and id caches of npu_cpu."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from npu_bridge.npu_cpu import npu_cpu_ops as cpu
from npu_bridge.npu_cpu.lru_cache import LruCache

DIM, BUCKET = 3, 100
MIN = -(2**63)


class Map:
  """A table and its ops; keys are fed."""

  def __init__(self, number=1, bucket=BUCKET, mode="constant", sampled=None, constant=0.5, **lookup):
    self.sizes = {"bucket_size": bucket, "embedding_dim": DIM}
    self.handle = cpu.init_embedding_hashmap_v2(number, bucket, embedding_dim=DIM)
    self.init = cpu.init_embedding_hashtable(self.handle, sampled, bucket, DIM, mode, constant)
    self.keys = tf.placeholder(tf.int64, None)
    self.values = cpu.embedding_hashtable_lookup_or_insert(self.handle, self.keys, **self.sizes, **lookup)
    self.size = cpu.embedding_hashmap_size([number])
    self.exported = cpu.embedding_hash_table_export([self.handle], [bucket], [DIM])

  def look(self, sess, keys):
    return sess.run(self.values, {self.keys: keys})

  def contents(self, sess):
    """{key: (counter, flag, row)}."""
    (keys,), (counters,), (flags,), (values,) = sess.run(self.exported)
    assert (keys.dtype, counters.dtype, flags.dtype, values.dtype) == (np.int64, np.uint64, np.uint8, np.float32)
    return {int(k): (int(c), int(f), v.tolist()) for k, c, f, v in zip(keys, counters, flags, values, strict=True)}


def test_a_lookup_inserts_and_counts(sess):
  table = Map()
  sess.run(table.init)
  np.testing.assert_array_equal(table.look(sess, [[5, 7], [5, MIN]]), np.full((2, 2, DIM), 0.5))
  table.look(sess, [5])
  table.look(sess, np.zeros([0], np.int64))
  row = [0.5] * DIM
  assert table.contents(sess) == {5: (3, 1, row), 7: (1, 1, row), MIN: (1, 1, row)}
  assert sess.run(table.size).tolist() == [3]
  assert table.values.op.type == "EmbeddingHashTableLookupOrInsert"


def test_shapes_are_those_of_the_keys():
  table = Map()
  keys = tf.placeholder(tf.int64, [None, 4])
  values = cpu.embedding_hashtable_lookup_or_insert(table.handle, keys, BUCKET, DIM)
  assert values.shape.as_list() == [None, 4, DIM]


def test_new_rows_take_sampled_rows_each_once_whatever_the_order(sess):
  sampled = np.arange(BUCKET * DIM, dtype=np.float32).reshape(BUCKET, DIM)
  table = Map(mode="random", sampled=sampled)
  sess.run(table.init)
  rows = table.look(sess, np.arange(BUCKET))
  assert sorted(rows[:, 0].tolist()) == sampled[:, 0].tolist()  # every one of them once
  np.testing.assert_array_equal(rows, sampled[(rows[:, 0] / DIM).astype(int)])
  np.testing.assert_array_equal(table.look(sess, [3, 3, 1]), rows[[3, 3, 1]])
  sess.run(table.init)
  assert sess.run(table.size).tolist() == [0]
  first = table.look(sess, [42])
  sess.run(table.init)
  np.testing.assert_array_equal(table.look(sess, [42]), first)


def test_a_full_table_is_an_error_and_changes_nothing(sess):
  sampled = np.ones((4, DIM), np.float32)
  table = Map(bucket=4, mode="random", sampled=sampled)
  sess.run(table.init)
  table.look(sess, [1, 2, 3])
  before = table.contents(sess)
  with pytest.raises(tf.errors.ResourceExhaustedError, match="embedding hash table 1"):
    table.look(sess, [4, 5])
  assert table.contents(sess) == before
  table.look(sess, [4])
  assert sess.run(table.size).tolist() == [4]


def test_the_filter_gives_a_row_once_a_key_occurred_often_enough(sess):
  table = Map(filter_mode="counter", filter_freq=3, default_value=-1.0)
  sess.run(table.init)
  default, row = [-1.0] * DIM, [0.5] * DIM
  assert table.look(sess, [1, 1, 2]).tolist() == [default] * 3
  assert table.contents(sess) == {1: (2, 0, [0.0] * DIM), 2: (1, 0, [0.0] * DIM)}
  assert table.look(sess, [1, 2]).tolist() == [row, default]
  assert table.look(sess, [2]).tolist() == [row]
  assert {key: entry[:2] for key, entry in table.contents(sess).items()} == {1: (3, 1), 2: (3, 1)}
  table.look(sess, [9])
  assert sess.run(table.size).tolist() == [3]
  assert sess.run(cpu.embedding_hashmap_size([1], filter_export_flag=True)).tolist() == [2]
  only = cpu.embedding_hash_table_export([table.handle], None, [DIM], filtered_export_flag=True)
  assert sorted(sess.run(only.keys[0]).tolist()) == [1, 2]


def test_the_default_can_be_the_row_of_a_key(sess):
  plain = Map()
  sess.run(plain.init)
  asking = Map(filter_mode="counter", filter_freq=2, default_key_or_value=True, default_key=7, default_value=-2.0)
  assert asking.look(sess, [1]).tolist() == [[-2.0] * DIM]  # no row of 7 yet
  asking.look(sess, [7, 7])
  assert asking.look(sess, [2]).tolist() == [[0.5] * DIM]


def test_lookups_of_a_filled_table_must_agree_on_the_filter(sess):
  plain, filtering = Map(), Map(filter_mode="counter", filter_freq=2)
  sess.run(plain.init)
  plain.look(sess, [1])
  with pytest.raises(tf.errors.FailedPreconditionError, match="filled under filter_freq 0.*asks for 2"):
    filtering.look(sess, [1])
  sess.run(plain.init)
  assert filtering.look(sess, [1]).tolist() == [[0.0] * DIM]


def test_a_filtered_key_is_neither_inserted_nor_counted(sess):
  table = Map(filter_key_flag=True, filter_key=-1, default_value=9.0)
  sess.run(table.init)
  assert table.look(sess, [-1, 3]).tolist() == [[9.0] * DIM, [0.5] * DIM]
  assert list(table.contents(sess)) == [3]


def adamw(w, m, v, p1, p2, g, lr=0.01, wd=0.004, b1=0.9, b2=0.999, eps=1e-6):
  p1, p2 = p1 * b1, p2 * b2
  w = w * (1 - lr * wd)
  m, v = b1 * m + (1 - b1) * g, b2 * v + (1 - b2) * g * g
  return w - lr * (m / (1 - p1)) / (np.sqrt(v / (1 - p2)) + eps), m, v, p1, p2


def apply_op(table, keys, grad, start=(0.0, 0.0, 1.0, 1.0), powers=None, **more):
  m, v = (tf.fill([BUCKET, DIM], tf.constant(x, tf.float32)) for x in start[:2])
  powers = powers or [tf.constant(x, tf.float32) for x in start[2:]]
  constants = [tf.constant(x, tf.float32) for x in (0.01, 0.004, 0.9, 0.999, 1e-6)]
  return cpu.embedding_hashtable_apply_adam_w(
    table.handle, keys, m, v, *powers, *constants, grad, m, embedding_dim=DIM, bucket_size=BUCKET, **more
  )


@pytest.mark.parametrize(
  "start, expected",
  [
    ((0.0, 0.0, 1.0, 1.0), [0.989960020, 0.987257058, 0.983813286]),
    ((1.0, 1.0, 0.9, 0.9), [0.984071666, 0.974252115, 0.967126259]),
  ],
)
def test_adamw_gives_the_worked_numbers_and_advances_the_powers(sess, start, expected):
  table = Map(constant=1.0)
  powers = [tf.get_variable(f"p{i}", [], initializer=tf.constant_initializer(start[2 + i])) for i in range(2)]
  grad = tf.placeholder(tf.float32, [None, DIM])
  step = apply_op(table, table.keys, grad, start, powers)
  sess.run([tf.global_variables_initializer(), table.init])
  table.look(sess, [7, 8])
  for g, w in zip((0.5, -0.25, 0.125), expected):
    m, v, p1, p2 = sess.run(step, {table.keys: [7, 99, -1], grad: np.full((3, DIM), g)})
    np.testing.assert_allclose(table.look(sess, [7]), np.full((1, DIM), w), atol=2e-7)
  assert (m == start[0]).all() and (v == start[1]).all()
  np.testing.assert_allclose([p1, p2], [start[2] * 0.9**3, start[3] * 0.999**3], rtol=1e-6)
  np.testing.assert_allclose(sess.run(powers), [p1, p2])
  found = table.contents(sess)
  assert set(found) == {7, 8} and found[8][2] == [1.0] * DIM  # 99 and -1 were skipped
  assert found[7][0] == 4  # lookups count, updates do not


def test_adamw_sums_gradients_of_a_key_and_can_go_up(sess):
  table = Map(constant=1.0)
  step = apply_op(table, tf.constant([1, 2, 1], tf.int64), tf.constant([[0.25] * DIM, [1.0] * DIM, [0.5] * DIM]), maximize=True)
  sess.run(table.init)
  table.look(sess, [1, 2])
  sess.run(step)
  for key, g in ((1, -0.75), (2, -1.0)):
    np.testing.assert_allclose(table.look(sess, [key])[0], [adamw(1.0, 0, 0, 1, 1, g)[0]] * DIM, rtol=1e-6)


@pytest.mark.parametrize("start_of_max", [0.0, 0.04])
def test_amsgrad_divides_by_the_largest_second_moment(sess, start_of_max):
  table = Map(constant=1.0)
  powers = [tf.get_variable(f"p{i}", [], initializer=tf.ones_initializer()) for i in range(2)]
  grad = tf.placeholder(tf.float32, [None, DIM])
  constants = [tf.constant(x, tf.float32) for x in (0.01, 0.004, 0.9, 0.9, 1e-6)]  # beta_2 so small that v falls
  zeros, top = tf.zeros([BUCKET, DIM]), tf.fill([BUCKET, DIM], start_of_max)
  step = cpu.embedding_hashtable_apply_adam_w(
    table.handle, table.keys, zeros, zeros, *powers, *constants, grad, top, embedding_dim=DIM, bucket_size=BUCKET, amsgrad=True
  )
  sess.run([tf.global_variables_initializer(), table.init])
  table.look(sess, [7])
  w, m, v, vmax, p1, p2 = 1.0, 0.0, 0.0, start_of_max, 1.0, 1.0
  for g in (0.5, -0.25, 0.01, 0.01, 0.02):
    sess.run(step, {table.keys: [7], grad: np.full((1, DIM), g)})
    p1, p2, w = p1 * 0.9, p2 * 0.9, w * (1 - 0.01 * 0.004)
    m, v = 0.9 * m + 0.1 * g, 0.9 * v + 0.1 * g * g
    vmax = max(vmax, v)
    w -= 0.01 * (m / (1 - p1)) / (np.sqrt(vmax / (1 - p2)) + 1e-6)
    np.testing.assert_allclose(table.look(sess, [7]), np.full((1, DIM), w), atol=5e-7)
  assert v < vmax


def test_adamw_says_what_is_wrong(sess):
  table = Map()
  sess.run(table.init)
  key, grad = tf.constant([1], tf.int64), tf.ones([1, DIM])
  with pytest.raises(tf.errors.InvalidArgumentError, match=r"gradient of an AdamW step: expected shape \[1,3\]"):
    sess.run(apply_op(table, key, tf.ones([2, DIM])))
  args = [tf.constant(1.0)] * 7
  step = cpu.embedding_hashtable_apply_adam_w(
    table.handle, key, [0.0, 1.0], [0.0], *args, grad, embedding_dim=DIM, bucket_size=BUCKET
  )
  with pytest.raises(tf.errors.InvalidArgumentError, match="m must hold one value all over"):
    sess.run(step)


def test_an_export_can_be_imported_into_another_table(sess):
  source = Map(1, filter_mode="counter", filter_freq=2)
  target = Map(2, filter_mode="counter", filter_freq=2)
  sess.run([source.init, target.init])
  source.look(sess, [1, 1, 2, 3, 3, 3])
  target.look(sess, [50, 50])
  fed = [[tf.placeholder(t.dtype, [None, *t.shape[1:]]) for t in part] for part in source.exported]
  load = cpu.embedding_hash_table_import([target.handle], [DIM], [BUCKET], *fed)
  found = sess.run(source.exported)
  flat = {p: v for part, values in zip(fed, found) for p, v in zip(part, values)}
  sess.run(load, flat)
  assert target.contents(sess) == source.contents(sess)
  target.look(sess, [2])  # goes on counting
  assert target.contents(sess)[2][:2] == (2, 1)
  np.testing.assert_array_equal(sess.run(cpu.embedding_hashmap_size(tf.constant([[1], [2]]))), [[3], [3]])


def test_imports_check_what_they_get(sess):
  table = Map(bucket=2)
  sess.run(table.init)

  def load(keys, counters, flags, values):
    return cpu.embedding_hash_table_import(tf.reshape(table.handle, [1]), [DIM], [2], [keys], [counters], [flags], [values])

  rows = np.ones((3, DIM), np.float32)
  with pytest.raises(tf.errors.ResourceExhaustedError, match="3 rows does not fit bucket_size 2"):
    sess.run(load(np.int64([1, 2, 3]), [1, 1, 1], [1, 1, 1], rows))
  with pytest.raises(tf.errors.InvalidArgumentError, match=r"counters of an import: expected shape \[2\]"):
    sess.run(load(np.int64([1, 2]), [1], [1, 1], rows[:2]))
  with pytest.raises(tf.errors.DataLossError):
    sess.run(load(np.int64([1, 1]), [1, 1], [1, 1], rows[:2]))
  sess.run(load(np.int64([1, 2]), [4, 5], [1, 0], rows[:2].reshape(-1)))
  assert table.contents(sess) == {1: (4, 1, [1.0] * DIM)}


def test_lists_of_several_tables_must_be_lists_of_one_length(sess):
  handle = cpu.init_embedding_hashmap_v2(1, 4, embedding_dim=DIM)
  parts = [[np.int64([1])], [[1]], [[1]], [np.ones((1, DIM), np.float32)]]
  sess.run(cpu.embedding_hash_table_import([handle], [DIM], None, *parts))
  for dims, error, message in (
    ("3", TypeError, "must be a list of ints, one a table: got '3'"),
    ([None], TypeError, "must be a list of ints"),
    ([], ValueError, r"must be at least 1 and of at least one table: got \[\]"),
    ([-3], ValueError, r"must be at least 1"),
    ([DIM, DIM], ValueError, "has 2 entries, expected one for each of 1 tables"),
  ):
    with pytest.raises(error, match=f"embedding_dims of embedding_hash_table_export {message}"):
      cpu.embedding_hash_table_export([handle], None, dims)
    with pytest.raises(
      error, match="embedding_dims of|keys of embedding_hash_table_import has 1 tensors, expected one for each of 2"
    ):
      cpu.embedding_hash_table_import([handle], dims, None, *parts)
  for place, name in enumerate(("keys", "counters", "filter_flags", "values")):
    with pytest.raises(TypeError, match=f"{name} of embedding_hash_table_import must be a list"):
      cpu.embedding_hash_table_import([handle], [DIM], None, *(None if i == place else part for i, part in enumerate(parts)))


@pytest.mark.parametrize("load_factor", [0, -0.5, 1.5, float("nan"), "0.8", None])
def test_a_load_factor_that_is_none_is_refused(load_factor):
  with pytest.raises(ValueError, match="load_factor of init_embedding_hashmap_v2 must be above 0 and at most 1"):
    cpu.init_embedding_hashmap_v2(1, 4, load_factor, DIM)


def test_tables_belong_to_their_session_and_go_when_told(sess):
  table = Map()
  handle = cpu.table_to_resource_v2(1)
  with pytest.raises(tf.errors.FailedPreconditionError, match="embedding hash table 1 is not in this session"):
    sess.run(handle)
  sess.run(table.init)
  assert sess.run(handle) == 1 and sess.run(table.handle) == 1
  table.look(sess, [1])
  with tf.Session() as other:
    other.run(table.init)
    assert other.run(table.size).tolist() == [0]
  gone = cpu.deinit_embedding_hashmap_v2(1)
  sess.run(gone)
  sess.run(gone)
  with pytest.raises(tf.errors.FailedPreconditionError):
    sess.run(table.size)


def test_sizes_must_be_those_of_the_table(sess):
  table = Map()
  sess.run(table.init)
  with pytest.raises(tf.errors.FailedPreconditionError, match="is there with bucket_size 100 and embedding_dim 3, found 7 and 3"):
    sess.run(cpu.init_embedding_hashmap_v2(1, 7, embedding_dim=3))
  wrong = cpu.embedding_hashtable_lookup_or_insert(table.handle, tf.constant([1], tf.int64), BUCKET, 4)
  with pytest.raises(tf.errors.FailedPreconditionError, match="has bucket_size 100 and embedding_dim 3"):
    sess.run(wrong)
  with pytest.raises(ValueError, match="dtype"):
    cpu.init_embedding_hashmap_v2(1, 7, embedding_dim=3, dtype=tf.float16)
  with pytest.raises(ValueError):
    cpu.init_embedding_hashtable(table.handle, [[1.0]], 7, 1, "other")


@pytest.mark.parametrize("name", sorted(cpu._NOT_HERE))
def test_what_is_not_here_says_so_when_called(name):
  with pytest.raises(NotImplementedError, match=f"npu_cpu_ops.{name}: "):
    getattr(cpu, name)(1, anything=2)


# --- feature mapping ---


def test_features_get_dense_numbers_in_order_of_occurrence(sess):
  ids = tf.placeholder(tf.int64, None)
  numbers, others = cpu.host_feature_mapping(ids), cpu.host_feature_mapping(ids, table_name="other")
  device = cpu.device_feature_mapping(ids)
  assert numbers.dtype == tf.int32
  assert sess.run(numbers, {ids: [[70, -5], [70, 3]]}).tolist() == [[0, 1], [0, 2]]
  assert sess.run(numbers, {ids: [3, 11, -5, MIN]}).tolist() == [2, 3, 1, 4]
  assert sess.run(others, {ids: [11]}).tolist() == [0]
  assert sess.run(device, {ids: [9, 11]}).tolist() == [0, 1]
  assert sess.run(numbers, {ids: np.zeros([0])}).tolist() == []
  many = np.random.default_rng(1).integers(0, 2**62, 5000)
  found = sess.run(others, {ids: many})
  assert sorted(set(found.tolist())) == list(range(1, 1 + len(set(many.tolist()))))
  np.testing.assert_array_equal(sess.run(others, {ids: many}), found)


def test_features_below_the_threshold_have_no_number(sess):
  ids = tf.placeholder(tf.int64, None)
  numbers = cpu.host_feature_mapping(ids, threshold=2)
  assert sess.run(numbers, {ids: [1, 2, 1]}).tolist() == [0, -1, 0]
  assert sess.run(numbers, {ids: [3, 2]}).tolist() == [-1, 1]
  with pytest.raises(tf.errors.FailedPreconditionError, match="threshold 2, found 1"):
    sess.run(cpu.host_feature_mapping(ids), {ids: [1]})
  with pytest.raises(ValueError):
    cpu.host_feature_mapping(ids, threshold=0)


# --- sharded rows ---

SHARDS = np.array([[0, 10_000, 640], [1, 20_000, 960], [4, 30_000, 320]], np.uint64)


@pytest.mark.parametrize("dtype", [tf.int32, tf.int64, tf.uint64])
def test_rows_of_shards_by_remainder(sess, dtype):
  index = tf.cast([0, 4, 5, 3], dtype)
  assert sess.run(cpu.embeddingrankid(SHARDS, index)).tolist() == [
    [0, 10_000, 320],
    [1, 20_320, 320],
    [4, 30_320, 320],
    [0, 10_320, 320],
  ]
  local, nums, recover = cpu.embedding_local_index(SHARDS, index)
  assert local.dtype == dtype
  assert [t.tolist() for t in sess.run([local, nums, recover])] == [[0, 1, 1, 1], [2, 1, 1], [0, 3, 1, 2]]


def test_rows_of_shards_in_order(sess):
  found = sess.run(cpu.embeddingrankid(SHARDS, tf.constant([1, 2, 4, 5]), mode="order"))
  assert found.tolist() == [[0, 10_320, 320], [1, 20_000, 320], [1, 20_640, 320], [4, 30_000, 320]]
  with pytest.raises(tf.errors.InvalidArgumentError, match=r"index\[0\] is 6, expected below 6"):
    sess.run(cpu.embeddingrankid(SHARDS, tf.constant([6]), mode="order"))
  with pytest.raises(tf.errors.InvalidArgumentError, match=r"index\[1\] is -1, expected at least 0"):
    sess.run(cpu.embedding_local_index(SHARDS, tf.constant([0, -1])))
  with pytest.raises(ValueError):
    cpu.embeddingrankid(SHARDS, tf.constant([6]), mode="div")


# --- the cache of ids ---


@pytest.mark.parametrize("dtype", [tf.uint32, tf.int32, tf.int64, tf.uint64])
def test_a_cache_of_ids_says_what_comes_in_and_what_gives_way(sess, dtype):
  cache = LruCache(cache_size=6, load_factor=0.5, dtype=dtype)
  ids = tf.placeholder(dtype, None)
  add, places, everything = cache.cache_add(ids), cache.cache_remote_index_to_local(ids), cache.cache_all_index_to_local()
  assert add[0].dtype == everything.dtype == dtype
  assert [t.tolist() for t in sess.run(add, {ids: [[7, 9], [7, 8]]})] == [[7, 9, 8], [0, 1, 2], [], []]
  assert sess.run(places, {ids: [[8], [7]]}).tolist() == [[2], [0]]
  assert [t.tolist() for t in sess.run(add, {ids: [5, 7]})] == [[5], [1], [9], [1]]
  assert sess.run(everything).tolist() == [7, 5, 8]
  with pytest.raises(tf.errors.NotFoundError, match="id 9 "):
    sess.run(places, {ids: [9]})
  with pytest.raises(tf.errors.ResourceExhaustedError, match="3 places cannot take 4"):
    sess.run(add, {ids: [1, 2, 3, 4]})
  assert sess.run(everything).tolist() == [7, 5, 8]


def test_caches_are_apart(sess):
  one, other = LruCache(4), LruCache(4)
  sess.run(one.cache_add([1]))
  assert sess.run(other.cache_all_index_to_local()).tolist() == []
  with pytest.raises(tf.errors.InvalidArgumentError, match="load_factor"):
    sess.run(LruCache(4, load_factor=2.0).cache_all_index_to_local())


def test_a_row_longer_than_a_table_may_have_is_refused(sess):
  init = cpu.init_embedding_hashmap_v2(1, bucket_size=16, embedding_dim=2**30)
  with pytest.raises(tf.errors.InvalidArgumentError, match="embedding_dim must be at most 65536, found 1073741824"):
    sess.run(init)
