"""Applying gradients to tables: what all optimizers share.

Pairs (gradient, looked-up rows) are grouped by table, and each table gets one op that sums the gradients of equal ids over
all its lookups and updates each row once.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Mapping
from typing import Any

import tensorflow as tf
from tensorflow.python.ops import resource_variable_ops

from mxrec import _branches, _graph, _loader, _pooling, _sharded, _validate
from mxrec import table as table_lib

_HYPER_NAMES = {  # for messages: the arguments that hyperparameters come from; kinds that are not here have their own checks
  "adam": ("learning_rate", "beta1", "beta2", "epsilon"),
  "momentum": ("learning_rate", "momentum"),
  "rmsprop": ("learning_rate", "decay", "momentum", "epsilon"),
  "rmsprop_centered": ("learning_rate", "decay", "momentum", "epsilon"),
  "adadelta": ("learning_rate", "rho", "epsilon"),
  "ftrl": (
    "learning_rate",
    "learning_rate_power",
    "l1_regularization_strength",
    "l2_regularization_strength",
    "l2_shrinkage_regularization_strength",
    "beta",
  ),
}
_VARIABLE_UPDATE = re.compile(r"(Resource)?(Sparse)?Apply[A-Z].*|(Resource)?Scatter(Add|Sub)")


@dataclasses.dataclass(frozen=True)
class RowRule:
  """A kind of row update that the engine knows, with its hyperparameters in the engine's order (numbers or scalar tensors)."""

  kind: str  # "sgd", "adagrad", ...
  hyper: tuple[Any, ...]  # the first is the learning rate
  options: tuple[tuple[str, float], ...] = ()
  multipliers: Mapping[str, Any] = dataclasses.field(default_factory=dict)  # of the learning rate, by table


@dataclasses.dataclass(frozen=True)
class RowGradient:
  """The gradient of one lookup's rows, where the update can use it: outside of the branch that the lookup may stand in."""

  record: _graph.LookupRecord
  gradient: Any  # tf.Tensor [U, dim] or tf.IndexedSlices over U rows
  outputs: tuple[tf.Tensor, ...]  # of the lookup: rows, inverse, handles, keys, counts, generation
  shared: _pooling.Shared | None = None  # what the gradient is made from, when it comes from pooling alone

  @classmethod
  def make(cls, record: _graph.LookupRecord, gradient: Any, mean: bool = False) -> RowGradient:
    """ValueError when the lookup stands where the update op cannot follow it. mean: see LookupRecord.over_ranks."""
    branches = _check_place(record)
    if record.table.distribution != "none":
      if branches:
        raise ValueError(
          f"a lookup of table '{record.table.name}', which several ranks train, cannot be trained from inside tf.cond: every rank "
          "must take part in each update. Look the ids up outside and use the rows inside"
        )
      checked = cls(record, gradient, tuple(record.op.outputs))
      checked.values()
      return cls(record, *record.over_ranks(gradient, mean))
    shared = _pooling.shared_gradient(record, gradient)
    if not branches:
      return cls(record, gradient, tuple(record.op.outputs), shared)
    rows_shape = [None, record.table.dimension]
    rows, inverse, *vectors, generation = record.op.outputs
    outputs = (
      _branches.taken_or_empty(rows, rows_shape, branches),
      inverse if shared is None else _branches.taken_or_empty(inverse, [None], branches),
      *(_branches.taken_or_empty(vector, [None], branches) for vector in vectors),
      _branches.taken_or_empty(generation, [], branches),
    )
    if isinstance(gradient, tf.IndexedSlices):
      values = _branches.taken_or_empty(gradient.values, rows_shape, branches)
      gradient = tf.IndexedSlices(values, _branches.taken_or_empty(gradient.indices, [None], branches), tf.shape(outputs[0]))
    else:
      gradient = _branches.taken_or_empty(tf.convert_to_tensor(gradient), rows_shape, branches)
    if shared is not None:
      shared = _pooling.Shared(
        _branches.taken_or_empty(shared.gradient, rows_shape, branches),
        _branches.taken_or_empty(shared.offsets, [None], branches, fewest=1),
        _branches.taken_or_empty(shared.weights, [None], branches),
        shared.combiner,
      )
    return cls(record, gradient, outputs, shared)

  def replaced(self, gradient: Any) -> RowGradient:
    """The same lookup with another gradient."""
    return RowGradient(self.record, gradient, self.outputs)

  @property
  def dense(self) -> bool:
    return self.shared is None and not isinstance(self.gradient, tf.IndexedSlices)

  def values(self) -> tf.Tensor:
    if self.shared is not None:
      return self.shared.gradient
    return self._checked(self.gradient.values if isinstance(self.gradient, tf.IndexedSlices) else self.gradient)

  def _checked(self, values: Any) -> tf.Tensor:
    dim = self.record.table.dimension
    given = values
    try:
      values = tf.convert_to_tensor(given)
    except (TypeError, ValueError) as error:
      raise ValueError(
        f"gradient for table '{self.record.table.name}' must be a float32 tensor: got {_validate.found(given)}"
      ) from error
    if values.dtype.base_dtype != tf.float32:
      raise ValueError(f"gradient for table '{self.record.table.name}' must be float32: got {values.dtype.name}")
    if not values.shape.is_compatible_with([None, dim]):
      raise ValueError(f"gradient for table '{self.record.table.name}' must have shape [rows, {dim}]: got {values.shape}")
    return values

  def index(self) -> tf.Tensor:
    """Row of each occurrence, int32 [n]; empty for a dense gradient."""
    if self.shared is not None:
      return self.outputs[1]
    return tf.zeros([0], tf.int32) if self.dense else tf.cast(self.gradient.indices, tf.int32)

  def shares(self) -> tuple[tf.Tensor, tf.Tensor]:
    """Of each occurrence its row of the values, int32 [n], and its share, float32 [n]; both empty unless they are shared."""
    if self.shared is not None:
      return self.shared.shares(self.outputs[1])
    return tf.zeros([0], tf.int32), tf.zeros([0], tf.float32)

  def summed(self) -> tf.Tensor:
    """The gradient as [U, dim], zeros for ids that are never trained."""
    if isinstance(self.gradient, tf.IndexedSlices):
      values, index = self._checked(self.gradient.values), tf.cast(self.gradient.indices, tf.int32)
      summed = tf.math.unsorted_segment_sum(values, index, tf.shape(self.outputs[0])[0])
    else:
      summed = self._checked(self.gradient)
    if self.record.padded:
      trained = tf.not_equal(self.outputs[2], _graph.NEVER_TRAINED)
      summed = tf.where(trained[:, None], summed, tf.zeros_like(summed))
    return summed


