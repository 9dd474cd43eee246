"""The distributed optimizers and reductions with one rank, and how they refuse what they cannot do."""

import subprocess
import sys
import textwrap

import helpers
import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from npu_bridge.estimator.npu import npu_optimizer

import mxrec

SGD = tf.train.GradientDescentOptimizer


@pytest.fixture(autouse=True)
def one_rank(monkeypatch):
  for name in ("RANK_SIZE", "CM_WORKER_SIZE", "DEVICE_ID"):
    monkeypatch.delenv(name, raising=False)


def test_fact_8_the_wrapper_returns_the_object_and_its_gradients_are_the_very_same(monkeypatch):
  variable = tf.get_variable("v", initializer=[1.0, 2.0])
  unused = tf.get_variable("unused", [2])
  loss = tf.reduce_sum(variable)
  for size in (None, "1"):
    if size:
      monkeypatch.setenv("RANK_SIZE", size)
    opt = SGD(1.0)
    computed = opt.compute_gradients(loss, [variable, unused])
    opt.compute_gradients = lambda *args, computed=computed, **kwargs: computed
    assert npu_optimizer.npu_distributed_optimizer_wrapper(opt) is opt
    pairs = opt.compute_gradients(loss, [variable, unused])
    assert pairs is computed and pairs[1] == (None, unused)


def test_the_wrapped_optimizer_trains(sess):
  variable = tf.get_variable("v", initializer=0.0)
  opt = npu_optimizer.npu_distributed_optimizer_wrapper(SGD(1.0))
  train = opt.minimize(variable * 2.0)
  sess.run(tf.global_variables_initializer())
  sess.run(train)
  assert sess.run(variable) == -2


@pytest.mark.parametrize("way", ["minimize", "mxrec.minimize", "rows"])
def test_looked_up_rows_pass_through_the_distributed_optimizers(way, sess):
  emb_table = helpers.table(dimension=2)
  weight = tf.get_variable("w", initializer=[1.0, 1.0])
  loss = tf.reduce_sum(mxrec.embedding_lookup(emb_table, tf.constant([1, 2], tf.int64)) * weight)
  rows = mxrec.get_sparse_embedding()
  step = tf.train.get_or_create_global_step()
  opt = npu_optimizer.NPUDistributedOptimizer(SGD(0.5))
  if way == "minimize":
    train = opt.minimize(loss, global_step=step, var_list=[weight, *rows])
  elif way == "mxrec.minimize":
    train = mxrec.minimize(loss, npu_optimizer.npu_distributed_optimizer_wrapper(SGD(0.5)), step)
  else:
    pairs = opt.compute_gradients(loss, rows)
    train = opt.apply_gradients(pairs, global_step=step)
  sess.run(tf.global_variables_initializer())
  first = emb_table.lookup_numpy([1, 2], sess)
  sess.run(train)
  np.testing.assert_allclose(emb_table.lookup_numpy([1, 2], sess), first - 0.5, atol=1e-6)
  assert sess.run(step) == 1
  assert (sess.run(weight) != 1).all() == (way != "rows")


def test_variables_given_to_an_optimizer_of_tables_are_refused_by_name(sess):
  emb_table = helpers.table(dimension=2)
  weight = tf.get_variable("w", initializer=[1.0, 1.0])
  loss = tf.reduce_sum(mxrec.embedding_lookup(emb_table, tf.constant([1], tf.int64)) * weight)
  opt = npu_optimizer.NPUDistributedOptimizer(mxrec.sparse_optimizer(SGD(0.5)))
  opt.apply_gradients(opt.compute_gradients(loss, [*mxrec.get_sparse_embedding()]))
  opt = npu_optimizer.NPUDistributedOptimizer(mxrec.AdamWOptimizer())
  rows = mxrec.get_sparse_embedding()
  with pytest.raises(NotImplementedError, match=r"AdamWOptimizer updates tables only.*w:0"):
    opt.apply_gradients(zip(tf.gradients(loss, [weight, *rows]), [weight, *rows]))


