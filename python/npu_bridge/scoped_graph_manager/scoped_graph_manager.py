"""Frees what the device keeps of graphs at the end of a block."""

from __future__ import annotations

from typing import Any

from npu_bridge import tf_adapter


class ScopedGraphManager:
  """A context at whose end the device frees its graphs. Here sessions free theirs when they are closed."""

  def __enter__(self) -> ScopedGraphManager:
    return self

  def __exit__(self, *failure: Any) -> None:
    self.close()

  def close(self) -> None:
    """What the end of the block does; again: nothing."""
    tf_adapter.Clear()
