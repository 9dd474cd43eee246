"""tf.contrib as `mxrec run` supplies it: formulas, names of variables, collections."""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from mxrec.tf1 import _facade

FACADE = _facade.Facade("1.15.0")
contrib = FACADE.contrib
layers = contrib.layers


def start(session):
  session.run([tf.global_variables_initializer(), tf.local_variables_initializer(), tf.tables_initializer()])


def variable_names():
  return [variable.op.name for variable in tf.global_variables()]


@pytest.mark.parametrize("part", _facade.CONTRIB)
def test_every_name_that_a_part_lists_is_there(part):
  pytest.importorskip("mxrec._estimator") if part in ("estimator", "learn", "tpu") else None
  pytest.importorskip("npu_bridge.estimator.npu.npu_loss_scale_manager") if part == "mixed_precision" else None
  module = contrib.__getattr__(part)
  for name in module.__all__:
    assert getattr(module, name) is not None, name


# Regularizers and initializers


def test_regularizers_are_the_formulas(sess):
  w = tf.constant([[1.0, -2.0], [3.0, 0.5]])
  l1, l2 = layers.l1_regularizer(0.1), layers.l2_regularizer(0.2)
  both = layers.l1_l2_regularizer(0.1, 0.2)
  values = sess.run([l1(w), l2(w), both(w), layers.sum_regularizer([l1, None, l2])(w)])
  np.testing.assert_allclose(values, [0.65, 0.2 * 14.25 / 2, 0.65 + 1.425, 2.075], rtol=1e-6)


def test_regularizers_refuse_integers_and_negatives_and_zero_is_nothing():
  for bad in (1, -0.5):
    with pytest.raises(ValueError, match=f"{bad}"):
      layers.l2_regularizer(bad)
  assert layers.l1_regularizer(0.0)(tf.constant([1.0])) is None
  assert layers.sum_regularizer([None]) is None


def test_apply_regularization_adds_to_the_collection(sess):
  total = layers.apply_regularization(layers.l2_regularizer(0.5), [tf.constant([2.0]), tf.constant([1.0, 1.0])])
  assert sess.run(total) == pytest.approx(0.5 * (4 / 2 + 2 / 2))
  assert tf.get_collection(tf.GraphKeys.REGULARIZATION_LOSSES) == [total]


def test_regularizers_work_in_get_variable_and_layers(sess):
  with tf.variable_scope("s", regularizer=layers.l2_regularizer(0.1)):
    tf.get_variable("v", initializer=[3.0])
  sess.run(tf.global_variables_initializer())
  assert sess.run(tf.losses.get_regularization_loss()) == pytest.approx(0.45)


def test_xavier_has_the_variance_of_glorot(sess):
  uniform, normal = layers.xavier_initializer(seed=1), layers.xavier_initializer(uniform=False, seed=1)
  a, b = sess.run([uniform([300, 100]), normal([300, 100])])
  assert np.abs(a).max() <= np.sqrt(6 / 400) and a.std() == pytest.approx(np.sqrt(2 / 400), rel=0.02)
  assert b.std() == pytest.approx(np.sqrt(2 / 400), rel=0.02)
  with pytest.raises(ValueError, match="FAN_IN, FAN_OUT, FAN_AVG"):
    layers.variance_scaling_initializer(mode="fan")


# Layers


def test_fully_connected_is_relu_of_the_affine_map_with_contribs_names(sess):
  x = tf.constant([[1.0, -1.0, 2.0]])
  y = layers.fully_connected(
    x, 2, weights_initializer=tf.constant_initializer(0.5), biases_initializer=tf.constant_initializer(-3.0)
  )
  z = layers.fully_connected(x, 2, activation_fn=tf.identity, scope="out", weights_regularizer=layers.l2_regularizer(1.0))
  start(sess)
  assert variable_names() == ["fully_connected/weights", "fully_connected/biases", "out/weights", "out/biases"]
  assert sess.run(y).tolist() == [[0.0, 0.0]] and z.shape.as_list() == [1, 2]
  assert len(tf.get_collection(tf.GraphKeys.REGULARIZATION_LOSSES)) == 1
  assert len(tf.get_collection(tf.GraphKeys.MODEL_VARIABLES)) == 4


