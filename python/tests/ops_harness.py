"""What the tests of the raw ops share: the loaded library, table configs, and a table with its ops in a graph."""

from __future__ import annotations

import ctypes
import json
import os
import pathlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

tf1 = tf.compat.v1
tf1.disable_eager_execution()

_BUILT = pathlib.Path(__file__).resolve().parent.parent / "mxrec" / "_lib"
_PATH = pathlib.Path(os.environ.get("MXREC_LIBRARY_PATH") or _BUILT)
LIBRARY = str(_PATH / "libmxrec_tf.so" if _PATH.is_dir() else _PATH)
ops = tf.load_op_library(LIBRARY)

# Hyperparameters in the order of each optimizer, and how its ops are told.
SGD = ("sgd", [0.1], {})
ADAGRAD = ("adagrad", [0.1], {"initial_accumulator_value": 0.1})


def config(name: str = "t", dim: int = 4, **fields: Any) -> str:
  """The JSON text of a table's settings; rows start as zeros unless told otherwise."""
  settings = {"name": name, "dim": dim, "vocabulary": 1000, "seed": 7, "initializer": {"name": "zeros", "params": {}}}
  settings.update(fields)
  return json.dumps(settings)


def normal(stddev: float = 1.0) -> dict[str, Any]:
  """An initializer whose rows all differ."""
  return {"name": "random_normal", "params": {"mean": 0.0, "stddev": stddev}}


class Table:
  """One table in the current graph: its handle and shorthands for its ops."""

  def __init__(self, name: str = "t", dim: int = 4, **fields: Any):
    self.name, self.dim = name, dim
    self.handle = ops.mxrec_table(shared_name="mxrec/" + name, config=config(name, dim, **fields))

  def lookup(self, ids: Any, training: bool = True, default: Any = None) -> Any:
    """MxrecLookup's named outputs."""
    row = np.zeros([0], np.float32) if default is None else default
    return ops.mxrec_lookup(self.handle, ids, row, dim=self.dim, training=training)

  def apply(self, parts: list[tuple[Any, Any, Any]], optimizer: tuple = SGD, hyper: Any = None) -> tf.Operation:
    """MxrecApply of (lookup, values, index or None for a dense gradient) parts."""
    kind, defaults, options = optimizer
    empty = tf.zeros([0], tf.int32)
    return ops.mxrec_apply(
      handle=self.handle,
      hyper=[tf.convert_to_tensor(h, tf.float32) for h in (defaults if hyper is None else hyper)],
      keys=[p[0].keys for p in parts],
      handles=[p[0].handles for p in parts],
      counts=[p[0].counts for p in parts],
      generations=[p[0].generation for p in parts],
      first_rows=[p[0].rows for p in parts],
      values=[p[1] for p in parts],
      index=[empty if p[2] is None else p[2] for p in parts],
      value_rows=[empty for _ in parts],
      scales=[tf.zeros([0]) for _ in parts],
      optimizer=kind,
      option_names=list(options),
      option_values=list(options.values()),
      dense=[p[2] is None for p in parts],
      shared=[False for _ in parts],
    )

  def train(self, ids: Any, gradient: float = 1.0, optimizer: tuple = SGD, hyper: Any = None) -> tf.Operation:
    """One step on 1-D ids with the same gradient in every place."""
    found = self.lookup(ids)
    places = tf.reshape(found.inverse, [-1])
    values = gradient * tf.ones([tf.size(places), self.dim])
    return self.apply([(found, values, places)], optimizer, hyper)

  def find(self, keys: Any) -> Any:
    """MxrecTableFind's outputs."""
    return ops.mxrec_table_find(self.handle, tf.cast(keys, tf.int64), dim=self.dim)

  def export(self) -> Any:
    """MxrecTableExport's outputs."""
    return ops.mxrec_table_export(self.handle, dim=self.dim)

  def size(self) -> tf.Tensor:
    """MxrecTableSize."""
    return ops.mxrec_table_size(self.handle)


def threads(intra: int, inter: int = 2) -> tf1.ConfigProto:
  """A session config with these thread pools of its own."""
  return tf1.ConfigProto(intra_op_parallelism_threads=intra, inter_op_parallelism_threads=inter, use_per_session_threads=True)


@pytest.fixture(name="c_api")
def c_api_fixture() -> Iterator[ctypes.CDLL]:
  """The library's C functions; the clock and the log are as they were afterwards."""
  library = ctypes.CDLL(LIBRARY)
  library.mxrec_version.restype = ctypes.c_char_p
  library.mxrec_now_ms.restype = ctypes.c_int64
  library.mxrec_set_clock_ms.argtypes = [ctypes.c_int64]
  yield library
  library.mxrec_set_clock_ms(-1)
  library.mxrec_set_log_sink(None)
