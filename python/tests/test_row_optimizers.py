"""Optimizers that TensorFlow 1 has no object for, `mxrec.sparse_optimizer`, and the options of all of them."""

import helpers
import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from test_optimizers import Pair, tolerance_of

import mxrec

STEPS, ROWS, DIM = 100, 9, 7


def close(ours, reference, subject):
  rtol, atol = tolerance_of(subject)
  print(f"{subject}: worst difference {np.max(np.abs(ours - reference)):.3g}")
  np.testing.assert_allclose(ours, reference, rtol=rtol, atol=atol)


def train_both(sess, optimizer, rule, dim=DIM):
  """Rows after 100 steps of random gradients on random rows: a table's, and by `rule(t, w, g, state)` in float64.

  `rule` gets the rows of the step and their own state (a dict of arrays, empty at first) and changes both in place.
  """
  rng = np.random.RandomState(11)
  start = rng.randn(ROWS, dim).astype(np.float32)
  emb_table = helpers.table(dimension=dim)
  ids, weights = tf.placeholder(tf.int64, [None]), tf.placeholder(tf.float32, [None, dim])
  train = mxrec.minimize(tf.reduce_sum(mxrec.embedding_lookup(emb_table, ids) * weights), optimizer)
  emb_table.insert(np.arange(ROWS), start, session=sess)
  w, state = start.astype(np.float64), [{} for _ in range(ROWS)]
  for t in range(1, STEPS + 1):
    batch, g = rng.randint(0, ROWS, 6), rng.randn(6, dim).astype(np.float32)
    sess.run(train, {ids: batch, weights: g})
    for row in sorted(set(batch)):
      rule(t, w[row], g[batch == row].astype(np.float64).sum(0), state[row])
  return emb_table.lookup_numpy(np.arange(ROWS), sess), w


def test_rowwise_adagrad_is_its_formula_over_100_steps(sess):
  def rule(t, w, g, state):
    state["a"] = state.get("a", 0.2) + np.mean(g * g)
    w -= 0.1 / (np.sqrt(state["a"]) + 1e-6) * g

  close(*train_both(sess, mxrec.RowWiseAdagradOptimizer(0.1, 0.2, 1e-6), rule), "rowwise_adagrad")


def test_rowwise_adagrad_of_one_column_is_tensorflows_adagrad(sess):
  def rule(t, w, g, state):
    state["a"] = state.get("a", 0.1) + g * g
    w -= 0.1 * g / np.sqrt(state["a"])

  close(*train_both(sess, mxrec.RowWiseAdagradOptimizer(0.1, 0.1, 0.0), rule, dim=1), "rowwise_adagrad")


def lamb_rule(lr, decay, b1, b2, eps):
  def rule(t, w, g, state):
    m = state["m"] = b1 * state.get("m", 0.0) + (1 - b1) * g
    v = state["v"] = b2 * state.get("v", 0.0) + (1 - b2) * g * g
    u = m / (1 - b1**t) / (np.sqrt(v / (1 - b2**t)) + eps) + decay * w
    w -= lr * np.linalg.norm(w) / np.linalg.norm(u) * u

  return rule


def test_lamb_is_its_formula_over_100_steps(sess):
  close(*train_both(sess, mxrec.LambOptimizer(0.01, 0.05, 0.9, 0.99, 1e-6), lamb_rule(0.01, 0.05, 0.9, 0.99, 1e-6)), "lamb")


def test_lamb_moves_a_row_of_zeros_by_the_plain_direction(sess):
  emb_table = helpers.table(dimension=3, initializer=tf.zeros_initializer())
  model = helpers.SumModel(emb_table, mxrec.LambOptimizer(0.01))
  model.step(sess, [1])
  np.testing.assert_allclose(model.look(sess, [1]), [[-0.01] * 3], rtol=1e-4)


def group_ftrl_rule(lr, l1, l2, l21, beta, start):
  def rule(t, w, g, state):
    a = state.get("a", np.full(w.shape, start))
    new_a = a + g * g
    z = state["z"] = state.get("z", 0.0) + g - (np.sqrt(new_a) - np.sqrt(a)) / lr * w
    state["a"] = new_a
    s = np.clip(z, -l1, l1) - z
    norm, limit = np.linalg.norm(s), l21 * np.sqrt(w.size)
    w[:] = (1 - limit / norm if norm > limit else 0.0) * s / (np.sqrt(new_a) / lr + 2 * (l2 + beta / (2 * lr)))

  return rule


