"""NPURunConfig, NPUEstimator and what goes with them, on one process."""

import inspect
import json
import os
import pathlib
import re
import subprocess
import sys

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from npu_bridge import _session
from npu_bridge.estimator.npu import npu_config, npu_estimator, npu_saver
from npu_bridge.estimator.npu.npu_config import (
  DumpConfig,
  DynamicInputConfig,
  ExperimentalConfig,
  GraphMemoryOptimizeConfig,
  MemoryConfig,
  NPURunConfig,
  ProfilingConfig,
)
from npu_bridge.estimator.npu.npu_estimator import NPUEstimator, NPUEstimatorSpec
from tensorflow.core.protobuf.rewriter_config_pb2 import RewriterConfig

import mxrec
from mxrec import _estimator

estimator = _estimator.load()
SPEC = pathlib.Path(__file__).resolve().parents[2].parent / "shared" / "spec" / "npu_bridge.md"
STRATEGY = tf.distribute.experimental.ParameterServerStrategy
CLUSTER = {"cluster": {"chief": ["h:1"], "ps": ["h:2"], "worker": ["h:3"]}, "task": {"type": "worker", "index": 0}}


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch, tmp_path):
  for name in ("JOB_ID", "RANK_SIZE", "RANK_ID", "CM_WORKER_SIZE", "TF_CONFIG", "LOCAL_CHECKPOINT_DIR", "RESTORE_FROM"):
    monkeypatch.delenv(name, raising=False)
  monkeypatch.chdir(tmp_path)


def model_fn(features, labels, mode, params):
  """A weight that learns to answer 1; params may bring a host_call and hooks."""
  weight = tf.get_variable("weight", [2, 1], initializer=tf.zeros_initializer())
  predicted = tf.matmul(features["x"], weight)[:, 0]
  loss = tf.reduce_mean(tf.square(predicted - 1.0))
  if mode == "infer":
    return NPUEstimatorSpec(mode, predictions={"y": predicted})
  step = tf.train.get_global_step()
  train = tf.train.GradientDescentOptimizer(0.1).minimize(loss, step)
  extra = params["host_call"](loss, step) if "host_call" in params else None
  return NPUEstimatorSpec(
    mode,
    loss=loss,
    train_op=train,
    eval_metric_ops={"mean": tf.metrics.mean(predicted)},
    host_call=extra,
    training_hooks=params.get("hooks"),
  )


def input_fn():
  return tf.data.Dataset.from_tensor_slices({"x": np.eye(2, dtype=np.float32)}).repeat(40).batch(2)


def make(folder, config=None, **params):
  return NPUEstimator(model_fn, str(folder), config or NPURunConfig(tf_random_seed=1), params)


def parameter_map(found):
  (optimizer,) = found.config.session_config.graph_options.rewrite_options.custom_optimizers
  assert optimizer.name == "NpuOptimizer"
  return optimizer.parameter_map


# --- NPURunConfig ---


def spec_parameters():
  """(number, name, default as text) of table 2.9."""
  text = SPEC.read_text(encoding="utf-8")
  table = text[text.index("| # | name = default |") : text.index("Also accept (older releases")]
  return sorted((int(number), name, default) for number, name, default in re.findall(r"\| (\d+) \| (\w+)=(\S+) ", table))


def test_fact_17_the_88_parameters_in_their_positional_order_with_their_defaults():
  if not SPEC.exists():
    pytest.skip("the specification is not beside this tree")
  expected = spec_parameters()
  assert [number for number, _, _ in expected] == list(range(1, 89))
  found = list(inspect.signature(NPURunConfig.__init__).parameters.values())[1:]
  assert [item.name for item in found[:88]] == [name for _, name, _ in expected]
  for item, (_, name, default) in zip(found, expected):
    assert item.default == eval(default), name
  assert [item.name for item in found[88:]] == ["auto_tune_mode", "mstune_mode", "es_cluster_config"]


