"""`npu_dynamic_rnn`: a cell unrolled over time-major input."""

from __future__ import annotations

from typing import Any

import tensorflow.compat.v1 as tf


def npu_dynamic_rnn(
  cell: Any,
  inputs: tf.Tensor,
  initial_state: Any = None,
  dtype: tf.DType | None = None,
  sequence_length: Any = None,
  scope: Any = None,
) -> tuple[tf.Tensor, Any]:
  """Unrolls `cell` over the steps of `inputs`, whose number must be known.

  Args:
    cell: an RNN cell.
    inputs: [steps, batch, ...]: time-major, unlike the default of `tf.nn.dynamic_rnn`.
    initial_state: what the cell starts from; None needs `dtype` and means zeros.
    dtype: type of the initial state.
    sequence_length: int [batch]; outputs beyond are zero, the state stays. None: all steps.
    scope: variable scope; default "rnn".

  Returns:
    outputs [steps, batch, ...] and the final state.

  Raises:
    ValueError: the number of steps is not known; neither initial_state nor dtype is given.
  """
  steps = tf.unstack(tf.convert_to_tensor(inputs), axis=0)
  outputs, state = tf.nn.static_rnn(
    cell, steps, initial_state=initial_state, dtype=dtype, sequence_length=sequence_length, scope=scope
  )
  return tf.stack(outputs, axis=0), state
