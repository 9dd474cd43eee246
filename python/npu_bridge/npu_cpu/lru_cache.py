"""`LruCache`: which ids a cache of fixed size holds, and where."""

from __future__ import annotations

from typing import Any

import tensorflow.compat.v1 as tf

from npu_bridge import npu_bridge_handle as _ops


class LruCache:
  """A cache of ids in the session: the id that was not used for the longest time gives way.

  It says which rows to bring in and which to write back; the rows themselves are the caller's.

  Args:
    cache_size: number of places, times load_factor.
    load_factor: above 0, at most 1.
    dtype: of the ids and places: tf.uint32, tf.int32, tf.uint64 or tf.int64.

  Raises:
    ValueError: cache_size below 1. TypeError: another dtype. InvalidArgumentError when run: another load_factor.
  """

  def __init__(self, cache_size: int = 100000, load_factor: float = 1, dtype: tf.DType = tf.uint32):
    self._dtype = tf.as_dtype(dtype)
    name = tf.get_default_graph().unique_name("lru_cache")
    self._cache = _ops.lru_cache(
      cache_size=cache_size, load_factor=load_factor, dtype=self._dtype, shared_name=name, name=name + "/"
    )

  def cache_add(self, ids: Any) -> Any:
    """Makes ids present.

    Args:
      ids: of the cache's dtype, any shape, duplicates allowed.

    Returns:
      swap_in_id, swap_in_idx: ids that came in and their places; swap_out_id, swap_out_idx: ids that gave way and the places they
      had; all 1-D of the cache's dtype. When run: ResourceExhaustedError for more different ids than places.
    """
    return _ops.cache_add(self._cache, tf.convert_to_tensor(ids, self._dtype))

  def cache_remote_index_to_local(self, ids: Any) -> tf.Tensor:
    """The places of ids (any shape, the same shape out). When run: NotFoundError for an id that is not in the cache."""
    return _ops.cache_remote_index_to_local(self._cache, tf.convert_to_tensor(ids, self._dtype))

  def cache_all_index_to_local(self) -> tf.Tensor:
    """All ids of the cache, 1-D: the id at place 0, 1, ... up to the last place in use."""
    return _ops.cache_all_index_to_local(self._cache, dtype=self._dtype)
