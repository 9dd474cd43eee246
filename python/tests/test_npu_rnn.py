"""Recurrent layers against TensorFlow's own cells with the same weights; the LSTM cell; npu_dynamic_rnn."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from npu_bridge.estimator import npu_ops
from npu_bridge.estimator.npu import npu_rnn
from npu_bridge.estimator.npu.npu_dynamic_rnn import DynamicAUGRU, DynamicGRUV2, DynamicRNN
from tensorflow.python.keras.layers.legacy_rnn import rnn_cell_impl

T, B, F, H = 6, 4, 3, 5
LENGTHS = np.array([6, 3, 0, 5], np.int32)


def normal(*shape, seed=0):
  return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


class Gru(rnn_cell_impl.RNNCell):
  """A GRU cell written down as its formula reads; the gates of w are z, r, n."""

  def __init__(self, wi, wh, bi, bh, reset_after, attention=None):
    super().__init__()
    self.parts = (wi, wh, bi, bh, reset_after)

  state_size = output_size = H

  def call(self, inputs, h):
    wi, wh, bi, bh, after = self.parts
    x, att = inputs if isinstance(inputs, tuple) else (inputs, None)
    split = [np.s_[:, k * H : (k + 1) * H] for k in range(3)]
    sums = [x @ wi[s] + bi[s[1]] for s in split]
    z, r = (tf.sigmoid(sums[k] + h @ wh[split[k]] + bh[split[k][1]]) for k in (0, 1))
    if after:
      n = tf.tanh(sums[2] + r * (h @ wh[split[2]] + bh[split[2][1]]))
    else:
      n = tf.tanh(sums[2] + (r * h) @ wh[split[2]] + bh[split[2][1]])
    if att is not None:
      z = (1 - att) * z
    h = z * h + (1 - z) * n
    return h, h


def lstm_cell(w, b, forget_bias=0.0):
  """TensorFlow's LSTM cell with our weights: it has the same order of gates (i, j, f, o) and of rows (x, h)."""
  return rnn_cell_impl.LSTMCell(
    H,
    forget_bias=forget_bias,
    initializer=lambda shape, dtype=None, partition_info=None: w,
    name="reference",
    dtype=tf.float32,
  )


def weighted(outputs, seed=5):
  """A scalar that depends on every element of the outputs."""
  return tf.add_n([tf.reduce_sum(o * normal(*o.shape.as_list(), seed=seed + i)) for i, o in enumerate(outputs) if o is not None])


def same(sess, ours, theirs, tolerance=1e-5):
  ours, theirs = sess.run([ours, theirs])
  for i, (a, b) in enumerate(zip(ours, theirs, strict=True)):
    np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance, err_msg=f"tensor {i}")


def final(states, lengths, initial):
  """The last state of each sequence."""
  if lengths is None:
    return states[-1]
  return np.stack([states[n - 1, b] if n else initial[b] for b, n in enumerate(lengths)])


@pytest.mark.parametrize("lengths", [None, LENGTHS])
@pytest.mark.parametrize("with_state", [False, True])
def test_dynamic_rnn_is_tensorflows_lstm_in_values_and_gradients(sess, lengths, with_state):
  x = tf.constant(normal(T, B, F))
  h0 = tf.constant(normal(1, B, H, seed=1) if with_state else np.zeros((1, B, H), np.float32))
  c0 = tf.constant(normal(1, B, H, seed=2) if with_state else np.zeros((1, B, H), np.float32))
  layer = DynamicRNN(H, tf.float32, forget_bias=0.5)
  y, h, c, *gates = layer(x, lengths, h0 if with_state else None, c0 if with_state else None)
  assert [o.shape.as_list() for o in (y, h, c, *gates)] == [[T, B, H]] * 8
  cell = rnn_cell_impl.LSTMCell(H, forget_bias=0.5)
  state = rnn_cell_impl.LSTMStateTuple(c0[0], h0[0])
  expected_y, (expected_c, expected_h) = tf.nn.dynamic_rnn(cell, x, lengths, state, time_major=True)
  kernel, bias = cell.trainable_variables
  sess.run(tf.global_variables_initializer())
  sess.run([layer.rnn_b.assign(normal(4 * H, seed=3))])
  sess.run([kernel.assign(layer.rnn_w), bias.assign(layer.rnn_b)])
  same(sess, [y, h[-1], c[-1]], [expected_y, expected_h, expected_c])
  ours = tf.gradients(weighted([y, h[-1], c[-1]]), [x, h0, c0, layer.rnn_w, layer.rnn_b])
  theirs = tf.gradients(weighted([expected_y, expected_h, expected_c]), [x, h0, c0, kernel, bias])
  if not with_state:
    ours, theirs = [ours[0], *ours[3:]], [theirs[0], *theirs[3:]]
  same(sess, ours, theirs)


