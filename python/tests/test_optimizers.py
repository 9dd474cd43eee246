"""Optimizers: the formulas, agreement with TensorFlow's own, one state per table."""

import ctypes

import helpers
import numpy as np
import pytest
import tensorflow.compat.v1 as tf

import mxrec
from mxrec import _loader

GRADIENTS = (0.5, -0.25, 0.125)


def adamw_by_hand(w, gradients, lr, wd, b1, b2, eps, start=0.0, power=1.0):
  """The formula in float64; returns the row after each step."""
  w, m, v = np.float64(w), np.float64(start), np.float64(start)
  p1 = p2 = power
  out = []
  for g in gradients:
    p1, p2 = p1 * b1, p2 * b2
    w = w * (1 - lr * wd)
    m, v = b1 * m + (1 - b1) * g, b2 * v + (1 - b2) * g * g
    w = w - lr * (m / (1 - p1)) / (np.sqrt(v / (1 - p2)) + eps)
    out.append(w)
  return np.array(out)


@pytest.mark.parametrize(
  "state, expected", [("zeros", (0.98996002, 0.98725706, 0.98381329)), ("original", (0.98407167, 0.97425212, 0.96712626))]
)
def test_fact_20_adamw_worked_numbers(state, expected, sess):
  emb_table = helpers.table(dimension=1, initializer=tf.ones_initializer())
  model = helpers.SumModel(emb_table, mxrec.AdamWOptimizer(0.01, 0.004, 0.9, 0.999, 1e-6, initial_state=state))
  got = []
  for gradient in GRADIENTS:
    model.step(sess, [3], scale=gradient)
    got.append(model.look(sess, [3])[0, 0])
  np.testing.assert_allclose(got, expected, atol=1e-6, rtol=0)
  start, power = (0.0, 1.0) if state == "zeros" else (1.0, 0.9)
  np.testing.assert_allclose(got, adamw_by_hand(1.0, GRADIENTS, 0.01, 0.004, 0.9, 0.999, 1e-6, start, power), atol=1e-6, rtol=0)


def test_adamw_defaults_are_those_documented(sess):
  model = helpers.SumModel(helpers.table(dimension=1, initializer=tf.ones_initializer()), mxrec.AdamWOptimizer())
  model.step(sess, [3], scale=1e-5)
  np.testing.assert_allclose(model.look(sess, [3])[0, 0], adamw_by_hand(1.0, [1e-5], 0.01, 0.004, 0.9, 0.999, 1e-6)[0], rtol=1e-6)


class Pair:
  """The same model twice: rows in a tf.Variable under TensorFlow's optimizer, and in a table under ours."""

  ROWS = 12

  def __init__(self, make_optimizer, dim, ours=None):
    self.DIM = dim
    rng = np.random.RandomState(3)
    self.start = rng.randn(self.ROWS, self.DIM).astype(np.float32)
    self.ids, self.target = tf.placeholder(tf.int64, [None]), tf.placeholder(tf.float32, [None, self.DIM])
    variable = tf.Variable(self.start)
    self.emb_table = helpers.table(dimension=self.DIM)
    self.looked = [tf.nn.embedding_lookup(variable, self.ids), mxrec.embedding_lookup(self.emb_table, self.ids)]
    self.losses = [tf.reduce_mean(tf.square(rows - self.target)) for rows in self.looked]
    self.variable = variable
    self.train = [
      make_optimizer().minimize(self.losses[0], var_list=[variable]),
      mxrec.minimize(self.losses[1], ours or make_optimizer()),
    ]

  def run(self, sess, batches):
    sess.run(tf.global_variables_initializer())
    self.emb_table.insert(np.arange(self.ROWS), self.start, session=sess)
    for ids, target in batches:
      losses = sess.run(self.losses, {self.ids: ids, self.target: target})
      np.testing.assert_allclose(losses[0], losses[1], atol=1e-5)
      sess.run(self.train, {self.ids: ids, self.target: target})
    return sess.run(self.variable), self.emb_table.lookup_numpy(np.arange(self.ROWS), sess)


