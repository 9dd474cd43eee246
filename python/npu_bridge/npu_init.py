# ruff: noqa: F401 - every public name here is what the star import brings
"""The star-import hub: `from npu_bridge.npu_init import *` at the top of a migrated script.

It binds the names below in the script and makes every session made afterwards get the edits of `npu_config_proto`
(`npu_bridge.unpatch_sessions()` undoes that). The name `tf` it brings has TensorFlow 1's names; where TensorFlow has no
`tf.estimator` any more, `tensorflow.compat.v1` gets one, which imports tensorflow-estimator when something of it is used.
"""

import os
from typing import Any as _Any

import tensorflow.compat.v1 as tf
from hccl.manage.api import (
  create_group,
  destroy_group,
  get_group_rank_from_world_rank,
  get_local_rank_id,
  get_local_rank_size,
  get_rank_id,
  get_rank_size,
  get_world_rank_from_group_rank,
)
from hccl.split.api import set_split_strategy_by_idx, set_split_strategy_by_size
from tensorflow.core.protobuf import config_pb2, rewriter_config_pb2
from tensorflow.core.protobuf.rewriter_config_pb2 import RewriterConfig
from tensorflow.python.client import session
from tensorflow.python.keras import backend
from tensorflow.python.training import session_run_hook

from mxrec import _estimator as _adapter
from mxrec import _world
from npu_bridge import _session
from npu_bridge.estimator import npu_ops
from npu_bridge.estimator.npu import keras_to_npu, npu_plugin, npu_rnn, npu_scope, npu_strategy, util
from npu_bridge.estimator.npu.npu_callbacks import NPUBroadcastGlobalVariablesCallback
from npu_bridge.estimator.npu.npu_config import (
  DumpConfig,
  DynamicInputConfig,
  MemoryConfig,
  NPURunConfig,
  ProfilingConfig,
  decorator_tf_session,
)
from npu_bridge.estimator.npu.npu_estimator import NPUEstimator, NPUEstimatorSpec
from npu_bridge.estimator.npu.npu_hook import (
  NPUBroadcastGlobalVariablesHook,
  NPUCheckpointSaverHook,
  NPUOutputTensorHook,
  SetIterationsVarHook,
  TellMeStepOrLossHook,
)
from npu_bridge.estimator.npu.npu_loss_scale_manager import ExponentialUpdateLossScaleManager, FixedLossScaleManager
from npu_bridge.estimator.npu.npu_loss_scale_optimizer import NPULossScaleOptimizer
from npu_bridge.estimator.npu.npu_optimizer import (
  KerasDistributeOptimizer,
  NPUDistributedOptimizer,
  NPUOptimizer,
  npu_allreduce,
  npu_distributed_optimizer_wrapper,
)
from npu_bridge.estimator.npu_unary_ops import npu_unary_ops
from npu_bridge.hccl import hccl_ops
from npu_bridge.npu_cpu import npu_cpu_ops
from npu_bridge.profiler import profiler
from npu_bridge.scoped_graph_manager import scoped_graph_manager

npu_AllReduce = npu_allreduce  # as the guide's prose spells it

_session.patch_sessions()
_adapter.supply(tf)

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


def npu_run_config_init(run_config: _Any = None) -> _Any:
  """Prepares an Estimator's RunConfig: its session configuration gets the edits of `npu_config_proto`.

  Args:
    run_config: a RunConfig, changed in place; anything else stands for a fresh one.

  Returns:
    The RunConfig.
  """
  from mxrec import _estimator

  kind = _estimator.load().RunConfig
  if not isinstance(run_config, kind):
    run_config = kind()
  run_config._session_config = npu_config_proto(run_config.session_config)
  return run_config


class NpuEmptyHook(session_run_hook.SessionRunHook):
  """A hook that does nothing."""


def npu_hooks_append(hooks_list: _Any = ()) -> list[_Any]:
  """Appends an NPUBroadcastGlobalVariablesHook of root rank 0.

  Args:
    hooks_list: a list, changed in place. As in the original anything else, a tuple too, is dropped and replaced by a new list.

  Returns:
    The list.
  """
  if not isinstance(hooks_list, list):
    hooks_list = []
  hooks_list.append(NPUBroadcastGlobalVariablesHook(0, _world.number(os.environ, "RANK_ID", 0) or 0))
  return hooks_list