def test_fact_17_defaults_are_attributes_and_checkpoints_come_every_100_steps():
  config = NPURunConfig()
  assert isinstance(config, estimator.RunConfig)
  assert config.save_checkpoints_steps == 100 and config.save_checkpoints_secs is None and config.save_summary_steps == 0
  assert (config.iterations_per_loop, config.jit_compile, config.hcom_parallel, config.precision_mode) == (1, "auto", True, None)
  assert NPURunConfig(save_checkpoints_secs=60).save_checkpoints_steps is None
  assert NPURunConfig(save_checkpoints_steps=0).save_checkpoints_steps == 0
  assert config.replace(model_dir="x").jit_compile == "auto"


@pytest.mark.parametrize(
  ("arguments", "error"),
  [
    ({"iterations_per_loop": 0}, ValueError),
    ({"iterations_per_loop": 1.5}, TypeError),
    ({"mix_compile_mode": True, "iterations_per_loop": 2}, ValueError),
    ({"mix_compile_mode": 1}, TypeError),
    ({"graph_run_mode": 2}, ValueError),
    ({"graph_run_mode": -1}, ValueError),
    ({"graph_run_mode": "1"}, TypeError),
    ({"enable_exception_dump": -1}, ValueError),
    ({"horovod_mode": 1}, ValueError),
    ({"dump_config": "x"}, ValueError),
    ({"experimental_config": "x"}, ValueError),
    ({"dynamic_input_config": "x"}, ValueError),
    ({"memory_config": "x"}, ValueError),
    ({"profiling_config": "x"}, ValueError),
    ({"jit_compile": 1}, TypeError),
    ({"hcom_parallel": "yes"}, TypeError),
    ({"op_debug_level": "high"}, TypeError),
    ({"precision_mode": ["fp16"]}, TypeError),
    ({"log_device_placement": True}, TypeError),
    ({"save_checkpoints_steps": 1, "save_checkpoints_secs": 1}, ValueError),
    ({"distribute": object()}, ValueError),
    ({"distribute": STRATEGY}, ValueError),
  ],
)
def test_fact_17_wrong_arguments(arguments, error):
  name = next(reversed(arguments))
  with pytest.raises(error, match="save_checkpoints" if "checkpoints" in name else name):
    NPURunConfig(**arguments)


def test_fact_17_accepted_arguments():
  assert NPURunConfig(auto_tune_mode="RL,GA", mstune_mode=1, es_cluster_config="x").auto_tune_mode == "RL,GA"
  assert NPURunConfig(jit_compile=False).jit_compile is False
  assert NPURunConfig(2, None, "folder").iterations_per_loop == 2


def test_a_cluster_and_a_strategy_need_each_other_and_mixed_mode(monkeypatch):
  with pytest.raises(ValueError, match="needs a cluster in TF_CONFIG"):
    NPURunConfig(distribute=STRATEGY(), mix_compile_mode=True)
  monkeypatch.setenv("TF_CONFIG", json.dumps(CLUSTER))
  with pytest.raises(ValueError, match="needs distribute"):
    NPURunConfig(mix_compile_mode=True)
  strategy = STRATEGY()
  with pytest.raises(ValueError, match="mix_compile_mode=True"):
    NPURunConfig(distribute=strategy)
  config = NPURunConfig(distribute=strategy, mix_compile_mode=True, model_dir="m")
  assert config.task_type == "worker" and config.num_ps_replicas == 1 and config.train_distribute is None
  assert list(config.session_config.device_filters) == ["/job:ps", "/job:worker/task:0"]
  options = npu_estimator.session_config(config).graph_options.rewrite_options.custom_optimizers[0].parameter_map
  assert options["job"].s == b"worker" and options["task_index"].i == 0 and options["mix_compile_mode"].b


def test_a_session_config_keeps_what_the_default_would_bring(monkeypatch):
  given = tf.ConfigProto(inter_op_parallelism_threads=3)
  found = NPURunConfig(session_config=given).session_config
  assert found.allow_soft_placement and found.inter_op_parallelism_threads == 3
  assert found.graph_options.rewrite_options.meta_optimizer_iterations == RewriterConfig.ONE
  assert not given.allow_soft_placement
  monkeypatch.setenv("TF_CONFIG", json.dumps(CLUSTER))
  strategy = STRATEGY()
  found = NPURunConfig(session_config=given, distribute=strategy, mix_compile_mode=True).session_config
  assert list(found.device_filters) == ["/job:ps", "/job:worker/task:0"] and found.inter_op_parallelism_threads == 3
  given.device_filters.append("/job:ps")
  given.graph_options.rewrite_options.meta_optimizer_iterations = RewriterConfig.TWO
  found = NPURunConfig(session_config=given, distribute=strategy, mix_compile_mode=True).session_config
  assert list(found.device_filters) == ["/job:ps"]
  assert found.graph_options.rewrite_options.meta_optimizer_iterations == RewriterConfig.TWO


