"""tensorflow-estimator 2.15 on this TensorFlow, and tables inside of its Estimators."""

import importlib.metadata
import pathlib
import shutil
import subprocess
import sys

import helpers
import numpy as np
import pytest
import tensorflow.compat.v1 as tf

import mxrec
from mxrec import _estimator

estimator = _estimator.load()
MODES = estimator.ModeKeys
IDS = np.arange(40)


def dense_model(features, labels, mode, params):
  weight = tf.get_variable(params.get("weight", "weight"), [2, 1], initializer=tf.zeros_initializer())
  predicted = tf.matmul(features["x"], weight)[:, 0]
  if mode == MODES.PREDICT:
    outputs = {"serving_default": estimator.export.PredictOutput({"y": predicted})}
    return estimator.EstimatorSpec(mode, predictions={"y": predicted}, export_outputs=outputs)
  loss = tf.losses.mean_squared_error(labels, predicted)
  train = tf.train.AdamOptimizer(0.1).minimize(loss, tf.train.get_global_step())
  return estimator.EstimatorSpec(mode, loss=loss, train_op=train, eval_metric_ops={"mean": tf.metrics.mean(predicted)})


def dense_input():
  data = ({"x": np.array([[1, 0], [0, 1]], np.float32)}, np.array([1, -1], np.float32))
  return tf.data.Dataset.from_tensor_slices(data).repeat(10).batch(2)


def table_model(features, labels, mode, params):
  table = mxrec.get_embedding_table(params.get("table", "users"), 2, 100, tf.random_normal_initializer(stddev=0.01))
  rows = mxrec.embedding_lookup(table, features["id"], training=mode == MODES.TRAIN)
  weight = tf.get_variable("weight", [2, 1], initializer=tf.ones_initializer())
  predicted = tf.matmul(rows, weight)[:, 0]
  if mode == MODES.PREDICT:
    outputs = {"serving_default": estimator.export.PredictOutput({"y": predicted})}
    return estimator.EstimatorSpec(mode, predictions={"y": predicted, "rows": rows}, export_outputs=outputs)
  loss = tf.losses.mean_squared_error(labels, predicted)
  metrics = {"size": tf.metrics.mean(tf.cast(table._ops.size, tf.float32))}
  train = None
  if mode == MODES.TRAIN:
    train = mxrec.minimize(loss, params.get("optimizer", tf.train.AdamOptimizer)(0.1), tf.train.get_global_step())
  return estimator.EstimatorSpec(
    mode, loss=loss, train_op=train, eval_metric_ops=metrics, scaffold=params.get("scaffold", tf.train.Scaffold)()
  )


def table_input(ids=IDS):
  return tf.data.Dataset.from_tensor_slices(({"id": ids}, np.ones(len(ids), np.float32))).repeat(5).batch(20)


def make(model_fn, folder, warm_start_from=None, **params):
  config = estimator.RunConfig(tf_random_seed=1, save_summary_steps=None, log_step_count_steps=None)
  return estimator.Estimator(model_fn, str(folder), config, params, warm_start_from)


def saved_table(folder):
  return next(iter(pathlib.Path(folder).glob(pathlib.Path(tf.train.latest_checkpoint(str(folder))).name + ".data-*-of-mxrec")))


# --- the package ---


def test_load_returns_the_same_module_each_time_with_the_names_of_tf_estimator():
  assert _estimator.load() is estimator
  for name in (
    "Estimator",
    "EstimatorSpec",
    "EvalSpec",
    "ModeKeys",
    "RunConfig",
    "TrainSpec",
    "WarmStartSettings",
    "train_and_evaluate",
  ):
    assert hasattr(estimator, name)
  assert callable(estimator.inputs.numpy_input_fn) and callable(estimator.export.ServingInputReceiver)


def test_nothing_is_put_in_place_before_load():
  code = """
import sys, mxrec, mxrec._estimator
from tensorflow.python.util import tf_export
assert "tensorflow_estimator" not in sys.modules and "estimator" not in tf_export.API_ATTRS
assert "tensorflow.python.tpu.tpu_embedding" not in sys.modules
mxrec._estimator.load()
assert "tensorflow_estimator" in sys.modules
from tensorflow.python.tpu import tpu_embedding
try:
  tpu_embedding.AdamParameters()
except NotImplementedError as error:
  assert "TPU" in str(error)
else:
  raise AssertionError
"""
  done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
  assert done.returncode == 0, done.stderr[-2000:]


