"""Errors that scripts catch."""

from __future__ import annotations

import tensorflow as tf


class HorovodInternalError(RuntimeError):
  """A collective operation failed because a rank is gone or silent, or gave up waiting; the text names it."""


class HostsUpdatedInterrupt(RuntimeError):
  """The machines of an elastic job changed. Never raised here, where the number of ranks is fixed.

  Attributes:
    skip_sync: whether the state need not be synchronised.
  """

  def __init__(self, skip_sync: bool = False):
    super().__init__(skip_sync)
    self.skip_sync = skip_sync


class BrokenWorldError(HorovodInternalError, tf.errors.InternalError):
  """The same as Horovod's and as TensorFlow's error, so that either `except` catches it."""

  def __init__(self, error: tf.errors.OpError):
    tf.errors.InternalError.__init__(self, error.node_def, error.op, error.message)


# What a collective ends with when it is not the caller's fault. What ranks disagree on is an InvalidArgumentError.
BROKEN = (tf.errors.InternalError, tf.errors.UnavailableError, tf.errors.FailedPreconditionError)


def raise_broken(error: tf.errors.OpError) -> None:
  """Raises what a failed collective is to Python code: HorovodInternalError when a rank is the reason, else the error itself."""
  if isinstance(error, BROKEN):
    raise BrokenWorldError(error) from error
  raise error
