"""mxrec: sparse embedding tables for TensorFlow graph-mode scripts.

    table = mxrec.get_embedding_table("user", dimension=16, device_vocabulary_size=1_000_000)
    rows = mxrec.embedding_lookup(table, ids)                       # ids.shape + [16]
    train_op = mxrec.minimize(loss, tf.compat.v1.train.AdagradOptimizer(0.05))

Importing needs TensorFlow and the op library; ImportError says what is missing. Nothing of TensorFlow is changed.
"""

from mxrec import _command
from mxrec._version import __version__

if _command.starting():
  __getattr__ = _command.lookup
else:
  from mxrec import (
    _interrupt,
    _loader,  # noqa: F401 - its ImportError is the clearest; _interrupt takes it in before anything else
    testing,
  )
  from mxrec._minimize import minimize
  from mxrec._sparse_optimizer import sparse_optimizer
  from mxrec._summary import summary
  from mxrec._warm_start import warm_start
  from mxrec.adamw import AdamWOptimizer
  from mxrec.config import init
  from mxrec.feature_column import embedding_column
  from mxrec.lookup import embedding_lookup, get_sparse_embedding
  from mxrec.row_optimizers import AMSGradOptimizer, GroupFtrlOptimizer, LambOptimizer, RowWiseAdagradOptimizer
  from mxrec.saveable import save_with_tf_saver
  from mxrec.saver import EmbeddingTableSaver
  from mxrec.table import EmbeddingTable, get_embedding_table, get_existing_tables, get_init_hashtable_op, stats

  _interrupt.install()

__all__ = [
  "AMSGradOptimizer",
  "AdamWOptimizer",
  "EmbeddingTable",
  "EmbeddingTableSaver",
  "GroupFtrlOptimizer",
  "LambOptimizer",
  "RowWiseAdagradOptimizer",
  "__version__",
  "embedding_column",
  "embedding_lookup",
  "get_embedding_table",
  "get_existing_tables",
  "get_init_hashtable_op",
  "get_sparse_embedding",
  "init",
  "minimize",
  "save_with_tf_saver",
  "sparse_optimizer",
  "stats",
  "summary",
  "testing",
  "version",
  "warm_start",
]


def version() -> str:
  """The package's version."""
  return __version__
