"""What the wrapping optimizers do with gradients: scale, check, apply or skip. For variables and looked-up rows of mxrec alike."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import tensorflow.compat.v1 as tf

from mxrec import _graph, _groups, _loader, _minimize, _slices
from mxrec import optimizer as optimizer_lib
from npu_bridge.estimator.npu import util


def rank_size() -> int:
  """The number of ranks; ValueError when the environment is malformed, or names ranks that cannot find each other."""
  util.get_ranksize()
  return _groups.world().size


def averaged(pairs: Iterable[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
  """(gradient, variable) pairs with the mean of each gradient over the ranks."""
  pairs = list(pairs)
  variables = [variable for _, variable in pairs]
  return list(zip(reduced_all([gradient for gradient, _ in pairs], variables, "mean"), variables))


def reduced(gradient: Any, reduction: str, fusion: int = 1, fusion_id: int = -1, group: str = _groups.WORLD) -> Any:
  """A tensor or IndexedSlices reduced over the ranks of a group. ValueError: a reduction that IndexedSlices do not have."""
  from npu_bridge.hccl import hccl_ops

  if isinstance(gradient, tf.IndexedSlices):
    if reduction not in ("mean", "sum"):
      raise ValueError(f"the reduction of IndexedSlices must be mean or sum: got {reduction!r}")
    return _slices.allreduce(gradient, reduction == "mean", group)
  if reduction == "mean":
    return hccl_ops.mean(gradient, fusion, fusion_id, group)
  return hccl_ops.allreduce(gradient, reduction, fusion, fusion_id, group)


def reduced_all(
  gradients: Sequence[Any],
  variables: Sequence[Any] | None,
  reduction: str,
  fusion: int = 1,
  fusion_id: int = -1,
  group: str = _groups.WORLD,
) -> list[Any]:
  """Gradients reduced over the ranks; None and gradients of looked-up rows stay as they are.

  With a split strategy (hccl.split.api) and fusion 1, those of one segment are exchanged when all of it are there.

  Args:
    gradients: tensors, IndexedSlices or None.
    variables: what each is the gradient of; None when that is not known.
    reduction: "mean", "sum", "min", "max" or "prod".
    fusion: as for hccl_ops.allreduce.
    fusion_id: as for hccl_ops.allreduce.
    group: name of the group of ranks.
  """
  travelling = [
    place
    for place, gradient in enumerate(gradients)
    if gradient is not None
    and (variables is None or optimizer_lib.find_lookup(variables[place]) is None)
    and not of_looked_up_rows(gradient)
  ]
  results = list(gradients)
  for segment in _segments(gradients, travelling, group) if fusion == 1 else [travelling]:
    ready = []
    if fusion == 1 and len(segment) > 1 and len(segment) < len(travelling):
      ready = [tf.group(*[_producer(gradients[place]) for place in segment], name="gradient_segment")]
    with tf.control_dependencies(ready):
      for place in segment:
        results[place] = reduced(gradients[place], reduction, fusion, fusion_id, group)
  return results


def _producer(gradient: Any) -> Any:
  return gradient.values if isinstance(gradient, tf.IndexedSlices) else gradient


def _segments(gradients: Sequence[Any], travelling: list[int], group: str) -> list[list[int]]:
  """The places of `travelling` by segment of the group's split strategy; one segment without a strategy."""
  from hccl.split import api as split

  strategy = None if tf.executing_eagerly() else split.chosen_split_strategy(group)
  if strategy is None or not travelling:
    return [travelling]
  kind, values = strategy
  segments: list[list[int]] = [[] for _ in range(len(values) + 1)]
  if kind == "idx":
    for index, place in enumerate(travelling):
      segments[sum(index > last for last in values)].append(place)
  else:
    sizes = [_producer(gradients[place]).shape.num_elements() or 1 for place in travelling]
    total, before = sum(sizes), 0
    for place, size in zip(travelling, sizes):
      share = 100 * (before + size / 2) / total
      segments[sum(share > sum(values[: end + 1]) for end in range(len(values)))].append(place)
      before += size
  return [segment for segment in segments if segment]


_PASSING = (
  "Identity",
  "Reshape",
  "Cast",
  "ConcatV2",
  "AddN",
  "AddV2",
  "Mul",
  "RealDiv",
  "UnsortedSegmentSum",
  "Pack",
  "StopGradient",
)
_ROW_GRADIENTS = ("MxrecPoolGradient", "MxrecClipRowsGradient")


def of_looked_up_rows(gradient: Any) -> bool:
  """Whether a gradient is one of looked-up rows, as tf.gradients makes it or scaled since, as far as its ops tell."""
  if tf.executing_eagerly():
    return False
  left = [gradient.indices if isinstance(gradient, tf.IndexedSlices) else tf.convert_to_tensor(gradient)]
  for _ in range(64):
    if not left:
      return False
    tensor = left.pop()
    if tensor.op.type in _ROW_GRADIENTS or (tensor.op.type == _graph.LOOKUP_OP and tensor.value_index == 1):
      return True
    if tensor.op.type in _PASSING:
      left.extend(tensor.op.inputs)
  return False


