"""Right and wrong uses of the package for the type checker alone (make lint): nothing here runs.

A wrong use carries `type: ignore` with the error that must be found there; mypy reports one that is not needed.
"""

import numpy as np
import tensorflow.compat.v1 as tf

import mxrec


def right(session: tf.Session, loss: tf.Tensor) -> None:
  table: mxrec.EmbeddingTable = mxrec.get_embedding_table("t", 4, 100, min_used_times=2, capacity_policy="error")
  mxrec.embedding_lookup(table, [1, 2], training=False, default=0.5, name=None)
  mxrec.minimize(loss, mxrec.AdamWOptimizer(learning_rate=0.1, initial_state="original"), clip_norm=1.0)
  mxrec.minimize(loss, mxrec.sparse_optimizer(tf.train.AdamOptimizer(0.1), learning_rate_multipliers={table: 0.5}))
  mxrec.LambOptimizer(0.1).minimize(loss, name="lamb")
  rows: int = table.size(session)
  statistics: dict[str, dict[str, object]] = mxrec.stats(session)
  keys, values = table.export()
  keys.reshape(-1)
  saver = mxrec.EmbeddingTableSaver(mxrec.get_existing_tables(), keep=3)
  folder: str = saver.save(session, "folder", 1)
  step: int | None = mxrec.EmbeddingTableSaver.latest_step(folder)
  inserted: int = table.insert(np.arange(3), session=session)
  mxrec.testing.set_clock(1.0)
  print(rows, statistics, values, step, inserted, mxrec.version(), mxrec.__version__)


def wrong(session: tf.Session, table: mxrec.EmbeddingTable) -> None:
  mxrec.get_embedding_table("t", "4", 100)  # type: ignore[arg-type]
  mxrec.get_embedding_table("t", 4)  # type: ignore[call-arg]
  mxrec.get_embedding_table("t", 4, 100, max_cold_seconds=1)  # type: ignore[call-arg]
  mxrec.embedding_lookup("t", [1])  # type: ignore[arg-type]
  mxrec.embedding_lookup(table, [1], False)  # type: ignore[call-arg]
  mxrec.embedding_lookup(table, [1], name=5)  # type: ignore[arg-type]
  mxrec.AdamWOptimizer(name=1)  # type: ignore[arg-type]
  mxrec.GroupFtrlOptimizer(0.1).minimize()  # type: ignore[call-arg]
  mxrec.summary("t")  # type: ignore[arg-type]
  mxrec.sparse_optimizer(None, weight_decay="0.1")  # type: ignore[arg-type]
  mxrec.EmbeddingTableSaver(table)  # type: ignore[arg-type]
  mxrec.EmbeddingTableSaver([table]).save(session, "folder", "1")  # type: ignore[arg-type]
  mxrec.EmbeddingTableSaver([table]).save(session, 3, 1)  # type: ignore[arg-type]
  table.name = "u"  # type: ignore[misc]
  table.rows()  # type: ignore[attr-defined]
  mxrec.save_with_tf_saver("yes")  # type: ignore[arg-type]
  mxrec.get_table("t")  # type: ignore[attr-defined]
  mxrec.testing.set_clock("now")  # type: ignore[arg-type]
