"""The module `tensorflow` of TensorFlow 1 for the script's own modules, on top of `tensorflow.compat.v1`.

Libraries never see it: `sys.modules["tensorflow"]` stays the true module.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
import types
from collections.abc import Callable, Mapping
from typing import Any

from mxrec.tf1._views import Lazy, View, nearest

# Names that TensorFlow 0.x had, and where TensorFlow 1 has them.
OLD_NAMES = {
  "mul": "multiply",
  "sub": "subtract",
  "neg": "negative",
  "pack": "stack",
  "unpack": "unstack",
  "select": "where",
  "inv": "reciprocal",
  "batch_matmul": "matmul",
  "batch_cholesky": "cholesky",
  "batch_matrix_inverse": "matrix_inverse",
  "complex_abs": "abs",
  "listdiff": "setdiff1d",
  "all_variables": "global_variables",
  "initialize_all_tables": "tables_initializer",
  "merge_all_summaries": "summary.merge_all",
  "merge_summary": "summary.merge",
  "scalar_summary": "summary.scalar",
  "histogram_summary": "summary.histogram",
  "image_summary": "summary.image",
  "audio_summary": "summary.audio",
}
# Parts of `tensorflow.contrib.X` that are files there; here everything of X is in one place.
CONTRIB_FILES = frozenset(
  "python ops layers initializers regularizers utils optimizers normalization embedding_ops rnn rnn_cell core_rnn core_rnn_cell"
  " core_rnn_cell_impl rnn_ops gru_ops lstm_ops training hparam variables checkpoint_utils lookup lookup_ops batching grouping"
  " interleave_ops shuffle_ops external_optimizer lazy_adam_optimizer weight_decay_optimizers losses loss_ops metrics metric_ops"
  " loss_scale_manager loss_scale_optimizer crf decoder basic_decoder helper attention_wrapper estimator feature_column".split()
)
CONTRIB = (
  "cluster_resolver",
  "data",
  "distribute",
  "estimator",
  "feature_column",
  "framework",
  "layers",
  "learn",
  "lookup",
  "losses",
  "metrics",
  "mixed_precision",
  "opt",
  "rnn",
  "slim",
  "summary",
  "tpu",
  "training",
)
ABSENT = {
  "tensorflow.examples": "the tutorials' data readers are not part of TensorFlow 2: copy the reader into your program",
  "tensorflow.contrib.distributions": "install tensorflow-probability and use its tf1 distributions",
  "tensorflow.contrib.tensorrt": "there is no TensorRT on CPUs",
  "tensorflow.contrib.cudnn_rnn": "use tf.nn.rnn_cell and tf.nn.dynamic_rnn, which run on CPUs",
}


class Facade:
  """Makes the modules and answers imports of them by name."""

  def __init__(self, version: str, note: Callable[[str], None] | None = None):
    """Makes the facade; TensorFlow is imported here.

    Args:
      version: what `tf.__version__` says.
      note: called with the name of each thing that TensorFlow 2 lacks and the script uses, once.
    """
    self._note = note
    self.true = importlib.import_module("tensorflow")
    self.v1 = importlib.import_module("tensorflow.compat.v1")
    self._contrib: dict[str, View] = {}
    self._overlays: dict[str, Any] = {}
    self.module = self._make_root(version)

  def _view(self, name: str, base: Any, extra: Mapping[str, Any]) -> View:
    return View(name, base, extra, note=self._note)

  def _make_root(self, version: str) -> View:
    v1 = self.v1
    extra: dict[str, Any] = {
      "__version__": version,
      "VERSION": version,
      "version": View("tensorflow.version", v1.version, {"VERSION": version}),
      "compat": View("tensorflow.compat", v1.compat, {"v1": v1, "v2": self.true.compat.v2}),
      "random": self._view("tensorflow.random", v1.random, {"set_seed": v1.set_random_seed}),
      "train": self._view("tensorflow.train", v1.train, {"SummaryWriter": Lazy(lambda: v1.summary.FileWriter)}),
      "keras": Lazy(lambda: v1.keras),
      "contrib": Lazy(lambda: self.contrib),
      "estimator": View("tensorflow.estimator", Lazy(load_estimator)),
      "python": Lazy(lambda: self.overlay("tensorflow.python")),
      "core": Lazy(lambda: importlib.import_module("tensorflow.core")),
      "pywrap_tensorflow": Lazy(lambda: self.overlay("tensorflow.python.pywrap_tensorflow")),
      "concat": Lazy(lambda: _old_concat(v1)),
      "split": Lazy(lambda: _old_split(v1)),
    }
    for old, new in OLD_NAMES.items():
      if not hasattr(v1, old):
        extra[old] = Lazy(lambda new=new: _walk(v1, new.split(".")))
    root = View("tensorflow", v1, extra, note=self._note_of_root, explain=self._explain)
    root.__path__ = list(self.true.__path__)
    root.__file__ = self.true.__file__
    return root

  def _note_of_root(self, name: str) -> None:
    ordinary = ("__version__", "VERSION", "keras", "concat", "split")
    if self._note and name.split(".")[1] not in ordinary:
      self._note(name)

  def _explain(self, name: str) -> str:
    return f"module 'tensorflow' has no attribute '{name}', in version 1 either{nearest(name, dir(self.v1))}"

  # tensorflow.contrib

  @property
  def contrib(self) -> View:
    """`tensorflow.contrib`."""
    if "" not in self._contrib:
      parts = {name: Lazy(lambda name=name: self.contrib_part(name)) for name in CONTRIB}
      explain = lambda name: self._absent_contrib(name)
      self._contrib[""] = View("tensorflow.contrib", types.ModuleType("tensorflow.contrib"), parts, explain=explain)
    return self._contrib[""]

  def _absent_contrib(self, part: str) -> str:
    why = ABSENT.get(f"tensorflow.contrib.{part}")
    said = f"tensorflow.contrib.{part} went away with TensorFlow 2, and `mxrec run` does not supply it"
    return f"{said}: {why}" if why else f"{said}; supplied: {', '.join(CONTRIB)}{nearest(part, CONTRIB)}"

  def contrib_part(self, part: str) -> View:
    """`tensorflow.contrib.<part>`; ModuleNotFoundError says what there is."""
    if part not in CONTRIB:
      raise ModuleNotFoundError(self._absent_contrib(part), name=f"tensorflow.contrib.{part}")
    if part not in self._contrib:
      self._contrib[part] = ContribView(part, importlib.import_module(f"mxrec.tf1.contrib.{part}"), self._note)
    return self._contrib[part]

  # tensorflow.python and the like

  def overlay(self, name: str) -> Any:
    """The true module `name`, with what the script may expect of TensorFlow 1 in it or below it; ModuleNotFoundError."""
    if name not in self._overlays:
      extra = {key: value for key, value in _overlays(self).get(name, {}).items()}
      below = {key for key in _overlays(self) if key.startswith(name + ".")}
      for child in sorted({key[len(name) + 1 :].split(".")[0] for key in below}):
        extra.setdefault(child, Lazy(lambda child=child: self.overlay(f"{name}.{child}")))
      base = importlib.import_module(name)
      missing = {key: value for key, value in extra.items() if isinstance(value, Lazy) or not hasattr(base, key)}
      self._overlays[name] = self._view(name, base, missing) if missing else base
    return self._overlays[name]

  # imports by name

  def resolve(self, name: str) -> Any:
    """The module of the dotted `name`, "tensorflow" or below; ModuleNotFoundError names what is missing."""
    parts = name.split(".")[1:]
    if not parts:
      return self.module
    if parts[0] == "contrib":
      return self._resolve_contrib(name, parts[1:])
    for absent, why in ABSENT.items():
      if name == absent or name.startswith(absent + "."):
        raise ModuleNotFoundError(f"No module named '{name}': {why}", name=name)
    if name.startswith("tensorflow.python.estimator"):
      load_estimator()
      return importlib.import_module(name.replace("tensorflow.python.estimator", "tensorflow_estimator.python.estimator", 1))
    if parts[0] in ("python", "core") or _is_true_module(name):
      return self.overlay(name)
    try:
      return _walk(self.module, parts)
    except AttributeError as error:
      raise ModuleNotFoundError(f"No module named '{name}': {error}", name=name) from None

  def _resolve_contrib(self, name: str, parts: list[str]) -> Any:
    if not parts:
      return self.contrib
    found: Any = self.contrib_part(parts[0])
    for part in parts[1:]:
      try:
        found = getattr(found, part)
      except AttributeError as error:
        raise ModuleNotFoundError(f"No module named '{name}': {error}", name=name) from None
    return found

  def import_from(self, name: str, names: tuple[str, ...]) -> Any:
    """A module that has `names`, as `from name import names` needs; ImportError says which of them is missing."""
    module = self.resolve(name)
    found = {}
    for wanted in names:
      if wanted == "*" or hasattr(module, wanted):
        continue
      try:
        found[wanted] = self.resolve(f"{name}.{wanted}")
      except ModuleNotFoundError as error:
        why: Exception = error
        try:
          getattr(module, wanted)
        except AttributeError as better:
          why = better
        raise ImportError(f"cannot import name '{wanted}' from '{name}': {why}", name=name) from None
    return View(name, module, found) if found else module


class ContribView(View):
  """`tensorflow.contrib.<part>`: what its module's `__all__` lists; names of files inside the original package lead back to it."""

  def __init__(self, part: str, module: types.ModuleType, note: Callable[[str], None] | None):
    full = f"tensorflow.contrib.{part}"
    public = {name: Lazy(lambda name=name: getattr(module, name)) for name in module.__all__}
    super().__init__(full, types.ModuleType(full), public, note=note)
    vars(self)["_part"] = part

  def __getattr__(self, name: str) -> Any:
    if name not in self._extra and (name in CONTRIB_FILES or name == self._part):
      return self
    if name not in self._extra and not name.startswith("__"):
      known = sorted(self._extra)
      raise AttributeError(
        f"{self.__name__}.{name} went away with TensorFlow 2, and `mxrec run` does not supply it{nearest(name, known)}; supplied "
        f"there: {', '.join(known)}"
      )
    return super().__getattr__(name)


