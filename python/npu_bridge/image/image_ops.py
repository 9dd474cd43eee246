"""Decoding and resizing of images on the NPU: every name can be imported and raises NotImplementedError when called."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def __getattr__(name: str) -> Callable[..., Any]:
  """A function for every public name."""
  if name.startswith("_"):
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

  def function(*args: Any, **kwargs: Any) -> Any:
    raise NotImplementedError(f"npu_bridge.image.image_ops.{name}: images are not processed here; tf.image has ops for that")

  function.__name__ = function.__qualname__ = name
  return function
