"""Embedding hash tables under the original's op names, on mxrec's tables; dense numbers for ids; places of sharded rows.

A hash table here is named by a number (`table_id`) and lives in the session, as variables do; its handle is that number. For new
programs `mxrec.get_embedding_table` does more: checkpoints, optimizers, eviction, lookups that do not insert.

Names of the original that have no meaning without an NPU, or whose file format is not public, raise NotImplementedError when
called.
"""

from __future__ import annotations

import numbers
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow.compat.v1 as tf

from npu_bridge import npu_bridge_handle as _ops

_NOT_HERE = {
  "embedding_hashmap_export": "the file format is not public: use embedding_hash_table_export, or mxrec's savers",
  "embedding_hashmap_import": "the file format is not public: use embedding_hash_table_import, or mxrec's savers",
  "embedding_hashmap_file_size": "the file format is not public",
  "embedding_hashmap_export_v2": "the file format is not public: use embedding_hash_table_export, or mxrec's savers",
  "embedding_hashmap_import_v2": "the file format is not public: use embedding_hash_table_import, or mxrec's savers",
  "embedding_hashmap_file_size_v2": "the file format is not public",
  "embedding_hashtable_evict": "use mxrec's tables, which evict by time and by capacity",
  "host_feature_mapping_export": "the file format is not public",
  "host_feature_mapping_import": "the file format is not public",
  "ocr_recognition_pre_handle": "text recognition is not part of this package",
  "ocr_detection_pre_handle": "text recognition is not part of this package",
  "ocr_detection_post_handle": "text recognition is not part of this package",
  "ocr_identify_pre_handle": "text recognition is not part of this package",
  "batch_dilate_polys": "text recognition is not part of this package",
  "batch_enqueue": "text recognition is not part of this package",
  "resize_and_clip_polys": "text recognition is not part of this package",
  "dense_image_warp": "image ops are not part of this package",
}


def _refuser(name: str, reason: str) -> Callable[..., Any]:
  def refuse(*arguments: Any, **keywords: Any) -> Any:
    raise NotImplementedError(f"npu_cpu_ops.{name}: {reason}")

  refuse.__name__ = refuse.__qualname__ = name
  refuse.__doc__ = f"Raises NotImplementedError: {reason}."
  return refuse


for _name, _reason in _NOT_HERE.items():
  globals()[_name] = _refuser(_name, _reason)


def init_embedding_hashmap_v2(
  table_id: Any, bucket_size: int, load_factor: float = 0.8, embedding_dim: int = 0, dtype: Any = tf.float32
) -> tf.Tensor:
  """Makes the table of that number in the session, unless it is there with the same sizes.

  Args:
    table_id: integer, or scalar int32 or int64 tensor.
    bucket_size: most rows; a lookup that needs more is ResourceExhaustedError and changes nothing.
    load_factor: above 0, at most 1; it has no effect.
    embedding_dim: values in a row.
    dtype: tf.float32.

  Returns:
    The table's handle, scalar int64.

  Raises:
    ValueError: sizes below 1, another dtype or load_factor. FailedPreconditionError when run: the table is there with other sizes.
  """
  if not (isinstance(load_factor, numbers.Real) and 0 < load_factor <= 1):
    raise ValueError(f"load_factor of init_embedding_hashmap_v2 must be above 0 and at most 1: got {load_factor!r}")
  if tf.as_dtype(dtype) != tf.float32:
    raise ValueError(f"dtype of init_embedding_hashmap_v2: expected tf.float32, found {dtype!r}")
  return _ops.init_embedding_hashmap_v2(_number(table_id), bucket_size=bucket_size, embedding_dim=embedding_dim)


def deinit_embedding_hashmap_v2(table_id: Any) -> tf.Operation:
  """An op that deletes the table of that number (integer or scalar tensor) from the session; none there is fine."""
  return _ops.deinit_embedding_hashmap_v2(_number(table_id))


def table_to_resource_v2(table_id: Any) -> tf.Tensor:
  """The handle (int64) of a table (integer or scalar tensor) that was made; else FailedPreconditionError when run."""
  return _ops.table_to_resource_v2(_number(table_id))


