"""The guide's AllReduce examples and its migrated Horovod script, as written, on 1 and 2 processes.

Fact 20; G-30 to G-35, G-44, G-46. The guide is no part of this tree: without it beside the tree these tests are skipped.
"""

import pathlib
import re

import numpy as np
import pytest
import ranks
import tensorflow.compat.v1 as tf

GUIDE = pathlib.Path(__file__).resolve().parents[3] / "shared" / "spec" / "guide.md"

pytestmark = pytest.mark.skipif(not GUIDE.is_file(), reason=f"the guide, {GUIDE}, is not there")


def block(heading, number):
  """A Python block below a heading of the guide."""
  text = GUIDE.read_text(encoding="utf-8")
  begin = re.search(rf"^#+ {re.escape(heading)}$", text, re.MULTILINE).end()
  after = re.compile(r"^#{1,3} ", re.MULTILINE).search(text, begin)
  return re.findall(r"^```python\n(.*?)^```", text[begin : after.start() if after else len(text)], re.MULTILINE | re.DOTALL)[number]


def sess_run(number):
  return block("3.1.4 Changing a sess.run script", number)


def example(text):
  """Runs a script; returns what is left of it."""
  left = {"__name__": "__main__"}
  exec(compile(text, "script.py", "exec"), left)
  return left


def printed(text):
  example(text)


@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.parametrize("number, line", [(0, "[1. 1. 1.]"), (1, ""), (3, "[1.0, 1.0]")])
def test_g_31_g_33_g_35_examples_of_the_guide(number, line, size):
  outcome = ranks.run(size, printed, sess_run(number))
  outcome.results()
  for rank in outcome.ranks:
    assert line in re.sub(r"np\.float32\((.*?)\)", r"\1", rank.output), outcome.report()


def shards(text):
  dataset = example(text)["dataset"].batch(8)
  with tf.Session() as session:
    return session.run(tf.data.make_one_shot_iterator(dataset).get_next())


def test_g_30_the_sharding_example():
  text = block("3.1.3 Sharding the data", 0)
  assert ranks.run(1, shards, text).results() == [list(range(8))]
  assert ranks.run(2, shards, text).results() == [[0, 2, 4, 6], [1, 3, 5, 7]]


def one_step(text):
  left = example(text)
  assert left["distributedOptimizer"] is left["optimizer"]
  with tf.Session() as session:
    session.run(tf.global_variables_initializer())
    session.run(left["train_op"])
    return session.run(left["w"])


@pytest.mark.parametrize("size", [1, 2])
def test_g_34_the_wrapper_example(size):
  np.testing.assert_allclose(ranks.run(size, one_step, sess_run(2)).results(), [-0.001 * (1 + size) / 2] * size, rtol=1e-6)


def migrated(text, folder, steps):
  """The script, with another checkpoint folder (the one it names is everybody's) and number of steps; the weights at its end."""
  found = []

  def end(self, session):
    found.extend([float(session.run(tf.trainable_variables()[0])), int(session.run(tf.train.get_global_step()))])

  start = []

  def after_create_session(self, session, coord):
    start.append(int(session.run(tf.train.get_global_step())))
    return original(self, session, coord)

  original = tf.train.StopAtStepHook.after_create_session
  tf.train.StopAtStepHook.after_create_session = after_create_session
  tf.train.StopAtStepHook.end = end
  example(text.replace("/tmp/train_logs", folder).replace("last_step=20", f"last_step={steps}"))
  return [*found, *start]


def by_hand(size, steps):
  w = tf.get_variable("w", [], initializer=tf.ones_initializer())
  train = tf.train.AdagradOptimizer(0.01 * size).minimize(tf.square(w - 3.0))
  with tf.Session() as session:
    session.run(tf.global_variables_initializer())
    for _ in range(steps):
      session.run(train)
    return float(session.run(w))


@pytest.mark.parametrize("size", [1, 2])
def test_fact_20_g_44_g_46_the_migrated_horovod_script(size, tmp_path):
  folder = tmp_path / "logs"
  outcome = ranks.run(size, migrated, block("3.3 Moving a Horovod script", 1), str(folder), 20)
  results = outcome.results()
  assert results == [results[0]] * size and results[0][1:] == [20, 0], outcome.report()
  (expected,) = ranks.run(1, by_hand, size, 20).results()
  assert results[0][0] == pytest.approx(expected, abs=1e-6)
  assert pathlib.Path(tf.train.latest_checkpoint(str(folder))).name == "model.ckpt-20"


def resumed(folder, steps):
  """All ranks go on from rank 0's checkpoint: every variable, the global step too, comes from rank 0."""
  from npu_bridge.estimator.npu import npu_optimizer
  from npu_bridge.hccl import hccl_ops
  from npu_bridge.npu_init import get_rank_id

  w = tf.get_variable("w", [], initializer=tf.ones_initializer())
  opt = npu_optimizer.npu_distributed_optimizer_wrapper(tf.train.AdagradOptimizer(0.1))
  step = tf.train.get_or_create_global_step()
  train = opt.minimize(tf.square(w - 3.0), global_step=step)
  same = tf.group(*hccl_ops.broadcast(tf.global_variables(), 0))
  with tf.train.MonitoredTrainingSession(checkpoint_dir=folder if get_rank_id() == 0 else None) as session:
    session.run(same)
    first = int(session.run(step))
    for _ in range(steps):
      session.run(train)
    return [first, int(session.run(step)), float(session.run(w))]


def test_g_46_d_36_a_restart_goes_on_with_all_ranks_at_the_same_step(tmp_path):
  straight = ranks.run(2, resumed, str(tmp_path / "straight"), 10).results()
  first = ranks.run(2, resumed, str(tmp_path / "halves"), 5).results()
  second = ranks.run(2, resumed, str(tmp_path / "halves"), 5).results()
  assert [found[:2] for found in first + second] == [[0, 5]] * 2 + [[5, 10]] * 2
  assert second[0][2] == second[1][2] == straight[0][2] == straight[1][2]