def test_the_gates_of_dynamic_rnn_are_those_of_its_states(sess):
  x = tf.constant(normal(T, B, F))
  layer = DynamicRNN(H, tf.float32, forget_bias=1.0)
  y, h, c, i, j, f, o, tanhc = layer(x)
  sess.run(tf.global_variables_initializer())
  y, h, c, i, j, f, o, tanhc = sess.run([y, h, c, i, j, f, o, tanhc])
  before = np.concatenate([np.zeros((1, B, H), np.float32), c[:-1]])
  np.testing.assert_allclose(c, before * f + i * j, atol=1e-5)
  np.testing.assert_allclose(tanhc, np.tanh(c), atol=1e-5)
  np.testing.assert_allclose(h, o * tanhc, atol=1e-5)
  np.testing.assert_array_equal(y, h)
  for gate in (i, f, o):
    assert (gate > 0).all() and (gate < 1).all()


def test_the_gates_of_dynamic_rnn_have_gradients(sess):
  x = tf.constant(normal(T, B, F))
  layer = DynamicRNN(H, tf.float32)
  outputs = layer(x, LENGTHS)
  sess.run(tf.global_variables_initializer())
  loss = weighted(outputs)
  gradient = sess.run(tf.gradients(loss, layer.rnn_w)[0])
  w = sess.run(layer.rnn_w)
  at = np.zeros_like(w)
  for place in [(0, 0), (F + 1, 7), (2, 13), (F, 19)]:
    at[place] = 1e-2
    up = sess.run(loss, {layer.rnn_w: w + at})
    down = sess.run(loss, {layer.rnn_w: w - at})
    assert (up - down) / 2e-2 == pytest.approx(gradient[place], rel=2e-2, abs=2e-2)
    at[place] = 0


@pytest.mark.parametrize("reset_after", [True, False])
@pytest.mark.parametrize("lengths", [None, LENGTHS])
def test_dynamic_gru_is_the_formula_under_dynamic_rnn_in_values_and_gradients(sess, reset_after, lengths):
  x, h0 = tf.constant(normal(T, B, F)), tf.constant(normal(1, B, H, seed=1))
  layer = DynamicGRUV2(H, tf.float32, reset_after=reset_after)
  y, h, *gates = layer(x, lengths, h0)
  assert [o.shape.as_list() for o in (y, h, *gates)] == [[T, B, H]] * 6
  variables = [layer.weight_input, layer.weight_hidden, layer.bias_input, layer.bias_hidden]
  expected_y, expected_h = tf.nn.dynamic_rnn(Gru(*variables, reset_after), x, lengths, h0[0], time_major=True)
  sess.run(tf.global_variables_initializer())
  same(sess, [y, h[-1]], [expected_y, expected_h])
  ours = tf.gradients(weighted([y, h[-1]]), [x, h0, *variables])
  theirs = tf.gradients(weighted([expected_y, expected_h]), [x, h0, *variables])
  same(sess, ours, theirs)


def test_dynamic_gru_is_tensorflows_gru_cell_with_converted_weights(sess):
  x = tf.constant(normal(T, B, F))
  layer = DynamicGRUV2(H, tf.float32, reset_after=False)
  y, *_ = layer(x)
  cell = rnn_cell_impl.GRUCell(H)
  expected, _ = tf.nn.dynamic_rnn(cell, x, dtype=tf.float32, time_major=True)
  gates, gates_bias, candidate, candidate_bias = cell.trainable_variables
  sess.run(tf.global_variables_initializer())
  wi, wh, bi, bh = sess.run([layer.weight_input, layer.weight_hidden, layer.bias_input, layer.bias_hidden])
  w, b = np.concatenate([wi, wh]), bi + bh
  swap = np.r_[H : 2 * H, :H]  # TensorFlow's are r, z
  sess.run([gates.assign(w[:, swap]), gates_bias.assign(b[swap])])
  sess.run([candidate.assign(w[:, 2 * H :]), candidate_bias.assign(b[2 * H :])])
  same(sess, [y], [expected])


