"""tf.contrib.rnn: the cells of tf.nn.rnn_cell, and a few more."""

from __future__ import annotations

from typing import Any

import tensorflow.compat.v1 as tf

from mxrec.tf1.contrib import _rnn_parts

_cells = tf.nn.rnn_cell
BasicLSTMCell = _cells.BasicLSTMCell
BasicRNNCell = _cells.BasicRNNCell
DeviceWrapper = _cells.DeviceWrapper
DropoutWrapper = _cells.DropoutWrapper
GRUCell = _cells.GRUCell
LSTMCell = _cells.LSTMCell
LSTMStateTuple = _cells.LSTMStateTuple
MultiRNNCell = _cells.MultiRNNCell
RNNCell = _cells.RNNCell
ResidualWrapper = _cells.ResidualWrapper
static_rnn = tf.nn.static_rnn
static_bidirectional_rnn = tf.nn.static_bidirectional_rnn
static_state_saving_rnn = tf.nn.static_state_saving_rnn
_linear = _rnn_parts.linear

__all__ = [
  "BasicLSTMCell",
  "BasicRNNCell",
  "DeviceWrapper",
  "DropoutWrapper",
  "GRUBlockCell",
  "GRUBlockCellV2",
  "GRUCell",
  "LSTMBlockCell",
  "LSTMCell",
  "LSTMStateTuple",
  "LayerNormBasicLSTMCell",
  "MultiRNNCell",
  "RNNCell",
  "ResidualWrapper",
  "_linear",
  "stack_bidirectional_dynamic_rnn",
  "static_bidirectional_rnn",
  "static_rnn",
  "static_state_saving_rnn",
]


class LSTMBlockCell(BasicLSTMCell):
  """BasicLSTMCell under the variable names of the block cell, lstm_cell/{kernel,bias}."""

  def __init__(
    self,
    num_units: int,
    forget_bias: float = 1.0,
    cell_clip: Any = None,
    use_peephole: bool = False,
    dtype: Any = None,
    reuse: Any = None,
    name: str = "lstm_cell",
  ):
    """NotImplementedError: cell_clip or use_peephole."""
    if cell_clip is not None or use_peephole:
      raise NotImplementedError("tf.contrib.rnn.LSTMBlockCell: cell_clip and use_peephole are not supplied: use LSTMCell")
    super().__init__(num_units, forget_bias=forget_bias, reuse=reuse, name=name, dtype=dtype)


class GRUBlockCellV2(GRUCell):
  """GRUCell under the variable names of the block cell, gru_cell/{gates,candidate}."""

  def __init__(self, num_units: int | None = None, cell_size: int | None = None, reuse: Any = None, name: str = "gru_cell"):
    """`cell_size` is the old name of `num_units`."""
    super().__init__(num_units if num_units is not None else cell_size, reuse=reuse, name=name)


GRUBlockCell = GRUBlockCellV2


class LayerNormBasicLSTMCell(RNNCell):
  """LSTM with layer normalization of the four gates and of the state, and dropout of the candidate.

  Variables: kernel [inputs + units, 4 * units] without bias, and {input,transform,forget,output,state}/{gamma,beta}.
  """

  def __init__(
    self,
    num_units: int,
    forget_bias: float = 1.0,
    input_size: Any = None,
    activation: Any = tf.tanh,
    layer_norm: bool = True,
    norm_gain: float = 1.0,
    norm_shift: float = 0.0,
    dropout_keep_prob: Any = 1.0,
    dropout_prob_seed: Any = None,
    reuse: Any = None,
  ):
    """`input_size` is ignored, as in TensorFlow 1.15. Without `layer_norm` there is a bias instead."""
    super().__init__(_reuse=reuse)
    self._num_units = num_units
    self._forget_bias = forget_bias
    self._activation = activation
    self._layer_norm = layer_norm
    self._gain, self._shift = norm_gain, norm_shift
    self._keep_prob, self._seed = dropout_keep_prob, dropout_prob_seed

  @property
  def state_size(self) -> Any:
    return LSTMStateTuple(self._num_units, self._num_units)

  @property
  def output_size(self) -> int:
    return self._num_units

  def _normalized(self, values: Any, scope: str) -> Any:
    if not self._layer_norm:
      return values
    with tf.variable_scope(scope):
      gamma = tf.get_variable("gamma", [self._num_units], initializer=tf.constant_initializer(self._gain))
      beta = tf.get_variable("beta", [self._num_units], initializer=tf.constant_initializer(self._shift))
    mean, variance = tf.nn.moments(values, [1], keepdims=True)
    return tf.nn.batch_normalization(values, mean, variance, beta, gamma, 1e-12)

  def call(self, inputs: Any, state: Any) -> tuple[Any, Any]:
    """inputs [batch, n], state (c, h) -> (new h, new state)."""
    c, h = state
    gates = _rnn_parts.linear([inputs, h], 4 * self._num_units, bias=not self._layer_norm)
    parts = zip(tf.split(gates, 4, axis=1), ("input", "transform", "forget", "output"))
    i, j, f, o = (self._normalized(part, scope) for part, scope in parts)
    candidate = self._activation(j)
    if not isinstance(self._keep_prob, float) or self._keep_prob < 1:
      candidate = tf.nn.dropout(candidate, keep_prob=self._keep_prob, seed=self._seed)
    new_c = c * tf.sigmoid(f + self._forget_bias) + tf.sigmoid(i) * candidate
    new_c = self._normalized(new_c, "state")
    new_h = self._activation(new_c) * tf.sigmoid(o)
    return new_h, LSTMStateTuple(new_c, new_h)


def stack_bidirectional_dynamic_rnn(
  cells_fw: list[Any],
  cells_bw: list[Any],
  inputs: Any,
  initial_states_fw: Any = None,
  initial_states_bw: Any = None,
  dtype: Any = None,
  sequence_length: Any = None,
  parallel_iterations: Any = None,
  time_major: bool = False,
  scope: Any = None,
) -> tuple[Any, tuple[Any, ...], tuple[Any, ...]]:
  """Bidirectional layers, each over the concatenated outputs of the one below.

  Returns:
    Outputs [batch, time, forward + backward units], final states forward, final states backward.

  Raises:
    ValueError: the lists are empty or not of equal length.
  """
  if not cells_fw or len(cells_fw) != len(cells_bw):
    raise ValueError(
      f"stack_bidirectional_dynamic_rnn needs as many forward as backward cells: got {len(cells_fw)} and {len(cells_bw)}"
    )
  states_fw, states_bw = [], []
  layer = inputs
  with tf.variable_scope(scope or "stack_bidirectional_rnn"):
    for index, (forward, backward) in enumerate(zip(cells_fw, cells_bw)):
      with tf.variable_scope(f"cell_{index}"):
        outputs, (state_fw, state_bw) = tf.nn.bidirectional_dynamic_rnn(
          forward,
          backward,
          layer,
          initial_state_fw=initial_states_fw[index] if initial_states_fw else None,
          initial_state_bw=initial_states_bw[index] if initial_states_bw else None,
          sequence_length=sequence_length,
          parallel_iterations=parallel_iterations,
          dtype=dtype,
          time_major=time_major,
        )
      layer = tf.concat(outputs, 2)
      states_fw.append(state_fw)
      states_bw.append(state_bw)
  return layer, tuple(states_fw), tuple(states_bw)
