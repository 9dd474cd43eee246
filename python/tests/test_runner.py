"""`mxrec run` behaves as `python` does: arguments, paths, tracebacks, exit codes, Ctrl-C; and what is its own."""

import os
import pathlib
import re
import signal
import subprocess
import sys
import textwrap
import time

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
MXREC = [sys.executable, "-m", "mxrec", "run"]
DEADLINE = 240


def files(folder, **sources):
  for name, source in sources.items():
    path = folder / (name.replace("__", "/") + ".py" if not name.startswith("__") else name + ".py")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(textwrap.dedent(source), encoding="utf-8")


def call(command, folder, text="", **environment):
  return subprocess.run(
    [str(word) for word in command],
    cwd=folder,
    input=text,
    capture_output=True,
    text=True,
    timeout=DEADLINE,
    check=False,
    env={**os.environ, **environment},
  )


def both(folder, *words, text=""):
  """The same by python and by mxrec run."""
  return call([sys.executable, *words], folder, text), call([*MXREC, *words], folder, text)


def same(python, ours):
  assert (ours.returncode, ours.stdout, ours.stderr) == (python.returncode, python.stdout, python.stderr)


SURROUNDINGS = """
  import os, sys, pickle
  import beside
  class Thing:
    pass
  print(sys.argv, __name__, __file__, __package__, __spec__ and __spec__.name, os.getcwd(), sys.path[0], __doc__)
  print(sys.modules["__main__"].Thing is Thing, pickle.loads(pickle.dumps(Thing())).__class__.__module__)
  print(sys.stdin.read(), input.__module__, beside.where, __builtins__.__name__)
"""


def test_a_script_finds_what_python_gives_it(tmp_path):
  files(tmp_path, inner__script='"""Its doc."""\n' + textwrap.dedent(SURROUNDINGS), inner__beside="where = __file__, __name__")
  python, ours = both(tmp_path, "inner/script.py", "--help", "-m", "a b", "--", "--tf-version", text="some\ninput")
  assert python.returncode == 0, python.stderr
  same(python, ours)


def test_a_module_finds_what_python_gives_it(tmp_path):
  source = textwrap.dedent(SURROUNDINGS).replace("import beside", "from . import beside")
  files(tmp_path, pack__main=source, pack__beside="where = __name__", pack____init__="")
  (tmp_path / "pack" / "__init__.py").touch()
  (tmp_path / "pack" / "__main__.py").write_text("print(__name__, __package__)\nfrom . import beside\n", encoding="utf-8")
  python, ours = both(tmp_path, "-m", "pack.main", "x", "-y", text="z")
  assert python.returncode == 0, python.stderr
  same(python, ours)
  same(*both(tmp_path, "-m", "pack"))


@pytest.mark.parametrize(
  ("source", "code"),
  [
    ("import sys\nsys.exit(7)", 7),
    ("import sys\nsys.exit('said')", 1),
    ("raise SystemExit", 0),
    ("import os\nos._exit(9)", 9),
    ("import atexit\natexit.register(print, 'late')\nprint('early')", 0),
    ("def f(n):\n  return 1 / n\ntry:\n  f(0)\nexcept ZeroDivisionError as error:\n  raise ValueError('text') from error", 1),
    ("import beside\nbeside.late()", 1),
    ("import beside_that_fails", 1),
    ("import no_such_module", 1),
    ("x = (\n", 1),
    ("import sys\nsys.excepthook = lambda kind, error, trace: print(kind, error, trace.tb_lineno, trace.tb_next)\n1 / 0", 1),
    ("import threading\nthread = threading.Thread(target=lambda: 1 / 0)\nthread.start()\nthread.join()", 0),
    ("import random\nprint(sorted(random.sample(range(5), 5)))", 0),
  ],
)
def test_the_end_of_a_script_is_pythons(tmp_path, source, code):
  late = "def late():\n  import json\n  json.loads('[')\n"
  files(tmp_path, script=source, beside=late, beside_that_fails="import beside\n\nbeside.nothing\n")
  python, ours = both(tmp_path, "script.py")
  assert python.returncode == code
  strip = lambda text: re.sub(r"0x[0-9a-f]+", "0x", text)
  assert strip(ours.stderr) == strip(python.stderr)
  same_rest = (ours.returncode, strip(ours.stdout))
  assert same_rest == (python.returncode, strip(python.stdout))


CATCHES = "try:\n  time.sleep(60)\nexcept KeyboardInterrupt:\n  print('caught')\n  raise SystemExit(3)\n"


@pytest.mark.parametrize("handler", ["", CATCHES])
def test_ctrl_c_ends_it_as_it_ends_python(tmp_path, handler):
  (tmp_path / "script.py").write_text(f"import time\nprint('ready', flush=True)\n{handler}time.sleep(60)\n", encoding="utf-8")
  with subprocess.Popen(
    [*MXREC, "script.py"],
    cwd=tmp_path,
    stdout=subprocess.PIPE,
    stderr=subprocess.PIPE,
    text=True,
    start_new_session=True,
    # A shell starts what it puts into the background without SIGINT, and these tests may be there.
    preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
  ) as process:
    try:
      assert process.stdout.readline() == "ready\n"
      time.sleep(0.2)
      process.send_signal(signal.SIGINT)
      out, error = process.communicate(timeout=60)
    finally:
      process.kill()
  if handler:
    assert (process.returncode, out, error) == (3, "caught\n", "")
  else:
    assert process.returncode == -signal.SIGINT
    where = r'Traceback .*\n  File ".*script.py", line 3, in <module>\n.*sleep.*\n'
    assert re.fullmatch(where + r"(.*\n)*KeyboardInterrupt\n", error), error


