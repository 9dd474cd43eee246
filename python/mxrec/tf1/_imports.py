"""Gives the script's own modules their view of imports, and nobody else.

An `import` statement calls `__import__` of the builtins of its module. Own modules are executed with builtins of their own, so
their statements come here; every other module, libraries of TensorFlow included, keeps Python's builtins and the true `tensorflow`.
"""

from __future__ import annotations

import builtins
import functools
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import os
import pathlib
import sys
import sysconfig
import types
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar

from mxrec import _command, _horovod_import
from mxrec.tf1._facade import Facade
from mxrec.tf1._views import Lazy, View

# Modules that Python 2 and old scikit-learn had -> where their content is. Used only when the old one is absent.
MOVED = {
  "cPickle": "pickle",
  "cStringIO": "io",
  "StringIO": "io",
  "Queue": "queue",
  "ConfigParser": "configparser",
  "urllib2": "urllib.request",
  "urlparse": "urllib.parse",
  "sklearn.cross_validation": "sklearn.model_selection",
  "sklearn.grid_search": "sklearn.model_selection",
  "sklearn.externals.joblib": "joblib",
  "sklearn.externals.six": "six",
  "toml": "mxrec.tf1._toml",
}
_OWN_PACKAGES = ("mxrec", "npu_bridge", "npu_device", "hccl", "rec_sdk_common", "precision_tool")
_PACKAGE_FOLDER = pathlib.Path(__file__).resolve().parents[2]


class OwnCode:
  """Which files belong to the script: its folder and below, and folders that it puts on sys.path itself; no library."""

  def __init__(self, folders: Iterable[str | os.PathLike[str]]):
    """`folders`: where own code is from the start."""
    self.folders = [os.path.realpath(folder) for folder in folders]
    self._known_path = set(sys.path)
    paths = sysconfig.get_paths()
    self._libraries = [os.path.realpath(paths[key]) for key in ("stdlib", "platstdlib", "purelib", "platlib")]
    self._libraries += [str(_PACKAGE_FOLDER / name) for name in _OWN_PACKAGES]

  def __contains__(self, file: str) -> bool:
    real = os.path.realpath(file)
    if {"site-packages", "dist-packages"} & set(real.split(os.sep)) or any(_below(real, folder) for folder in self._libraries):
      return False
    added = (os.path.realpath(entry or os.curdir) for entry in sys.path if entry not in self._known_path)
    return any(_below(real, folder) for folder in (*self.folders, *added))


def _below(path: str, folder: str) -> bool:
  return path == folder or path.startswith(folder.rstrip(os.sep) + os.sep)