def test_the_order_rzh_is_zrh_with_its_columns_swapped(sess):
  x = tf.constant(normal(T, B, F))
  one, other = DynamicGRUV2(H, tf.float32), DynamicGRUV2(H, tf.float32, gate_order="rzh")
  a, b = one(x), other(x)
  sess.run(tf.global_variables_initializer())
  swap = np.r_[H : 2 * H, :H, 2 * H : 3 * H]
  for name in ("weight_input", "weight_hidden", "bias_input", "bias_hidden"):
    sess.run(getattr(other, name).assign(tf.gather(getattr(one, name), swap, axis=-1)))
  same(sess, a, b, 1e-6)


@pytest.mark.parametrize("lengths", [None, LENGTHS])
def test_dynamic_augru_scales_the_update_gate_by_attention(sess, lengths):
  x, att = tf.constant(normal(T, B, F)), tf.sigmoid(normal(T, B, seed=4))
  layer = DynamicAUGRU(H, tf.float32)
  y, h, z, scaled, _r, _n, _hidden = layer(x, att, lengths)
  variables = [layer.weight_input, layer.weight_hidden, layer.bias_input, layer.bias_hidden]
  expected_y, expected_h = tf.nn.dynamic_rnn(
    Gru(*variables, True), (x, tf.expand_dims(att, 2)), lengths, tf.zeros([B, H]), time_major=True
  )
  sess.run(tf.global_variables_initializer())
  same(sess, [y, h[-1]], [expected_y, expected_h])
  ours = tf.gradients(weighted([y, h[-1]]), [x, att, *variables])
  theirs = tf.gradients(weighted([expected_y, expected_h]), [x, att, *variables])
  same(sess, ours, theirs)
  z, scaled, att = sess.run([z, scaled, att])
  np.testing.assert_allclose(scaled, z * (1 - att[:, :, None]), atol=1e-6)
  assert variables[0].name == "dynamic_augru/dynamicaugru/weight_input:0"
  if lengths is not None:
    same(sess, layer(x, lengths, att), layer(x, att, lengths), 0)  # either order


def test_augru_needs_attention_of_the_right_rank():
  x = tf.zeros([T, B, F])
  with pytest.raises(ValueError, match="weight_att"):
    DynamicAUGRU(H, tf.float32)(x)
  with pytest.raises(ValueError, match="weight_att"):
    DynamicAUGRU(H, tf.float32)(x, tf.zeros([T, B, 2]))


@pytest.mark.parametrize("lengths", [None, LENGTHS])
def test_a_bidirectional_lstm_is_both_passes_stacked(sess, lengths):
  x = tf.constant(normal(T, B, F))
  h0, c0 = tf.constant(normal(2, B, H, seed=1)), tf.constant(normal(2, B, H, seed=2))
  layer = DynamicRNN(H, tf.float32, direction="BIDIRECTIONAL")
  outputs = layer(x, lengths, h0, c0)
  assert [o.shape.as_list() for o in outputs] == [[2, T, B, H]] * 8
  assert layer.rnn_w.shape.as_list() == [2, F + H, 4 * H] and layer.rnn_b.shape.as_list() == [2, 4 * H]
  cells = [rnn_cell_impl.LSTMCell(H, forget_bias=0.0, name=f"cell_{d}") for d in range(2)]
  states = [rnn_cell_impl.LSTMStateTuple(c0[d], h0[d]) for d in range(2)]
  both, ((c_fw, h_fw), (c_bw, h_bw)) = tf.nn.bidirectional_dynamic_rnn(*cells, x, lengths, *states, time_major=True)
  sess.run(tf.global_variables_initializer())
  for d in range(2):
    kernel, bias = cells[d].trainable_variables
    sess.run([kernel.assign(layer.rnn_w[d]), bias.assign(layer.rnn_b[d])])
  y, h, c = outputs[:3]
  same(sess, [y[0], y[1], h[0, -1], c[0, -1], h[1, 0], c[1, 0]], [*both, h_fw, c_fw, h_bw, c_bw])
  ours = tf.gradients(weighted([y[0], y[1], h[1, 0]]), [x, h0, c0])
  theirs = tf.gradients(weighted([*both, h_bw]), [x, h0, c0])
  same(sess, ours, theirs)


