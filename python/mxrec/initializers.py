"""From a TensorFlow initializer object to what the engine needs to know: {"name": ..., "params": {...}}.

The first row of an id is a pure function of the table's seed and the id, so only initializers with a formula for one
element work: zeros, ones, constant, random_normal, truncated_normal, random_uniform, uniform_unit_scaling,
variance_scaling and its named forms. Objects of TensorFlow v1, v2, Keras and tf_keras are taken.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.ops import init_ops, init_ops_v2

_NAMES = {
  "Zeros": "zeros",
  "Ones": "ones",
  "Constant": "constant",
  "RandomNormal": "random_normal",
  "TruncatedNormal": "truncated_normal",
  "RandomUniform": "random_uniform",
  "UniformUnitScaling": "uniform_unit_scaling",
  "VarianceScaling": "variance_scaling",
  "GlorotUniform": "glorot_uniform",
  "GlorotNormal": "glorot_normal",
  "HeUniform": "he_uniform",
  "HeNormal": "he_normal",
  "LecunUniform": "lecun_uniform",
  "LecunNormal": "lecun_normal",
}
_PARAMS = {
  "constant": ("value",),
  "random_normal": ("mean", "stddev"),
  "truncated_normal": ("mean", "stddev"),
  "random_uniform": ("minval", "maxval"),
  "uniform_unit_scaling": ("factor",),
  "variance_scaling": ("scale", "mode", "distribution"),
}
_WHOLE_MATRIX = {"Identity", "IdentityInitializer", "Orthogonal", "OrthogonalInitializer"}
_LIBRARIES = ("tensorflow", "keras", "tf_keras")


def _number(initializer: str, label: str, value: Any) -> float:
  if tf.is_tensor(value):
    raise ValueError(
      f"initializer {initializer}: {label} is a tensor, expected a number (the first row of an id must not change from run to run)"
    )
  try:
    array = np.asarray(value, dtype=np.float64)
  except (TypeError, ValueError) as error:
    raise ValueError(f"initializer {initializer}: {label} is not a number: got {value!r}") from error
  if array.size != 1:
    raise ValueError(f"initializer {initializer}: {label} must be one number for all columns: got {array.size} numbers")
  number = float(array.reshape(()))
  if not math.isfinite(number):
    raise ValueError(f"initializer {initializer}: {label} is not finite: got {number}")
  return number


def _seed(initializer: str, config: dict[str, Any]) -> int | None:
  seed = config.get("seed")
  if seed is None:
    return None
  if isinstance(seed, bool) or not isinstance(seed, (int, np.integer)):
    raise ValueError(f"initializer {initializer}: seed is not int: got {type(seed).__name__} {seed!r}")
  seed = int(seed)
  if not -(2**63) <= seed < 2**63:
    raise ValueError(f"initializer {initializer}: seed does not fit 64 bits: got {seed}")
  return seed


def _is_initializer(thing: Any) -> bool:
  """An object of TensorFlow's initializer classes, of Keras', or of a class derived from those."""
  if isinstance(thing, (init_ops.Initializer, init_ops_v2.Initializer)):
    return True
  bases = {f"{base.__module__.split('.')[0]}.{base.__name__}" for base in type(thing).__mro__}
  return bool(bases & {"keras.Initializer", "tf_keras.Initializer"})


def describe(initializer: Any) -> tuple[dict[str, Any], int | None]:
  """Returns ({"name", "params"}, seed or None) of an initializer object; ValueError for what has no formula per id."""
  kind = type(initializer)
  from_library = kind.__module__.split(".")[0] in _LIBRARIES
  if isinstance(initializer, type) or not _is_initializer(initializer):
    raise ValueError(
      f"Invalid parameter type: initializer is {kind.__name__} {initializer!r}, expected a TensorFlow initializer object"
    )
  supported = ", ".join(sorted(_NAMES.values()))
  if kind.__name__ in _WHOLE_MATRIX:
    raise ValueError(
      f"initializer {kind.__name__} depends on the whole matrix, so a single id has no first row of its own; supported: {supported}"
    )
  if kind.__name__ not in _NAMES or not from_library:
    raise ValueError(f"initializer {kind.__module__}.{kind.__name__} has no formula that the table knows; supported: {supported}")
  config = initializer.get_config()
  name = _NAMES[kind.__name__]
  params: dict[str, Any] = {}
  for label in _PARAMS.get(name, ()):
    value = config.get(label)
    if value is None:
      continue  # TensorFlow's default, which the engine knows
    params[label] = str(value).lower() if label in ("mode", "distribution") else _number(kind.__name__, label, value)
  if params.get("distribution") == "normal":
    params["distribution"] = "truncated_normal"  # what TensorFlow makes of this word
  return {"name": name, "params": params}, _seed(kind.__name__, config)
