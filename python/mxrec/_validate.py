"""Every check of an argument that users give, in one place.

All raise ValueError unless they say otherwise. A message names the argument, what was expected and what was found; the words
"is not str", "is not int", "is less than", "is bigger than" and "Invalid parameter type" are part of the interface.
A bool is never taken for an int.
"""

from __future__ import annotations

import math
import numbers
import os
import re
import reprlib
from typing import Any

import numpy as np
import tensorflow as tf

from mxrec import _pooling

MAX_NAME_LENGTH = 128
MAX_PATH_LENGTH = 1024
MAX_DIMENSION = 512
MAX_LARGE_DIMENSION = 65536
MAX_VOCABULARY = 10**9
MAX_USED_TIMES = 2**31 - 1
MAX_COLD_SECS = 2**64 - 1
MAX_STEP = 2**32 - 1
MAX_BYTES = 2**63 - 1
MAX_HOT_KEYS = 65536
MAX_PADDING_IDS = 64
MAX_HALF_LIFE = 2**32 - 1
DEFAULT_HALF_LIFE = 10_000
ID_DTYPES = (tf.int64, tf.int32, tf.uint64)

_NAME = re.compile(r"[0-9A-Za-z_.]+")
_SCOPE = re.compile(r"[0-9A-Za-z_.\\/>-]*")


def found(value: Any) -> str:
  """What was given instead, for messages: type and value."""
  return f"{type(value).__name__} {reprlib.repr(value)}"


def string(label: str, value: Any, low: int = 1, high: int | None = None) -> str:
  """A str of low..high characters."""
  if not isinstance(value, str):
    raise ValueError(f"{label} is not str: got {found(value)}")
  if len(value) < low:
    raise ValueError(f"length of {label} is less than {low}: got {len(value)}")
  if high is not None and len(value) > high:
    raise ValueError(f"length of {label} is bigger than {high}: got {len(value)}")
  return value


def name(label: str, value: Any) -> str:
  """A str of 1..128 characters out of [0-9A-Za-z_.]."""
  string(label, value, 1, MAX_NAME_LENGTH)
  if not _NAME.fullmatch(value):
    wrong = sorted(set(re.sub(_NAME, "", value)))
    raise ValueError(f"{label} {value!r} may only hold letters, digits, '_' and '.': found {wrong!r}")
  return value


def integer(label: str, value: Any, low: int, high: int) -> int:
  """An int (any integral type but bool) in low..high."""
  if isinstance(value, (bool, np.bool_)) or not isinstance(value, numbers.Integral):
    raise ValueError(f"{label} is not int: got {found(value)}")
  if value < low:
    raise ValueError(f"{label} is less than {low}: got {value}")
  if value > high:
    raise ValueError(f"{label} is bigger than {high}: got {value}")
  return int(value)


def boolean(label: str, value: Any) -> bool:
  """True or False itself."""
  if not isinstance(value, bool):
    raise ValueError(f"{label} is not bool: got {found(value)}")
  return value


def choice(label: str, value: Any, allowed: tuple[str, ...]) -> str:
  """One of the words `allowed`."""
  if not isinstance(value, str) or value not in allowed:
    raise ValueError(f"{label} must be one of {', '.join(allowed)}: got {found(value)}")
  return value


def dimension(value: Any, allow_large: bool) -> int:
  """1..512, or up to 65,536 where `allow_large`."""
  integer("dimension", value, 1, MAX_LARGE_DIMENSION)
  if not allow_large and value > MAX_DIMENSION:
    raise ValueError(
      f"dimension is bigger than {MAX_DIMENSION}: got {value} (allow_large_dimension=True lifts the limit to {MAX_LARGE_DIMENSION})"
    )
  return int(value)


def vocabulary(value: Any) -> int:
  """1..10^9 rows."""
  if not isinstance(value, (bool, np.bool_)) and isinstance(value, numbers.Integral) and value == 0:
    raise ValueError(
      "device_vocabulary_size is 0: rows live in device memory only, there is no other storage to hold them; give at least 1"
    )
  return integer("device_vocabulary_size", value, 1, MAX_VOCABULARY)


