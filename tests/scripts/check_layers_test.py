"""check_layers.py accepts what the layer list allows and names everything else."""

import importlib.util
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "scripts/check_layers.py"
_spec = importlib.util.spec_from_file_location("check_layers", SCRIPT)
check_layers = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(check_layers)

LIST = """
<!-- layers: begin -->
```
mxrec/base/   status          <- std
mxrec/io/     files           <- base
mxrec/table/  rows            <- base
mxrec/ckpt/   save, load      <- io table
tf/           adapters        <- ckpt
tf/kernels/   kernels         <- tf
tests/        everything      <- any
```
<!-- layers: end -->
"""


@pytest.fixture
def layers():
  return check_layers.read_layers(LIST)


def test_a_folder_may_include_itself_and_everything_below_what_it_names(layers):
  text = '#include "mxrec/ckpt/reader.h"\n#include "mxrec/table/table.h"\n#include "mxrec/base/status.h"\n#include <vector>\n'
  assert check_layers.check_file("mxrec/ckpt/reader.cc", text, layers) == []


def test_an_upward_include_is_named_with_file_and_line(layers):
  (problem,) = check_layers.check_file("mxrec/base/status.cc", '#include <string>\n#include "mxrec/io/env.h"\n', layers)
  assert problem == "mxrec/base/status.cc:2: mxrec/base/ may not include mxrec/io/ (mxrec/io/env.h)"


def test_a_sideways_include_is_refused(layers):
  assert check_layers.check_file("mxrec/table/table.cc", '#include "mxrec/io/env.h"', layers)


def test_a_subfolder_follows_the_rule_of_its_folder(layers):
  assert check_layers.check_file("mxrec/ckpt/format/block.cc", '#include "mxrec/table/table.h"', layers) == []
  assert check_layers.check_file("mxrec/table/internal/x.h", '#include "mxrec/ckpt/format/block.h"', layers)


@pytest.mark.parametrize("include", ["<tensorflow/core/framework/op.h>", '"tensorflow/core/framework/op.h"', "<Python.h>"])
def test_the_engine_sees_neither_tensorflow_nor_python(layers, include):
  assert check_layers.check_file("mxrec/table/table.cc", f"#include {include}\n", layers)


def test_tensorflow_is_allowed_under_tf(layers):
  assert check_layers.check_file("tf/kernels/lookup.cc", '#include "tensorflow/core/framework/op.h"\n', layers) == []


def test_paths_are_written_from_the_top(layers):
  assert check_layers.check_file("mxrec/table/table.cc", '#include "table.h"\n', layers)


def test_a_folder_that_no_line_covers_is_named(layers):
  assert check_layers.check_file("mxrec/new/x.cc", "", layers) == [
    "mxrec/new/x.cc: no line of docs/architecture.md covers this folder"
  ]


def test_tests_may_include_anything(layers):
  assert check_layers.check_file("tests/all_test.cc", '#include "mxrec/ckpt/reader.h"\n#include "tf/a.h"\n', layers) == []


@pytest.mark.parametrize(
  ("text", "message"),
  [
    ("no block", "no block between"),
    (LIST.replace("<- io table", "<- io nothing"), "names the folder 'nothing'"),
    (LIST.replace("files           <- base", "files           <- ckpt"), "circle"),
    (LIST.replace("mxrec/io/     files           <- base", "mxrec/io/ files"), "expected 'folder/"),
  ],
)
def test_a_wrong_list_is_an_error_not_a_pass(text, message):
  with pytest.raises(check_layers.LayerListError, match=message):
    check_layers.read_layers(text)


def test_the_program_fails_on_a_tree_with_an_upward_include(tmp_path):
  (tmp_path / "docs").mkdir()
  (tmp_path / "docs/architecture.md").write_text(LIST, encoding="utf-8")
  (tmp_path / "mxrec/base").mkdir(parents=True)
  source = tmp_path / "mxrec/base/status.cc"
  source.write_text('#include "mxrec/base/status.h"\n', encoding="utf-8")
  command = [sys.executable, str(SCRIPT), str(tmp_path)]
  assert subprocess.run(command, check=False).returncode == 0
  source.write_text('#include "mxrec/table/table.h"\n', encoding="utf-8")
  done = subprocess.run(command, check=False, capture_output=True, text=True)
  assert done.returncode == 1
  assert "mxrec/base/status.cc:1" in done.stderr
