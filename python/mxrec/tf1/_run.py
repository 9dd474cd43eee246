"""Runs a TensorFlow 1 script as `python script.py` would, with the TensorFlow 1 names in its own modules."""

from __future__ import annotations

import dataclasses
import importlib.util
import io
import os
import sys
import types
from typing import Any

from mxrec import _horovod_import
from mxrec.tf1 import _facade, _imports, _mends, _notices

DEFAULT_VERSION = "1.15.0"


@dataclasses.dataclass(frozen=True)
class Options:
  """How to run.

  Attributes:
    tf_version: what `tf.__version__` says.
    own: further folders of own code.
    chdir: the working directory becomes the script's folder.
    show_deprecations: TensorFlow's notices are printed as they come.
    quiet: no line at the end.
    plain: TensorFlow as it is, for scripts of TensorFlow 2 and of tensorflow.compat.v1.
    horovod: `import horovod` brings mxrec.horovod.
  """

  tf_version: str = DEFAULT_VERSION
  own: tuple[str, ...] = ()
  chdir: bool = False
  show_deprecations: bool = False
  quiet: bool = False
  plain: bool = False
  horovod: bool = False


class CannotRun(Exception):
  """There is nothing to run; the text says why."""


@dataclasses.dataclass(frozen=True)
class _Program:
  code: types.CodeType
  file: str
  folder: str  # of sys.path[0]
  argv0: str
  package: str | None = None
  spec: Any = None


def set_environment() -> None:
  """What has to be set before TensorFlow is imported."""
  os.environ["TF_USE_LEGACY_KERAS"] = "1"
  os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "1")
  if sys.platform.startswith("linux") and not (os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")):
    os.environ.setdefault("MPLBACKEND", "Agg")


def make_imports(options: Options, folders: list[str]) -> _imports.Imports:
  """Makes the imports of own code. TensorFlow comes in, without its version 2 behaviour, when the program asks for it."""
  set_environment()
  notices = _notices.Notices()
  if not options.show_deprecations:
    notices.install()
  if not options.quiet:
    notices.print_at_exit()
  own = _imports.OwnCode([*folders, *options.own])
  after = {"numpy": _mends.mend_numpy, "random": _mends.mend_random}

  def make_facade() -> _facade.Facade:
    facade = _facade.Facade(options.tf_version, notices.supply)
    facade.v1.disable_v2_behavior()
    return facade

  return _imports.Imports(make_facade, own, _mends.PYTHON_2_BUILTINS, after)


def run(target: str, arguments: list[str], *, is_module: bool = False, options: Options | None = None) -> None:
  """Runs the program to its end, in this process; returns when it ended normally.

  Args:
    target: path of a script, or the dotted name of a module.
    arguments: sys.argv[1:] of the program.
    is_module: what `target` is.
    options: see Options.

  Raises:
    CannotRun: there is no such script or module.
    BaseException: what the program raises, SystemExit included; its traceback has been printed if Python would print one.
  """
  options = options or Options()
  for folder in options.own:
    if not os.path.isdir(folder):
      raise CannotRun(f"--own {folder}: no such folder")
  folder = _script_folder(target) if not is_module else os.getcwd()
  if not sys.flags.safe_path:
    if sys.path:
      sys.path[0] = folder
    else:
      sys.path.append(folder)
  for own in reversed(options.own):
    sys.path.insert(1, os.path.abspath(own))
  if options.horovod:
    _horovod_import.install()
  builtins: Any = sys.modules["builtins"]
  if options.plain:
    os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")
  else:
    imports = make_imports(options, [folder])
    imports.install()
    builtins = imports.builtins
  try:
    program = _module_program(target) if is_module else _script_program(target, folder)
  except SyntaxError as error:
    _report(error)
    raise
  if options.chdir:
    os.chdir(os.path.dirname(program.file))
  sys.argv[:] = [program.argv0, *arguments]
  main = types.ModuleType("__main__")
  main.__dict__.update(__file__=program.file, __cached__=None, __package__=program.package, __spec__=program.spec)
  main.__dict__["__builtins__"] = builtins  # the module here, its dictionary elsewhere, as in Python
  sys.modules["__main__"] = main
  try:
    exec(program.code, main.__dict__)
  except SystemExit:
    raise
  except BaseException as error:
    _report(error)
    raise


def _script_folder(path: str) -> str:
  if os.path.isdir(path):
    raise CannotRun(f"{path} is a folder: give the script inside it")
  if not os.path.isfile(path):
    raise CannotRun(f"can't open file '{os.path.abspath(path)}': no such file")
  return os.path.dirname(os.path.realpath(path))


def _script_program(path: str, folder: str) -> _Program:
  file = os.path.abspath(path)
  with io.open_code(file) as source:
    code = compile(source.read(), file, "exec", dont_inherit=True)
  return _Program(code, file, folder, path)


def _module_program(name: str) -> _Program:
  """As runpy finds it: a package means its module __main__; parents are imported first."""
  try:
    spec = importlib.util.find_spec(name)
    if spec is not None and spec.submodule_search_locations is not None:
      name += ".__main__"
      spec = importlib.util.find_spec(name)
  except (ImportError, ValueError) as error:
    raise CannotRun(f"No module named {name}: {error}") from error
  if spec is None or spec.loader is None or not hasattr(spec.loader, "get_code"):
    raise CannotRun(f"No module named {name} that can be run")
  code = spec.loader.get_code(name)
  if code is None or spec.origin is None:
    raise CannotRun(f"module {name} has no Python code")
  return _Program(code, spec.origin, os.getcwd(), spec.origin, spec.parent, spec)


# Tracebacks


def _own_frames(traceback: types.TracebackType | None) -> types.TracebackType | None:
  """The traceback without frames of this folder and without the import system's around them."""
  here = os.path.dirname(os.path.abspath(__file__)) + os.sep
  start = traceback
  while start is not None and _is_hidden(start, here):
    start = start.tb_next
  last = start
  while last is not None:
    following = last.tb_next
    while following is not None and _is_hidden(following, here):
      following = following.tb_next
    last.tb_next = following
    last = following
  return start


def _is_hidden(traceback: types.TracebackType, here: str) -> bool:
  file = traceback.tb_frame.f_code.co_filename
  return file.startswith("<frozen importlib") or (file.startswith(here) and os.sep not in file[len(here) :])


def _clean(error: BaseException | None, seen: set[int]) -> None:
  while error is not None and id(error) not in seen:
    seen.add(id(error))
    error.__traceback__ = _own_frames(error.__traceback__)
    _clean(error.__cause__, seen)
    error = error.__context__


def _report(error: BaseException) -> None:
  """Lets sys.excepthook print the error as if nothing stood between Python and the script, and Python itself print nothing."""
  _clean(error, set())
  hook = sys.excepthook
  sys.last_type, sys.last_value, sys.last_traceback = type(error), error, error.__traceback__
  try:
    hook(type(error), error, error.__traceback__)
  except SystemExit:
    raise
  except BaseException as second:
    sys.__excepthook__(type(second), second, second.__traceback__)
  if isinstance(error, SyntaxError) and _looks_like_python_2(error):
    print("mxrec run: this is Python 2 source; convert it first, for example with `2to3 -w`", file=sys.stderr)
  sys.excepthook = lambda *_: None  # it propagates, so that the exit code and the death by Ctrl-C are Python's own


def _looks_like_python_2(error: SyntaxError) -> bool:
  said = ("Missing parentheses in call to", "multiple exception types must be parenthesized", "inconsistent use of tabs")
  return any(text in (error.msg or "") for text in said)