def load_estimator() -> Any:
  """`tf.estimator` of TensorFlow 1; ImportError says what is missing."""
  try:
    from mxrec import _estimator
  except ImportError as error:
    raise ImportError(f"tf.estimator is not there: {error}") from error
  _estimator.load()
  return _estimator.module()


def _is_true_module(name: str) -> bool:
  """Whether the import system knows the module. TensorFlow's own tree has few public ones: compat, lite, tools."""
  if name.split(".")[1] not in ("compat", "lite", "tools", "dtensor", "tsl", "include", "xla_aot_runtime_src", "_api"):
    return False
  if name in sys.modules:
    return True
  try:
    return importlib.util.find_spec(name) is not None
  except ImportError:
    return False


def _walk(start: Any, parts: list[str]) -> Any:
  for part in parts:
    start = getattr(start, part)
  return start


def _old_concat(v1: Any) -> Callable[..., Any]:
  def concat(values: Any = None, axis: Any = None, name: str = "concat", concat_dim: Any = None) -> Any:
    """tf.concat; also with the order of TensorFlow 0.x, concat(axis, values)."""
    if concat_dim is not None:
      axis = concat_dim
    if isinstance(values, int) and isinstance(axis, (list, tuple)):
      values, axis = axis, values
    return v1.concat(values, axis, name=name)

  return concat


