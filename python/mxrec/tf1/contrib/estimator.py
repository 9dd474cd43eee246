"""tf.contrib.estimator: what moved into tf.estimator."""

from __future__ import annotations

from typing import Any

from mxrec.tf1._facade import load_estimator

__all__ = [
  "InMemoryEvaluatorHook",
  "add_metrics",
  "make_early_stopping_hook",
  "stop_if_higher_hook",
  "stop_if_lower_hook",
  "stop_if_no_decrease_hook",
  "stop_if_no_increase_hook",
]


def __getattr__(name: str) -> Any:
  if name in __all__:
    estimator = load_estimator()
    return estimator.add_metrics if name == "add_metrics" else getattr(estimator.experimental, name)
  raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
