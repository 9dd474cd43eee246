"""mxrec._collective with one rank: shapes, values, gradients, arguments. Several ranks: test_ranks_*.py."""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from mxrec import _collective


def test_one_rank_gets_its_own_values_back_scaled(sess):
  x = tf.constant([[1.0, 2.0], [3.0, 4.0]])
  for result, expected in (
    (_collective.allreduce(x), [[1, 2], [3, 4]]),
    (_collective.allreduce(x, average=True, prescale=0.5, postscale=4), [[2, 4], [6, 8]]),
    (_collective.allreduce(tf.cast(x, tf.bfloat16), prescale=0.5), [[0.5, 1], [1.5, 2]]),
    (_collective.reducescatter(x, "max"), [[1, 2], [3, 4]]),
    (_collective.allgather(x)[0], [[1, 2], [3, 4]]),
    (_collective.allgather(x)[1], [2]),
    (_collective.alltoall(x)[0], [[1, 2], [3, 4]]),
    (_collective.alltoall(x, [2])[1], [2]),
    (_collective.join(), 0),
  ):
    np.testing.assert_array_equal(sess.run(tf.cast(result, tf.float32)), expected)
  assert sess.run(_collective.barrier()) is None


def test_several_tensors_of_any_types_travel_in_one_op(sess):
  values = [tf.constant([1, -3]), tf.constant(2.5), tf.zeros([0, 3], tf.float64)]
  results = _collective.allreduce(values, average=True)
  assert len({result.op for result in results}) == 1
  for result, value in zip(*sess.run([results, values])):
    np.testing.assert_array_equal(result, value)
  texts = [tf.constant(["a", "", "longer"]), tf.constant(True), tf.constant(1 + 2j, tf.complex128)]
  for result, value in zip(*sess.run([_collective.broadcast(texts, 0), texts])):
    np.testing.assert_array_equal(result, value)


def test_d_44_an_unknown_first_dimension_leaves_the_others_known(sess):
  x = tf.placeholder(tf.float32, [None, 8])
  for result in (_collective.allgather(x)[0], _collective.alltoall(x)[0], _collective.reducescatter(x)):
    assert result.shape.as_list() == [None, 8]
    dense = tf.layers.dense(result, 3)
    sess.run(tf.global_variables_initializer())
    assert sess.run(dense, {x: np.ones([5, 8])}).shape == (5, 3)


def test_gradients_of_one_rank(sess):
  x = tf.constant([[1.0], [2.0]])
  for result, expected in (
    (_collective.allreduce(x, average=True, prescale=3), 3),
    (_collective.allreduce([x, tf.constant(1)])[0], 1),
    (_collective.allgather(x)[0], 1),
    (_collective.broadcast(x, 0), 1),
    (_collective.alltoall(x)[0], 1),
    (_collective.reducescatter(x, postscale=2), 2),
  ):
    np.testing.assert_array_equal(sess.run(tf.gradients(result, x)[0]), [[expected], [expected]])
  with pytest.raises(LookupError, match="max"):
    tf.gradients(_collective.allreduce(x, "max"), x)


def test_wrong_arguments_name_what_was_found(sess):
  x = tf.constant([[1.0], [2.0]])
  for call, match in (
    (lambda: _collective.allreduce(x, "avg"), "'avg'"),
    (lambda: _collective.allreduce(x, "max", average=True), "'max'"),
    (lambda: _collective.allreduce(x, wire="int8"), "'int8'"),
    (lambda: _collective.allreduce(x, group="nope"), "nope"),
    (lambda: _collective.broadcast(x, 1), "root_rank"),
    (lambda: _collective.broadcast(x, True), "root_rank"),
    (lambda: _collective.allgather(tf.constant(1.0)), "rank"),
    (lambda: _collective.reducescatter(x, "adasum"), "adasum"),
  ):
    with pytest.raises(ValueError, match=match):
      call()
  for result, match in (
    (_collective.alltoall(x, [3])[0], "add up to the first dimension, 2"),
    (_collective.alltoall(x, [1, 1])[0], "one value for each of 1 ranks"),
    (_collective.allreduce(tf.constant([1]), prescale=0.5), "floating"),
  ):
    with pytest.raises(tf.errors.InvalidArgumentError, match=match):
      sess.run(result)


def test_an_op_knows_the_line_that_built_it():
  result = _collective.allreduce(tf.constant(1.0), name="my tensor!")
  assert result.op.get_attr("_mxrec_line").decode().startswith(__file__ + ":")
  assert result.op.get_attr("tensor_name") == b"my tensor!"
