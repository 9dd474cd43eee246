"""Weight update sharding: each variable is updated by one rank, its owner, and sent to the others."""

from __future__ import annotations

from typing import Any

import tensorflow.compat.v1 as tf

from mxrec import _groups, _slices
from mxrec import optimizer as optimizer_lib
from npu_bridge.estimator.npu import _gradients, util


def reduce_to_owners(pairs: list[tuple[Any, Any]], size: int) -> list[tuple[Any, Any]]:
  """(gradient, variable) pairs, each gradient the mean over the ranks on the owner of its variable; the others keep their own.

  Raises:
    ValueError: fewer gradients than ranks.
  """
  from npu_bridge.hccl import hccl_ops

  sharded = [(g, v) for g, v in pairs if g is not None and optimizer_lib.find_lookup(v) is None]
  if len(sharded) < size:
    raise ValueError(f"is_weight_update_sharding=True needs a gradient for each of {size} ranks: found {len(sharded)}")
  util.add_grads_and_vars(sharded, size)
  results = []
  for gradient, variable in pairs:
    if gradient is None or optimizer_lib.find_lookup(variable) is not None:
      pass
    elif isinstance(gradient, tf.IndexedSlices):
      gradient = _gradients.reduced(gradient, "mean")
    else:
      gradient = _slices.divided(hccl_ops.reduce(gradient, "sum", util.get_gid_by_weight(variable)), size)
    results.append((gradient, variable))
  return results


def apply_by_owners(opt: Any, pairs: list[tuple[Any, Any]], global_step: Any, name: str | None) -> tf.Operation:
  """Updates the variables that this rank owns (and looked-up rows), then gives all variables their owners' values."""
  from npu_bridge.hccl import hccl_ops

  me = _groups.world().rank or 0
  owners = {id(variable): util.get_gid_by_weight(variable) for gradient, variable in pairs if gradient is not None}
  own = [(g, v) for g, v in pairs if g is not None and owners[id(v)] in (me, -1)]
  with tf.control_dependencies([tf.convert_to_tensor(g) for g, v in pairs if g is not None and owners[id(v)] not in (me, -1)]):
    applied = _gradients.apply(opt, own, global_step, name) if own else tf.group(*_step(global_step))
  sent = []
  with tf.control_dependencies([applied]):
    for gradient, variable in pairs:
      if gradient is not None and owners[id(variable)] >= 0:
        sent.append(hccl_ops.broadcast([variable], owners[id(variable)])[0])
  return tf.group(applied, *sent)


def _step(global_step: Any) -> list[Any]:
  return [] if global_step is None else [tf.assign_add(global_step, 1).op]