@pytest.mark.parametrize("make", [DynamicGRUV2, DynamicAUGRU])
def test_a_bidirectional_gru_is_both_passes_stacked(sess, make):
  x, att = tf.constant(normal(T, B, F)), tf.sigmoid(normal(T, B, 1, seed=3))
  layer = make(H, tf.float32, direction="BIDIRECTIONAL")
  more = (att,) if make is DynamicAUGRU else ()
  y, h, *_ = layer(x, *more, seq_length=LENGTHS)
  parts = [[v[d] for v in (layer.weight_input, layer.weight_hidden, layer.bias_input, layer.bias_hidden)] for d in range(2)]
  inputs = (x, att) if more else x
  both, (_, h_bw) = tf.nn.bidirectional_dynamic_rnn(
    Gru(*parts[0], True), Gru(*parts[1], True), inputs, LENGTHS, tf.zeros([B, H]), tf.zeros([B, H]), time_major=True
  )
  sess.run(tf.global_variables_initializer())
  same(sess, [y[0], y[1], h[1, 0]], [*both, h_bw])


def test_variables_have_the_names_shapes_and_first_values_of_the_original(sess):
  rnn, gru = DynamicRNN(H, tf.float32), DynamicGRUV2(H, tf.float32)
  rnn(tf.zeros([T, B, F]))
  gru(tf.placeholder(tf.float32, [None, None, F]))
  found = {v.name: (v.dtype.base_dtype, v.shape.as_list()) for v in tf.global_variables()}
  assert found == {
    "dynamic_rnn/dynamicbase/seq_length:0": (tf.int32, [B]),
    "dynamic_rnn/dynamicrnn/w:0": (tf.float32, [F + H, 4 * H]),
    "dynamic_rnn/dynamicrnn/b:0": (tf.float32, [4 * H]),
    "dynamic_gru_v2/dynamicbase/seq_length:0": (tf.int32, [16]),
    "dynamic_gru_v2/dynamicgruv2/weight_input:0": (tf.float32, [F, 3 * H]),
    "dynamic_gru_v2/dynamicgruv2/weight_hidden:0": (tf.float32, [H, 3 * H]),
    "dynamic_gru_v2/dynamicgruv2/bias_input:0": (tf.float32, [3 * H]),
    "dynamic_gru_v2/dynamicgruv2/bias_hidden:0": (tf.float32, [3 * H]),
  }
  assert not any("seq_length" in v.name for v in tf.trainable_variables())
  assert len(tf.trainable_variables()) == 6
  with tf.variable_scope("again"):
    expected = tf.get_variable("w", [F + H, 4 * H], initializer=tf.glorot_uniform_initializer(seed=10))
  sess.run(tf.global_variables_initializer())
  np.testing.assert_array_equal(*sess.run([rnn.rnn_w, expected]))
  np.testing.assert_array_equal(sess.run(rnn.rnn_b), np.zeros(4 * H))
  np.testing.assert_array_equal(sess.run(rnn.seq_length), [T] * B)
  bound = 1 / np.sqrt(H)
  for v in (gru.weight_input, gru.weight_hidden, gru.bias_input, gru.bias_hidden):
    value = sess.run(v)
    assert np.abs(value).max() <= bound and np.abs(value).max() > 0.5 * bound


def test_a_second_call_uses_the_same_variables_and_a_second_layer_its_own(sess):
  x = tf.constant(normal(T, B, F))
  layer = DynamicRNN(H, tf.float32)
  first, second = layer(x), layer(x)
  assert len(tf.global_variables()) == 3
  with tf.variable_scope("tower"):
    DynamicRNN(H, tf.float32)(x)
    DynamicRNN(H, tf.float32)(x)
  names = [v.name for v in tf.global_variables() if v.name.endswith("/w:0")]
  assert names == ["dynamic_rnn/dynamicrnn/w:0", "tower/dynamic_rnn/dynamicrnn/w:0", "tower/dynamic_rnn_1/dynamicrnn/w:0"]
  sess.run(tf.global_variables_initializer())
  same(sess, first, second, 0)