def dtype(label: str, value: Any, only: tf.DType) -> tf.DType:
  """The one dtype that is supported."""
  try:
    given = tf.as_dtype(value)
  except (AttributeError, KeyError, TypeError, ValueError) as error:
    raise ValueError(f"{label} must be {only.name}: got {found(value)}") from error
  if given != only:
    raise ValueError(f"{label} must be {only.name}: got {given.name}")
  return given


def distribution_strategy(value: Any) -> str:
  """ "MP": rows are shared out over the ranks by id. "DP": every rank holds them all. "auto": one of the two, by size."""
  return choice("distribution_strategy", value, ("MP", "DP", "auto"))


def optional_integer(label: str, value: Any, high: int) -> int | None:
  """None, or an int in 0..high."""
  return None if value is None else integer(label, value, 0, high)


def capacity(policy: Any, evict_by: Any, evict_half_life: Any) -> dict[str, Any]:
  """What a full table does, as fields of its config."""
  fields = {"capacity_policy": choice("capacity_policy", policy, ("grow", "error", "evict"))}
  if policy == "evict":
    fields["evict_by"] = choice("evict_by", "lru" if evict_by is None else evict_by, ("lru", "lfu"))
    if evict_half_life is not None:
      integer("evict_half_life", evict_half_life, 1, MAX_HALF_LIFE)
      if fields["evict_by"] != "lfu":
        raise ValueError(f'evict_half_life is for evict_by="lfu" only: got {evict_half_life} with evict_by="lru"')
    fields["evict_half_life"] = DEFAULT_HALF_LIFE if evict_half_life is None else int(evict_half_life)
    return fields
  for label, value in (("evict_by", evict_by), ("evict_half_life", evict_half_life)):
    if value is not None:
      raise ValueError(f'{label} is for capacity_policy="evict" only: got {found(value)} with "{policy}"')
  return fields


def is_tensor(value: Any) -> bool:
  """A dense tensor or variable."""
  return isinstance(value, (tf.Tensor, tf.Variable))


def hyperparameter(label: str, value: Any, low: float, high: float, high_allowed: bool) -> Any:
  """A float in [low, high] or [low, high), or a scalar tensor or variable, whose value is not checked."""
  if is_tensor(value):
    if value.shape.rank not in (None, 0):
      raise ValueError(f"{label} must be a scalar: got a tensor of shape {value.shape}")
    if not value.dtype.is_floating:
      raise ValueError(f"{label} must be a float tensor: got {value.dtype.name}")
    return value
  if not isinstance(value, float):
    raise ValueError(f"{label} is not float or tf.Tensor: got {found(value)}")
  if math.isnan(value):
    raise ValueError(f"{label} is not a number: got {value}")
  if value < low:
    raise ValueError(f"{label} is less than {low}: got {value}")
  if value > high or (value == high and not high_allowed):
    raise ValueError(f"{label} is {'bigger than' if high_allowed else 'not less than'} {high}: got {value}")
  return value


def number(label: str, value: Any, low: float, *, low_allowed: bool = True) -> float:
  """A finite int or float of at least, or above, `low`."""
  if isinstance(value, (bool, np.bool_)) or not isinstance(value, numbers.Real):
    raise ValueError(f"{label} is not a number: got {found(value)}")
  value = float(value)
  if not math.isfinite(value):
    raise ValueError(f"{label} is not a finite number: got {value}")
  if value < low:
    raise ValueError(f"{label} is less than {low}: got {value}")
  if value == low and not low_allowed:
    raise ValueError(f"{label} must be above {low}: got {value}")
  return value


def path(label: str, value: Any) -> str:
  """A path (str or os.PathLike) of 1..1024 characters."""
  if isinstance(value, os.PathLike):
    value = os.fspath(value)
  string(label, value, 1, MAX_PATH_LENGTH)
  if "\0" in value:
    raise ValueError(f"{label} {value!r} holds a zero character")
  return value


