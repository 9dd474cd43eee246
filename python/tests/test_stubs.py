"""The type stub of the package says what the package is."""

import ast
import importlib.util
import inspect
import pathlib
import subprocess
import sys

import pytest

import mxrec

ROOT = pathlib.Path(__file__).resolve().parents[2]
STUB = pathlib.Path(mxrec.__file__).with_name("__init__.pyi")
HAS_MYPY = importlib.util.find_spec("mypy") is not None


def stub_functions():
  """Dotted public name -> its definition in the stub."""
  found = {}
  for node in ast.parse(STUB.read_text(encoding="utf-8")).body:
    if isinstance(node, ast.FunctionDef):
      found[node.name] = node
    elif isinstance(node, ast.ClassDef):
      found |= {f"{node.name}.{item.name}": item for item in node.body if isinstance(item, ast.FunctionDef)}
  return found


def as_text(annotation):
  """An annotation as the stub writes it."""
  text = annotation if isinstance(annotation, str) else getattr(annotation, "__name__", str(annotation))
  return ast.unparse(ast.parse(text.replace("table_lib.", "")))


def described(signature):
  """(name, kind, annotation, has a default) of each parameter, and what is returned, of a signature of the package."""
  empty = inspect.Parameter.empty
  parameters = [
    (p.name, p.kind is p.KEYWORD_ONLY, None if p.annotation is empty else as_text(p.annotation), p.default is not empty)
    for p in signature.parameters.values()
  ]
  return parameters, as_text(signature.return_annotation)


def described_stub(node):
  """The same of a definition in the stub."""
  arguments = node.args
  defaults = [None] * (len(arguments.args) - len(arguments.defaults)) + list(arguments.defaults)
  rows = [(argument, False, default) for argument, default in zip(arguments.args, defaults)]
  rows += [(argument, True, default) for argument, default in zip(arguments.kwonlyargs, arguments.kw_defaults)]
  parameters = [
    (argument.arg, keyword, ast.unparse(argument.annotation) if argument.annotation else None, default is not None)
    for argument, keyword, default in rows
  ]
  return parameters, ast.unparse(node.returns)


def test_the_stub_is_what_the_script_makes():
  done = subprocess.run(
    [sys.executable, ROOT / "scripts" / "make_stubs.py", "--check"], capture_output=True, text=True, check=False
  )
  assert done.returncode == 0, done.stderr


def test_every_signature_of_the_stub_is_that_of_the_package():
  functions = stub_functions()
  assert len(functions) > 30
  for name, node in functions.items():
    thing = mxrec
    for part in name.split("."):
      thing = inspect.getattr_static(thing, part)
    if isinstance(thing, property):
      thing = thing.fget
    elif isinstance(thing, staticmethod):
      thing = thing.__func__
    assert described_stub(node) == described(inspect.signature(thing)), name


def test_the_defaults_in_the_stub_are_those_of_the_package():
  for name, node in stub_functions().items():
    thing = mxrec
    for part in name.split("."):
      thing = inspect.getattr_static(thing, part)
    if isinstance(thing, property):
      continue
    signature = inspect.signature(getattr(thing, "__func__", thing))
    defaults = [default for default in [*node.args.defaults, *node.args.kw_defaults] if default is not None]
    real = [p.default for p in signature.parameters.values() if p.default is not p.empty]
    assert len(defaults) == len(real), name
    for default, value in zip(defaults, real):
      if isinstance(default, ast.Constant):
        assert ast.literal_eval(default) == value, name


def test_the_stub_offers_just_what_the_package_offers():
  tree = ast.parse(STUB.read_text(encoding="utf-8"))
  listed = next(ast.literal_eval(node.value) for node in tree.body if isinstance(node, ast.Assign))
  assert listed == mxrec.__all__
  for name in ("EmbeddingTable", "EmbeddingTableSaver"):
    public = {method for method in vars(getattr(mxrec, name)) if not method.startswith("_")}
    assert public == {part.split(".")[1] for part in stub_functions() if part.startswith(name + ".")} - {"__init__"}
  assert STUB.with_name("py.typed").is_file()


@pytest.mark.thorough
@pytest.mark.skipif(not HAS_MYPY, reason="mypy is not installed: make lint installs and runs it")
def test_examples_and_typing_cases_pass_the_type_checker():
  done = subprocess.run([sys.executable, "-m", "mypy"], cwd=ROOT, capture_output=True, text=True, check=False)
  assert done.returncode == 0, done.stdout
