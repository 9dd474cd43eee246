"""Recurrent layers over whole sequences: `DynamicRNN` (LSTM), `DynamicGRUV2`, `DynamicAUGRU`.

All take time-major input [steps, batch, features] and are differentiable in every output and input. The LSTM runs as one
TensorFlow op over all steps, the GRUs as a TensorFlow loop that carries the state only; the tensors of the gates are computed from
the states where a graph uses them.

With `seq_length`, the output `y` of a sequence is zero from its end on, and the states stay at its last one; gates there are zero.
The reversed pass of a bidirectional layer starts at the end of each sequence; its results stand at the steps they belong to, so its
last state is the one at step 0, and steps beyond the end hold the initial state. Input without steps gives results without steps.
"""

from __future__ import annotations

import math
import numbers
import operator
from typing import Any, ClassVar

import tensorflow.compat.v1 as tf
from tensorflow.python.layers import base as base_layer

_DIRECTIONS = ("UNIDIRECTIONAL", "BIDIRECTIONAL")


class _Sequences:
  """Which steps of a batch of sequences count: the steps before the end of each."""

  def __init__(self, layer: str, x: tf.Tensor, lengths: tf.Tensor | None):
    """The step fails, with InvalidArgumentError, when lengths are not [batch] numbers of 0 to steps."""
    self.lengths = None
    if lengths is None:
      return
    steps, batch = tf.shape(x)[0], tf.shape(x)[1]
    lengths = tf.convert_to_tensor(lengths, name="seq_length")
    if not lengths.dtype.is_integer:
      raise ValueError(f"seq_length of {layer} must be integers: got {lengths.dtype.name}")
    lengths = tf.ensure_shape(lengths, [x.shape[1]], name="seq_length_of_the_batch")
    checks = [
      tf.debugging.assert_equal(tf.shape(lengths), tf.stack([batch]), message=f"seq_length of {layer} must have shape [batch]"),
      tf.debugging.assert_non_negative(lengths, message=f"seq_length of {layer} must not be negative"),
      tf.debugging.assert_less_equal(
        lengths, tf.cast(steps, lengths.dtype), message=f"seq_length of {layer} must be at most the number of steps"
      ),
    ]
    # In the type that they come in: a cast first could bring a number that is too large back into range.
    with tf.control_dependencies([check for check in checks if check is not None]):
      self.lengths = tf.cast(tf.identity(lengths), tf.int32)
    self.valid = tf.expand_dims(tf.transpose(tf.sequence_mask(self.lengths, steps)), 2)  # [steps, batch, 1]

  def reverse(self, x: tf.Tensor) -> tf.Tensor:
    """Turns each sequence round; what lies beyond its end stays."""
    if self.lengths is None:
      return tf.reverse(x, [0])
    return tf.reverse_sequence(x, self.lengths, seq_axis=0, batch_axis=1)

  def cut(self, x: tf.Tensor) -> tf.Tensor:
    """Zeros beyond the ends."""
    return x if self.lengths is None else tf.where_v2(self.valid, x, tf.zeros_like(x))

  def hold(self, states: tf.Tensor, initial: tf.Tensor, reverse: bool) -> tf.Tensor:
    """States beyond the ends: the last one, or the initial one where the pass is reversed."""
    if self.lengths is None:
      return states
    kept = initial
    if not reverse:
      places = tf.stack([self.lengths, tf.range(tf.shape(initial)[0])], axis=1)
      kept = tf.gather_nd(tf.concat([tf.expand_dims(initial, 0), states], 0), places)
    return tf.where_v2(self.valid, states, tf.expand_dims(kept, 0))


def _before(states: tf.Tensor, initial: tf.Tensor) -> tf.Tensor:
  """The state that each step started from."""
  return tf.concat([tf.expand_dims(initial, 0), states], 0)[:-1]  # nothing where there are no steps


def _dense(x: tf.Tensor, w: tf.Tensor, b: tf.Tensor) -> tf.Tensor:
  """x [steps, batch, n] times w [n, m] plus b [m]."""
  flat = tf.matmul(tf.reshape(x, tf.stack([-1, tf.shape(w)[0]])), w) + b
  result = tf.reshape(flat, tf.concat([tf.shape(x)[:2], tf.shape(w)[1:]], 0))
  result.set_shape([*x.shape[:2], w.shape[1]])
  return result


def _has_steps(x: tf.Tensor) -> bool:
  """Whether x [steps, batch, n] is known to have steps."""
  return bool(tf.compat.dimension_value(x.shape[0]))


