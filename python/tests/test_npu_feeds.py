"""Channels between sessions, scatter_elements, k_means_centroids, npu_onnx_graph_op."""

from __future__ import annotations

import sys
import threading
import time
import types

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from npu_bridge.estimator import npu_ops

# --- channels ---


class Feed:
  """The ops of one channel, for elements (int64 [2], string [])."""

  def __init__(self, name="log", shapes=((2,), ())):
    self.number = tf.placeholder_with_default(tf.constant(0, tf.int64), [])
    element = [tf.stack([self.number, self.number * 10]), tf.strings.as_string(self.number)]
    self.put = npu_ops.outfeed_enqueue_op(name, element)
    self.take = npu_ops.outfeed_dequeue_op(name, [tf.int64, tf.string], shapes)
    self.get_next = npu_ops.channel_get_next(name, [tf.int64, tf.string], shapes)
    self.stop = npu_ops.stop_outfeed_dequeue_op(name)

  def fill(self, sess, count, start=0):
    for i in range(start, start + count):
      sess.run(self.put, {self.number: i})

  def one(self, sess, op=None):
    numbers, text = sess.run(op or self.take)
    assert numbers[1] == 10 * numbers[0] and text == str(numbers[0]).encode()
    return int(numbers[0])


def in_thread(function):
  """Runs it beside the test; `.result` or `.error` once joined."""

  def run():
    try:
      thread.result = function()
    except tf.errors.OpError as error:
      thread.error = error

  thread = threading.Thread(target=run, daemon=True)
  thread.result = thread.error = None
  thread.start()
  return thread


def joined(thread):
  thread.join(20)
  assert not thread.is_alive()
  return thread


def test_the_ops_have_the_originals_types_and_the_given_shapes():
  feed = Feed(shapes=([2], []))
  assert [feed.put.type, feed.take[0].op.type, feed.stop.type] == [
    "OutfeedEnqueueOp",
    "OutfeedDequeueOp",
    "StopOutfeedDequeueOp",
  ]
  assert [t.shape.as_list() for t in feed.take] == [[2], []]
  assert npu_ops.outfeed_dequeue_op("x", [tf.float32], [None], name="here")[0].op.name == "here"
  for op in (feed.put, feed.take[0].op, feed.stop):
    assert op.op_def.is_stateful


def test_elements_come_out_in_order_then_the_end(sess):
  feed = Feed()
  feed.fill(sess, 3)
  assert feed.one(sess) == 0
  sess.run(feed.stop)
  sess.run(feed.stop)
  assert feed.one(sess, feed.get_next) == 1
  assert feed.one(sess) == 2
  for op in (feed.take, feed.get_next):
    with pytest.raises(tf.errors.OutOfRangeError, match='"log" was stopped'):
      sess.run(op)
  with pytest.raises(tf.errors.FailedPreconditionError, match='"log" was stopped'):
    sess.run(feed.put)


def test_a_single_tensor_is_an_element_too(sess):
  put = npu_ops.outfeed_enqueue_op("one", tf.constant([1.5, 2.5]))
  take = npu_ops.outfeed_dequeue_op("one", [tf.float32], [[None]])
  sess.run(put)
  np.testing.assert_array_equal(sess.run(take)[0], [1.5, 2.5])


def test_a_dequeue_waits_for_an_element(sess):
  feed = Feed()
  waiting = in_thread(lambda: feed.one(sess))
  time.sleep(0.2)
  assert waiting.is_alive()
  feed.fill(sess, 1, start=7)
  assert joined(waiting).result == 7


def test_stop_ends_a_wait(sess):
  feed = Feed()
  waiting = in_thread(lambda: sess.run(feed.take))
  time.sleep(0.2)
  sess.run(feed.stop)
  assert isinstance(joined(waiting).error, tf.errors.OutOfRangeError)


def test_closing_a_session_ends_its_waits():
  feed = Feed()
  session = tf.Session()
  waiting = in_thread(lambda: session.run(feed.take))
  time.sleep(0.2)
  session.close()
  assert isinstance(joined(waiting).error, tf.errors.CancelledError)


def test_a_wait_ends_with_a_step_that_fails(sess):
  take = npu_ops.outfeed_dequeue_op("never", [tf.float32], [[]])
  bad = tf.debugging.Assert(tf.equal(tf.placeholder_with_default(1, []), 2), ["wrong"])
  with pytest.raises(tf.errors.InvalidArgumentError, match="wrong"):
    sess.run([take, bad])


