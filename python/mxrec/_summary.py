"""Figures of a table for TensorBoard."""

from __future__ import annotations

import tensorflow as tf

from mxrec import _validate
from mxrec import table as table_lib

_BYTES = ("bytes_index", "bytes_rows", "bytes_slots", "bytes_candidates")


def _figure(stats: tf.Tensor, field: str) -> tf.Tensor:
  """One whole number of the statistics, a JSON text, as a float32 scalar."""
  return tf.strings.to_number(tf.strings.regex_replace(stats, rf'^.*"{field}":([0-9]+).*$', r"\1"))


def summary(table: table_lib.EmbeddingTable) -> tf.Tensor:
  """Scalars for TensorBoard: `mxrec/<table>/rows`, `hit_rate`, `new_ids`, `evictions`, `bytes`.

  `hit_rate` is the share of distinct ids looked up that had a row; it, `new_ids` (rows ever inserted) and `evictions` count from
  the making of the session's table. `bytes` is index, rows, slots and candidates. The table's ops are made once; asked again, the
  same tensor comes back. It does not wait for the train op: fetch it in a run of its own for the figures after a step.

  Args:
    table: from `get_embedding_table`.

  Returns:
    string scalar, a merged summary for tf.compat.v1.summary.FileWriter; its parts are in tf.GraphKeys.SUMMARIES, so
    tf.compat.v1.summary.merge_all finds them.

  Raises:
    ValueError: `table` is something else.
  """
  if not isinstance(table, table_lib.EmbeddingTable):
    raise ValueError(f"Invalid parameter type: table is {_validate.found(table)}, expected a table of get_embedding_table")
  if table._summary is None:
    base = table.handle.op.name
    with table.graph.as_default(), tf.init_scope(), tf.compat.v1.name_scope(None), tf.compat.v1.device(table.handle.device):
      with tf.compat.v1.name_scope(f"{base}/summary/"):
        stats = table._ops.stats
        hits, misses = _figure(stats, "hits"), _figure(stats, "misses")
        figures = {
          "rows": _figure(stats, "rows"),
          "hit_rate": tf.math.divide_no_nan(hits, hits + misses),
          "new_ids": _figure(stats, "inserts"),
          "evictions": _figure(stats, "evictions"),
          "bytes": tf.add_n([_figure(stats, field) for field in _BYTES]),
        }
      scalars = [tf.compat.v1.summary.scalar(f"{base}/{tag}", figure) for tag, figure in figures.items()]
      table._summary = tf.compat.v1.summary.merge(scalars, collections=[], name=f"{base}/summary/merged")
  return table._summary
