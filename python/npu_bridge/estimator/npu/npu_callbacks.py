"""Keras callbacks of migrated scripts."""

from __future__ import annotations

from typing import Any

from tensorflow.python.keras import callbacks as _callbacks

from npu_bridge.estimator.npu import _gradients, npu_hook, util


class NPUBroadcastGlobalVariablesCallback(_callbacks.Callback):
  """Gives trainable variables the values of one rank before the first batch. With one rank: nothing.

  Works with the models of tensorflow.python.keras and of tf_keras.

  Args:
    root_rank: the rank whose values all get.

  Raises:
    TypeError: root_rank is no int.
    ValueError: root_rank is negative; RANK_SIZE and CM_WORKER_SIZE are both set.
  """

  def __init__(self, root_rank: int = 0) -> None:
    super().__init__()
    self._root_rank = npu_hook.checked_root_rank("NPUBroadcastGlobalVariablesCallback", root_rank)
    util.get_ranksize()  # a contradiction in the environment is an error now
    self._waiting = True

  def on_batch_begin(self, batch: int, logs: Any = None) -> None:
    waiting, self._waiting = self._waiting, False
    if waiting and _gradients.rank_size() > 1:
      _keras_session().run(npu_hook.broadcast_global_variables(self._root_rank))


def _keras_session() -> Any:
  import sys

  import tensorflow.compat.v1 as tf
  from tensorflow.python.keras import backend

  return (tf.keras.backend if "tf_keras" in sys.modules else backend).get_session()