def test_a_full_channel_makes_enqueues_wait_and_loses_nothing(sess):
  put = npu_ops.outfeed_enqueue_op("full", [tf.constant(1)])
  for _ in range(1024):
    sess.run(put)
  waiting = in_thread(lambda: sess.run(put))
  time.sleep(0.2)
  assert waiting.is_alive()
  take = npu_ops.outfeed_dequeue_op("full", [tf.int32], [[]])
  for _ in range(1025):
    sess.run(take)
  assert joined(waiting).error is None


def test_sessions_that_live_at_the_same_time_share_a_channel(sess):
  feed = Feed()
  feed.fill(sess, 2)
  with tf.Graph().as_default(), tf.Session() as other:
    there = Feed()
    assert there.one(other) == 0
    other.run(there.stop)
    assert there.one(other) == 1
  with pytest.raises(tf.errors.OutOfRangeError):
    sess.run(feed.take)


def test_a_channel_goes_with_its_last_session():
  feed = Feed()
  with tf.Session() as first:
    feed.fill(first, 1, start=1)
    first.run(feed.stop)
  with tf.Session() as second:
    feed.fill(second, 1, start=2)
    assert feed.one(second) == 2


def test_channels_of_other_names_are_others(sess):
  a, b = Feed("a"), Feed("b")
  a.fill(sess, 1, start=1)
  b.fill(sess, 1, start=2)
  assert (b.one(sess), a.one(sess)) == (2, 1)


@pytest.mark.parametrize(
  "types, shapes, found",
  [
    ([tf.int64], [[2]], "has 2 tensors, expected 1"),
    ([tf.int32, tf.string], [[2], []], "has at 0 type int64, expected int32"),
    ([tf.int64, tf.string], [[3], []], r"has at 0 shape \[2\], expected \[3\]"),
  ],
)
def test_an_element_that_does_not_fit_is_an_error_and_stays(sess, types, shapes, found):
  feed = Feed("c")
  feed.fill(sess, 1, start=4)
  with pytest.raises(tf.errors.InvalidArgumentError, match=f'next element of channel "c" {found}'):
    sess.run(npu_ops.outfeed_dequeue_op("c", types, shapes))
  assert feed.one(sess) == 4


def test_wrong_arguments_are_errors(sess):
  with pytest.raises(ValueError, match="output_shapes"):
    npu_ops.outfeed_dequeue_op("c", [tf.int64, tf.string], [[]])
  with pytest.raises(tf.errors.InvalidArgumentError, match="channel_name must not be empty"):
    sess.run(npu_ops.stop_outfeed_dequeue_op(""))


def test_an_element_is_a_copy_of_the_variables_that_it_was_made_of(sess):
  step = tf.get_variable("step", [], tf.int64, tf.zeros_initializer(), use_resource=False)
  put = npu_ops.outfeed_enqueue_op("copies", step.assign_add(1))
  take = npu_ops.outfeed_dequeue_op("copies", [tf.int64], [[]])
  sess.run(tf.global_variables_initializer())
  for _ in range(3):
    sess.run(put)
  assert [sess.run(take) for _ in range(3)] == [[1], [2], [3]]


def test_enqueues_from_a_training_loop_reach_a_thread_that_logs(sess):
  step = tf.get_variable("step", [], tf.int64, tf.zeros_initializer())
  next_step = step.assign_add(1)
  put = npu_ops.outfeed_enqueue_op("losses", [next_step, tf.cast(next_step, tf.float32) / 2])
  take = npu_ops.outfeed_dequeue_op("losses", [tf.int64, tf.float32], [[], []])
  stop = npu_ops.stop_outfeed_dequeue_op("losses")
  sess.run(tf.global_variables_initializer())
  seen = []

  def log():
    while True:
      seen.append(sess.run(take))

  logging = in_thread(log)
  for _ in range(50):
    sess.run(put)
  sess.run(stop)
  assert isinstance(joined(logging).error, tf.errors.OutOfRangeError)
  assert seen == [[i, i / 2] for i in range(1, 51)]


# --- scatter_elements ---


def scattered(data, indices, updates, axis):
  result = data.copy()
  for p in np.ndindex(indices.shape):
    place = list(p)
    place[axis] = indices[p]
    result[tuple(place)] = updates[p]
  return result


