"""The generated op wrappers, under the names of the original."""

from __future__ import annotations

import types

from npu_bridge import __version__, npu_bridge_handle

version = __version__


def get_gen_ops() -> types.ModuleType:
  """The module of generated op wrappers: `get_gen_ops().hcom_all_reduce(...)` and every other op of the library."""
  return npu_bridge_handle
