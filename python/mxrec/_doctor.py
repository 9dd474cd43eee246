"""`mxrec doctor`: what is installed and missing here, and where a script's session options contradict the guide."""

from __future__ import annotations

import ast
import dataclasses
import importlib.metadata
import importlib.util
import json
import os
import pathlib
import platform
import sys
from collections.abc import Iterator
from typing import Any

from mxrec import _console
from mxrec._version import __version__

KEEP_ON = (
  "function_optimization",
  "constant_folding",
  "shape_optimization",
  "arithmetic_optimization",
  "loop_optimization",
  "dependency_optimization",
  "layout_optimizer",
)
SWITCH_OFF = ("remapping", "memory_optimization")
LEAVE_FALSE = ("disable_model_pruning", "disable_meta_optimizer")


@dataclasses.dataclass(frozen=True)
class Finding:
  """One line of the report.

  Attributes:
    state: "ok", "note" or "problem".
    text: what was found.
    more: why, or what to do.
    file: of a script.
    line: in it; 0: none.
  """

  state: str
  text: str
  more: str = ""
  file: str = ""
  line: int = 0


def _show(findings: list[Finding], as_json: bool) -> int:
  if as_json:
    print(json.dumps([dataclasses.asdict(finding) for finding in findings], indent=2))
  else:
    for finding in findings:
      where = f"{finding.file}:{finding.line}: " if finding.line else f"{finding.file}: " if finding.file else ""
      _console.marked(finding.state, where + finding.text, finding.more)
  return int(any(finding.state == "problem" for finding in findings))


# The installation


def installation(as_json: bool) -> int:
  """Reports on this machine and environment; exit code 1 when something needed is missing."""
  return _show(list(_look_at_installation()), as_json)


def _version_of(package: str) -> str | None:
  try:
    return importlib.metadata.version(package)
  except importlib.metadata.PackageNotFoundError:
    return None


def _look_at_installation() -> Iterator[Finding]:
  yield Finding("ok", f"mxrec {__version__} in {pathlib.Path(__file__).resolve().parent}")
  python = platform.python_version()
  if sys.version_info[:2] == (3, 11):
    yield Finding("ok", f"Python {python}")
  else:
    yield Finding("note", f"Python {python}", "tested with Python 3.11")
  yield from _look_at_machine()
  yield from _look_at_tensorflow()
  yield from _look_at_packages()
  yield from _look_at_environment()


def cpu_flags() -> set[str]:
  """The instruction set extensions of the CPU, as Linux names them; empty where they cannot be read."""
  try:
    text = pathlib.Path("/proc/cpuinfo").read_text(encoding="utf-8")
  except OSError:
    return set()
  for line in text.splitlines():
    if line.startswith(("flags", "Features")):
      return set(line.partition(":")[2].split())
  return set()


def _look_at_machine() -> Iterator[Finding]:
  machine = f"{platform.system()} {platform.machine()}"
  if (platform.system(), platform.machine()) == ("Linux", "x86_64"):
    yield Finding("ok", machine)
  else:
    yield Finding("note", machine, "tested on Linux x86_64")
  flags = cpu_flags()
  has = [flag for flag in ("avx2", "fma", "avx512f", "avx512_bf16", "amx_bf16") if flag in flags]
  count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
  text = f"{count} CPUs; {', '.join(has) or 'no known vector extension'}"
  if {"avx512_bf16", "amx_bf16"} & set(has):
    yield Finding("ok", text)
  else:
    yield Finding("ok" if "avx2" in has else "note", text, "no bfloat16 instructions: mixed precision computes in float32 here")


def _look_at_tensorflow() -> Iterator[Finding]:
  os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
  os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")
  try:
    from mxrec import _loader
  except ImportError as error:
    yield Finding("problem", str(error))
    return
  tensorflow = _loader.import_tensorflow()
  package = next((name for name in ("tensorflow-cpu", "tensorflow") if _version_of(name)), "tensorflow")
  state = "ok" if tensorflow.__version__ == "2.21.0" else "note"
  yield Finding(state, f"{package} {tensorflow.__version__}", "" if state == "ok" else "tested with 2.21.0")
  yield Finding("ok", f"op library {_loader.library_path()}")


