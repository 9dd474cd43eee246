"""Initializer objects of every TensorFlow generation."""

import helpers
import numpy as np
import pytest
import tensorflow as tf2
import tensorflow.compat.v1 as tf

import mxrec
from mxrec import initializers

KERAS = tf2.keras.initializers


@pytest.mark.parametrize(
  "make, name, params, seed",
  [
    (lambda: tf.random_normal_initializer(), "random_normal", {"mean": 0.0, "stddev": 1.0}, None),
    (lambda: tf.truncated_normal_initializer(-0.01, 0.01, 7), "truncated_normal", {"mean": -0.01, "stddev": 0.01}, 7),
    (lambda: tf.zeros_initializer(), "zeros", {}, None),
    (lambda: tf.ones_initializer(), "ones", {}, None),
    (lambda: tf.constant_initializer(3), "constant", {"value": 3.0}, None),
    (lambda: tf.constant_initializer([2.5]), "constant", {"value": 2.5}, None),
    (lambda: tf.random_uniform_initializer(), "random_uniform", {"minval": 0.0}, None),
    (lambda: tf.random_uniform_initializer(-1, 1, seed=2), "random_uniform", {"minval": -1.0, "maxval": 1.0}, 2),
    (lambda: tf.uniform_unit_scaling_initializer(2.0), "uniform_unit_scaling", {"factor": 2.0}, None),
    (lambda: tf.glorot_uniform_initializer(seed=1), "glorot_uniform", {}, 1),
    (lambda: tf.glorot_normal_initializer(), "glorot_normal", {}, None),
    (
      lambda: tf.variance_scaling_initializer(2.0, "fan_avg", "normal"),
      "variance_scaling",
      {"scale": 2.0, "mode": "fan_avg", "distribution": "truncated_normal"},
      None,
    ),
    (
      lambda: tf.initializers.he_normal(seed=4),
      "variance_scaling",
      {"scale": 2.0, "mode": "fan_in", "distribution": "truncated_normal"},
      4,
    ),
    (lambda: tf2.random_normal_initializer(seed=5), "random_normal", {"mean": 0.0, "stddev": 0.05}, 5),
    (lambda: tf2.random_uniform_initializer(), "random_uniform", {"minval": -0.05, "maxval": 0.05}, None),
    (lambda: tf2.constant_initializer(1.5), "constant", {"value": 1.5}, None),
    (lambda: KERAS.RandomNormal(mean=1.0), "random_normal", {"mean": 1.0, "stddev": 0.05}, None),
    (lambda: KERAS.HeUniform(), "he_uniform", {}, None),
    (lambda: KERAS.LecunNormal(), "lecun_normal", {}, None),
    (lambda: KERAS.Zeros(), "zeros", {}, None),
  ],
)
def test_objects_are_described_by_their_config(make, name, params, seed):
  description, found_seed = initializers.describe(make())
  assert description["name"] == name and description["params"] == params
  if not type(make()).__module__.startswith("keras") or seed is not None:  # Keras draws a seed when none is given
    assert found_seed == seed


@pytest.mark.parametrize(
  "make, match",
  [
    (lambda: tf.orthogonal_initializer(), "whole matrix"),
    (lambda: tf.initializers.identity(), "whole matrix"),
    (lambda: KERAS.Orthogonal(), "whole matrix"),
    (lambda: tf.constant_initializer([1.0, 2.0]), "one number"),
    (lambda: tf.random_normal_initializer(stddev=float("inf")), "not finite"),
    (lambda: KERAS.Constant("a"), "not a number"),
  ],
)
def test_objects_without_a_formula_per_id_are_refused(make, match):
  with pytest.raises(ValueError, match=match):
    initializers.describe(make())


def test_an_initializer_class_of_the_users_own_is_refused():

  class RandomNormal(tf.keras.initializers.RandomNormal):
    def __call__(self, shape, dtype=None, **kwargs):
      return tf.zeros(shape)

  with pytest.raises(ValueError, match="no formula"):
    initializers.describe(RandomNormal())


def test_a_tensor_as_parameter_is_refused():
  with pytest.raises(ValueError, match="tensor"):
    initializers.describe(tf.random_normal_initializer(stddev=tf.constant(1.0)))


@pytest.mark.parametrize(
  "make, mean, stddev",
  [
    (lambda: tf.random_normal_initializer(), 0.0, 1.0),
    (lambda: tf.random_normal_initializer(2.0, 0.5), 2.0, 0.5),
    (lambda: tf.random_uniform_initializer(-1.0, 3.0), 1.0, 4.0 / 12**0.5),
    (lambda: tf.constant_initializer(3.0), 3.0, 0.0),
    (lambda: tf.truncated_normal_initializer(0.0, 1.0), 0.0, 0.8796),
    (lambda: tf.glorot_uniform_initializer(), 0.0, (2.0 / (1000 + 16)) ** 0.5),
  ],
)
def test_d_12_first_rows_are_finite_and_distributed_as_the_initializer_says(make, mean, stddev, sess):
  emb_table = helpers.table(dimension=16, initializer=make())
  values = emb_table.lookup_numpy(np.arange(20000), sess)
  assert np.isfinite(values).all()
  assert abs(values.mean() - mean) < 5 * max(stddev, 1e-9) / values.size**0.5
  assert abs(values.std() - stddev) <= 0.01 * stddev + 1e-9


def test_g_53_seeds_fix_first_rows_whatever_the_order():
  def first_rows(seed, order, name="t", initializer_seed=None):
    with tf.Graph().as_default(), tf.Session() as sess:
      tf.set_random_seed(seed)
      model = helpers.SumModel(helpers.table(name, initializer=tf.random_normal_initializer(seed=initializer_seed)))
      for key in order:
        model.step(sess, [key], scale=0.0)
      return model.table.lookup_numpy([1, 2, 3], sess)

  base = first_rows(1, [1, 2, 3])
  np.testing.assert_array_equal(base, first_rows(1, [3, 1, 2]))
  np.testing.assert_array_equal(base, first_rows(1, []))
  for other in (first_rows(2, []), first_rows(1, [], name="u"), first_rows(1, [], initializer_seed=3)):
    assert not np.any(base == other)


def test_fact_15_first_row_is_the_same_looked_up_inserted_or_trained(sess):
  model = helpers.SumModel(helpers.table())
  looked_up = model.look(sess, [7])
  np.testing.assert_array_equal(looked_up, model.table.lookup_numpy([7], sess))
  assert model.table.insert([7], session=sess) == 1
  np.testing.assert_array_equal(looked_up, model.look(sess, [7]))


def test_two_tables_have_different_rows(sess):
  a, b = helpers.table("a"), helpers.table("b")
  assert not np.any(a.lookup_numpy([1], sess) == b.lookup_numpy([1], sess))
  assert mxrec.get_existing_tables() == [a, b]
