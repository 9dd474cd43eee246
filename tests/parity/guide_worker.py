"""Runs scripts, each in a process of its own that starts with TensorFlow imported, and prints how they ended as JSON.

usage: guide_worker.py SECONDS SCRIPT...
Output: {script: [exit code, what it wrote]}. Importing TensorFlow costs seconds, so it is done once; the process is forked before
anything of TensorFlow has run.
"""

import json
import os
import pathlib
import runpy
import signal
import sys
import tempfile
import time

os.environ["TF_USE_LEGACY_KERAS"] = "1"
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent.parent / "python"))

import tensorflow.compat.v1  # noqa: F401


def start(script, output):
  """Forks a process that runs `script` in its own folder; its pid."""
  pid = os.fork()
  if pid:
    return pid
  os.dup2(output.fileno(), 1)
  os.dup2(output.fileno(), 2)
  os.chdir(script.parent)
  sys.argv = [str(script)]
  code = 0
  try:
    runpy.run_path(str(script), run_name="__main__")
  except BaseException:  # what a script raises is its result
    import traceback

    traceback.print_exc()
    code = 1
  sys.stdout.flush()
  sys.stderr.flush()
  os._exit(code)


def wait(pid, deadline):
  """Exit code of the process, which is killed at the deadline."""
  while time.monotonic() < deadline:
    done, status = os.waitpid(pid, os.WNOHANG)
    if done:
      return os.waitstatus_to_exitcode(status)
    time.sleep(0.05)
  os.kill(pid, signal.SIGKILL)
  return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def main():
  results = {}
  seconds = float(sys.argv[1])
  for script in map(pathlib.Path, sys.argv[2:]):
    with tempfile.TemporaryFile("w+") as output:
      code = wait(start(script, output), time.monotonic() + seconds)
      output.seek(0)
      results[str(script)] = [code, output.read()]
  json.dump(results, sys.stdout)


if __name__ == "__main__":
  main()
