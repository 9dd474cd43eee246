"""mxrec.embedding_column in tf.compat.v1.feature_column.input_layer, against TensorFlow's embedding_column on a variable."""

import helpers
import numpy as np
import pytest
import tensorflow.compat.v1 as tf

import mxrec

BUCKETS = 12
FEATURES = {
  "item": lambda: tf.SparseTensor([[0, 0], [0, 1], [2, 0]], tf.constant([3, 5, 11], tf.int64), [4, 2]),
  "weight": lambda: tf.SparseTensor([[0, 0], [0, 1], [2, 0]], [2.0, 0.5, -1.0], [4, 2]),
  "word": lambda: tf.constant([["a"], ["b"], [""], ["zz"]]),
  "dense": lambda: tf.constant([[1], [2], [-1], [2]], tf.int64),
}


def columns(kind):
  fc = tf.feature_column
  item = fc.categorical_column_with_identity("item", BUCKETS)
  return {
    "identity": lambda: item,
    "dense identity": lambda: fc.categorical_column_with_identity("dense", BUCKETS),
    "hashed": lambda: fc.categorical_column_with_hash_bucket("word", BUCKETS),
    "vocabulary": lambda: fc.categorical_column_with_vocabulary_list("word", ["a", "b"]),  # others are -1
    "crossed": lambda: fc.crossed_column([item, "word"], BUCKETS),
    "weighted": lambda: fc.weighted_categorical_column(item, "weight"),
  }[kind]()


@pytest.mark.parametrize("combiner", ["mean", "sum", "sqrtn"])
@pytest.mark.parametrize("kind", ["identity", "dense identity", "hashed", "vocabulary", "crossed", "weighted"])
def test_rows_and_a_step_equal_those_of_tensorflows_embedding_column(kind, combiner, sess):
  values = np.random.RandomState(2).normal(size=(BUCKETS, 3)).astype(np.float32)
  emb_table = helpers.table(dimension=3)
  emb_table.insert(np.arange(BUCKETS), values, session=sess)
  features = {name: make() for name, make in FEATURES.items()}
  buckets = columns(kind).num_buckets
  reference = tf.feature_column.embedding_column(
    columns(kind), 3, combiner=combiner, max_norm=2.0, initializer=tf.constant_initializer(values[:buckets])
  )
  theirs = tf.feature_column.input_layer(features, [reference])
  variable = tf.trainable_variables()[-1]
  column = mxrec.embedding_column(columns(kind), emb_table, combiner=combiner, max_norm=2.0)
  ours = tf.feature_column.input_layer(features, [column])
  assert ours.shape.as_list() == theirs.shape.as_list() == [4, 3]
  optimizer = tf.train.GradientDescentOptimizer(0.25)
  their_step = optimizer.minimize(tf.reduce_sum(theirs * theirs), var_list=[variable])
  our_step = mxrec.minimize(tf.reduce_sum(ours * ours), tf.train.GradientDescentOptimizer(0.25))
  sess.run([tf.global_variables_initializer(), tf.tables_initializer()])
  for _ in range(3):
    a, b = sess.run([ours, theirs])
    np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
    sess.run([their_step])
    sess.run([our_step])
  np.testing.assert_allclose(emb_table.lookup_numpy(np.arange(buckets), sess), sess.run(variable), rtol=1e-5, atol=1e-6)


def test_columns_share_a_table_and_stand_beside_dense_ones(sess):
  emb_table = helpers.table(dimension=2)
  fc = tf.feature_column
  features = {"a": tf.constant([[1], [2]], tf.int64), "b": tf.constant([[2], [3]], tf.int64), "x": tf.constant([[0.5], [1.5]])}
  layer = fc.input_layer(
    features,
    [
      fc.numeric_column("x"),
      mxrec.embedding_column(fc.categorical_column_with_identity("a", 10), emb_table),
      mxrec.embedding_column(fc.categorical_column_with_identity("b", 10), emb_table),
    ],
  )
  assert layer.shape.as_list() == [2, 5]
  train = mxrec.minimize(tf.reduce_sum(layer), tf.train.AdagradOptimizer(0.1))
  value, _ = sess.run([layer, train])
  np.testing.assert_array_equal(value[1, 0:2], value[0, 2:4])  # id 2 in both columns
  assert sorted(helpers.contents(emb_table, sess)) == [1, 2, 3]


def test_an_untrainable_layer_trains_no_rows():
  emb_table = helpers.table(dimension=2)
  column = mxrec.embedding_column(tf.feature_column.categorical_column_with_identity("a", 10), emb_table)
  layer = tf.feature_column.input_layer({"a": tf.constant([[1]], tf.int64)}, [column], trainable=False)
  assert tf.gradients(layer, mxrec.get_sparse_embedding()) == [None]


def test_the_column_parses_what_its_categorical_column_parses():
  column = mxrec.embedding_column(tf.feature_column.categorical_column_with_identity("a", 10), helpers.table())
  spec = tf.feature_column.make_parse_example_spec([column])
  assert list(spec) == ["a"] and spec["a"].dtype == tf.int64


@pytest.mark.parametrize("default", [2, [2.0, 2.0], (2.0, 2.0), np.full(2, 2.0, np.float32)])
@pytest.mark.parametrize("padding_id", [7, [7, 8], np.array([7])])
def test_a_column_can_be_a_key_whatever_kind_its_default_and_padding_are_of(default, padding_id, sess):
  emb_table = helpers.table(dimension=2)
  item = tf.feature_column.categorical_column_with_identity("a", 10)
  column = mxrec.embedding_column(item, emb_table, training=False, default=default, padding_id=padding_id)
  assert column == mxrec.embedding_column(item, emb_table, training=False, default=default, padding_id=padding_id)
  outputs = {}
  tf.feature_column.input_layer({"a": tf.constant([[1], [7]], tf.int64)}, [column], cols_to_output_tensors=outputs)
  assert sess.run(outputs[column]).tolist() == [[2, 2], [2, 2]]


def test_wrong_arguments_are_value_errors_that_name_the_table():
  emb_table = helpers.table("clicks")
  item = tf.feature_column.categorical_column_with_identity("a", 10)
  with pytest.raises(ValueError, match="Invalid parameter type: table is str"):
    mxrec.embedding_column(item, "clicks")
  sequence = tf.feature_column.sequence_categorical_column_with_identity("a", 10)
  for wrong in (tf.feature_column.numeric_column("x"), "a", sequence):
    with pytest.raises(ValueError, match="categorical_column.*'clicks'"):
      mxrec.embedding_column(wrong, emb_table)
  for arguments in (
    {"combiner": "max"},
    {"combiner": None},
    {"max_norm": 0},
    {"padding_id": 0.5},
    {"default": [1.0]},
    {"default": "a"},
  ):
    with pytest.raises(ValueError, match="'clicks'"):
      mxrec.embedding_column(item, emb_table, **arguments)
  with pytest.raises(NotImplementedError, match="clicks"):
    mxrec.embedding_column(item, emb_table).get_config()
