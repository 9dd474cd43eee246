"""Runs ops in whatever session the user has: tf.Session, InteractiveSession, a wrapper, MonitoredSession, or the default one."""

from __future__ import annotations

from typing import Any

import tensorflow as tf
from tensorflow.python.client import session as session_lib
from tensorflow.python.training import monitored_session

from mxrec import _validate


def resolve(session: Any, label: str = "session") -> Any:
  """Returns a session; None means the default one. ValueError, naming the argument `label`, for anything else."""
  if session is None:
    session = tf.compat.v1.get_default_session()
    if session is None:
      raise ValueError(
        f"no session given, and there is no default session (a MonitoredSession does not make itself the default): pass {label}="
      )
  if not isinstance(session, (session_lib.SessionInterface, monitored_session._MonitoredSession)):
    raise ValueError(f"{label} must be a tf.compat.v1.Session or MonitoredSession: got {_validate.found(session)}")
  return session


def run(session: Any, graph: tf.Graph, what: str, fetches: Any, feed_dict: Any = None) -> Any:
  """Runs `fetches` of `graph`, past the hooks of a MonitoredSession. `what` names the object in errors."""
  session = resolve(session)
  if session.graph is not graph:
    raise ValueError(f"{what} belongs to another graph than the session's")
  if isinstance(session, monitored_session._MonitoredSession):
    return session.run_step_fn(lambda step_context: step_context.session.run(fetches, feed_dict))
  return session.run(fetches, feed_dict)