def find_lookup(rows: Any) -> _graph.LookupRecord | None:
  """The lookup that a tensor holds the rows of, or None."""
  if not isinstance(rows, tf.Tensor) or rows.op.type not in (_graph.LOOKUP_OP, _sharded.ROWS_OP):
    return None
  if rows.value_index != 0:
    return None
  return table_lib.registry(rows.graph).find(rows)


def _check_place(record: _graph.LookupRecord) -> list[Any]:
  """The conds that the lookup stands in and the update op does not, innermost first.

  ValueError when the lookup stands where the update op cannot follow it.
  """
  graph = tf.compat.v1.get_default_graph()
  around, inside = graph, record.graph
  while around is not inside and around is not None:
    around = getattr(around, "outer_graph", None)
  name = record.table.name
  advice = "look the ids up outside and use the rows inside, or pass training=False if this lookup is not to be trained"
  if around is None:
    raise ValueError(f"a lookup of table '{name}' inside a function or loop body cannot be trained from outside of it: {advice}")
  branches = _branches.left_on_the_way(record.control_flow, graph._get_control_flow_context())
  if branches is None:
    raise ValueError(
      f"a lookup of table '{name}' inside tf.while_loop, or in the other branch of a tf.cond, cannot be trained from outside of "
      f"it: {advice}"
    )
  return branches


def row_gradients(pairs: Iterable[tuple[Any, Any]], mean: bool = False) -> list[RowGradient]:
  """Checks (gradient, rows) pairs and drops those without a gradient. mean: of tables that several ranks train, see LookupRecord.

  Raises:
    NotImplementedError: a "variable" that is not looked-up rows.
    ValueError: not pairs; no pairs; no gradient at all; rows given twice; wrong dtype or shape; a lookup that cannot be trained.
  """
  if not isinstance(pairs, Iterable):
    raise ValueError(f"grads_and_vars must be pairs (gradient, rows): got {_validate.found(pairs)}")
  pairs = list(pairs)
  if not pairs:
    raise ValueError("No variables provided: grads_and_vars is empty, expected pairs (gradient, rows)")
  for place, pair in enumerate(pairs):
    if not isinstance(pair, (tuple, list)) or len(pair) != 2:
      raise ValueError(f"grads_and_vars[{place}] must be a pair (gradient, rows): got {_validate.found(pair)}")
    if not _validate.is_tensor(pair[1]):
      raise ValueError(
        f"grads_and_vars[{place}] must be a pair (gradient, rows) with rows of get_sparse_embedding(): got "
        f"{_validate.found(pair[1])}"
      )
  found = []
  for gradient, rows in pairs:
    record = find_lookup(rows)
    if record is None:
      raise NotImplementedError(
        f"only rows that get_sparse_embedding() returns can be updated here, not {rows!r}: train dense "
        "variables with a TensorFlow optimizer, or everything together with mxrec.minimize"
      )
    if gradient is None:
      continue
    if not record.training:
      raise ValueError(f"a lookup of table '{record.table.name}' was made with training=False and cannot be trained")
    if any(other.record is record for other in found):
      raise ValueError(f"the rows of one lookup of table '{record.table.name}' are given twice: add their gradients")
    found.append(RowGradient.make(record, gradient, mean))
  if not found:
    names = sorted({find_lookup(rows).table.name for _, rows in pairs})
    raise ValueError(f"No gradients provided for any lookup of the tables {names}: the loss does not depend on them")
  return found


