"""NPURunConfig, the holders that are passed to it, and help for configurations of sessions."""

from __future__ import annotations

import enum
import functools
import inspect
import json
import os
from collections.abc import Callable
from typing import Any

import tensorflow.compat.v1 as tf

from mxrec import _estimator
from npu_bridge import _session


class NpuExecutePlacement(enum.Enum):
  """Where a part of a model is to run on an NPU. Everything runs on the CPU here."""

  ALL = "ALL"
  CUBE = "CUBE"
  VECTOR = "VECTOR"
  TAISHAN = "TAISHAN"
  DVPP = "DVPP"
  HOST = "HOST"


class ProfilingConfig:
  """Whether and how to profile. `profiling_options` is JSON text, or what can be written as JSON."""

  def __init__(self, enable_profiling: bool = False, profiling_options: Any = None) -> None:
    self._enable_profiling = enable_profiling
    self._profiling_options = profiling_options

  def _options(self) -> dict[str, Any]:
    options = self._profiling_options
    text = options if options is None or isinstance(options, str) else json.dumps(options)
    return {"profiling_mode": self._enable_profiling, "profiling_options": text}


class MemoryConfig:
  """How an NPU's memory is used; checked, without effect here."""

  def __init__(
    self,
    atomic_clean_policy: int = 0,
    static_memory_policy: int = 0,
    memory_optimization_policy: str | None = None,
    variable_use_1g_huge_page: int = 0,
  ) -> None:
    self._atomic_clean_policy = atomic_clean_policy
    self._static_memory_policy = static_memory_policy
    self._memory_optimization_policy = memory_optimization_policy
    self._variable_use_1g_huge_page = variable_use_1g_huge_page

  def _options(self) -> dict[str, Any]:
    return {
      "atomic_clean_policy": self._atomic_clean_policy,
      "static_memory_policy": self._static_memory_policy,
      "memory_optimization_policy": self._memory_optimization_policy,
      "variable_use_1g_huge_page": self._variable_use_1g_huge_page,
    }


class DumpConfig:
  """Which inputs and outputs of ops are written to files, or checked for overflow. Checked when a session is made."""

  def __init__(
    self,
    enable_dump: bool = False,
    dump_path: str | None = None,
    dump_step: str | None = None,
    dump_mode: str = "output",
    enable_dump_debug: bool = False,
    dump_debug_mode: str = "all",
    dump_data: str = "tensor",
    dump_layer: str | None = None,
  ) -> None:
    self._enable_dump = enable_dump
    self._dump_path = dump_path
    self._dump_step = dump_step
    self._dump_mode = dump_mode
    self._enable_dump_debug = enable_dump_debug
    self._dump_debug_mode = dump_debug_mode
    self._dump_data = dump_data
    self._dump_layer = dump_layer

  def _options(self) -> dict[str, Any]:
    return {
      "enable_dump": self._enable_dump,
      "dump_path": self._dump_path,
      "dump_step": self._dump_step,
      "dump_mode": self._dump_mode,
      "enable_dump_debug": self._enable_dump_debug,
      "dump_debug_mode": self._dump_debug_mode,
      "dump_data": self._dump_data,
      "dump_layer": self._dump_layer,
    }


class DynamicInputConfig:
  """The input shapes of an inference model; checked, without effect here."""

  def __init__(self, input_shape: str, dynamic_dims: str, dynamic_node_type: int, compile_hybrid_mode: int = 0) -> None:
    self._input_shape = input_shape
    self._dynamic_dims = dynamic_dims
    self._dynamic_node_type = dynamic_node_type
    self._compile_hybrid_mode = compile_hybrid_mode

  def _options(self) -> dict[str, Any]:
    return {
      "input_shape": self._input_shape,
      "dynamic_dims": self._dynamic_dims,
      "dynamic_node_type": self._dynamic_node_type,
      "compile_hybrid_mode": self._compile_hybrid_mode,
    }


class GraphMemoryOptimizeConfig:
  """Recomputation and slicing of graphs: each None, "auto" or "manual", else ValueError. Without effect here."""

  def __init__(self, recompute: str | None = None, graph_slice: str | None = None) -> None:
    for name, value in (("recompute", recompute), ("graph_slice", graph_slice)):
      if value not in (None, "auto", "manual"):
        raise ValueError(f"{name} of GraphMemoryOptimizeConfig must be None, 'auto' or 'manual': got {value!r}")
    self._recompute = recompute
    self._graph_slice = graph_slice


