"""The ops of one table, all made when the table is, under the name scope `mxrec/<table>/`."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import tensorflow as tf

from mxrec import _loader

_TENSORS = {  # field -> name below the handle op's name
  "keys": "keys:0",
  "new_values": "new_values:0",
  "size": "size:0",
  "stats": "stats:0",
  "values": "find:0",
  "found": "find:1",
  "exported_keys": "export:0",
  "exported_values": "export:1",
  "inserted": "insert:0",
  "erased": "erase:0",
  "evicted": "evict:0",
}


@dataclasses.dataclass(frozen=True)
class TableOps:
  """Tensors and ops of a table; `keys` and `new_values` are fed."""

  handle: tf.Tensor
  reset: tf.Operation
  keys: tf.Tensor  # int64 [n]
  new_values: tf.Tensor  # float32 [n, dim] or [0, dim]
  size: tf.Tensor
  stats: tf.Tensor
  values: tf.Tensor
  found: tf.Tensor
  exported_keys: tf.Tensor
  exported_values: tf.Tensor
  inserted: tf.Tensor
  erased: tf.Tensor
  evicted: tf.Tensor

  @classmethod
  def build(cls, name: str, config: dict[str, Any]) -> TableOps:
    """Makes the ops in the default graph. The handle op is called `mxrec/<name>`, exactly: checkpoints know the table by that."""
    ops, dim, base = _loader.ops, config["dim"], f"mxrec/{name}"
    # A name with a slash at its end is taken as it is; else TensorFlow makes `user_1` of `user` in a graph that has `User`.
    handle = ops.mxrec_table(shared_name=base, config=json.dumps(config, sort_keys=True), name=base + "/")
    with tf.compat.v1.device(handle.device):
      keys = tf.compat.v1.placeholder(tf.int64, [None], name=f"{base}/keys/")
      new_values = tf.compat.v1.placeholder(tf.float32, [None, dim], name=f"{base}/new_values/")
      ops.mxrec_table_reset(handle, name=f"{base}/reset/")
      ops.mxrec_table_size(handle, name=f"{base}/size/")
      ops.mxrec_table_stats(handle, name=f"{base}/stats/")
      ops.mxrec_table_find(handle, keys, dim=dim, name=f"{base}/find/")
      ops.mxrec_table_export(handle, dim=dim, name=f"{base}/export/")
      ops.mxrec_table_insert(handle, keys, new_values, name=f"{base}/insert/")
      ops.mxrec_table_erase(handle, keys, name=f"{base}/erase/")
      ops.mxrec_table_evict(handle, name=f"{base}/evict/")
    return cls.find(handle)

  @classmethod
  def find(cls, handle: tf.Tensor) -> TableOps:
    """Finds the ops that `build` made, also in an imported graph."""
    graph, base = handle.graph, handle.op.name
    tensors = {field: graph.get_tensor_by_name(f"{base}/{below}") for field, below in _TENSORS.items()}
    return cls(handle=handle, reset=graph.get_operation_by_name(f"{base}/reset"), **tensors)
