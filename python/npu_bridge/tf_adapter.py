"""Functions and option names of the original's native module. The device functions have nothing to do on this platform.

Option names are the texts that the device's compiler knows; scripts use them as keys of `map_string_string`.
"""

from __future__ import annotations

from typing import Any

OPTION_EXEC_DEVICE_ID = "ge.exec.deviceId"
OPTION_EXEC_JOB_ID = "ge.exec.jobId"
OPTION_EXEC_RANK_ID = "ge.exec.rankId"
OPTION_EXEC_POD_NAME = "ge.exec.podName"
OPTION_EXEC_RANK_TABLE_FILE = "ge.exec.rankTableFile"
OPTION_EXEC_DEPLOY_MODE = "ge.exec.deployMode"
OPTION_EXEC_IS_USEHCOM = "ge.exec.isUseHcom"
OPTION_EXEC_HCCL_FLAG = "ge.exec.hcclFlag"
OPTION_EXEC_PROFILING_MODE = "ge.exec.profilingMode"
OPTION_EXEC_PROFILING_OPTIONS = "ge.exec.profilingOptions"
OPTION_EXEC_ENABLE_DUMP = "ge.exec.enableDump"
OPTION_EXEC_ENABLE_DUMP_DEBUG = "ge.exec.enableDumpDebug"
OPTION_EXEC_DUMP_PATH = "ge.exec.dumpPath"
OPTION_EXEC_DUMP_STEP = "ge.exec.dumpStep"
OPTION_EXEC_DUMP_MODE = "ge.exec.dumpMode"
OPTION_EXEC_DUMP_DEBUG_MODE = "ge.exec.dumpDebugMode"
OPTION_EXEC_ENABLE_SCOPE_FUSION_PASSES = "ge.exec.enableScopeFusionPasses"
OPTION_EXEC_HCOM_MULTI_MODE = "ge.exec.hcomMultiMode"
OPTION_EXEC_ENABLE_EXCEPTION_DUMP = "ge.exec.enable_exception_dump"
OPTION_GRAPH_RUN_MODE = "ge.graphRunMode"
GRAPH_RUN_MODE = OPTION_GRAPH_RUN_MODE
OP_DEBUG_LEVEL = "ge.opDebugLevel"
PRECISION_MODE = "ge.exec.precision_mode"
AUTO_TUNE_MODE = "ge.autoTuneMode"
OP_COMPILER_CACHE_MODE = "ge.op_compiler_cache_mode"
OP_COMPILER_CACHE_DIR = "ge.op_compiler_cache_dir"
DEBUG_DIR = "ge.debugDir"
DISTRIBUTE_CONFIG = "ge.distributeConfig"
HCOM_PARALLEL = "ge.hcomParallel"

INF_NAN_MODE = 1
SATURATION_MODE = 0
_saturation_mode = INF_NAN_MODE


class map_string_string(dict):
  """{text: text}, as the native functions take it."""


class int64_vec(list):
  """A list of ints, as the native functions take it."""


def PluginInit(init_options: Any = None) -> None:
  """Starts the device. Nothing to do here; again: nothing."""


def PluginFinalize() -> None:
  """Ends the device. Nothing to do here; again: nothing."""


def NpuClose() -> None:
  """Closes the device. Nothing to do here; again: nothing."""


def SetDeviceSatMode(mode: int) -> None:
  """Keeps how overflow behaves: 0 saturation, 1 infinities and NaN. Here it is always as with 1. ValueError for another value."""
  global _saturation_mode
  if isinstance(mode, bool) or mode not in (SATURATION_MODE, INF_NAN_MODE):
    raise ValueError(f"mode must be 0 (saturation) or 1 (infinities and NaN): got {mode!r}")
  _saturation_mode = mode


def GetDeviceSatMode() -> int:
  """What SetDeviceSatMode kept; 1 at first."""
  return _saturation_mode


def EnableControl(*arguments: Any) -> None:
  """Switches the device's control flow. Nothing to do here."""


def Clear(*arguments: Any) -> None:
  """Frees what the device keeps of graphs. Nothing to do here."""


def ProfilerStart(*arguments: Any) -> int:
  """Starts the device's profiler. NotImplementedError: npu_bridge.profiler.profiler.Profiler profiles here."""
  raise NotImplementedError("tf_adapter.ProfilerStart starts the device's profiler: use npu_bridge.profiler.profiler.Profiler")


def ProfilerStop(*arguments: Any) -> int:
  """Ends the device's profiler. NotImplementedError: npu_bridge.profiler.profiler.Profiler profiles here."""
  raise NotImplementedError("tf_adapter.ProfilerStop ends the device's profiler: use npu_bridge.profiler.profiler.Profiler")


def _needs_device(name: str) -> Any:
  def function(*arguments: Any, **named: Any) -> Any:
    raise NotImplementedError(f"tf_adapter.{name} needs the device's memory, which this platform does not have")

  function.__name__ = function.__qualname__ = name
  function.__doc__ = "Device memory and RDMA. NotImplementedError: there is none here."
  return function


RdmaInitAndRegister = _needs_device("RdmaInitAndRegister")
RdmaInit = _needs_device("RdmaInit")
RegistRdmaRemoteAddr = _needs_device("RegistRdmaRemoteAddr")
GetVarAddrAndSize = _needs_device("GetVarAddrAndSize")
MallocSharedMem = _needs_device("MallocSharedMem")