def _look_at_packages() -> Iterator[Finding]:
  tensorflow = _version_of("tensorflow-cpu") or _version_of("tensorflow") or "2.21.0"
  series = ".".join(tensorflow.split(".")[:2])
  # module, package, pip line, what it is for, whether it is needed by `mxrec run`
  wanted = (
    ("tf_keras", "tf_keras", f"pip install --no-deps tf_keras=={series}.0", "tf.layers, tf.nn.rnn_cell and tf.keras", True),
    (
      "tensorflow_estimator",
      "tensorflow-estimator",
      "pip install --no-deps tensorflow-estimator==2.15.0",
      "tf.estimator and NPUEstimator",
      False,
    ),
    ("scipy", "scipy", "pip install scipy", "tf.contrib.opt.ScipyOptimizerInterface", False),
    ("sklearn", "scikit-learn", "pip install scikit-learn", "the metrics of many scripts", False),
    ("rich", "rich", "pip install rich", "tables of this command in colour", False),
  )
  for module, package, line, purpose, needed in wanted:
    if importlib.util.find_spec(module) is None:
      yield Finding("problem" if needed else "note", f"{package} is missing: {purpose}", f"run: {line}")
    else:
      yield Finding("ok", f"{package} {_version_of(package)}")
  if importlib.util.find_spec("npu_bridge") is None:
    yield Finding("problem", "npu_bridge is missing: migrated scripts import it", "it comes with mxrec: install the wheel again")


def _look_at_environment() -> Iterator[Finding]:
  legacy = os.environ.get("TF_USE_LEGACY_KERAS")
  if legacy not in (None, "1", "True", "true"):
    yield Finding("note", f"TF_USE_LEGACY_KERAS={legacy}", "`mxrec run` sets it to 1 for itself")
  if "MXREC_LIBRARY_PATH" in os.environ:
    yield Finding("note", f"MXREC_LIBRARY_PATH={os.environ['MXREC_LIBRARY_PATH']} replaces the op library of the package")
  preload = os.environ.get("LD_PRELOAD")
  if preload:
    yield Finding("note", f"LD_PRELOAD={preload}", "mxrec needs none")


# A script's session options


def script_config(scripts: list[str], as_json: bool) -> int:
  """Reports on the session options in scripts; exit code 1 when one contradicts the guide, 2 when a script cannot be read."""
  findings: list[Finding] = []
  for script in scripts:
    try:
      tree = ast.parse(pathlib.Path(script).read_bytes(), script)
    except (OSError, SyntaxError, ValueError) as error:
      print(f"mxrec doctor: {script}: {error}", file=sys.stderr)
      return 2
    findings += [dataclasses.replace(finding, file=script) for finding in _ScriptOptions(tree).findings()]
  return _show(findings, as_json)


def _last_name(node: ast.AST) -> str:
  if isinstance(node, ast.Attribute):
    return node.attr
  return node.id if isinstance(node, ast.Name) else ""


def _constant(node: ast.AST) -> Any:
  """The value of a literal, also inside tf.compat.as_bytes(...), bytes(...) or .encode(); None when it is not one."""
  if isinstance(node, ast.Call):
    if isinstance(node.func, ast.Attribute) and node.func.attr == "encode":
      return _constant(node.func.value)
    if _last_name(node.func) in ("as_bytes", "as_str", "as_text", "bytes", "str", "int", "bool") and node.args:
      return _constant(node.args[0])
    return None
  try:
    return ast.literal_eval(node)
  except ValueError:
    return None


