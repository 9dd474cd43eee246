#!/usr/bin/env python3
"""Writes docs/reference/parameter_map.md from the table of keys in the op library.

Usage: make_parameter_map.py [--check]. With --check it writes nothing and exits with 1 when the page is stale.
"""

from __future__ import annotations

import argparse
import pathlib
import sys
from typing import Any

ROOT = pathlib.Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "reference" / "parameter_map.md"
HEAD = """# The `parameter_map` of `NpuOptimizer`

Written by `scripts/make_parameter_map.py` from the table in `tf/graph/npu_option_table.cc`; `mxrec options` prints the same rows.

```
config = tf.ConfigProto()
custom_op = config.graph_options.rewrite_options.custom_optimizers.add()
custom_op.name = "NpuOptimizer"
custom_op.parameter_map["iterations_per_loop"].i = 10
custom_op.parameter_map["precision_mode_v2"].s = tf.compat.as_bytes("origin")
```

The letter is the field of the value: b bool, i int, s bytes. What happens to a key:

- **act**: it does what its row says. **valid**: its value is checked and has no effect (where the row names none), with one line in
  the log. **accept**: whatever it says has no effect, with one line in the log.
- A value of an act or valid key that is not allowed, or stands in another field, makes the session's constructor raise an error
  which is a `ValueError` and a `tf.errors.InvalidArgumentError`; it names key, value and what is allowed. Where a session is made
  without npu_bridge, the first run fails with that `InvalidArgumentError`.
- An unknown key is ignored, with one line in the log that names the nearest known key.

Lines come once in a process. The graph pass runs in local sessions and behind `tf.train.Server`, on graphs of any size:
npu_bridge sets `rewrite_options.min_graph_nodes = -1` in the copy of the configuration that TensorFlow gets. Functions of the
graph's library (bodies of data set maps, v2 loops and branches that are not inlined) are left as they are.

With `NpuOptimizer` in a configuration, `remapping` and `memory_optimization` of its rewrite options should be OFF,
`function_optimization`, `constant_folding`, `shape_optimization`, `arithmetic_optimization`, `loop_optimization`,
`dependency_optimization` and `layout_optimizer` on, and `disable_model_pruning` false. A line in the log names what differs;
results are the same.

Mixed precision is TensorFlow's own pass (`auto_mixed_precision_onednn_bfloat16`). It needs a CPU with bfloat16 arithmetic (AVX-512
BF16 on x86) and oneDNN; the environment variable `MXREC_BFLOAT16` (1 or 0) takes the place of the look at the CPU. Ops built in
`keep_dtype_scope`, and what is fetched or fed, keep their types.
"""


def cell(text: str) -> str:
  """Text for a cell of a table."""
  return text.replace("|", "\\|")


def render(rows: list[dict[str, Any]]) -> str:
  """The whole page from the rows of npu_bridge._options.table()."""
  parts, group = [HEAD], None
  for row in rows:
    if row["group"] != group:
      group = row["group"]
      parts.append(f"\n## {group}\n\n| key | field | allowed | default | policy | meaning here |\n|---|---|---|---|---|---|\n")
    allowed = ", ".join(f"`{word}`" for word in row["words"]) if row["words"] else cell(row["allowed"])
    if row["words"] and row["allowed"] != ", ".join(row["words"]):
      allowed += cell(row["allowed"].removeprefix(", ".join(row["words"])))
    cells = (f"`{row['key']}`", row["field"], allowed, cell(row["default"]), row["policy"], cell(row["meaning"]))
    parts.append("| " + " | ".join(cells) + " |\n")
  return "".join(parts)


def main() -> int:
  """Writes the page, or compares it."""
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument("--check", action="store_true", help="write nothing; exit 1 when the page on disk is stale")
  args = parser.parse_args()
  sys.path.insert(0, str(ROOT / "python"))
  from npu_bridge import _options

  text = render(_options.table())
  if not args.check:
    PAGE.parent.mkdir(parents=True, exist_ok=True)
    PAGE.write_text(text, encoding="utf-8")
    return 0
  if not PAGE.is_file() or PAGE.read_text(encoding="utf-8") != text:
    print("docs/reference/parameter_map.md does not match the table: run scripts/make_parameter_map.py", file=sys.stderr)
    return 1
  return 0


if __name__ == "__main__":
  sys.exit(main())
