"""Loss scales and skipped steps, for variables and for tables."""

import helpers
import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from npu_bridge.estimator.npu.npu_loss_scale_manager import ExponentialUpdateLossScaleManager, FixedLossScaleManager
from npu_bridge.estimator.npu.npu_loss_scale_optimizer import NPULossScaleOptimizer
from npu_bridge.estimator.npu.npu_optimizer import NPUDistributedOptimizer, NPUOptimizer

import mxrec
from mxrec import _loader

SGD = tf.train.GradientDescentOptimizer


@pytest.mark.parametrize("resource", [False, True])
def test_fact_14_the_scale_after_each_step(resource, sess):
  with tf.variable_scope("", use_resource=resource):
    manager = ExponentialUpdateLossScaleManager(1024, 2, 2, 2, 0.5)
  finite = tf.placeholder(tf.bool, [])
  update = manager.update_loss_scale(finite)
  sess.run(tf.global_variables_initializer())
  scales = []
  for letter in "TTTFTFTTFF":
    sess.run(update, {finite: letter == "T"})
    scales.append(sess.run(manager.get_loss_scale()))
  assert scales == [1024, 2048, 2048, 2048, 2048, 1024, 1024, 2048, 2048, 1024]


def test_fact_14_a_fixed_scale_is_at_least_1_and_a_falling_one_stops_there(sess):
  with pytest.raises(ValueError, match="0.5"):
    FixedLossScaleManager(0.5)
  with pytest.raises(ValueError, match="loss_scale"):
    FixedLossScaleManager(float("nan"))
  fixed = FixedLossScaleManager(64)
  assert sess.run(fixed.get_loss_scale()) == 64 and fixed.get_enable_overflow_check()
  manager = ExponentialUpdateLossScaleManager(3, 1000, decr_every_n_nan_or_inf=1, decr_ratio=0.5)
  update = manager.update_loss_scale(tf.constant(False))
  sess.run(tf.global_variables_initializer())
  for expected in (1.5, 1, 1):
    sess.run(update)
    assert sess.run(manager.get_loss_scale()) == expected


def test_a_scale_that_would_overflow_float32_stays_and_the_counters_start_anew(sess):
  manager = ExponentialUpdateLossScaleManager(2.0**127, 2)
  update = manager.update_loss_scale(tf.constant(True))
  sess.run(tf.global_variables_initializer())
  for good in (1, 0, 1, 0):
    sess.run(update)
    assert sess.run([manager.get_loss_scale(), manager._num_good_steps]) == [2.0**127, good]