def test_group_ftrl_is_its_formula_over_100_steps(sess):
  optimizer = mxrec.GroupFtrlOptimizer(0.1, 0.01, 0.02, 0.5, 0.3, 0.2)
  close(*train_both(sess, optimizer, group_ftrl_rule(0.1, 0.01, 0.02, 0.5, 0.3, 0.2)), "group_ftrl")


def test_group_ftrl_sets_whole_rows_to_zero(sess):
  model = helpers.SumModel(helpers.table(), mxrec.GroupFtrlOptimizer(0.1, l21_regularization_strength=1.0))
  for ids, scale in (([1], 0.1), ([2], 100.0)):
    model.step(sess, ids, scale=scale)
  weak, strong = model.look(sess, [1, 2])
  np.testing.assert_array_equal(weak, np.zeros(4))
  assert (strong != 0).all()


def run_pair(sess, optimizer_of_variable, optimizer_of_table, batches="distinct", steps=STEPS):
  """Rows of a variable and of a table after the same steps."""
  pair = Pair(optimizer_of_variable, 5, optimizer_of_table)
  rng = np.random.RandomState(8)
  every = np.arange(Pair.ROWS)
  make_ids = {"distinct": lambda: rng.permutation(Pair.ROWS)[:8], "every row": lambda: every}[batches]
  return pair.run(sess, [(ids, rng.randn(len(ids), pair.DIM).astype(np.float32)) for ids in (make_ids() for _ in range(steps))])


def test_group_ftrl_without_groups_is_tensorflows_ftrl(sess):
  theirs, ours = run_pair(
    sess,
    lambda: tf.train.FtrlOptimizer(0.1, l1_regularization_strength=0.01, l2_regularization_strength=0.02, beta=0.1),
    mxrec.GroupFtrlOptimizer(0.1, 0.01, 0.02, 0.0, 0.1),
  )
  np.testing.assert_array_equal(ours, theirs)


class AMSGrad(tf.train.AdamOptimizer):
  """TensorFlow's op for AMSGrad, which no optimizer of TensorFlow 1 uses."""

  def _create_slots(self, var_list):
    super()._create_slots(var_list)
    for variable in var_list:
      self._zeros_slot(variable, "vhat", self._name)

  def _resource_apply_dense(self, grad, var):
    powers = self._get_beta_accumulators()
    slots = [self.get_slot(var, name).handle for name in ("m", "v", "vhat")]
    return tf.raw_ops.ResourceApplyAdamWithAmsgrad(
      var=var.handle,
      m=slots[0],
      v=slots[1],
      vhat=slots[2],
      beta1_power=powers[0].read_value(),
      beta2_power=powers[1].read_value(),
      lr=self._lr_t,
      beta1=self._beta1_t,
      beta2=self._beta2_t,
      epsilon=self._epsilon_t,
      grad=grad,
    )

  def _resource_apply_sparse(self, grad, var, indices):
    return self._resource_apply_dense(tf.scatter_nd(indices[:, None], grad, tf.cast(tf.shape(var), indices.dtype)), var)


def test_amsgrad_agrees_with_tensorflows_op_over_100_steps(sess):
  tf.enable_resource_variables()
  try:
    theirs, ours = run_pair(sess, lambda: AMSGrad(0.01, 0.8, 0.9, 1e-5), mxrec.AMSGradOptimizer(0.01, 0.8, 0.9, 1e-5), "every row")
  finally:
    tf.disable_resource_variables()
  close(ours, theirs, "amsgrad")


def test_amsgrads_steps_stay_small_after_a_large_gradient(sess):
  moved = {}
  for kind, optimizer in (("adam", tf.train.AdamOptimizer(0.1, 0.0, 0.5)), ("amsgrad", mxrec.AMSGradOptimizer(0.1, 0.0, 0.5))):
    model = helpers.SumModel(helpers.table(kind, dimension=1), optimizer)
    for scale in [100.0] + [0.01] * 30:
      before = model.look(sess, [1])
      model.step(sess, [1], scale=scale)
    moved[kind] = np.abs(model.look(sess, [1]) - before)[0, 0]
  assert moved["amsgrad"] < moved["adam"] / 10


