"""Iteration loops: one `sess.run` of an op that was made a loop advances training by N steps.

On the NPU a loop op repeats its part of the graph on the device. Here the session repeats: a run that executes a loop op, because
it fetches it or something that depends on it, first runs the loop op alone N - 1 times with the same feeds, and then everything
that was fetched, once. So datasets move N elements, the global step N steps, and other fetches, run options and hooks see the last
iteration. An error, also the end of the data, ends the run at once; the iterations before it stay done.

N belongs to the loop op and the session: `load` sets it for one session, and for sessions nothing was loaded into it is what was
loaded last. The hook into the session (`_call_tf_sessionrun`, below every `run` and callable of TensorFlow) is there from the first
loop on.
"""

from __future__ import annotations

import dataclasses
import functools
import weakref
from collections.abc import Iterable
from typing import Any

import tensorflow.compat.v1 as tf
from tensorflow.python.client import pywrap_tf_session
from tensorflow.python.client import session as session_lib

from npu_bridge import _options


@dataclasses.dataclass
class Loop:
  """A loop op: how many iterations a run of it makes, by session."""

  count: int = 1
  by_session: weakref.WeakKeyDictionary = dataclasses.field(default_factory=weakref.WeakKeyDictionary)

  def of(self, session: Any) -> int:
    return self.by_session.get(session, self.count)


class _Loops:
  """The loop ops of a graph, and which of them a run executes."""

  def __init__(self) -> None:
    self.by_name: dict[str, Loop] = {}
    self.executed: dict[tuple[frozenset[str], frozenset[str]], tuple[str, ...]] = {}


_by_graph: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()


def add(op: tf.Operation) -> Loop:
  """Makes an op a loop op, of one iteration so far."""
  _install()
  loops = _by_graph.setdefault(op.graph, _Loops())
  loops.executed.clear()
  return loops.by_name.setdefault(op.name, Loop())


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
def _install() -> None:
  """Puts the repetition below every run of every session."""
  run_once = getattr(session_lib.BaseSession, "_call_tf_sessionrun", None)
  if run_once is None:
    raise RuntimeError("iterations per loop: this TensorFlow runs sessions by other means than those of 2.15 to 2.21")

  @functools.wraps(run_once)
  def run(self: Any, options: Any, feed_dict: Any, fetch_list: Any, target_list: Any, run_metadata: Any) -> Any:
    loops = _by_graph.get(self._graph)
    if loops is not None:
      _repeat(self, loops, run_once, options, feed_dict, fetch_list, target_list)
    return run_once(self, options, feed_dict, fetch_list, target_list, run_metadata)

  session_lib.BaseSession._call_tf_sessionrun = run


def _repeat(session: Any, loops: _Loops, run_once: Any, options: Any, feed_dict: Any, fetch_list: Any, target_list: Any) -> None:
  """All iterations but the last."""
  name_of = pywrap_tf_session.TF_OperationName
  names = frozenset([name_of(output.oper) for output in fetch_list] + [name_of(op) for op in target_list])
  fed = frozenset(f"{name_of(output.oper)}:{output.index}" for output in feed_dict)
  found = loops.executed.get((names, fed))
  if found is None:
    found = loops.executed[names, fed] = _executed(session._graph, names, fed, loops)
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