def _number(table_id: Any) -> tf.Tensor:
  return table_id if tf.is_tensor(table_id) else tf.constant(table_id, tf.int64)


def init_embedding_hashtable(
  table_handle: tf.Tensor,
  sampled_values: Any,
  bucket_size: int,
  embedding_dim: int,
  initializer_mode: str = "random",
  constant_value: float = 0.0,
) -> tf.Operation:
  """Empties a table and sets what new rows begin with (zeros before this is run).

  Args:
    table_handle: of init_embedding_hashmap_v2.
    sampled_values: float32 [rows, embedding_dim]; under "random" a new key takes the row that its hash says, or the next one that
      no other key took. So it depends little on the order in which keys come.
    bucket_size, embedding_dim: the table's.
    initializer_mode: "random" or "constant".
    constant_value: of every value under "constant"; sampled_values is then ignored and may be None.

  Returns:
    The operation.

  Raises:
    ValueError: another mode.
  """
  if sampled_values is None and initializer_mode == "constant":
    sampled_values = tf.zeros([0, embedding_dim])
  return _ops.init_embedding_hash_table(
    table_handle,
    sampled_values,
    bucket_size=bucket_size,
    embedding_dim=embedding_dim,
    initializer_mode=initializer_mode,
    constant_value=constant_value,
  )


def embedding_hashtable_lookup_or_insert(
  table_handle: tf.Tensor,
  keys: Any,
  bucket_size: int,
  embedding_dim: int,
  filter_mode: str = "no_filter",
  filter_freq: int = 1,
  default_key_or_value: bool = False,
  default_key: int = 0,
  default_value: float = 0.0,
  filter_key_flag: bool = False,
  filter_key: int = -1,
) -> tf.Tensor:
  """Rows of keys. Absent keys are inserted and every occurrence is counted, in evaluation too.

  Args:
    table_handle: of init_embedding_hashmap_v2.
    keys: int64, any shape S.
    bucket_size, embedding_dim: the table's.
    filter_mode: "counter": a key owns a row once it occurred `filter_freq` times, this call's occurrences included; till then the
      answer is the default. "no_filter": at once. All lookups of a filled table must agree.
    filter_freq: see there.
    default_key_or_value: whether the default is the row of `default_key` (if it owns one), else `default_value` everywhere.
    default_key, default_value: see there.
    filter_key_flag: whether `filter_key` is left out: neither inserted nor counted; the answer is the default.
    filter_key: see there.

  Returns:
    float32 S + [embedding_dim]. Not differentiable: hand gradients to embedding_hashtable_apply_adam_w.

  Raises:
    ValueError: another filter_mode. When run: ResourceExhaustedError for a full table, FailedPreconditionError for a table that is
    not there, has other sizes, or is filled under another filter.
  """
  return _ops.embedding_hash_table_lookup_or_insert(
    table_handle,
    keys,
    bucket_size=bucket_size,
    embedding_dim=embedding_dim,
    filter_mode=filter_mode,
    filter_freq=filter_freq,
    default_key_or_value=default_key_or_value,
    default_key=default_key,
    default_value=default_value,
    filter_key_flag=filter_key_flag,
    filter_key=filter_key,
  )


