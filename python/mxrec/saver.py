"""EmbeddingTableSaver: checkpoints of tables (bytes on disk: docs/formats/checkpoint.md)."""

from __future__ import annotations

import dataclasses
import json
import os
import re
from typing import Any

import numpy as np
import tensorflow as tf

from mxrec import _checks, _graph, _loader, _session, _validate
from mxrec import table as table_lib


@dataclasses.dataclass(frozen=True)
class _SaverOps:
  """Ops for one list of tables; made once per graph and list."""

  directory: tf.Tensor
  step: tf.Tensor
  keep: tf.Tensor
  save: tf.Tensor
  load: tf.Tensor

  @classmethod
  def of(cls, tables: list[table_lib.EmbeddingTable]) -> _SaverOps:
    graph, names = tables[0].graph, tuple(table.name for table in tables)
    made = table_lib.registry(graph).saver_ops
    if names not in made:
      handles = [table.handle for table in tables]
      with _graph.may_grow(graph), tf.init_scope(), tf.name_scope("mxrec_saver"):
        directory = tf.compat.v1.placeholder(tf.string, [], name="directory")
        step = tf.compat.v1.placeholder(tf.int64, [], name="step")
        keep = tf.compat.v1.placeholder(tf.int64, [], name="keep")
        save = _loader.ops.mxrec_save(handles, directory, step, keep, name="save")
        load = _loader.ops.mxrec_load(handles, directory, step, name="load")
      made[names] = cls(directory, step, keep, save, load)
    return made[names]


def _is_of_tensorflow(path: str) -> bool:
  """Whether a path is a checkpoint of tf.train.Saver, or a folder of such."""
  try:
    return os.path.isfile(path + ".index") or any(name.endswith(".index") for name in os.listdir(path))
  except OSError:
    return False


class EmbeddingTableSaver:
  """Saves and loads tables: rows, optimizer slots and step, counts, candidates, time stamps.

  Saving publishes a checkpoint as a whole or not at all: a killed or failed save leaves the previous ones. Makes its few ops once,
  also in a finalized graph; saving makes none.
  """

  def __init__(self, emb_tables: list[table_lib.EmbeddingTable], *, keep: int | None = None) -> None:
    """Makes a saver.

    Args:
      emb_tables: list of tables of one graph, each once.
      keep: checkpoints to keep in the folder, newest first; None or 0: all.

    Raises:
      ValueError: not a list, an empty one, not tables, tables of several graphs, one table twice.
    """
    if not isinstance(emb_tables, list):
      raise ValueError(f"Invalid parameter type: emb_tables is {_validate.found(emb_tables)}, expected a list of tables")
    if not emb_tables:
      raise ValueError("emb_tables is empty: give at least one table")
    for place, table in enumerate(emb_tables):
      if not isinstance(table, table_lib.EmbeddingTable):
        raise ValueError(
          f"Invalid parameter type: emb_tables[{place}] is {_validate.found(table)}, expected a table of get_embedding_table"
        )
      if table.graph is not emb_tables[0].graph:
        raise ValueError(f"tables '{emb_tables[0].name}' and '{table.name}' belong to different graphs")
    names = [table.name for table in emb_tables]
    if len(set(names)) != len(names):
      raise ValueError(f"emb_tables holds a table twice: {names}")
    self._tables = list(emb_tables)
    self._keep = _validate.optional_integer("keep", keep, 2**31 - 1) or 0
    self._ops = _SaverOps.of(self._tables)
    table_lib.registry(self._tables[0].graph).own_saver.update(names)

  def save(self, sess: Any, save_path: str | os.PathLike[str], global_step: int) -> str:
    """Erases cold rows, then saves all tables as checkpoint `global_step` under the folder `save_path` (made when missing).

    Args:
      sess: Session or MonitoredSession; None: the default session.
      save_path: folder, 1..1024 characters; absolute or relative.
      global_step: 0..2^32-1. Saving a step again replaces it.

    Returns:
      The checkpoint's folder, `<save_path>/mxrec-<global_step>`.

    Raises:
      ValueError: an argument is wrong.
      tf.errors.OpError: writing failed; names file and cause.
      KeyboardInterrupt: Ctrl-C stops the save between two blocks; nothing was published.
    """
    sess = _session.resolve(sess, "sess")
    directory = os.path.abspath(_validate.path("save_path", save_path))
    step = _validate.integer("global_step", global_step, 0, _validate.MAX_STEP)
    _checks.run(self._tables[0].graph)
    self._run(sess, self._ops.save, directory, step, {self._ops.keep: self._keep})
    return os.path.join(directory, f"mxrec-{step}")

  def load(self, sess: Any, save_path: str | os.PathLike[str], global_step: int | None = None) -> list[dict[str, Any]]:
    """Loads all tables from checkpoint `global_step` (None: the latest) under the folder `save_path`.

    Damaged, short or foreign files are refused and leave the tables as they are. Where a table has another optimizer than the file,
    rows load, slots start fresh, with a line in the log.

    Returns:
      Per table what was loaded: {"table", "rows", "candidates", "slots_fresh", "file_optimizer"}.

    Raises:
      ValueError: an argument is wrong.
      tf.errors.NotFoundError: no such folder, step or table; lists what there is.
      tf.errors.DataLossError: a file is damaged; names file and block.
    """
    sess = _session.resolve(sess, "sess")
    directory = os.path.abspath(_validate.path("save_path", save_path))
    step = -1 if global_step is None else _validate.integer("global_step", global_step, 0, _validate.MAX_STEP)
    try:
      report = json.loads(self._run(sess, self._ops.load, directory, step, {}))
    except tf.errors.NotFoundError as error:
      if not _is_of_tensorflow(directory):
        raise
      text = f"{error.message}\n{directory} was written by tf.train.Saver: restore the tables with such a saver, by its restore()"
      raise tf.errors.NotFoundError(error.node_def, error.op, text) from error
    return report["tables"]

  @staticmethod
  def latest_step(save_path: str | os.PathLike[str]) -> int | None:
    """The step that `load` takes by default, or None when the folder holds no checkpoint."""
    directory = _validate.path("save_path", save_path)

    def complete(step: int) -> bool:
      return os.path.isfile(os.path.join(directory, f"mxrec-{step}", "MANIFEST.json"))

    try:
      with open(os.path.join(directory, "latest"), encoding="utf-8") as file:
        step = json.load(file)["step"]
      if isinstance(step, int) and complete(step):
        return step
    except (OSError, ValueError, KeyError, TypeError):
      pass  # no pointer, or not a readable one: look at the folders
    try:
      names = os.listdir(directory)
    except FileNotFoundError:
      return None
    found = [re.fullmatch(r"mxrec-(\d+)", name) for name in names]
    return max((int(match[1]) for match in found if match and complete(int(match[1]))), default=None)

  def _run(self, sess: Any, fetch: tf.Tensor, directory: str, step: int, feed: dict[tf.Tensor, int]) -> Any:
    # A byte string inside an object array: NumPy would cut zero bytes off, and non-ASCII paths need the file system's encoding.
    feed_dict = {self._ops.directory: np.array(os.fsencode(directory), dtype=object), self._ops.step: step, **feed}
    return _session.run(sess, self._tables[0].graph, f"table '{self._tables[0].name}'", fetch, feed_dict)