def test_no_class_is_wrapped_in_advice_to_use_keras_not_even_tensorflows_own_hooks():
  from tensorflow.python.training import basic_session_run_hooks as hooks

  for kind in (estimator.Estimator, estimator.RunConfig, hooks.StepCounterHook, hooks.NanTensorHook):
    assert "Use tf.keras" not in (kind.__doc__ or "") + (kind.__init__.__doc__ or "")
    assert not hasattr(kind.__init__, "__wrapped__")


@pytest.mark.parametrize("found", [None, "2.10.0"])
def test_a_missing_or_other_package_gives_the_pip_line(found, monkeypatch):
  def version(package):
    if found is None:
      raise importlib.metadata.PackageNotFoundError(package)
    return found

  monkeypatch.setattr(importlib.metadata, "version", version)
  monkeypatch.setattr(_estimator, "_loaded", None)
  with pytest.raises(ImportError, match=r"pip install --no-deps tensorflow-estimator==2\.15\.0") as caught:
    _estimator.load()
  assert (found or "not installed") in str(caught.value)


def test_the_pinned_version_is_the_one_that_load_asks_for():
  requirements = pathlib.Path(__file__).resolve().parents[2] / "requirements" / "python.txt"
  assert f"{_estimator.PACKAGE}=={_estimator.VERSION}" in requirements.read_text(encoding="utf-8").splitlines()


# --- dense models ---


def test_train_evaluate_and_predict(tmp_path):
  found = make(dense_model, tmp_path)
  before = found.evaluate(dense_input)
  found.train(dense_input, steps=8)
  found.train(dense_input, max_steps=10)
  after = found.evaluate(dense_input, steps=2)
  assert after["global_step"] == 10 and after["loss"] < before["loss"]
  predicted = [item["y"] for item in found.predict(dense_input)]
  assert len(predicted) == 20 and predicted[0] > 0 > predicted[1]
  assert found.get_variable_value("weight").shape == (2, 1)


def test_train_and_evaluate_and_hooks(tmp_path):
  found = make(dense_model, tmp_path)
  seen = []

  class Hook(tf.train.SessionRunHook):
    def after_run(self, run_context, run_values):
      seen.append(run_context.session is not None)

  result, _ = estimator.train_and_evaluate(
    found,
    estimator.TrainSpec(lambda: dense_input().repeat(), max_steps=12, hooks=[Hook()]),
    estimator.EvalSpec(dense_input, steps=1, throttle_secs=0),
  )
  assert result["global_step"] == 12 and len(seen) == 12


def test_export_saved_model(tmp_path):
  found = make(dense_model, tmp_path / "model")
  found.train(dense_input)

  def receiver():
    x = tf.placeholder(tf.float32, [None, 2])
    return estimator.export.ServingInputReceiver({"x": x}, {"x": x})

  path = found.export_saved_model(str(tmp_path / "export"), receiver).decode()
  with tf.Session(graph=tf.Graph()) as session:
    signature = tf.saved_model.load(session, ["serve"], path).signature_def["serving_default"]
    y = session.run(signature.outputs["y"].name, {signature.inputs["x"].name: [[1, 0]]})
  np.testing.assert_allclose(y, found.get_variable_value("weight")[:1, 0])


def test_run_config_replace(tmp_path):
  config = estimator.RunConfig(save_checkpoints_steps=7)
  other = config.replace(model_dir=str(tmp_path), tf_random_seed=3)
  assert (other.model_dir, other.tf_random_seed, other.save_checkpoints_steps) == (str(tmp_path), 3, 7)
  assert config.model_dir is None
  with pytest.raises(ValueError, match="master"):
    config.replace(master="x")


def test_warm_start_of_variables_with_renaming(tmp_path):
  first = make(dense_model, tmp_path / "a")
  first.train(dense_input)
  settings = estimator.WarmStartSettings(str(tmp_path / "a"), var_name_to_prev_var_name={"other": "weight"})
  second = make(dense_model, tmp_path / "b", settings, weight="other")
  assert second.evaluate(dense_input)["loss"] == first.evaluate(dense_input)["loss"]
  second.train(dense_input, steps=1)
  assert second.evaluate(dense_input)["loss"] < first.evaluate(dense_input)["loss"]


def test_a_distribution_strategy_of_one_device_trains(tmp_path):
  strategy = tf.distribute.OneDeviceStrategy("/cpu:0")
  config = estimator.RunConfig(train_distribute=strategy)
  with pytest.raises(ValueError, match="train_distribute"):
    estimator.RunConfig(
      train_distribute=strategy,
      experimental_distribute=type("D", (), {"train_distribute": strategy, "eval_distribute": None, "remote_cluster": None})(),
    )
  found = estimator.Estimator(dense_model, str(tmp_path), config, {})
  found.train(dense_input, steps=3)
  assert found.evaluate(dense_input)["global_step"] == 3