def _old_split(v1: Any) -> Callable[..., Any]:
  def split(
    value: Any = None, num_or_size_splits: Any = None, axis: Any = 0, num: Any = None, name: str = "split", **old: Any
  ) -> Any:
    """tf.split; also with the order of TensorFlow 0.x, split(axis, number, value)."""
    if "split_dim" in old or "num_split" in old:
      axis, num_or_size_splits = old.pop("split_dim", axis), old.pop("num_split", num_or_size_splits)
    elif isinstance(value, int) and isinstance(num_or_size_splits, int) and v1.is_tensor(axis):
      value, axis = axis, value
    if old:
      raise TypeError(f"split() got an unexpected keyword argument '{next(iter(old))}'")
    return v1.split(value, num_or_size_splits, axis=axis, num=num, name=name)

  return split


def _overlays(facade: Facade) -> dict[str, dict[str, Any]]:
  """Private modules of TensorFlow 1 that scripts import -> names that went from them."""
  v1 = facade.v1

  def rnn_parts() -> Any:
    return importlib.import_module("mxrec.tf1.contrib._rnn_parts")

  return {
    "tensorflow.python.pywrap_tensorflow": {"NewCheckpointReader": Lazy(lambda: v1.train.NewCheckpointReader)},
    "tensorflow.python.ops.array_ops": {
      name: Lazy(lambda name=name: getattr(v1, name))
      for name in ("stack", "unstack", "concat", "where")
      if not hasattr(importlib.import_module("tensorflow.python.ops.array_ops"), name)
    },
    "tensorflow.python.ops.variables": {
      "RefVariable": Lazy(lambda: importlib.import_module("tensorflow.python.ops.ref_variable").RefVariable),
      "VariableV1": Lazy(lambda: importlib.import_module("tensorflow.python.ops.variable_v1").VariableV1),
    },
    "tensorflow.python.ops.rnn_cell_impl": {
      "_Linear": Lazy(lambda: rnn_parts().Linear),
      "_linear": Lazy(lambda: rnn_parts().linear),
      "_like_rnncell": Lazy(lambda: rnn_parts().like_rnncell),
    },
    "tensorflow.python.ops.rnn_cell": {"_linear": Lazy(lambda: rnn_parts().linear)},
  }