def tolerance_of(subject):
  """(rtol, atol) of the one tolerance table, mxrec/numeric/tolerance.cc."""
  rtol, atol, ulp = ctypes.c_double(), ctypes.c_double(), ctypes.c_int64()
  assert _loader.c_library().mxrec_tolerance(subject.encode(), ctypes.byref(rtol), ctypes.byref(atol), ctypes.byref(ulp)) == 0
  return rtol.value, atol.value


@pytest.mark.parametrize(
  "kind, batches, dim, equal_bits",
  [
    ("sgd", "distinct", 5, True),  # the same operations
    ("sgd", "random", 5, False),  # TensorFlow subtracts once per occurrence, we sum them first
    ("adagrad", "random", 1, True),  # the same operations for rows of one column
    ("adagrad", "distinct", 1, True),
    ("adagrad", "random", 5, False),  # TensorFlow multiplies by an approximate rsqrt
    ("adam", "every row", 5, False),  # TensorFlow's Adam moves every row at every step, ours the rows of the step
    ("momentum", "distinct", 5, True),
    ("momentum", "random", 5, True),
    ("nesterov", "distinct", 5, True),
    ("nesterov", "random", 5, True),
    ("rmsprop", "random", 5, False),
    ("rmsprop_centered", "random", 5, False),
    ("adadelta", "random", 5, False),
    ("ftrl", "distinct", 5, True),
    ("ftrl", "random", 5, True),
    ("ftrl_power", "random", 5, False),
    ("ftrl_plain", "random", 5, True),
  ],
)
def test_agrees_with_tensorflows_own_optimizer_on_a_variable_over_100_steps(kind, batches, dim, equal_bits, sess):
  make = {
    "sgd": lambda: tf.train.GradientDescentOptimizer(0.1),
    "adagrad": lambda: tf.train.AdagradOptimizer(0.1, initial_accumulator_value=0.3),
    "adam": lambda: tf.train.AdamOptimizer(0.01, 0.8, 0.99, 1e-7),
    "momentum": lambda: tf.train.MomentumOptimizer(0.05, 0.9),
    "nesterov": lambda: tf.train.MomentumOptimizer(0.05, 0.9, use_nesterov=True),
    "rmsprop": lambda: tf.train.RMSPropOptimizer(0.01, 0.8, 0.5, 1e-6),
    "rmsprop_centered": lambda: tf.train.RMSPropOptimizer(0.01, 0.8, 0.5, 1e-6, centered=True),
    "adadelta": lambda: tf.train.AdadeltaOptimizer(1.0, 0.9, 1e-4),
    "ftrl": lambda: tf.train.FtrlOptimizer(
      0.1,
      initial_accumulator_value=0.2,
      l1_regularization_strength=0.01,
      l2_regularization_strength=0.02,
      l2_shrinkage_regularization_strength=0.03,
      beta=0.1,
    ),
    "ftrl_power": lambda: tf.train.FtrlOptimizer(0.1, learning_rate_power=-0.7, l1_regularization_strength=0.01),
    "ftrl_plain": lambda: tf.train.FtrlOptimizer(0.1),
  }[kind]
  pair = Pair(make, dim)
  rng = np.random.RandomState(5)

  def batch():
    ids = rng.permutation(Pair.ROWS)[:8] if batches == "distinct" else rng.randint(0, Pair.ROWS, 20)
    if batches == "every row":
      ids = np.concatenate([np.arange(Pair.ROWS), ids])
    return ids, rng.randn(len(ids), dim).astype(np.float32)

  theirs, ours = pair.run(sess, [batch() for _ in range(100)])
  worst = np.max(np.abs(theirs - ours))
  print(f"{kind}, {batches}, {dim} columns: worst difference {worst:.3g}")
  if equal_bits:
    np.testing.assert_array_equal(theirs, ours)
  else:
    rtol, atol = tolerance_of({"nesterov": "momentum", "ftrl_power": "ftrl", "ftrl_plain": "ftrl"}.get(kind, kind))
    np.testing.assert_allclose(ours, theirs, atol=atol, rtol=rtol)


