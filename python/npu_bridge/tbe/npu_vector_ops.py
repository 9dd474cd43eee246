"""Operators of the NPU's vector unit. The pieces of LAMB are not here: mxrec.LambOptimizer trains tables, tf.train the rest."""

from __future__ import annotations

from typing import Any


def lamb_apply_optimizer_assign(*args: Any, **kwargs: Any) -> Any:
  """Would compute the update of LAMB: NotImplementedError."""
  raise NotImplementedError("npu_vector_ops.lamb_apply_optimizer_assign: the pieces of LAMB are not available here")


def lamb_apply_weight_assign(*args: Any, **kwargs: Any) -> Any:
  """Would apply the update of LAMB: NotImplementedError."""
  raise NotImplementedError("npu_vector_ops.lamb_apply_weight_assign: the pieces of LAMB are not available here")
