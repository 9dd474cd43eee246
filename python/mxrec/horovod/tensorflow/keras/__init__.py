"""What `import horovod.tensorflow.keras as hvd` and `import horovod.keras as hvd` give."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import tensorflow as tf

from mxrec.horovod import _basics, _functions, _keras, _ops
from mxrec.horovod._reduce import Reducer
from mxrec.horovod.tensorflow import (
  Adasum,
  Average,
  Compression,
  HorovodInternalError,
  HostsUpdatedInterrupt,
  Max,
  Min,
  PartialDistributedOptimizer,
  ProcessSet,
  Product,
  Sum,
  add_process_set,
  allgather_object,
  broadcast_object,
  broadcast_variables,
  ccl_built,
  cross_rank,
  cross_size,
  cuda_built,
  ddl_built,
  global_process_set,
  gloo_built,
  gloo_enabled,
  init,
  is_homogeneous,
  is_initialized,
  local_rank,
  local_size,
  mpi_built,
  mpi_enabled,
  mpi_threads_supported,
  nccl_built,
  rank,
  remove_process_set,
  rocm_built,
  shutdown,
  size,
  start_timeline,
  stop_timeline,
)
from mxrec.horovod.tensorflow import DistributedOptimizer as _of_tensorflow
from mxrec.horovod.tensorflow.keras import callbacks
from mxrec.horovod.tensorflow.sync_batch_norm import SyncBatchNormalization

__all__ = [
  "Adasum",
  "Average",
  "Compression",
  "DistributedOptimizer",
  "HorovodInternalError",
  "HostsUpdatedInterrupt",
  "Max",
  "Min",
  "PartialDistributedOptimizer",
  "ProcessSet",
  "Product",
  "Sum",
  "SyncBatchNormalization",
  "add_process_set",
  "allgather",
  "allgather_object",
  "allreduce",
  "broadcast",
  "broadcast_global_variables",
  "broadcast_object",
  "broadcast_variables",
  "callbacks",
  "ccl_built",
  "cross_rank",
  "cross_size",
  "cuda_built",
  "ddl_built",
  "global_process_set",
  "gloo_built",
  "gloo_enabled",
  "init",
  "is_homogeneous",
  "is_initialized",
  "load_model",
  "local_rank",
  "local_size",
  "mpi_built",
  "mpi_enabled",
  "mpi_threads_supported",
  "nccl_built",
  "rank",
  "reducescatter",
  "remove_process_set",
  "rocm_built",
  "shutdown",
  "size",
  "start_timeline",
  "stop_timeline",
]


def DistributedOptimizer(
  optimizer: Any,
  name: str | None = None,
  device_dense: str = "",
  device_sparse: str = "",
  compression: Any = Compression.none,
  sparse_as_dense: bool = False,
  gradient_predivide_factor: float = 1.0,
  op: int = Average,
  backward_passes_per_step: int = 1,
  average_aggregated_gradients: bool = False,
  num_groups: int = 0,
  groups: Any = None,
  process_set: ProcessSet = global_process_set,
  scale_local_gradients: bool = True,
) -> Any:
  """An optimizer of Keras that reduces gradients over the ranks before it applies them.

  Arguments, result and errors as mxrec.horovod.tensorflow.DistributedOptimizer; only the order of the arguments differs.
  """
  return _of_tensorflow(
    optimizer,
    name,
    compression=compression,
    sparse_as_dense=sparse_as_dense,
    gradient_predivide_factor=gradient_predivide_factor,
    op=op,
    backward_passes_per_step=backward_passes_per_step,
    average_aggregated_gradients=average_aggregated_gradients,
    num_groups=num_groups,
    groups=groups,
    process_set=process_set,
    scale_local_gradients=scale_local_gradients,
  )


# Values, at once


def allreduce(
  value: Any,
  name: str | None = None,
  average: bool | None = None,
  prescale_factor: float = 1.0,
  postscale_factor: float = 1.0,
  op: int | None = None,
  compression: Any = Compression.none,
) -> Any:
  """A number or array reduced over the ranks, at once: a numpy array. Errors as mxrec.horovod.tensorflow.allreduce."""
  op = _ops.reduce_op(op, average)
  options = {"prescale_factor": prescale_factor, "postscale_factor": postscale_factor, "name": name or "keras_allreduce"}
  return _basics.run_now(lambda: _ops.allreduce(tf.constant(value), op=op, compression=compression, **options))


def allgather(value: Any, name: str | None = None) -> Any:
  """The arrays of all ranks one after another, at once: a numpy array. Errors as mxrec.horovod.tensorflow.allgather."""
  return _basics.run_now(lambda: _ops.allgather(tf.constant(value), name or "keras_allgather"))


def broadcast(value: Any, root_rank: int, name: str | None = None) -> Any:
  """The number or array of one rank, at once: a numpy array. Errors as mxrec.horovod.tensorflow.broadcast."""
  return _basics.run_now(lambda: _ops.broadcast(tf.constant(value), root_rank, name or "keras_broadcast"))


def reducescatter(value: Any, name: str | None = None, op: int = Average) -> Any:
  """This rank's rows of a reduced array, at once: a numpy array. Errors as mxrec.horovod.tensorflow.reducescatter."""
  return _basics.run_now(lambda: _ops.reducescatter(tf.constant(value), op=op, name=name or "keras_reducescatter"))


def broadcast_global_variables(root_rank: int) -> Any:
  """Gives all ranks the values that the global variables of Keras' session have on one, at once.

  Raises:
    RuntimeError: in eager mode: broadcast_variables, or the callback, is for that.
    ValueError: as mxrec.horovod.tensorflow.broadcast_variables.
  """
  operation = _functions.broadcast_global_variables(root_rank)
  return tf.compat.v1.keras.backend.get_session().run(operation)


def load_model(
  filepath: str,
  custom_optimizers: Iterable[type] | None = None,
  custom_objects: dict[str, Any] | None = None,
  compression: Any = Compression.none,
  legacy_opts: bool = False,
) -> Any:
  """Loads a model, whose optimizer is then a distributed one, with what it has learned. It may have SyncBatchNormalization layers.

  Args:
    filepath: what tf.keras.models.load_model takes.
    custom_optimizers: classes of optimizers of your own that the model may have been trained with.
    custom_objects: further names in the file.
    compression: as for DistributedOptimizer.
    legacy_opts: ignored: both kinds are recognised.

  Returns:
    A model of tf.keras.
  """
  objects = {kind.__name__: kind for kind in (SyncBatchNormalization, *(custom_optimizers or ()))} | dict(custom_objects or {})
  model = tf.keras.models.load_model(filepath, custom_objects=objects)
  if model.optimizer is not None:
    _keras.distributed(model.optimizer, "", Reducer(compression=compression), None, in_place=True)
  return model