def test_d_15_lazy_adam_two_rows_on_alternate_steps_by_hand(sess):
  """Moments of a row move only when it is trained; the bias correction goes by the table's step."""
  emb_table = helpers.table(dimension=1, initializer=tf.ones_initializer())
  model = helpers.SumModel(emb_table, tf.train.AdamOptimizer(0.1, 0.9, 0.999, 1e-8))
  state = {key: [1.0, 0.0, 0.0] for key in (1, 2)}
  for step in range(1, 6):
    key, g = 1 + step % 2, 0.3 * step
    model.step(sess, [key], scale=g)
    w, m, v = state[key]
    m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
    w -= 0.1 * np.sqrt(1 - 0.999**step) / (1 - 0.9**step) * m / (np.sqrt(v) + 1e-8)
    state[key] = [w, m, v]
    np.testing.assert_allclose(model.look(sess, [1, 2])[:, 0], [state[1][0], state[2][0]], rtol=2e-6)


def test_d_20_ftrl_on_a_table_and_on_a_variable_agree_over_100_steps_and_lookups_show_the_stored_rows(sess):
  pair = Pair(lambda: tf.train.FtrlOptimizer(0.1, l1_regularization_strength=0.01, l2_regularization_strength=0.01), dim=4)
  rng = np.random.RandomState(8)
  pair.run(sess, [])
  for _ in range(100):
    feed = {pair.ids: np.concatenate([np.arange(Pair.ROWS), rng.randint(0, Pair.ROWS, 4)])}
    feed[pair.target] = rng.randn(len(feed[pair.ids]), 4).astype(np.float32)
    sess.run(pair.train, feed)
    stored = pair.emb_table.lookup_numpy(np.arange(Pair.ROWS), sess)
    np.testing.assert_array_equal(sess.run(pair.looked[1], feed)[: Pair.ROWS], stored)
    np.testing.assert_allclose(stored, sess.run(pair.variable), atol=1e-6, rtol=0)


def test_d_17_one_id_through_two_lookups_is_one_step_with_the_summed_gradient(sess):
  emb_table = helpers.table(dimension=1, initializer=tf.ones_initializer())
  losses = [tf.reduce_sum(mxrec.embedding_lookup(emb_table, ids)) * weight for ids, weight in (([4, 5], 1.0), ([5, 6, 5], 0.5))]
  train = mxrec.minimize(tf.add_n(losses), tf.train.AdagradOptimizer(0.1, initial_accumulator_value=0.1))
  sess.run(train)
  g = np.array([1.0, 1.0 + 0.5 + 0.5, 0.5])
  np.testing.assert_allclose(emb_table.lookup_numpy([4, 5, 6], sess)[:, 0], 1 - 0.1 * g / np.sqrt(0.1 + g * g), rtol=1e-6)


def test_fact_21_one_optimizer_over_three_tables_equals_three_and_lookups_share_moments():
  def run(shared):
    with tf.Graph().as_default(), tf.Session() as sess:
      tables = [helpers.table(name, dimension=3) for name in "abc"]
      outputs = [mxrec.embedding_lookup(emb_table, ids) for emb_table in tables for ids in ([1, 2], [2, 3])]
      rows = mxrec.get_sparse_embedding()
      pairs = list(zip(tf.gradients(tf.add_n([tf.reduce_sum(tf.square(output)) for output in outputs]), rows), rows))
      if shared:
        train = mxrec.AdamWOptimizer(learning_rate=0.1).apply_gradients(pairs)
      else:
        each = [mxrec.AdamWOptimizer(learning_rate=0.1, name=f"AdamWOptimizer_{i}") for i in range(3)]
        train = tf.group(*[optimizer.apply_gradients(pairs[2 * i : 2 * i + 2]) for i, optimizer in enumerate(each)])
      for _ in range(4):
        sess.run(train)
      assert all(emb_table.stats(sess)["optimizer_step"] == 4 for emb_table in tables)
      return [emb_table.lookup_numpy([1, 2, 3], sess) for emb_table in tables]

  for one, three in zip(run(True), run(False)):
    np.testing.assert_array_equal(one, three)


