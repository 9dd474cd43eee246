"""tf.contrib.training: HParams, and a few helpers."""

from __future__ import annotations

import json
import re
from typing import Any

import tensorflow.compat.v1 as tf

__all__ = [
  "HParams",
  "checkpoints_iterator",
  "clip_gradient_norms",
  "create_train_op",
  "get_or_create_eval_step",
  "parse_values",
]

checkpoints_iterator = tf.train.checkpoints_iterator

_PARAMETER = re.compile(
  r"""\s*(?P<name>[A-Za-z_][\w.]*)\s*(?:\[\s*(?P<index>\d+)\s*\]\s*)?=\s*
  (?:\[(?P<list>[^\]]*)\]|(?P<value>[^,\[]*))\s*(?:,|$)""",
  re.VERBOSE,
)


def _parse_one(name: str, kind: type, text: str) -> Any:
  text = text.strip()
  try:
    if kind is bool:
      if text in ("true", "True", "1"):
        return True
      if text in ("false", "False", "0"):
        return False
      raise ValueError(text)
    return kind(text)
  except ValueError:
    raise ValueError(f"could not parse hyperparameter {name!r} of type {kind.__name__}: got {text!r}") from None


def parse_values(values: str, type_map: dict[str, type], ignore_unknown: bool = False) -> dict[str, Any]:
  """Parses "a=1,b=[2,3],c[1]=4".

  Args:
    values: the text.
    type_map: name -> type of the value, or of a list's elements.
    ignore_unknown: names that are not in type_map are left out instead of being an error.

  Returns:
    name -> value, list, or {index: value}.

  Raises:
    ValueError: the text is malformed, a name unknown, or a value of the wrong type.
  """
  found: dict[str, Any] = {}
  position = 0
  while position < len(values):
    match = _PARAMETER.match(values, position)
    if match is None:
      raise ValueError(f"malformed hyperparameter value: {values[position:]!r}")
    position = match.end()
    name = match["name"]
    if name not in type_map:
      if ignore_unknown:
        continue
      raise ValueError(f"unknown hyperparameter {name!r}; known: {', '.join(sorted(type_map))}")
    kind = type_map[name]
    if match["index"] is not None:
      if match["list"] is not None:
        raise ValueError(f"hyperparameter {name!r}: a list cannot be assigned to one element")
      indices = found.setdefault(name, {})
      if not isinstance(indices, dict) or int(match["index"]) in indices:
        raise ValueError(f"hyperparameter {name!r} is assigned twice in {values!r}")
      indices[int(match["index"])] = _parse_one(name, kind, match["value"])
      continue
    if name in found:
      raise ValueError(f"hyperparameter {name!r} is assigned twice in {values!r}")
    if match["list"] is not None:
      found[name] = [_parse_one(name, kind, part) for part in re.split(r"[ ,]+", match["list"].strip()) if part]
    else:
      found[name] = _parse_one(name, kind, match["value"])
  return found


class HParams:
  """Named hyperparameters, read and set as attributes."""

  def __init__(self, hparam_def: Any = None, model_structure: Any = None, **kwargs: Any):
    """Takes names and values; `hparam_def` (a protocol buffer in TensorFlow 1) must be None."""
    if hparam_def is not None:
      raise NotImplementedError("tf.contrib.training.HParams: hparam_def is not supplied by `mxrec run`")
    self._hparam_types: dict[str, tuple[type, bool]] = {}
    self._model_structure = model_structure
    for name, value in kwargs.items():
      self.add_hparam(name, value)

  def add_hparam(self, name: str, value: Any) -> None:
    """Adds one; ValueError when the name is taken or the value is an empty list."""
    if getattr(self, name, None) is not None:
      raise ValueError(f"hyperparameter name is reserved or there already: {name}")
    is_list = isinstance(value, (list, tuple))
    if is_list and not value:
      raise ValueError(f"hyperparameter {name!r}: a list cannot be empty")
    self._hparam_types[name] = (type(value[0] if is_list else value), is_list)
    setattr(self, name, list(value) if is_list else value)

  def set_hparam(self, name: str, value: Any) -> None:
    """Sets one that exists; ValueError where a list and a scalar meet, or the type does not fit."""
    kind, is_list = self._hparam_types[name]
    if isinstance(value, list) != is_list:
      raise ValueError(f"hyperparameter {name!r} is {'a list' if is_list else 'not a list'}: got {value!r}")
    setattr(self, name, [_cast(name, kind, item) for item in value] if is_list else _cast(name, kind, value))

  def del_hparam(self, name: str) -> None:
    """Removes one."""
    if hasattr(self, name):
      delattr(self, name)
      del self._hparam_types[name]

  def parse(self, values: str) -> HParams:
    """Sets from "a=1,b=[2,3],c[1]=4"; returns itself. ValueError says what is wrong."""
    types = {name: kind for name, (kind, _) in self._hparam_types.items()}
    for name, value in parse_values(values, types).items():
      if isinstance(value, dict):
        if not self._hparam_types[name][1]:
          raise ValueError(f"hyperparameter {name!r} is not a list, so it has no element {next(iter(value))}")
        items = list(getattr(self, name))
        for index, item in value.items():
          if index >= len(items):
            raise ValueError(f"hyperparameter {name!r} has {len(items)} elements, none with index {index}")
          items[index] = item
        value = items
      self.set_hparam(name, value)
    return self

  def override_from_dict(self, values_dict: dict[str, Any]) -> HParams:
    """Sets several that exist; returns itself."""
    for name, value in values_dict.items():
      self.set_hparam(name, value)
    return self

  def set_from_map(self, values_map: dict[str, Any]) -> HParams:
    """The old name of override_from_dict."""
    return self.override_from_dict(values_map)

  def parse_json(self, values_json: str) -> HParams:
    """override_from_dict of a JSON object."""
    return self.override_from_dict(json.loads(values_json))

  def set_model_structure(self, model_structure: Any) -> None:
    """Keeps an object."""
    self._model_structure = model_structure

  def get_model_structure(self) -> Any:
    """The object kept."""
    return self._model_structure

  def to_json(self, indent: Any = None, separators: Any = None, sort_keys: bool = False) -> str:
    """A JSON object; functions are left out."""
    plain = {name: value for name, value in self.values().items() if not callable(value)}
    return json.dumps(plain, indent=indent, separators=separators, sort_keys=sort_keys)

  def values(self) -> dict[str, Any]:
    """name -> value."""
    return {name: getattr(self, name) for name in self._hparam_types}

  def get(self, key: str, default: Any = None) -> Any:
    """The value of a name, or the default when there is none such."""
    return getattr(self, key) if key in self._hparam_types else default

  def __contains__(self, key: str) -> bool:
    return key in self._hparam_types

  def __str__(self) -> str:
    return str(sorted(self.values().items()))

  def __repr__(self) -> str:
    return f"{type(self).__name__}({self})"