def test_weights_can_be_given(sess):
  x, w, b = tf.constant(normal(T, B, F)), normal(F + H, 4 * H, seed=1), normal(4 * H, seed=2)
  given, own = DynamicRNN(H, tf.float32), DynamicRNN(H, tf.float32)
  a, c = given(x, weight=tf.constant(w), bias=tf.constant(b)), own(x)
  sess.run(tf.global_variables_initializer())
  sess.run([own.rnn_w.assign(w), own.rnn_b.assign(b)])
  same(sess, a, c, 0)


@pytest.mark.parametrize("make", [DynamicRNN, DynamicGRUV2, DynamicAUGRU])
def test_wrong_arguments_are_errors_when_the_layer_is_called(make):
  x = tf.zeros([T, B, F])
  more = (tf.zeros([T, B]),) if make is DynamicAUGRU else ()
  with pytest.raises(ValueError, match="direction"):
    make(H, tf.float32, direction="SIDEWAYS")(x, *more)
  with pytest.raises(ValueError, match="last dimension"):
    make(H, tf.float32)(tf.placeholder(tf.float32, [T, B, None]), *more)
  with pytest.raises(ValueError, match="init_h"):
    make(H, tf.float32)(x, *more, init_h=tf.zeros([2, B, H]))
  for argument in ({"cell_depth": 2}, {"keep_prob": 0.5}, {"cell_clip": 1.0}, {"num_proj": 3}, {"time_major": False}):
    with pytest.raises(NotImplementedError, match=next(iter(argument))):
      make(H, tf.float32, **argument)(x, *more)
  if make is DynamicRNN:
    with pytest.raises(NotImplementedError, match="cell_type"):
      make(H, tf.float32, cell_type="GRU")(x)
    with pytest.raises(NotImplementedError, match="use_peephole"):
      make(H, tf.float32, use_peephole=True)(x)
  else:
    with pytest.raises(ValueError, match="gate_order"):
      make(H, tf.float32, gate_order="hzr")


@pytest.mark.parametrize("make", [DynamicRNN, DynamicGRUV2])
def test_what_lies_beyond_the_end_of_a_sequence_has_no_influence(sess, make):
  x = normal(T, B, F)
  poisoned = x.copy()
  for b, n in enumerate(LENGTHS):
    x[n:, b] = 0
    poisoned[n:, b] = np.nan
  layer = make(H, tf.float32)
  fed = tf.placeholder(tf.float32, [T, B, F])
  outputs = layer(fed, LENGTHS)
  gradients = tf.gradients(weighted(outputs), layer.trainable_variables)
  sess.run(tf.global_variables_initializer())
  for a, b in zip(sess.run([*outputs, *gradients], {fed: x}), sess.run([*outputs, *gradients], {fed: poisoned})):
    np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("make", [DynamicRNN, DynamicGRUV2])
def test_half_precision_and_unknown_steps_and_batches_run(sess, make):
  x = tf.placeholder(tf.float16, [None, None, F])
  lengths = tf.placeholder(tf.int64, [None])
  outputs = make(H, tf.float16)(x, lengths)
  gradient = tf.gradients(tf.reduce_sum(outputs[0]), x)[0]
  sess.run(tf.global_variables_initializer())
  for steps, batch in ((4, 2), (1, 1)):
    y, slope = sess.run([outputs[0], gradient], {x: normal(steps, batch, F), lengths: [steps] * batch})
    assert y.dtype == np.float16 and y.shape == (steps, batch, H) and slope.shape == (steps, batch, F)
    assert np.isfinite(y).all() and np.abs(y).max() > 0


