"""tf.contrib.feature_column: columns over sequences."""

from __future__ import annotations

from typing import Any

import tensorflow.compat.v1 as tf
from tensorflow.python.feature_column import feature_column_v2

sequence_categorical_column_with_hash_bucket = tf.feature_column.sequence_categorical_column_with_hash_bucket
sequence_categorical_column_with_identity = tf.feature_column.sequence_categorical_column_with_identity
sequence_categorical_column_with_vocabulary_file = tf.feature_column.sequence_categorical_column_with_vocabulary_file
sequence_categorical_column_with_vocabulary_list = tf.feature_column.sequence_categorical_column_with_vocabulary_list
sequence_numeric_column = tf.feature_column.sequence_numeric_column

__all__ = [
  "sequence_categorical_column_with_hash_bucket",
  "sequence_categorical_column_with_identity",
  "sequence_categorical_column_with_vocabulary_file",
  "sequence_categorical_column_with_vocabulary_list",
  "sequence_input_layer",
  "sequence_numeric_column",
]


def sequence_input_layer(
  features: dict[str, Any], feature_columns: Any, weight_collections: Any = None, trainable: bool = True
) -> tuple[Any, Any]:
  """([batch, longest, width] of the columns side by side in the order of their names, lengths [batch]).

  The variables are <scope>/sequence_input_layer/<column>/embedding_weights, as in TensorFlow 1.15.
  """
  columns = sorted(feature_columns, key=lambda column: column.name)
  cache = feature_column_v2.FeatureTransformationCache(features)
  outputs, lengths = [], []
  with tf.variable_scope(None, "sequence_input_layer", values=list(features.values())):
    manager = _Variables(weight_collections, trainable)
    for column in columns:
      with tf.variable_scope(column._var_scope_name if hasattr(column, "_var_scope_name") else column.name):
        column.create_state(manager)
        dense, length = column.get_sequence_dense_tensor(cache, manager)
        outputs.append(tf.reshape(dense, [tf.shape(dense)[0], tf.shape(dense)[1], column.variable_shape.num_elements()]))
        lengths.append(length)
  with tf.control_dependencies([tf.debugging.assert_equal(lengths[0], other) for other in lengths[1:]]):
    return tf.concat(outputs, -1), tf.identity(lengths[0])


class _Variables(feature_column_v2.StateManager):
  """Makes the columns' variables in the current variable scope."""

  def __init__(self, collections: Any, trainable: bool):
    self._collections = [*(collections or []), tf.GraphKeys.GLOBAL_VARIABLES]
    self._trainable = trainable
    self._made: dict[tuple[Any, str], Any] = {}

  def create_variable(
    self,
    feature_column: Any,
    name: str,
    shape: Any,
    dtype: Any = None,
    trainable: bool = True,
    use_resource: bool = True,
    initializer: Any = None,
  ) -> Any:
    made = tf.get_variable(
      name,
      shape,
      dtype or tf.float32,
      initializer,
      trainable=self._trainable and trainable,
      collections=self._collections,
      use_resource=False,
    )
    self._made[feature_column, name] = made
    return made

  def get_variable(self, feature_column: Any, name: str) -> Any:
    return self._made[feature_column, name]