def _at_least_one_step(x: tf.Tensor) -> tf.Tensor:
  """x, or one step of zeros where it has none: BlockLSTM refuses that, and so do gradients of tf.scan."""
  if _has_steps(x):
    return x
  result = tf.cond(tf.shape(x)[0] > 0, lambda: x, lambda: tf.zeros(tf.concat([[1], tf.shape(x)[1:]], 0), x.dtype))
  result.set_shape([None, *x.shape[1:]])
  return result


def _as_many_steps(result: tf.Tensor, x: tf.Tensor) -> tf.Tensor:
  """A result of _at_least_one_step(x), without the step that was added."""
  return result if _has_steps(x) else result[: tf.shape(x)[0]]


class _DynamicBasic(base_layer.Layer):
  """What the layers share: their arguments, the variable of lengths, both directions."""

  _needed: ClassVar = {"cell_depth": 1, "keep_prob": 1.0, "num_proj": 0, "time_major": True, "activation": "tanh"}

  def __init__(self, hidden_size, dtype, direction, **arguments):
    super().__init__(dtype=dtype)
    try:
      self._hidden_size = operator.index(hidden_size)
    except TypeError as error:
      raise TypeError(f"hidden_size of {type(self).__name__} must be an int, found {hidden_size!r}") from error
    if self._hidden_size < 1:
      raise ValueError(f"hidden_size of {type(self).__name__} must be at least 1, found {hidden_size!r}")
    self._direction = direction
    self._arguments = arguments

  def _check(self) -> None:
    """Refuses, when the layer is called, what it cannot do; nothing is left out in silence."""
    if self._direction not in _DIRECTIONS:
      raise ValueError(f"direction of {type(self).__name__}: expected one of {_DIRECTIONS}, found {self._direction!r}")
    for name, expected in self._needed.items():
      if name in self._arguments and self._arguments[name] != expected:
        raise NotImplementedError(f"{name} of {type(self).__name__}: only {expected!r} is there, found {self._arguments[name]!r}")
    clip = self._arguments["cell_clip"]
    if clip is not None and not (isinstance(clip, numbers.Real) and clip <= 0):
      raise NotImplementedError(f"cell_clip of {type(self).__name__}: only None and numbers up to 0 are there, found {clip!r}")

  def _leading(self) -> list[int]:
    """What the shapes of a bidirectional layer begin with."""
    return [2] if self._direction == "BIDIRECTIONAL" else []

  def build(self, input_shape):
    """Makes `dynamicbase/seq_length` [batch] (int32, not trained, the number of steps); subclasses add theirs."""
    self._check()
    shape = tf.TensorShape(input_shape).with_rank(3)
    steps, batch, features = (tf.compat.dimension_value(size) for size in shape.dims)
    if features is None:
      raise ValueError(f"{type(self).__name__}: the last dimension of its input must be known, found shape {shape}")
    self._features = features
    self.seq_length = self._variable(
      "dynamicbase/seq_length", [16 if batch is None else batch], tf.constant_initializer(1 if steps is None else steps), tf.int32
    )
    self._add_weights(features)
    super().build(input_shape)

  def _variable(self, name: str, shape: list[int], initializer: Any, dtype: Any = None) -> tf.Variable:
    return self.add_weight(name, shape, dtype=dtype or self.dtype, initializer=initializer, trainable=dtype is None)

  def _add_weights(self, features: int) -> None:
    raise NotImplementedError

  def _state(self, given: tf.Tensor | None, x: tf.Tensor, name: str) -> list[tf.Tensor]:
    """Initial states [batch, hidden], one for each direction, of [directions, batch, hidden] or zeros."""
    directions = 2 if self._leading() else 1
    if given is None:
      return [tf.zeros([tf.shape(x)[1], self._hidden_size], x.dtype)] * directions
    given = tf.convert_to_tensor(given, x.dtype)
    if not given.shape.is_compatible_with([directions, None, self._hidden_size]):
      raise ValueError(
        f"{name} of {type(self).__name__}: expected shape [{directions}, batch, {self._hidden_size}], found {given.shape}"
      )
    return [given[d] for d in range(directions)]

  def _weights(self, tensors: list[Any], direction: int) -> list[tf.Tensor]:
    return [t[direction] if self._leading() else tf.convert_to_tensor(t) for t in tensors]

  def _run(self, x, seq_length, states, tensors, one_pass, also=()):
    """one_pass(x, sequences, states, weights, also, reverse) for each direction; the results stacked where there are two."""
    x = tf.convert_to_tensor(x)
    sequences = _Sequences(type(self).__name__, x, seq_length)
    results = []
    for direction in range(2 if self._leading() else 1):
      turn = sequences.reverse if direction == 1 else tf.identity
      initial = [state[direction] for state in states]
      weights = self._weights(tensors, direction)
      inputs, *more = (turn(sequences.cut(t)) for t in (x, *also))
      outputs = one_pass(inputs, sequences, initial, weights, more, direction == 1)
      results.append([turn(output) for output in outputs])
    return tuple(tf.stack(pair, 0) for pair in zip(*results)) if self._leading() else tuple(results[0])