def embedding_hashtable_apply_adam_w(
  table_handle: tf.Tensor,
  keys: Any,
  m: Any,
  v: Any,
  beta1_power: Any,
  beta2_power: Any,
  lr: Any,
  weight_decay: Any,
  beta1: Any,
  beta2: Any,
  epsilon: Any,
  grad: Any,
  max_grad_norm: Any = None,
  embedding_dim: int = 0,
  bucket_size: int = 0,
  amsgrad: bool = False,
  maximize: bool = False,
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor, tf.Tensor]:
  """One AdamW step on the rows of keys. Keys without a row, and the key -1, are skipped.

  Args:
    table_handle: of init_embedding_hashmap_v2.
    keys: int64 [n]; gradients of a key that comes several times are summed.
    m, v: float32, one value all over: what the moments of a row begin with. The moments are kept in the table beside their rows.
    beta1_power, beta2_power: one float32 each; multiplied by beta1 and beta2 before use. Variables are advanced.
    lr, weight_decay, beta1, beta2, epsilon: one float32 each.
    grad: float32 [n, embedding_dim].
    max_grad_norm: used with amsgrad: as m, for the largest second moment so far; None: 0.
    embedding_dim, bucket_size: the table's.
    amsgrad: whether to divide by the largest second moment so far, kept in the table too. All steps of a table must agree.
    maximize: whether to go up instead of down.

  Returns:
    m, v as they came, and the powers for the next step.

  Raises:
    InvalidArgumentError when run: shapes that do not fit, m, v or max_grad_norm of several values.
  """
  powers = (beta1_power, beta2_power)
  out = _ops.embedding_hash_table_apply_adam_w(
    table_handle,
    keys,
    m,
    v,
    *powers,
    lr,
    weight_decay,
    beta1,
    beta2,
    epsilon,
    grad,
    [] if max_grad_norm is None or not amsgrad else [max_grad_norm],
    embedding_dim=embedding_dim,
    bucket_size=bucket_size,
    amsgrad=amsgrad,
    maximize=maximize,
  )
  advanced = (
    power.assign(value) if isinstance(power, tf.Variable) else value
    for power, value in zip(powers, (out.beta1_power_out, out.beta2_power_out))
  )
  return (out.m_out, out.v_out, *advanced)


def embedding_hash_table_export(
  table_handles: Any,
  table_sizes: Any,
  embedding_dims: Sequence[int],
  bucket_sizes: Any = None,
  export_mode: str = "all",
  filtered_export_flag: bool = False,
) -> Any:
  """What tables hold, each as of one moment, in an order that depends only on the contents.

  Args:
    table_handles: a list of handles, or one tensor [tables].
    table_sizes, bucket_sizes: accepted; the outputs have the sizes of the tables.
    embedding_dims: of each table.
    export_mode: "all".
    filtered_export_flag: whether keys that did not pass the filter yet are left out.

  Returns:
    keys (int64 [n]), counters (uint64 [n]), filter_flags (uint8 [n]; 0 for keys that did not pass the filter, whose values are
    zeros) and values (float32 [n, dim]), each a list with one tensor a table.

  Raises:
    TypeError, ValueError: embedding_dims is no list of numbers of at least 1, or not one a table.
    NotImplementedError: another export_mode.
  """
  del table_sizes, bucket_sizes
  dims = _dims("embedding_hash_table_export", embedding_dims)
  if export_mode != "all":
    raise NotImplementedError(f'export_mode of npu_cpu_ops.embedding_hash_table_export: only "all" is there, found {export_mode!r}')
  return _ops.embedding_hash_table_export(
    _handles("embedding_hash_table_export", table_handles, len(dims)),
    embedding_dims=dims,
    filtered_export_flag=filtered_export_flag,
  )


def embedding_hash_table_import(
  table_handles: Any,
  embedding_dims: Sequence[int],
  bucket_sizes: Any,
  keys: Sequence[Any],
  counters: Sequence[Any],
  filter_flags: Sequence[Any],
  values: Sequence[Any],
) -> tf.Operation:
  """Replaces the contents of tables by what embedding_hash_table_export gave; moments begin anew.

  Args:
    table_handles: a list of handles, or one tensor [tables].
    embedding_dims: of each table.
    bucket_sizes: accepted; the tables know theirs.
    keys, counters, filter_flags, values: one tensor a table, as the export gives them. Under a filter, keys with flag 0 are counted
      on; without one they are left out.

  Returns:
    The operation. When run: ResourceExhaustedError for more rows than a table takes, DataLossError for a key that comes twice.

  Raises:
    TypeError: what must be a list is none. ValueError: lists of different lengths.
  """
  del bucket_sizes
  function = "embedding_hash_table_import"
  dims = _dims(function, embedding_dims)
  for name, tensors in (("keys", keys), ("counters", counters), ("filter_flags", filter_flags), ("values", values)):
    if not isinstance(tensors, (list, tuple)):
      raise TypeError(f"{name} of {function} must be a list with one tensor a table: got {type(tensors).__name__}")
    if len(tensors) != len(dims):
      raise ValueError(f"{name} of {function} has {len(tensors)} tensors, expected one for each of {len(dims)} tables")
  return _ops.embedding_hash_table_import(
    _handles(function, table_handles, len(dims)),
    list(keys),
    [tf.cast(counter, tf.uint64) for counter in counters],
    [tf.cast(flags, tf.uint8) for flags in filter_flags],
    list(values),
  )


