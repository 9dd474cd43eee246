"""The packages npu_bridge and npu_device: what the star import brings, one implementation behind both, scopes, plugin, helpers."""

import importlib
import pathlib
import subprocess
import sys
import textwrap

import npu_bridge
import npu_device
import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from npu_bridge import npu_init, tf_adapter
from npu_bridge.estimator.npu import npu_common, npu_plugin, npu_scope, npu_strategy, util
from tensorflow.core.protobuf import config_pb2
from tensorflow.core.protobuf.rewriter_config_pb2 import RewriterConfig

TABLE_1_2 = """
  os tf config_pb2 rewriter_config_pb2 RewriterConfig session session_run_hook backend NPURunConfig ProfilingConfig MemoryConfig
  DumpConfig DynamicInputConfig decorator_tf_session NPUEstimator NPUEstimatorSpec NPUCheckpointSaverHook NPUOutputTensorHook
  NPUBroadcastGlobalVariablesHook SetIterationsVarHook TellMeStepOrLossHook NPUDistributedOptimizer KerasDistributeOptimizer
  npu_distributed_optimizer_wrapper NPUOptimizer npu_allreduce NPULossScaleOptimizer FixedLossScaleManager
  ExponentialUpdateLossScaleManager NPUBroadcastGlobalVariablesCallback npu_ops npu_rnn npu_scope keras_to_npu npu_strategy util
  npu_plugin npu_unary_ops hccl_ops profiler npu_cpu_ops scoped_graph_manager create_group destroy_group get_rank_size
  get_local_rank_size get_rank_id get_local_rank_id get_world_rank_from_group_rank get_group_rank_from_world_rank
  set_split_strategy_by_idx set_split_strategy_by_size experimental_options npu_hooks_append npu_callbacks_append npu_config_proto
  npu_graph_options npu_optimizer_options npu_run_config_init set_keras_session_npu_config init_resource shutdown_resource
  close_session get_npu_rank_id get_npu_local_rank_id get_npu_rank_size get_npu_local_rank_size NpuEmptyHook npu_keras_optimizer
  npu_tf_optimizer npu_clear_session npu_session_config_init npu_AllReduce
""".split()
RANK_VARIABLES = ("RANK_SIZE", "RANK_ID", "RANK_TABLE_FILE", "CM_WORKER_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "JOB_ID")


@pytest.fixture(autouse=True)
def alone(monkeypatch):
  for name in RANK_VARIABLES:
    monkeypatch.delenv(name, raising=False)
  npu_bridge.unpatch_sessions()


def run(code, *names):
  """The last line that Python prints for the code, in a process without environment variables."""
  path = str(pathlib.Path(npu_bridge.__file__).parents[1])
  command = [sys.executable, "-c", textwrap.dedent(code), *names]
  done = subprocess.run(command, env={"PYTHONPATH": path}, capture_output=True, text=True, check=False, timeout=120)
  assert done.returncode == 0, done.stderr
  return done.stdout.strip().splitlines()[-1]


def test_fact_1_g9_star_import_binds_every_name():
  code = """
    import sys
    from npu_bridge.npu_init import *
    bound = {name for name in globals() if not name.startswith("_")} - {"sys"}
    assert bound == set(sys.argv[1:]), bound ^ set(sys.argv[1:])
    tf.disable_v2_behavior()
    assert callable(npu_unary_ops.gelu) and callable(npu_ops.dropout)
    print("DONE")
  """
  assert run(code, *TABLE_1_2) == "DONE"


def test_fact_1_the_names_are_the_originals_kinds():
  assert npu_init.RewriterConfig.OFF == RewriterConfig.OFF
  assert npu_init.session.Session is tf.Session and npu_init.session_run_hook.SessionRunHook is tf.train.SessionRunHook
  assert npu_init.npu_session_config_init is npu_init.npu_config_proto
  assert npu_init.npu_AllReduce is npu_init.npu_allreduce
  assert issubclass(npu_init.NpuEmptyHook, tf.train.SessionRunHook)
  assert npu_init.experimental_options == {
    "disable_model_pruning": False,
    "function_optimization": RewriterConfig.ON,
    "constant_folding": RewriterConfig.ON,
    "shape_optimization": RewriterConfig.ON,
    "arithmetic_optimization": RewriterConfig.ON,
    "loop_optimization": RewriterConfig.ON,
    "dependency_optimization": RewriterConfig.ON,
    "layout_optimizer": RewriterConfig.ON,
  }
  for name in ("Session", "train", "ConfigProto", "placeholder", "gradients"):
    assert hasattr(npu_init.tf, name)


@pytest.mark.parametrize("order", ["mxrec npu_bridge npu_device hccl", "hccl npu_device npu_bridge mxrec", "npu_device mxrec hccl"])
def test_g2_packages_import_in_any_order_and_change_nothing(order):
  code = """
    import importlib, os, sys
    import tensorflow as tf
    environment, argv, path = dict(os.environ), list(sys.argv), list(sys.path)
    run = tf.compat.v1.Session.run
    for name in sys.argv[1:]:
      importlib.import_module(name)
    assert (environment, argv, path) == (dict(os.environ), sys.argv, sys.path)
    assert tf.compat.v1.Session.run is run and tf.executing_eagerly()
    config = tf.compat.v1.ConfigProto()
    tf.compat.v1.Session(config=config, graph=tf.Graph()).close()
    assert config == tf.compat.v1.ConfigProto()
    print("DONE")
  """
  assert run(code, *order.split()) == "DONE"


def test_npu_device_is_npu_bridge_module_by_module():
  folder = pathlib.Path(npu_bridge.__file__).parent
  files = [path.relative_to(folder).with_suffix("") for path in folder.rglob("*.py")]
  names = [".".join(part for part in path.parts if part != "__init__") for path in files]
  assert len(names) > 20
  for name in sorted(names):
    suffix = f".{name}" if name else ""
    one = importlib.import_module(f"npu_bridge{suffix}")
    assert importlib.import_module(f"npu_device.compat.v1{suffix}") is one, name
    assert one.__spec__.name == one.__name__ == f"npu_bridge{suffix}"
  with pytest.raises(ModuleNotFoundError, match="npu_device.compat.v1.nonsense"):
    importlib.import_module("npu_device.compat.v1.nonsense")


def test_npu_device_alone_reaches_the_same_modules():
  code = """
    import npu_device
    npu_device.compat.enable_v1()
    from npu_device.compat.v1.npu_init import *
    import npu_device.compat.v1.estimator.npu.util as one
    from npu_bridge.estimator.npu import util as two
    assert one is two is util
    assert npu_device.compat.v1.npu_init.npu_config_proto is npu_config_proto
    assert not tf.executing_eagerly()
    with tf.Session() as sess:
      assert sess._config.graph_options.rewrite_options.custom_optimizers[0].name == "NpuOptimizer"
    print("DONE")
  """
  assert run(code) == "DONE"


def test_session_config_builder():
  builder = npu_device.compat.v1.SessionConfigBuilder()
  builder.parameter_map["graph_run_mode"].i = 1
  (optimizer,) = builder.session_config.graph_options.rewrite_options.custom_optimizers
  assert optimizer.name == "NpuOptimizer" and optimizer.parameter_map["graph_run_mode"].i == 1
  config = tf.ConfigProto()
  assert npu_device.compat.v1.SessionConfigBuilder(config).session_config is config
  with tf.Session(config=builder.session_config) as session:
    assert session.run(tf.constant(1)) == 1
  with pytest.raises(TypeError, match="ConfigProto"):
    npu_device.compat.v1.SessionConfigBuilder("x")


def test_npu_device_in_the_style_of_tensorflow_2(monkeypatch):
  monkeypatch.setattr(npu_device._device, "_opened", None)
  device = npu_device.open()
  assert device.as_default() is device and npu_device.open() is device and npu_device.open(0) is device
  with device.as_default(), device.scope():
    pass
  with pytest.raises(RuntimeError, match="device 0 is open"):
    npu_device.open(1)
  with pytest.raises(TypeError):
    npu_device.open("0")
  with pytest.raises(ValueError):
    npu_device.open(-1)
  npu_device.global_options().precision_mode = "allow_mix_precision"
  npu_device.global_options().dump_config.enable_dump = False
  assert npu_device.global_options().precision_mode == "allow_mix_precision"
  npu_device.set_npu_loop_size(100)
  with pytest.raises(ValueError):
    npu_device.set_npu_loop_size(0)
  assert callable(npu_device.gen_npu_ops.hcom_all_reduce)


def test_npu_device_distribute_hands_on_in_one_process(monkeypatch):
  distribute = npu_device.distribute
  values, optimizer = [object()], object()
  assert distribute.all_reduce(values) is values
  assert distribute.npu_distributed_keras_optimizer_wrapper(optimizer) is optimizer
  dataset = tf.data.Dataset.range(4)
  assert distribute.shard_and_rebatch_dataset(dataset, 8) == (dataset, 8)
  assert distribute.broadcast(values, 0) is None
  with pytest.raises(ValueError, match="reduction"):
    distribute.all_reduce(values, "avg")
  with pytest.raises(ValueError):
    distribute.broadcast(values, 1)
  monkeypatch.setenv("RANK_SIZE", "2")
  with pytest.raises(ValueError, match="RANK_SIZE=2"):
    distribute.all_reduce(values)


def test_helper_gives_the_generated_ops():
  from npu_bridge.helper import helper

  assert helper.get_gen_ops() is helper.npu_bridge_handle is npu_bridge.npu_bridge_handle
  assert helper.version == npu_bridge.__version__ == "v1.15.0"
  assert callable(helper.get_gen_ops().hcom_broadcast)


def test_options_protos():
  for function, kind, level in (
    (npu_init.npu_graph_options, config_pb2.GraphOptions, lambda proto: proto.optimizer_options.global_jit_level),
    (npu_init.npu_optimizer_options, config_pb2.OptimizerOptions, lambda proto: proto.global_jit_level),
  ):
    given = kind()
    assert function(given) is given
    for proto in (given, function(), function("x")):
      assert isinstance(proto, kind) and level(proto) == config_pb2.OptimizerOptions.OFF


def test_append_mutates_a_list_and_drops_anything_else():
  for append, kind in (
    (npu_init.npu_hooks_append, npu_init.NPUBroadcastGlobalVariablesHook),
    (npu_init.npu_callbacks_append, npu_init.NPUBroadcastGlobalVariablesCallback),
  ):
    first = object()
    given = [first]
    assert append(given) is given
    assert given[0] is first and isinstance(given[1], kind)
    for other in ((first,), None, ()):
      (only,) = append(other)
      assert isinstance(only, kind)
    assert len(append()) == 1


def test_init_resource_and_what_it_keeps():
  names = ("rank_id", "local_rank_id", "rank_size", "local_rank_size")

  def values():
    return [getattr(npu_init, f"get_npu_{name}")() for name in names]

  util.global_dict_init()
  assert values() == [0, 0, 1, 1], "defaults before init_resource"
  config = tf.ConfigProto()
  session, shutdown = npu_init.init_resource(config)
  assert config.graph_options.rewrite_options.custom_optimizers[0].name == "NpuOptimizer"
  assert values() == [0, 0, 1, 1]
  assert session.run(tf.constant(2)) == 2
  npu_init.shutdown_resource(session, shutdown)
  npu_init.shutdown_resource(session, shutdown)
  npu_init.close_session(session)


def test_a_resource_survives_a_reset_of_the_default_graph():
  session, shutdown = npu_init.init_resource()
  tf.reset_default_graph()
  npu_init.shutdown_resource(session, shutdown)
  npu_init.close_session(session)


def test_init_resource_refuses_several_ranks(monkeypatch):
  monkeypatch.setenv("RANK_SIZE", "2")
  with pytest.raises((ValueError, RuntimeError), match="RANK_SIZE=2"):
    npu_init.init_resource()


def test_keras_session():
  session = npu_init.set_keras_session_npu_config()
  assert npu_init.backend.get_session() is session
  config = tf.ConfigProto()
  assert npu_init.set_keras_session_npu_config(config)._config.graph_options.rewrite_options.custom_optimizers
  assert config.graph_options.rewrite_options.custom_optimizers
  npu_init.npu_clear_session()
  again = npu_init.backend.get_session()
  assert again is not session and again._config.graph_options.rewrite_options.custom_optimizers
  npu_init.backend.set_session(None)


@pytest.mark.thorough
def test_keras_session_and_dropout_layers_with_tf_keras():
  """G-16: the layer forms train with a mask and infer as the identity."""
  code = """
    import os
    os.environ["TF_USE_LEGACY_KERAS"] = "1"
    from npu_bridge.npu_init import *
    from npu_bridge.estimator.npu import npu_convert_dropout
    import numpy as np
    tf.disable_v2_behavior()
    session = set_keras_session_npu_config()
    assert tf.keras.backend.get_session() is session
    x = tf.ones([2, 400, 5])
    layers = {
      "layers.dropout": lambda t: tf.layers.dropout(x, 0.5, training=t),
      "layers.Dropout": lambda t: tf.layers.Dropout(0.5)(x, training=t),
      "keras Dropout": lambda t: tf.keras.layers.Dropout(0.5)(x, training=t),
      "1D": lambda t: tf.keras.layers.SpatialDropout1D(0.5)(x, training=t),
      "2D": lambda t: tf.keras.layers.SpatialDropout2D(0.5)(x[:, :, None], training=t),
      "3D": lambda t: tf.keras.layers.SpatialDropout3D(0.5)(x[:, :, None, None], training=t),
    }
    for name, make in layers.items():
      kept = np.concatenate([session.run(make(True)).ravel() for _ in range(20)])
      assert set(np.unique(kept)) == {0.0, 2.0} and 0.25 < (kept > 0).mean() < 0.75, name
      assert (session.run(make(False)) == 1).all(), name
    model = tf.keras.Sequential([tf.keras.layers.Dense(1, input_shape=(3,)), tf.keras.layers.Dropout(0.5)])
    model.compile("sgd", "mse")
    model.fit(np.ones([8, 3]), np.ones(8), verbose=0, callbacks=npu_callbacks_append())
    npu_clear_session()
    assert tf.keras.backend.get_session() is not session
    print("DONE")
  """
  assert run(code) == "DONE"


def mark(op, name):
  return op.get_attr(name)


@pytest.mark.parametrize(
  "scope, attribute, value",
  [
    (lambda: npu_scope.without_npu_compile_scope(), "_without_npu_compile", True),
    (lambda: npu_scope.keep_dtype_scope(), "_keep_dtype", 1),
    (lambda: npu_scope.npu_stage_scope(3), "_stage_level", 3),
    (lambda: npu_scope.npu_mem_type_scope(), "_output_memory_type", 1),
    (lambda: npu_scope.npu_weight_prefetch_scope(1, 2), "_buffer_pool_id", 1),
    (lambda: npu_scope.npu_weight_prefetch_scope(), "_buffer_pool_size", 536870912),
    (lambda: npu_scope.op_specified_engine_scope("e", "l"), "_specified_engine_name", b"e"),
    (lambda: npu_scope.npu_qos_label_scope(4), "_qos_service_label", 4),
    (lambda: npu_scope.subgraph_multi_dims_scope(2), "_subgraph_multi_dims_index", b"2"),
    (lambda: npu_scope.npu_optimizer_scope(), "_optimizer", True),
    (lambda: npu_scope.disable_autofuse(), "_disable_autofuse_scope", True),
    (lambda: npu_scope.limit_core_num_scope("2", "4"), "_op_vectorcore_num", b"4"),
  ],
)
def test_scopes_mark_their_ops_and_change_no_result(sess, scope, attribute, value):
  with scope():
    inside = tf.constant(1.0) + 1
  outside = tf.constant(1.0) + 1
  assert mark(inside.op, attribute) == value
  with pytest.raises(ValueError):
    mark(outside.op, attribute)
  assert sess.run([inside, outside]) == [2, 2]


def test_name_scopes_keep_the_names_of_variables_in_checkpoints():
  with npu_scope.npu_recompute_scope():
    assert "NpuRecompute" in (tf.constant(1) + 1).name
    assert tf.get_variable("v", []).name == "v:0"
  with npu_scope.npu_graph_slice_scope():
    assert "NpuGraphSlicing" in (tf.constant(1) + 1).name
  with npu_scope.npu_graph_slice_scope(4):
    assert "NpuGraphSlicing" in (tf.constant(1) + 1).name
  for wrong in (0, -1, "4", 1.5, True):
    with pytest.raises(ValueError, match="slice_num"):
      npu_scope.npu_graph_slice_scope(wrong)


def test_limit_core_num_scope_refuses_its_own_default_as_the_original():
  for wrong in ((), ("0", "0"), ("x", "1"), (1, "1"), ("1", 1), ("-1", "1"), ("1", "")):
    with pytest.raises(ValueError, match="op_(aicore|vectorore)_num"):
      npu_scope.limit_core_num_scope(*wrong)


def test_npu_variable_scope_takes_a_placement():
  with npu_scope.npu_variable_scope():
    assert mark(tf.get_variable("v", []).op, "_variable_placement")
  with pytest.raises(ValueError, match="placement"):
    npu_scope.npu_variable_scope("ALL")


def test_plugin_checks_its_options(tmp_path):
  assert npu_plugin.npu_resource_init() is None
  npu_plugin.npu_resource_init(0, 1, True, '{"output": "x"}', aoe_mode="2", work_path=str(tmp_path), auto_tune_mode="RL,GA")
  for arguments in (
    {"graph_run_mode": 2},
    {"graph_run_mode": -1},
    {"enable_profiling": True},
    {"aoe_mode": "3"},
    {"aoe_mode": ""},
    {"aoe_mode": "1", "work_path": str(tmp_path / "missing")},
    {"work_path": str(tmp_path / "missing")},
    {"op_debug_level": -1},
    {"op_debug_level": 5},
    {"precision_mode": "fast"},
    {"precision_mode_v2": "fast"},
    {"precision_mode": "force_fp32", "precision_mode_v2": "origin"},
    {"op_compiler_cache_mode": "maybe"},
    {"enable_exception_dump": 3},
    {"export_compile_stat": 3},
  ):
    with pytest.raises(ValueError, match="profiling" if "enable_profiling" in arguments else list(arguments)[-1]):
      npu_plugin.npu_resource_init(**arguments)
  npu_plugin.npu_resource_init(precision_mode="allow_mix_precision", op_compiler_cache_mode="enable", work_path=str(tmp_path))
  with pytest.raises(TypeError, match="precision_mode must be str: got list"):
    npu_plugin.npu_resource_init(precision_mode=[])
  for arguments in ({"graph_run_mode": "1"}, {"enable_profiling": 1}, {"hcom_multi_mode": "x"}, {"oo_constant_folding": None}):
    with pytest.raises(TypeError):
      npu_plugin.npu_resource_init(**arguments)
  npu_plugin.npu_resource_shutdown()
  npu_plugin.npu_close()


def test_saturation_mode_is_kept_and_floats_behave_as_floats():
  assert npu_plugin.get_device_sat_mode() == 1
  npu_plugin.set_device_sat_mode(0)
  assert npu_plugin.get_device_sat_mode() == tf_adapter.GetDeviceSatMode() == 0
  assert npu_plugin.is_inf_nan_enabled() is True
  npu_plugin.set_device_sat_mode(1)
  with pytest.raises(ValueError):
    npu_plugin.set_device_sat_mode(2)
  with pytest.raises(TypeError):
    npu_plugin.set_device_sat_mode("1")


@pytest.mark.parametrize(
  "name, arguments",
  [
    ("init_rdma_pool", 1),
    ("rdma_remote_register", 1),
    ("rdma_remote_init", 2),
    ("get_var_addr_and_size", 1),
    ("malloc_shared_memory", 3),
    ("get_rdma_cache", 2),
  ],
)
def test_rdma_helpers_name_themselves_when_called(name, arguments):
  with pytest.raises(NotImplementedError, match=name):
    getattr(npu_plugin, name)(*[0] * arguments)


def test_tf_adapter_names():
  assert tf_adapter.PluginInit(tf_adapter.map_string_string({tf_adapter.GRAPH_RUN_MODE: "1"})) is None
  assert tf_adapter.PluginFinalize() is tf_adapter.NpuClose() is tf_adapter.Clear() is tf_adapter.EnableControl(True) is None
  assert tf_adapter.int64_vec([1, 2]) == [1, 2]
  for name in ("ProfilerStart", "ProfilerStop", "RdmaInitAndRegister", "GetVarAddrAndSize", "MallocSharedMem"):
    with pytest.raises(NotImplementedError, match=name):
      getattr(tf_adapter, name)()


def test_scoped_graph_manager_is_a_context():
  from npu_bridge.scoped_graph_manager.scoped_graph_manager import ScopedGraphManager

  with ScopedGraphManager() as manager:
    manager.close()


def test_experimental_ops(sess, tmp_path):
  from npu_bridge import experimental
  from npu_bridge._api import experimental as api

  assert api.file_constant is experimental.file_constant and api.hccl_ops is experimental.hccl_ops
  values = np.arange(6, dtype=np.float32).reshape(2, 3)
  path = tmp_path / "values.bin"
  path.write_bytes(b"head" + values.tobytes() + b"tail")
  result = experimental.file_constant([2, 3], tf.float32, str(path), offset=4)
  assert result.shape == [2, 3]
  np.testing.assert_array_equal(sess.run(result), values)
  for arguments in ({"file_path": ""}, {"length": 5}, {"shape": [None]}):
    with pytest.raises(ValueError):
      experimental.file_constant(**{"shape": [2], "dtype": tf.float32, "file_path": str(path), **arguments})
  with pytest.raises(tf.errors.InvalidArgumentError):
    sess.run(experimental.file_constant([1000], tf.float32, str(path)))
  assert sess.run(experimental.get_shape([tf.zeros([2, 3]), tf.zeros([4])])).tolist() == [2, 3, 4]


def test_strategy_is_one_device_and_as_many_replicas_as_ranks():
  strategy = npu_strategy.NPUStrategy()
  assert strategy.num_replicas_in_sync == 1
  with strategy.scope():
    variable = tf.get_variable("v", [], initializer=tf.ones_initializer())
  with tf.Session() as session:
    session.run(tf.global_variables_initializer())
    assert session.run(variable) == 1
  iterator = strategy.make_dataset_iterator(tf.data.Dataset.range(2))
  element = iterator.get_next()
  with tf.Session() as session:
    session.run(iterator.initializer)
    assert [session.run(element) for _ in range(2)] == [0, 1]
  with pytest.raises(ValueError, match="/cpu:0"):
    npu_strategy.NPUStrategy("/gpu:0")


def test_job_info_needs_nothing_and_reads_the_environment(monkeypatch, tmp_path):
  info = npu_common.JobConfig().load()
  assert info.job_id and (info.rank_id, info.rank_size, info.is_chief()) == (0, 1, True)
  monkeypatch.setenv("JOB_ID", "7")
  monkeypatch.setenv("HEARTBEAT", "30")
  monkeypatch.setenv("RESTORE_FROM", "/x")
  info = npu_common.JobConfig().load()
  assert (info.job_id, info.heart_beat_time, info.restore_from) == ("7", 30, "/x")
  path = tmp_path / "job.json"
  path.write_text('{"job_id": "9"}', encoding="utf-8")
  assert npu_common.JobConfig(str(path)).load().job_id == "9"
  path.write_text("{", encoding="utf-8")
  with pytest.raises(ValueError, match=r"job\.json"):
    npu_common.JobConfig(str(path)).load()
  assert npu_common.NPUBasics() is npu_common.NPUBasics("")


# --- util ---


def test_fact_7_rank_size_source(monkeypatch):
  assert util.get_ranksize() == "1"
  monkeypatch.setenv("CM_WORKER_SIZE", "3")
  assert util.get_ranksize() == "3"
  monkeypatch.setenv("RANK_SIZE", "4")
  for call in (util.get_ranksize, lambda: npu_init.NPUBroadcastGlobalVariablesHook(0, 0), lambda: npu_init.npu_callbacks_append()):
    with pytest.raises(ValueError, match="RANK_SIZE and CM_WORKER_SIZE"):
      call()
  monkeypatch.delenv("CM_WORKER_SIZE")
  assert util.get_ranksize() == "4"


def test_graph_marks():
  x = tf.constant([1.0], name="x")
  op = tf.no_op(name="op")
  fetch = [x, (op, "x:0"), "op"]
  assert util.set_graph_exec_config(fetch, True, "lazy_recompile", "getnext:[1~128]") is fetch
  for marked in (x.op, op):
    assert marked.get_attr("_graph_dynamic_input") is True
    assert marked.get_attr("_graph_dynamic_graph_execute_mode") == b"lazy_recompile"
  for arguments in (([x], False, "fast"), ([1],), (None,)):
    with pytest.raises(ValueError):
      util.set_graph_exec_config(*arguments)
  for name in ("nope:0", "nope", "x:7", "", "a b:c"):
    with pytest.raises(ValueError, match=f"fetch '{name}' names no tensor and no operation of the graph"):
      util.set_graph_exec_config([name])
  assert util.set_op_tensor_max_range(x, [4]) is util.set_op_tensor_max_size(x, 4) is x
  assert util.set_op_input_tensor_multi_dims(x, "a:1", "1;2") is x


def test_keep_tensors_dtypes_marks_and_checks():
  x = tf.constant([1.0], name="x")
  util.keep_tensors_dtypes(tf.get_default_graph(), ["x:0"])
  assert x.op.get_attr("_keep_dtype") == 1
  for arguments in (
    (None, ["x:0"]),
    (tf.get_default_graph(), "x:0"),
    (tf.get_default_graph(), ["y:0"]),
    (tf.get_default_graph(), [x]),
  ):
    with pytest.raises(ValueError):
      util.keep_tensors_dtypes(*arguments)


def test_small_helpers(sess, tmp_path):
  variable = tf.get_variable("v", [], initializer=tf.ones_initializer())
  init = util.variable_initializer_in_host([variable])
  assert init.name == "var_in_host"
  util.npu_compile(sess, init, [variable])
  assert sess.run(variable) == 1
  util.global_dict_init()
  util.set_value("a", 1)
  assert (util.get_value("a"), util.get_value("b"), util.get_value("b", 2)) == (1, None, 2)
  util.global_dict_init()
  assert util.get_value("a") is None
  assert [util.convert_bool_to_int(value) for value in (True, False, None)] == [1, 0, -1]
  assert util.format_string(3, "n") == "3" and util.format_string(None, "n") == ""
  assert util.check_path(str(tmp_path)) == str(tmp_path.resolve())
  for call in (
    lambda: util.check_not_none(None, "n"),
    lambda: util.check_nonnegative_integer(-1, "n"),
    lambda: util.check_positive_integer(0, "n"),
    lambda: util.check_path(str(tmp_path / "x")),
    lambda: util.check_aoe_mode("3"),
    lambda: util.check_profiling_options(None),
  ):
    with pytest.raises(ValueError):
      call()
  for call in (
    lambda: util.check_nonnegative_integer("1", "n"),
    lambda: util.check_bool_type(1, "n"),
    lambda: util.check_type(1, str, "n"),
    lambda: util.convert_bool_to_int(2),
    lambda: util.check_profiling_options(3),
  ):
    with pytest.raises(TypeError):
      call()


def test_fair_division_balances_and_keeps_the_order():
  assert util.fair_division([1, 2, 3, 4, 5], 2) == [[1, 2, 3], [4, 5]]
  assert util.fair_division([9, 1, 1, 1], 3) == [[9], [1, 1], [1]]
  assert util.fair_division([0, 0, 7], 3) == [[0], [0], [7]]
  random = np.random.RandomState(0)
  for _ in range(200):
    sizes = random.randint(0, 20, random.randint(1, 9)).tolist()
    number = random.randint(1, len(sizes) + 1)
    groups = util.fair_division(sizes, number)
    assert [size for group in groups for size in group] == sizes
    assert len(groups) == number and all(groups)
    assert max(map(sum, groups)) == best(sizes, number)
  with pytest.raises(ValueError):
    util.fair_division([1], 2)


def best(sizes, number):
  """The smallest biggest sum, by trying every division."""
  if number == 1:
    return sum(sizes)
  return min(max(sum(sizes[:i]), best(sizes[i:], number - 1)) for i in range(1, len(sizes) - number + 2))


def test_owners_of_gradients_and_weights():
  util.global_dict_init()
  variables = [tf.get_variable(f"v{i}", [size]) for i, size in enumerate((4, 2, 6))]
  gradients = [tf.identity(variable) for variable in variables]
  util.add_grads_and_vars([*zip(gradients, variables), (None, variables[0])], 2)
  assert [util.get_gid_by_weight(variable) for variable in variables] == [0, 0, 1]
  assert [util.get_gid_by_grad(gradient) for gradient in gradients] == [0, 0, 1]
  assert util.get_gid_by_grad(tf.constant(1.0, name="other")) == -1


@pytest.mark.parametrize("package", ["npu_bridge", "npu_device.compat.v1"])
def test_names_of_the_embedding_service_import_and_say_what_to_use(package):
  for module, name in (("embedding_service", "ESWorker"), ("embedding_table_map_policy", "AutoMergeTableMapPolicy")):
    found = getattr(importlib.import_module(f"{package}.embedding.{module}"), name)
    assert isinstance(found, type) and not isinstance(1, found)
    with pytest.raises(NotImplementedError, match=rf"npu_bridge\.embedding\.{module}\.{name} .*mxrec\.get_embedding_table"):
      found("config")
  assert not hasattr(importlib.import_module(f"{package}.embedding.embedding_service"), "_private")


JUNK = (None, "junk", -1, [], object(), 0.5)


@pytest.mark.parametrize("junk", JUNK, ids=[type(junk).__name__ for junk in JUNK])
def test_helpers_say_what_they_expect(junk):
  tensor = r"tensor must be a tensor of a graph: got"
  for call, message in (
    (lambda: util.set_op_tensor_max_range(junk, "1"), tensor),
    (lambda: util.set_op_tensor_max_size(junk, 1), tensor),
    (lambda: util.set_op_input_tensor_multi_dims(junk, "x:-1", "1;2"), tensor),
    (lambda: util.get_gid_by_grad(junk), tensor),
    (lambda: util.get_gid_by_weight(junk), tensor),
    (lambda: util.variable_initializer_in_host([junk]), "var_list must hold variables: got"),
    (lambda: util.set_iteration_per_loop(junk, tf.no_op(), 2), "sess must be a session: got"),
    (lambda: npu_init.close_session(junk), "close_session needs a session: got"),
    (lambda: npu_init.shutdown_resource(junk, tf.no_op()), "shutdown_resource needs a session: got"),
    (lambda: npu_init.decorator_tf_session(junk), "decorator_tf_session needs a constructor"),
    *[
      (lambda call=call: call(junk), "must be an int: got")
      for call in (npu_scope.npu_stage_scope, npu_scope.npu_weight_prefetch_scope, npu_scope.npu_qos_label_scope)
      if junk != -1
    ],
  ):
    with pytest.raises(TypeError, match=message):
      call()
  if junk != "junk":
    with pytest.raises(TypeError, match="kernel_lib_name must be text: got"):
      npu_scope.op_specified_engine_scope("engine", junk)
