"""Printing of the command line: with rich where it is installed, in plain text elsewhere."""

from __future__ import annotations

import shutil
import sys
import textwrap
from collections.abc import Iterable, Sequence
from typing import Any


def _rich() -> Any:
  try:
    from rich import console
  except ImportError:
    return None
  return console.Console(highlight=False, soft_wrap=not sys.stdout.isatty())


def table(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
  """Prints a table; the last column gets what width is left."""
  rows = [[str(cell) for cell in row] for row in rows]
  console = _rich()
  if console is not None and sys.stdout.isatty():
    from rich import box
    from rich import table as rich_table
    from rich.text import Text

    made = rich_table.Table(title=title, box=box.SIMPLE_HEAD, title_justify="left")
    for index, column in enumerate(columns):
      made.add_column(column, overflow="fold", no_wrap=index == 0, ratio=None)
    for row in rows:
      made.add_row(*(Text(cell) for cell in row))
    console.print(made)
    return
  widths = [max(len(column), *(len(row[index]) for row in rows)) if rows else len(column) for index, column in enumerate(columns)]
  print(title)
  for row in (list(columns), *rows):
    print("  " + "  ".join(cell.ljust(width) for cell, width in zip(row, [*widths[:-1], 0])).rstrip())


def marked(state: str, text: str, more: str = "") -> None:
  """One line "ok", "note" or "PROBLEM" and a text, with a second line of what to do."""
  colours = {"ok": "green", "note": "yellow", "problem": "bold red"}
  word = state.upper() if state == "problem" else state
  console = _rich()
  if console is not None and sys.stdout.isatty():
    from rich.text import Text

    console.print(Text.assemble((f"{word:8}", colours[state]), text))
  else:
    print(f"{word:8}{text}")
  width = max(40, shutil.get_terminal_size((132, 24)).columns - 10)
  for line in textwrap.wrap(more, width, break_long_words=False, break_on_hyphens=False):
    print(f"          {line}")
