"""What the optimizers and the tape do with gradients: sum them over the ranks, and over steps of one rank before that."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from mxrec import optimizer as optimizer_lib
from mxrec.horovod import _ops
from mxrec.horovod._compression import Compression
from mxrec.horovod._process_sets import ProcessSet, global_process_set
from mxrec.horovod.common import util


@dataclasses.dataclass
class Reducer:
  """Reduces gradients of variables over the ranks.

  Gradients of looked-up rows of mxrec's tables pass untouched: tables exchange them themselves. So do gradients of variables that
  were registered as local ones, which are divided by the number of ranks with op=Average (`scale_local_gradients`).
  """

  op: int = _ops.Average
  compression: Any = Compression.none
  sparse_as_dense: bool = False
  gradient_predivide_factor: float = 1.0
  num_groups: int = 0
  groups: Any = None
  process_set: ProcessSet = global_process_set
  scale_local_gradients: bool = True
  name: str = "Distributed"
  local: dict[int, Any] = dataclasses.field(default_factory=dict)  # id -> variable

  def __post_init__(self) -> None:
    """ValueError when an argument is wrong."""
    self.op = _ops.reduce_op(self.op, None)
    if self.gradient_predivide_factor != 1.0 and self.op != _ops.Average:
      raise ValueError("gradient_predivide_factor other than 1.0 goes with op=hvd.Average")
    if not self.gradient_predivide_factor > 0:
      raise ValueError(f"gradient_predivide_factor must be above 0: got {self.gradient_predivide_factor!r}")
    if self.num_groups < 0:
      raise ValueError(f"num_groups must be 0 or more: got {self.num_groups!r}")
    if self.groups is None and self.num_groups:
      self.groups = self.num_groups
    if self.groups is not None and not (isinstance(self.groups, list) or (isinstance(self.groups, int) and self.groups >= 0)):
      raise ValueError(f"groups must be a number or a list of lists of variables: got {self.groups!r}")

  def register_local(self, variable: Any) -> None:
    """The gradient of this variable stays on its rank."""
    self.local[id(variable)] = variable

  def is_local(self, variable: Any) -> bool:
    """Whether the gradient of this variable stays on its rank."""
    return id(variable) in self.local

  def check_membership(self) -> None:
    """ValueError when this rank is not in the process set, before init(), and when the set is not registered."""
    _ops.group_of(self.process_set)

  def __call__(self, gradients: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
    """The gradients after the exchange, in their order; None stays None.

    Args:
      gradients: tensors, tf.IndexedSlices or None.
      variables: what each is the gradient of.
    """
    results = list(gradients)
    size = self.process_set.size() or 1
    travelling = []
    for index, (gradient, variable) in enumerate(zip(gradients, variables)):
      if gradient is None or optimizer_lib.find_lookup(variable) is not None:
        continue
      if self.is_local(variable):
        if self.scale_local_gradients and self.op == _ops.Average:
          results[index] = divided(gradient, size)
        continue
      if self.sparse_as_dense and isinstance(gradient, tf.IndexedSlices):
        results[index] = tf.convert_to_tensor(gradient)
      travelling.append(index)
    if size == 1 or not travelling:
      return results
    for part in self._parts(travelling, variables):
      for index, value in zip(part, self._exchange([results[index] for index in part])):
        results[index] = value
    return results

  def _parts(self, travelling: list[int], variables: Sequence[Any]) -> list[list[int]]:
    """Which gradients go into one operation."""
    if isinstance(self.groups, int) and self.groups > 0:
      return [part for part in util.split_list(travelling, self.groups) if part]
    if not isinstance(self.groups, list):
      return [[index] for index in travelling]
    places = {id(variables[index]): index for index in travelling}
    parts = []
    for group in self.groups:
      part = [places.pop(id(variable)) for variable in group if id(variable) in places]
      if part:
        parts.append(part)
    return parts + [[index] for index in places.values()]

  def _exchange(self, gradients: list[Any]) -> list[Any]:
    op, prescale, postscale = self.op, 1.0, 1.0
    if self.gradient_predivide_factor != 1.0:
      op = _ops.Sum
      prescale, postscale = 1 / self.gradient_predivide_factor, self.gradient_predivide_factor / (self.process_set.size() or 1)
    options = {
      "op": op,
      "compression": self.compression,
      "prescale_factor": prescale,
      "postscale_factor": postscale,
      "process_set": self.process_set,
    }
    with tf.name_scope(f"{self.name}_Allreduce"):
      if len(gradients) == 1:
        return [_ops.allreduce(gradients[0], **options)]
      return _ops.grouped_allreduce(gradients, **options)


def divided(gradient: Any, number: int) -> Any:
  """A gradient over a number."""
  if number == 1:
    return gradient
  if isinstance(gradient, tf.IndexedSlices):
    return tf.IndexedSlices(gradient.values / tf.cast(number, gradient.values.dtype), gradient.indices, gradient.dense_shape)
  return gradient / tf.cast(number, gradient.dtype)


class Accumulator:
  """Adds up the gradients of some steps, and lets them travel with the last one.

  Dense gradients are added; of tf.IndexedSlices the rows are kept one after another, so a big table needs no dense copy. The sums
  are local variables: they are in no checkpoint, and count as zero until they are initialized.

  Args:
    passes: the number of steps, at least 1.
    average: the sum is divided by it.
  """

  def __init__(self, passes: int, average: bool):
    if not isinstance(passes, int) or isinstance(passes, bool) or passes < 1:
      raise ValueError(f"backward_passes_per_step must be an integer of at least 1: got {passes!r}")
    self.passes, self._average = passes, average
    self._counter: Any = None
    self._sums: list[Any] | None = None

  def _variable(self, shape: Sequence[int | None], dtype: tf.DType, name: str) -> Any:
    """Zeros; nothing along an unknown dimension."""
    zeros = np.zeros([size or 0 for size in shape], dtype.as_numpy_dtype)
    if tf.compat.v1.executing_eagerly_outside_functions():
      with tf.init_scope():
        return tf.Variable(zeros, trainable=False, shape=shape, dtype=dtype, name=name)
    return tf.compat.v1.Variable(
      zeros,
      trainable=False,
      collections=[tf.compat.v1.GraphKeys.LOCAL_VARIABLES],
      shape=shape,
      validate_shape=None not in shape,
      use_resource=True,
      name=name,
    )

  def _make(self, gradients: Sequence[Any], variables: Sequence[Any]) -> None:
    if self._sums is not None:
      return
    self._counter = self._variable([], tf.int64, "passes")
    self._sums = []
    for gradient, variable in zip(gradients, variables):
      shape = list(variable.shape)
      if gradient is None:
        self._sums.append(None)
      elif isinstance(gradient, tf.IndexedSlices):
        values = self._variable([None, *shape[1:]], gradient.values.dtype, "summed_rows")
        self._sums.append((values, self._variable([None], gradient.indices.dtype, "summed_indices")))
      else:
        self._sums.append(self._variable(shape, gradient.dtype, "summed_gradient"))

  def add(
    self, gradients: Sequence[Any], variables: Sequence[Any], reduce: Callable[[list[Any]], list[Any]]
  ) -> tuple[list[Any], tf.Tensor]:
    """Adds gradients; in every passes-th step reduces the sums.

    Returns:
      (the reduced sums in that step and zeros or nothing otherwise, bool scalar: whether this is that step).
    """
    for gradient, variable in zip(gradients, variables):
      if gradient is not None and optimizer_lib.find_lookup(variable) is not None:
        raise ValueError(
          f"backward_passes_per_step={self.passes} does not go with looked-up rows: a table's rows are updated in every step; "
          "leave it at 1, or train the tables with an optimizer of their own"
        )
    self._make(gradients, variables)
    sums = self._sums or []
    shapes = [tf.constant(list(variable.shape), tf.int64) if None not in variable.shape else None for variable in variables]
    added: list[Any] = []
    for total, gradient, variable in zip(sums, gradients, variables):
      if gradient is None:
        continue
      if isinstance(total, tuple) != isinstance(gradient, tf.IndexedSlices) or total is None:
        raise ValueError(
          f"the gradient of {variable.name} is of another kind in this step (tensor, tf.IndexedSlices, None) than before"
        )
      if isinstance(total, tuple):
        added.append(total[0].assign(tf.concat([_read(total[0]), gradient.values], 0)))
        added.append(total[1].assign(tf.concat([_read(total[1]), gradient.indices], 0)))
      else:
        added.append(total.assign(_read(total) + tf.convert_to_tensor(gradient)))
    count = _read(self._counter) + 1
    last = tf.equal(count, self.passes)
    added.append(self._counter.assign(tf.where(last, tf.zeros_like(count), count)))
    with tf.control_dependencies(_operations(added)):
      last = tf.identity(last)

    def travel() -> list[Any]:
      totals = []
      for total, shape in zip(sums, shapes):
        if isinstance(total, tuple):
          totals.append(tf.IndexedSlices(total[0].read_value(), total[1].read_value(), shape))
        elif total is not None:
          totals.append(total.read_value())
      if self._average:
        totals = [divided(total, self.passes) for total in totals]
      totals = [_copied(total) for total in totals]
      with tf.control_dependencies(_operations(_flat(totals))):
        cleared = []
        for total in sums:
          if isinstance(total, tuple):
            cleared += [total[0].assign(total[0].read_value()[:0]), total[1].assign(total[1].read_value()[:0])]
          elif total is not None:
            cleared.append(total.assign(tf.zeros_like(total)))
      reduced = reduce(totals)
      with tf.control_dependencies(_operations(cleared)):
        return [tf.identity(value) for value in _flat(reduced)]

    def stay() -> list[Any]:
      nothing = []
      for total in sums:
        if isinstance(total, tuple):
          nothing += [tf.zeros([0, *total[0].shape[1:]], total[0].dtype), tf.zeros([0], total[1].dtype)]
        elif total is not None:
          nothing.append(tf.zeros(total.shape, total.dtype))
      return nothing

    flat = tf.cond(last, travel, stay)
    flat = list(flat) if isinstance(flat, (list, tuple)) else [flat]
    results: list[Any] = []
    for total, shape in zip(sums, shapes):
      if total is None:
        results.append(None)
      elif isinstance(total, tuple):
        values, indices = flat.pop(0), flat.pop(0)
        results.append(tf.IndexedSlices(values, indices, shape))
      else:
        results.append(flat.pop(0))
    return results, last


def _copied(gradient: Any) -> Any:
  """The same value, which a later change of the variable that it was read from does not touch."""
  if isinstance(gradient, tf.IndexedSlices):
    return tf.IndexedSlices(tf.identity(gradient.values), tf.identity(gradient.indices), gradient.dense_shape)
  return tf.identity(gradient)


def _flat(gradients: Sequence[Any]) -> list[tf.Tensor]:
  return [
    part
    for gradient in gradients
    for part in ([gradient.values, gradient.indices] if isinstance(gradient, tf.IndexedSlices) else [gradient])
  ]


def _operations(values: Sequence[Any]) -> list[Any]:
  """For control dependencies; nothing in eager mode."""
  if tf.executing_eagerly():
    return []
  return [value if isinstance(value, tf.Operation) else getattr(value, "op", value) for value in values]


def _read(variable: Any) -> tf.Tensor:
  """The value; in a graph zeros while the variable is not initialized."""
  if tf.compat.v1.executing_eagerly_outside_functions():
    return variable.read_value()
  shape = [0 if size is None else size for size in variable.shape.as_list()]
  value = tf.cond(variable.is_initialized(), variable.read_value, lambda: tf.zeros(shape, variable.dtype))
  value.set_shape(variable.shape)
  return value