def _dims(function: str, embedding_dims: Any) -> list[int]:
  """The dimensions of several tables."""
  if not isinstance(embedding_dims, (list, tuple)) or not all(isinstance(dim, numbers.Integral) for dim in embedding_dims):
    raise TypeError(f"embedding_dims of {function} must be a list of ints, one a table: got {embedding_dims!r}")
  if not embedding_dims or min(embedding_dims) < 1:
    raise ValueError(f"embedding_dims of {function} must be at least 1 and of at least one table: got {embedding_dims!r}")
  return [int(dim) for dim in embedding_dims]


def _handles(function: str, table_handles: Any, count: int) -> list[Any]:
  if isinstance(table_handles, (list, tuple)):
    if len(table_handles) != count:
      raise ValueError(f"embedding_dims of {function} has {count} entries, expected one for each of {len(table_handles)} tables")
    return list(table_handles)
  return tf.unstack(tf.reshape(table_handles, [count]))


def embedding_hashmap_size(table_ids: Any, filter_export_flag: bool = False) -> tf.Tensor:
  """How many keys tables hold.

  Args:
    table_ids: integers of any shape.
    filter_export_flag: whether keys that did not pass the filter yet are left out.

  Returns:
    int64 of the same shape.
  """
  if not tf.is_tensor(table_ids):
    table_ids = tf.constant(table_ids, tf.int64)
  return _ops.embedding_hashmap_size(table_ids, filter_export_flag=filter_export_flag)


embedding_hashmap_size_v2 = embedding_hashmap_size


def host_feature_mapping(feature_id: Any, threshold: int = 1, table_name: str = "default_table_name") -> tf.Tensor:
  """Dense numbers 0, 1, 2, ... for ids, in the order in which they are first given one. A mapping belongs to the session.

  Args:
    feature_id: int64, any shape.
    threshold: how often an id must have occurred, this call's occurrences included, before it gets a number.
    table_name: which mapping.

  Returns:
    int32 of the same shape; -1 for ids below the threshold.

  Raises:
    ValueError: threshold below 1. FailedPreconditionError when run: another threshold than the mapping has.
  """
  return _ops.host_feature_mapping(feature_id, threshold=threshold, table_name=table_name)


def device_feature_mapping(feature_id: Any) -> tf.Tensor:
  """As `host_feature_mapping(feature_id)`, in a mapping of its own."""
  return _ops.host_feature_mapping(feature_id, table_name="device_feature_mapping")


def embeddingrankid(addr_tensor: Any, index: Any, row_memory: int = 320, mode: str = "mod") -> tf.Tensor:
  """Where rows of a sharded table lie.

  Args:
    addr_tensor: uint64 [shards, 3]: rank, first address, bytes of each shard.
    index: int32, int64 or uint64 [n], rows of the whole table.
    row_memory: bytes of a row.
    mode: "mod": row i is row i // shards of shard i % shards; "order": the shards follow each other, each with the rows that fit.

  Returns:
    uint64 [n, 3]: rank, address, row_memory.

  Raises:
    ValueError: another mode. InvalidArgumentError when run: an index that no shard holds.
  """
  return _ops.embedding_rank_id(addr_tensor, index, row_memory=row_memory, mode=mode)


def embedding_local_index(addr_tensor: Any, index: Any, row_memory: int = 320, mode: str = "mod") -> Any:
  """Rows of a sharded table as rows of their shards, grouped by shard. Arguments and errors are those of `embeddingrankid`.

  Returns:
    local_idx [n], the rows of the first shard, of the second, ..., in each in the order of index; nums [shards], how many there are
    of each; recover_idx [n]: index[recover_idx[j]] went to place j. All of the type of index.
  """
  return _ops.embedding_local_index(addr_tensor, index, row_memory=row_memory, mode=mode)