def test_names_slots_and_attributes_of_the_distributed_optimizer(sess):
  adam = tf.train.AdamOptimizer(0.25)
  opt = npu_optimizer.NPUDistributedOptimizer(adam)
  assert opt.get_name() == "DistributedAdamOptimizer"
  assert npu_optimizer.NPUDistributedOptimizer(adam, True, "mine").get_name() == "mine"
  variable = tf.get_variable("v", [2])
  opt.minimize(tf.reduce_sum(variable))
  assert opt.get_slot_names() == ["m", "v"] and opt.get_slot(variable, "m") is adam.get_slot(variable, "m")
  assert opt.variables() == adam.variables() and opt._lr == 0.25


def test_fact_10_reductions_with_one_rank_are_identities(monkeypatch):
  tensor, slices = tf.constant([1.0]), tf.IndexedSlices(tf.ones([1, 2]), tf.constant([0]))
  for reduction in ("mean", "max", "min", "prod", "sum"):
    assert npu_optimizer.npu_allreduce(tensor, reduction) is tensor
    found = npu_optimizer.npu_allreduce([tensor, None, slices], reduction)
    assert isinstance(found, list) and found[0] is tensor and found[1] is None and found[2] is slices
  assert isinstance(npu_optimizer.npu_allreduce((tensor,)), list) and npu_optimizer.npu_allreduce(slices) is slices
  with pytest.raises(ValueError, match="avg"):
    npu_optimizer.npu_allreduce(tensor, "avg")
  with pytest.raises(ValueError, match="fusion of npu_allreduce must be 0, 1 or 2: got 5"):
    npu_optimizer.npu_allreduce(tensor, fusion=5)
  for group in ("nope", None):
    with pytest.raises(ValueError, match="group"):
      npu_optimizer.npu_allreduce(tensor, group=group)
  assert npu_optimizer.allreduce(tensor) is tensor and npu_optimizer.allreduce(slices, average=False) is slices
  with pytest.raises(ValueError, match="DEVICE_ID"):
    npu_optimizer.reduce(tensor, 0)
  monkeypatch.setenv("DEVICE_ID", "0")
  assert npu_optimizer.reduce(tensor, 0) is tensor


def test_the_wrapper_refuses_what_is_no_optimizer():
  with pytest.raises(ValueError, match=r"needs an optimizer .*: got None"):
    npu_optimizer.npu_distributed_optimizer_wrapper(None)
  for wrong, name in ((3, "int 3"), ([], "list"), (SGD, "the class GradientDescentOptimizer")):
    with pytest.raises(TypeError, match=f"needs an optimizer .*: got {name}"):
      npu_optimizer.npu_distributed_optimizer_wrapper(wrong)


def test_weight_update_sharding_needs_device_id_with_one_rank_too(monkeypatch, sess):
  variable = tf.get_variable("v", initializer=0.0)
  opt = npu_optimizer.NPUDistributedOptimizer(SGD(1.0), is_weight_update_sharding=True)
  with pytest.raises(ValueError, match="is_weight_update_sharding=True needs the environment variable DEVICE_ID"):
    opt.minimize(variable * 2.0)
  monkeypatch.setenv("DEVICE_ID", "0")
  train = opt.minimize(variable * 2.0)
  sess.run(tf.global_variables_initializer())
  sess.run(train)
  assert sess.run(variable) == -2


def test_a_rank_size_that_is_no_number_is_named(monkeypatch):
  for variable in ("RANK_SIZE", "CM_WORKER_SIZE"):
    monkeypatch.setenv(variable, "two")
    with pytest.raises(ValueError, match=f"environment variable {variable} must be .* got 'two'"):
      npu_optimizer.npu_allreduce(tf.constant([1.0]))
    monkeypatch.delenv(variable)