class ExperimentalConfig:
  """Experimental settings; without effect here."""

  def __init__(
    self,
    logical_device_cluster_deploy_mode: str = "LB",
    logical_device_id: str | None = None,
    model_deploy_mode: str | None = None,
    model_deploy_devicelist: str | None = None,
    graph_memory_optimize_config: GraphMemoryOptimizeConfig | None = None,
    enable_graph_parallel: bool | None = None,
    graph_parallel_option_path: str | None = None,
    graph_compiler_cache_dir: str | None = None,
    resource_config_path: str | None = None,
    accelerate_train_mode: str | None = None,
  ) -> None:
    if graph_memory_optimize_config is not None and not isinstance(graph_memory_optimize_config, GraphMemoryOptimizeConfig):
      raise ValueError(
        "graph_memory_optimize_config of ExperimentalConfig must be a GraphMemoryOptimizeConfig: got "
        f"{type(graph_memory_optimize_config).__name__}"
      )
    self._logical_device_cluster_deploy_mode = logical_device_cluster_deploy_mode
    self._logical_device_id = logical_device_id
    self._model_deploy_mode = model_deploy_mode
    self._model_deploy_devicelist = model_deploy_devicelist
    self._graph_memory_optimize_config = graph_memory_optimize_config
    self._enable_graph_parallel = enable_graph_parallel
    self._graph_parallel_option_path = graph_parallel_option_path
    self._graph_compiler_cache_dir = graph_compiler_cache_dir
    self._resource_config_path = resource_config_path
    self._accelerate_train_mode = accelerate_train_mode

  def _options(self) -> dict[str, Any]:
    memory = self._graph_memory_optimize_config
    return {
      "experimental_logical_device_cluster_deploy_mode": self._logical_device_cluster_deploy_mode,
      "experimental_logical_device_id": self._logical_device_id,
      "experimental_model_deploy_mode": self._model_deploy_mode,
      "experimental_model_deploy_devicelist": self._model_deploy_devicelist,
      "enable_graph_parallel": self._enable_graph_parallel,
      "graph_parallel_option_path": self._graph_parallel_option_path,
      "graph_compiler_cache_dir": self._graph_compiler_cache_dir,
      "resource_config_path": self._resource_config_path,
      "experimental_accelerate_train_mode": self._accelerate_train_mode,
      "graph_slice": None if memory is None else memory._graph_slice,
    }


# Keys of NpuOptimizer's parameter_map that the arguments of NPURunConfig and of the holders become, by the field of their values.
_FLAGS = frozenset(
  """all_tensor_not_empty compile_dynamic_mode dynamic_input enable_compress_weight enable_data_pre_proc enable_dump
  enable_dump_debug enable_graph_parallel enable_reduce_precision external_weight frozen_variable hcom_multi_mode hcom_parallel
  input_batch_cpy is_tailing_optimization mix_compile_mode oo_constant_folding profiling_mode variable_format_optimize""".split()
)
_NUMBERS = frozenset(
  """atomic_clean_policy compile_hybrid_mode deterministic dynamic_node_type enable_exception_dump enable_small_channel
  event_sync_timeout export_compile_stat graph_max_parallel_model_num graph_run_mode hccl_timeout input_fusion_size
  iterations_per_loop local_rank_id op_debug_level op_execute_timeout op_wait_timeout session_device_id static_memory_policy
  stream_sync_timeout topo_sorting_mode variable_use_1g_huge_page""".split()
)
_HOLDERS = {
  "dump_config": DumpConfig,
  "dynamic_input_config": DynamicInputConfig,
  "experimental_config": ExperimentalConfig,
  "memory_config": MemoryConfig,
  "profiling_config": ProfilingConfig,
}
# Arguments that are no keys: what RunConfig has itself, and what has no meaning any more.
_NO_KEYS = frozenset(
  """distribute es_cluster_config eval_distribute horovod_mode keep_checkpoint_every_n_hours keep_checkpoint_max
  log_step_count_steps model_dir mstune_mode save_checkpoints_secs save_checkpoints_steps save_summary_steps session_config
  tf_random_seed train_distribute""".split()
)