@pytest.mark.parametrize("direction", ["UNIDIRECTIONAL", "BIDIRECTIONAL"])
@pytest.mark.parametrize("with_lengths", [False, True])
@pytest.mark.parametrize("make", [DynamicRNN, DynamicGRUV2, DynamicAUGRU])
def test_no_steps_give_results_without_steps_and_steps_give_the_same_as_ever(sess, make, with_lengths, direction):
  x = tf.placeholder(tf.float32, [None, B, F])
  attention, lengths = tf.placeholder(tf.float32, [None, B]), tf.placeholder(tf.int32, [B])
  layer = make(H, tf.float32, direction=direction)

  def run(inputs, weights):
    more = {"weight_att": weights} if make is DynamicAUGRU else {}
    return layer(inputs, seq_length=lengths if with_lengths else None, **more)

  outputs = run(x, attention)
  slopes = tf.gradients(tf.add_n([tf.reduce_sum(o) for o in outputs]), [x, *layer.trainable_variables])
  known = run(tf.constant(normal(T, B, F)), tf.constant(normal(T, B, seed=1)))
  static = run(tf.zeros([0, B, F]), tf.zeros([0, B]))
  sess.run(tf.global_variables_initializer())
  none = {x: np.zeros([0, B, F]), attention: np.zeros([0, B]), lengths: np.zeros(B)}
  lead = [2] if direction == "BIDIRECTIONAL" else []
  for found in sess.run([outputs, static], none):
    assert {part.shape for part in found} == {(*lead, 0, B, H)}
  of_x, *of_weights = sess.run(slopes, none)
  assert of_x.shape == (0, B, F) and not any(part.any() for part in of_weights)
  some = {x: normal(T, B, F), attention: normal(T, B, seed=1), lengths: LENGTHS}
  for a, b in zip(*sess.run([outputs, known], some), strict=True):
    np.testing.assert_array_equal(a, b)


def test_npu_dynamic_rnn_unrolls_over_time(sess):
  x = tf.constant(normal(T, B, F))
  cell = rnn_cell_impl.LSTMCell(H)
  outputs, state = npu_rnn.npu_dynamic_rnn(cell, x, dtype=tf.float32, sequence_length=LENGTHS)
  expected, expected_state = tf.nn.dynamic_rnn(cell, x, LENGTHS, dtype=tf.float32, time_major=True)
  assert outputs.shape.as_list() == [T, B, H]
  assert [v.name for v in tf.trainable_variables()] == ["rnn/lstm_cell/kernel:0", "rnn/lstm_cell/bias:0"]
  sess.run(tf.global_variables_initializer())
  same(sess, [outputs, *state], [expected, *expected_state])
  with pytest.raises(ValueError):
    npu_rnn.npu_dynamic_rnn(cell, tf.placeholder(tf.float32, [None, B, F]), dtype=tf.float32)


# --- the cell ---


def lstm_inputs(dtype=tf.float32):
  values = (normal(B, F), normal(B, H, seed=1), normal(B, H, seed=2), normal(F + H, 4 * H, seed=3), normal(4 * H, seed=4))
  return [tf.constant(v, dtype) for v in values]


def test_basic_lstm_cell_is_one_op_that_follows_the_formula(sess):
  x, h, c, w, b = inputs = lstm_inputs()
  ours = npu_ops.basic_lstm_cell(*inputs, 1.0, 0.5, True, "tanh", name="cell")
  assert ours[0].op.type == "BasicLSTMCell" and ours[0].op.name == "cell"
  assert [t.shape.as_list() for t in ours] == [[B, H]] * 7
  i, j, f, o = tf.split(tf.concat([x, h], 1) @ w + b, 4, axis=1)
  i, j, f, o = tf.sigmoid(i), tf.tanh(j), tf.sigmoid(f + 0.5), tf.sigmoid(o)
  new_c = c * f + i * j
  theirs = [new_c, o * tf.tanh(new_c), i, j, f, o, tf.tanh(new_c)]
  same(sess, list(ours), theirs)
  same(sess, tf.gradients(weighted(ours), inputs), tf.gradients(weighted(theirs), inputs))
  same(sess, tf.gradients(ours.ht, inputs), tf.gradients(theirs[1], inputs))


def test_basic_lstm_cell_is_a_cell_of_tensorflow_over_steps(sess):
  x, h, c, w, b = lstm_inputs()
  state = rnn_cell_impl.LSTMStateTuple(c, h)
  cell = rnn_cell_impl.LSTMCell(H, forget_bias=1.0)
  for _ in range(3):
    out = npu_ops.basic_lstm_cell(x, h, c, w, b, 1.0, 1.0, True, "tanh")
    c, h = out.ct, out.ht
    _, state = cell(x, state)
  kernel, bias = cell.trainable_variables
  sess.run([kernel.assign(w), bias.assign(b)])
  same(sess, [c, h], list(state))


