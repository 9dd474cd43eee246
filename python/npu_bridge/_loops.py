"""Iteration loops: one `sess.run` of an op that was made a loop advances training by N steps.

On the NPU a loop op repeats its part of the graph on the device. Here the session repeats: a run that executes a loop op, because
it fetches it or something that depends on it, first runs the loop op alone N - 1 times with the same feeds, and then everything
that was fetched, once. So datasets move N elements, the global step N steps, and other fetches, run options and hooks see the last
iteration. An error, also the end of the data, ends the run at once; the iterations before it stay done.

N belongs to the loop op and the session: `load` sets it for one session, and for sessions nothing was loaded into it is what was
loaded last. A meta graph carries it along (in a collection), so that a loop op of an imported graph loops as it did. Where N is
not known, because none was loaded or the graph came as a bare GraphDef, a run is one step and warns.

The hooks into the session, below every `run` and callable of TensorFlow, are there from the first import of npu_bridge on.
Partial runs cannot be repeated: setting one up that executes a loop op is refused.
"""

from __future__ import annotations

import dataclasses
import functools
import weakref
from collections.abc import Iterable
from typing import Any

import tensorflow.compat.v1 as tf
from tensorflow.core.framework import attr_value_pb2
from tensorflow.core.protobuf import config_pb2
from tensorflow.python.client import pywrap_tf_session
from tensorflow.python.client import session as session_lib
from tensorflow.python.framework import ops as _ops
from tensorflow.python.platform import tf_logging

from npu_bridge import _options

OP_NAME = "IterationOp"
_COLLECTION = "npu_iteration_loops"
_REMEDY = "set it by util.set_iteration_per_loop(sess, train_op, N), SetIterationsVarHook(N) or load_iteration_per_loop_var"


@dataclasses.dataclass(eq=False)
class Loop:
  """A loop op: how many iterations a run of it makes, by session. None: nobody has said."""

  name: str
  count: int | None = None
  by_session: weakref.WeakKeyDictionary = dataclasses.field(default_factory=weakref.WeakKeyDictionary)

  def of(self, session: Any) -> int:
    count = self.by_session.get(session, self.count)
    if count is None:
      _warn_once(session.graph, f"the loop op {self.name} was given no number of iterations: a run of it is one step; {_REMEDY}")
      return 1
    return count


class _Loops:
  """The loop ops of a graph, and which of them a run executes."""

  def __init__(self) -> None:
    self.by_name: dict[str, Loop] = {}
    self.executed: dict[tuple[frozenset[str], frozenset[str]], tuple[str, ...]] = {}


_by_graph: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()
_said: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()


def _warn_once(graph: tf.Graph, text: str) -> None:
  """Writes a warning to TensorFlow's log, once a graph."""
  said = _said.setdefault(graph, set())
  if text not in said:
    said.add(text)
    tf_logging.warning("iterations per loop: %s", text)


def add(op: tf.Operation) -> Loop:
  """Makes an op a loop op, whose number of iterations is to be set."""
  loops = _by_graph.setdefault(op.graph, _Loops())
  loops.executed.clear()
  if op.name not in loops.by_name:
    loops.by_name[op.name] = loop = Loop(op.name)
    op.graph.add_to_collection(_COLLECTION, loop)
  return loops.by_name[op.name]


def _to_proto(loop: Loop, export_scope: str | None = None) -> attr_value_pb2.NameAttrList | None:
  """What a meta graph keeps of a loop op; None for one outside of what is exported."""
  if export_scope and not loop.name.startswith(export_scope + "/"):
    return None
  proto = attr_value_pb2.NameAttrList(name=_ops.strip_name_scope(loop.name, export_scope))
  if loop.count is not None:
    proto.attr["iterations"].i = loop.count
  return proto


def _from_proto(proto: attr_value_pb2.NameAttrList, import_scope: str | None = None) -> Loop:
  """The loop op of a graph that is being imported."""
  name = _ops.prepend_name_scope(proto.name, import_scope)
  loops = _by_graph.setdefault(tf.get_default_graph(), _Loops())
  loops.executed.clear()
  count = proto.attr["iterations"].i if "iterations" in proto.attr else None
  return loops.by_name.setdefault(name, Loop(name, count))


_ops.register_proto_function(_COLLECTION, proto_type=attr_value_pb2.NameAttrList, to_proto=_to_proto, from_proto=_from_proto)


def of_graph(graph: tf.Graph) -> list[Loop]:
  """All loop ops of a graph."""
  return list(_by_graph[graph].by_name.values()) if graph in _by_graph else []


def set_count(loops: Iterable[Loop], session: Any, count: int) -> None:
  """Sets the number of iterations in a session (tf.Session, MonitoredSession or another wrapper)."""
  raw = raw_session(session)
  for loop in loops:
    loop.count = count
    if raw is not None:
      loop.by_session[raw] = count
  if raw is not None:
    _options.check_iterations_per_loop(raw._config, count)


def raw_session(session: Any) -> Any:
  """TensorFlow's own session inside of wrappers; None if there is none."""
  for _ in range(16):
    if session is None or isinstance(session, session_lib.BaseSession):
      return session
    inner = session._tf_sess() if hasattr(session, "_tf_sess") else getattr(session, "_sess", None)
    session = inner
  return None