class NPURunConfig:
  """The configuration of an NPUEstimator: RunConfig's, and the options of NpuOptimizer.

  Every argument is an attribute of the same name. Those that differ from their default become keys of NpuOptimizer's
  parameter_map, which is checked when the Estimator is made; docs/reference/parameter_map.md says what each does here.
  A `session_config` keeps what RunConfig's own default would have brought, where it says nothing else. Objects are RunConfigs;
  making the first one imports tensorflow-estimator.
  """

  def __new__(cls, *args: Any, **kwargs: Any) -> Any:
    """Makes an object that is a RunConfig too."""
    del args, kwargs
    return object.__new__(_estimator.joined(cls, "RunConfig"))

  def __init__(
    self,
    iterations_per_loop: Any = 1,
    profiling_config: Any = None,
    model_dir: Any = None,
    tf_random_seed: Any = None,
    save_summary_steps: Any = 0,
    save_checkpoints_steps: Any = None,
    save_checkpoints_secs: Any = None,
    session_config: Any = None,
    keep_checkpoint_max: Any = 5,
    keep_checkpoint_every_n_hours: Any = 10000,
    log_step_count_steps: Any = 100,
    distribute: Any = None,
    enable_data_pre_proc: Any = True,
    precision_mode: Any = None,
    enable_reduce_precision: Any = False,
    variable_format_optimize: Any = None,
    mix_compile_mode: Any = False,
    hcom_parallel: Any = True,
    graph_memory_max_size: Any = None,
    variable_memory_max_size: Any = None,
    dump_config: Any = None,
    stream_max_parallel_num: Any = None,
    is_tailing_optimization: Any = False,
    horovod_mode: Any = False,
    graph_run_mode: Any = 1,
    op_debug_level: Any = None,
    enable_scope_fusion_passes: Any = None,
    enable_exception_dump: Any = 2,
    op_select_implmode: Any = None,
    optypelist_for_implmode: Any = None,
    dynamic_input_config: Any = None,
    aoe_mode: Any = None,
    work_path: Any = None,
    buffer_optimize: Any = "l2_optimize",
    enable_small_channel: Any = 0,
    fusion_switch_file: Any = None,
    enable_compress_weight: Any = False,
    compress_weight_conf: Any = None,
    op_compiler_cache_mode: Any = None,
    op_compiler_cache_dir: Any = None,
    debug_dir: Any = None,
    hcom_multi_mode: Any = False,
    dynamic_input: Any = None,
    dynamic_graph_execute_mode: Any = "dynamic_execute",
    dynamic_inputs_shape_range: Any = None,
    train_distribute: Any = None,
    eval_distribute: Any = None,
    local_rank_id: Any = None,
    local_device_list: Any = None,
    session_device_id: Any = None,
    distribute_config: Any = None,
    modify_mixlist: Any = None,
    op_precision_mode: Any = None,
    device_type: Any = "default_device_type",
    soc_config: Any = None,
    hccl_timeout: Any = None,
    op_wait_timeout: Any = None,
    op_execute_timeout: Any = None,
    HCCL_algorithm: Any = None,
    customize_dtypes: Any = None,
    op_debug_config: Any = None,
    memory_config: Any = None,
    experimental_config: Any = None,
    topo_sorting_mode: Any = None,
    aoe_config_file: Any = None,
    insert_op_file: Any = None,
    stream_sync_timeout: Any = -1,
    event_sync_timeout: Any = -1,
    external_weight: Any = False,
    deterministic: Any = 0,
    frozen_variable: Any = False,
    variable_placement: Any = "Device",
    jit_compile: Any = "auto",
    precision_mode_v2: Any = None,
    ac_parallel_enable: Any = None,
    quant_dumpable: Any = None,
    input_fusion_size: Any = 131072,
    compile_dynamic_mode: Any = None,
    graph_max_parallel_model_num: Any = 1,
    export_compile_stat: Any = 1,
    aicore_num: Any = None,
    oo_constant_folding: Any = True,
    input_batch_cpy: Any = False,
    shape_generalization_mode: Any = "STRICT",
    all_tensor_not_empty: Any = False,
    auto_multistream_parallel_mode: Any = None,
    oo_level: Any = "O3",
    optimization_switch: Any = None,
    auto_tune_mode: Any = None,
    mstune_mode: Any = None,
    es_cluster_config: Any = None,
  ) -> None:
    """Makes a configuration.

    Args:
      iterations_per_loop: steps in one run of a session; the last run of a training has fewer where steps are no multiple of it.
      profiling_config: a ProfilingConfig.
      model_dir: folder of checkpoints and summaries.
      tf_random_seed: the graph's seed.
      save_summary_steps: summaries are written every so many steps; 0: never.
      save_checkpoints_steps: checkpoints are saved every so many steps; 0: never. 100 when save_checkpoints_secs is None too.
      save_checkpoints_secs: checkpoints are saved every so many seconds.
      session_config: ConfigProto of the sessions.
      keep_checkpoint_max: checkpoints to keep.
      keep_checkpoint_every_n_hours: keep one of every so many hours for good.
      log_step_count_steps: loss and speed are logged every so many steps.
      distribute: a ParameterServerStrategy, together with a cluster in TF_CONFIG.
      horovod_mode: ranks are started by mpirun; NPUEstimator then does not broadcast variables by itself.
      mix_compile_mode: needs iterations_per_loop 1.
      graph_run_mode: 0 (inference) or 1.
      dump_config: a DumpConfig.
      dynamic_input_config: a DynamicInputConfig.
      memory_config: a MemoryConfig.
      experimental_config: an ExperimentalConfig.
      train_distribute: a strategy for training, as RunConfig's.
      eval_distribute: a strategy for evaluation, as RunConfig's.
      (every other argument): see the key of the same name.

    Raises:
      TypeError: iterations_per_loop or graph_run_mode is no int, mix_compile_mode no bool, jit_compile neither str nor bool, an
        argument cannot become its key; an unknown argument.
      ValueError: iterations_per_loop below 1, or not 1 with mix_compile_mode; graph_run_mode not 0 or 1; enable_exception_dump
        below 0; horovod_mode no bool; a holder of another class; a cluster in TF_CONFIG without distribute or the reverse, or with
        mix_compile_mode False; what RunConfig refuses.
    """
    given = {name: value for name, value in locals().items() if name not in ("self", "__class__")}
    self._given = {name: value for name, value in given.items() if name not in _NO_KEYS}
    _check(given)
    if save_checkpoints_steps is None and save_checkpoints_secs is None:
      save_checkpoints_steps = 100
    for name, value in given.items():
      if not hasattr(type(self), name):  # RunConfig has properties of its own for the others
        setattr(self, name, value)
    self._options()  # values that cannot become keys are refused here
    super().__init__(
      model_dir=model_dir,
      tf_random_seed=tf_random_seed,
      save_summary_steps=save_summary_steps,
      save_checkpoints_steps=save_checkpoints_steps,
      save_checkpoints_secs=save_checkpoints_secs,
      session_config=session_config,
      keep_checkpoint_max=keep_checkpoint_max,
      keep_checkpoint_every_n_hours=keep_checkpoint_every_n_hours,
      log_step_count_steps=log_step_count_steps,
      train_distribute=train_distribute,
      eval_distribute=eval_distribute,
    )

  def _maybe_overwrite_session_config_for_distributed_training(self) -> None:
    """Brings back what RunConfig's default has and the user's session_config leaves open."""
    user = self._session_config
    super()._maybe_overwrite_session_config_for_distributed_training()
    if user is None:
      return
    default = self._get_default_session_config_distributed() if self._cluster_spec else None
    if default is None:
      default = tf.ConfigProto(allow_soft_placement=True)
      options = default.graph_options.rewrite_options
      options.meta_optimizer_iterations = type(options).ONE
    if user.device_filters:
      del default.device_filters[:]
    default.MergeFrom(user)
    self._session_config = default

  def _options(self) -> dict[str, tuple[str, Any]]:
    """{key: (field, value)} of all arguments that differ from their default."""
    found = {}
    for name, value in self._given.items():
      if name in _HOLDERS:
        if value is not None:
          found.update((key, _field(key, part)) for key, part in value._options().items() if part is not None)
      elif value is not None and value != _DEFAULTS[name]:
        found[name] = _field(name, value)
    return found


