"""Stands for the package `toml` where that is not installed: reading only, by Python's own tomllib."""

from __future__ import annotations

import os
import tomllib
from typing import Any

TomlDecodeError = tomllib.TOMLDecodeError


def loads(s: str) -> dict[str, Any]:
  """Parses a text; ValueError (TomlDecodeError) when it is not TOML."""
  return tomllib.loads(s)


def load(f: Any) -> dict[str, Any]:
  """Parses the file of a path, of a list of paths (later ones win), or an open text file."""
  if isinstance(f, (str, os.PathLike)):
    with open(f, encoding="utf-8") as file:
      return loads(file.read())
  if isinstance(f, list):
    return {key: value for path in f for key, value in load(path).items()}
  return loads(f.read())


def __getattr__(name: str) -> Any:
  raise AttributeError(f"toml.{name}: the package toml is not installed, and mxrec's stand-in only reads: pip install toml")