def test_fully_connected_of_rank_three_with_normalizer_and_reuse(sess):
  x = tf.constant(np.random.RandomState(0).rand(2, 3, 4).astype(np.float32))
  a = layers.fully_connected(x, 5, None, scope="fc", normalizer_fn=layers.layer_norm)
  b = layers.fully_connected(
    x, 5, None, scope="fc", reuse=True, normalizer_fn=layers.layer_norm, normalizer_params={"reuse": True, "scope": "LayerNorm"}
  )
  start(sess)
  first, second = sess.run([a, b])
  assert first.shape == (2, 3, 5) and np.array_equal(first, second)
  assert variable_names() == ["fc/weights", "fc/LayerNorm/beta", "fc/LayerNorm/gamma"]
  with pytest.raises(ValueError, match="num_outputs"):
    layers.fully_connected(x, 2.5)


def normalized(x, mean, variance, epsilon=0.001):
  return (x - mean) / np.sqrt(variance + epsilon)


def test_batch_norm_by_default_has_no_gamma_and_leaves_updates_to_the_collection(sess):
  data = np.random.RandomState(1).rand(8, 3).astype(np.float32) * 4
  y = layers.batch_norm(tf.constant(data), decay=0.9)
  start(sess)
  assert variable_names() == ["BatchNorm/beta", "BatchNorm/moving_mean", "BatchNorm/moving_variance"]
  np.testing.assert_allclose(sess.run(y), normalized(data, data.mean(0), data.var(0)), atol=1e-5)
  mean, variance = tf.global_variables()[1:]
  assert sess.run(mean).tolist() == [0, 0, 0]
  sess.run(tf.get_collection(tf.GraphKeys.UPDATE_OPS))
  np.testing.assert_allclose(sess.run(mean), 0.1 * data.mean(0), rtol=1e-5)
  np.testing.assert_allclose(sess.run(variance), 0.9 + 0.1 * data.var(0, ddof=1), rtol=1e-5)


def test_batch_norm_updates_in_place_and_not_fused(sess):
  data = np.random.RandomState(1).rand(8, 3).astype(np.float32)
  y = layers.batch_norm(tf.constant(data), decay=0.5, scale=True, updates_collections=None, fused=False, scope="bn")
  start(sess)
  sess.run(y)
  assert not tf.get_collection(tf.GraphKeys.UPDATE_OPS)
  assert variable_names() == ["bn/beta", "bn/gamma", "bn/moving_mean", "bn/moving_variance"]
  np.testing.assert_allclose(sess.run(tf.global_variables()[3]), 0.5 + 0.5 * data.var(0), rtol=1e-5)


@pytest.mark.parametrize("updates", [None, tf.GraphKeys.UPDATE_OPS])
def test_batch_norm_takes_is_training_as_a_tensor(sess, updates):
  data = np.random.RandomState(2).rand(6, 2).astype(np.float32) + 3
  training = tf.placeholder(tf.bool)
  y = layers.batch_norm(tf.constant(data), decay=0.0, is_training=training, updates_collections=updates, scope="bn")
  start(sess)
  np.testing.assert_allclose(sess.run(y, {training: False}), normalized(data, 0, 1), rtol=1e-5)
  np.testing.assert_allclose(sess.run(y, {training: True}), normalized(data, data.mean(0), data.var(0)), atol=1e-4)
  sess.run(tf.get_collection(tf.GraphKeys.UPDATE_OPS), {training: True})
  expected = normalized(data, data.mean(0), data.var(0, ddof=1))
  np.testing.assert_allclose(sess.run(y, {training: False}), expected, atol=1e-4)


def test_batch_norm_shares_variables_between_training_and_evaluation(sess):
  x = tf.placeholder(tf.float32, [None, 2])
  layers.batch_norm(x, is_training=True, scope="bn", updates_collections=None)
  layers.batch_norm(x, is_training=False, scope="bn", reuse=True)
  assert len(tf.global_variables()) == 3
  image = layers.batch_norm(tf.placeholder(tf.float32, [None, 3, 5, 5]), data_format="NCHW", scope="image", scale=True)
  assert image.shape.as_list() == [None, 3, 5, 5]


