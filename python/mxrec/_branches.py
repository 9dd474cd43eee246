"""Tensors of a branch of a v1 `tf.cond`, for ops outside of it.

What depends on a branch that is not taken is dead: TensorFlow skips it without a word, the update op and the step counter included.
So an update takes, instead of a branch's tensor, one that is empty when the branch is not taken.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import tensorflow as tf


def _around(context: Any) -> list[Any]:
  """The contexts from this one outwards; the last one is None, the graph itself."""
  found = [context]
  while context is not None:
    context = context.outer_context
    found.append(context)
  return found


def left_on_the_way(inner: Any, outer: Any) -> list[Any] | None:
  """The conds that a tensor made in the context `inner` has to leave, innermost first, to be used in the context `outer`.

  None when it cannot: one of them is a loop, or `outer` is the other branch of one of them.
  """
  there = _around(outer)
  found = [context for context in _around(inner) if context not in there]
  for context in found:
    if context.IsWhileContext():
      return None
    if any(other is not None and not other.IsWhileContext() and other.pred is context.pred for other in there):
      return None
  return found


@contextlib.contextmanager
def _inside(context: Any) -> Iterator[None]:
  """Ops made within stand in this context (None: in no loop and no branch)."""
  graph = tf.compat.v1.get_default_graph()
  before = graph._get_control_flow_context()
  graph._set_control_flow_context(context)
  try:
    yield
  finally:
    graph._set_control_flow_context(before)


def taken_or_empty(tensor: tf.Tensor, shape: list[int | None], branches: list[Any], fewest: int = 0) -> tf.Tensor:
  """The tensor when all `branches` (of `left_on_the_way`) are taken, else zeros of `shape`; never dead because of them.

  Args:
    tensor: of any dtype but resource; made in the innermost branch or outside.
    shape: its static shape. Where that is None, the zeros have `fewest` elements.
    branches: of `left_on_the_way`.
    fewest: 0 or more.
  """
  for branch in branches:
    with _inside(branch.outer_context):
      empty = tf.zeros([fewest if size is None else size for size in shape], tensor.dtype)
      # A tensor made outside of the branch is alive always: the switch binds it to the branch.
      ours = tf.raw_ops.Switch(data=tensor, pred=branch.pred)[branch.branch]
      other = tf.raw_ops.Switch(data=empty, pred=branch.pred)[1 - branch.branch]
      tensor = tf.raw_ops.Merge(inputs=[ours, other])[0]
      tensor.set_shape(shape)
  return tensor
