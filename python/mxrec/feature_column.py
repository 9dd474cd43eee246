"""A feature column that looks its ids up in a table."""

from __future__ import annotations

import collections
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.feature_column import feature_column as columns_v1
from tensorflow.python.feature_column import feature_column_v2 as columns_v2

from mxrec import _pooling, _validate, lookup
from mxrec import table as table_lib

_CATEGORICAL = (columns_v1._CategoricalColumn, columns_v2.CategoricalColumn)
_SEQUENCE = (columns_v1._SequenceCategoricalColumn, columns_v2.SequenceCategoricalColumn)


def _valid(ids: tf.SparseTensor, weights: tf.SparseTensor | None, combiner: str) -> tuple[tf.SparseTensor, tf.SparseTensor | None]:
  """Without what TensorFlow's embedding columns leave out: ids below 0, and (unless summed) weights that are not above 0."""
  keep = tf.greater_equal(ids.values, 0)
  if weights is not None and combiner != "sum":
    keep = tf.logical_and(keep, tf.greater(weights.values, 0))
  return tf.sparse.retain(ids, keep), None if weights is None else tf.sparse.retain(weights, keep)


class TableColumn(
  columns_v2.DenseColumn,
  columns_v1._DenseColumn,
  collections.namedtuple(
    "TableColumn", ("categorical_column", "table", "combiner", "max_norm", "training", "default", "padding_id")
  ),
):
  """What `embedding_column` returns."""

  @property
  def _is_v2_column(self) -> bool:
    return isinstance(self.categorical_column, columns_v2.FeatureColumn) and self.categorical_column._is_v2_column

  @property
  def name(self) -> str:
    """The categorical column's name and the table's."""
    return f"{self.categorical_column.name}_{self.table.name}_embedding"

  @property
  def parse_example_spec(self) -> dict[str, Any]:
    """The categorical column's."""
    return self.categorical_column.parse_example_spec

  _parse_example_spec = parse_example_spec

  def transform_feature(self, transformation_cache: Any, state_manager: Any) -> Any:
    """The categorical column's ids."""
    return transformation_cache.get(self.categorical_column, state_manager)

  def _transform_feature(self, inputs: Any) -> Any:
    return inputs.get(self.categorical_column)

  @property
  def variable_shape(self) -> tf.TensorShape:
    """[dimension] of the table."""
    return tf.TensorShape([self.table.dimension])

  _variable_shape = variable_shape

  def _pooled(self, found: Any, trainable: bool) -> tf.Tensor:
    ids, weights = _valid(found.id_tensor, found.weight_tensor, self.combiner)
    return lookup.embedding_lookup(
      self.table,
      ids,
      weights=weights,
      combiner=self.combiner,
      max_norm=self.max_norm,
      training=self.training and trainable,
      default=self.default,
      padding_id=self.padding_id,
    )

  def get_dense_tensor(self, transformation_cache: Any, state_manager: Any) -> tf.Tensor:
    """Pooled rows, float32 [batch, ..., dimension]."""
    return self._pooled(self.categorical_column.get_sparse_tensors(transformation_cache, state_manager), True)

  def _get_dense_tensor(self, inputs: Any, weight_collections: Any = None, trainable: bool | None = None) -> tf.Tensor:
    found = self.categorical_column._get_sparse_tensors(inputs, weight_collections, trainable)
    return self._pooled(found, True if trainable is None else bool(trainable))

  @property
  def parents(self) -> list[Any]:
    """The categorical column."""
    return [self.categorical_column]

  def get_config(self) -> dict[str, Any]:
    """NotImplementedError: a table belongs to a graph and cannot be written into a config."""
    raise NotImplementedError(f"the column {self.name} looks ids up in a table, which has no config to be made again from")

  @classmethod
  def from_config(cls, config: Any, custom_objects: Any = None, columns_by_name: Any = None) -> TableColumn:
    """NotImplementedError, see `get_config`."""
    raise NotImplementedError("a column that looks ids up in a table cannot be made from a config")


def embedding_column(
  categorical_column: Any,
  table: table_lib.EmbeddingTable,
  combiner: str = "mean",
  max_norm: float | None = None,
  *,
  training: bool = True,
  default: Any = None,
  padding_id: Any = None,
) -> TableColumn:
  """A dense column of a table's rows, for tf.compat.v1.feature_column.input_layer and what builds on it.

  As tf.feature_column.embedding_column, but the rows live in a table of `get_embedding_table`: ids below 0 (missing, out of
  vocabulary) and, unless summed, weights that are not above 0 are left out; rows without ids are zeros. Several columns may share a
  table.

  Args:
    categorical_column: any categorical column but a sequence: identity, hashed, crossed, vocabulary, or
      tf.feature_column.weighted_categorical_column.
    table: the table.
    combiner: "mean", "sum" or "sqrtn".
    max_norm: as in `embedding_lookup`.
    training: as in `embedding_lookup`; input_layer(trainable=False) means False as well.
    default: as in `embedding_lookup`.
    padding_id: as in `embedding_lookup`.

  Returns:
    The column. It cannot be serialized.

  Raises:
    ValueError: not a categorical column, a sequence, not a table, arguments out of range.
  """
  if not isinstance(table, table_lib.EmbeddingTable):
    raise ValueError(f"Invalid parameter type: table is {_validate.found(table)}, expected a table of get_embedding_table")
  if not isinstance(categorical_column, _CATEGORICAL) or isinstance(categorical_column, _SEQUENCE):
    raise ValueError(
      f"categorical_column of an embedding_column of table '{table.name}' must be a categorical column that is not a sequence: got "
      f"{type(categorical_column).__name__}"
    )
  if combiner not in _pooling.COMBINERS:
    raise ValueError(
      f"combiner of an embedding_column of table '{table.name}' must be one of {', '.join(_pooling.COMBINERS)}: got "
      f"{_validate.found(combiner)}"
    )
  _validate.boolean("training", training)
  max_norm = _validate.max_norm(table.name, max_norm)
  # A column can be a key: no lists or arrays in it.
  padding_id = tuple(_validate.padding_ids(table.name, padding_id)) or None
  if default is not None:
    default = _validate.default_row(table.name, table.dimension, default)
    if isinstance(default, np.ndarray):
      default = tuple(default.tolist()) if default.ndim else default.item()
  return TableColumn(categorical_column, table, combiner, max_norm, training, default, padding_id)