# --- sparse_optimizer ---


@pytest.mark.parametrize("kind", list(helpers.optimizers()))
def test_sparse_optimizer_and_minimize_do_the_same(kind):
  def run(way):
    with tf.Graph().as_default(), tf.Session() as sess:
      emb_table = helpers.table()
      loss = tf.reduce_sum(tf.square(mxrec.embedding_lookup(emb_table, [1, 2, 1])))
      step = tf.train.get_or_create_global_step()
      optimizer = helpers.optimizers()[kind]
      if way == "mxrec.minimize":
        train = mxrec.minimize(loss, optimizer, global_step=step)
      elif way == "minimize":
        train = mxrec.sparse_optimizer(optimizer).minimize(loss, global_step=step)
      else:
        sparse = mxrec.sparse_optimizer(optimizer)
        train = sparse.apply_gradients(sparse.compute_gradients(loss), global_step=step)
      sess.run(tf.global_variables_initializer())
      for _ in range(5):
        sess.run(train)
      assert sess.run(step) == 5
      return emb_table.lookup_numpy([1, 2], sess)

  first = run("mxrec.minimize")
  assert np.isfinite(first).all()
  np.testing.assert_array_equal(run("minimize"), first)
  np.testing.assert_array_equal(run("apply_gradients"), first)


def test_dense_variables_are_trained_by_the_tensorflow_optimizer_itself(sess):
  emb_table = helpers.table(dimension=1, initializer=tf.ones_initializer())
  variable = tf.Variable(1.0)
  base = tf.train.MomentumOptimizer(0.5, 0.9)
  loss = tf.reduce_sum(mxrec.embedding_lookup(emb_table, [1])) + variable
  train = mxrec.minimize(loss, mxrec.sparse_optimizer(base, learning_rate_multipliers={emb_table: 0.5}))
  sess.run(tf.global_variables_initializer())
  sess.run(train)
  assert sess.run(variable) == 0.5 and emb_table.lookup_numpy([1], sess)[0, 0] == 0.75
  assert base.get_slot(variable, "momentum") is not None


def test_lazy_adam_of_contrib_is_known_by_name_and_attributes(sess):
  lazy = type("LazyAdamOptimizer", (tf.train.AdamOptimizer,), {})
  adam, table_lazy = (helpers.table(name, dimension=2, initializer=tf.ones_initializer()) for name in ("adam", "lazy"))
  for emb_table, optimizer in ((adam, tf.train.AdamOptimizer(0.1)), (table_lazy, lazy(0.1))):
    train = mxrec.minimize(tf.reduce_sum(mxrec.embedding_lookup(emb_table, [1, 2])), optimizer)
    for _ in range(3):
      sess.run(train)
  np.testing.assert_array_equal(adam.lookup_numpy([1, 2], sess), table_lazy.lookup_numpy([1, 2], sess))


def test_other_optimizers_are_refused_with_a_list(sess):
  class Mine(tf.train.AdamOptimizer):
    pass

  for optimizer in (
    Mine(),
    tf.train.ProximalAdagradOptimizer(0.1),
    type("LazyAdamOptimizer", (tf.train.Optimizer,), {})(False, "x"),
    3,
  ):
    with pytest.raises(ValueError, match="FtrlOptimizer.*LazyAdamOptimizer.*got"):
      mxrec.sparse_optimizer(optimizer)


def test_an_optimizer_of_mxrec_without_options_is_returned_itself():
  optimizer = mxrec.LambOptimizer()
  assert mxrec.sparse_optimizer(optimizer) is optimizer
  assert mxrec.sparse_optimizer(mxrec.sparse_optimizer(tf.train.AdamOptimizer())).dense_optimizer is not None


