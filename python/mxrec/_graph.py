"""What the package remembers per tf.Graph: its tables, its lookups, the savers' ops.

The registry is an attribute of the graph, so it lives and dies with it (tf.reset_default_graph starts anew). A graph that
came from import_meta_graph has ops but no registry; tables and lookups are then found again by their ops.
"""

from __future__ import annotations

import contextlib
import dataclasses
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

import tensorflow as tf

if TYPE_CHECKING:
  from mxrec.table import EmbeddingTable

TABLE_OP, LOOKUP_OP, EXPAND_OP, APPLY_OP = "MxrecTable", "MxrecLookup", "MxrecExpand", "MxrecApply"
NEVER_TRAINED = -3  # the handle of an id that its lookup leaves out of training (mxrec/table/table.h)
_ATTRIBUTE = "_mxrec_registry"
_PASSED_ON = {"Enter", "RefEnter", "Switch", "Identity", "Placeholder"}  # what may lie between a handle op and its user


@dataclasses.dataclass(frozen=True)
class LookupRecord:
  """One call of embedding_lookup."""

  table: EmbeddingTable
  op: tf.Operation  # MxrecLookup
  training: bool

  @property
  def rows(self) -> tf.Tensor:
    return self.op.outputs[0]

  @property
  def graph(self) -> tf.Graph:
    return self.op.graph

  @property
  def padded(self) -> bool:
    """Whether the lookup leaves some ids out of training."""
    return bool(self.op.get_attr("never_trained"))

  def over_ranks(self, gradient: Any, mean: bool) -> tuple[Any, tuple[tf.Tensor, ...]] | None:
    """The gradient that all ranks' batches make together and the lookup that it belongs to; None where there is one process.

    Args:
      gradient: of `rows`: a tensor or IndexedSlices.
      mean: whether the gradients of the ranks are averaged, not added.

    Returns:
      The gradient and the outputs of the lookup (rows, inverse, handles, keys, counts, generation) that the update op gets.
    """
    return None

  @property
  def control_flow(self) -> Any:
    """The while or cond context that the lookup stands in, or None."""
    return self.op._get_control_flow_context()


class Registry:
  """Tables and lookups of one graph, in creation order."""

  def __init__(self, graph: tf.Graph) -> None:
    self._graph = weakref.ref(graph)
    self.tables: dict[str, EmbeddingTable] = {}
    self.lookups: list[LookupRecord] = []
    self._by_op: dict[tuple[int, str], LookupRecord] = {}
    self.saver_ops: dict[tuple[str, ...], Any] = {}
    self.own_saver: set[str] = set()  # tables that an EmbeddingTableSaver covers
    self._warned: set[tuple[str, str]] = set()  # kind of warning, what it is about
    self.checked_version = -1  # graph.version when _checks last looked
    self.adopted_version = -1  # graph.version when ops were last searched for imported tables

  @property
  def graph(self) -> tf.Graph:
    graph = self._graph()
    assert graph is not None
    return graph

  def first_warning(self, kind: str, subject: str) -> bool:
    """Whether a warning of this kind is given for the first time about something, a table for instance."""
    is_first = (kind, subject) not in self._warned
    self._warned.add((kind, subject))
    return is_first

  def add_lookup(self, record: LookupRecord) -> None:
    """Appends a lookup."""
    self.lookups.append(record)
    self._by_op[_op_key(record.op)] = record

  def find(self, rows: tf.Tensor) -> LookupRecord | None:
    """The lookup whose rows tensor this is."""
    return self._by_op.get(_op_key(rows.op))


def _op_key(op: tf.Operation) -> tuple[int, str]:
  return id(op.graph), op.name


def root(graph: tf.Graph) -> tf.Graph:
  """The outermost graph around a function's graph (dataset.map, tf.function, while_v2 ...)."""
  while True:
    outer = getattr(graph, "outer_graph", None) or getattr(graph, "_outer_graph", None)
    if outer is None:
      return graph
    graph = outer


_with_registry: weakref.WeakSet[tf.Graph] = weakref.WeakSet()


def registry(graph: tf.Graph | None = None, adopt: Callable[[Registry], None] | None = None) -> Registry:
  """The registry of the outermost graph around `graph` (default: the default graph), made when there is none."""
  graph = root(graph if graph is not None else tf.compat.v1.get_default_graph())
  found = getattr(graph, _ATTRIBUTE, None)
  if found is None:
    found = Registry(graph)
    setattr(graph, _ATTRIBUTE, found)
    _with_registry.add(graph)
  if adopt is not None:
    adopt(found)
  return found


def all_registries() -> list[Registry]:
  """Registries of all graphs that still live."""
  return [getattr(graph, _ATTRIBUTE) for graph in list(_with_registry)]


@contextlib.contextmanager
def outermost() -> Iterator[tf.Graph]:
  """Ops made within go to the outermost graph, outside of loops, branches, control dependencies. RuntimeError in eager mode."""
  with tf.init_scope():
    if tf.executing_eagerly():
      raise RuntimeError(
        "mxrec tables need graph mode: call tf.compat.v1.disable_v2_behavior() first, or work under `with tf.Graph().as_default():`"
      )
    yield tf.compat.v1.get_default_graph()


@contextlib.contextmanager
def may_grow(graph: tf.Graph) -> Iterator[None]:
  """Lets a finalized graph take the few ops of a new saver."""
  finalized = graph.finalized
  if finalized:
    graph._unsafe_unfinalize()
  try:
    with graph.as_default():
      yield
  finally:
    if finalized:
      graph.finalize()


def handle_op(handle: tf.Tensor) -> tf.Operation | None:
  """The MxrecTable op that a handle comes from, through loops, branches and captures; None when there is none."""
  op = handle.op
  while op.type in _PASSED_ON:
    if op.type == "Placeholder":  # a captured input of a function's graph
      captures = getattr(op.graph, "captures", ())
      outer = next((outside for outside, inside in captures if inside.op is op), None)
      if outer is None:
        return None
      op = outer.op
    else:
      op = op.inputs[0].op
  return op if op.type == TABLE_OP else None


def ancestors(ops: Iterable[tf.Operation], through_control: bool = False) -> set[tf.Operation]:
  """These ops and all that they depend on by data (and by control edges where asked for)."""
  seen: set[tf.Operation] = set()
  waiting = list(ops)
  while waiting:
    op = waiting.pop()
    if op in seen:
      continue
    seen.add(op)
    waiting.extend(tensor.op for tensor in op.inputs)
    if through_control:
      waiting.extend(op.control_inputs)
  return seen