@pytest.mark.parametrize("dtype", [tf.float32, tf.float64, tf.half, tf.bfloat16])
@pytest.mark.parametrize("size", [0, 1, 7, 64, 200_000])
def test_the_check_finds_a_value_that_is_not_finite_anywhere(dtype, size, sess):
  values = tf.placeholder(dtype, [None])
  check = _loader.ops.npu_all_finite([tf.constant([1.0, 2.0]), values])
  numbers = np.full([size], dtype.max, dtype.as_numpy_dtype)
  assert sess.run(check, {values: numbers})
  for place in {0, size // 2, size - 1} if size else ():
    for bad in (np.nan, np.inf, -np.inf):
      numbers[place] = bad
      assert not sess.run(check, {values: numbers})
      numbers[place] = -dtype.max
  assert sess.run(check, {values: numbers})


def quadratic():
  variable = tf.get_variable("v", initializer=[1.0, -2.0, 3.0])
  scale = tf.placeholder_with_default(1.0, [])
  return variable, scale, tf.reduce_sum(tf.square(variable)) * scale


def test_fact_15_a_fixed_scale_gives_the_weights_of_plain_sgd(sess):
  variable, _, loss = quadratic()
  plain = tf.get_variable("plain", initializer=[1.0, -2.0, 3.0])
  train = NPULossScaleOptimizer(SGD(0.1), FixedLossScaleManager(128)).minimize(loss, var_list=[variable])
  plain_train = SGD(0.1).minimize(tf.reduce_sum(tf.square(plain)), var_list=[plain])
  sess.run(tf.global_variables_initializer())
  for _ in range(20):
    sess.run([train, plain_train])
  found, expected = sess.run([variable, plain])
  np.testing.assert_allclose(found, expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("make", [NPULossScaleOptimizer, lambda opt, manager: NPUOptimizer(opt, manager, is_loss_scale=True)])
@pytest.mark.parametrize("opt", [lambda: SGD(0.1), lambda: tf.train.AdamOptimizer(0.1)])
def test_fact_15_a_step_that_is_not_finite_changes_nothing_and_the_next_one_applies(make, opt, sess):
  variable, scale, loss = quadratic()
  step = tf.train.get_or_create_global_step()
  manager = ExponentialUpdateLossScaleManager(1024, 1000, decr_every_n_nan_or_inf=1, decr_ratio=0.5)
  train = make(opt(), manager).minimize(loss, global_step=step)
  assert tf.get_collection(tf.GraphKeys.TRAIN_OP) == [train]
  sess.run(tf.global_variables_initializer())
  sess.run(train)
  before = sess.run(tf.global_variables())
  for bad in (np.inf, np.nan):
    sess.run(train, {scale: bad})
  after = dict(zip((item.op.name for item in tf.global_variables()), sess.run(tf.global_variables())))
  assert after.pop("loss_scale") == 256 and after.pop("bad_steps") == 0 and after.pop("good_steps") == 0
  for item, value in zip(tf.global_variables(), before):
    if item.op.name in after:
      np.testing.assert_array_equal(after[item.op.name], value)
  sess.run(train)
  assert sess.run(step) == 2 and (sess.run(variable) != before[0]).all()


def test_fact_15_without_overflow_check_the_step_is_applied(sess):
  variable, scale, loss = quadratic()
  step = tf.train.get_or_create_global_step()
  train = NPULossScaleOptimizer(SGD(0.1), FixedLossScaleManager(128, enable_overflow_check=False)).minimize(loss, global_step=step)
  sess.run(tf.global_variables_initializer())
  sess.run(train, {scale: np.nan})
  assert sess.run(step) == 1 and np.isnan(sess.run(variable)).all()


def test_indexed_slices_stay_so_and_are_checked(sess):
  variable = tf.get_variable("v", initializer=np.ones([4, 2], np.float32))
  ids, scale = tf.placeholder(tf.int32, [None]), tf.placeholder_with_default(1.0, [])
  opt = NPULossScaleOptimizer(SGD(1.0), FixedLossScaleManager(8))
  pairs = opt.compute_gradients(tf.reduce_sum(tf.gather(variable, ids)) * scale)
  assert isinstance(pairs[0][0], tf.IndexedSlices)
  train = opt.apply_gradients(pairs)
  sess.run(tf.global_variables_initializer())
  sess.run(train, {ids: [1, 1, 3]})
  sess.run(train, {ids: [0], scale: np.inf})
  np.testing.assert_array_equal(sess.run(variable)[:, 0], [1, -1, 1, 0])


def test_unknown_attributes_are_those_of_the_wrapped_optimizer(sess):
  adam = tf.train.AdamOptimizer(0.25)
  opt = NPULossScaleOptimizer(adam, FixedLossScaleManager(8))
  variable, _, loss = quadratic()
  opt.minimize(loss)
  assert opt._lr == 0.25 and opt.get_slot_names() == ["m", "v"] and opt.get_slot(variable, "m") is adam.get_slot(variable, "m")
  assert opt.variables() == adam.variables()
  with pytest.raises(AttributeError, match="no_such"):
    _ = opt.no_such


@pytest.mark.parametrize("value", [0, -1, float("nan"), float("inf"), 1e39])
def test_scales_that_would_skip_every_step_are_refused(value):
  with pytest.raises(ValueError, match="loss_scale of FixedLossScaleManager must be"):
    FixedLossScaleManager(value)
  with pytest.raises(ValueError, match="init_loss_scale of ExponentialUpdateLossScaleManager must be above 0 and a finite"):
    ExponentialUpdateLossScaleManager(value, 10)
  for ratio in ("incr_ratio", "decr_ratio"):
    with pytest.raises(ValueError, match=f"{ratio} of ExponentialUpdateLossScaleManager must be above 0 and a finite"):
      ExponentialUpdateLossScaleManager(2, 10, **{ratio: value})


def test_arguments_of_another_kind_name_themselves():
  for wrong in ("64", None, [2.0], True, tf.constant(2.0)):
    with pytest.raises(TypeError, match="loss_scale of FixedLossScaleManager must be a number"):
      FixedLossScaleManager(wrong)
    with pytest.raises(TypeError, match="incr_every_n_steps of ExponentialUpdateLossScaleManager must be an int"):
      ExponentialUpdateLossScaleManager(2, wrong)
  for wrong in (0, -3):
    with pytest.raises(ValueError, match="decr_every_n_nan_or_inf of ExponentialUpdateLossScaleManager must be at least 1"):
      ExponentialUpdateLossScaleManager(2, 10, wrong)
  ExponentialUpdateLossScaleManager(np.float32(2), np.int64(10), incr_ratio=2.5)
  manager = FixedLossScaleManager(np.int32(2))
  for opt in (None, "sgd", SGD, 0.1, tf.keras.optimizers.SGD()):
    for kind, arguments in (
      (NPULossScaleOptimizer, (manager,)),
      (NPUOptimizer, (manager, False, True)),
      (NPUDistributedOptimizer, ()),
    ):
      with pytest.raises(
        TypeError, match=f"{kind.__name__} needs a tf.train.Optimizer|{kind.__name__} needs an optimizer: got the class"
      ):
        kind(opt, *arguments)
  for wrong in (128, "dynamic", FixedLossScaleManager):
    for kind, arguments in ((NPULossScaleOptimizer, ()), (NPUOptimizer, (False, True))):
      with pytest.raises(TypeError, match=f"{kind.__name__} needs a loss scale manager, such as FixedLossScaleManager: got"):
        kind(SGD(1.0), wrong, *arguments)


def test_no_gradient_at_all_is_an_error():
  opt = NPULossScaleOptimizer(SGD(1.0), FixedLossScaleManager(8))
  variable = tf.get_variable("v", [2])
  with pytest.raises(ValueError, match="No gradients"):
    opt.apply_gradients([(None, variable)])
  with pytest.raises(ValueError, match="loss_scale_manager"):
    NPUOptimizer(SGD(1.0), is_loss_scale=True)


def state(emb_table, session):
  stats = emb_table.stats(session)
  keys, values = emb_table.export(session)
  found = {name: stats[name] for name in ("rows", "candidates", "optimizer_step")}
  return found, dict(zip(keys.tolist(), values.tolist()))


WRAPPED = {
  "apply_gradients": lambda opt, loss, step: opt.apply_gradients(
    [pair for pair in opt.compute_gradients(loss, tf.trainable_variables() + mxrec.get_sparse_embedding())], step
  ),
  "mxrec.minimize": lambda opt, loss, step: mxrec.minimize(loss, opt, step),
  "mxrec.minimize with clipping": lambda opt, loss, step: mxrec.minimize(loss, opt, step, clip_norm=1e6),
}


@pytest.mark.parametrize("way", WRAPPED)
@pytest.mark.parametrize("distributed", [False, True])
def test_a_step_that_is_not_finite_changes_no_table(way, distributed, tmp_path):
  """No row, slot, count, candidate or step; and finite steps give what they give without loss scale."""

  def build(loss_scale):
    tf.reset_default_graph()
    emb_table = helpers.table(dimension=2, min_used_times=2)
    ids, scale = tf.placeholder(tf.int64, [None]), tf.placeholder_with_default(1.0, [])
    weight = tf.get_variable("w", initializer=[1.0, 2.0])
    loss = tf.reduce_sum(tf.square(mxrec.embedding_lookup(emb_table, ids) * weight + 1.0)) * scale
    opt = tf.train.AdamOptimizer(0.1)
    if distributed:
      opt = NPUDistributedOptimizer(opt)
    if loss_scale:
      opt = NPULossScaleOptimizer(opt, FixedLossScaleManager(128))
    step = tf.train.get_or_create_global_step()
    return emb_table, ids, scale, WRAPPED[way](opt, loss, step), step, weight

  batches = [[1, 2, 2], [1, 2, 3], [3, 4, 1]]
  emb_table, ids, _, train, _, weight = build(loss_scale=False) if distributed else build(loss_scale=True)
  with tf.Session() as session:
    session.run(tf.global_variables_initializer())
    for batch in batches:
      session.run(train, {ids: batch})
    expected, expected_weight = state(emb_table, session), session.run(weight)

  emb_table, ids, scale, train, step, weight = build(loss_scale=True)
  saver = mxrec.EmbeddingTableSaver([emb_table])
  with tf.Session() as session:
    session.run(tf.global_variables_initializer())
    for place, batch in enumerate(batches):
      saver.save(session, tmp_path, 2 * place)
      before = state(emb_table, session)
      for bad in (np.nan, np.inf):
        session.run(train, {ids: [batch[0], 9, 9], scale: bad})
      assert state(emb_table, session) == before and session.run(step) == place
      saver.save(session, tmp_path, 2 * place + 1)  # counts, candidates and slots too: equal contents, equal bytes
      files = [next((tmp_path / f"mxrec-{2 * place + i}").glob("*.mxt")).name for i in (0, 1)]
      assert files[0] == files[1]
      session.run(train, {ids: batch})
    found = state(emb_table, session)
    assert found[0] == expected[0]
    for key, row in expected[1].items():
      np.testing.assert_allclose(found[1][key], row, rtol=0, atol=1e-6)
    np.testing.assert_allclose(session.run(weight), expected_weight, rtol=0, atol=1e-6)


@pytest.mark.parametrize("opt", [mxrec.AdamWOptimizer, lambda **_: mxrec.sparse_optimizer(SGD(0.5)), mxrec.RowWiseAdagradOptimizer])
def test_mxrecs_own_optimizers_can_be_wrapped(opt, sess):
  emb_table = helpers.table(dimension=1)
  ids, scale = tf.placeholder(tf.int64, [None]), tf.placeholder_with_default(1.0, [])
  loss = tf.reduce_sum(mxrec.embedding_lookup(emb_table, ids)) * scale
  wrapped = NPULossScaleOptimizer(NPUDistributedOptimizer(opt(learning_rate=0.5)), FixedLossScaleManager(4))
  step = tf.train.get_or_create_global_step()
  train = wrapped.minimize(loss, global_step=step)
  sess.run(tf.global_variables_initializer())
  sess.run(train, {ids: [5], scale: np.inf})
  assert emb_table.size(sess) == 0 and sess.run(step) == 0
  before = emb_table.lookup_numpy([5], sess)
  sess.run(train, {ids: [5]})
  assert emb_table.size(sess) == 1 and sess.run(step) == 1 and (emb_table.lookup_numpy([5], sess) < before).all()


@pytest.mark.parametrize("pooled", [False, True])
def test_a_lookup_in_a_branch_that_is_not_taken_does_not_stop_the_training(pooled, sess):
  emb_table = helpers.table(dimension=1)
  which, ids = tf.placeholder(tf.bool, []), tf.placeholder(tf.int64, [None])
  dense = tf.get_variable("dense", initializer=1.0)
  bags = tf.SparseTensor(tf.constant([[0, 0]], tf.int64), ids, [1, 1]) if pooled else ids
  loss = dense + tf.cond(which, lambda: tf.reduce_sum(mxrec.embedding_lookup(emb_table, bags)), lambda: dense * 3.0)
  step = tf.train.get_or_create_global_step()
  train = mxrec.minimize(loss, NPULossScaleOptimizer(SGD(0.5), FixedLossScaleManager(4)), step)
  sess.run(tf.global_variables_initializer())
  sess.run(train, {which: False, ids: [7]})
  assert emb_table.size(sess) == 0 and sess.run([step, dense]) == [1, -1]
  sess.run(train, {which: True, ids: [7]})
  assert emb_table.size(sess) == 1 and sess.run([step, dense]) == [2, -1.5]


def test_an_infinite_weight_of_a_pooled_lookup_skips_the_step(sess):
  emb_table = helpers.table(dimension=2)
  weights = tf.placeholder(tf.float32, [2])
  ids = tf.SparseTensor([[0, 0], [0, 1]], tf.constant([1, 2], tf.int64), [1, 2])
  loss = tf.reduce_sum(mxrec.embedding_lookup(emb_table, ids, weights=weights, combiner="sum"))
  train = mxrec.minimize(loss, NPULossScaleOptimizer(SGD(0.5), FixedLossScaleManager(4)))
  (apply,) = [op for op in tf.get_default_graph().get_operations() if op.type == "MxrecApply"]
  assert apply.get_attr("shared") == [True], "no row for each id is written out"
  sess.run(train, {weights: [1, np.inf]})
  assert emb_table.size(sess) == 0
  sess.run(train, {weights: [1, 2]})
  assert emb_table.size(sess) == 2