class DynamicRNN(_DynamicBasic):
  """An LSTM over [steps, batch, features].

  Variables, below the layer's name: `dynamicrnn/w` [features + hidden_size, 4 hidden_size] (Glorot uniform, seed 10), its columns
  the gates i, j (candidate), f, o; `dynamicrnn/b` [4 hidden_size] (zeros); both with a leading 2 when bidirectional; and the int32
  `dynamicbase/seq_length` [batch], not trained.

  Args:
    hidden_size: width of the state.
    dtype: tf.float32 or tf.float16.
    direction: "UNIDIRECTIONAL" or "BIDIRECTIONAL".
    forget_bias: added to the forget gate.
    is_training: accepted; the layer is the same either way.
    cell_type, cell_depth, use_peephole, keep_prob, cell_clip, num_proj, time_major, activation: only the defaults are there.

  Raises:
    ValueError: on the call: another direction; a feature dimension that is not known; an initial state of another shape.
    NotImplementedError: on the call: an argument other than its default that the layer cannot follow.
  """

  _needed: ClassVar = {**_DynamicBasic._needed, "cell_type": "LSTM", "use_peephole": False}

  def __init__(
    self,
    hidden_size,
    dtype,
    cell_type="LSTM",
    direction="UNIDIRECTIONAL",
    cell_depth=1,
    use_peephole=False,
    keep_prob=1.0,
    cell_clip=-1.0,
    num_proj=0,
    time_major=True,
    activation="tanh",
    forget_bias=0.0,
    is_training=True,
  ):
    super().__init__(
      hidden_size,
      dtype,
      direction,
      cell_type=cell_type,
      cell_depth=cell_depth,
      use_peephole=use_peephole,
      keep_prob=keep_prob,
      cell_clip=cell_clip,
      num_proj=num_proj,
      time_major=time_major,
      activation=activation,
    )
    self._forget_bias = forget_bias

  def _add_weights(self, features):
    gates = 4 * self._hidden_size
    shape = [*self._leading(), features + self._hidden_size, gates]
    self.rnn_w = self._variable("dynamicrnn/w", shape, tf.glorot_uniform_initializer(seed=10))
    self.rnn_b = self._variable("dynamicrnn/b", [*self._leading(), gates], tf.zeros_initializer())

  def call(self, x, seq_length=None, init_h=None, init_c=None, weight=None, bias=None):
    """Runs the layer.

    Args:
      x: [steps, batch, features].
      seq_length: int [batch], 0 to steps each (InvalidArgumentError in the step otherwise); None: all steps count.
      init_h, init_c: [1, batch, hidden_size], or [2, ...] when bidirectional; None: zeros.
      weight, bias: tensors to use in place of the layer's variables, of their shapes.

    Returns:
      y, output_h, output_c, i, j, f, o, tanhc, each [steps, batch, hidden_size], when bidirectional [2, steps, batch, hidden_size].
    """
    states = [self._state(init_h, x, "init_h"), self._state(init_c, x, "init_c")]
    tensors = [self.rnn_w if weight is None else weight, self.rnn_b if bias is None else bias]
    return self._run(x, seq_length, states, tensors, self._pass)

  def _pass(self, x, sequences, states, weights, also, reverse):
    (initial_h, initial_c), (w, b) = states, weights
    no_peephole = tf.zeros([self._hidden_size], x.dtype)
    steps = tf.shape(x)[0] if sequences.lengths is None else tf.reduce_max(tf.concat([[0], sequences.lengths], 0))
    block = tf.raw_ops.BlockLSTM(
      seq_len_max=tf.cast(steps, tf.int64),
      x=_at_least_one_step(x),
      cs_prev=initial_c,
      h_prev=initial_h,
      w=w,
      wci=no_peephole,
      wcf=no_peephole,
      wco=no_peephole,
      b=b,
      forget_bias=self._forget_bias,
      cell_clip=-1.0,
    )
    block_h, block_c = (_as_many_steps(t, x) for t in (block.h, block.cs))
    h, c = (sequences.hold(t, initial, reverse) for t, initial in ((block_h, initial_h), (block_c, initial_c)))
    # The block's own gates have no gradient.
    sums = _dense(tf.concat([x, _before(block_h, initial_h)], 2), w, b)
    i, j, f, o = tf.split(sums, 4, axis=2)
    gates = (tf.sigmoid(i), tf.tanh(j), tf.sigmoid(f + tf.cast(self._forget_bias, f.dtype)), tf.sigmoid(o), tf.tanh(block_c))
    return (sequences.cut(block_h), h, c, *(sequences.cut(gate) for gate in gates))