def _scalar(label: str, value: Any) -> tf.Tensor:
  value = value() if callable(value) else value
  return tf.cast(tf.convert_to_tensor(_validate.scalar(label, value)), tf.float32)


def by_table(gradients: list[RowGradient]) -> dict[str, list[RowGradient]]:
  """The gradients of each table, in order."""
  grouped: dict[str, list[RowGradient]] = {}
  for gradient in gradients:
    grouped.setdefault(gradient.record.table.name, []).append(gradient)
  return grouped


def apply_rows(gradients: list[RowGradient], rule: RowRule, name: str) -> list[tf.Operation]:
  """One update op per table."""
  labels = _HYPER_NAMES.get(rule.kind, ("learning_rate",))
  hyper = [
    _scalar(f"{labels[place] if place < len(labels) else f'hyperparameter {place}'} of the optimizer", value)
    for place, value in enumerate(rule.hyper)
  ]
  registry = table_lib.registry(gradients[0].record.graph) if gradients else None
  for table_name in rule.multipliers:
    if registry is not None and table_name not in registry.tables:
      raise ValueError(
        f"learning_rate_multipliers names table '{table_name}', which is not there: tables are {sorted(registry.tables)}"
      )
  updates = []
  scope = f"mxrec{name}" if name.startswith("_") else name  # TensorFlow's names of ops do not begin with "_"
  for table_name, parts in by_table(gradients).items():
    _loader.note_table_update(parts[0].record.table.handle.op.name)
    table_hyper = hyper
    if table_name in rule.multipliers:
      multiplier = _scalar(f"learning_rate_multipliers['{table_name}']", rule.multipliers[table_name])
      table_hyper = [hyper[0] * multiplier, *hyper[1:]]
    outputs = [part.outputs for part in parts]
    shares = [part.shares() for part in parts]
    updates.append(
      _loader.ops.mxrec_apply(
        parts[0].record.table.handle,
        table_hyper,
        keys=[output[3] for output in outputs],
        handles=[output[2] for output in outputs],
        counts=[output[4] for output in outputs],
        generations=[output[5] for output in outputs],
        first_rows=[output[0] for output in outputs],
        values=[part.values() for part in parts],
        index=[part.index() for part in parts],
        value_rows=[rows for rows, _ in shares],
        scales=[scales for _, scales in shares],
        optimizer=rule.kind,
        option_names=[option for option, _ in rule.options],
        option_values=[value for _, value in rule.options],
        dense=[part.dense for part in parts],
        shared=[part.shared is not None for part in parts],
        name=f"{scope}/update_{table_name}",
      )
    )
  return updates


def finish(updates: list[tf.Operation], global_step: Any, name: str) -> tf.Operation:
  """The train op: all updates, then the step counter; joins the collection TRAIN_OP as TensorFlow's optimizers do."""
  name = f"mxrec{name}" if name.startswith("_") else name
  if global_step is None:
    train_op = tf.group(*updates, name=name)
  else:
    with tf.control_dependencies(updates), tf.compat.v1.colocate_with(global_step):
      if isinstance(global_step, resource_variable_ops.BaseResourceVariable):
        train_op = global_step.assign_add(1, name=name, read_value=False)
      else:
        train_op = tf.compat.v1.assign_add(global_step, 1, name=name).op
  train_op = getattr(train_op, "op", train_op)
  collection = tf.compat.v1.get_collection_ref(tf.compat.v1.GraphKeys.TRAIN_OP)
  if train_op not in collection:
    collection.append(train_op)
  return train_op


def rows_behind(loss: tf.Tensor) -> list[tf.Tensor]:
  """Rows of the lookups that a loss depends on, in creation order.

  ValueError when the loss depends on a training lookup inside a loop, a branch or a function's body, which cannot be trained.
  """
  graph = loss.graph
  reached = _graph.ancestors([loss.op])
  found = []
  for record in table_lib.registry(graph).lookups:
    if record.graph is graph and record.op in reached:
      found.append(record)
    elif record.graph is not graph and record.training and record.table.handle.op in reached:
      # A function that captured the table's handle is part of the loss.
      if any(op in reached and not op.type.startswith("Mxrec") for op in record.table.handle.consumers()):
        _check_place(record)
  for record in found:
    if record.training:
      _check_place(record)
  return [record.rows for record in found]


def variables_without_update(loss: tf.Tensor) -> list[tf.Variable]:
  """Trainable variables that a loss depends on and that no op of a TensorFlow optimizer updates, in creation order."""
  graph = loss.graph
  updated = {op.inputs[0].op for op in graph.get_operations() if _VARIABLE_UPDATE.fullmatch(op.type)}
  reached = _graph.ancestors([loss.op])
  variables = graph.get_collection(tf.compat.v1.GraphKeys.TRAINABLE_VARIABLES)
  return [variable for variable in variables if variable.op in reached and variable.op not in updated]
