"""Callbacks for model.fit: equal variables at the start, averaged metrics, learning rates of many ranks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from mxrec.horovod import _basics, _functions
from mxrec.horovod._process_sets import ProcessSet, global_process_set


class BroadcastGlobalVariablesCallback(tf.keras.callbacks.Callback):
  """Gives all ranks the variables of one: those of the model before the first batch, and all, the optimizer's too, after it.

  Args:
    root_rank: the rank whose values all get.
    device: ignored.
    local_variables: variables that stay as they are on each rank.
    process_set: the ranks that take part.
  """

  def __init__(self, root_rank: int, device: str = "", local_variables: Any = None, process_set: ProcessSet = global_process_set):
    super().__init__()
    self.root_rank, self.process_set = root_rank, process_set
    self.broadcast_done = False
    self._local = {id(variable): variable for variable in local_variables or ()}

  def register_local_var(self, var: Any) -> None:
    """This variable stays as it is on each rank."""
    self._local[id(var)] = var

  def _give(self, variables: Any) -> None:
    todo = [variable for variable in variables if id(variable) not in self._local]
    operation = _functions.broadcast_variables(todo, self.root_rank, process_set=self.process_set)
    if operation is not None:
      tf.compat.v1.keras.backend.get_session().run(operation)

  def on_train_begin(self, logs: Any = None) -> None:
    """For the first batch."""
    if not self.broadcast_done and self.model.built:
      self._give(self.model.variables)

  def on_batch_end(self, batch: int, logs: Any = None) -> None:
    """Once: after the first batch everything exists."""
    if self.broadcast_done:
      return
    self.broadcast_done = True
    variables = self.model.optimizer.variables
    own = list(variables() if callable(variables) else variables)
    known = {id(variable) for variable in self.model.variables}
    self._give([*self.model.variables, *(variable for variable in own if id(variable) not in known)])


class MetricAverageCallback(tf.keras.callbacks.Callback):
  """Replaces the metrics of an epoch by their means over the ranks. Stands before callbacks that use them."""

  def __init__(self, device: str = "", process_set: ProcessSet = global_process_set):
    super().__init__()
    self.process_set = process_set

  def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
    """Changes `logs`."""
    if logs:
      names = sorted(name for name, value in logs.items() if _is_number(value))
      logs.update(zip(names, _functions.metric_average([float(logs[name]) for name in names], self.process_set)))


def _is_number(value: Any) -> bool:
  try:
    float(value)
  except (TypeError, ValueError):
    return False
  return True


class LearningRateScheduleCallback(tf.keras.callbacks.Callback):
  """Multiplies the learning rate during some epochs.

  Args:
    initial_lr: the learning rate that is multiplied.
    multiplier: a number, or a function of the epoch; without staircase the epoch is a fraction.
    start_epoch: the first epoch in which it counts.
    end_epoch: the first one in which it does not any more; None: to the end.
    staircase: change at the start of epochs, not with every batch.
    momentum_correction: momentum is scaled along with a change, for one batch.
    steps_per_epoch: batches of an epoch, when Keras does not know.
  """

  def __init__(
    self,
    initial_lr: float,
    multiplier: float | Callable[[float], float],
    start_epoch: int = 0,
    end_epoch: int | None = None,
    staircase: bool = True,
    momentum_correction: bool = True,
    steps_per_epoch: int | None = None,
  ):
    super().__init__()
    if initial_lr is None:
      raise ValueError("initial_lr is needed: the learning rate that is multiplied")
    self.initial_lr, self.start_epoch, self.end_epoch = initial_lr, start_epoch, end_epoch
    self.staircase = staircase or not callable(multiplier)
    self.momentum_correction, self.steps_per_epoch = momentum_correction, steps_per_epoch
    self.multiplier = multiplier if callable(multiplier) else lambda _: multiplier
    self.current_epoch = 0
    self._momentum: float | None = None

  def on_train_begin(self, logs: Any = None) -> None:
    """Finds out how many batches an epoch has; ValueError when nobody says."""
    if not self.staircase and not self.steps_per_epoch:
      self.steps_per_epoch = (self.params or {}).get("steps")
      if not self.steps_per_epoch:
        raise ValueError("steps_per_epoch is needed: Keras does not know how many batches an epoch has")

  def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
    """Keeps the epoch."""
    self.current_epoch = epoch

  def on_batch_begin(self, batch: int, logs: Any = None) -> None:
    """Sets the learning rate."""
    if self.current_epoch < self.start_epoch or (self.end_epoch is not None and self.current_epoch >= self.end_epoch):
      return
    if self.staircase and batch == 0:
      self._adjust(self.current_epoch)
    elif not self.staircase:
      self._adjust(self.current_epoch + batch / (self.steps_per_epoch or 1))

  def on_batch_end(self, batch: int, logs: Any = None) -> None:
    """Gives momentum its value back."""
    if self._momentum is not None:
      self._set("momentum", self._momentum)
      self._momentum = None

  def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
    """Shows the learning rate among the metrics."""
    if logs is not None:
      logs["lr"] = self._get("learning_rate")

  def _adjust(self, epoch: float) -> None:
    before, after = self._get("learning_rate"), self.initial_lr * self.multiplier(epoch)
    self._set("learning_rate", after)
    momentum = getattr(self.model.optimizer, "momentum", None)
    if self.momentum_correction and momentum is not None and before and (current := self._get("momentum")):
      self._momentum = current
      self._set("momentum", current * after / before)

  def _get(self, name: str) -> float:
    value = getattr(self.model.optimizer, name)
    if isinstance(value, tf.Variable) and not tf.executing_eagerly():
      return float(tf.compat.v1.keras.backend.get_value(value))
    return float(value)

  def _set(self, name: str, value: float) -> None:
    there = getattr(self.model.optimizer, name)
    if isinstance(there, tf.Variable) and not tf.executing_eagerly():
      tf.compat.v1.keras.backend.set_value(there, value)
    elif hasattr(there, "assign"):
      there.assign(value)
    else:
      setattr(self.model.optimizer, name, value)


class LearningRateWarmupCallback(LearningRateScheduleCallback):
  """Raises the learning rate from initial_lr / size() to initial_lr over the first epochs, with every batch.

  Args:
    initial_lr: the learning rate of all ranks together, which is reached at the end.
    warmup_epochs: the number of epochs.
    momentum_correction: as for LearningRateScheduleCallback.
    steps_per_epoch: as for LearningRateScheduleCallback.
    verbose: above 0, rank 0 says when it is reached.
  """

  def __init__(
    self,
    initial_lr: float,
    warmup_epochs: int = 5,
    momentum_correction: bool = True,
    steps_per_epoch: int | None = None,
    verbose: int = 0,
  ):
    def multiplier(epoch: float) -> float:
      # Counts the batch that is about to run, so that the last one of the warm-up has the whole rate.
      epoch += 1 / (self.steps_per_epoch or 1)
      size = _basics.size()
      return (1 + epoch * (size - 1) / warmup_epochs) / size

    super().__init__(initial_lr, multiplier, 0, warmup_epochs, False, momentum_correction, steps_per_epoch)
    self.verbose = verbose

  def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
    """Says that the warm-up has ended."""
    super().on_epoch_end(epoch, logs)
    if self.verbose > 0 and epoch + 1 == self.end_epoch and _basics.rank() == 0:
      print(f"Epoch {epoch + 1}: the learning rate has been raised to {self._get('learning_rate'):g}")