def test_batch_norm_says_what_it_does_not_supply():
  with pytest.raises(NotImplementedError, match="renorm is not supplied"):
    layers.batch_norm(tf.zeros([2, 2]), renorm=True)


def test_layer_norm_normalizes_each_example(sess):
  data = np.random.RandomState(3).rand(2, 3, 4).astype(np.float32)
  y = layers.layer_norm(tf.constant(data), begin_norm_axis=-1)
  z = layers.layer_norm(tf.constant(data), scope="all")
  start(sess)
  a, b = sess.run([y, z])
  np.testing.assert_allclose(a, normalized(data, data.mean(-1, keepdims=True), data.var(-1, keepdims=True), 1e-12), atol=1e-4)
  flat = data.reshape(2, -1)
  np.testing.assert_allclose(
    b.reshape(2, -1), normalized(flat, flat.mean(1, keepdims=True), flat.var(1, keepdims=True), 1e-12), atol=1e-4
  )
  assert variable_names()[:2] == ["LayerNorm/beta", "LayerNorm/gamma"]


def test_convolution_pooling_flatten(sess):
  x = tf.ones([2, 8, 8, 3])
  y = layers.conv2d(x, 4, 3, stride=2)
  y = layers.flatten(layers.avg_pool2d(layers.max_pool2d(y, 2, 1), [3, 3]))
  start(sess)
  assert sess.run(y).shape == (2, 4) and y.shape.as_list() == [2, 4]
  assert variable_names() == ["Conv/weights", "Conv/biases"]
  with pytest.raises(ValueError, match="rank 2"):
    layers.flatten(tf.zeros([3]))


def test_dropout_takes_a_tensor(sess):
  training = tf.placeholder(tf.bool)
  y = layers.dropout(tf.ones([100]), 0.5, is_training=training, seed=1)
  assert sess.run(y, {training: False}).tolist() == [1.0] * 100
  assert set(sess.run(y, {training: True})) == {0.0, 2.0}


def test_embed_sequence_and_one_hot(sess):
  rows = layers.embed_sequence([[1, 2], [2, 1]], 5, 3, initializer=tf.random_uniform_initializer(seed=1))
  again = layers.embed_sequence([[1, 2], [2, 1]], 5, 3, unique=True, scope="EmbedSequence", reuse=True)
  start(sess)
  a, b = sess.run([rows, again])
  assert a.shape == (2, 2, 3) and np.array_equal(a, b) and np.array_equal(a[0, 0], a[1, 1])
  assert sess.run(layers.one_hot_encoding([1, 0], 2)).tolist() == [[0, 1], [1, 0]]


def test_stack_and_repeat_number_their_layers():
  layers.stack(tf.ones([2, 3]), layers.fully_connected, [4, 5], scope="tower")
  layers.repeat(tf.ones([2, 3]), 2, layers.fully_connected, 3, scope="again")
  assert variable_names()[::2] == [
    "tower/tower_1/weights",
    "tower/tower_2/weights",
    "again/again_1/weights",
    "again/again_2/weights",
  ]


def test_optimize_loss_trains_clips_and_decays(sess):
  w = tf.get_variable("w", initializer=[4.0])
  step = tf.train.get_or_create_global_step()
  decay = lambda rate, count: tf.train.exponential_decay(rate, count, 1, 0.5)
  train = layers.optimize_loss(
    tf.reduce_sum(tf.square(w)), step, 0.5, "SGD", clip_gradients=1.0, learning_rate_decay_fn=decay, gradient_multipliers={w: 10.0}
  )
  start(sess)
  found = []
  for _ in range(3):
    sess.run(train)
    found.append(sess.run(w)[0])
  assert found == [3.5, 3.25, 3.125] and sess.run(step) == 3
  with pytest.raises(ValueError, match="optimizer must be one of"):
    layers.optimize_loss(tf.reduce_sum(w), step, 0.5, "Nothing")


