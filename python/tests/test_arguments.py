"""Every argument of the public functions: types, ranges, texts."""

import helpers
import numpy as np
import pytest
import tensorflow.compat.v1 as tf

import mxrec


def make(name="user_table", dimension=8, device_vocabulary_size=100, **arguments):
  return mxrec.get_embedding_table(name=name, dimension=dimension, device_vocabulary_size=device_vocabulary_size, **arguments)


def test_fact_01_name_that_is_no_text():
  with pytest.raises(ValueError, match="is not str"):
    make(name=111)


@pytest.mark.parametrize("name", ["a\\b", "a b", "a" * 129, "", "name\n", "ä", "表", "a%", "a/b", "a-b", "a:0", " "])
def test_fact_02_d_51_name_with_other_characters_or_length_is_refused_at_creation(name):
  with pytest.raises(ValueError):
    make(name=name)


@pytest.mark.parametrize("name", ["a", "a" * 128, "_a", ".a", "9", "A.b_C9", "..."])
def test_fact_02_d_51_allowed_names_work_to_the_end(name, sess):
  model = helpers.SumModel(make(name=name))
  model.step(sess, [1, 2])
  assert model.table.size(sess) == 2


def test_names_that_differ_in_case_only_are_two_tables(sess):
  upper, lower = helpers.SumModel(make(name="User")), helpers.SumModel(make(name="user"))
  upper.step(sess, [1])
  assert (upper.table.size(sess), lower.table.size(sess)) == (1, 0)
  assert upper.table.handle.op.name == "mxrec/User" and lower.table.handle.op.name == "mxrec/user"


@pytest.mark.parametrize(
  "value, text",
  [
    ("100", "is not int"),
    (-1, "is less than"),
    (0, "device memory"),
    (10**9 + 1, "is bigger than"),
    (True, "is not int"),
    (100.0, "is not int"),
    (None, "is not int"),
  ],
)
def test_fact_03_device_vocabulary_size(value, text):
  with pytest.raises(ValueError, match=text):
    make(device_vocabulary_size=value)


def test_fact_03_limits_of_device_vocabulary_size_are_accepted():
  make("small", device_vocabulary_size=1)
  make("big", device_vocabulary_size=10**9)


@pytest.mark.parametrize(
  "value, text",
  [
    (0, "is less than"),
    (513, "is bigger than"),
    (True, "is not int"),
    ("8", "is not int"),
    (8.0, "is not int"),
    (-5, "is less than"),
  ],
)
def test_fact_04_dimension(value, text):
  with pytest.raises(ValueError, match=text):
    make(dimension=value)


@pytest.mark.parametrize("dimension, options", [(1, {}), (512, {}), (513, {"allow_large_dimension": True}), (np.int64(7), {})])
def test_fact_04_dimensions_that_work(dimension, options, sess):
  model = helpers.SumModel(make(dimension=dimension, **options))
  assert model.step(sess, [3]).shape == (1, dimension)


def test_fact_05_dtypes():
  with pytest.raises(ValueError, match="int64"):
    make(key_dtype=tf.int32)
  with pytest.raises(ValueError, match="float32"):
    make(value_dtype=tf.float16)
  with pytest.raises(ValueError, match="int64"):
    make(key_dtype="no type")


def test_fact_06_initializer_of_a_wrong_type():
  for wrong in ("random", 1, None, tf.zeros_initializer, lambda shape: 0):
    with pytest.raises(ValueError, match="Invalid parameter type"):
      make(initializer=wrong)


@pytest.mark.parametrize("value", ["UNKNOWN", "mp", None, 1])
def test_fact_07_distribution_strategy_is_refused_at_creation(value):
  with pytest.raises(ValueError, match="distribution_strategy"):
    make(distribution_strategy=value)


@pytest.mark.parametrize("value", ["MP", "DP", "auto"])
def test_fact_07_one_process_holds_all_rows_under_every_strategy(value):
  assert make(distribution_strategy=value).distribution == "none"


def test_fact_08_equal_arguments_give_the_identical_object():
  first = make(initializer=tf.truncated_normal_initializer(-0.01, 0.01, 5))
  assert make(initializer=tf.truncated_normal_initializer(mean=-0.01, stddev=0.01, seed=5)) is first
  assert mxrec.get_existing_tables() == [first]
  assert len(mxrec.get_init_hashtable_op()) == 1