class Imports(importlib.abc.MetaPathFinder):
  """The `import` of own modules, and the finder that recognises them."""

  def __init__(
    self,
    make_facade: Callable[[], Facade],
    own: OwnCode,
    extra_builtins: Mapping[str, Any] | None = None,
    after: Mapping[str, Callable[[], None]] | None = None,
  ):
    """Nothing of TensorFlow is imported before own code, or what it imports, does so.

    Args:
      make_facade: called as soon as an import of own code brought TensorFlow in.
      own: which files are own code.
      extra_builtins: further names that own modules find everywhere.
      after: module -> what to do once an import of own code brought it in.
    """
    self._make_facade = functools.cache(make_facade)
    self._own = own
    self._after = {**(after or {}), "tensorflow": self._make_facade}
    self._true_import = builtins.__import__
    self.builtins = types.ModuleType("builtins", builtins.__doc__)
    self._known_builtins = 0
    self._extra_builtins = dict(extra_builtins or {})
    self._copy_builtins()
    # A plain function: pickling and `callable` checks of scripts see nothing unusual.
    self.builtins.__dict__["__import__"] = self._make_import()
    self._importlib = self._importlib_views()

  def _importlib_views(self) -> dict[str, View]:
    """importlib and its parts, whose loaders execute own files as own modules."""
    extra = {"spec_from_file_location": self._spec_from_file}
    util = View("importlib.util", importlib.util, extra)
    machinery = View("importlib.machinery", importlib.machinery, {"SourceFileLoader": self._loader})
    whole = View("importlib", importlib, {"import_module": self.import_module, "util": util, "machinery": machinery})
    return {"importlib": whole, "importlib.util": util, "importlib.machinery": machinery}

  def _loader(self, fullname: str, path: str) -> importlib.machinery.SourceFileLoader:
    """importlib.machinery.SourceFileLoader for own modules."""
    if path not in self._own:
      return importlib.machinery.SourceFileLoader(fullname, path)
    loader = _OwnLoader(fullname, path)
    loader.imports = self
    return loader

  def _spec_from_file(self, name: str, location: Any = None, **others: Any) -> Any:
    """importlib.util.spec_from_file_location for own modules."""
    spec = importlib.util.spec_from_file_location(name, location, **others)
    if spec is not None and type(spec.loader) is importlib.machinery.SourceFileLoader:
      spec.loader = self._loader(spec.loader.name, spec.loader.path)
    return spec

  def _copy_builtins(self) -> None:
    """Takes over what others added to Python's builtins since, as gettext.install does."""
    if len(vars(builtins)) != self._known_builtins:
      self._known_builtins = len(vars(builtins))
      mine = vars(self.builtins)
      for name, value in {**vars(builtins), **self._extra_builtins}.items():
        mine.setdefault(name, value)

  @property
  def _facade(self) -> Facade:
    return self._make_facade()

  def install(self) -> None:
    """From now on modules of own code are executed with their own imports."""
    sys.meta_path.insert(0, self)

  def prepare(self, namespace: dict[str, Any]) -> None:
    """Makes a namespace that of an own module; to be called before its code runs."""
    namespace["__builtins__"] = self.builtins.__dict__

  # importlib's side

  def find_spec(self, name: str, path: Any = None, target: Any = None) -> importlib.machinery.ModuleSpec | None:
    """A spec for modules of own code only."""
    spec = importlib.machinery.PathFinder.find_spec(name, path, target)
    if spec is None or not isinstance(spec.loader, importlib.machinery.SourceFileLoader) or spec.loader.path not in self._own:
      return None
    spec.loader = self._loader(spec.loader.name, spec.loader.path)
    return spec

  # The statement's side

  def _make_import(self) -> Callable[..., Any]:
    def __import__(name: str, globals: Any = None, locals: Any = None, fromlist: Any = (), level: int = 0) -> Any:
      """The `import` statement of a module that belongs to the script."""
      if level == 0:
        self._copy_builtins()
        top = name.partition(".")[0]
        answer = self._ANSWERS.get(top)
        if answer is not None:
          return answer(self, name, tuple(fromlist or ()))
      try:
        found = self._true_import(name, globals, locals, fromlist, level)
        self._act_on_new()
        return self._with_moved(name, found, fromlist) if level == 0 and fromlist else found
      except ModuleNotFoundError as error:
        if level or error.name is None or not _below(name.replace(".", os.sep), error.name.replace(".", os.sep)):
          raise
        moved = self._moved(name, tuple(fromlist or ()))
        if moved is None:
          raise
      return moved

    return __import__

  def _act_on_new(self) -> None:
    for name in [name for name in self._after if name in sys.modules]:
      self._after.pop(name)()

  def import_module(self, name: str, package: str | None = None) -> Any:
    """importlib.import_module for own modules."""
    name = importlib.util.resolve_name(name, package)
    top = name.partition(".")[0]
    if top == "tensorflow":
      return self._facade.resolve(name)
    if top == "keras":
      return self._keras(name)
    if top in self._ANSWERS:
      return self._ANSWERS[top](self, name, ("__name__",))
    found = importlib.import_module(name)
    self._act_on_new()
    return found

  def _tensorflow(self, name: str, names: tuple[str, ...]) -> Any:
    if names:
      return self._facade.import_from(name, names)
    self._facade.resolve(name)
    return self._facade.module

  def _keras(self, name: str) -> Any:
    """`keras` is the Keras of TensorFlow 1, which tf_keras keeps."""
    found: Any = self._facade.v1.keras
    parts = name.split(".")[1:]
    for index, part in enumerate(parts):
      try:
        found = getattr(found, part)
      except AttributeError:
        found = _first_module(f"tf_keras.{'.'.join(parts[: index + 1])}", f"tf_keras.src.{'.'.join(parts[: index + 1])}")
        if found is None:
          raise ModuleNotFoundError(
            f"No module named 'keras.{'.'.join(parts[: index + 1])}' in tf_keras, which stands for keras here", name=name
          ) from None
    return found

  def _import_keras(self, name: str, names: tuple[str, ...]) -> Any:
    if "keras" not in sys.modules or sys.modules["keras"].__name__ == "keras":
      spec = importlib.machinery.PathFinder.find_spec("keras")
      if spec is not None and spec.origin in self._own:
        return self._true_import(name, None, None, names, 0)
    found = self._keras(name)
    if not names:
      return self._facade.v1.keras
    extra = {}
    for wanted in names:
      if wanted != "*" and not hasattr(found, wanted):
        try:
          extra[wanted] = self._keras(f"{name}.{wanted}")
        except ModuleNotFoundError as error:
          raise ImportError(f"cannot import name '{wanted}' from '{name}': {error}", name=name) from None
    return View(name, found, extra) if extra else found

  def _npu(self, name: str, names: tuple[str, ...]) -> Any:
    """npu_bridge and npu_device; their star import brings `tf` along, which has to be the script's."""
    facade = self._facade
    module = self._true_import(name, None, None, names, 0)
    if ("*" in names or "tf" in names) and getattr(module, "tf", None) in (facade.v1, facade.true):
      return View(name, module, {"tf": facade.module})
    return module

  def _mxrec(self, name: str, names: tuple[str, ...]) -> Any:
    self._make_facade()
    _command.complete()
    return self._true_import(name, None, None, names, 0)

  def _horovod(self, name: str, names: tuple[str, ...]) -> Any:
    if _horovod_import.installed():
      self._make_facade()
      _command.complete()
    try:
      return self._true_import(name, None, None, names, 0)
    except ModuleNotFoundError as error:
      if error.name == _horovod_import.OLD:
        error.add_note("`mxrec run --horovod` brings mxrec.horovod under this name")
      raise

  def _import_importlib(self, name: str, names: tuple[str, ...]) -> Any:
    module = self._true_import(name, None, None, names, 0)
    return self._importlib.get(module.__name__, module)

  def _import_builtins(self, name: str, names: tuple[str, ...]) -> Any:
    return self.builtins

  _ANSWERS: ClassVar[dict[str, Callable[..., Any]]] = {
    "tensorflow": _tensorflow,
    "keras": _import_keras,
    "npu_bridge": _npu,
    "npu_device": _npu,
    "mxrec": _mxrec,
    "horovod": _horovod,
    "importlib": _import_importlib,
    "builtins": _import_builtins,
    "__builtin__": _import_builtins,
  }

  def _moved(self, name: str, names: tuple[str, ...]) -> Any:
    """What stands for an old module; None when nothing does."""
    if name in MOVED:
      target = importlib.import_module(MOVED[name])
      if names or "." not in name:
        return target
      return self._true_import(name.partition(".")[0])
    if names and all(f"{name}.{wanted}" in MOVED for wanted in names):
      return self._with_moved(name, types.ModuleType(name), names)
    return None

  @staticmethod
  def _with_moved(name: str, module: Any, names: tuple[str, ...]) -> Any:
    """`from sklearn.externals import joblib`: the module, with what moved out of it."""
    moved = {wanted: MOVED[full] for wanted in names if (full := f"{name}.{wanted}") in MOVED and not hasattr(module, wanted)}
    if not moved:
      return module
    return View(name, module, {wanted: Lazy(lambda new=new: importlib.import_module(new)) for wanted, new in moved.items()})


def _first_module(*names: str) -> types.ModuleType | None:
  for name in names:
    try:
      return importlib.import_module(name)
    except ModuleNotFoundError:
      continue
  return None


class _OwnLoader(importlib.machinery.SourceFileLoader):
  """Executes a module of own code with the builtins of own code."""

  imports: Imports

  def exec_module(self, module: types.ModuleType) -> None:
    self.imports.prepare(vars(module))
    super().exec_module(module)
