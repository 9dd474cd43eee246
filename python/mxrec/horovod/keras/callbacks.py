"""What `from horovod.keras import callbacks` gives: the same as horovod.tensorflow.keras.callbacks."""

from mxrec.horovod.tensorflow.keras.callbacks import (
  BroadcastGlobalVariablesCallback,
  LearningRateScheduleCallback,
  LearningRateWarmupCallback,
  MetricAverageCallback,
)

__all__ = [
  "BroadcastGlobalVariablesCallback",
  "LearningRateScheduleCallback",
  "LearningRateWarmupCallback",
  "MetricAverageCallback",
]