@functools.cache
def install() -> None:
  """Puts the repetition below every run of every session; once."""
  kind = session_lib.BaseSession
  run_once = getattr(kind, "_call_tf_sessionrun", None)
  make_once = getattr(kind, "_make_callable_from_options", None)
  if run_once is None or make_once is None:
    raise RuntimeError("iterations per loop: this TensorFlow runs sessions by other means than those of 2.15 to 2.21")
  set_up = kind.partial_run_setup

  @functools.wraps(run_once)
  def run(self: Any, options: Any, feed_dict: Any, fetch_list: Any, target_list: Any, run_metadata: Any) -> Any:
    loops = _by_graph.get(self._graph)
    if loops is not None:
      _repeat(self, loops, run_once, options, feed_dict, fetch_list, target_list)
    elif target_list:
      _look_for_strangers(self._graph, target_list)
    return run_once(self, options, feed_dict, fetch_list, target_list, run_metadata)

  @functools.wraps(make_once)
  def make_callable(self: Any, callable_options: Any) -> Any:
    made = make_once(self, callable_options)
    names = [name.partition(":")[0] for name in (*callable_options.fetch, *callable_options.target)]
    found = _executed_of(self._graph, frozenset(names), frozenset(callable_options.feed))
    return _LoopingCallable(self, callable_options, made, make_once, found) if found else made

  @functools.wraps(set_up)
  def partial_run_setup(self: Any, fetches: Any, feeds: Any = None) -> Any:
    if self._graph in _by_graph:
      wanted = session_lib._FetchHandler(self._graph, fetches, {})
      names = frozenset([tensor.op.name for tensor in wanted.fetches()] + [op.name for op in wanted.targets()])
      fed = frozenset(self._graph.as_graph_element(feed, allow_operation=False).name for feed in feeds or ())
      found = _executed_of(self._graph, names, fed)
      if found:
        raise NotImplementedError(f"a partial run cannot repeat the loop op {found[0]}: use session.run")
    return set_up(self, fetches, feeds)

  kind._call_tf_sessionrun = run
  kind._make_callable_from_options = make_callable
  kind.partial_run_setup = partial_run_setup


def _look_for_strangers(graph: tf.Graph, target_list: Any) -> None:
  """Warns of a loop op in a graph that came without collections, and so without its number of iterations."""
  for op in target_list:
    name = pywrap_tf_session.TF_OperationName(op)
    if name.rpartition("/")[2].startswith(OP_NAME) and graph.get_operation_by_name(name).type == "NoOp":
      _warn_once(
        graph,
        f"the op {name} is no loop in this graph, which was imported without its number of iterations (a meta graph keeps it): "
        f"a run of it is one step; make a loop of its training op by util.set_iteration_per_loop(sess, train_op, N)",
      )


class _LoopingCallable:
  """A callable of CallableOptions that executes loop ops."""

  def __init__(self, session: Any, options: Any, made: Any, make: Any, found: tuple[str, ...]) -> None:
    self._session, self._options, self._last, self._make, self._found = session, options, made, make, found
    self._before: dict[tuple[str, ...], Any] = {}

  def __call__(self, *args: Any, **kwargs: Any) -> Any:
    loops = _by_graph[self._session._graph]
    counts = {name: loops.by_name[name].of(self._session) for name in self._found}
    for i in range(1, max(counts.values())):
      names = tuple(name for name in self._found if i < counts[name])
      if names not in self._before:
        options = config_pb2.CallableOptions()
        options.CopyFrom(self._options)
        options.ClearField("fetch")
        options.ClearField("fetch_devices")
        options.target[:] = names
        self._before[names] = self._make(self._session, options)
      self._before[names](*args)
    return self._last(*args, **kwargs)


def _executed_of(graph: tf.Graph, names: frozenset[str], fed: frozenset[str]) -> tuple[str, ...]:
  """The loop ops that a run of the ops `names` with `fed` tensors executes."""
  loops = _by_graph.get(graph)
  if loops is None:
    return ()
  found = loops.executed.get((names, fed))
  if found is None:
    found = loops.executed[names, fed] = _executed(graph, names, fed, loops)
  return found


def _repeat(session: Any, loops: _Loops, run_once: Any, options: Any, feed_dict: Any, fetch_list: Any, target_list: Any) -> None:
  """All iterations but the last."""
  name_of = pywrap_tf_session.TF_OperationName
  names = frozenset([name_of(output.oper) for output in fetch_list] + [name_of(op) for op in target_list])
  fed = frozenset(f"{name_of(output.oper)}:{output.index}" for output in feed_dict)
  found = _executed_of(session._graph, names, fed)
  if not found:
    return
  counts = {name: loops.by_name[name].of(session) for name in found}
  for i in range(1, max(counts.values())):
    ops = [session._graph.get_operation_by_name(name)._c_op for name in found if i < counts[name]]
    run_once(session, options, feed_dict, [], ops, None)


def _executed(graph: tf.Graph, names: frozenset[str], fed: frozenset[str], loops: _Loops) -> tuple[str, ...]:
  """The loop ops among those that a run of `names` executes."""
  waiting = [graph.get_operation_by_name(name) for name in names]
  seen = set(names)
  found = []
  while waiting:
    op = waiting.pop()
    if op.name in loops.by_name:
      found.append(op.name)
    before = [tensor.op for tensor in op.inputs if tensor.name not in fed] + list(op.control_inputs)
    for other in before:
      if other.name not in seen:
        seen.add(other.name)
        waiting.append(other)
  return tuple(sorted(found))