def _integers(label: str, value: Any, expected: str) -> np.ndarray:
  """Integers of any shape, exactly: NumPy would make float64 of a list that holds both 1 and 2^63."""
  try:
    array = np.asarray(value)
  except (NotImplementedError, RuntimeError, TypeError, ValueError) as error:
    raise ValueError(f"{label} must be {expected}: got {found(value)} ({error})") from error
  if array.dtype.kind in "iu":
    return array
  if array.size == 0:
    return array.astype(np.int64)
  if isinstance(value, (list, tuple, int)) and array.dtype.kind in "fO":
    array = np.asarray(value, dtype=object)
    if all(isinstance(item, numbers.Integral) and not isinstance(item, (bool, np.bool_)) for item in array.flat):
      low, high = min(array.flat), max(array.flat)
      for outside in [item for item in (low, high) if not -(2**63) <= item < 2**64]:
        raise ValueError(f"{label} must be 64-bit integers, -2^63 to 2^64 - 1: got {outside}")
      if low < 0 and high >= 2**63:
        raise ValueError(
          f"{label} must be all int64 or all uint64: got {low} and {high} in one list (an id from 2^63 on is the int64 id "
          "less 2^64)"
        )
      return array.astype(np.uint64 if high >= 2**63 else np.int64)
  what = found(value) if array.dtype == object else f"dtype {array.dtype}"
  raise ValueError(f"{label} must be {expected}: got {what}")


def keys(value: Any) -> np.ndarray:
  """Integer keys of any shape as an int64 array; uint64 by bit pattern, smaller types by value."""
  array = _integers("keys", value, "integers")
  return array.view(np.int64) if array.dtype == np.uint64 else array.astype(np.int64)


def rows(table: str, value: Any, shape: tuple[int, ...]) -> np.ndarray:
  """float32 values of just this shape."""
  try:
    array = np.asarray(value, dtype=np.float32)
  except (NotImplementedError, RuntimeError, TypeError, ValueError) as error:
    raise ValueError(f"values for table '{table}' must be numbers: got {found(value)} ({error})") from error
  if array.shape != shape:
    raise ValueError(
      f"values for table '{table}' must have shape {list(shape)} (the keys' shape and the dimension): got {list(array.shape)}"
    )
  return array


def ids(table: str, value: Any) -> Any:
  """Ids of dtype int64, int32 or uint64: a dense tensor (of a list or an array too), a SparseTensor or a RaggedTensor."""
  if isinstance(value, tf.compat.v1.SparseTensorValue):
    value = tf.SparseTensor.from_value(value)
  if isinstance(value, tf.SparseTensor):
    dense_ids(table, value.values)
    return value
  if isinstance(value, (tf.RaggedTensor, tf.compat.v1.ragged.RaggedTensorValue)):
    value = _pooling.ragged(value)
    dense_ids(table, value.flat_values)
    return value
  return dense_ids(table, value)


def dense_ids(table: str, value: Any) -> tf.Tensor:
  """Dense ids of dtype int64, int32 or uint64 as a tensor."""
  label = f"ids of table '{table}'"
  if not is_tensor(value):
    value = _stack(label, value) if _holds_tensors(value) else tf.constant(_integers(label, value, "int64, int32 or uint64"))
  if value.dtype.base_dtype not in ID_DTYPES:
    raise ValueError(f"{label} must be int64, int32 or uint64: got {value.dtype.name}")
  return tf.convert_to_tensor(value)


def _holds_tensors(value: Any) -> bool:
  return isinstance(value, (list, tuple)) and any(is_tensor(item) or _holds_tensors(item) for item in value)


def _stack(label: str, value: Any) -> tf.Tensor:
  try:
    return tf.stack(value)
  except (TypeError, ValueError) as error:
    raise ValueError(f"{label} must be a tensor, or tensors of one type and shape: got {found(value)} ({error})") from error


def scope_name(label: str, value: Any) -> str | None:
  """None, or a name that TensorFlow takes for a name scope."""
  if value is None:
    return None
  string(label, value, 0)
  at_root = not tf.compat.v1.get_default_graph().get_name_scope()
  if not _SCOPE.fullmatch(value) or (at_root and value[:1] in tuple("_\\/>-")):
    raise ValueError(
      f"{label} must be a TensorFlow name (letters, digits, and '_', '-', '/', '\\', '>' after the first character): got {value!r}"
    )
  return value


def global_step(value: Any) -> Any:
  """None, or a variable of the default graph."""
  if value is None:
    return None
  if not isinstance(value, tf.Variable):
    raise ValueError(f"global_step must be a variable, or None: got {found(value)}")
  if getattr(value, "graph", None) is not tf.compat.v1.get_default_graph() and not _inside_a_function():
    raise ValueError(f"global_step must be a variable of the graph in use: got {value.name} of another graph")
  return value


