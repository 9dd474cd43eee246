"""The part of `npu_ops` that is about recurrent cells, clustering, scattering, channels and ONNX files."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import tensorflow.compat.v1 as tf

from npu_bridge import npu_bridge_handle as _ops


def basic_lstm_cell(
  x: tf.Tensor,
  h: tf.Tensor,
  c: tf.Tensor,
  w: tf.Tensor,
  b: tf.Tensor,
  keep_prob: float,
  forget_bias: float,
  state_is_tuple: bool,
  activation: str,
  name: str | None = None,
) -> Any:
  """One step of an LSTM cell, differentiable in all inputs and outputs.

  Args:
    x: [batch, inputs], float32 or float16, as all tensors here.
    h, c: [batch, hidden], output and cell of the step before.
    w: [inputs + hidden, 4 hidden], the gates i, j (candidate), f, o side by side.
    b: [4 hidden].
    keep_prob: 1; nothing else is there.
    forget_bias: added to the forget gate.
    state_is_tuple: accepted; h and c are two tensors either way.
    activation: "tanh"; nothing else is there.
    name: of the op, of type `BasicLSTMCell`.

  Returns:
    ct, ht, it, jt, ft, ot, tanhct (also as attributes of these names), each [batch, hidden].

  Raises:
    NotImplementedError: another keep_prob or activation.
    ValueError: shapes that do not fit.
  """
  if keep_prob != 1:
    raise NotImplementedError(f"keep_prob of basic_lstm_cell: only 1 is there, found {keep_prob!r}")
  if activation != "tanh":
    raise NotImplementedError(f'activation of basic_lstm_cell: only "tanh" is there, found {activation!r}')
  return _ops.basic_lstm_cell(
    x, h, c, w, b, keep_prob=keep_prob, forget_bias=forget_bias, state_is_tuple=state_is_tuple, activation=activation, name=name
  )


@tf.RegisterGradient("BasicLSTMCell")
def _basic_lstm_cell_gradient(op, d_ct, d_ht, d_it, d_jt, d_ft, d_ot, d_tanhct):
  x, h, c, w, _ = op.inputs
  _, _, i, j, f, o, tanh_c = op.outputs
  d_tanh_c = d_ht * o + d_tanhct
  d_c = d_ct + d_tanh_c * (1 - tf.square(tanh_c))
  d_sums = tf.concat(
    [
      (d_it + d_c * j) * i * (1 - i),
      (d_jt + d_c * i) * (1 - tf.square(j)),
      (d_ft + d_c * c) * f * (1 - f),
      (d_ot + d_ht * tanh_c) * o * (1 - o),
    ],
    axis=1,
  )
  d_inputs = tf.matmul(d_sums, w, transpose_b=True)
  d_x, d_h = tf.split(d_inputs, [tf.shape(x)[1], tf.shape(h)[1]], axis=1)
  d_w = tf.matmul(tf.concat([x, h], 1), d_sums, transpose_a=True)
  return tf.reshape(d_x, tf.shape(x)), tf.reshape(d_h, tf.shape(h)), d_c * f, d_w, tf.reduce_sum(d_sums, 0)


def scatter_elements(data: tf.Tensor, indices: tf.Tensor, updates: tf.Tensor, axis: int = 0, name: str | None = None) -> tf.Tensor:
  """A copy of `data` with elements replaced: y[p with its coordinate along `axis` replaced by indices[p]] = updates[p].

  Args:
    data: any rank r >= 1, any type of fixed size.
    indices: int32 or int64, rank r, along the other axes no larger than data; negative ones count from the end.
    updates: type of data, shape of indices. Of several updates of one element the last in row-major order stays.
    axis: at least -r and below r.
    name: of the op, of type `ScatterElements`.

  Returns:
    A tensor of the shape and type of data. Differentiable in data and updates.

  Raises:
    ValueError: shapes or axis that do not fit. InvalidArgumentError when run: an index out of range.
  """
  return _ops.scatter_elements(data, indices, updates, axis=axis, name=name)


@tf.RegisterGradient("ScatterElements")
def _scatter_elements_gradient(op, gradient):
  data, indices, updates = op.inputs
  axis = op.get_attr("axis")
  to_data = _ops.scatter_elements(gradient, indices, tf.zeros_like(updates), axis=axis)
  # The gradient of the element that each update went to, where no later update replaced it. Places are [updates, rank].
  flat = tf.cast(tf.reshape(indices, [-1, 1]), tf.int64)
  flat = tf.where_v2(flat < 0, flat + tf.shape(data, out_type=tf.int64)[axis], flat)
  at_axis = tf.equal(tf.range(tf.rank(data)), axis if axis >= 0 else axis + tf.rank(data))
  places = tf.where_v2(at_axis, flat, tf.where_v2(tf.ones_like(indices, tf.bool)))
  numbers = tf.range(tf.size(indices))
  written = _ops.scatter_elements(tf.zeros(tf.shape(data), tf.int32), indices, tf.reshape(numbers, tf.shape(indices)), axis=axis)
  to_updates = tf.gather_nd(gradient, places)
  kept = tf.where_v2(tf.equal(tf.gather_nd(written, places), numbers), to_updates, tf.zeros_like(to_updates))
  return to_data, None, tf.reshape(kept, tf.shape(updates))


def k_means_centroids(
  x: tf.Tensor,
  y: tf.Tensor,
  sum_square_y: tf.Tensor,
  sum_square_x: tf.Tensor | None,
  use_actual_distance: bool = False,
  name: str | None = None,
) -> Any:
  """One round of k-means: gives each point to its nearest center and adds up.

  Args:
    x: float32 [n, dim], the points.
    y: float32 [k, dim], the centers, at least one.
    sum_square_y: float32 [1, k], the squared norm of each center.
    sum_square_x: float32 [n, 1], the squared norm of each point; None is allowed without use_actual_distance.
    use_actual_distance: whether the total is that of squared distances; else sum_square_x is left out of it.
    name: of the op, of type `KMeansCentroids`.

  Returns:
    segment_sum [k, dim], segment_count [k, 1], kmean_total_sum [1]. Not differentiable.

  Raises:
    ValueError: shapes that do not fit; sum_square_x missing.
  """
  if sum_square_x is None:
    if use_actual_distance:
      raise ValueError("k_means_centroids: use_actual_distance needs sum_square_x [n, 1]")
    x = tf.convert_to_tensor(x, tf.float32)
    sum_square_x = tf.zeros(tf.stack([tf.shape(x)[0], 1]))
  return _ops.k_means_centroids(x, y, sum_square_y, sum_square_x, use_actual_distance=use_actual_distance, name=name)


tf.NotDifferentiable("KMeansCentroids")


def outfeed_enqueue_op(channel_name: str, inputs: Any, name: str | None = None) -> tf.Operation:
  """Puts one element into a channel, a first-in first-out queue of the process, and waits while 1,024 are in it.

  Sessions that use the same name share the channel; it goes, with what is in it, when the last of them does.

  Args:
    channel_name: not empty.
    inputs: a tensor, or a list or tuple of tensors of any types: one element.
    name: of the op, of type `OutfeedEnqueueOp`.

  Returns:
    The operation. When run: FailedPreconditionError once the channel was stopped.
  """
  inputs = list(inputs) if isinstance(inputs, (list, tuple)) else [inputs]
  return _ops.outfeed_enqueue_op(inputs=inputs, channel_name=channel_name, name=name)


def outfeed_dequeue_op(
  channel_name: str, output_types: Sequence[tf.DType], output_shapes: Sequence[Any], name: str | None = None
) -> list[tf.Tensor]:
  """Takes the oldest element out of a channel, and waits until there is one.

  Args:
    channel_name: not empty.
    output_types: the types of the element's tensors.
    output_shapes: their shapes, as many; None in them fits any size.
    name: of the op, of type `OutfeedDequeueOp`.

  Returns:
    A list of tensors. When run: OutOfRangeError once the channel is stopped and empty; InvalidArgumentError when the element has
    other types or shapes (it stays in the channel).
  """
  return _ops.outfeed_dequeue_op(
    channel_name=channel_name, output_types=list(output_types), output_shapes=list(output_shapes), name=name
  )


def stop_outfeed_dequeue_op(channel_name: str, name: str | None = None) -> tf.Operation:
  """Stops a channel: what is in it can still be taken out, then taking raises OutOfRangeError. Stopping twice is fine.

  Args:
    channel_name: not empty.
    name: of the op, of type `StopOutfeedDequeueOp`.

  Returns:
    The operation.
  """
  return _ops.stop_outfeed_dequeue_op(channel_name=channel_name, name=name)


def channel_get_next(channel_name: str, output_types: Sequence[tf.DType], output_shapes: Sequence[Any]) -> list[tf.Tensor]:
  """The next element of a channel, as input of a model: what `outfeed_enqueue_op` of any session put in.

  Args:
    channel_name: not empty.
    output_types: the types of the element's tensors.
    output_shapes: their shapes, as many.

  Returns:
    A list of tensors; when run, as `outfeed_dequeue_op`. The op has type `GetNext`.
  """
  return _ops.get_next(channel_name=channel_name, output_types=list(output_types), output_shapes=list(output_shapes))


def npu_onnx_graph_op(inputs: Sequence[tf.Tensor], tout: Sequence[tf.DType], model_path: str, name: str | None = None) -> Any:
  """Runs an ONNX file, where the package onnxruntime is installed.

  Args:
    inputs: tensors for the inputs of the file's graph, in their order.
    tout: the types of its outputs, in their order.
    model_path: an existing file.
    name: name scope.

  Returns:
    A list of tensors of unknown shape. Not differentiable.

  Raises:
    ValueError: model_path is no string or no file.
    NotImplementedError: onnxruntime is not installed.
  """
  if not isinstance(model_path, str) or not os.path.isfile(model_path):
    raise ValueError(f"model_path of npu_onnx_graph_op: expected the path of an ONNX file, found {model_path!r}")
  try:
    import onnxruntime
  except ImportError as error:
    raise NotImplementedError("npu_onnx_graph_op needs the package onnxruntime, which is not installed") from error
  model = onnxruntime.InferenceSession(model_path, providers=["CPUExecutionProvider"])
  names = [entry.name for entry in model.get_inputs()]

  def run(*values):
    return model.run(None, dict(zip(names, values, strict=True)))

  with tf.name_scope(name, "NpuOnnxGraphOp"):
    return tf.numpy_function(run, list(inputs), list(tout))
