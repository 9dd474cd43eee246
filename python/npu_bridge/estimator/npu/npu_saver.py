"""NPUSaver: the Saver of NPUEstimator."""

from __future__ import annotations

import tensorflow.compat.v1 as tf


class NPUSaver(tf.train.Saver):
  """A tf.train.Saver under the name that the original gives its own; arguments and files are the same, tables included."""