def test_the_options_of_the_configuration_reach_the_parameter_map(tmp_path):
  config = NPURunConfig(
    precision_mode="allow_mix_precision",
    deterministic=1,
    hcom_parallel=False,
    jit_compile=False,
    graph_memory_max_size=26 * 1024**3,
    dump_config=DumpConfig(enable_dump=True, dump_path=str(tmp_path), dump_step="0|3-5"),
    profiling_config=ProfilingConfig(False, {"output": "./p"}),
    memory_config=MemoryConfig(atomic_clean_policy=1),
    experimental_config=ExperimentalConfig(graph_memory_optimize_config=GraphMemoryOptimizeConfig(graph_slice="auto")),
    dynamic_input_config=DynamicInputConfig("x:1,-1", "1;2", 0),
  )
  found = parameter_map(make(tmp_path / "m", config))
  assert found["use_off_line"].b and found["precision_mode"].s == b"allow_mix_precision" and found["deterministic"].i == 1
  assert not found["hcom_parallel"].b and found["jit_compile"].s == b"false" and found["graph_memory_max_size"].s == b"27917287424"
  assert found["enable_dump"].b and found["dump_step"].s == b"0|3-5" and found["dump_path"].s == os.fsencode(tmp_path)
  assert found["profiling_options"].s == b'{"output": "./p"}' and found["atomic_clean_policy"].i == 1
  assert found["graph_slice"].s == b"auto" and found["input_shape"].s == b"x:1,-1"
  assert found["compile_hybrid_mode"].i == 0
  assert "iterations_per_loop" not in found and "hccl_timeout" not in found, "defaults are not written"


def test_keys_of_the_users_session_config_stay_unless_an_argument_says_otherwise(tmp_path):
  given = tf.ConfigProto()
  options = given.graph_options.rewrite_options.custom_optimizers.add(name="NpuOptimizer").parameter_map
  options["precision_mode"].s, options["deterministic"].i = b"force_fp32", 0
  found = parameter_map(make(tmp_path, NPURunConfig(session_config=given, deterministic=1)))
  assert found["precision_mode"].s == b"force_fp32" and found["deterministic"].i == 1


@pytest.mark.parametrize(
  "arguments",
  [
    {"precision_mode": "fast"},
    {"precision_mode": "force_fp32", "precision_mode_v2": "origin"},
    {"dump_config": DumpConfig(enable_dump=True)},
    {"jit_compile": "maybe"},
  ],
)
def test_values_that_npu_optimizer_does_not_allow_are_refused_when_the_estimator_is_made(arguments, tmp_path):
  pytest.importorskip("npu_bridge._options")
  with pytest.raises(ValueError, match=next(iter(arguments)).replace("dump_config", "dump_path")):
    make(tmp_path, NPURunConfig(**arguments))


def test_holders():
  for wrong in ("on", 1):
    with pytest.raises(ValueError, match="recompute"):
      GraphMemoryOptimizeConfig(recompute=wrong)
    with pytest.raises(ValueError, match="graph_memory_optimize_config"):
      ExperimentalConfig(graph_memory_optimize_config=wrong)
  assert [item.name for item in npu_config.NpuExecutePlacement] == ["ALL", "CUBE", "VECTOR", "TAISHAN", "DVPP", "HOST"]


def test_configurations_of_sessions_prepared_by_hand():
  proto = tf.ConfigProto()
  assert npu_config.set_npu_default_config(proto) is proto and _session.npu_optimizer_of(proto) is not None
  assert proto.graph_options.rewrite_options.remapping == RewriterConfig.OFF
  for make_session in (npu_config.decorator_tf_session(tf.Session),):
    proto = tf.ConfigProto()
    with make_session(config=proto) as session:
      assert session.run(tf.constant(3)) == 3
    assert proto.allow_soft_placement and _session.npu_optimizer_of(proto) is not None

  class Mine(tf.Session):
    __init__ = npu_config.decorator_tf_session(tf.Session.__init__)

  proto = tf.ConfigProto()
  Mine(config=proto).close()
  assert _session.npu_optimizer_of(proto) is not None


