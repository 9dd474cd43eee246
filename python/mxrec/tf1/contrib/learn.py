"""tf.contrib.learn: the few names that scripts still use; the rest moved into tf.estimator."""

from __future__ import annotations

from typing import Any

from mxrec.tf1._facade import load_estimator

__all__ = ["Estimator", "ModeKeys", "RunConfig"]


class ModeKeys:
  """Modes of contrib's own estimators."""

  TRAIN = "train"
  EVAL = "eval"
  INFER = "infer"


def __getattr__(name: str) -> Any:
  if name in ("Estimator", "RunConfig"):
    return getattr(load_estimator(), name)
  raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