def test_basic_lstm_cell_in_half_precision(sess):
  half = npu_ops.basic_lstm_cell(*lstm_inputs(tf.float16), 1.0, 0.0, True, "tanh")
  full = npu_ops.basic_lstm_cell(*lstm_inputs(), 1.0, 0.0, True, "tanh")
  assert half.ht.dtype == tf.float16
  same(sess, list(half), list(full), 1e-2)


def test_basic_lstm_cell_refuses_what_it_cannot_do():
  inputs = lstm_inputs()
  with pytest.raises(NotImplementedError, match="keep_prob"):
    npu_ops.basic_lstm_cell(*inputs, 0.5, 1.0, True, "tanh")
  with pytest.raises(NotImplementedError, match="activation"):
    npu_ops.basic_lstm_cell(*inputs, 1.0, 1.0, True, "relu")
  with pytest.raises(ValueError):
    npu_ops.basic_lstm_cell(*inputs[:3], inputs[3][1:], inputs[4], 1.0, 1.0, True, "tanh")


def test_basic_lstm_cell_says_what_shape_it_found_when_run(sess):
  x, h, c, _w, b = lstm_inputs()
  w = tf.placeholder(tf.float32, None)
  out = npu_ops.basic_lstm_cell(x, h, c, w, b, 1.0, 1.0, True, "tanh", name="cell")
  with pytest.raises(tf.errors.InvalidArgumentError, match=r"cell: w must have shape \[8,20\], found \[7,20\]"):
    sess.run(out, {w: normal(F + H - 1, 4 * H)})


@pytest.mark.parametrize("layer", [DynamicRNN, DynamicGRUV2])
@pytest.mark.parametrize("lengths", [[6, 1], [-1, 1], [2]])
def test_lengths_that_do_not_fit_fail_the_step_and_say_so(layer, lengths):
  fed = tf.placeholder(tf.int32, None)
  outputs = layer(4, tf.float32)(tf.ones([5, 2, 3]), seq_length=fed)
  with tf.Session() as session:
    session.run(tf.global_variables_initializer())
    with pytest.raises(tf.errors.InvalidArgumentError, match=f"seq_length of {layer.__name__} must|seq_length_of_the_batch"):
      session.run(outputs, {fed: lengths})
    assert session.run(outputs[0], {fed: [5, 0]}).shape == (5, 2, 4)


@pytest.mark.parametrize("layer", [DynamicRNN, DynamicGRUV2])
@pytest.mark.parametrize("length", [2**32 + 1, -(2**63)])
def test_lengths_of_64_bits_are_not_brought_into_range(layer, length):
  fed = tf.placeholder(tf.int64, [2])
  outputs = layer(4, tf.float32)(tf.ones([5, 2, 3]), seq_length=fed)
  with tf.Session() as session:
    session.run(tf.global_variables_initializer())
    with pytest.raises(tf.errors.InvalidArgumentError, match=f"seq_length of {layer.__name__} must"):
      session.run(outputs, {fed: [length, 1]})
    assert not session.run(outputs[0], {fed: [5, 0]})[:, 1].any()


@pytest.mark.parametrize("layer", [DynamicRNN, DynamicGRUV2])
def test_arguments_of_another_kind_say_so(layer):
  name = layer.__name__
  for size in (None, "8", 2.5, [4]):
    with pytest.raises(TypeError, match=f"hidden_size of {name} must be an int"):
      layer(size, tf.float32)
  x = tf.ones([5, 2, 3])
  assert layer(x.shape[2], tf.float32)(x)[0].shape == (5, 2, 3)  # a tf.Dimension is a size too
  with pytest.raises(ValueError, match=f"seq_length of {name} must be integers: got float32"):
    layer(4, tf.float32)(x, seq_length=tf.ones([2]))
  for clip in ("1", 0.5, []):
    with pytest.raises(NotImplementedError, match=f"cell_clip of {name}: only None and numbers up to 0"):
      layer(4, tf.float32, cell_clip=clip)(x)


@pytest.mark.parametrize("size", [0, -1])
def test_a_hidden_size_below_one_is_refused(size):
  with pytest.raises(ValueError, match="hidden_size of DynamicGRUV2 must be at least 1"):
    DynamicGRUV2(size, tf.float32)