class _DynamicGru(_DynamicBasic):
  """The GRU of both layers below."""

  _prefix = ""

  def __init__(
    self,
    hidden_size,
    dtype,
    direction="UNIDIRECTIONAL",
    cell_depth=1,
    keep_prob=1.0,
    cell_clip=-1.0,
    num_proj=0,
    time_major=True,
    activation="tanh",
    gate_order="zrh",
    reset_after=True,
    is_training=True,
  ):
    super().__init__(
      hidden_size,
      dtype,
      direction,
      cell_depth=cell_depth,
      keep_prob=keep_prob,
      cell_clip=cell_clip,
      num_proj=num_proj,
      time_major=time_major,
      activation=activation,
    )
    if gate_order not in ("zrh", "rzh"):
      raise ValueError(f'gate_order of {type(self).__name__}: expected "zrh" or "rzh", found {gate_order!r}')
    self._gate_order = gate_order
    self._reset_after = reset_after

  def _add_weights(self, features):
    bound = 1.0 / math.sqrt(self._hidden_size)
    initializer = tf.random_uniform_initializer(-bound, bound)
    gates, lead = 3 * self._hidden_size, self._leading()
    self.weight_input = self._variable(f"{self._prefix}/weight_input", [*lead, features, gates], initializer)
    self.weight_hidden = self._variable(f"{self._prefix}/weight_hidden", [*lead, self._hidden_size, gates], initializer)
    self.bias_input = self._variable(f"{self._prefix}/bias_input", [*lead, gates], initializer)
    self.bias_hidden = self._variable(f"{self._prefix}/bias_hidden", [*lead, gates], initializer)

  def _tensors(self):
    return [self.weight_input, self.weight_hidden, self.bias_input, self.bias_hidden]

  def _step(self, sums, h, w, b, attention):
    """One step, or all at once: update, scaled update, reset, candidate, its hidden part and the next state from the state before.

    sums [..., 3 hidden] are the input's part of the gates; h [..., hidden]; attention [..., 1] or None.
    """
    dense = tf.nn.xw_plus_b if h.shape.rank == 2 else _dense
    size = self._hidden_size
    first, second, sum_n = tf.split(sums, 3, axis=-1)
    if self._reset_after:
      hidden_first, hidden_second, hidden_n = tf.split(dense(h, w, b), 3, axis=-1)
    else:
      hidden_first, hidden_second = tf.split(dense(h, w[:, : 2 * size], b[: 2 * size]), 2, axis=-1)
    z, r = tf.sigmoid(first + hidden_first), tf.sigmoid(second + hidden_second)
    if self._gate_order == "rzh":
      z, r = r, z
    if not self._reset_after:
      hidden_n = dense(r * h, w[:, 2 * size :], b[2 * size :])
    n = tf.tanh(sum_n + (r * hidden_n if self._reset_after else hidden_n))
    scaled = z if attention is None else (1.0 - attention) * z
    return z, scaled, r, n, hidden_n, scaled * h + (1.0 - scaled) * n

  def _pass(self, x, sequences, states, weights, also, reverse):
    (initial,), (w_input, w, b_input, b) = states, weights
    attention = also[0] if also else None
    sums = _dense(x, w_input, b_input)

    def advance(h, at_step):
      return self._step(at_step[0], h, w, b, at_step[1] if also else None)[-1]

    states_of_steps = tf.scan(advance, tuple(_at_least_one_step(t) for t in (sums, *also)), initializer=initial)
    states_of_steps = _as_many_steps(states_of_steps, x)
    states_of_steps.set_shape([x.shape[0], x.shape[1], self._hidden_size])
    z, scaled, r, n, hidden_n, _ = self._step(sums, _before(states_of_steps, initial), w, b, attention)
    gates = (z, scaled, r, n, hidden_n) if also else (z, r, n, hidden_n)
    h = sequences.hold(states_of_steps, initial, reverse)
    return (sequences.cut(states_of_steps), h, *(sequences.cut(gate) for gate in gates))


