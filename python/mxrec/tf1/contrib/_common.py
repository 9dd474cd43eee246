"""Small things that several parts of contrib share."""

from __future__ import annotations

from typing import Any

import tensorflow.compat.v1 as tf


def collect(collections: Any, value: Any) -> None:
  """Adds a value to a collection or to several; None: to none."""
  if collections is None:
    return
  for name in (collections,) if isinstance(collections, str) else collections:
    tf.add_to_collection(name, value)


def variable_collections(collections: Any, name: str) -> list[str] | None:
  """Collections for the variable `name`: given for all variables, or per name in a dict."""
  if isinstance(collections, dict):
    collections = collections.get(name)
  if collections is None:
    return None
  collections = [collections] if isinstance(collections, str) else list(collections)
  return [tf.GraphKeys.GLOBAL_VARIABLES, *collections]


def truth(value: Any) -> bool | None:
  """The Python truth of a bool, an int or a constant tensor; None when it is known only at run time."""
  if isinstance(value, (bool, int)):
    return bool(value)
  constant = tf.get_static_value(value) if tf.is_tensor(value) else None
  return None if constant is None else bool(constant)


def last_dimension(inputs: Any, what: str) -> int:
  """The static size of the last dimension; ValueError names `what`."""
  size = tf.dimension_value(inputs.shape[-1]) if inputs.shape.rank else None
  if size is None:
    raise ValueError(f"{what}: the last dimension of its input must be known, found shape {inputs.shape}")
  return size