# --- NPUEstimator ---


def test_fact_17_what_npu_estimator_refuses(tmp_path):
  with pytest.raises(ValueError, match="NPURunConfig"):
    NPUEstimator(model_fn, str(tmp_path), estimator.RunConfig())
  with pytest.raises(ValueError, match="NPURunConfig"):
    NPUEstimator(model_fn, str(tmp_path))
  with pytest.raises(ValueError, match="model_dir"):
    NPUEstimator(model_fn, str(tmp_path), NPURunConfig(model_dir="other"))
  with pytest.raises(ValueError, match="nothing.json"):
    NPUEstimator(model_fn, str(tmp_path), NPURunConfig(), job_start_file=str(tmp_path / "nothing.json"))
  (tmp_path / "job.json").write_text("{}", encoding="utf-8")
  NPUEstimator(model_fn, str(tmp_path), NPURunConfig(), job_start_file=str(tmp_path / "job.json"))


def test_fact_17_without_job_id_and_model_dir_it_works(tmp_path):
  found = NPUEstimator(model_fn, config=NPURunConfig(), params={})
  assert re.fullmatch(r"model_dir_[A-Za-z0-9]{10}", os.path.basename(found.model_dir))
  assert os.path.dirname(found.model_dir) == str(tmp_path)
  found.train(input_fn, steps=2)
  assert tf.train.latest_checkpoint(found.model_dir).endswith("-2")


def test_train_evaluate_predict_and_train_and_evaluate(tmp_path):
  found = make(tmp_path)
  before = found.evaluate(input_fn)["loss"]
  found.train(input_fn, steps=5)
  result, _ = estimator.train_and_evaluate(
    found, estimator.TrainSpec(input_fn, max_steps=10), estimator.EvalSpec(input_fn, steps=2, throttle_secs=0)
  )
  assert result["global_step"] == 10 and result["loss"] < before
  assert len([item["y"] for item in found.predict(input_fn)]) == 80
  config = found.config
  assert isinstance(config, NPURunConfig) and _session.npu_optimizer_of(config.session_config) is not None


def test_it_gives_the_numbers_of_a_stock_estimator(tmp_path):
  def stock_fn(features, labels, mode, params):
    spec = model_fn(features, labels, mode, params)
    return estimator.EstimatorSpec(mode, loss=spec.loss, train_op=spec.train_op, eval_metric_ops=spec.eval_metric_ops)

  stock = estimator.Estimator(stock_fn, str(tmp_path / "a"), estimator.RunConfig(tf_random_seed=1), {})
  losses = [each.train(input_fn, steps=20).evaluate(input_fn)["loss"] for each in (stock, make(tmp_path / "b"))]
  assert losses[0] == losses[1]


def test_iterations_per_loop_advances_the_global_step_by_so_many(tmp_path):
  seen = []

  class Hook(tf.train.SessionRunHook):
    def before_run(self, run_context):
      return tf.train.SessionRunArgs(tf.train.get_global_step())

    def after_run(self, run_context, run_values):
      seen.append(int(run_values.results))

  plain = make(tmp_path / "a").train(input_fn, steps=20)
  looped = make(tmp_path / "b", NPURunConfig(iterations_per_loop=5, tf_random_seed=1, save_checkpoints_steps=10))
  assert parameter_map(looped)["iterations_per_loop"].i == 5
  looped.train(input_fn, steps=20, hooks=[Hook()])
  assert len(seen) == 4 and seen[-1] in (19, 20)
  assert looped.evaluate(input_fn) == plain.evaluate(input_fn)
  steps = {int(re.search(r"-(\d+)\.index", path.name)[1]) for path in (tmp_path / "b").glob("*.index")}
  assert 20 in steps and steps <= {5, 10, 15, 20, 0}


