"""Estimators that warm-start: what TensorFlow does for variables, for the tables of the graph.

TensorFlow's own warm start changes the initialisers of variables and cannot see tables. Tables take part under their name in
checkpoints, `mxrec/<table>`: `vars_to_warm_start` selects them by that name, and `var_name_to_prev_var_name` renames them.
"""

from __future__ import annotations

import re
from typing import Any

import tensorflow as tf
from tensorflow_estimator.python.estimator import estimator as estimator_lib

from mxrec import _warm_start, saveable
from mxrec import table as table_lib

_MARK = "_mxrec_warm_starts_tables"


def install() -> None:
  """Lets Estimators of tensorflow-estimator warm-start tables too; a second call changes nothing."""
  kind = estimator_lib.Estimator
  if getattr(kind, _MARK, False):
    return
  train, maybe = kind._train_with_estimator_spec, kind._maybe_warm_start

  def train_with_spec(self: Any, estimator_spec: Any, *args: Any, **kwargs: Any) -> Any:
    settings = self._warm_start_settings
    if not settings or tf.train.latest_checkpoint(self._model_dir):
      return train(self, estimator_spec, *args, **kwargs)
    load, self._warm_start_settings = split(settings)
    if load is not None:
      _run_at_start(estimator_spec.scaffold, load)
    try:
      return train(self, estimator_spec, *args, **kwargs)
    finally:
      self._warm_start_settings = settings

  def maybe_warm_start(self: Any, checkpoint_path: Any) -> None:
    settings = self._warm_start_settings
    if checkpoint_path or not settings:
      return
    load, self._warm_start_settings = split(settings)
    if load is not None:  # evaluating or predicting without a checkpoint of its own: the only session, nothing is restored later
      tf.compat.v1.add_to_collection(tf.compat.v1.GraphKeys.TABLE_INITIALIZERS, load)
    try:
      maybe(self, checkpoint_path)
    finally:
      self._warm_start_settings = settings

  kind._train_with_estimator_spec = train_with_spec
  kind._maybe_warm_start = maybe_warm_start
  setattr(kind, _MARK, True)


def _run_at_start(scaffold: Any, load: tf.Operation) -> None:
  """Runs an op in new sessions that restore no checkpoint, after the initialisers and before the user's init_fn."""
  users = scaffold.init_fn  # takes the session

  def init_fn(session: Any) -> None:
    session.run(load)
    if users is not None:
      users(session)

  scaffold._init_fn = init_fn


def split(settings: Any) -> tuple[tf.Operation | None, Any]:
  """The op that loads the tables which WarmStartSettings select, or None, and settings for the variables alone."""
  renames = dict(settings.var_name_to_prev_var_name or {})
  pairs = []
  for table in table_lib.registry().tables.values():
    name = _warm_start.PREFIX + table.name
    if saveable.takes_part(table) and _selects(settings.vars_to_warm_start, name):
      pairs.append((renames.pop(name, name).removeprefix(_warm_start.PREFIX), table))
  if not pairs:
    return None, settings
  try:
    load = _warm_start.load_op(_warm_start.checkpoint_prefix(tf.compat.as_str(settings.ckpt_to_initialize_from)), pairs)
  except ValueError as error:
    raise ValueError(f"{error}. WarmStartSettings(vars_to_warm_start='(?!mxrec/)') leaves tables out") from error
  return load, settings._replace(var_name_to_prev_var_name=renames)


def _selects(wanted: Any, name: str) -> bool:
  """Whether vars_to_warm_start (a regular expression, a list of them or of variables, or None) means this name."""
  patterns = [wanted] if isinstance(wanted, str) else [item for item in wanted or () if isinstance(item, str)]
  return any(re.match(pattern, name) for pattern in patterns)
