"""Start and end of the device, and how it treats overflow. There is nothing to start here: arguments are checked and kept."""

from __future__ import annotations

from typing import Any

from tensorflow.core.protobuf import config_pb2, rewriter_config_pb2

from npu_bridge import _options, tf_adapter
from npu_bridge.estimator.npu import util


def npu_resource_init(
  graph_run_mode: int = 1,
  op_debug_level: int = 0,
  enable_profiling: bool = False,
  profiling_options: Any = None,
  precision_mode: str | None = None,
  enable_scope_fusion_passes: str | None = None,
  enable_exception_dump: int = 2,
  aoe_mode: str | None = None,
  work_path: str | None = None,
  op_compiler_cache_mode: str | None = None,
  op_compiler_cache_dir: str | None = None,
  debug_dir: str | None = None,
  hcom_multi_mode: bool = False,
  distribute_config: str | None = None,
  aoe_config_file: str | None = None,
  precision_mode_v2: str | None = None,
  export_compile_stat: int = 1,
  aicore_num: str | None = None,
  oo_constant_folding: bool = True,
  input_batch_cpy: bool = False,
  oo_level: str = "O3",
  optimization_switch: str | None = None,
  auto_tune_mode: str | None = None,
) -> None:
  """Checks the options of the device, as the original does, and starts it: nothing to do here.

  Args:
    graph_run_mode: 0 inference, 1 training.
    op_debug_level: 0 to 4.
    enable_profiling: whether profiling_options has to be there.
    profiling_options: text, or a list or dict that is JSON.
    precision_mode: a word that NpuOptimizer's option of this name allows, or None. What is said about no argument here is accepted
      and has no effect.
    enable_scope_fusion_passes: -
    enable_exception_dump: 0, 1 or 2.
    aoe_mode: "1", "2" or "4", or None.
    work_path: an existing folder, or None: the working directory.
    op_compiler_cache_mode: "enable", "force" or "disable", or None.
    op_compiler_cache_dir: -
    debug_dir: -
    hcom_multi_mode: bool.
    distribute_config: -
    aoe_config_file: -
    precision_mode_v2: as precision_mode, and not together with it.
    export_compile_stat: 0, 1 or 2.
    aicore_num: -
    oo_constant_folding: bool.
    input_batch_cpy: bool.
    oo_level: -
    optimization_switch: -
    auto_tune_mode: of older releases.

  Raises:
    ValueError: graph_run_mode above 1, profiling without options, another aoe_mode, a work_path that is no folder, a number or word
      that is not allowed.
    TypeError: a number, a bool or a text of another type.
  """
  util.check_nonnegative_integer(graph_run_mode, "graph_run_mode")
  if graph_run_mode > 1:
    raise ValueError(f"graph_run_mode must be 0 or 1: got {graph_run_mode}")
  for name, number in (
    ("op_debug_level", op_debug_level),
    ("enable_exception_dump", enable_exception_dump),
    ("export_compile_stat", export_compile_stat),
  ):
    util.check_nonnegative_integer(number, name)
  for name, flag in (
    ("enable_profiling", enable_profiling),
    ("hcom_multi_mode", hcom_multi_mode),
    ("oo_constant_folding", oo_constant_folding),
    ("input_batch_cpy", input_batch_cpy),
  ):
    util.check_bool_type(flag, name)
  if enable_profiling:
    util.check_profiling_options(profiling_options)
  if aoe_mode is not None:
    util.check_aoe_mode(aoe_mode)
  if work_path is not None:
    try:
      util.check_path(work_path)
    except ValueError as error:
      raise ValueError(f"work_path of npu_resource_init must be a folder: got {work_path!r}") from error
  _check_options(
    precision_mode=precision_mode,
    precision_mode_v2=precision_mode_v2,
    op_compiler_cache_mode=op_compiler_cache_mode,
    op_debug_level=op_debug_level,
    enable_exception_dump=enable_exception_dump,
    export_compile_stat=export_compile_stat,
  )
  tf_adapter.PluginInit()


def _check_options(**options: str | int | None) -> None:
  """The check that options of these names get in a session's configuration."""
  config = config_pb2.ConfigProto()
  optimizer = config.graph_options.rewrite_options.custom_optimizers.add()
  optimizer.name = _options.OPTIMIZER
  # What _session would complain of otherwise.
  config.graph_options.rewrite_options.remapping = rewriter_config_pb2.RewriterConfig.OFF
  config.graph_options.rewrite_options.memory_optimization = rewriter_config_pb2.RewriterConfig.NO_MEM_OPT
  for key, value in options.items():
    if isinstance(value, int):
      optimizer.parameter_map[key].i = value
    elif value is not None:
      util.check_type(value, str, key)
      optimizer.parameter_map[key].s = value.encode()
  _options.validate(config)


def npu_resource_shutdown() -> None:
  """Ends the device: nothing to do here."""
  tf_adapter.PluginFinalize()


def npu_close() -> None:
  """Closes the device: nothing to do here."""
  tf_adapter.NpuClose()


def set_device_sat_mode(mode: int) -> None:
  """Keeps how overflow behaves: 0 saturation, 1 infinities and NaN. Here it is always as with 1.

  Raises:
    TypeError: no int.
    ValueError: another number.
  """
  util.check_nonnegative_integer(mode, "mode")
  tf_adapter.SetDeviceSatMode(mode)


def get_device_sat_mode() -> int:
  """What set_device_sat_mode kept; 1 at first."""
  return tf_adapter.GetDeviceSatMode()


def is_inf_nan_enabled() -> bool:
  """True: overflow gives infinities and NaN here, whatever was set."""
  return True


def init_rdma_pool(mem_size: int) -> None:
  """A pool of device memory. NotImplementedError: there is none here."""
  raise NotImplementedError("npu_plugin.init_rdma_pool needs device memory, which this platform does not have")


def rdma_remote_register(remote_var_list: Any) -> None:
  """Registers other ranks' device memory. NotImplementedError: there is none here."""
  raise NotImplementedError("npu_plugin.rdma_remote_register needs RDMA between devices, which this platform does not have")


def rdma_remote_init(remote_var_list: Any, mem_size: int) -> None:
  """Registers other ranks' device memory. NotImplementedError: there is none here."""
  raise NotImplementedError("npu_plugin.rdma_remote_init needs RDMA between devices, which this platform does not have")


def get_var_addr_and_size(var_name: str) -> tuple[int, int]:
  """Where a variable is in device memory. NotImplementedError: there is none here."""
  raise NotImplementedError("npu_plugin.get_var_addr_and_size needs device memory, which this platform does not have")


def malloc_shared_memory(var_name: str, shape: Any, data_type: Any) -> tuple[int, int]:
  """Device memory that ranks share. NotImplementedError: there is none here."""
  raise NotImplementedError("npu_plugin.malloc_shared_memory needs device memory, which this platform does not have")


def get_rdma_cache(data_type: Any, var_shape: Any, rdma_id: int = 0) -> Any:
  """A cache in device memory. NotImplementedError: there is none here."""
  raise NotImplementedError("npu_plugin.get_rdma_cache needs RDMA between devices, which this platform does not have")