# --- tables ---


def test_tables_train_are_evaluated_without_inserting_and_are_saved_by_the_estimators_saver(tmp_path):
  found = make(table_model, tmp_path)
  before = found.evaluate(table_input)
  assert before["size"] == 0
  found.train(table_input)
  after = found.evaluate(lambda: table_input(np.arange(100)))
  assert after["size"] == len(IDS)
  assert found.evaluate(table_input)["loss"] < 0.2 * before["loss"]
  rows = np.array([item["rows"] for item in found.predict(lambda: table_input(np.arange(60)))])[:60]
  assert (rows[40:] == 0).all() and (rows[:40] != 0).any(axis=1).all()
  assert saved_table(tmp_path).is_file()


def test_training_goes_on_where_it_was_with_the_same_bits(tmp_path):
  """4 and 6 steps, the second part in a new Estimator, against 10; the data begins anew after an even number of steps."""

  def run(folder, parts):
    for steps in parts:
      make(table_model, folder).train(table_input, steps=steps)
    return saved_table(folder).read_bytes()

  assert run(tmp_path / "a", [4, 6]) == run(tmp_path / "b", [10]) != run(tmp_path / "c", [4])


def test_train_and_evaluate_with_tables(tmp_path):
  found = make(table_model, tmp_path)
  result, _ = estimator.train_and_evaluate(
    found, estimator.TrainSpec(lambda: table_input().repeat(), max_steps=30), estimator.EvalSpec(table_input, throttle_secs=0)
  )
  assert result["global_step"] == 30 and result["size"] == len(IDS)


@pytest.mark.parametrize("way", ["folder", "prefix", "renamed", "SavedModel"])
def test_warm_start_fills_tables_and_the_optimizer_starts_anew(way, tmp_path):
  first = make(table_model, tmp_path / "a")
  first.train(table_input)
  source, table = str(tmp_path / "a"), "users"
  if way == "prefix":
    source = tf.train.latest_checkpoint(source)
  elif way == "renamed":
    table = "people"
    source = estimator.WarmStartSettings(source, var_name_to_prev_var_name={"mxrec/people": "mxrec/users"})
  elif way == "SavedModel":
    source = export(first, tmp_path / "export")
  params = {"table": table, "optimizer": tf.train.GradientDescentOptimizer}  # another kind than the one that wrote it
  second = make(table_model, tmp_path / "b", source, **params)
  expected = first.evaluate(table_input)
  assert second.evaluate(table_input) == {**expected, "global_step": 0}
  predicted = next(iter(second.predict(table_input)))["y"]
  assert predicted == next(iter(first.predict(table_input)))["y"]
  second.train(table_input, steps=2)
  again = make(table_model, tmp_path / "b", source, **params)  # has a checkpoint of its own now: it is restored
  loss = again.evaluate(table_input)["loss"]
  assert 0 < loss < expected["loss"]
  again.train(table_input, steps=2)
  assert again.evaluate(table_input)["loss"] < loss and again.evaluate(table_input)["global_step"] == 4


def test_warm_start_runs_before_the_scaffolds_own_init_fn_and_leaves_out_what_is_not_selected(tmp_path):
  make(table_model, tmp_path / "a").train(table_input)
  sizes = []

  def scaffold():
    return tf.train.Scaffold(init_fn=lambda _, session: sizes.append(mxrec.get_existing_tables()[0].size(session)))

  for settings, size in (
    (str(tmp_path / "a"), len(IDS)),
    (estimator.WarmStartSettings(str(tmp_path / "a"), vars_to_warm_start="(?!mxrec/)"), 0),
    (estimator.WarmStartSettings(str(tmp_path / "a"), vars_to_warm_start="weight"), 0),
    (estimator.WarmStartSettings(str(tmp_path / "a"), vars_to_warm_start=["weight", "mxrec/users"]), len(IDS)),
  ):
    folder = tmp_path / "b"
    make(table_model, folder, settings, scaffold=scaffold).train(table_input, steps=1)
    assert sizes.pop() == size and not sizes
    shutil.rmtree(folder)


def test_warm_start_from_a_checkpoint_without_the_table_names_it(tmp_path):
  make(dense_model, tmp_path / "a").train(dense_input)
  second = make(table_model, tmp_path / "b", str(tmp_path / "a"))
  with pytest.raises(ValueError, match=r"no table \['users'\].*vars_to_warm_start='\(\?!mxrec/\)'"):
    second.train(table_input, steps=1)


