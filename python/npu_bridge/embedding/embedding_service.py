"""The embedding service: every name can be imported and raises NotImplementedError when called."""

from __future__ import annotations

from typing import Any

from npu_bridge.embedding import _absent


def __getattr__(name: str) -> Any:
  """A class for every public name."""
  return _absent.name_of(__name__, name)