@pytest.mark.parametrize("dtype", [np.float32, np.int64, np.bool_, np.float16, np.complex128])
@pytest.mark.parametrize("index", [np.int32, np.int64])
@pytest.mark.parametrize("axis", [0, 1, 2, -1, -3])
def test_scatter_elements_replaces_elements(sess, dtype, index, axis):
  random = np.random.default_rng(1)
  data, updates = (random.integers(0, 100, shape).astype(dtype) for shape in ((3, 4, 5), (2, 3, 4)))
  indices = random.integers(-3, 3, (2, 3, 4)).astype(index)
  y = npu_ops.scatter_elements(data, indices, updates, axis)
  assert y.op.type == "ScatterElements" and y.shape.as_list() == [3, 4, 5]
  np.testing.assert_array_equal(sess.run(y), scattered(data, indices, updates, axis))


def test_scatter_elements_reference_example_and_duplicates(sess):
  y = npu_ops.scatter_elements([[1.0, 2.0, 3.0, 4.0, 5.0]], [[1, 3]], [[1.1, 2.1]], axis=1)
  np.testing.assert_allclose(sess.run(y), [[1.0, 1.1, 3.0, 2.1, 5.0]], rtol=1e-6)
  twice = npu_ops.scatter_elements([0.0, 0.0], [1, 1, 1], [1.0, 2.0, 3.0])
  np.testing.assert_array_equal(sess.run(twice), [0, 3])


def test_scatter_elements_has_gradients(sess):
  data, updates = tf.constant(np.ones((2, 3), np.float32)), tf.constant(np.ones((2, 2), np.float32))
  y = npu_ops.scatter_elements(data, [[0, -1], [1, 1]], updates, axis=1)
  weights = np.arange(1, 7, dtype=np.float32).reshape(2, 3)
  to_data, to_updates = sess.run(tf.gradients(tf.reduce_sum(y * weights), [data, updates]))
  np.testing.assert_array_equal(to_data, [[0, 2, 0], [4, 0, 6]])
  np.testing.assert_array_equal(to_updates, [[1, 3], [0, 5]])  # the first update of a pair is replaced by the second


@pytest.mark.parametrize("axis", [0, 1, -2])
def test_scatter_elements_of_unknown_rank_has_gradients(sess, axis):
  data, at, updates = (tf.placeholder(dtype, None) for dtype in (tf.float32, tf.int32, tf.float32))
  known = [
    tf.constant(np.arange(12.0).reshape(3, 4), tf.float32),
    tf.constant([[0, 2], [1, 2]]),
    tf.constant([[1.0, 2.0], [3.0, 4.0]]),
  ]
  feed = dict(zip((data, at, updates), sess.run(known)))

  def slopes(d, i, u):
    y = npu_ops.scatter_elements(d, i, u, axis=axis)
    return tf.gradients(tf.reduce_sum(y * y), [d, u])

  (of_data, of_updates), wanted = sess.run([slopes(data, at, updates), slopes(*known)], feed)
  np.testing.assert_array_equal(of_data, wanted[0])
  np.testing.assert_array_equal(of_updates, wanted[1])
  expected = 2 * np.array([[1.0, 2.0], [3.0, 4.0]])
  if axis in (0, -2):
    expected[0, 1] = 0  # replaced by the one below
  np.testing.assert_array_equal(of_updates, expected)


def test_scatter_elements_says_what_is_wrong(sess):
  with pytest.raises(ValueError, match="axis must be at least -1 and below 1, found 1"):
    npu_ops.scatter_elements([1.0], [0], [1.0], axis=1)
  with pytest.raises(ValueError):
    npu_ops.scatter_elements([1.0], [[0]], [[1.0]])
  at = tf.placeholder(tf.int32, None)
  y = npu_ops.scatter_elements([1.0, 2.0], at, [1.0, 1.0], name="s")
  with pytest.raises(tf.errors.InvalidArgumentError, match=r"s: indices\[1\] is 2, expected at least -2 and below 2"):
    sess.run(y, {at: [0, 2]})
  with pytest.raises(tf.errors.InvalidArgumentError, match="s: indices and updates must have one shape"):
    sess.run(y, {at: [0]})


def test_scatter_elements_of_nothing(sess):
  y = npu_ops.scatter_elements(np.ones((2, 3), np.float32), np.zeros((0, 3), np.int32), np.zeros((0, 3), np.float32))
  np.testing.assert_array_equal(sess.run(y), np.ones((2, 3)))


