"""`mxrec.warm_start`: tables that begin with the rows of another run."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from mxrec import _graph, _loader, _validate, saveable
from mxrec import table as table_lib

PREFIX = "mxrec/"  # of a table's name in checkpoints of tf.train.Saver


def warm_start(
  checkpoint: str | os.PathLike[str], names: Mapping[str, Any] | None = None, *, with_optimizer: bool = False
) -> tf.Operation:
  """An op that fills tables with rows from a checkpoint of tf.train.Saver, under other names where wanted.

  Run it once, after the initialisers; what the tables held is replaced. In a MonitoredTrainingSession run it from
  `tf.train.Scaffold(init_fn=lambda scaffold, session: session.run(op))`, which is skipped when a checkpoint of the run itself is
  restored. Estimators do that by themselves for `warm_start_from`. Use counts and time stamps come along; the optimizer starts
  anew, so it may be another kind than the one that wrote the checkpoint.

  Args:
    checkpoint: the checkpoint's prefix, a folder with checkpoints (the latest is taken), or the folder of a SavedModel.
    names: dict from the name of a table in the checkpoint to a table of the default graph, or its name. None: every table of the
      default graph that Savers cover, from the table of the same name.
    with_optimizer: load the optimizer's slots and step too.

  Returns:
    The op.

  Raises:
    ValueError: an argument is wrong; the checkpoint holds no such table; lists those that it holds.
    tf.errors.NotFoundError: no such checkpoint.
    tf.errors.OpError: when the op runs: a table's file is missing or damaged, or has rows of another dimension.
  """
  prefix = checkpoint_prefix(checkpoint)
  _validate.boolean("with_optimizer", with_optimizer)
  pairs = _pairs(names)
  if not pairs:
    raise ValueError("warm_start: the default graph has no table that a Saver covers")
  return load_op(prefix, pairs, with_optimizer)


def load_op(prefix: str, pairs: list[tuple[str, table_lib.EmbeddingTable]], with_optimizer: bool = False) -> tf.Operation:
  """The op of warm_start for (name in the checkpoint, table) pairs."""
  reader = tf.train.load_checkpoint(prefix)
  there = tables_in(reader)
  missing = sorted({old for old, _ in pairs if old not in there})
  if missing:
    raise ValueError(f"warm_start: checkpoint {prefix} holds no table {missing}; tables there: {sorted(there)}")
  with _graph.outermost(), tf.name_scope("mxrec_warm_start"):
    loads = []
    for old, table in pairs:
      with tf.compat.v1.device(table.handle.device):
        marker = tf.constant(reader.get_tensor(PREFIX + old), tf.int64)
        loads.append(_loader.ops.mxrec_saver_restore(table.handle, prefix, marker, rows_only=not with_optimizer, name=table.name))
    return tf.group(*loads)


def checkpoint_prefix(checkpoint: str | os.PathLike[str]) -> str:
  """The prefix that a path means; see warm_start."""
  path = _validate.path("checkpoint", checkpoint)
  if not os.path.isdir(path):
    return path
  exported = os.path.join(path, "variables", "variables")
  if os.path.isfile(exported + ".index"):
    return exported
  latest = tf.train.latest_checkpoint(path)
  if latest is None:
    raise ValueError(
      f"warm_start: folder {path} holds no checkpoint of tf.train.Saver and no SavedModel; what EmbeddingTableSaver saved, it loads"
    )
  return latest


def tables_in(reader: Any) -> set[str]:
  """The names of the tables that a checkpoint reader's checkpoint holds."""
  types, shapes = reader.get_variable_to_dtype_map(), reader.get_variable_to_shape_map()
  return {
    name.removeprefix(PREFIX)
    for name, dtype in types.items()
    if name.startswith(PREFIX) and dtype == tf.int64 and shapes[name] == []
  }


def _pairs(names: Any) -> list[tuple[str, table_lib.EmbeddingTable]]:
  """(name in the checkpoint, table) for each table to fill."""
  registry = table_lib.registry()
  if names is None:
    return [(name, table) for name, table in registry.tables.items() if saveable.takes_part(table)]
  if not isinstance(names, Mapping):
    raise ValueError(f"names of warm_start must be a dict from names in the checkpoint to tables: got {_validate.found(names)}")
  pairs: list[tuple[str, table_lib.EmbeddingTable]] = []
  for old, new in names.items():
    if not isinstance(old, str):
      raise ValueError(f"names of warm_start must be keyed by names of tables: got {_validate.found(old)}")
    table = registry.tables.get(new.removeprefix(PREFIX)) if isinstance(new, str) else new
    if not isinstance(table, table_lib.EmbeddingTable) or table.graph is not registry.graph:
      raise ValueError(
        f"names of warm_start: {old!r} is to fill {_validate.found(new)}, which is no table of the default graph; tables there: "
        f"{sorted(registry.tables)}"
      )
    if any(other is table for _, other in pairs):
      raise ValueError(f"names of warm_start: table '{table.name}' is to be filled twice")
    pairs.append((old.removeprefix(PREFIX), table))
  return pairs