_DEFAULTS = {name: parameter.default for name, parameter in inspect.signature(NPURunConfig.__init__).parameters.items()}


def _field(key: str, value: Any) -> tuple[str, Any]:
  """The field of the parameter_map's value, and the value as it goes there."""
  if key in _FLAGS:
    if not isinstance(value, bool):
      raise TypeError(f"{key} of NPURunConfig must be a bool: got {type(value).__name__} {value!r}")
    return "b", value
  if key in _NUMBERS:
    if not isinstance(value, int):
      raise TypeError(f"{key} of NPURunConfig must be an int: got {type(value).__name__} {value!r}")
    return "i", int(value)
  if isinstance(value, bool):
    return "s", str(value).lower()
  if not isinstance(value, (str, int, os.PathLike)):
    raise TypeError(f"{key} of NPURunConfig must be a str: got {type(value).__name__} {value!r}")
  return "s", str(value)


def _check(given: dict[str, Any]) -> None:
  iterations, mixed, mode = given["iterations_per_loop"], given["mix_compile_mode"], given["graph_run_mode"]
  for name in ("iterations_per_loop", "graph_run_mode"):
    if not isinstance(given[name], int) or isinstance(given[name], bool):
      raise TypeError(f"{name} of NPURunConfig must be an int: got {type(given[name]).__name__} {given[name]!r}")
  if iterations < 1:
    raise ValueError(f"iterations_per_loop of NPURunConfig must be at least 1: got {iterations}")
  if not isinstance(mixed, bool):
    raise TypeError(f"mix_compile_mode of NPURunConfig must be a bool: got {type(mixed).__name__} {mixed!r}")
  if mixed and iterations != 1:
    raise ValueError(f"mix_compile_mode of NPURunConfig needs iterations_per_loop 1: got {iterations}")
  if mode not in (0, 1):
    raise ValueError(f"graph_run_mode of NPURunConfig must be 0 or 1: got {mode}")
  if not isinstance(given["jit_compile"], (str, bool)):
    raise TypeError(f"jit_compile of NPURunConfig must be a str: got {type(given['jit_compile']).__name__}")
  dump = given["enable_exception_dump"]
  if isinstance(dump, int) and dump < 0:
    raise ValueError(f"enable_exception_dump of NPURunConfig must be at least 0: got {dump}")
  if not isinstance(given["horovod_mode"], bool):
    raise ValueError(f"horovod_mode of NPURunConfig must be a bool: got {given['horovod_mode']!r}")
  for name, kind in _HOLDERS.items():
    if given[name] is not None and not isinstance(given[name], kind):
      raise ValueError(f"{name} of NPURunConfig must be a {kind.__name__}: got {type(given[name]).__name__}")
  _check_cluster(given["distribute"], mixed)