def test_hyperparameters_are_read_when_gradients_are_applied(sess):
  base = tf.train.GradientDescentOptimizer(1.0)
  sparse = mxrec.sparse_optimizer(base)
  base._learning_rate = 0.5
  emb_table = helpers.table(dimension=1, initializer=tf.ones_initializer())
  sess.run(sparse.minimize(tf.reduce_sum(mxrec.embedding_lookup(emb_table, [1]))))
  assert emb_table.lookup_numpy([1], sess)[0, 0] == 0.5
  sparse._lr = 0.25
  sess.run(sparse.minimize(tf.reduce_sum(mxrec.embedding_lookup(emb_table, [1]))))
  assert emb_table.lookup_numpy([1], sess)[0, 0] == 0.25


# --- options ---


def sgd_step(sess, row, gradient, lr=0.5, **options):
  emb_table = helpers.table(f"t{len(mxrec.get_existing_tables())}", dimension=len(row))
  emb_table.insert([1, 2], [row, row], session=sess)
  optimizer = mxrec.sparse_optimizer(tf.train.GradientDescentOptimizer(lr), **options)
  # The gradient comes in two parts: what counts is their sum.
  loss = tf.reduce_sum(mxrec.embedding_lookup(emb_table, [1, 1]) * (np.float32(gradient) / 2))
  sess.run(mxrec.minimize(loss, optimizer))
  np.testing.assert_array_equal(emb_table.lookup_numpy([2], sess), [np.float32(row)])  # not in the step: as it was
  return emb_table.lookup_numpy([1], sess)[0]


def test_weight_decay_is_decoupled_and_l2_goes_through_the_gradient(sess):
  row, g = np.array([2.0, -4.0]), np.array([1.0, 1.0])
  np.testing.assert_allclose(sgd_step(sess, row, g, weight_decay=0.1), row * (1 - 0.05) - 0.5 * g, rtol=1e-6)
  np.testing.assert_allclose(sgd_step(sess, row, g, l2_regularization=0.1), row - 0.5 * (g + 0.1 * row), rtol=1e-6)


def test_rows_are_clipped_by_the_norm_of_their_summed_gradient(sess):
  row = np.zeros(2)
  np.testing.assert_allclose(sgd_step(sess, row, np.array([3.0, 4.0]), row_clip_norm=1.0), [-0.3, -0.4], rtol=1e-6)
  np.testing.assert_allclose(sgd_step(sess, row, np.array([0.3, 0.4]), row_clip_norm=1), [-0.15, -0.2], rtol=1e-6)
  np.testing.assert_allclose(sgd_step(sess, row, np.array([3e30, 4e30]), row_clip_norm=1.0), [-0.3, -0.4], rtol=1e-6)
  # Clipped first, decayed after: the decay is not clipped.
  np.testing.assert_allclose(
    sgd_step(sess, [1.0, 0.0], [0.0, 4.0], row_clip_norm=1.0, l2_regularization=0.5), [0.75, -0.5], rtol=1e-6
  )


def test_options_of_an_optimizer_go_with_one_of_mxrecs_own(sess):
  emb_table = helpers.table(dimension=2, initializer=tf.zeros_initializer())
  optimizer = mxrec.sparse_optimizer(mxrec.RowWiseAdagradOptimizer(1.0, 0.0, 0.5), row_clip_norm=5.0)
  sess.run(mxrec.minimize(tf.reduce_sum(mxrec.embedding_lookup(emb_table, [1]) * [30.0, 40.0]), optimizer))
  np.testing.assert_allclose(emb_table.lookup_numpy([1], sess)[0], -np.array([3, 4]) / (np.sqrt(12.5) + 0.5), rtol=1e-6)


@pytest.mark.parametrize("optimizer, option", [("adamw", "weight_decay"), ("lamb", "weight_decay"), ("ftrl", "l2_regularization")])
def test_an_option_that_an_optimizer_has_already_is_refused(optimizer, option, sess):
  with pytest.raises(ValueError, match=f"{optimizer} does not take.*{option}.*of its own"):
    mxrec.sparse_optimizer(helpers.optimizers()[optimizer], **{option: 0.1})