def _cast(name: str, kind: type, value: Any) -> Any:
  if value is None or isinstance(None, kind):
    return value
  if issubclass(kind, str) != isinstance(value, str) or isinstance(value, bool) != issubclass(kind, bool):
    raise ValueError(f"could not cast hyperparameter {name!r} of type {kind.__name__} from {value!r}")
  if issubclass(kind, int) and not isinstance(value, int):
    raise ValueError(f"could not cast hyperparameter {name!r} of type {kind.__name__} from {value!r}")
  return kind(value)


def get_or_create_eval_step() -> Any:
  """The variable that counts evaluation steps."""
  from tensorflow.python.training import evaluation

  return evaluation._get_or_create_eval_step()


def clip_gradient_norms(gradients_to_variables: Any, max_norm: float) -> list[tuple[Any, Any]]:
  """Clips each gradient to a greatest norm."""
  clipped = []
  for gradient, variable in gradients_to_variables:
    if isinstance(gradient, tf.IndexedSlices):
      gradient = tf.IndexedSlices(tf.clip_by_norm(gradient.values, max_norm), gradient.indices, gradient.dense_shape)
    elif gradient is not None:
      gradient = tf.clip_by_norm(gradient, max_norm)
    clipped.append((gradient, variable))
  return clipped


def create_train_op(
  total_loss: Any,
  optimizer: Any,
  global_step: Any = 0,
  update_ops: Any = None,
  variables_to_train: Any = None,
  transform_grads_fn: Any = None,
  summarize_gradients: bool = False,
  gate_gradients: Any = tf.train.Optimizer.GATE_OP,
  aggregation_method: Any = None,
  colocate_gradients_with_ops: bool = False,
  check_numerics: bool = True,
) -> Any:
  """An op that trains and returns the loss; `global_step` 0 means the graph's, None means none is counted."""
  if isinstance(global_step, int):
    global_step = tf.train.get_or_create_global_step()
  update_ops = set(tf.get_collection(tf.GraphKeys.UPDATE_OPS) if update_ops is None else update_ops)
  if update_ops:
    with tf.control_dependencies(list(update_ops)):
      total_loss = tf.identity(total_loss)
  pairs = optimizer.compute_gradients(
    total_loss,
    variables_to_train or tf.trainable_variables(),
    gate_gradients=gate_gradients,
    aggregation_method=aggregation_method,
    colocate_gradients_with_ops=colocate_gradients_with_ops,
  )
  if transform_grads_fn is not None:
    pairs = transform_grads_fn(pairs)
  if summarize_gradients:
    for gradient, variable in pairs:
      if gradient is not None:
        values = gradient.values if isinstance(gradient, tf.IndexedSlices) else gradient
        tf.summary.histogram(f"{variable.op.name}_gradient", values)
  updates = optimizer.apply_gradients(pairs, global_step=global_step)
  if check_numerics:
    total_loss = tf.check_numerics(total_loss, "LossTensor is inf or nan")
  with tf.control_dependencies([updates]):
    train_op = tf.identity(total_loss, name="train_op")
  tf.add_to_collection(tf.GraphKeys.TRAIN_OP, train_op)
  return train_op