def _toggle(node: ast.AST) -> str | None:
  """ "ON", "OFF" and so on for RewriterConfig.X."""
  if isinstance(node, ast.Attribute) and _last_name(node.value) in ("RewriterConfig", "Toggle", "rewriter_config_pb2"):
    return node.attr
  number = _constant(node)
  if isinstance(number, int) and not isinstance(number, bool):
    return {0: "DEFAULT", 1: "ON", 2: "OFF", 3: "AGGRESSIVE"}.get(number)
  return None


class _ScriptOptions(ast.NodeVisitor):
  """Collects what a script says about sessions."""

  def __init__(self, tree: ast.AST):
    self.toggles: dict[str, list[tuple[str, int]]] = {}
    self.flags: dict[str, list[tuple[bool, int]]] = {}
    self.optimizer_line = 0
    self.star_import_line = 0
    self.device_line = 0
    self.soft_placement: list[tuple[bool, int]] = []
    self.jit: list[tuple[str, int]] = []
    self.options: list[tuple[str, str, Any, int]] = []  # key, field, value or None, line
    self.visit(tree)

  def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
    if (node.module or "").split(".")[0] in ("npu_bridge", "npu_device") and (node.module or "").endswith("npu_init"):
      self.star_import_line = self.star_import_line or node.lineno

  def visit_Assign(self, node: ast.Assign) -> None:
    for target in node.targets:
      if isinstance(target, ast.Attribute):
        self._assigned(target, node.value, node.lineno)
    self.generic_visit(node)

  def _assigned(self, target: ast.Attribute, value: ast.AST, line: int) -> None:
    if isinstance(target.value, ast.Subscript) and _last_name(target.value.value) == "parameter_map":
      key = _constant(target.value.slice)
      if isinstance(key, str):
        self.options.append((key, target.attr, _constant(value), line))
    elif target.attr == "name" and _constant(value) in ("NpuOptimizer", b"NpuOptimizer"):
      self.optimizer_line = self.optimizer_line or line
    else:
      self._set(target.attr, value, line)

  def _set(self, name: str, value: ast.AST, line: int) -> None:
    if name in SWITCH_OFF or name in KEEP_ON:
      toggle = _toggle(value)
      if toggle is not None:
        self.toggles.setdefault(name, []).append((toggle, line))
    elif name in LEAVE_FALSE and isinstance(_constant(value), bool):
      self.flags.setdefault(name, []).append((_constant(value), line))
    elif name == "allow_soft_placement" and isinstance(_constant(value), bool):
      self.soft_placement.append((_constant(value), line))
    elif name == "global_jit_level":
      self.jit.append((_last_name(value), line))

  def visit_Call(self, node: ast.Call) -> None:
    if _last_name(node.func) in ("RewriterConfig", "ConfigProto", "OptimizerOptions"):
      for keyword in node.keywords:
        if keyword.arg:
          self._set(keyword.arg, keyword.value, keyword.value.lineno)
    elif _last_name(node.func) == "device" and isinstance(node.func, ast.Attribute):
      self.device_line = self.device_line or node.lineno
    self.generic_visit(node)

  def findings(self) -> list[Finding]:
    """The report on the script."""
    found: list[Finding] = []
    is_migrated = bool(self.optimizer_line or self.star_import_line)
    if not is_migrated:
      found.append(Finding("note", "no session with NpuOptimizer and no import of npu_init: nothing of the guide to check"))
      return found
    found += self._switched_off()
    for name in KEEP_ON:
      for toggle, line in self.toggles.get(name, []):
        if toggle == "OFF":
          found.append(Finding("problem", f"{name} is OFF", "the guide leaves it on in a device run: remove the line", line=line))
    for name in LEAVE_FALSE:
      for value, line in self.flags.get(name, []):
        if value:
          why = (
            "NpuOptimizer never runs without the meta optimizer: remove the line"
            if name == "disable_meta_optimizer"
            else "the guide leaves it off: the session would keep, and run, ops that no fetch needs"
          )
          found.append(Finding("problem", f"{name} is True", why, line=line))
    for level, line in self.jit:
      if level.startswith("ON"):
        found.append(Finding("note", f"global_jit_level is {level}", "a session with NpuOptimizer switches it OFF", line=line))
    found += self._placement()
    found += self._parameter_map()
    if all(finding.state == "ok" for finding in found):
      found.append(Finding("ok", "session options are as the guide asks"))
    return found

  def _switched_off(self) -> Iterator[Finding]:
    for name in SWITCH_OFF:
      said = self.toggles.get(name, [])
      wrong = [(toggle, line) for toggle, line in said if toggle != "OFF"]
      # The session constructors of npu_init switch remapping off, and memory_optimization when they add NpuOptimizer themselves.
      corrected = self.star_import_line and (name == "remapping" or not self.optimizer_line)
      line_of_code = f"config.graph_options.rewrite_options.{name} = RewriterConfig.OFF"
      for toggle, line in wrong:
        more = "npu_init's session switches it off all the same" if corrected else f"the guide switches it off: {line_of_code}"
        yield Finding("note" if corrected else "problem", f"{name} is {toggle}", more, line=line)
      if not said and self.optimizer_line and not corrected:
        yield Finding("problem", f"NpuOptimizer is used, and {name} is left on", f"add: {line_of_code}", line=self.optimizer_line)

  def _placement(self) -> Iterator[Finding]:
    for value, line in self.soft_placement:
      if not value and self.star_import_line:
        yield Finding("note", "allow_soft_placement is False", "npu_init's session sets it to True", line=line)
      elif not value and self.device_line:
        yield Finding(
          "problem",
          f"allow_soft_placement is False, and tf.device is used (line {self.device_line})",
          "ops whose device is not there fail: set allow_soft_placement=True",
          line=line,
        )
    if self.device_line and not self.soft_placement and not self.star_import_line:
      more = "the guide adds it to the ConfigProto"
      yield Finding("problem", "tf.device is used without allow_soft_placement=True", more, line=self.device_line)

  def _parameter_map(self) -> Iterator[Finding]:
    if not self.options:
      return
    try:
      os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
      from npu_bridge import _options
      from tensorflow.core.protobuf import config_pb2
      from tensorflow.core.protobuf.rewriter_config_pb2 import RewriterConfig
    except ImportError as error:
      yield Finding("note", f"the keys of the parameter_map are not checked: {error}")
      return
    known = {row["key"]: row for row in _options.table()}
    config = config_pb2.ConfigProto()
    config.graph_options.rewrite_options.remapping = RewriterConfig.OFF  # the script's own switches have been looked at
    config.graph_options.rewrite_options.memory_optimization = RewriterConfig.NO_MEM_OPT
    entry = config.graph_options.rewrite_options.custom_optimizers.add(name="NpuOptimizer")
    for key, field, value, line in self.options:
      row = known.get(key)
      if row is None:
        more = f'nearest: "{_options.nearest(key)}"; without effect'
        yield Finding("problem", f'parameter_map["{key}"] is no known key', more, line=line)
        continue
      if field != row["field"]:
        yield Finding("problem", f'parameter_map["{key}"] has the field .{row["field"]}, the script sets .{field}', line=line)
        continue
      if value is not None:
        one = config_pb2.ConfigProto()
        for target in (entry, one.graph_options.rewrite_options.custom_optimizers.add(name="NpuOptimizer")):
          typed = value.encode() if field == "s" and isinstance(value, str) else value
          try:
            setattr(target.parameter_map[key], field, typed)
          except (TypeError, ValueError) as error:
            yield Finding("problem", f'parameter_map["{key}"].{field} = {value!r}: {error}', line=line)
            break
      if row["policy"] != "act":
        effect = "checked, and has no effect here" if row["policy"] == "valid" else "has no effect here"
        yield Finding("ok", f'parameter_map["{key}"] {effect}', row["meaning"], line=line)
    try:
      _options.validate(config)
    except ValueError as error:
      lines = [line for key, _, _, line in self.options if f"'{key}'" in str(error)]
      yield Finding("problem", str(error), line=lines[0] if lines else self.options[0][3])
