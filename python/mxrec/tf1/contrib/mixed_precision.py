"""tf.contrib.mixed_precision: loss scaling, by the managers and the optimizer of npu_bridge, which have the same arguments."""

from __future__ import annotations

from typing import Any

__all__ = ["ExponentialUpdateLossScaleManager", "FixedLossScaleManager", "LossScaleOptimizer"]


def __getattr__(name: str) -> Any:
  if name in ("ExponentialUpdateLossScaleManager", "FixedLossScaleManager"):
    from npu_bridge.estimator.npu import npu_loss_scale_manager

    return getattr(npu_loss_scale_manager, name)
  if name == "LossScaleOptimizer":
    from npu_bridge.estimator.npu import npu_loss_scale_optimizer

    return npu_loss_scale_optimizer.NPULossScaleOptimizer
  raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
