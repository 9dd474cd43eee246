"""Sessions under npu_bridge: the star import's edits, what is checked, and how both are undone."""

import re
import subprocess
import sys
import textwrap

import npu_bridge
import pytest
import tensorflow.compat.v1 as tf
from npu_bridge import _options, _session
from tensorflow.core.protobuf import config_pb2
from tensorflow.core.protobuf.rewriter_config_pb2 import RewriterConfig
from tensorflow.python.client import session as session_lib

pytestmark = pytest.mark.filterwarnings("error::pytest.PytestUnraisableExceptionWarning")


@pytest.fixture(autouse=True)
def checking_only():
  """Each test starts as after `import npu_bridge` alone."""
  npu_bridge.unpatch_sessions()
  yield
  npu_bridge.unpatch_sessions()


@pytest.fixture
def edits():
  npu_bridge.patch_sessions()


@pytest.fixture
def warnings(capfd):
  """What the log has called wrong with the rewrite options since the test began."""
  _options.forget_notes()
  return lambda: re.findall(r"WARNING mxrec: (rewrite_options\.\w+) is ", capfd.readouterr().err)


def names(config):
  return [optimizer.name for optimizer in config.graph_options.rewrite_options.custom_optimizers]


def expect_edits(config):
  options = config.graph_options.rewrite_options
  assert names(config) == ["NpuOptimizer"]
  assert options.remapping == RewriterConfig.OFF
  assert config.graph_options.optimizer_options.global_jit_level == config_pb2.OptimizerOptions.OFF
  assert config.allow_soft_placement is True
  assert config.log_device_placement is False


def test_fact_2_session_patch(edits):
  config = tf.ConfigProto(log_device_placement=True)
  with tf.Session(config=config) as session:
    assert session.run(tf.constant(1) + 1) == 2
  expect_edits(config)
  assert config.graph_options.rewrite_options.memory_optimization == RewriterConfig.OFF
  before = config.SerializeToString(deterministic=True)
  tf.Session(config=config).close()
  assert config.SerializeToString(deterministic=True) == before

  mine = tf.ConfigProto()
  mine.graph_options.rewrite_options.custom_optimizers.add().name = "NpuOptimizer"
  mine.graph_options.rewrite_options.memory_optimization = RewriterConfig.NO_MEM_OPT
  tf.Session(config=mine).close()
  expect_edits(mine)
  assert mine.graph_options.rewrite_options.memory_optimization == RewriterConfig.NO_MEM_OPT


def test_fact_2_npu_config_proto_edits_in_place_or_makes_a_fresh_one():
  config = tf.ConfigProto(log_device_placement=True)
  assert _session.edit_config(config) is config
  expect_edits(config)
  for given in (None, "x"):
    fresh = _session.edit_config(given)
    assert isinstance(fresh, config_pb2.ConfigProto)
    expect_edits(fresh)


def test_the_caller_sees_only_the_listed_edits(edits):
  config = tf.ConfigProto()
  tf.Session(config=config).close()
  expected = tf.ConfigProto(allow_soft_placement=True, log_device_placement=False)
  options = expected.graph_options.rewrite_options
  options.custom_optimizers.add().name = "NpuOptimizer"
  options.remapping = options.memory_optimization = RewriterConfig.OFF
  expected.graph_options.optimizer_options.global_jit_level = config_pb2.OptimizerOptions.OFF
  assert config == expected


@pytest.mark.parametrize("kind", [tf.Session, tf.InteractiveSession])
@pytest.mark.parametrize(
  "call",
  [
    lambda kind, config: kind(config=config),
    lambda kind, config: kind("", None, config),
    lambda kind, config: kind("", graph=None, config=config),
    lambda kind, config: kind(config),
    lambda kind, config: kind("", tf.get_default_graph(), config),
  ],
)
def test_the_configuration_is_found_in_every_position(edits, kind, call):
  config = tf.ConfigProto()
  session = call(kind, config)
  try:
    expect_edits(config)
    assert session.run(tf.constant(3)) == 3
  finally:
    session.close()


@pytest.mark.parametrize("call", [lambda: tf.Session("", None, None), lambda: tf.Session(config=None), lambda: tf.Session()])
def test_no_configuration_becomes_an_edited_one(edits, call):
  with call() as session:
    expect_edits(session._config)
    assert session._config.graph_options.rewrite_options.min_graph_nodes == -1