class WrappingOptimizer(tf.train.Optimizer):
  """An optimizer that leaves the work to another one, whose slots and further attributes it shows as its own."""

  # mxrec.minimize hands variables and looked-up rows together to compute_gradients and apply_gradients.
  takes_looked_up_rows = True

  def __init__(self, opt: Any, name: str) -> None:
    """TypeError when opt does not do what a tf.train.Optimizer does, as Keras's do not."""
    who = type(self).__name__
    if isinstance(opt, type):
      raise TypeError(f"{who} needs an optimizer: got the class {opt.__name__}")
    if not all(callable(getattr(opt, method, None)) for method in ("compute_gradients", "apply_gradients")):
      raise TypeError(f"{who} needs a tf.train.Optimizer, or one with its methods: got {type(opt).__name__} {opt!r}")
    super().__init__(use_locking=False, name=name)
    self._opt = opt

  def __getattr__(self, name: str) -> Any:
    if name == "_opt":  # not yet set, or copied without its state
      raise AttributeError(name)
    return getattr(self._opt, name)

  def get_slot(self, *args: Any, **kwargs: Any) -> Any:
    """The other optimizer's slot variable."""
    return self._opt.get_slot(*args, **kwargs)

  def get_slot_names(self, *args: Any, **kwargs: Any) -> list[str]:
    """The names of the other optimizer's slots."""
    return self._opt.get_slot_names(*args, **kwargs)

  def variables(self) -> list[Any]:
    """The other optimizer's own variables."""
    return self._opt.variables()


def checked_manager(who: str, manager: Any) -> Any:
  """The manager of a loss scale; TypeError when it is none."""
  if isinstance(manager, type) or not all(
    callable(getattr(manager, method, None)) for method in ("get_loss_scale", "update_loss_scale", "get_enable_overflow_check")
  ):
    found = f"the class {manager.__name__}" if isinstance(manager, type) else f"{type(manager).__name__} {manager!r}"
    raise TypeError(f"{who} needs a loss scale manager, such as FixedLossScaleManager: got {found}")
  return manager


def compute_scaled(opt: Any, loss_scale: Any, loss: Any, *args: Any, **kwargs: Any) -> list[tuple[Any, Any]]:
  """opt's (gradient, variable) pairs of loss, computed through loss * loss_scale and divided by the scale again."""
  loss = tf.convert_to_tensor(loss() if callable(loss) else loss)
  loss_scale = tf.identity(loss_scale)
  pairs = opt.compute_gradients(loss * tf.cast(loss_scale, loss.dtype), *args, **kwargs)
  with tf.name_scope("unscale"):
    inverse = tf.reciprocal(loss_scale)
    return [(_times(gradient, inverse), variable) for gradient, variable in pairs]


def _times(gradient: Any, factor: tf.Tensor) -> Any:
  if gradient is None:
    return None
  if isinstance(gradient, tf.IndexedSlices):
    return tf.IndexedSlices(_times(gradient.values, factor), gradient.indices, gradient.dense_shape)
  return gradient * tf.cast(factor, gradient.dtype)


def apply(opt: Any, grads_and_vars: Iterable[tuple[Any, Any]], global_step: Any, name: str | None) -> tf.Operation:
  """opt.apply_gradients, where looked-up rows are updated by the optimizer of tables that goes with opt."""
  pairs = list(grads_and_vars)
  if getattr(opt, "takes_looked_up_rows", False) or not any(optimizer_lib.find_lookup(variable) for _, variable in pairs):
    return opt.apply_gradients(pairs, global_step=global_step, name=name)
  return _minimize.apply_gradients(opt, pairs, global_step, name)


def all_finite(pairs: list[tuple[Any, Any]]) -> tf.Tensor:
  """Whether no gradient of the pairs holds a NaN or an infinity, in one pass over them: a bool scalar."""
  values = []
  for gradient, variable in pairs:
    if gradient is None:
      continue
    record = optimizer_lib.find_lookup(variable)
    if record is not None:
      # Of a lookup in a branch of a tf.cond, what is alive when the branch is not taken.
      rows = optimizer_lib.RowGradient.make(record, gradient)
      values.append(rows.values())
      if rows.shared is not None:
        values.append(rows.shares()[1])
    else:
      values.append(gradient.values if isinstance(gradient, tf.IndexedSlices) else tf.convert_to_tensor(gradient))
  if not values:
    raise ValueError("No gradients provided for any variable: all are None")
  return _loader.ops.npu_all_finite(values, name="all_finite")


def apply_if_finite(
  opt: Any,
  manager: Any,
  is_distributed: bool,
  grads_and_vars: Iterable[tuple[Any, Any]],
  global_step: Any,
  name: str | None,
) -> tf.Operation:
  """Applies gradients when all are finite, else changes no variable, no table and no step counter; then updates the loss scale.

  With `is_distributed` a step counts as finite when it is on all ranks. A manager without overflow check applies every step.
  """
  pairs = list(grads_and_vars)
  if not manager.get_enable_overflow_check():
    return apply(opt, pairs, global_step, name)
  finite = all_finite(pairs)
  if is_distributed:
    finite = _on_all_ranks(finite)
  collection = tf.get_collection_ref(tf.GraphKeys.TRAIN_OP)
  before = list(collection)
  applied = tf.cond(finite, lambda: apply(opt, pairs, global_step, name), tf.no_op)
  with tf.control_dependencies([applied]):
    train_op = manager.update_loss_scale(finite)
  collection[:] = [*before, train_op]  # instead of what was put there inside of the branch
  return train_op


def _on_all_ranks(finite: tf.Tensor) -> tf.Tensor:
  size = rank_size()
  if size <= 1:
    return finite
  from npu_bridge.hccl import hccl_ops

  return tf.equal(hccl_ops.allreduce(tf.cast(finite, tf.int32), "sum"), size)