@pytest.mark.parametrize("how", [{"steps": 13}, {"max_steps": 13}])
def test_steps_that_are_no_multiple_of_the_loop_are_trained_exactly(how, tmp_path):
  losses = {}
  for iterations in (1, 5):
    config = NPURunConfig(iterations_per_loop=iterations, tf_random_seed=1, save_checkpoints_steps=5)
    looped = make(tmp_path / str(iterations), config)
    looped.train(input_fn, **how)
    assert looped.get_variable_value("global_step") == 13
    losses[iterations] = looped.get_variable_value("weight")
    looped.train(input_fn, steps=3)  # fewer than one loop
    assert looped.get_variable_value("global_step") == 16
    looped.train(input_fn, max_steps=26)
    assert looped.get_variable_value("global_step") == 26
  np.testing.assert_array_equal(losses[1], losses[5])


def test_saving_goes_through_npu_saver_and_0_steps_means_never(tmp_path, monkeypatch):
  made = []

  class Saver(npu_saver.NPUSaver):
    def __init__(self, *args, **kwargs):
      made.append(kwargs)
      super().__init__(*args, **kwargs)

  monkeypatch.setattr(npu_saver, "NPUSaver", Saver)
  make(tmp_path / "a", NPURunConfig(keep_checkpoint_max=2, save_checkpoints_steps=1)).train(input_fn, steps=6)
  assert made[0]["max_to_keep"] == 2 and len(list((tmp_path / "a").glob("*.index"))) == 2
  make(tmp_path / "b", NPURunConfig(save_checkpoints_steps=0)).train(input_fn, steps=2)
  assert not list((tmp_path / "b").glob("*.index"))
  assert issubclass(npu_saver.NPUSaver, tf.train.Saver)


@pytest.mark.parametrize("way", ["argument", "LOCAL_CHECKPOINT_DIR", "RESTORE_FROM", "both"])
def test_it_restores_from_the_argument_or_the_environment(way, tmp_path, monkeypatch):
  make(tmp_path / "a").train(input_fn, steps=5)
  make(tmp_path / "b").train(input_fn, steps=1)
  source = str(tmp_path / "a")
  if way == "both":
    monkeypatch.setenv("LOCAL_CHECKPOINT_DIR", source)
    monkeypatch.setenv("RESTORE_FROM", str(tmp_path / "b"))
  elif way != "argument":
    monkeypatch.setenv(way, source)
  found = NPUEstimator(model_fn, str(tmp_path / "c"), NPURunConfig(), {}, warm_start_from=source if way == "argument" else None)
  assert found.evaluate(input_fn)["loss"] == make(tmp_path / "a").evaluate(input_fn)["loss"]


def test_a_model_fn_that_returns_something_else_is_a_runtime_error_in_training(tmp_path):
  found = NPUEstimator(lambda features, labels, mode: 3, str(tmp_path), NPURunConfig())
  with pytest.raises(RuntimeError, match="EstimatorSpec"):
    found.train(input_fn)


@pytest.mark.parametrize("horovod_mode", [False, True])
def test_several_ranks_that_cannot_find_each_other_are_refused(horovod_mode, tmp_path, monkeypatch):
  pytest.importorskip("npu_bridge.estimator.npu.npu_hook")
  found = make(tmp_path, NPURunConfig(horovod_mode=horovod_mode))
  monkeypatch.setenv("RANK_SIZE", "2")
  with pytest.raises((NotImplementedError, RuntimeError, ValueError), match="rank"):
    found.train(input_fn, steps=1)


# --- host_call ---


@pytest.mark.parametrize(
  ("host_call", "error"),
  [
    (print, ValueError),
    ("ab", ValueError),
    ((print,), ValueError),
    ((3, [1]), TypeError),
    ((print, 3), ValueError),
    ((lambda a: a, [1, 2]), RuntimeError),
    ((lambda a: a, {"b": 1}), RuntimeError),
  ],
)
def test_wrong_host_calls(host_call, error):
  with pytest.raises(error, match="host_call"):
    NPUEstimatorSpec("train", loss=tf.constant(1.0), train_op=tf.no_op(), host_call=host_call)