def test_two_sources_of_the_rank_size_are_refused(monkeypatch):
  monkeypatch.setenv("RANK_SIZE", "1")
  monkeypatch.setenv("CM_WORKER_SIZE", "1")
  with pytest.raises(ValueError, match="CM_WORKER_SIZE"):
    npu_optimizer.npu_distributed_optimizer_wrapper(SGD(1.0))


def test_npu_optimizer_without_loss_scale_is_the_optimizer(sess):
  variable = tf.get_variable("v", initializer=0.0)
  train = npu_optimizer.NPUOptimizer(SGD(1.0), is_distributed=True, is_tailing_optimization=True).minimize(variable * 2.0)
  sess.run(tf.global_variables_initializer())
  sess.run(train)
  assert sess.run(variable) == -2


class TestKeras:
  """With the optimizers that TensorFlow itself ships, in tensorflow.python.keras; tf_keras' legacy ones are built alike."""

  def test_a_keras_model_trains_with_the_distributed_optimizer(self):
    from tensorflow.python.keras.engine import sequential
    from tensorflow.python.keras.layers import core
    from tensorflow.python.keras.optimizer_v2 import gradient_descent, optimizer_v2

    losses = {}
    for wrap in (False, True):
      tf.reset_default_graph()
      model = sequential.Sequential([core.Dense(1, kernel_initializer="ones", input_shape=(3,))])
      opt = gradient_descent.SGD(0.1)
      if wrap:
        wrapped = npu_optimizer.KerasDistributeOptimizer(opt)
        assert isinstance(wrapped, optimizer_v2.OptimizerV2) and isinstance(wrapped, npu_optimizer.KerasDistributeOptimizer)
        assert isinstance(wrapped, gradient_descent.SGD) and wrapped.iterations is opt.iterations
        opt = wrapped
      model.compile(opt, "mse")
      history = model.fit(np.eye(3, dtype=np.float32), np.zeros([3, 1], np.float32), epochs=5, verbose=0, shuffle=False)
      losses[wrap] = history.history["loss"]
    assert losses[True] == losses[False] and losses[True][-1] < losses[True][0]

  def test_what_is_no_keras_optimizer_is_refused(self):
    with pytest.raises(TypeError, match="GradientDescentOptimizer"):
      npu_optimizer.KerasDistributeOptimizer(SGD(1.0))

  @pytest.fixture(params=["tf_keras", "tensorflow.python.keras"])
  def keras(self, request):
    """tf.keras as tf_keras, and the one that TensorFlow carries."""
    if request.param == "tf_keras":
      return tf.keras
    from tensorflow.python.keras import backend, callbacks, layers, models
    from tensorflow.python.keras.optimizer_v2 import adam, gradient_descent

    class Keras:
      optimizers = type("optimizers", (), {"Adam": adam.Adam, "SGD": gradient_descent.SGD})

    Keras.models, Keras.layers, Keras.callbacks, Keras.backend = models, layers, callbacks, backend
    return Keras

  @staticmethod
  def model(keras, optimizer):
    model = keras.models.Sequential([keras.layers.Dense(1, kernel_initializer="ones", input_shape=(3,))])
    model.compile(optimizer, "mse")
    return model

  @staticmethod
  def fit(model, **arguments):
    return model.fit(np.eye(3, dtype=np.float32), np.zeros([3, 1], np.float32), verbose=0, shuffle=False, **arguments).history

  def test_hyperparameters_that_are_set_count_for_both(self, keras):
    inner = keras.optimizers.SGD(0.1)
    opt = npu_optimizer.KerasDistributeOptimizer(inner)
    opt.lr = 0.5
    value = lambda variable: float(keras.backend.get_value(variable) if hasattr(variable, "assign") else variable)
    assert value(opt.lr) == value(inner.lr) == value(inner.learning_rate) == 0.5
    inner.momentum = 0.25
    assert value(opt.momentum) == 0.25
    model = self.model(keras, opt)
    schedule = keras.callbacks.LearningRateScheduler(lambda epoch: 0.0)
    assert len(set(self.fit(model, epochs=3, callbacks=[schedule])["loss"])) == 1, "nothing moves at rate 0"
    assert value(model.optimizer.lr) == 0.0

  def test_configurations_make_equal_optimizers(self, keras):
    opt = npu_optimizer.KerasDistributeOptimizer(keras.optimizers.Adam(0.125, beta_1=0.5), name="mine", clipnorm=2.0)
    again = type(opt).from_config(opt.get_config())
    assert isinstance(again, npu_optimizer.KerasDistributeOptimizer) and isinstance(again, keras.optimizers.Adam)
    assert again is not opt and again.get_config() == opt.get_config() and again.clipnorm == 2.0
    assert opt.get_config()["name"] == "mine" and opt.get_config()["optimizer"]["config"]["beta_1"] == 0.5
    assert npu_optimizer.KerasDistributeOptimizer(opt) is opt
    with pytest.raises(TypeError, match="'speed'"):
      npu_optimizer.KerasDistributeOptimizer(keras.optimizers.Adam(), speed=1)
    with pytest.raises(ValueError, match="must hold 'optimizer'"):
      npu_optimizer.KerasDistributeOptimizer.from_config({"name": "x"})

  @pytest.mark.parametrize("name", ["model.h5", "saved_model"])
  def test_a_model_is_saved_and_loaded_with_its_optimizer(self, name, tmp_path):
    keras = tf.keras  # the one that TensorFlow carries cannot save any more
    path = str(tmp_path / name)
    model = self.model(keras, npu_optimizer.KerasDistributeOptimizer(keras.optimizers.Adam(0.125)))
    self.fit(model, epochs=3)
    model.save(path)
    expected = self.fit(model, epochs=2)["loss"]
    tf.reset_default_graph()
    keras.backend.clear_session()
    loaded = keras.models.load_model(path)
    assert isinstance(loaded.optimizer, npu_optimizer.KerasDistributeOptimizer)
    assert isinstance(loaded.optimizer, keras.optimizers.Adam)
    np.testing.assert_allclose(self.fit(loaded, epochs=2)["loss"], expected, rtol=1e-5)

  def test_another_process_loads_the_model_by_custom_objects(self, tmp_path):
    path = str(tmp_path / "model.h5")
    self.model(tf.keras, npu_optimizer.KerasDistributeOptimizer(tf.keras.optimizers.Adam(0.125))).save(path)
    code = """
      import sys
      import tensorflow.compat.v1 as tf
      tf.disable_v2_behavior()
      from npu_bridge.npu_init import *
      model = tf.keras.models.load_model(sys.argv[1], custom_objects={"KerasDistributeOptimizer": KerasDistributeOptimizer})
      print(isinstance(model.optimizer, KerasDistributeOptimizer), isinstance(model.optimizer, tf.keras.optimizers.Adam))
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code), path], capture_output=True, text=True, timeout=300)
    assert done.stdout.split() == ["True", "True"], done.stderr[-3000:]

  def test_an_estimator_is_made_of_a_compiled_model(self, tmp_path):
    from npu_bridge.estimator.npu import keras_to_npu, npu_config

    model = self.model(tf.keras, npu_optimizer.KerasDistributeOptimizer(tf.keras.optimizers.SGD(0.1)))
    config = npu_config.NPURunConfig(model_dir=str(tmp_path), save_checkpoints_steps=10)
    estimator = keras_to_npu.model_to_npu_estimator(model, config=config)

    def input_fn():
      rows = np.eye(3, dtype=np.float32)
      return tf.data.Dataset.from_tensor_slices(({model.input_names[0]: rows}, np.zeros([3, 1], np.float32))).batch(3).repeat()

    estimator.train(input_fn, steps=5)
    assert estimator.get_variable_value("global_step") == 5
    (kernel,) = [estimator.get_variable_value(name) for name in estimator.get_variable_names() if name.endswith("kernel")]
    assert (kernel < 1).all(), "trained"
