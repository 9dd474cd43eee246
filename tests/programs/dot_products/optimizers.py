"""Learning rate schedule and loss scale."""

import tensorflow as tf

import mxrec

LOSS_SCALE = 1024.0


def schedule(base, step, warm_up, decay_start, decay_steps):
  """Linear warm-up, a plateau, a quadratic decay."""
  step = tf.cast(step, tf.float32)
  warm = tf.minimum(1.0, (step + 1.0) / warm_up)
  left = 1.0 - (step - decay_start) / decay_steps
  decay = tf.where(step < decay_start, tf.ones_like(step), tf.math.pow(tf.maximum(left, 0.1), 2.0))
  return base * warm * decay


class LossScaleWrapper(object):
  """Gradients arrive multiplied by the loss scale; the wrapped optimizer's learning rate is divided by it instead."""

  def __init__(self, optimizer):
    self.optimizer = optimizer
    scale = tf.constant(LOSS_SCALE, tf.float32)
    if hasattr(optimizer, "_learning_rate"):
      optimizer._learning_rate = optimizer._learning_rate / scale
    elif hasattr(optimizer, "_lr"):
      optimizer._lr = optimizer._lr / scale
    else:
      raise RuntimeError("the optimizer has no learning rate")

  def apply_gradients(self, pairs):
    return self.optimizer.apply_gradients(pairs)


def sparse_optimizers(tables, rate):
  return [
    mxrec.AdamWOptimizer(learning_rate=rate, name="AdamWOptimizer_%d" % index, weight_decay=1e-4, epsilon=1e-6)
    for index, _ in enumerate(tables)
  ]
