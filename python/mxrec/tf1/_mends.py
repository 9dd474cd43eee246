"""Names that left Python's and NumPy's libraries and that old scripts use. Only adds: what works without this works as before."""

from __future__ import annotations

import functools
import random
from typing import Any

# Own modules find these among their builtins.
PYTHON_2_BUILTINS = {"xrange": range, "raw_input": input}


def _numpy_names(np: Any) -> dict[str, Any]:
  return {
    "float": float,
    "int": int,
    "object": object,
    "str": str,
    "complex": complex,
    "bool": bool,
    "long": int,
    "unicode": str,
    "float_": np.float64,
    "complex_": np.complex128,
    "unicode_": np.str_,
    "string_": np.bytes_,
    "bool8": np.bool_,
    "Inf": np.inf,
    "Infinity": np.inf,
    "infty": np.inf,
    "PINF": np.inf,
    "NINF": -np.inf,
    "NaN": np.nan,
    "NAN": np.nan,
    "product": np.prod,
    "cumproduct": np.cumprod,
    "sometrue": np.any,
    "alltrue": np.all,
    "row_stack": np.vstack,
    "asscalar": lambda a: a.item(),
    "mat": np.asmatrix,
    "in1d": np.isin,
    "asfarray": lambda a, dtype=np.float64: np.asarray(a, dtype=dtype),
  }


def mend_numpy() -> None:
  """Gives NumPy the aliases back that versions 1.24 and 2.0 removed."""
  import numpy as np

  for name, value in _numpy_names(np).items():
    if name not in vars(np):
      setattr(np, name, value)
  if not hasattr(np.reshape, "_takes_newshape"):
    np.reshape = _with_newshape(np.reshape)


def _with_newshape(reshape: Any) -> Any:
  @functools.wraps(reshape)
  def old_reshape(a: Any, *args: Any, **kwargs: Any) -> Any:
    if "newshape" in kwargs:
      kwargs["shape"] = kwargs.pop("newshape")
    return reshape(a, *args, **kwargs)

  old_reshape._takes_newshape = True
  return old_reshape


def mend_random() -> None:
  """random.sample takes sets and views of dicts again, as before Python 3.11: in their order of iteration."""
  sample = random.sample
  if hasattr(sample, "_takes_sets"):
    return

  @functools.wraps(sample)
  def old_sample(population: Any, k: int, **kwargs: Any) -> list[Any]:
    if isinstance(population, (set, frozenset, type({}.keys()), type({}.values()), type({}.items()))):
      population = tuple(population)
    return sample(population, k, **kwargs)

  old_sample._takes_sets = True
  random.sample = old_sample