def test_an_option_given_twice_is_refused_when_the_second_is_given():
  once = mxrec.sparse_optimizer(
    tf.train.AdagradOptimizer(0.1), weight_decay=0.1, row_clip_norm=1.0, learning_rate_multipliers={"a": 2.0}
  )
  for option in ("weight_decay", "row_clip_norm"):
    with pytest.raises(ValueError, match=f'optimizer adagrad: option "{option}" is given twice'):
      mxrec.sparse_optimizer(once, **{option: 0.2})
  with pytest.raises(ValueError, match="has table 'a' twice: here and in the optimizer that is given"):
    mxrec.sparse_optimizer(once, learning_rate_multipliers={"a": 3.0})
  more = mxrec.sparse_optimizer(once, l2_regularization=0.2, learning_rate_multipliers={"b": 3.0}).row_rule()
  assert {name for name, _ in more.options} == {"initial_accumulator_value", "weight_decay", "row_clip_norm", "l2_regularization"}
  assert more.multipliers == {"a": 2.0, "b": 3.0}


def test_learning_rate_multipliers_by_table_or_name_number_or_tensor(sess):
  tables = [helpers.table(name, dimension=1, initializer=tf.ones_initializer()) for name in "abcd"]
  frozen = tf.placeholder_with_default(0.0, [])
  optimizer = mxrec.sparse_optimizer(
    tf.train.GradientDescentOptimizer(0.25), learning_rate_multipliers={tables[0]: 2, "b": frozen, tables[2]: 0.5}
  )
  train = mxrec.minimize(tf.add_n([tf.reduce_sum(mxrec.embedding_lookup(emb_table, [1])) for emb_table in tables]), optimizer)
  sess.run(train)
  assert [emb_table.lookup_numpy([1], sess)[0, 0] for emb_table in tables] == [0.5, 1.0, 0.875, 0.75]
  sess.run(train, {frozen: 1.0})
  assert tables[1].lookup_numpy([1], sess)[0, 0] == 0.75


_FTRL_RATE, _ANY_RATE = "divides by learning_rate, which must be above 0", "takes a finite learning_rate"


@pytest.mark.parametrize(
  "make, wrongs",
  [
    (tf.train.FtrlOptimizer, {0.0: _FTRL_RATE, -1.0: _FTRL_RATE, np.nan: _ANY_RATE, np.inf: _ANY_RATE}),
    (mxrec.GroupFtrlOptimizer, {0.0: _FTRL_RATE, -1.0: _FTRL_RATE, np.nan: _ANY_RATE}),
    (tf.train.AdagradOptimizer, {np.nan: _ANY_RATE, -np.inf: _ANY_RATE}),
  ],
)
def test_a_learning_rate_that_would_ruin_rows_is_refused_and_changes_nothing(make, wrongs, sess):
  emb_table = helpers.table("rates", dimension=2, initializer=tf.ones_initializer())
  multiplier = tf.placeholder_with_default(1.0, [])
  optimizer = mxrec.sparse_optimizer(make(0.5), learning_rate_multipliers={emb_table: multiplier})
  train = optimizer.minimize(tf.reduce_sum(mxrec.embedding_lookup(emb_table, [1])))
  sess.run(train)
  before = emb_table.lookup_numpy([1], sess)
  for wrong, text in wrongs.items():
    with pytest.raises(tf.errors.InvalidArgumentError, match=f"table rates: .*{text}"):
      sess.run(train, {multiplier: wrong})
  np.testing.assert_array_equal(emb_table.lookup_numpy([1], sess), before)
  assert emb_table.stats(sess)["optimizer_step"] == 1
  sess.run(train)
  assert np.all(np.isfinite(emb_table.lookup_numpy([1], sess)))