@pytest.mark.parametrize("by_name", [False, True])
@pytest.mark.parametrize("iterations", [1, 5])
def test_a_host_call_runs_in_every_step(by_name, iterations, tmp_path):
  """Also in each iteration of a loop; here it writes summaries."""

  def host_call(loss, step):
    def write(step, loss):
      with tf.compat.v2.summary.create_file_writer(str(tmp_path / "host")).as_default(step=tf.reshape(step, [])):
        tf.compat.v2.summary.write("the_loss", loss)
      return tf.summary.all_v2_summary_ops()

    return (write, {"loss": loss, "step": step} if by_name else [step, loss])

  config = NPURunConfig(iterations_per_loop=iterations)
  make(tmp_path / "m", config, host_call=host_call).train(input_fn, steps=10)
  events = [event for path in (tmp_path / "host").iterdir() for event in tf.train.summary_iterator(str(path))]
  assert sum(value.tag == "the_loss" for event in events for value in event.summary.value) == 10


def test_a_spec_keeps_its_host_call_when_fields_are_replaced():
  host_call = (lambda a: a, [tf.constant(1)])
  spec = NPUEstimatorSpec("train", loss=tf.constant(1.0), train_op=tf.no_op(), host_call=host_call)
  assert isinstance(spec, estimator.EstimatorSpec) and spec._replace(loss=tf.constant(2.0)).host_call is host_call
  assert NPUEstimatorSpec("infer", predictions=tf.constant(1.0)).host_call is None


# --- tables ---


def test_tables_in_a_looped_npu_estimator_with_loss_scale(tmp_path):
  from npu_bridge.estimator.npu.npu_loss_scale_manager import FixedLossScaleManager
  from npu_bridge.estimator.npu.npu_loss_scale_optimizer import NPULossScaleOptimizer
  from npu_bridge.estimator.npu.npu_optimizer import NPUDistributedOptimizer

  def table_fn(features, labels, mode, params):
    table = mxrec.get_embedding_table("users", 2, 100, tf.random_normal_initializer(stddev=0.01))
    rows = mxrec.embedding_lookup(table, features, training=mode == "train")
    loss = tf.reduce_mean(tf.square(tf.reduce_sum(rows, 1) - 1.0))
    if mode == "infer":
      return NPUEstimatorSpec(mode, predictions=rows)
    metrics = {"size": tf.metrics.mean(tf.cast(table._ops.size, tf.float32))}
    if mode == "eval":
      return NPUEstimatorSpec(mode, loss=loss, eval_metric_ops=metrics)
    opt = tf.train.AdamOptimizer(0.05)
    if params["wrapped"]:
      opt = NPULossScaleOptimizer(NPUDistributedOptimizer(opt), FixedLossScaleManager(128))
    return NPUEstimatorSpec(mode, loss=loss, train_op=mxrec.minimize(loss, opt, tf.train.get_global_step()))

  def ids():
    return tf.data.Dataset.range(40).repeat(10).batch(20)

  found = {}
  for wrapped in (False, True):
    config = NPURunConfig(iterations_per_loop=5 if wrapped else 1, tf_random_seed=1)
    each = NPUEstimator(table_fn, str(tmp_path / str(wrapped)), config, {"wrapped": wrapped})
    each.train(ids)
    found[wrapped] = each.evaluate(ids, steps=2)
  assert found[True]["global_step"] == found[False]["global_step"] == 20 and found[True]["size"] == 40
  assert abs(found[True]["loss"] - found[False]["loss"]) < 1e-6 and found[True]["loss"] < 0.1


# --- Keras ---


def run(code, **environment):
  return subprocess.run(
    [sys.executable, "-c", code], capture_output=True, text=True, check=False, env={**os.environ, **environment}
  )