def test_python_2_source_is_told_so(tmp_path):
  (tmp_path / "script.py").write_text('print "x"\n', encoding="utf-8")
  done = call([*MXREC, "script.py"], tmp_path)
  assert done.returncode == 1 and "SyntaxError" in done.stderr and "Python 2 source" in done.stderr


@pytest.mark.parametrize(
  ("words", "code", "message"),
  [
    (["nothing.py"], 2, "can't open file"),
    (["."], 2, "is a folder"),
    (["-m", "no_such_package.module"], 1, "No module named no_such_package"),
    ([], 2, "run needs a script"),
    (["--own", "nowhere", "script.py"], 2, "--own nowhere: no such folder"),
  ],
)
def test_nothing_to_run_is_said_in_one_line(tmp_path, words, code, message):
  (tmp_path / "script.py").touch()
  done = call([*MXREC, *words], tmp_path)
  assert done.returncode == code and message in done.stderr and "Traceback" not in done.stderr, done.stderr


PROGRAM = """
  import argparse
  import pickle
  import sys
  import layers_of_mine
  import numpy as np
  import tensorflow as tf
  from common_of_mine import version

  parser = argparse.ArgumentParser()
  parser.add_argument("--steps", type=int)
  flags = tf.app.flags
  flags.DEFINE_string("name", "x", "a name")

  def main(argv):
    print("version", tf.__version__, version, sys.modules["tensorflow"].__version__[0], argv)
    tf.set_random_seed(1)
    np.random.seed(np.int(3))
    x = tf.placeholder(tf.float32, [None, 4])
    loss = layers_of_mine.loss(x)
    train = tf.train.AdamOptimizer(0.1).minimize(loss)
    dataset = tf.data.Dataset.from_tensor_slices(np.ones([8, 4], np.float32)).map(lambda row: row * 2.0).batch(8).repeat()
    batch = dataset.make_one_shot_iterator().get_next()
    with tf.Session() as sess:
      sess.run(tf.global_variables_initializer())
      losses = [sess.run([loss, train], {x: sess.run(batch)})[0] for _ in range(20)]
    print("lower", losses[-1] < losses[0], flags.FLAGS.name)
    import multiprocessing
    print(multiprocessing.get_context("fork").Pool(1).map(layers_of_mine.double, [4]))
    raise RuntimeError("the end")

  if __name__ == "__main__":
    tf.app.run()
"""


def test_a_program_in_several_files_trains(tmp_path):
  files(
    tmp_path,
    program__train=PROGRAM,
    program__layers_of_mine="""
      import tensorflow as tf
      from tensorflow.contrib.layers import l2_regularizer

      def loss(x):
        y = tf.layers.dense(x, 8, activation="relu", kernel_regularizer=l2_regularizer(0.01))
        return tf.reduce_mean(tf.square(tf.layers.dense(y, 1) - 1.0)) + tf.losses.get_regularization_loss()

      def double(n):
        return 2 * n
    """,
    common__common_of_mine="import tensorflow as tf\nversion = tf.__version__\n",
  )
  done = call([*MXREC, "--tf-version", "1.14.0", "--own", "common", "--chdir", "program/train.py", "--name=y", "rest"], tmp_path)
  assert "Python 2" not in done.stderr
  assert done.stdout.splitlines() == ["version 1.14.0 1.14.0 2 ['program/train.py', 'rest']", "lower True y", "[8]"], done.stderr
  assert done.returncode == 1
  error = done.stderr.splitlines()
  line = PROGRAM.splitlines().index('    raise RuntimeError("the end")') + 1
  assert f'  File "{tmp_path}/program/train.py", line {line}, in main' in error
  # Where TF_CPP_MIN_LOG_LEVEL lets TensorFlow's notes through, they begin with a line of Abseil's.
  ours = [text for text in error if not text.startswith("WARNING: All log messages before absl::InitializeLog()")]
  assert not [text for text in ours if "mxrec/tf1" in text or "WARNING" in text or "UserWarning" in text], done.stderr
  (last,) = [text for text in error if text.startswith("mxrec run: ")]
  supplied = "supplied beyond TensorFlow: tf.contrib.layers.l2_regularizer"
  assert re.match(rf"mxrec run: \d+ deprecation notices hidden .*; {supplied}$", last)


def test_deprecations_are_shown_when_asked_for_and_quiet_is_quiet(tmp_path):
  files(tmp_path, script="import tensorflow as tf\nprint(tf.layers.dense(tf.ones([1, 2]), 1).shape)\n")
  done = call([*MXREC, "--quiet", "--show-deprecations", "script.py"], tmp_path)
  assert done.returncode == 0 and "deprecat" in done.stderr and "mxrec run:" not in done.stderr