@pytest.mark.parametrize(
  "change, text",
  [
    ({"dimension": 9}, "dimension = 8, now asked for with 9"),
    ({"device_vocabulary_size": 101}, "device_vocabulary_size = 100"),
    ({"initializer": tf.zeros_initializer()}, "initializer"),
    ({"initializer": tf.random_normal_initializer(seed=1)}, "seed None, now asked for with 1"),
    ({"min_used_times": 2}, "min_used_times"),
    ({"max_cold_secs": 2}, "max_cold_secs"),
    ({"capacity_policy": "error"}, "capacity_policy"),
    ({"capacity_policy": "evict"}, "capacity_policy"),
    ({"non_finite": "error"}, "non_finite"),
    ({"save_with_tf_saver": False}, "save_with_tf_saver = True, now asked for with False"),
  ],
)
def test_fact_08_conflicting_arguments_are_an_error_naming_argument_and_both_values(change, text):
  make()
  with pytest.raises(ValueError, match=text) as error:
    make(**change)
  assert "user_table" in str(error.value)


def test_d_31_the_same_name_in_two_variable_scopes_is_one_table_or_refused():
  with tf.variable_scope("a"), tf.name_scope("x"):
    first = make()
  with tf.variable_scope("b"):
    assert make() is first
    with pytest.raises(ValueError):
      make(dimension=4)


@pytest.mark.parametrize(
  "argument, value",
  [("min_used_times", value) for value in (-1, 2**31, "invalid", True, 1.5)]
  + [("max_cold_secs", value) for value in (-1, 2**64, "invalid", True, 1.5)],
)
def test_fact_09_admission_and_eviction_arguments(argument, value):
  with pytest.raises(ValueError, match=argument):
    make(**{argument: value})


@pytest.mark.parametrize(
  "arguments", [{"min_used_times": 0}, {"min_used_times": 2**31 - 1}, {"max_cold_secs": 0}, {"max_cold_secs": 2**64 - 1}]
)
def test_fact_09_limits_are_accepted(arguments, sess):
  model = helpers.SumModel(make(**arguments))
  model.step(sess, [1])


@pytest.mark.parametrize(
  "arguments",
  [
    {"capacity_policy": "lru"},
    {"evict_by": "fifo", "capacity_policy": "evict"},
    {"evict_by": "lru"},
    {"evict_by": "lfu", "capacity_policy": "error"},
    {"evict_half_life": 5},
    {"evict_half_life": 5, "capacity_policy": "evict"},
    {"evict_half_life": 0, "capacity_policy": "evict", "evict_by": "lfu"},
    {"evict_half_life": 2**32, "capacity_policy": "evict", "evict_by": "lfu"},
    {"evict_half_life": True, "capacity_policy": "evict", "evict_by": "lfu"},
    {"non_finite": "warn"},
    {"check_lookups": 1},
    {"max_bytes": -1},
    {"max_bytes": "1"},
    {"allow_large_dimension": 1},
    {"save_with_tf_saver": "no"},
  ],
)
def test_own_options_are_checked(arguments):
  with pytest.raises(ValueError, match=next(iter(arguments))):
    make(**arguments)


@pytest.mark.parametrize(
  "argument, value, text",
  [
    ("learning_rate", 10.1, "is bigger than"),
    ("learning_rate", -0.1, "is less than"),
    ("learning_rate", 1, "is not float"),
    ("learning_rate", True, "is not float"),
    ("learning_rate", "0.1", "is not float"),
    ("learning_rate", float("nan"), "not a number"),
    ("weight_decay", 10.1, "is bigger than"),
    ("weight_decay", 0, "is not float"),
    ("beta_1", 1.0, "beta_1"),
    ("beta_2", 1.0, "beta_2"),
    ("beta_1", -0.1, "is less than"),
    ("epsilon", 1.0, "epsilon"),
    ("epsilon", -1e-9, "is less than"),
    ("name", "a b", "name"),
    ("name", "a" * 129, "length"),
    ("name", 1, "is not str"),
    ("initial_state", "ones", "initial_state"),
  ],
)
def test_fact_22_optimizer_arguments_that_are_refused(argument, value, text):
  with pytest.raises(ValueError, match=text):
    mxrec.AdamWOptimizer(**{argument: value})