def test_learning_rate_may_be_reassigned_until_apply(sess):
  """What a loss-scale wrapper does: it divides `_lr` or `_learning_rate`, or both, after construction."""

  def moved(change):
    emb_table = helpers.table(f"t{len(mxrec.get_existing_tables())}", dimension=1, initializer=tf.ones_initializer())
    optimizer = mxrec.AdamWOptimizer(learning_rate=0.1, weight_decay=0.0)
    change(optimizer)
    model = helpers.SumModel(emb_table, optimizer)
    model.step(sess, [1])
    return 1 - model.look(sess, [1])[0, 0]

  def both(optimizer):
    optimizer._lr = optimizer._lr / tf.constant(4.0)
    optimizer._learning_rate = optimizer._learning_rate / tf.constant(4.0)

  plain = moved(lambda optimizer: None)
  changes = [
    lambda o: setattr(o, "_lr", o._lr / 4.0),
    lambda o: setattr(o, "_learning_rate", o._learning_rate / tf.constant(4.0)),
    both,
  ]
  for change in changes:
    np.testing.assert_allclose(moved(change), plain / 4, rtol=1e-5)


def test_every_hyperparameter_may_be_a_tensor_or_variable(sess):
  rate = tf.Variable(0.1, trainable=False)
  fed = tf.placeholder_with_default(0.0, [])
  optimizer = mxrec.AdamWOptimizer(rate, fed, tf.constant(0.9), tf.constant(0.999, tf.float64), tf.constant(1e-6))
  model = helpers.SumModel(helpers.table(dimension=1, initializer=tf.ones_initializer()), optimizer)
  sess.run(tf.global_variables_initializer())
  model.step(sess, [1])
  np.testing.assert_allclose(model.look(sess, [1])[0, 0], 0.9, rtol=1e-4)
  sess.run(rate.assign(0.0))
  before = model.look(sess, [1])
  model.step(sess, [1])
  np.testing.assert_array_equal(model.look(sess, [1]), before)


def test_minimize_reads_callables_and_schedules(sess):
  step = tf.train.get_or_create_global_step()
  rate = tf.train.piecewise_constant(step, [0], [1.0, 0.0])
  for optimizer in (tf.train.GradientDescentOptimizer(lambda: rate), tf.train.AdamOptimizer(lambda: rate, epsilon=1e-3)):
    emb_table = helpers.table(type(optimizer).__name__, dimension=1)
    train = mxrec.minimize(tf.reduce_sum(mxrec.embedding_lookup(emb_table, [1])), optimizer, global_step=step)
    sess.run(tf.global_variables_initializer())
    values = []
    for _ in range(3):
      values.append(emb_table.lookup_numpy([1], sess)[0, 0])
      sess.run(train)
    assert values[0] != values[1] and values[1] == values[2]


def test_another_kind_of_optimizer_on_a_table_is_an_error(sess):
  emb_table = helpers.table()
  loss = tf.reduce_sum(mxrec.embedding_lookup(emb_table, [1]))
  adagrad, adam = (mxrec.minimize(loss, optimizer(0.1)) for optimizer in (tf.train.AdagradOptimizer, tf.train.AdamOptimizer))
  sess.run(adagrad)
  with pytest.raises(tf.errors.FailedPreconditionError, match="adagrad"):
    sess.run(adam)


def test_the_same_kind_with_other_hyperparameters_is_allowed(sess):
  loss = tf.reduce_sum(mxrec.embedding_lookup(helpers.table(), [1]))
  sess.run([mxrec.minimize(loss, tf.train.AdamOptimizer(rate)) for rate in (0.1, 0.2)])


