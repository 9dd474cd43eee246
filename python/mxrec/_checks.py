"""Warnings about what would otherwise fail in silence: tables that are never trained, tables that no saver saves.

TensorFlow offers no hook for "a session runs a train op" without patching it, so a graph is looked at when it is most likely
complete: when get_init_hashtable_op, EmbeddingTableSaver.save or a table method runs, and for the last time when the process ends.
A graph is looked at anew only when it has grown. Each warning is given once per table and graph.
"""

from __future__ import annotations

import atexit
import re
import warnings

import tensorflow as tf

from mxrec import _graph, saveable

_STOCK_UPDATE = re.compile(r"(Resource)?(Sparse)?Apply[A-Z].*")


def _warn(registry: _graph.Registry, kind: str, table: str, text: str) -> None:
  if (kind, table) not in registry.warned:
    registry.warned.add((kind, table))
    warnings.warn(text, UserWarning, stacklevel=4)


def untrained_tables(graph: tf.Graph, registry: _graph.Registry) -> list[str]:
  """Tables whose training lookups feed a variable update of TensorFlow's, while no op updates the table."""
  open_lookups = [
    record for record in registry.lookups if record.training and record.graph is graph and record.table.name not in registry.trained
  ]
  if not open_lookups:
    return []
  operations = graph.get_operations()
  for op in operations:  # updates of an imported graph
    if op.type == _graph.APPLY_OP and (source := _graph.handle_op(op.inputs[0])) is not None:
      open_lookups = [record for record in open_lookups if record.table.handle.op is not source]
  reached = _graph.ancestors(op for op in operations if _STOCK_UPDATE.fullmatch(op.type))
  return sorted({record.table.name for record in open_lookups if record.op in reached})


def unsaved_tables(graph: tf.Graph, registry: _graph.Registry) -> list[str]:
  """Tables that take part in tf.train.Saver, while the Savers of the graph all miss them and no EmbeddingTableSaver has them."""
  operations = graph.get_operations()
  if not any(op.type == "SaveV2" for op in operations):
    return []
  saved = {op.inputs[0].op.name for op in operations if op.type == "MxrecSaverSave"}
  return [
    name
    for name, table in registry.tables.items()
    if saveable.takes_part(table) and table.handle.op.name not in saved and name not in registry.own_saver
  ]


def run(graph: tf.Graph, savers: bool = False) -> None:
  """Looks at a graph and warns of tables that are not trained; with `savers` also of those that are not saved."""
  registry = _graph.registry(graph)
  graph = registry.graph
  if not registry.tables or registry.checked.get(savers) == graph.version:
    return
  registry.checked[savers] = graph.version
  for name in untrained_tables(graph, registry):
    _warn(
      registry,
      "untrained",
      name,
      f"table '{name}' is not trained: the graph updates variables with gradients of a loss that looks ids up in it, but no "
      "mxrec optimizer updates the table. Use mxrec.minimize(loss, optimizer), or apply gradients of "
      "mxrec.get_sparse_embedding() with an mxrec optimizer, or say training=False in the lookup",
    )
  if not savers:
    return
  for name in unsaved_tables(graph, registry):
    _warn(
      registry,
      "unsaved",
      name,
      f"table '{name}' is not saved: the graph's tf.train.Saver misses it (it was made before the table, or from a list of "
      "variables). Make the Saver after the tables and without a list, or use mxrec.EmbeddingTableSaver, or say "
      "save_with_tf_saver=False",
    )


@atexit.register
def _at_exit() -> None:
  for registry in _graph.all_registries():
    try:
      run(registry.graph, savers=True)
    except (AssertionError, RuntimeError):
      pass  # the graph is gone already
