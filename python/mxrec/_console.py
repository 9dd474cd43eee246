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
  return console.Console(highlight=False)


def _wrapped(text: str, indent: int) -> None:
  """Prints a paragraph within the width of the terminal."""
  width = max(40, shutil.get_terminal_size((132, 24)).columns - 1)
  for line in textwrap.wrap(text, width - indent, break_long_words=False, break_on_hyphens=False):
    print(" " * indent + line)


def table(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
  """Prints a table on a terminal; elsewhere, where lines cannot be folded into columns, each row as a paragraph."""
  rows = [[str(cell) for cell in row] for row in rows]
  console = _rich() if sys.stdout.isatty() else None
  if console is None:
    print(title)
    for first, *others in rows:
      print(f"\n{first}")
      for column, cell in zip(columns[1:], others):
        _wrapped(f"{column}: {cell}", 4)
    return
  from rich import box
  from rich import table as rich_table
  from rich.text import Text

  made = rich_table.Table(title=title, box=box.SIMPLE_HEAD, title_justify="left")
  for index, column in enumerate(columns):
    made.add_column(column, overflow="fold", no_wrap=index == 0)
  for row in rows:
    made.add_row(*(Text(cell) for cell in row))
  console.print(made)


def marked(state: str, text: str, more: str = "") -> None:
  """One line "ok", "note" or "PROBLEM" and a text, with a second line of what to do."""
  colours = {"ok": "green", "note": "yellow", "problem": "bold red"}
  word = state.upper() if state == "problem" else state
  console = _rich() if sys.stdout.isatty() else None
  if console is not None:
    from rich.text import Text

    console.print(Text.assemble((f"{word:8}", colours[state]), text))
  else:
    print(f"{word:8}{text}")
  _wrapped(more, 10)