def test_optimizer_is_a_real_tensorflow_optimizer(sess):
  optimizer = mxrec.AdamWOptimizer(name="mine")
  assert isinstance(optimizer, tf.train.Optimizer)
  assert (optimizer.get_name(), optimizer.variables(), optimizer.get_slot_names()) == ("mine", [], [])
  emb_table = helpers.table()
  loss = tf.reduce_sum(mxrec.embedding_lookup(emb_table, [1]))
  mxrec.embedding_lookup(emb_table, [2])  # not part of the loss
  pairs = optimizer.compute_gradients(loss)
  assert [rows for _, rows in pairs] == mxrec.get_sparse_embedding()[:1]
  step = tf.train.get_or_create_global_step()
  train = optimizer.minimize(loss, global_step=step)
  sess.run(tf.global_variables_initializer())
  sess.run(train)
  assert sess.run(step) == 1 and emb_table.size(sess) == 1
  assert train in tf.get_collection(tf.GraphKeys.TRAIN_OP)
  with pytest.raises(ValueError, match="no looked-up rows"):
    optimizer.minimize(tf.constant(1.0))


@pytest.mark.parametrize("form", ["indexed", "dense", "clipped", "scaled"])
def test_dense_and_scaled_gradients_of_rows_are_accepted(form, sess):
  emb_table = helpers.table(dimension=2)
  output = mxrec.embedding_lookup(emb_table, [1, 2, 1])
  rows = mxrec.get_sparse_embedding()
  gradient = tf.gradients(tf.reduce_sum(output), rows)[0]
  if form == "dense":
    gradient = tf.convert_to_tensor(gradient)
  elif form == "clipped":
    gradient = tf.clip_by_global_norm([gradient], 1e6)[0][0]
  elif form == "scaled":
    gradient = tf.convert_to_tensor(gradient) * 1.0
  optimizer = mxrec.AdamWOptimizer(learning_rate=1.0, weight_decay=0.0, beta_1=0.0, beta_2=0.0, epsilon=0.5)
  before = emb_table.lookup_numpy([1, 2], sess)
  sess.run(optimizer.apply_gradients([(gradient, rows[0])]))
  np.testing.assert_allclose(before - emb_table.lookup_numpy([1, 2], sess), [[2 / 2.5] * 2, [1 / 1.5] * 2], rtol=1e-5)


def test_the_step_counter_advances_also_without_ids(sess):
  model = helpers.SumModel(helpers.table(), tf.train.AdamOptimizer(0.1))
  for ids in ([1], [], [2]):
    model.step(sess, ids)
  assert model.table.stats(sess)["optimizer_step"] == 3


@pytest.mark.parametrize("policy", ["apply", "skip", "error"])
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_g_80_non_finite_gradients(policy, bad, sess, capfd):
  emb_table = helpers.table("watched", non_finite=policy)
  output = mxrec.embedding_lookup(emb_table, tf.constant([11, 12], tf.int64))
  weights = tf.placeholder(tf.float32, [2, 1])
  train = mxrec.minimize(tf.reduce_sum(output * weights), tf.train.GradientDescentOptimizer(1.0))
  before = emb_table.lookup_numpy([11, 12], sess)
  run = lambda: sess.run(train, {weights: [[1.0], [bad]]})
  if policy == "error":
    with pytest.raises(tf.errors.InvalidArgumentError, match="watched.*12|12.*watched"):
      run()
    assert emb_table.size(sess) == 0
    return
  run()
  run()
  after = emb_table.lookup_numpy([11, 12], sess)
  np.testing.assert_array_equal(after[0], before[0] - 1 - 1)
  log = capfd.readouterr().err
  if policy == "apply":
    assert not np.isfinite(after[1]).any()
    assert log.count("watched") == 1 and "12" in log
  else:
    np.testing.assert_array_equal(after[1], before[1])


def test_g_80_lookups_can_be_checked_too(sess, capfd):
  warned = helpers.table("warned", check_lookups=True)
  refused = helpers.table("refused", check_lookups=True, non_finite="error")
  for emb_table in (warned, refused):
    emb_table.insert([77], [[1, np.nan, 1, 1]], session=sess)
  sess.run(mxrec.embedding_lookup(warned, [76, 77]))
  assert "warned" in (log := capfd.readouterr().err) and "77" in log
  with pytest.raises(tf.errors.InvalidArgumentError, match="refused.*77|77.*refused"):
    sess.run(mxrec.embedding_lookup(refused, [76, 77]))
