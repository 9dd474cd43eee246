"""What TensorFlow 2 scripts open: a device that is the CPU."""

from __future__ import annotations

import contextlib
from typing import Any


class _Options:
  """Any option can be set, and read back; options below options too."""

  def __getattr__(self, name: str) -> Any:
    if name.startswith("__"):
      raise AttributeError(name)
    made = _Options()
    object.__setattr__(self, name, made)
    return made


_options = _Options()


def global_options() -> Any:
  """The options of the device; setting any has no effect on what is computed here."""
  return _options


class NpuDevice:
  """The device that `open` returns."""

  def __init__(self, device_id: int) -> None:
    self.device_id = device_id

  def name(self) -> str:
    """TensorFlow's name of the device that computes."""
    return "/device:CPU:0"

  def as_default(self) -> NpuDevice:
    """Makes it the default: everything runs on the CPU anyway. May be used in a `with` statement."""
    return self

  def scope(self) -> contextlib.AbstractContextManager[None]:
    """A scope on this device."""
    return contextlib.nullcontext()

  def __enter__(self) -> NpuDevice:
    return self

  def __exit__(self, *failure: Any) -> None:
    pass


_opened: NpuDevice | None = None


def open(device_id: int | None = None) -> NpuDevice:
  """Opens the device; again: the same object.

  Args:
    device_id: an int of at least 0, or None: 0.

  Raises:
    TypeError: no int.
    ValueError: below 0.
    RuntimeError: another device is open.
  """
  global _opened
  if device_id is not None and (not isinstance(device_id, int) or isinstance(device_id, bool)):
    raise TypeError(f"device_id must be int or None: got {type(device_id).__name__} {device_id!r}")
  if device_id is not None and device_id < 0:
    raise ValueError(f"device_id must be at least 0: got {device_id}")
  if _opened is None:
    _opened = NpuDevice(device_id or 0)
  elif device_id is not None and device_id != _opened.device_id:
    raise RuntimeError(f"npu_device.open({device_id}): device {_opened.device_id} is open, and a process has one")
  return _opened


def set_npu_loop_size(loop_size: int) -> None:
  """Kept for scripts that loop on the device in TensorFlow 2 style; their loops run as written here.

  Raises:
    ValueError: no int above 0.
  """
  if not isinstance(loop_size, int) or isinstance(loop_size, bool) or loop_size < 1:
    raise ValueError(f"loop_size must be an int above 0: got {loop_size!r}")