# framework and slim


def test_arg_scope_sets_defaults_and_nests():
  framework, slim = contrib.framework, contrib.slim

  @framework.add_arg_scope
  def function(a, b=1, c=2):
    return a, b, c

  with framework.arg_scope([function], b=10) as scope:
    assert function(0) == (0, 10, 2) and function(0, 5) == (0, 5, 2) and function(0, b=6) == (0, 6, 2)
    with framework.arg_scope([function], c=20):
      assert function(0) == (0, 10, 20)
    assert function(0) == (0, 10, 2)
  assert function(0) == (0, 1, 2)
  with framework.arg_scope(scope):
    assert function(0) == (0, 10, 2)
  with pytest.raises(ValueError, match="no argument 'd'"), framework.arg_scope([function], d=1):
    pass
  with slim.arg_scope([slim.fully_connected], activation_fn=None, weights_regularizer=slim.l2_regularizer(0.1)):
    y = slim.fully_connected(tf.ones([1, 2]), 3)
  assert y.op.type == "BiasAdd" and len(tf.get_collection(tf.GraphKeys.REGULARIZATION_LOSSES)) == 1


def test_variables_are_found_by_scope_and_restored(tmp_path, sess):
  framework = contrib.framework
  with tf.variable_scope("a"):
    tf.get_variable("x", initializer=[1.0])
  with tf.variable_scope("b"):
    tf.get_variable("x", initializer=[2.0])
  names = lambda found: [variable.op.name for variable in found]
  assert names(framework.get_variables("a")) == ["a/x"] and names(framework.get_variables_to_restore(exclude=["a"])) == ["b/x"]
  assert names(framework.get_variables_by_suffix("x")) == ["a/x", "b/x"]
  start(sess)
  path = tf.train.Saver().save(sess, str(tmp_path / "model"))
  assert framework.list_variables(path) == [("a/x", [1]), ("b/x", [1])]
  restore = framework.assign_from_checkpoint_fn(path, tf.global_variables())
  op, feeds = framework.assign_from_checkpoint(path, {"a/x": tf.global_variables()[1]})
  sess.run(op, feeds)
  assert sess.run(tf.global_variables()[1]).tolist() == [1.0]
  restore(sess)
  assert sess.run(tf.global_variables()[1]).tolist() == [2.0]
  with pytest.raises(ValueError, match="has no variable 'c'"):
    framework.assign_from_checkpoint(path, {"c": tf.global_variables()[0]})


# lookup


def test_hash_table_with_its_init_attribute(sess):
  lookup = contrib.lookup
  table = lookup.HashTable(lookup.KeyValueTensorInitializer(["a", "b"], [7, 8], tf.string, tf.int64), -1)
  sess.run(table.init)
  assert sess.run(table.lookup(tf.constant(["b", "c"]))).tolist() == [8, -1]


def test_index_table_from_tensor_by_either_name(sess):
  lookup = contrib.lookup
  a = lookup.index_table_from_tensor(mapping=tf.constant(["x", "y"]), num_oov_buckets=1)
  b = lookup.index_table_from_tensor(vocabulary_list=["x", "y"], default_value=-5)
  back = lookup.index_to_string_table_from_tensor(["x", "y"])
  ids = [a.lookup(tf.constant(["y", "z"])), b.lookup(tf.constant(["y", "z"])), back.lookup(tf.constant([1, 9], tf.int64))]
  start(sess)
  found = sess.run(ids)
  assert found[0].tolist() == [1, 2] and found[1].tolist() == [1, -5] and found[2].tolist() == [b"y", b"UNK"]


def test_mutable_hash_table_is_shared_by_name_and_saved(sess, tmp_path):
  table = contrib.lookup.MutableHashTable(tf.int64, tf.float32, [0.0, 0.0], shared_name="shared", name="one")
  same = contrib.lookup.MutableHashTable(tf.int64, tf.float32, [0.0, 0.0], shared_name="shared", name="two", checkpoint=False)
  other = contrib.lookup.MutableHashTable(tf.int64, tf.float32, [0.0, 0.0], checkpoint=False)
  sess.run(table.insert(tf.constant([5], tf.int64), [[1.0, 2.0]]))
  key = tf.constant([5], tf.int64)
  assert sess.run(same.lookup(key)).tolist() == [[1, 2]] and sess.run(other.lookup(key)).tolist() == [[0, 0]]
  path = tf.train.Saver().save(sess, str(tmp_path / "t"))
  with tf.Session() as fresh:
    tf.train.Saver().restore(fresh, path)
    assert fresh.run(table.lookup(key)).tolist() == [[1, 2]]