def test_wrong_options_are_refused(sess):
  def refused(match, **options):
    with pytest.raises(ValueError, match=match):
      mxrec.sparse_optimizer(tf.train.GradientDescentOptimizer(0.1), **options)

  refused("weight_decay is less than 0", weight_decay=-1.0)
  refused("l2_regularization is not a number", l2_regularization="0.1")
  refused("l2_regularization is not a finite number", l2_regularization=float("nan"))
  refused("row_clip_norm must be above 0", row_clip_norm=0)
  refused("keyed by tables or their names: got int", learning_rate_multipliers={3: 1.0})
  refused(r"multipliers\['a'\] is less than 0", learning_rate_multipliers={"a": -1})
  refused(r"multipliers\['a'\] must be a scalar", learning_rate_multipliers={"a": tf.constant([1.0])})
  with tf.Graph().as_default():
    refused("has table 'twice' twice", learning_rate_multipliers={helpers.table("twice"): 1.0, "twice": 2.0})
  unknown = mxrec.sparse_optimizer(tf.train.GradientDescentOptimizer(0.1), learning_rate_multipliers={"typo": 1.0})
  with pytest.raises(ValueError, match="names table 'typo', which is not there: tables are \\['t'\\]"):
    mxrec.minimize(tf.reduce_sum(mxrec.embedding_lookup(helpers.table(), [1])), unknown)


@pytest.mark.parametrize(
  "make, match",
  [
    (lambda: mxrec.RowWiseAdagradOptimizer(1), "learning_rate is not float"),
    (lambda: mxrec.RowWiseAdagradOptimizer(0.1, 0.0, 0.0), "both 0"),
    (lambda: mxrec.RowWiseAdagradOptimizer(0.1, -1.0), "initial_accumulator_value is less than 0"),
    (lambda: mxrec.AMSGradOptimizer(0.1, 1.0), "beta_1 is not less than 1"),
    (lambda: mxrec.LambOptimizer(0.1, -0.1), "weight_decay is less than 0"),
    (lambda: mxrec.GroupFtrlOptimizer(0.1, l21_regularization_strength=-0.1), "l21_regularization_strength is less than 0"),
    (lambda: mxrec.GroupFtrlOptimizer(0.1, name="a b"), "name"),
  ],
)
def test_wrong_hyperparameters_are_refused(make, match):
  with pytest.raises(ValueError, match=match):
    make()


# --- several tables, checkpoints ---


@pytest.mark.parametrize("kind", list(helpers.optimizers()))
def test_tables_of_several_widths_under_one_optimizer_equal_separate_runs_also_through_a_restore(kind, tmp_path):
  dims = {"a": 1, "b": 5, "c": 16}
  rng = np.random.RandomState(2)
  batches = [{name: rng.randint(0, 30, 12) for name in dims} for _ in range(8)]

  def run(names, folder, split):
    """Rows and steps after all batches; `split`: saved after half of them, and gone on with in a fresh graph and session."""

    def build():
      tf.set_random_seed(3)
      tables = {name: helpers.table(name, dims[name]) for name in names}
      fed = {name: tf.placeholder(tf.int64, [None]) for name in names}
      losses = [tf.reduce_sum(tf.sin(mxrec.embedding_lookup(tables[name], fed[name]) * 3)) for name in names]
      return (
        tables,
        fed,
        mxrec.minimize(tf.add_n(losses), helpers.optimizers()[kind]),
        mxrec.EmbeddingTableSaver(list(tables.values())),
      )

    pieces = [batches[:4], batches[4:]] if split else [batches]
    for number, piece in enumerate(pieces):
      with tf.Graph().as_default(), tf.Session() as sess:
        tables, fed, train, saver = build()
        if number > 0:
          saver.load(sess, str(folder), 1)
        for batch in piece:
          sess.run(train, {fed[name]: batch[name] for name in names})
        if number < len(pieces) - 1:
          saver.save(sess, str(folder), 1)
          continue
        steps = {emb_table.stats(sess)["optimizer_step"] for emb_table in tables.values()}
        assert steps == {len(batches)}
        return {name: emb_table.export(sess) for name, emb_table in tables.items()}

  together, restored = run("abc", None, False), run("abc", tmp_path, True)
  for name in dims:
    alone = run(name, None, False)[name]
    for part in range(2):
      np.testing.assert_array_equal(together[name][part], alone[part])
      np.testing.assert_array_equal(restored[name][part], alone[part])


def test_a_rowwise_slot_costs_four_bytes_a_row(sess):
  emb_table = helpers.table(dimension=64)
  model = helpers.SumModel(emb_table, mxrec.RowWiseAdagradOptimizer(0.1))
  model.step(sess, np.arange(100))
  assert emb_table.stats(sess)["bytes_slots"] == 400
