"""Scopes that mark the ops made inside them.

Each sets attributes on ops, as on the NPU. Some have an effect here: `keep_dtype_scope` keeps its ops out of automatic mixed
precision; `npu_recompute_scope` and `npu_graph_slice_scope` are name scopes, so that variables keep the names they have in
checkpoints.
"""

from __future__ import annotations

import contextlib
import enum
import operator
from collections.abc import Iterator
from typing import Any

import tensorflow.compat.v1 as tf
from tensorflow.core.framework import attr_value_pb2


def _attribute(value: Any) -> attr_value_pb2.AttrValue:
  if isinstance(value, bool):
    return attr_value_pb2.AttrValue(b=value)
  if isinstance(value, int):
    return attr_value_pb2.AttrValue(i=value)
  return attr_value_pb2.AttrValue(s=str(value).encode())


def _int(name: str, value: Any) -> int:
  try:
    return operator.index(value)
  except TypeError as error:
    raise TypeError(f"{name} must be an int: got {type(value).__name__} {value!r}") from error


@contextlib.contextmanager
def _marked(**attributes: Any) -> Iterator[None]:
  marks = {name: _attribute(value) for name, value in attributes.items()}
  with tf.get_default_graph()._attr_scope(marks):
    yield


def without_npu_compile_scope() -> contextlib.AbstractContextManager[None]:
  """Ops that stay on the host: here all do."""
  return _marked(_without_npu_compile=True)


def keep_dtype_scope() -> contextlib.AbstractContextManager[None]:
  """Ops that automatic mixed precision leaves alone."""
  return _marked(_keep_dtype=1)


def npu_variable_scope(placement: Any = None) -> contextlib.AbstractContextManager[None]:
  """Where variables are placed on the device; kept as an attribute.

  Args:
    placement: a member of npu_config.NpuExecutePlacement; None: ALL.

  Raises:
    ValueError: anything else.
  """
  from npu_bridge.estimator.npu.npu_config import NpuExecutePlacement

  placement = NpuExecutePlacement.ALL if placement is None else placement
  if not isinstance(placement, NpuExecutePlacement):
    raise ValueError(f"placement must be a member of NpuExecutePlacement: got {placement!r}")
  value = placement.value if isinstance(placement, enum.Enum) else placement
  return _marked(_variable_placement=str(value))


def npu_stage_scope(stage: int) -> contextlib.AbstractContextManager[None]:
  """The pipeline stage of ops; kept as an attribute. TypeError unless an int."""
  return _marked(_stage_level=_int("stage", stage))


def npu_mem_type_scope() -> contextlib.AbstractContextManager[None]:
  """Ops whose outputs are in another kind of device memory; kept as an attribute."""
  return _marked(_output_memory_type=1)


def npu_weight_prefetch_scope(
  buffer_pool_id: int = 0, buffer_pool_size: int = 536870912
) -> contextlib.AbstractContextManager[None]:
  """Ops whose weights are fetched ahead into a pool of the device; kept as attributes. TypeError unless ints."""
  return _marked(
    _buffer_pool_id=_int("buffer_pool_id", buffer_pool_id), _buffer_pool_size=_int("buffer_pool_size", buffer_pool_size)
  )


def op_specified_engine_scope(engine_name: str, kernel_lib_name: str) -> contextlib.AbstractContextManager[None]:
  """The engine and the kernel library that the device is to use; kept as attributes. TypeError unless texts."""
  for name, value in (("engine_name", engine_name), ("kernel_lib_name", kernel_lib_name)):
    if not isinstance(value, str):
      raise TypeError(f"{name} must be text: got {type(value).__name__} {value!r}")
  return _marked(_specified_engine_name=engine_name, _specified_kernel_lib_name=kernel_lib_name)


def npu_qos_label_scope(label: int) -> contextlib.AbstractContextManager[None]:
  """The quality-of-service label of ops; kept as an attribute. TypeError unless an int."""
  return _marked(_qos_service_label=_int("label", label))


def subgraph_multi_dims_scope(index: int) -> contextlib.AbstractContextManager[None]:
  """The subgraph with several shapes that ops belong to; kept as an attribute."""
  return _marked(_subgraph_multi_dims_index=str(index))


def npu_optimizer_scope() -> contextlib.AbstractContextManager[None]:
  """Ops of the optimizer; kept as an attribute."""
  return _marked(_optimizer=True)


def disable_autofuse() -> contextlib.AbstractContextManager[None]:
  """Ops that the device does not fuse; kept as an attribute."""
  return _marked(_disable_autofuse_scope=True)


@contextlib.contextmanager
def npu_recompute_scope() -> Iterator[None]:
  """A name scope with `NpuRecompute` in its name. Nothing is computed twice here."""
  with tf.name_scope("NpuRecompute"):
    yield


def npu_graph_slice_scope(slice_num: int | None = None) -> contextlib.AbstractContextManager[str]:
  """A name scope with `NpuGraphSlicing` in its name. Nothing is sliced here.

  Args:
    slice_num: an int above 0, or None.

  Raises:
    ValueError: anything else.
  """
  if slice_num is not None and (not isinstance(slice_num, int) or isinstance(slice_num, bool) or slice_num <= 0):
    raise ValueError(f"slice_num must be an int above 0 or None: got {slice_num!r}")
  return tf.name_scope("NpuGraphSlicing" if slice_num is None else f"NpuGraphSlicing{slice_num}")


def limit_core_num_scope(op_aicore_num: str = "0", op_vectorore_num: str = "0") -> contextlib.AbstractContextManager[None]:
  """How many cores of the device ops may use; kept as attributes.

  Args:
    op_aicore_num: text holding an int of at least 0.
    op_vectorore_num: text holding an int above 0. As in the original its own default is refused: give both.

  Raises:
    ValueError: anything else.
  """
  for name, value, low in (("op_aicore_num", op_aicore_num, 0), ("op_vectorore_num", op_vectorore_num, 1)):
    if not isinstance(value, str) or not (value.isascii() and value.isdigit()) or int(value) < low:
      raise ValueError(f"{name} must be text holding an int of at least {low}: got {value!r}")
  return _marked(_op_aicore_num=op_aicore_num, _op_vectorcore_num=op_vectorore_num)
