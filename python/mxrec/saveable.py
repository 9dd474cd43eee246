"""Lets tf.train.Saver and MonitoredTrainingSession save and restore tables.

A SaveableObject in SAVEABLE_OBJECTS streams the table to a side file next to the checkpoint and stores one number, the
content tag of that file, in the checkpoint. The side file is called `<prefix>.data-<tag>-of-mxrec`, so that TensorFlow deletes
it together with its checkpoint. Of a table that several ranks train, the op gets the rows of all ranks, and hands them out again:
any rank may run the Saver, one or all. A Saver covers the tables that exist when it is made. A meta graph must have been exported
by a Saver to be imported: without one, import_meta_graph makes a Saver of its own before the tables can be found again, and raises.
"""

from __future__ import annotations

import itertools
import warnings
from typing import Any

import tensorflow as tf
from tensorflow.python.training.saving import saveable_object

from mxrec import _loader, _validate

_default_enabled = True


def save_with_tf_saver(enabled: bool) -> None:
  """Sets whether tables made from now on are saved and restored by tf.train.Saver (at first: yes).

  Switch it off to restore a checkpoint that has no tables in it, or to save tables by EmbeddingTableSaver alone.
  """
  global _default_enabled
  _default_enabled = _validate.boolean("enabled", enabled)


class TableSaveable(saveable_object.SaveableObject):
  """One table in a tf.train.Saver. Its name is the handle op's: import_meta_graph looks for an op of that name."""

  def __init__(self, handle: tf.Tensor) -> None:
    name = handle.op.name
    # The tensor is made when the Saver is, inside the Saver's name scope.
    spec = saveable_object.SaveSpec(self._save, "", name, dtype=tf.int64, device=handle.device or "/cpu:0")
    super().__init__(handle, [spec], name)
    self._handle = handle

  def _save(self) -> tf.Tensor:
    return _loader.ops.mxrec_saver_save(self._handle, _checkpoint_prefix(), name="mxrec_save")

  def restore(self, restored_tensors: list[tf.Tensor], restored_shapes: Any) -> tf.Operation:
    """The op that reads the side file which the restored marker names."""
    del restored_shapes
    source = restored_tensors[0]
    while source.op.type == "Identity":
      source = source.op.inputs[0]
    return _loader.ops.mxrec_saver_restore(self._handle, source.op.inputs[0], restored_tensors[0], name="mxrec_restore")


def _checkpoint_prefix() -> tf.Tensor:
  """The tensor with the path of the checkpoint: the last `Const` placeholder in the name scope of the Saver that is being made.

  The last: in an imported graph a new Saver shares the name scope `save` with the old one, and its placeholder is `Const_1`.
  """
  graph = tf.compat.v1.get_default_graph()
  parts = graph.get_name_scope().split("/")
  for length in range(len(parts), -1, -1):
    found = None
    for number in itertools.count():
      name = "/".join(parts[:length] + [f"Const_{number}" if number else "Const"])
      try:
        op = graph.get_operation_by_name(name)
      except KeyError:
        break
      if op.type == "PlaceholderWithDefault" and op.outputs[0].dtype == tf.string:
        found = op.outputs[0]
    if found is not None:
      return found
  raise RuntimeError(
    f"an mxrec table can be saved by tf.compat.v1.train.Saver only: no checkpoint path in name scope '{graph.get_name_scope()}'"
  )


def takes_part(table: Any) -> bool:
  """Whether Savers that are made from now on cover the table."""
  items = table.graph.get_collection(tf.compat.v1.GraphKeys.SAVEABLE_OBJECTS)
  return any(isinstance(item, TableSaveable) and item.name == table.handle.op.name for item in items)


def add_to_collection(table: Any, enabled: bool | None) -> None:
  """Makes Savers that come later cover the table, unless switched off; warns when one was made before."""
  if not (_default_enabled if enabled is None else enabled):
    return
  graph = table.graph
  graph.add_to_collection(tf.compat.v1.GraphKeys.SAVEABLE_OBJECTS, TableSaveable(table.handle))
  if _has_saver(graph):
    warnings.warn(
      f"a tf.train.Saver was made before table '{table.name}' and does not save it: make the Saver after the tables, "
      "use mxrec.EmbeddingTableSaver, or say save_with_tf_saver=False",
      UserWarning,
      stacklevel=3,
    )


def _has_saver(graph: tf.Graph) -> bool:
  """Whether a Saver of the usual name was made; one with another name is found by _checks later."""
  try:
    return graph.get_operation_by_name("save/SaveV2").type == "SaveV2"
  except KeyError:
    return False


def restore_in_collection(graph: tf.Graph, handle_op: tf.Operation) -> None:
  """After import_meta_graph the collection holds the handle op itself; puts a saveable in its place."""
  collection = graph.get_collection_ref(tf.compat.v1.GraphKeys.SAVEABLE_OBJECTS)
  for place, item in enumerate(collection):
    if item is handle_op or item is handle_op.outputs[0]:
      collection[place] = TableSaveable(handle_op.outputs[0])
