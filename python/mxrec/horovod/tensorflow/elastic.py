"""horovod.tensorflow.elastic: refused. The number of ranks is fixed from the start of a job."""

from __future__ import annotations

from typing import Any, NoReturn

_TEXT = (
  "hvd.elastic is not supported: the number of ranks is fixed from the start. Save checkpoints, and start again from the last one "
  "when a machine is lost; it may be loaded by another number of ranks"
)


def _refuse(*args: Any, **kwargs: Any) -> NoReturn:
  """NotImplementedError: the number of ranks is fixed."""
  raise NotImplementedError(_TEXT)


run = State = ObjectState = TensorFlowState = TensorFlowKerasState = _refuse
