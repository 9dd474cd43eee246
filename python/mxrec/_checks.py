"""The warning about tables that no saver saves, which would otherwise fail in silence.

A graph is looked at when it is most likely complete: when EmbeddingTableSaver.save runs, and for the last time when the process
ends; anew only when it has grown. The warning is given once per table and graph. Tables that a step leaves untrained are
found by a graph pass of the op library at the first step (tf/graph/untrained_tables_pass.h).
"""

from __future__ import annotations

import atexit
import warnings

import tensorflow as tf

from mxrec import _graph, saveable


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


def run(graph: tf.Graph) -> None:
  """Looks at a graph and warns of tables that are not saved."""
  registry = _graph.registry(graph)
  graph = registry.graph
  if not registry.tables or registry.checked_version == graph.version:
    return
  registry.checked_version = graph.version
  for name in unsaved_tables(graph, registry):
    if registry.first_warning("unsaved", name):
      warnings.warn(
        f"table '{name}' is not saved: the graph's tf.train.Saver misses it (it was made before the table, or from a list of "
        "variables). Make the Saver after the tables and without a list, or use mxrec.EmbeddingTableSaver, or say "
        "save_with_tf_saver=False",
        UserWarning,
        stacklevel=3,
      )


@atexit.register
def _at_exit() -> None:
  for registry in _graph.all_registries():
    try:
      run(registry.graph)
    except (AssertionError, RuntimeError):
      pass  # the graph is gone already