# --- k-means ---


def test_k_means_follows_the_formula(sess):
  random = np.random.default_rng(2)
  x, y = random.normal(size=(500, 7)).astype(np.float32), random.normal(size=(9, 7)).astype(np.float32)
  squares = np.square(y).sum(1)[None], np.square(x).sum(1)[:, None]
  distances = squares[1] + squares[0] - 2 * x @ y.T
  nearest = distances.argmin(1)
  for actual in (False, True):
    out = npu_ops.k_means_centroids(x, y, *squares, use_actual_distance=actual)
    assert out[0].op.type == "KMeansCentroids"
    assert [t.shape.as_list() for t in out] == [[9, 7], [9, 1], [1]]
    sums, counts, total = sess.run(out)
    np.testing.assert_array_equal(counts[:, 0], np.bincount(nearest, minlength=9))
    np.testing.assert_allclose(sums, [x[nearest == k].sum(0) for k in range(9)], rtol=1e-4, atol=1e-4)
    least = distances.min(1).sum() if actual else (distances - squares[1]).min(1).sum()
    np.testing.assert_allclose(total, [least], rtol=1e-4)


def test_k_means_rounds_find_the_clusters(sess):
  random = np.random.default_rng(3)
  true = np.array([[0, 0], [10, 0], [0, 10]], np.float32)
  x = np.concatenate([c + random.normal(scale=0.1, size=(50, 2)) for c in true]).astype(np.float32)
  centers = tf.placeholder(tf.float32, [3, 2])
  sums, counts, _ = npu_ops.k_means_centroids(x, centers, tf.reduce_sum(centers**2, 1)[None], None)
  found = np.array([[1, 1], [8, 1], [1, 8]], np.float32)
  for _ in range(3):
    found = sess.run(sums / counts, {centers: found})
  np.testing.assert_allclose(found, true, atol=0.1)


def test_k_means_says_what_is_wrong():
  x = np.ones((4, 2), np.float32)
  with pytest.raises(ValueError, match="sum_square_x"):
    npu_ops.k_means_centroids(x, x, np.ones((1, 4), np.float32), None, use_actual_distance=True)
  with pytest.raises(ValueError):
    npu_ops.k_means_centroids(x, x, np.ones(4, np.float32), np.ones((4, 1), np.float32))


# --- ONNX ---


def test_onnx_checks_its_path_then_says_what_is_missing(tmp_path, monkeypatch):
  for wrong in (None, 3, "", str(tmp_path), str(tmp_path / "none.onnx")):
    with pytest.raises(ValueError, match="model_path"):
      npu_ops.npu_onnx_graph_op([], [], wrong)
  file = tmp_path / "model.onnx"
  file.write_bytes(b"")
  monkeypatch.setitem(sys.modules, "onnxruntime", None)
  with pytest.raises(NotImplementedError, match="npu_onnx_graph_op needs the package onnxruntime"):
    npu_ops.npu_onnx_graph_op([], [], str(file))


def test_onnx_runs_in_onnxruntime_where_that_is_installed(tmp_path, monkeypatch, sess):
  class Model:
    def __init__(self, path, providers):
      assert path.endswith("model.onnx")

    def get_inputs(self):
      return [types.SimpleNamespace(name="a"), types.SimpleNamespace(name="b")]

    def run(self, names, feeds):
      return [feeds["a"] + feeds["b"], feeds["a"].astype(np.int64)]

  monkeypatch.setitem(sys.modules, "onnxruntime", types.SimpleNamespace(InferenceSession=Model))
  file = tmp_path / "model.onnx"
  file.write_bytes(b"")
  out = npu_ops.npu_onnx_graph_op([tf.constant([1.0]), tf.constant([2.0])], [tf.float32, tf.int64], str(file))
  assert [v.tolist() for v in sess.run(out)] == [[3.0], [1]]


def test_a_resource_handle_is_an_element_too(sess):
  variable = tf.get_variable("v", initializer=[1.0, 2.0], use_resource=True)
  put = npu_ops.outfeed_enqueue_op("handles", [variable.handle])
  take = npu_ops.outfeed_dequeue_op("handles", [tf.resource], [[]])
  sess.run(tf.global_variables_initializer())
  sess.run(put)
  value = tf.raw_ops.ReadVariableOp(resource=take[0], dtype=tf.float32)
  np.testing.assert_array_equal(sess.run(value), [1.0, 2.0])