def test_a_keras_model_becomes_an_npu_estimator(tmp_path):
  code = f"""
import numpy as np, tensorflow.compat.v1 as tf
tf.disable_v2_behavior()
from npu_bridge.estimator.npu.keras_to_npu import model_to_npu_estimator
from npu_bridge.estimator.npu.npu_estimator import NPUEstimator
from npu_bridge.estimator.npu.npu_config import NPURunConfig
from npu_bridge.estimator.npu.npu_optimizer import KerasDistributeOptimizer
model = tf.keras.Sequential([tf.keras.layers.Dense(1, input_shape=(2,), name="d")])
model.compile(tf.keras.optimizers.SGD(0.1), "mse")
found = model_to_npu_estimator(model, model_dir={str(tmp_path / "m")!r}, config=NPURunConfig())
assert isinstance(found, NPUEstimator) and found.model_dir == {str(tmp_path / "m")!r}
data = lambda: tf.data.Dataset.from_tensor_slices((np.eye(2, dtype="f"), np.ones([2, 1], "f"))).repeat(20).batch(2)
before = found.evaluate(data)["loss"]
found.train(data)
assert found.evaluate(data)["loss"] < before
model = tf.keras.Sequential([tf.keras.layers.Dense(1, input_shape=(2,))])
model.compile(KerasDistributeOptimizer(tf.keras.optimizers.legacy.SGD(0.1)), "mse")
losses = model.fit(np.eye(2), np.ones([2, 1]), epochs=5, verbose=0).history["loss"]
assert losses[-1] < losses[0]
"""
  done = run(code, TF_USE_LEGACY_KERAS="1", TF_CPP_MIN_LOG_LEVEL="2")
  assert done.returncode == 0, done.stderr[-3000:]


def test_without_tf_keras_the_keras_conversion_says_what_to_do(tmp_path):
  code = """
from npu_bridge.estimator.npu import keras_to_npu
try:
  keras_to_npu.model_to_npu_estimator(object())
except ImportError as error:
  assert "TF_USE_LEGACY_KERAS=1" in str(error)
else:
  raise AssertionError
"""
  environment = {name: value for name, value in os.environ.items() if name != "TF_USE_LEGACY_KERAS"}
  done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, env=environment)
  assert done.returncode == 0, done.stderr[-2000:]


def test_tf_estimator_is_there_after_the_star_import_and_costs_nothing_before_its_use(tmp_path):
  script = tmp_path / "star.py"
  script.write_text("""
import sys
import tensorflow.compat.v1 as tf
tf.disable_v2_behavior()
import npu_bridge
assert not hasattr(tf, "estimator")
before = set(sys.modules)
from npu_bridge.npu_init import *
assert hasattr(tf, "estimator")
new = [name for name in set(sys.modules) - before if name.startswith(("tensorflow_estimator", "tf_keras", "keras"))]
assert not new, new
assert tf.estimator.NPUEstimator is NPUEstimator and tf.estimator.NPURunConfig is NPURunConfig
assert tf.estimator.NPUEstimatorSpec is NPUEstimatorSpec
assert isinstance(NPURunConfig(), tf.estimator.RunConfig) and "train_and_evaluate" in dir(tf.estimator)
assert tf.estimator.ModeKeys.TRAIN == "train"
try:
  tf.estimator.nonsense
except AttributeError as error:
  print(error)
""")
  done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=300)
  assert done.returncode == 0 and "nonsense" in done.stdout, done.stderr[-3000:]


def test_importing_the_modules_does_not_import_the_package():
  code = """
import sys
from npu_bridge.estimator.npu import keras_to_npu, npu_config, npu_estimator, npu_saver
assert "tensorflow_estimator" not in sys.modules

class Mine(npu_config.NPURunConfig):
  def __init__(self, **arguments):
    super().__init__(iterations_per_loop=3, **arguments)

config = Mine(model_dir="m")
from mxrec import _estimator
assert isinstance(config, Mine) and isinstance(config, _estimator.load().RunConfig) and config.iterations_per_loop == 3
other = config.replace(model_dir="n")
assert type(other) is type(config) and other.model_dir == "n" and type(Mine()) is type(config)
"""
  done = run(code)
  assert done.returncode == 0, done.stderr[-2000:]


def test_without_the_package_the_modules_import_and_the_classes_say_what_to_do(tmp_path):
  code = """
import importlib.metadata
def version(name):
  raise importlib.metadata.PackageNotFoundError(name)
importlib.metadata.version = version
from npu_bridge.estimator.npu.npu_config import DumpConfig, NPURunConfig
from npu_bridge.estimator.npu.npu_estimator import NPUEstimator, NPUEstimatorSpec
DumpConfig()
for kind in (NPURunConfig, NPUEstimator):
  try:
    kind()
  except ImportError as error:
    assert "pip install --no-deps tensorflow-estimator==2.15.0" in str(error)
  else:
    raise AssertionError
"""
  done = run(code)
  assert done.returncode == 0, done.stderr[-2000:]