# training, data, opt, rnn, metrics, losses


def test_hparams_hold_parse_and_print():
  hparams = contrib.training.HParams(rate=0.1, units=[1, 2], name="x", on=True, steps=3)
  hparams.parse("rate=0.5,units=[4, 5,6],name=abc,on=false")
  assert hparams.values() == {"rate": 0.5, "units": [4, 5, 6], "name": "abc", "on": False, "steps": 3}
  hparams.parse("units[1]=9").set_hparam("steps", 4)
  hparams.add_hparam("more", "z")
  assert hparams.units == [4, 9, 6] and "more" in hparams and hparams.get("none", 1) == 1
  assert hparams.override_from_dict({"rate": 1}).rate == 1.0
  assert contrib.training.HParams(a=1).to_json() == '{"a": 1}'
  assert hparams.parse_json('{"steps": 8}').steps == 8


@pytest.mark.parametrize(
  ("text", "message"),
  [
    ("nothing=1", "unknown hyperparameter 'nothing'"),
    ("rate=x", "could not parse hyperparameter 'rate'"),
    ("rate", "malformed"),
    ("rate=1,rate=2", "twice"),
    ("units[7]=1", "none with index 7"),
    ("rate[0]=1", "not a list"),
  ],
)
def test_hparams_say_what_they_cannot_parse(text, message):
  with pytest.raises(ValueError, match=message):
    contrib.training.HParams(rate=0.1, units=[1, 2]).parse(text)


def test_hparams_refuse_the_wrong_type():
  hparams = contrib.training.HParams(rate=0.1, steps=1, on=True)
  for name, value in (("steps", 1.5), ("rate", "a"), ("on", 1), ("steps", [1])):
    with pytest.raises(ValueError, match=name):
      hparams.set_hparam(name, value)


def test_data_functions_apply_to_datasets(sess):
  data = contrib.data
  dataset = tf.data.Dataset.range(10).apply(data.map_and_batch(lambda x: x * 2, 4, drop_remainder=True))
  twice = tf.data.Dataset.range(5).apply(data.batch_and_drop_remainder(2))
  checked = tf.data.Dataset.range(4).batch(2).apply(data.assert_element_shape([None]))
  assert sess.run(dataset.make_one_shot_iterator().get_next()).tolist() == [0, 2, 4, 6]
  assert sess.run(twice.make_one_shot_iterator().get_next()).tolist() == [0, 1]
  assert sess.run(checked.make_one_shot_iterator().get_next()).tolist() == [0, 1]


@pytest.mark.parametrize("use_resource", [False, True])
def test_lazy_adam_touches_only_gathered_rows(sess, use_resource):
  start_value = np.arange(8, dtype=np.float32).reshape(4, 2)
  lazy = tf.get_variable("lazy", initializer=start_value, use_resource=use_resource)
  dense = tf.get_variable("dense", initializer=start_value, use_resource=use_resource)
  ids = tf.placeholder(tf.int64, [None])
  loss = lambda v: tf.reduce_sum(tf.square(tf.nn.embedding_lookup(v, ids)))
  lazy_op = contrib.opt.LazyAdamOptimizer(0.1).minimize(loss(lazy))
  adam_op = tf.train.AdamOptimizer(0.1).minimize(loss(dense))
  start(sess)
  sess.run([lazy_op, adam_op], {ids: [1, 2, 2]})
  np.testing.assert_allclose(*sess.run([lazy, dense]), rtol=1e-6)
  for _ in range(2):
    sess.run([lazy_op, adam_op], {ids: [1]})
  a, b = sess.run([lazy, dense])
  np.testing.assert_allclose(a[1], b[1], rtol=1e-5)
  assert a[0].tolist() == [0, 1] and a[2].tolist() != b[2].tolist()


