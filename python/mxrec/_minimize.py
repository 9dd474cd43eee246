"""`mxrec.minimize`: dense variables and tables trained together by one optimizer."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from mxrec import _collective, _groups, _slices, _validate
from mxrec import optimizer as optimizer_lib
from mxrec._sparse_optimizer import sparse_optimizer
from mxrec.row_optimizer import RowOptimizer


def _true_norm_parts(gradients: list[optimizer_lib.RowGradient]) -> list[tf.Tensor]:
  """Per table one tensor with the gradient of each id, summed over occurrences and lookups."""
  parts = []
  for same_table in optimizer_lib.by_table(gradients).values():
    summed = [gradient.summed() for gradient in same_table]
    if len(summed) > 1:
      keys, place = tf.unique(tf.concat([gradient.outputs[3] for gradient in same_table], 0))
      parts.append(tf.math.unsorted_segment_sum(tf.concat(summed, 0), place, tf.size(keys)))
    else:
      parts.append(summed[0])
  return parts


def minimize(loss: Any, optimizer: Any, global_step: Any = None, clip_norm: Any = None) -> tf.Operation:
  """Trains all trainable variables and all tables that `loss` depends on.

  Args:
    loss: scalar float32 tensor.
    optimizer: what mxrec.sparse_optimizer takes or returns. A TensorFlow optimizer trains the variables, and its twin with the same
      hyperparameters (floats, tensors or callables) the tables; twins are lazy: only rows of the step move. One of mxrec's own
      (AdamWOptimizer, ...), when the loss depends on tables only. Or a wrapper of npu_bridge around one of these, which may scale
      the loss or skip steps.
    global_step: variable that is incremented after the updates.
    clip_norm: when given, gradients are scaled so that their norm over all variables and all ids is at most this (float > 0 or
      scalar tensor). Gradients of the same id are summed first.

  Where several ranks train, gradients of variables and of tables are averaged over them, so that the step is the one that a single
  process makes on the batches of all.

  Returns:
    The train op.

  Raises:
    ValueError: an argument is wrong; another optimizer; the loss depends on nothing that can be trained; a lookup inside a loop or
      function.
    NotImplementedError: an optimizer of mxrec, and the loss depends on variables too.
  """
  _validate.loss(loss)
  _validate.global_step(global_step)
  if clip_norm is not None:
    _validate.scalar("clip_norm", clip_norm)
    if not _validate.is_tensor(clip_norm) and not 0 < clip_norm < float("inf"):
      raise ValueError(f"clip_norm must be a finite number above 0: got {clip_norm!r}")
  wrapper = optimizer if getattr(optimizer, "takes_looked_up_rows", False) else None
  sparse = None if wrapper is not None else sparse_optimizer(optimizer)
  rows = optimizer_lib.rows_behind(loss)
  variables = list(tf.compat.v1.trainable_variables())
  if not rows and not variables:
    raise ValueError("No variables to optimize: the loss depends on no table, and there is no trainable variable")
  pairs = (wrapper or sparse.dense_optimizer or sparse).compute_gradients(loss, variables + rows)
  dense = [(gradient, variable) for gradient, variable in pairs[: len(variables)] if gradient is not None]
  row_pairs = [pair for pair in pairs[len(variables) :] if pair[0] is not None]
  if not dense and not row_pairs:
    raise ValueError("No gradients provided: the loss depends on no table and no trainable variable")
  if sparse is not None:
    _check_trains(sparse, optimizer, dense)
  spread = [pair[1] for pair in row_pairs if optimizer_lib.find_lookup(pair[1]).table.distribution != "none"]
  if wrapper is not None and spread and clip_norm is None:
    return wrapper.apply_gradients(dense + row_pairs, global_step, f"{wrapper.get_name()}_minimize")
  tables = optimizer_lib.row_gradients(row_pairs, mean=True) if row_pairs else []
  if sparse is not None:
    dense = _averaged(dense)
  elif spread:  # the gradients of rows that are clipped have been exchanged, so the wrapper cannot do that any more
    inner = getattr(wrapper, "applies_by", None)
    if inner is None:
      raise NotImplementedError(
        f"clip_norm with {type(optimizer).__name__} around the optimizer, for tables that several ranks train: mxrec.minimize "
        "averages over the ranks itself, so give it the optimizer alone"
      )
    wrapper, sparse = None, sparse_optimizer(inner)
    _check_trains(sparse, inner, dense)
  if clip_norm is not None:
    dense, tables = _clip(dense, tables, clip_norm)
  name = f"{(wrapper or sparse).get_name()}_minimize"
  if wrapper is not None:
    return wrapper.apply_gradients(dense + [(part.gradient, part.record.rows) for part in tables], global_step, name)
  return _apply(sparse, dense, tables, global_step, name)


def apply_gradients(optimizer: Any, pairs: list[tuple[Any, Any]], global_step: Any, name: str | None) -> tf.Operation:
  """The train op of pairs of which some are (gradient, looked-up rows).

  Args:
    optimizer: what mxrec.sparse_optimizer takes; trains the variables, and its twin the tables.
    pairs: (gradient, variable or rows); pairs whose gradient is None are skipped.
    global_step: variable that is incremented after the updates.
    name: name of the op.

  Raises:
    ValueError: another optimizer; no gradient at all; what row gradients may not be.
    NotImplementedError: an optimizer of mxrec, and gradients of variables.
  """
  _validate.global_step(global_step)
  sparse = sparse_optimizer(optimizer)
  row_pairs = [pair for pair in pairs if optimizer_lib.find_lookup(pair[1]) is not None]
  dense = [pair for pair in pairs if optimizer_lib.find_lookup(pair[1]) is None and pair[0] is not None]
  _check_trains(sparse, optimizer, dense)
  if dense:
    row_pairs = [pair for pair in row_pairs if pair[0] is not None]
  tables = optimizer_lib.row_gradients(row_pairs, mean=True) if row_pairs else []
  return _apply(sparse, dense, tables, global_step, name or sparse.get_name())


def _check_trains(sparse: RowOptimizer, optimizer: Any, dense: list[Any]) -> None:
  if dense and sparse.dense_optimizer is None:
    raise NotImplementedError(
      f"{type(optimizer).__name__} updates tables only, and the loss depends on {len(dense)} trainable variables "
      f"(first: {dense[0][1].name}): train those with a TensorFlow optimizer's minimize, the tables with "
      "this one's"
    )


def _apply(
  sparse: RowOptimizer, dense: list[Any], tables: list[optimizer_lib.RowGradient], global_step: Any, name: str
) -> tf.Operation:
  with tf.name_scope(name):
    updates = [sparse.dense_optimizer.apply_gradients(dense)] if dense else []
  updates += optimizer_lib.apply_rows(tables, sparse.row_rule(), name)
  return optimizer_lib.finish(updates, global_step, name)


def _clip(dense: list[Any], tables: list[optimizer_lib.RowGradient], clip_norm: Any) -> tuple[list[Any], list[Any]]:
  spread = [part for part in tables if part.record.table.distribution == "MP"]
  norm = tf.linalg.global_norm(
    [_summed_dense(gradient) for gradient, _ in dense]
    + _true_norm_parts([part for part in tables if part.record.table.distribution != "MP"])
  )
  if spread:  # each rank has the gradients of the rows that it owns
    squares = tf.add_n([tf.reduce_sum(tf.square(part)) for part in _true_norm_parts(spread)])
    norm = tf.sqrt(tf.square(norm) + _collective.allreduce(squares))
  gradients = [gradient for gradient, _ in dense] + [part.gradient for part in tables]
  clipped, _ = tf.clip_by_global_norm(gradients, tf.cast(clip_norm, tf.float32), use_norm=norm)
  return (
    [(gradient, variable) for gradient, (_, variable) in zip(clipped, dense)],
    [part.replaced(gradient) for gradient, part in zip(clipped[len(dense) :], tables)],
  )


def _averaged(dense: list[Any]) -> list[Any]:
  """The gradients of variables, averaged over the ranks: what one process would find on the batches of all."""
  if _groups.world().size == 1 or not dense:
    return dense
  whole = [gradient for gradient, _ in dense if not isinstance(gradient, tf.IndexedSlices)]
  averaged = iter(_collective.allreduce(whole, average=True))
  results = []
  for gradient, variable in dense:
    if isinstance(gradient, tf.IndexedSlices):
      results.append((_slices.allreduce(gradient, average=True), variable))
    else:
      results.append((next(averaged), variable))
  return results


def _summed_dense(gradient: Any) -> tf.Tensor:
  """A variable's gradient with the parts of equal rows summed."""
  if not isinstance(gradient, tf.IndexedSlices):
    return gradient
  rows, place = tf.unique(gradient.indices)
  return tf.math.unsorted_segment_sum(gradient.values, place, tf.size(rows))
