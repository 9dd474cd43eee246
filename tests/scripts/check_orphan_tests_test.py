"""check_orphan_tests.py finds test files on disk and names those that nothing runs."""

import importlib.util
import pathlib

ROOT = pathlib.Path(__file__).resolve().parents[2]
_spec = importlib.util.spec_from_file_location("check_orphan_tests", ROOT / "scripts/check_orphan_tests.py")
check_orphan_tests = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(check_orphan_tests)


def test_files_are_found_by_name_and_build_folders_are_skipped(tmp_path):
  for name in (
    "mxrec/table/row_test.cc",
    "mxrec/table/row.cc",
    "fuzz/block_fuzz.cc",
    "python/tests/test_ops.py",
    "tests/wheel/wheel_test.py",
    "python/mxrec/testing.py",
    "build/release/gone_test.cc",
    ".venv/lib/test_x.py",
  ):
    path = tmp_path / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
  cpp, python = check_orphan_tests.files_on_disk(tmp_path)
  assert cpp == ["fuzz/block_fuzz.cc", "mxrec/table/row_test.cc"]
  assert python == ["python/tests/test_ops.py", "tests/wheel/wheel_test.py"]


def test_ctest_runs_the_sources_of_programs_that_it_starts(tmp_path):
  def compiled(name, target):
    return {"file": str(tmp_path / name), "command": f"g++ -o mxrec/CMakeFiles/{target}.dir/{name}.o -c {name}"}

  commands = [
    compiled("a/row_test.cc", "row_test"),
    compiled("b/commands_test.cc", "tool_commands_test"),
    compiled("a/old_test.cc", "old_test"),
  ]
  tests = [
    {"name": "row_test", "command": ["/build/row_test"]},
    {"name": "tool", "command": ["/build/tool_commands_test"]},
    {"name": "old_test"},
  ]
  assert check_orphan_tests.files_that_ctest_runs(tmp_path, tests, commands) == {"a/row_test.cc", "b/commands_test.cc"}


def test_a_file_that_ctest_does_not_run_is_named():
  (problem,) = check_orphan_tests.orphans(["a/row_test.cc", "a/slab_test.cc"], {"a/row_test.cc"}, [], set())
  assert problem.startswith("a/slab_test.cc: no program known to ctest")


def test_a_file_that_pytest_does_not_collect_is_named():
  (problem,) = check_orphan_tests.orphans([], set(), ["t/test_a.py", "t/test_b.py"], {"t/test_a.py"})
  assert problem == "t/test_b.py: pytest collects nothing from it"