def _check_cluster(distribute: Any, mixed: bool) -> None:
  cluster = json.loads(os.environ.get("TF_CONFIG") or "{}").get("cluster")
  is_strategy = type(distribute).__name__.startswith("ParameterServerStrategy")
  if distribute is not None and not is_strategy:
    raise ValueError(f"distribute of NPURunConfig must be a ParameterServerStrategy: got {type(distribute).__name__}")
  if cluster and not is_strategy:
    raise ValueError("TF_CONFIG names a cluster: NPURunConfig needs distribute=ParameterServerStrategy()")
  if is_strategy and not cluster:
    raise ValueError("NPURunConfig with distribute=ParameterServerStrategy() needs a cluster in TF_CONFIG")
  if cluster and not mixed:
    raise ValueError("NPURunConfig with a cluster in TF_CONFIG needs mix_compile_mode=True")


def set_npu_default_config(config: Any = None) -> Any:
  """Prepares a session configuration as npu_init.npu_config_proto does; edits a ConfigProto in place and returns it."""
  return _session.edit_config(config)


def decorator_tf_session(constructor: Callable[..., Any]) -> Callable[..., Any]:
  """A session's constructor whose configuration is prepared as by set_npu_default_config.

  Args:
    constructor: `tf.Session.__init__` or one that takes the same arguments; or the class: then the result is a function that
      returns sessions.
  """
  if not callable(constructor):
    raise TypeError(f"decorator_tf_session needs a constructor or a class of sessions: got {constructor!r}")
  if not isinstance(constructor, type):
    return _session.wrap_constructor(constructor, lambda: True)

  @functools.wraps(constructor, updated=())
  def construct(*args: Any, **kwargs: Any) -> Any:
    session = constructor.__new__(constructor)
    _session.wrap_constructor(constructor.__init__, lambda: True)(session, *args, **kwargs)
    return session

  return construct