def _inside_a_function() -> bool:
  return getattr(tf.compat.v1.get_default_graph(), "outer_graph", None) is not None


def loss(value: Any) -> tf.Tensor:
  """A float tensor."""
  if not isinstance(value, tf.Tensor):
    raise ValueError(f"loss must be a float tensor: got {found(value)}")
  if not value.dtype.is_floating:
    raise ValueError(f"loss must be a float tensor: got {value.name} of {value.dtype.name}")
  return value


def tensor_or_none(label: str, value: Any) -> Any:
  """None, or a tensor or variable."""
  if value is not None and not is_tensor(value):
    raise ValueError(f"{label} must be a tensor, or None: got {found(value)}")
  return value


def scalar(label: str, value: Any) -> Any:
  """A real number, or a scalar tensor or variable of a real type."""
  if is_tensor(value):
    if value.shape.rank not in (None, 0):
      raise ValueError(f"{label} must be a number or a scalar tensor: got a tensor of shape {value.shape}")
    if not (value.dtype.is_floating or value.dtype.is_integer):
      raise ValueError(f"{label} must be a number or a scalar tensor: got a tensor of {value.dtype.name}")
    return value
  array = np.asarray(value) if isinstance(value, (numbers.Real, np.ndarray)) and not isinstance(value, (bool, np.bool_)) else None
  if array is None or array.shape or array.dtype.kind not in "fiu":
    raise ValueError(f"{label} must be a number or a scalar tensor: got {found(value)}")
  return value


def default_row(table: str, dimension: int, value: Any) -> Any:
  """A number or [dimension] numbers: an array, or a tensor when it is or holds one, of shape [] or [dimension]."""
  label = f"default of a lookup in table '{table}'"
  if _holds_tensors(value):
    value = _stack(label, value)
  elif not is_tensor(value):
    try:
      given, value = value, np.asarray(value)
    except (NotImplementedError, RuntimeError, TypeError, ValueError) as error:
      raise ValueError(f"{label} must be numbers: got {found(value)} ({error})") from error
    if value.dtype.kind not in "fiu":
      raise ValueError(f"{label} must be numbers: got {found(given)} of dtype {value.dtype}")
  if is_tensor(value) and not (value.dtype.is_floating or value.dtype.is_integer):
    raise ValueError(f"{label} must be numbers: got a tensor of {value.dtype.name}")
  shape = tf.TensorShape(value.shape)
  if shape.rank != 0 and not shape.is_compatible_with([dimension]):
    raise ValueError(f"{label} must be a number or have shape [{dimension}]: got {value.shape}")
  return value


def max_norm(table: str, value: Any) -> float | None:
  """None, or a number above 0 as a float."""
  if value is None:
    return None
  number = isinstance(value, (numbers.Real, np.number)) and not isinstance(value, (bool, np.bool_))
  if not number or not 0 < float(value) < math.inf:
    raise ValueError(f"max_norm of a lookup in table '{table}' must be a number above 0: got {found(value)}")
  return float(value)


def padding_ids(table: str, value: Any) -> list[int]:
  """None, one id or a few: as int64 values."""
  if value is None:
    return []
  try:
    given = _integers("padding_id", value, "integers")
  except ValueError:
    given = None
  if given is None or given.ndim > 1 or not 1 <= given.size <= MAX_PADDING_IDS:
    raise ValueError(
      f"padding_id of a lookup in table '{table}' must be an integer or a list of 1 to {MAX_PADDING_IDS} of them: got "
      f"{found(value)}"
    )
  return [int(key) for key in keys(given.reshape(-1))]


def hot_keys(table: str, value: Any) -> list[int]:
  """None, or 1 to 65,536 distinct ids: as int64 values."""
  if value is None:
    return []
  try:
    given = keys(value)
  except ValueError:
    given = None
  if given is None or given.ndim != 1 or not 1 <= given.size <= MAX_HOT_KEYS:
    raise ValueError(f"hot_keys of table '{table}' must be a list of 1 to {MAX_HOT_KEYS} integers: got {found(value)}")
  distinct, counts = np.unique(given, return_counts=True)
  if distinct.size != given.size:
    raise ValueError(f"hot_keys of table '{table}' must be distinct: got {int(distinct[counts > 1][0])} twice")
  return [int(key) for key in given]
