# ruff: noqa: F401 - every public name here is what the star import brings
"""The star-import hub: `from npu_bridge.npu_init import *` at the top of a migrated script.

It binds the names below in the script and makes every session made afterwards get the edits of `npu_config_proto`
(`npu_bridge.unpatch_sessions()` undoes that). The name `tf` it brings has TensorFlow 1's names.
"""

import importlib as _importlib
import os
from typing import Any as _Any

import tensorflow.compat.v1 as tf
from tensorflow.core.protobuf import config_pb2, rewriter_config_pb2
from tensorflow.core.protobuf.rewriter_config_pb2 import RewriterConfig
from tensorflow.python.client import session
from tensorflow.python.keras import backend
from tensorflow.python.training import session_run_hook

from npu_bridge import _session


def _take(module: str, *names: str) -> None:
  """Brings names of a module that is still being written, where it is there already."""
  try:
    found = _importlib.import_module(module)
  except ModuleNotFoundError as error:
    if not (error.name or "").startswith(("npu_bridge", "hccl")):
      raise
    return
  if not names:
    globals()[module.rsplit(".", 1)[1]] = found
  for name in names:
    globals()[name] = getattr(found, name)


_NPU = "npu_bridge.estimator.npu."
_take(
  _NPU + "npu_config",
  "NPURunConfig",
  "ProfilingConfig",
  "MemoryConfig",
  "DumpConfig",
  "DynamicInputConfig",
  "decorator_tf_session",
)
_take(_NPU + "npu_estimator", "NPUEstimator", "NPUEstimatorSpec")
_take(
  _NPU + "npu_hook",
  "NPUCheckpointSaverHook",
  "NPUOutputTensorHook",
  "NPUBroadcastGlobalVariablesHook",
  "SetIterationsVarHook",
  "TellMeStepOrLossHook",
)
_take(
  _NPU + "npu_optimizer",
  "NPUDistributedOptimizer",
  "KerasDistributeOptimizer",
  "npu_distributed_optimizer_wrapper",
  "NPUOptimizer",
  "npu_allreduce",
)
_take(_NPU + "npu_loss_scale_optimizer", "NPULossScaleOptimizer")
_take(_NPU + "npu_loss_scale_manager", "FixedLossScaleManager", "ExponentialUpdateLossScaleManager")
_take(_NPU + "npu_callbacks", "NPUBroadcastGlobalVariablesCallback")
_take("npu_bridge.estimator.npu_ops")
_take("npu_bridge.estimator.npu_unary_ops", "npu_unary_ops")
for _module in ("npu_rnn", "npu_scope", "keras_to_npu", "npu_strategy", "util", "npu_plugin"):
  _take(_NPU + _module)
_take("npu_bridge.hccl.hccl_ops")
_take("npu_bridge.profiler.profiler")
_take("npu_bridge.npu_cpu.npu_cpu_ops")
_take("npu_bridge.scoped_graph_manager.scoped_graph_manager")
_take(
  "hccl.manage.api",
  "create_group",
  "destroy_group",
  "get_rank_size",
  "get_local_rank_size",
  "get_rank_id",
  "get_local_rank_id",
  "get_world_rank_from_group_rank",
  "get_group_rank_from_world_rank",
)
_take("hccl.split.api", "set_split_strategy_by_idx", "set_split_strategy_by_size")

_session.patch_sessions()

experimental_options = {
  "disable_model_pruning": False,
  "function_optimization": RewriterConfig.ON,
  "constant_folding": RewriterConfig.ON,
  "shape_optimization": RewriterConfig.ON,
  "arithmetic_optimization": RewriterConfig.ON,
  "loop_optimization": RewriterConfig.ON,
  "dependency_optimization": RewriterConfig.ON,
  "layout_optimizer": RewriterConfig.ON,
}


def npu_config_proto(config_proto: _Any = None) -> config_pb2.ConfigProto:
  """Prepares a session configuration: the edits that every session gets after the star import.

  Adds the custom optimizer `NpuOptimizer` unless it is there (and only then sets memory_optimization OFF); sets remapping and the
  global JIT level OFF, allow_soft_placement True, log_device_placement False.

  Args:
    config_proto: a ConfigProto, edited in place; anything else stands for a fresh one.

  Returns:
    The edited ConfigProto: the object given, if it was one.
  """
  return _session.edit_config(config_proto)


npu_session_config_init = npu_config_proto


def npu_graph_options(graph_options: _Any = None) -> config_pb2.GraphOptions:
  """Sets the global JIT level OFF in a GraphOptions, in place; anything else stands for a fresh one. Returns it."""
  if not isinstance(graph_options, config_pb2.GraphOptions):
    graph_options = config_pb2.GraphOptions()
  graph_options.optimizer_options.global_jit_level = config_pb2.OptimizerOptions.OFF
  return graph_options


def npu_optimizer_options(optimizer_options: _Any = None) -> config_pb2.OptimizerOptions:
  """Sets the global JIT level OFF in an OptimizerOptions, in place; anything else stands for a fresh one. Returns it."""
  if not isinstance(optimizer_options, config_pb2.OptimizerOptions):
    optimizer_options = config_pb2.OptimizerOptions()
  optimizer_options.global_jit_level = config_pb2.OptimizerOptions.OFF
  return optimizer_options