def test_fact_22_optimizer_arguments_that_are_accepted():
  for value in (0.0, 10.0, tf.constant(11.0), tf.Variable(0.1), tf.constant(0.1, tf.float64)):
    mxrec.AdamWOptimizer(learning_rate=value, weight_decay=value)
  mxrec.AdamWOptimizer(0.1, 0.2, 0.0, 0.999, 0.0, "AdamWOptimizer_0")
  with pytest.raises(ValueError, match="scalar"):
    mxrec.AdamWOptimizer(learning_rate=tf.constant([0.1, 0.2]))
  with pytest.raises(ValueError, match="float tensor"):
    mxrec.AdamWOptimizer(learning_rate=tf.constant(1))


def test_an_optimizer_name_that_tensorflow_would_refuse_works(sess):
  loss = tf.reduce_sum(mxrec.embedding_lookup(make(), [1]))
  for name in ("_", "_mine", ".", "9.a"):
    sess.run(mxrec.AdamWOptimizer(name=name).minimize(loss))


def test_fact_22_dense_variables_are_not_implemented_and_none_is_skipped():
  variable = tf.get_variable("w", [3])
  optimizer = mxrec.AdamWOptimizer()
  for gradient in (tf.ones([3]), tf.IndexedSlices(tf.ones([1]), tf.constant([0]))):
    with pytest.raises(NotImplementedError, match="dense variables"):
      optimizer.apply_gradients([(gradient, variable)])
  with pytest.raises(NotImplementedError):
    optimizer.minimize(tf.reduce_sum(variable), var_list=[variable])
  lookup = mxrec.embedding_lookup(make(), [1])
  unused = mxrec.embedding_lookup(make(), [2])
  rows = mxrec.get_sparse_embedding()
  gradients = tf.gradients(tf.reduce_sum(lookup), rows)
  assert gradients[1] is None and unused is not None
  assert optimizer.apply_gradients(zip(gradients, rows)).type == "NoOp"
  with pytest.raises(ValueError, match="user_table"):
    optimizer.apply_gradients([(None, rows[0])])
  with pytest.raises(ValueError, match="twice"):
    optimizer.apply_gradients([(gradients[0], rows[0])] * 2)
  with pytest.raises(ValueError):
    optimizer.apply_gradients([])


def test_gradients_of_a_wrong_shape_or_dtype_are_refused():
  mxrec.embedding_lookup(make(), [1])
  rows = mxrec.get_sparse_embedding()[0]
  for wrong in (tf.ones([1, 7]), tf.ones([8]), tf.ones([1, 8], tf.float64), tf.IndexedSlices(tf.ones([1, 7]), tf.constant([0]))):
    with pytest.raises(ValueError, match="user_table"):
      mxrec.AdamWOptimizer().apply_gradients([(wrong, rows)])


def test_gradient_with_a_wrong_number_of_rows_is_refused_at_run_time(sess):
  emb_table = make()
  mxrec.embedding_lookup(emb_table, [1, 2])
  rows = mxrec.get_sparse_embedding()[0]
  fed, index = tf.placeholder(tf.float32, [None, 8]), tf.placeholder(tf.int32, [None])
  dense = mxrec.AdamWOptimizer().apply_gradients([(fed, rows)])
  sparse = mxrec.AdamWOptimizer().apply_gradients([(tf.IndexedSlices(fed, index), rows)])
  for train, feed in (
    (dense, {fed: np.ones([3, 8])}),
    (sparse, {fed: np.ones([1, 8]), index: [2]}),
    (sparse, {fed: np.ones([1, 8]), index: [-1]}),
    (sparse, {fed: np.ones([2, 8]), index: [0]}),
  ):
    with pytest.raises(tf.errors.InvalidArgumentError):
      sess.run(train, feed)
  assert emb_table.size(sess) == 0