def test_a_configuration_given_twice_is_refused(edits):
  with pytest.raises(TypeError, match="twice"):
    tf.Session(tf.ConfigProto(), config=tf.ConfigProto())


def test_what_is_no_configuration_is_refused_also_where_sessions_are_edited(edits):
  for call in (lambda: tf.Session(config="x"), lambda: tf.Session("", None, 3), lambda: tf.InteractiveSession(config={})):
    with pytest.raises(TypeError, match=r"config of \w*Session must be a ConfigProto: got (str 'x'|int 3|dict \{\})"):
      call()


def test_unpatching_undoes_the_edits_and_patching_brings_them_back(edits):
  npu_bridge.unpatch_sessions()
  config = tf.ConfigProto(log_device_placement=False)
  tf.Session(config=config).close()
  assert config == tf.ConfigProto()
  npu_bridge.patch_sessions()
  tf.Session(config=config).close()
  expect_edits(config)


def test_a_session_that_does_not_ask_for_the_pass_is_passed_on_untouched():
  config = tf.ConfigProto()
  with tf.Session(config=config) as session:
    assert session._config is config
  assert config == tf.ConfigProto()
  assert not config.HasField("graph_options")


def test_a_session_that_asks_for_the_pass_runs_it_on_tiny_graphs_without_the_caller_seeing_it():
  config = tf.ConfigProto()
  config.graph_options.rewrite_options.custom_optimizers.add().name = "NpuOptimizer"
  with tf.Session(config=config) as session:
    assert session._config.graph_options.rewrite_options.min_graph_nodes == -1
  assert config.graph_options.rewrite_options.min_graph_nodes == 0


def test_g19_options_left_on_are_reported_once(warnings):
  config = tf.ConfigProto()
  config.graph_options.rewrite_options.custom_optimizers.add().name = "NpuOptimizer"
  for _ in range(2):
    tf.Session(config=config).close()
  assert warnings() == ["rewrite_options.remapping", "rewrite_options.memory_optimization"]


def test_g19_memory_optimization_beside_an_own_npu_optimizer_is_reported_after_the_star_import(edits, warnings):
  config = tf.ConfigProto()
  config.graph_options.rewrite_options.custom_optimizers.add().name = "NpuOptimizer"
  tf.Session(config=config).close()
  assert warnings() == ["rewrite_options.memory_optimization"]


def test_a_session_asks_for_no_other_ranks(monkeypatch):
  monkeypatch.setenv("RANK_SIZE", "2")
  config = tf.ConfigProto()
  config.graph_options.rewrite_options.custom_optimizers.add().name = "NpuOptimizer"
  with tf.Session(config=config) as session:
    assert session.run(tf.constant(1) + 1) == 2


def test_wrong_arguments_are_tensorflows_to_refuse(edits):
  with pytest.raises(TypeError, match="graph"):
    tf.Session(graph="x")
  with pytest.raises(TypeError):
    tf.Session(nonsense=1)


def test_a_monitored_session_gets_the_edits(edits):
  tf.train.get_or_create_global_step()
  config = tf.ConfigProto()
  with tf.train.MonitoredTrainingSession(config=config) as session:
    assert session.run(tf.train.get_global_step()) == 0
  expect_edits(config)


def test_constructors_are_wrapped_once():
  wrapped = session_lib.Session.__init__
  _session.install_validation()
  npu_bridge.patch_sessions()
  assert session_lib.Session.__init__ is wrapped
  assert not hasattr(wrapped.__wrapped__, "__wrapped__")


def test_g2_imports_need_no_environment():
  """In a process without environment variables; G-10: TF1 names stay, whichever line came first."""
  code = """
    import os
    import tensorflow.compat.v1 as tf
    before = dict(os.environ)
    from npu_bridge.npu_init import *
    assert dict(os.environ) == before
    for name in ("Session", "train", "ConfigProto", "placeholder", "get_variable", "gradients"):
      getattr(tf, name)
    c = tf.ConfigProto()
    tf.Session(config=c)
    assert c.graph_options.rewrite_options.custom_optimizers[0].name == "NpuOptimizer"
    print("DONE")
  """
  path = ":".join(p for p in sys.path if p.endswith("/python"))
  done = subprocess.run(
    [sys.executable, "-c", textwrap.dedent(code)],
    env={"PYTHONPATH": path},
    capture_output=True,
    text=True,
    check=False,
    timeout=120,
  )
  assert done.stdout.strip() == "DONE", done.stderr