def npu_callbacks_append(callbacks_list: _Any = ()) -> list[_Any]:
  """Appends an NPUBroadcastGlobalVariablesCallback of root rank 0.

  Args:
    callbacks_list: a list, changed in place. As in the original anything else, a tuple too, is dropped and replaced by a new list.

  Returns:
    The list.
  """
  if not isinstance(callbacks_list, list):
    callbacks_list = []
  callbacks_list.append(NPUBroadcastGlobalVariablesCallback(0))
  return callbacks_list


def npu_keras_optimizer(opt: _Any) -> _Any:
  """KerasDistributeOptimizer(opt)."""
  return KerasDistributeOptimizer(opt)


def npu_tf_optimizer(opt: _Any) -> _Any:
  """NPUDistributedOptimizer(opt)."""
  return NPUDistributedOptimizer(opt)


def _keras_backends() -> list[_Any]:
  """The Keras backends that may have a session: TensorFlow's own, and tf_keras where it is what `tf.keras` is."""
  import sys

  legacy = os.environ.get("TF_USE_LEGACY_KERAS") in ("1", "true", "True") or "tf_keras" in sys.modules
  return [backend, tf.keras.backend] if legacy else [backend]


def set_keras_session_npu_config(config: _Any = None) -> session.Session:
  """Makes a session with the edits of `npu_config_proto` the one that Keras uses.

  Args:
    config: a ConfigProto, edited in place; anything else stands for a fresh one.

  Returns:
    The session.
  """
  made = tf.Session(config=npu_config_proto(config))
  for one in _keras_backends():
    one.set_session(made)
  return made


def npu_clear_session(config: _Any = None) -> None:
  """Clears Keras's graph and session, then sets a new session as set_keras_session_npu_config does."""
  for one in _keras_backends():
    one.clear_session()
  set_keras_session_npu_config(config)


def init_resource(config: _Any = None) -> tuple[session.Session, tf.Operation]:
  """Starts the collective runtime in a session of its own, and keeps the rank for get_npu_rank_id and its like.

  Args:
    config: a ConfigProto, edited in place; anything else stands for a fresh one.

  Returns:
    (session, operation that ends the runtime), for shutdown_resource and close_session.

  Raises:
    RuntimeError: under eager execution.
    ValueError: several ranks in the environment that cannot find each other.
  """
  util.global_dict_init()
  start, stop = npu_ops.initialize_system(), npu_ops.shutdown_system()
  sess = tf.Session(config=npu_config_proto(config))
  sess.run(start)
  for name, ask in _RANK_VALUES.items():
    util.set_value(name, ask())
  return sess, stop


def shutdown_resource(sess: session.Session, npu_shutdown: tf.Operation) -> None:
  """Ends the collective runtime. TypeError unless a session."""
  _session.check("shutdown_resource needs a session", sess)
  sess.run(npu_shutdown)


def close_session(sess: session.Session) -> None:
  """Closes a session. TypeError unless it is one."""
  _session.check("close_session needs a session", sess, "close")
  sess.close()


_RANK_VALUES = {
  "npu_rank_id": get_rank_id,
  "npu_local_rank_id": get_local_rank_id,
  "npu_rank_size": get_rank_size,
  "npu_local_rank_size": get_local_rank_size,
}


def get_npu_rank_id() -> int:
  """The rank that init_resource found; 0 before."""
  return util.get_value("npu_rank_id", 0)


def get_npu_local_rank_id() -> int:
  """The rank on this machine that init_resource found; 0 before."""
  return util.get_value("npu_local_rank_id", 0)


def get_npu_rank_size() -> int:
  """The number of ranks that init_resource found; 1 before."""
  return util.get_value("npu_rank_size", 1)


def get_npu_local_rank_size() -> int:
  """The number of ranks on this machine that init_resource found; 1 before."""
  return util.get_value("npu_local_rank_size", 1)
