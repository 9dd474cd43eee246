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
MAX_PADDING_IDS = 64
ID_DTYPES = (tf.int64, tf.int32, tf.uint64)

_NAME = re.compile(r"[0-9A-Za-z_.]+")


def string(label: str, value: Any, low: int = 1, high: int | None = None) -> str:
  """A str of low..high characters."""
  if not isinstance(value, str):
    raise ValueError(f"{label} is not str: got {type(value).__name__} {value!r}")
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
    raise ValueError(f"{label} is not int: got {type(value).__name__} {value!r}")
  if value < low:
    raise ValueError(f"{label} is less than {low}: got {value}")
  if value > high:
    raise ValueError(f"{label} is bigger than {high}: got {value}")
  return int(value)


def boolean(label: str, value: Any) -> bool:
  """True or False itself."""
  if not isinstance(value, bool):
    raise ValueError(f"{label} is not bool: got {type(value).__name__} {value!r}")
  return value


def choice(label: str, value: Any, allowed: tuple[str, ...]) -> str:
  """One of the words `allowed`."""
  if not isinstance(value, str) or value not in allowed:
    raise ValueError(f"{label} must be one of {', '.join(allowed)}: got {value!r}")
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
    found = tf.as_dtype(value)
  except TypeError as error:
    raise ValueError(f"{label} must be {only.name}: got {value!r}") from error
  if found != only:
    raise ValueError(f"{label} must be {only.name}: got {found.name}")
  return found


def distribution_strategy(value: Any) -> str:
  """ "MP": rows are shared out over the ranks by id."""
  if value == "DP" and isinstance(value, str):
    raise ValueError('distribution_strategy "DP" (every rank holds the whole table) is not supported: use "MP"')
  return choice("distribution_strategy", value, ("MP",))


def optional_integer(label: str, value: Any, high: int) -> int | None:
  """None, or an int in 0..high."""
  return None if value is None else integer(label, value, 0, high)


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
    raise ValueError(f"{label} is not float or tf.Tensor: got {type(value).__name__} {value!r}")
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
    raise ValueError(f"{label} is not a number: got {type(value).__name__} {value!r}")
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


def keys(value: Any) -> np.ndarray:
  """Integer keys of any shape as an int64 array; uint64 by bit pattern, smaller types by value."""
  array = np.asarray(value)
  if array.size == 0 and array.dtype.kind not in "iu":
    array = array.astype(np.int64)
  if array.dtype.kind not in "iu":
    raise ValueError(f"keys must be integers: got dtype {array.dtype}")
  return array.view(np.int64) if array.dtype == np.uint64 else array.astype(np.int64)


def rows(table: str, value: Any, shape: tuple[int, ...]) -> np.ndarray:
  """float32 values of just this shape."""
  try:
    array = np.asarray(value, dtype=np.float32)
  except (TypeError, ValueError) as error:
    raise ValueError(f"values for table '{table}' must be numbers: {error}") from error
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
  if not is_tensor(value):
    try:
      array = np.asarray(value)
      value = array.astype(np.int64) if array.size == 0 and array.dtype.kind == "f" else array
    except (NotImplementedError, TypeError, ValueError):
      pass  # a list that holds tensors
    try:
      value = tf.convert_to_tensor(value)
    except (TypeError, ValueError) as error:
      raise ValueError(f"ids of table '{table}' must be int64, int32 or uint64: {error}") from error
  if value.dtype.base_dtype not in ID_DTYPES:
    raise ValueError(f"ids of table '{table}' must be int64, int32 or uint64: got {value.dtype.name}")
  return tf.convert_to_tensor(value)


def max_norm(table: str, value: Any) -> float | None:
  """None, or a number above 0 as a float."""
  if value is None:
    return None
  number = isinstance(value, (numbers.Real, np.number)) and not isinstance(value, (bool, np.bool_))
  if not number or not 0 < float(value) < math.inf:
    raise ValueError(f"max_norm of a lookup in table '{table}' must be a number above 0: got {value!r}")
  return float(value)


def padding_ids(table: str, value: Any) -> list[int]:
  """None, one id or a few: as int64 values."""
  if value is None:
    return []
  found = np.asarray(value)
  if found.dtype.kind not in "iu" or found.ndim > 1 or not 1 <= found.size <= MAX_PADDING_IDS:
    raise ValueError(
      f"padding_id of a lookup in table '{table}' must be an integer or a list of 1 to {MAX_PADDING_IDS} of them: got {value!r}"
    )
  return [int(key) for key in keys(found.reshape(-1))]
