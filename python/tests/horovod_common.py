"""What the checks of horovod_worker.py share: the mode, which is the first argument of the script, and helpers."""

import os
import sys

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")

import numpy as np
import tensorflow as tf

MODE = sys.argv[1]
if MODE == "graph":
  tf.compat.v1.disable_v2_behavior()

import mxrec.horovod as hvd

NUMBERS = (tf.uint8, tf.int8, tf.int32, tf.int64, tf.float16, tf.bfloat16, tf.float32, tf.float64)
FLOATS = (tf.float16, tf.float32, tf.float64)


def run(build):
  """The values of what build() makes, in either mode."""
  if MODE == "eager":
    return tf.nest.map_structure(lambda value: value.numpy() if hasattr(value, "numpy") else value, build(), expand_composites=True)
  with tf.Graph().as_default(), tf.compat.v1.Session() as session:
    made = build()
    session.run([tf.compat.v1.global_variables_initializer(), tf.compat.v1.local_variables_initializer()])
    return session.run(made)


def of(rank, shape, dtype, low=-3, high=4):
  """A tensor's values on a rank, the same on whoever asks."""
  low = max(low, 0) if dtype.is_unsigned else low
  values = np.random.default_rng(1000 + rank).integers(low, high, shape)
  return values.astype(np.float32).astype(dtype.as_numpy_dtype) if dtype.is_floating else values.astype(dtype.as_numpy_dtype)


def equal(found, expected, tolerance=0.0):
  found, expected = np.asarray(found), np.asarray(expected)
  assert found.shape == expected.shape, (found.shape, expected.shape)
  np.testing.assert_allclose(found.astype(np.float64), expected.astype(np.float64), rtol=tolerance, atol=tolerance)


def refused(kind, text, call):
  try:
    call()
  except kind as error:
    assert text in str(error), error
    return
  raise AssertionError(f"expected {kind} with {text!r}")


def everybody():
  return range(hvd.size())


def slices_of(rank, dtype=np.float32):
  """Rows of a matrix of 10: rank 0 has none, the others repeat some."""
  indices = np.repeat(np.arange(rank % 5), 2) + rank % 3
  return (np.arange(len(indices)).repeat(3).reshape(-1, 3) + 1 + rank).astype(dtype), indices


def dense_of(values, indices):
  found = np.zeros([10, 3])
  np.add.at(found, indices, values.astype(np.float64))
  return found