def export(trained, folder):
  def receiver():
    ids = tf.placeholder(tf.int64, [None])
    return estimator.export.ServingInputReceiver({"id": ids}, {"id": ids})

  return trained.export_saved_model(str(folder), receiver).decode()


def test_an_exported_model_carries_its_tables_and_can_be_moved(tmp_path):
  trained = make(table_model, tmp_path / "model")
  trained.train(table_input)
  path = shutil.move(export(trained, tmp_path / "export"), tmp_path / "moved")
  shutil.rmtree(tmp_path / "model")
  assert len(list((pathlib.Path(path) / "variables").glob("variables.data-*-of-mxrec"))) == 1
  code = f"""
import numpy as np, tensorflow.compat.v1 as tf, mxrec
with tf.Session(graph=tf.Graph()) as session:
  signature = tf.saved_model.load(session, ["serve"], {str(path)!r}).signature_def["serving_default"]
  y = session.run(signature.outputs["y"].name, {{signature.inputs["id"].name: [0, 1, 10**12]}})
  assert (abs(y[:2] - 1) < 0.5).all() and y[2] == 0, y
  assert mxrec.get_existing_tables()[0].size(session) == 40
"""
  done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
  assert done.returncode == 0, done.stderr[-2000:]


# --- mxrec.warm_start without an Estimator ---


def trained_checkpoint(folder):
  with tf.Graph().as_default(), tf.Session() as session:
    model = helpers.SumModel(helpers.table("old", dimension=2), tf.train.AdamOptimizer(0.1))
    helpers.table("older", dimension=2).insert([7], [[1, 2]], session=session)
    session.run(tf.global_variables_initializer())
    model.step(session, [1, 2, 3])
    return tf.train.Saver().save(session, str(folder / "model")), helpers.contents(model.table, session)


@pytest.mark.parametrize("with_optimizer", [False, True])
def test_warm_start_in_a_session(with_optimizer, sess, tmp_path):
  prefix, expected = trained_checkpoint(tmp_path)
  model = helpers.SumModel(helpers.table("new", dimension=2), tf.train.AdamOptimizer(0.1))
  other = helpers.table("older", dimension=2)
  load = mxrec.warm_start(tmp_path, {"old": model.table, "mxrec/older": "older"}, with_optimizer=with_optimizer)
  sess.run(tf.global_variables_initializer())
  model.step(sess, [100])
  sess.run(load)
  found = helpers.contents(model.table, sess)
  assert found.keys() == expected.keys() and all((found[key] == expected[key]).all() for key in found)
  assert other.size(sess) == 1
  stats = model.table.stats(sess)
  assert (stats["optimizer"], stats["optimizer_step"]) == (("adam", 1) if with_optimizer else ("", 0))
  model.step(sess, [1])
  assert model.table.stats(sess)["optimizer_step"] == (2 if with_optimizer else 1)
  assert prefix == tf.train.latest_checkpoint(str(tmp_path))


def test_warm_start_without_names_takes_the_tables_that_savers_cover(sess, tmp_path):
  prefix, _ = trained_checkpoint(tmp_path)
  table = helpers.table("old", dimension=2)
  helpers.table("fresh", dimension=2, save_with_tf_saver=False)
  sess.run(mxrec.warm_start(prefix))
  assert table.size(sess) == 3


def test_wrong_arguments_of_warm_start_are_named(sess, tmp_path):
  prefix, _ = trained_checkpoint(tmp_path)
  table = helpers.table("mine", dimension=3)
  with pytest.raises(ValueError, match=r"no table \['mine'\]; tables there: \['old', 'older'\]"):
    mxrec.warm_start(prefix)
  for names, words in (
    ({"old": "nobody"}, "nobody"),
    ({1: table}, "keyed by names"),
    (["old"], "dict"),
    ({"old": table, "older": "mine"}, "twice"),
    ({}, "no table"),
  ):
    with pytest.raises(ValueError, match=words):
      mxrec.warm_start(prefix, names)
  with pytest.raises(ValueError, match="holds no checkpoint"):
    (tmp_path / "empty").mkdir()
    mxrec.warm_start(tmp_path / "empty", {"old": table})
  with pytest.raises(tf.errors.NotFoundError):
    mxrec.warm_start(str(tmp_path / "nothing"), {"old": table})
  with pytest.raises(tf.errors.FailedPreconditionError, match=r"dim 3.*dim 2"):
    sess.run(mxrec.warm_start(prefix, {"old": table}))
