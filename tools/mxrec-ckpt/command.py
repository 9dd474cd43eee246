#!/usr/bin/env python3
"""The command `mxrec-ckpt` of the wheel: runs the program that lies in the package, without importing TensorFlow."""

import importlib.util
import os
import pathlib
import sys


def main() -> None:
  """Becomes the program; a message and exit code 2 when it is not there."""
  package = importlib.util.find_spec("mxrec")
  if package is None or package.origin is None:
    sys.exit("mxrec-ckpt: the package mxrec is not installed for " + sys.executable)
  program = pathlib.Path(package.origin).parent / "_lib" / "mxrec-ckpt"
  try:
    os.execv(program, ["mxrec-ckpt", *sys.argv[1:]])
  except OSError as error:
    print(f"mxrec-ckpt: {program} cannot be run: {error.strerror}; install the wheel again", file=sys.stderr)
    sys.exit(2)


if __name__ == "__main__":
  main()