class DynamicGRUV2(_DynamicGru):
  """A GRU over [steps, batch, features].

  z and r are the sigmoid of their parts of x weight_input + bias_input + h weight_hidden + bias_hidden; the new gate n is the
  tanh of the input's part plus r times the hidden part (`reset_after`), or plus the hidden part of r h; the next state is
  z h + (1 - z) n.

  Variables, below the layer's name: `dynamicgruv2/weight_input` [features, 3 hidden_size], `dynamicgruv2/weight_hidden`
  [hidden_size, 3 hidden_size], `dynamicgruv2/bias_input` and `dynamicgruv2/bias_hidden` [3 hidden_size], all uniform within
  +-1 / sqrt(hidden_size), with a leading 2 when bidirectional; and the int32 `dynamicbase/seq_length` [batch], not trained.

  Args:
    hidden_size: width of the state.
    dtype: tf.float32 or tf.float16.
    direction: "UNIDIRECTIONAL" or "BIDIRECTIONAL".
    gate_order: "zrh" or "rzh", the order of the gates in the variables.
    reset_after: whether the reset gate acts after the product with weight_hidden.
    is_training: accepted; the layer is the same either way.
    cell_depth, keep_prob, cell_clip, num_proj, time_major, activation: only the defaults are there.

  Raises:
    ValueError: another gate_order; on the call: another direction, a feature dimension that is not known, an initial state of
      another shape.
    NotImplementedError: on the call: an argument other than its default that the layer cannot follow.
  """

  _prefix = "dynamicgruv2"

  def call(self, x, seq_length=None, init_h=None):
    """Runs the layer.

    Args:
      x: [steps, batch, features].
      seq_length: int [batch], 0 to steps each (InvalidArgumentError in the step otherwise); None: all steps count.
      init_h: [1, batch, hidden_size], or [2, ...] when bidirectional; None: zeros.

    Returns:
      y, output_h, update (z), reset (r), new (n), hidden_new (the hidden part of n), each [steps, batch, hidden_size], when
      bidirectional [2, steps, batch, hidden_size].
    """
    return self._run(x, seq_length, [self._state(init_h, x, "init_h")], self._tensors(), self._pass)


class DynamicAUGRU(_DynamicGru):
  """A GRU whose update gate is scaled by attention (DIEN): z' = (1 - weight_att) z, next state z' h + (1 - z') n.

  Variables, arguments and errors are those of `DynamicGRUV2`, with the prefix `dynamicaugru/`.
  """

  _prefix = "dynamicaugru"

  def call(self, x, weight_att=None, seq_length=None, init_h=None):
    """Runs the layer.

    Args:
      x: [steps, batch, features].
      weight_att: [steps, batch] or [steps, batch, 1], of the type of x. (Positionally it may also stand after seq_length.)
      seq_length: int [batch], 0 to steps each (InvalidArgumentError in the step otherwise); None: all steps count.
      init_h: [1, batch, hidden_size], or [2, ...] when bidirectional; None: zeros.

    Returns:
      y, output_h, update (z), update_att (z'), reset (r), new (n), hidden_new, each [steps, batch, hidden_size], when bidirectional
      [2, steps, batch, hidden_size].

    Raises:
      ValueError: weight_att is missing or has another rank; and as `DynamicGRUV2`.
    """
    x = tf.convert_to_tensor(x)
    if seq_length is not None and tf.convert_to_tensor(seq_length).dtype.is_floating:
      weight_att, seq_length = seq_length, weight_att
    if weight_att is None:
      raise ValueError("DynamicAUGRU needs weight_att [steps, batch]")
    weight_att = tf.convert_to_tensor(weight_att, x.dtype)
    if weight_att.shape.rank == 2:
      weight_att = tf.expand_dims(weight_att, 2)
    if weight_att.shape.rank != 3 or not weight_att.shape[2:].is_compatible_with([1]):
      raise ValueError(f"weight_att of DynamicAUGRU: expected shape [steps, batch] or [steps, batch, 1], found {weight_att.shape}")
    states = [self._state(init_h, x, "init_h")]
    return self._run(x, seq_length, states, self._tensors(), self._pass, also=(weight_att,))
