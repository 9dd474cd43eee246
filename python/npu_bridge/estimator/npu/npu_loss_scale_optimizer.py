"""NPULossScaleOptimizer: trains with a scaled loss and skips steps that overflowed."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from npu_bridge.estimator.npu import _gradients


class NPULossScaleOptimizer(_gradients.WrappingOptimizer):
  """Scales the loss for the backward pass, divides the gradients by the scale again, and applies them only when all are finite.

  A step with a NaN or an infinity in any gradient, of a variable or of looked-up rows, changes nothing: no variable, no row, slot
  or use count of a table, no step counter. The loss scale manager is told of each step. Attributes that this class does not have
  are those of the wrapped optimizer.
  """

  def __init__(self, opt: Any, loss_scale_manager: Any, is_distributed: bool = False) -> None:
    """Makes an optimizer.

    Args:
      opt: a tf.train.Optimizer; mxrec's are.
      loss_scale_manager: of npu_loss_scale_manager.
      is_distributed: a step counts as finite when it is on all ranks.

    Raises:
      TypeError: no optimizer, or no manager.
    """
    super().__init__(opt, f"NPULossScaleOptimizer{type(opt).__name__}")
    self._loss_scale_manager = _gradients.checked_manager("NPULossScaleOptimizer", loss_scale_manager)
    self._is_distributed = is_distributed

  def compute_gradients(self, loss: Any, *args: Any, **kwargs: Any) -> list[tuple[Any, Any]]:
    """The (gradient, variable) pairs of `loss`, computed through the scaled loss; arguments as of tf.train.Optimizer."""
    return _gradients.compute_scaled(self._opt, self._loss_scale_manager.get_loss_scale(), loss, *args, **kwargs)

  def apply_gradients(self, grads_and_vars: Iterable[tuple[Any, Any]], global_step: Any = None, name: str | None = None) -> Any:
    """The train op of (gradient, variable) pairs; see the class.

    Args:
      grads_and_vars: pairs of compute_gradients, or gradients changed since; None is no gradient.
      global_step: variable that is incremented in steps that are applied.
      name: name of the op that applies.

    Raises:
      ValueError: no gradient at all.
    """
    return _gradients.apply_if_finite(self._opt, self._loss_scale_manager, self._is_distributed, grads_and_vars, global_step, name)