def test_lookup_arguments():
  emb_table = make()
  with pytest.raises(ValueError, match="Invalid parameter type"):
    mxrec.embedding_lookup("user_table", [1])
  for wrong in (tf.constant([1.0]), tf.constant(["a"]), [1.5], ["a"], [True], np.zeros([2], np.int16), tf.constant([1], tf.int8)):
    with pytest.raises(ValueError, match="int64, int32 or uint64"):
      mxrec.embedding_lookup(emb_table, wrong)
  with pytest.raises(ValueError, match="training"):
    mxrec.embedding_lookup(emb_table, [1], training=1)
  with pytest.raises(ValueError, match="default"):
    mxrec.embedding_lookup(emb_table, [1], default=[1.0, 2.0])
  with pytest.raises(ValueError, match="default"):
    mxrec.embedding_lookup(emb_table, [1], default="zero")
  with tf.Graph().as_default(), pytest.raises(ValueError, match="another graph"):
    mxrec.embedding_lookup(emb_table, [1])


def test_table_method_arguments(sess):
  emb_table = make(dimension=2)
  for wrong in ([1.5], ["a"], [True], [2**63, -1]):
    with pytest.raises(ValueError):
      emb_table.lookup_numpy(wrong, sess)
  with pytest.raises(ValueError, match=r"shape \[2, 2\]"):
    emb_table.insert([1, 2], np.zeros([2, 3]), sess)
  with pytest.raises(ValueError, match="numbers"):
    emb_table.insert([1], [["a", "b"]], sess)
  with pytest.raises(ValueError, match="Session"):
    emb_table.size("session")
  with tf.Graph().as_default(), tf.Session() as other, pytest.raises(ValueError, match="another graph"):
    emb_table.size(other)


def test_a_table_method_without_any_session_says_so():
  with pytest.raises(ValueError, match="no default session"):
    make().size()


def test_fact_24_saver_arguments(tmp_path, sess):
  emb_table = make()
  with pytest.raises(ValueError, match="Invalid parameter type"):
    mxrec.EmbeddingTableSaver(emb_table)
  with pytest.raises(ValueError, match="empty"):
    mxrec.EmbeddingTableSaver([])
  with pytest.raises(ValueError, match=r"emb_tables\[1\]"):
    mxrec.EmbeddingTableSaver([emb_table, "x"])
  with pytest.raises(ValueError, match="twice"):
    mxrec.EmbeddingTableSaver([emb_table, emb_table])
  with pytest.raises(ValueError, match="keep"):
    mxrec.EmbeddingTableSaver([emb_table], keep=-1)
  saver = mxrec.EmbeddingTableSaver([emb_table])
  for method in (saver.save, saver.load):
    for step, text in (
      (-1, "is less than"),
      (2**32, "is bigger than"),
      ("1", "is not int"),
      (True, "is not int"),
      (1.0, "is not int"),
    ):
      with pytest.raises(ValueError, match=text):
        method(sess, str(tmp_path), step)
    with pytest.raises(ValueError, match="Session"):
      method("not a session", str(tmp_path), 1)
    for path in ("", "a" * 1025, 3, "a\0b"):
      with pytest.raises(ValueError, match="save_path"):
        method(sess, path, 1)
  assert not list(tmp_path.iterdir())


def test_minimize_arguments():
  loss = tf.reduce_sum(mxrec.embedding_lookup(make(), [1]))
  with pytest.raises(ValueError, match="optimizer must be"):
    mxrec.minimize(loss, tf.train.ProximalGradientDescentOptimizer(0.1))
  with pytest.raises(ValueError, match="loss"):
    mxrec.minimize(1.0, tf.train.AdamOptimizer())
  for wrong in (0, -1.0, True, float("nan"), "1"):
    with pytest.raises(ValueError, match="clip_norm"):
      mxrec.minimize(loss, tf.train.AdamOptimizer(), clip_norm=wrong)
  with pytest.raises(ValueError, match="No variables"):
    mxrec.minimize(tf.constant(1.0), tf.train.AdamOptimizer())
  variable = tf.get_variable("w", [1])
  with pytest.raises(NotImplementedError, match="w:0"):
    mxrec.minimize(loss * variable[0], mxrec.AdamWOptimizer())


def test_clock_arguments():
  for wrong in (-1, "1", True, float("inf")):
    with pytest.raises(ValueError):
      mxrec.testing.set_clock(wrong)


def test_eager_mode_is_refused_with_advice():
  import tensorflow.python.eager.context as context

  with context.eager_mode(), pytest.raises(RuntimeError, match="graph mode"):
    make()
