"""tf.contrib.lookup: tables from keys to values, on TensorFlow's own table ops."""

from __future__ import annotations

from typing import Any

import tensorflow.compat.v1 as tf
from tensorflow.python.ops import lookup_ops

__all__ = [
  "HashTable",
  "IdTableWithHashBuckets",
  "KeyValueTensorInitializer",
  "LookupInterface",
  "MutableDenseHashTable",
  "MutableHashTable",
  "TextFileIdTableInitializer",
  "TextFileIndex",
  "TextFileInitializer",
  "TextFileStringTableInitializer",
  "index_table_from_file",
  "index_table_from_tensor",
  "index_to_string",
  "index_to_string_table_from_file",
  "index_to_string_table_from_tensor",
  "string_to_index",
  "string_to_index_table_from_file",
  "string_to_index_table_from_tensor",
]

IdTableWithHashBuckets = lookup_ops.IdTableWithHashBuckets
KeyValueTensorInitializer = lookup_ops.KeyValueTensorInitializer
LookupInterface = lookup_ops.LookupInterface
TextFileIdTableInitializer = lookup_ops.TextFileIdTableInitializer
TextFileIndex = lookup_ops.TextFileIndex
TextFileInitializer = lookup_ops.TextFileInitializer
TextFileStringTableInitializer = lookup_ops.TextFileStringTableInitializer
index_table_from_file = lookup_ops.index_table_from_file
index_to_string_table_from_file = lookup_ops.index_to_string_table_from_file
string_to_index_table_from_file = lookup_ops.index_table_from_file


class _Table:
  """What TensorFlow 1's tables had: `shared_name`, which subclasses keep as _given_shared_name, and `init`."""

  _given_shared_name: str | None = None

  def _create_resource(self) -> Any:
    if self._given_shared_name:
      self._shared_name = self._given_shared_name
    return super()._create_resource()

  @property
  def init(self) -> Any:
    """The operation that fills the table."""
    return getattr(self, "initializer", None) or tf.no_op()


class HashTable(_Table, lookup_ops.StaticHashTableV1):
  """A table that its initializer fills once; `table.init` or `tf.tables_initializer()` runs that."""

  def __init__(self, initializer: Any, default_value: Any, shared_name: str | None = None, name: str | None = None):
    """Tables with one `shared_name` share their content in a session.

    Args:
      initializer: KeyValueTensorInitializer or TextFileInitializer.
      default_value: for keys that are not there.
      shared_name: None: a table of its own.
      name: of the op.
    """
    self._given_shared_name = shared_name
    super().__init__(initializer, default_value, name)


class MutableHashTable(_Table, lookup_ops.MutableHashTable):
  """A table that changes while it runs: insert, remove, lookup, export, size. Not trainable."""

  def __init__(
    self,
    key_dtype: Any,
    value_dtype: Any,
    default_value: Any,
    shared_name: str | None = None,
    name: str = "MutableHashTable",
    checkpoint: bool = True,
  ):
    """Makes an empty table.

    Args:
      key_dtype: of keys.
      value_dtype: of values.
      default_value: for keys that are not there; its shape is that of a value.
      shared_name: tables with one name share their content in a session.
      name: of the op.
      checkpoint: whether tf.train.Saver saves it.
    """
    self._given_shared_name = shared_name
    super().__init__(key_dtype, value_dtype, default_value, name=name, checkpoint=checkpoint)


class MutableDenseHashTable(_Table, lookup_ops.DenseHashTable):
  """MutableHashTable with open addressing; `empty_key` and `deleted_key` are keys that nobody may use."""

  def __init__(
    self,
    key_dtype: Any,
    value_dtype: Any,
    default_value: Any,
    empty_key: Any,
    initial_num_buckets: Any = None,
    shared_name: str | None = None,
    name: str = "MutableDenseHashTable",
    checkpoint: bool = True,
    deleted_key: Any = None,
  ):
    """ValueError: no deleted_key, which TensorFlow 2 needs."""
    if deleted_key is None:
      raise ValueError("MutableDenseHashTable: give deleted_key, a key other than empty_key that is never used")
    self._given_shared_name = shared_name
    super().__init__(
      key_dtype,
      value_dtype,
      default_value,
      empty_key,
      deleted_key,
      initial_num_buckets=initial_num_buckets,
      name=name,
      checkpoint=checkpoint,
    )


def index_table_from_tensor(
  mapping: Any = None,
  num_oov_buckets: int = 0,
  default_value: int = -1,
  hasher_spec: Any = lookup_ops.FastHashSpec,
  dtype: Any = tf.string,
  name: str | None = None,
  vocabulary_list: Any = None,
) -> Any:
  """A table from the entries of a 1-D tensor to their positions; `mapping` is the old name of `vocabulary_list`."""
  vocabulary = mapping if mapping is not None else vocabulary_list
  return lookup_ops.index_table_from_tensor(vocabulary, num_oov_buckets, default_value, hasher_spec, dtype, name)


def string_to_index_table_from_tensor(
  mapping: Any,
  num_oov_buckets: int = 0,
  default_value: int = -1,
  hasher_spec: Any = lookup_ops.FastHashSpec,
  name: str | None = None,
) -> Any:
  """The old name of index_table_from_tensor for texts."""
  return index_table_from_tensor(mapping, num_oov_buckets, default_value, hasher_spec, tf.string, name)


def index_to_string_table_from_tensor(
  mapping: Any = None, default_value: str = "UNK", name: str | None = None, vocabulary_list: Any = None
) -> Any:
  """A table from positions to the texts of a 1-D tensor; `mapping` is the old name of `vocabulary_list`."""
  vocabulary = mapping if mapping is not None else vocabulary_list
  return lookup_ops.index_to_string_table_from_tensor(vocabulary, default_value, name)


def string_to_index(tensor: Any, mapping: Any, default_value: int = -1, name: str | None = None) -> Any:
  """The positions of texts in a 1-D tensor."""
  return index_table_from_tensor(mapping, default_value=default_value, name=name).lookup(tensor)


def index_to_string(tensor: Any, mapping: Any, default_value: str = "UNK", name: str | None = None) -> Any:
  """The texts at positions of a 1-D tensor."""
  return index_to_string_table_from_tensor(mapping, default_value, name).lookup(tensor)
