"""docs/reference/npu_bridge.md is what the docstrings say, and every public name has one."""

import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "scripts" / "make_npu_reference.py"
PAGE = ROOT / "docs" / "reference" / "npu_bridge.md"


def test_the_reference_is_up_to_date():
  done = subprocess.run([sys.executable, SCRIPT, "--check"], capture_output=True, text=True, check=False, timeout=60)
  assert done.returncode == 0, done.stderr


def test_every_name_has_a_text():
  entries = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if line.lstrip().startswith("- `")]
  empty = [line for line in entries if line.endswith("`: ")]
  assert not empty


def test_the_reference_names_what_scripts_use():
  text = PAGE.read_text(encoding="utf-8")
  names = "npu_config_proto set_iteration_per_loop allreduce create_group unpatch_sessions dropout open"
  for name in names.split():
    assert f"- `{name}(" in text, name


def test_a_class_shows_the_arguments_of_the_constructor_that_it_inherits():
  text = PAGE.read_text(encoding="utf-8")
  for name in ("DynamicGRUV2", "DynamicAUGRU"):
    assert f"- `{name}(hidden_size, dtype, direction='UNIDIRECTIONAL', " in text, name
