"""The code of the guide's chapters on sess.run runs as it is written (G-1, G-8 ... G-25, G-47, G-48, G-51).

The guide is no part of this tree: without it beside the tree these tests are skipped. The blocks that begin with the star import or
are whole scripts run alone; a fragment runs after the lines that it needs, given here.
"""

import json
import pathlib
import re
import subprocess
import sys

import pytest

HERE = pathlib.Path(__file__).resolve().parent
GUIDE = HERE.parent.parent.parent / "shared" / "spec" / "guide.md"
HEADER = "import tensorflow.compat.v1 as tf\ntf.disable_v2_behavior()\n"
STAR = "from npu_bridge.npu_init import *\n"
CUSTOM_OP = (
  STAR
  + """config = npu_config_proto()
custom_op = config.graph_options.rewrite_options.custom_optimizers[0]
"""
)
RUN = """
with tf.Session(config=config) as sess:
  w = tf.get_variable("w", initializer=tf.ones([2, 1]))
  loss = tf.reduce_sum(tf.matmul(tf.ones([3, 2]), w))
  train = tf.train.GradientDescentOptimizer(0.1).minimize(loss)
  sess.run(tf.global_variables_initializer())
  print(sess.run([loss, train])[0])
"""
TOML = "[mxrec]\nuse_ranktable = false\n"

# Heading: for each of its Python blocks (before, after) what makes a script of it, or None for one that another test runs.
CHAPTERS = {
  "2.2 Header": [("", "assert npu_ops and hccl_ops and RewriterConfig and get_rank_size() == 1\n")],
  "2.3 Data preprocessing": [("", ""), ("", "assert num_written_lines == 10\n")],
  "2.4 Model, loss, gradient update": [
    ("", "assert abs((kept > 0).mean() - 0.5) < 0.01 and kept.max() == 2\n"),
    ("", ""),
    ("", "assert layers.shape == (5,)\n"),
    ("", ""),
  ],
  "2.5 Making a session and initialising resources": [("", ""), ("", "assert train_batches_per_epoch == 4\n")],
  "2.6 Training": [("", "assert train_loss < 2\n")],
  "2.7 Closing the session": [("", "")],
  "4.2.1 Check the migration": [(CUSTOM_OP, RUN), (STAR, "assert config.session_config is None or config\n")],
  "4.2.2 Remove randomness": [(CUSTOM_OP, RUN), (STAR, ""), ("", "")],
}

pytestmark = pytest.mark.thorough


def blocks_of(heading):
  """The Python blocks below a heading, without the indent of a list."""
  text = GUIDE.read_text(encoding="utf-8")
  begin = re.search(rf"^#+ {re.escape(heading)}$", text, re.MULTILINE).end()
  after = re.compile(r"^#{1,3} ", re.MULTILINE).search(text, begin)
  part = text[begin : after.start() if after else len(text)]
  found = []
  for match in re.finditer(r"^( *)```python\n(.*?)^ *```$", part, re.DOTALL | re.MULTILINE):
    indent = len(match.group(1))
    found.append("".join(line[indent:] if line.strip() else line for line in match.group(2).splitlines(keepends=True)))
  return found


NAMES = [(heading, index) for heading, cases in CHAPTERS.items() for index in range(len(cases))]


@pytest.fixture(scope="module")
def results(tmp_path_factory):
  """(exit code, output) of each block."""
  if not GUIDE.exists():
    pytest.skip(f"{GUIDE} is not there")
  scripts = {}
  for heading, cases in CHAPTERS.items():
    blocks = blocks_of(heading)
    assert len(blocks) == len(cases), f"chapter {heading} has {len(blocks)} Python blocks, {len(cases)} are known here"
    for index, (block, (before, after)) in enumerate(zip(blocks, cases)):
      folder = tmp_path_factory.mktemp(f"guide_{heading.split()[0].replace('.', '_')}_{index}")
      (folder / "mxrec.toml").write_text(TOML, encoding="utf-8")
      scripts[heading, index] = folder / "example.py"
      scripts[heading, index].write_text(HEADER + before + block + after, encoding="utf-8")
  command = [sys.executable, str(HERE / "guide_worker.py"), "120", *map(str, scripts.values())]
  done = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False)
  assert done.returncode == 0, done.stderr[-4000:]
  output = json.loads(done.stdout)
  return {key: output[str(script)] for key, script in scripts.items()}


@pytest.mark.parametrize(("heading", "index"), NAMES, ids=[f"{h.split()[0]}-{i + 1}" for h, i in NAMES])
def test_g1_the_block_runs_as_written(results, heading, index):
  code, output = results[heading, index]
  assert code == 0, output[-4000:]


def test_g51_the_script_without_randomness_trains(results):
  code, output = results["4.2.2 Remove randomness", 2]
  assert code == 0, output[-4000:]
  losses = json.loads(output.strip().splitlines()[-1])
  assert len(losses) == 3
  assert losses[2] < losses[1] < losses[0]