def test_adamw_decays_before_the_update(sess):
  w = tf.get_variable("w", initializer=[1.0])
  train = contrib.opt.AdamWOptimizer(weight_decay=0.1, learning_rate=0.0).minimize(tf.reduce_sum(w))
  other = tf.get_variable("o", initializer=[1.0])
  extended = contrib.opt.extend_with_decoupled_weight_decay(tf.train.GradientDescentOptimizer)
  train_other = extended(0.5, learning_rate=0.25).minimize(tf.reduce_sum(other), var_list=[other])
  start(sess)
  sess.run([train, train_other])
  assert sess.run([w, other]) == [pytest.approx([0.9]), pytest.approx([0.25])]


def test_scipy_minimizes_with_bounds_and_constraints(sess):
  x = tf.get_variable("x", initializer=[5.0, 5.0])
  loss = tf.reduce_sum(tf.square(x - tf.constant([1.0, -2.0])))
  opt = contrib.opt.ScipyOptimizerInterface
  free, bounded = opt(loss), opt(loss, var_to_bounds={x: (0.0, np.inf)})
  constrained = opt(loss, equalities=[x[0] - x[1]])
  start(sess)
  for interface, expected in ((free, [1, -2]), (bounded, [1, 0]), (constrained, [-0.5, -0.5])):
    interface.minimize(sess)
    np.testing.assert_allclose(sess.run(x), expected, atol=1e-3)


def test_layer_norm_lstm_runs_and_has_no_bias(sess):
  cell = contrib.rnn.LayerNormBasicLSTMCell(4)
  outputs, state = tf.nn.dynamic_rnn(cell, tf.ones([2, 3, 5]), dtype=tf.float32)
  start(sess)
  assert sess.run(outputs).shape == (2, 3, 4) and isinstance(state, contrib.rnn.LSTMStateTuple)
  names = variable_names()
  assert names[0] == "rnn/layer_norm_basic_lstm_cell/kernel" and len(names) == 11 and not any("bias" in name for name in names)


def test_stacked_bidirectional_rnn(sess):
  rnn = contrib.rnn
  cells = [[rnn.GRUCell(3), rnn.GRUCell(2)] for _ in range(2)]
  outputs, forward, backward = rnn.stack_bidirectional_dynamic_rnn(*cells, tf.ones([2, 4, 5]), dtype=tf.float32)
  start(sess)
  assert sess.run(outputs).shape == (2, 4, 4) and len(forward) == len(backward) == 2
  assert variable_names()[0] == "stack_bidirectional_rnn/cell_0/bidirectional_rnn/fw/gru_cell/gates/kernel"


def test_losses_and_metrics_take_predictions_first(sess):
  predictions, labels = tf.constant([0.9, 0.2]), tf.constant([1.0, 0.0])
  a, b = contrib.losses.log_loss(predictions, labels), tf.losses.log_loss(labels, predictions)
  value, update = contrib.metrics.streaming_auc(predictions, labels)
  start(sess)
  assert sess.run(a) == sess.run(b)
  assert sess.run(update) == pytest.approx(1.0, abs=1e-3) and sess.run(value) == pytest.approx(1.0, abs=1e-3)


def test_sequence_input_layer_gives_rows_and_lengths(sess):
  columns = contrib.feature_column
  ids = columns.sequence_categorical_column_with_identity("ids", 4)
  embedded = tf.feature_column.embedding_column(ids, 3)
  sparse = tf.SparseTensor([[0, 0], [0, 1], [1, 0]], tf.constant([1, 2, 3], tf.int64), [2, 2])
  rows, lengths = columns.sequence_input_layer({"ids": sparse}, [embedded])
  start(sess)
  values, found = sess.run([rows, lengths])
  assert values.shape == (2, 2, 3) and found.tolist() == [2, 1] and not values[1, 1].any()
  assert variable_names() == ["sequence_input_layer/ids_embedding/embedding_weights"]
