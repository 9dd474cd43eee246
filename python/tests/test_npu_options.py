"""The parameter_map of NpuOptimizer: what is refused, what acts, in local sessions and behind a server."""

import json
import os
import pathlib
import re
import subprocess
import sys
import textwrap

import helpers
import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from npu_bridge import _options
from tensorflow.core.protobuf import config_pb2
from tensorflow.core.protobuf.rewriter_config_pb2 import RewriterConfig
from tensorflow.python.framework import config as tf_config

import mxrec
from mxrec import _collective

ROOT = pathlib.Path(__file__).resolve().parents[2]


def configured(**options):
  """A configuration as the guide makes it, with these keys; bool, int and str go to the fields b, i and s."""
  config = tf.ConfigProto()
  rewrites = config.graph_options.rewrite_options
  rewrites.remapping = rewrites.memory_optimization = RewriterConfig.OFF
  entry = rewrites.custom_optimizers.add()
  entry.name = "NpuOptimizer"
  for key, value in options.items():
    if isinstance(value, bool):
      entry.parameter_map[key].b = value
    elif isinstance(value, int):
      entry.parameter_map[key].i = value
    else:
      entry.parameter_map[key].s = tf.compat.as_bytes(str(value))
  return config


def unchecked_session(target="", config=None):
  """A session that TensorFlow makes without npu_bridge, as a process that never imported it would."""
  session = tf.Session.__new__(tf.Session)
  constructor = tf.Session.__init__
  while hasattr(constructor, "__wrapped__"):
    constructor = constructor.__wrapped__
  constructor(session, target, config=config)
  return session


@pytest.fixture(scope="module")
def server():
  return tf.train.Server.create_local_server()


@pytest.fixture
def log(capfd):
  """The lines of the log about options since the last look; each may come again in this test."""
  _options.forget_notes()
  return lambda: re.findall(r"(?:INFO|WARNING) mxrec: (.*)", capfd.readouterr().err)


def refused(**options):
  config = configured(**options)
  with pytest.raises(ValueError) as caught:
    tf.Session(config=config)
  assert isinstance(caught.value, tf.errors.InvalidArgumentError)
  return str(caught.value)


def accepted(**options):
  with tf.Session(config=configured(**options)) as session:
    return session.run(tf.constant(3) + 4)


# Acceptance fact 18


def test_fact_18_precision_modes(tmp_path):
  assert "only one of them" in refused(precision_mode="force_fp32", precision_mode_v2="origin")
  message = refused(precision_mode="fast")
  assert "'precision_mode' = 'fast'" in message and "allow_mix_precision" in message
  mix = tmp_path / "mix.json"
  mix.write_text("{}")
  assert "'modify_mixlist'" in refused(precision_mode="allow_fp32_to_fp16", modify_mixlist=mix)
  assert accepted(precision_mode="allow_mix_precision", modify_mixlist=mix) == 7


def test_fact_18_dumps(tmp_path):
  assert "'dump_path'" in refused(enable_dump=True)
  assert "a folder that exists" in refused(enable_dump=True, dump_path=tmp_path / "missing")
  for steps in ("3-1", "a", "|".join(str(step) for step in range(101))):
    assert "'dump_step'" in refused(enable_dump=True, dump_path=tmp_path, dump_step=steps)
  assert accepted(enable_dump=True, dump_path=tmp_path, dump_step="0|3-5|10") == 7
  assert "only one of them" in refused(enable_dump=True, enable_dump_debug=True, dump_path=tmp_path)


def test_fact_18_jit_compile_takes_a_bool_with_a_line_in_the_log(log):
  assert "true, false, auto" in refused(jit_compile="maybe")
  assert accepted(jit_compile=True) == 7
  assert [line for line in log() if "'jit_compile' = true in field b" in line]


def test_fact_18_graph_run_mode_2_leaves_the_process_alive():
  assert "'graph_run_mode' = 2" in refused(graph_run_mode=2)
  assert accepted(graph_run_mode=0) == 7


def test_fact_18_unknown_keys_are_one_line_each(log):
  for _ in range(2):
    assert accepted(min_group_size=1, master_slave_mode=True) == 7
  lines = log()
  assert len([line for line in lines if "'min_group_size' is unknown" in line]) == 1
  assert len([line for line in lines if "'master_slave_mode' is unknown" in line]) == 1
  assert len(lines) == 2


# The map


def test_the_options_of_a_large_sample_are_accepted(tmp_path):
  options = dict(
    mix_compile_mode=False,
    use_off_line=True,
    min_group_size=1,
    HCCL_algorithm="level0:pairwise;level1:pairwise",
    enable_data_pre_proc=True,
    iterations_per_loop=10,
    precision_mode="allow_mix_precision",
    hcom_parallel=False,
    op_precision_mode="op_impl_mode.ini",
    op_execute_timeout=2000,
    variable_memory_max_size=str(13 * 1024 * 1024 * 1024),
    graph_memory_max_size=str(18 * 1024 * 1024 * 1024),
    stream_max_parallel_num="DNN_VM_AICPU:3,AIcoreEngine:3",
    dump_path=tmp_path,
    dump_mode="all",
    dump_step="0|5",
  )
  assert accepted(**options) == 7
  assert _options.collective_algorithm() == "level0:pairwise;level1:pairwise"


def test_validation_changes_nothing_in_the_configuration():
  config = configured(use_off_line=True, deterministic=0)
  before = config.SerializeToString(deterministic=True)
  _options.validate(config)
  assert config.SerializeToString(deterministic=True) == before


def test_no_configuration_and_an_entry_without_options_have_the_defaults():
  for config in (None, tf.ConfigProto(), configured()):
    settings = _options.validate(config)
    assert settings["iterations_per_loop"] is None and not settings["deterministic"] and not settings["profiling"]


def test_an_entry_that_was_only_touched_is_checked_as_an_empty_value():
  for key in ("precision_mode", "precision_mode_v2", "iterations_per_loop", "dump_mode"):
    config = configured()
    config.graph_options.rewrite_options.custom_optimizers[0].parameter_map[key]
    with pytest.raises(ValueError, match=f"'{key}' = an entry without a value"):
      tf.Session(config=config)
  config = configured()
  for key in ("enable_dump", "modify_mixlist", "use_off_line", "deterministic"):
    config.graph_options.rewrite_options.custom_optimizers[0].parameter_map[key]
  tf.Session(config=config).close()


def second_entry(config, **options):
  config.graph_options.rewrite_options.custom_optimizers.add().CopyFrom(
    configured(**options).graph_options.rewrite_options.custom_optimizers[0]
  )
  return config


def test_the_options_of_a_second_entry_are_checked_when_the_session_is_made():
  with pytest.raises(ValueError, match="'precision_mode' = 'fast'"):
    tf.Session(config=second_entry(configured(use_off_line=True), precision_mode="fast"))
  with pytest.raises(ValueError, match="only one of them"):
    tf.Session(config=second_entry(configured(precision_mode="force_fp32"), precision_mode_v2="origin"))
  with pytest.raises(ValueError, match="'deterministic' = 0 in one entry NpuOptimizer and 1 in another"):
    tf.Session(config=second_entry(configured(deterministic=0), deterministic=1))


def test_the_options_of_all_entries_act_and_the_pass_runs_as_for_one(tmp_path):
  mix = tmp_path / "mix.json"
  mix.write_text("{}")
  config = second_entry(configured(precision_mode="allow_mix_precision"), modify_mixlist=mix, deterministic=1)
  config.graph_options.rewrite_options.custom_optimizers.add().name = "memory"
  before = config.SerializeToString(deterministic=True)
  assert _options.validate(config)["deterministic"]
  with tf.Session(config=config) as session:
    assert session.run(tf.constant(3) + 4) == 7
    kept = session._config.graph_options.rewrite_options.custom_optimizers
    assert [entry.name for entry in kept] == ["NpuOptimizer", "memory"]
    assert sorted(kept[0].parameter_map) == ["deterministic", "modify_mixlist", "precision_mode"]
  assert config.SerializeToString(deterministic=True) == before


def test_hccl_algorithm_is_a_list_of_levels():
  assert accepted(HCCL_algorithm="level0:NA;level1:ring") == 7
  for wrong in ("xx::", "ring", "level0:"):
    assert f"'HCCL_algorithm' = '{wrong}'" in refused(HCCL_algorithm=wrong)


def test_every_key_is_accepted_in_its_own_field_and_refused_or_noted_in_another(log):
  good = {"b": lambda value: value.__setattr__("b", False), "i": lambda value: value.__setattr__("i", 1)}
  for row in _options.table():
    config = tf.ConfigProto()
    entry = config.graph_options.rewrite_options.custom_optimizers.add()
    entry.name = "NpuOptimizer"
    entry.parameter_map[row["key"]].f = 1.0
    if row["policy"] == "accept":
      _options.validate(config)
      assert [line for line in log() if f"'{row['key']}'" in line and "field f" in line]
    else:
      with pytest.raises(ValueError, match=row["key"]):
        _options.validate(config)
    if row["field"] in good and row["key"] not in ("dynamic_node_type", "compile_hybrid_mode"):
      good[row["field"]](entry.parameter_map[row["key"]])
      _options.validate(config)


# The graph pass


@pytest.mark.parametrize("behind_server", [False, True])
def test_g18_the_pass_is_called_on_tiny_graphs_with_the_options(behind_server, server):
  total = tf.constant(1.0) + tf.constant(2.0)
  before = _options.optimizer_runs()
  with tf.Session(server.target if behind_server else "", config=configured(hccl_timeout=77 + behind_server)) as session:
    assert session.run(total) == 3.0
  assert _options.optimizer_runs() > before
  assert _options.collective_timeout_seconds() == 77 + behind_server


@pytest.mark.parametrize("behind_server", [False, True])
def test_a_bad_map_past_the_check_fails_every_run_and_never_the_process(behind_server, server):
  variable = tf.get_variable("v", [2], use_resource=True)
  fed = tf.placeholder(tf.float32, [], name="fed")
  picked = tf.cond(fed > 0, lambda: fed + 1, lambda: fed - 1)
  looped = tf.while_loop(lambda i: i < 3.0, lambda i: i + 1, [fed])
  init = tf.global_variables_initializer()
  config = configured(precision_mode="fast")
  config.graph_options.rewrite_options.min_graph_nodes = -1
  session = unchecked_session(server.target if behind_server else "", config)
  for fetch in (init, variable.initializer, tf.constant(1) + 2, picked, looped, [picked, init], fed + 1):
    with pytest.raises(tf.errors.InvalidArgumentError, match="'precision_mode' = 'fast': expected one of force_fp32"):
      session.run(fetch, {fed: 1.0})
  session.close()
  with tf.Session(server.target if behind_server else "", config=configured()) as good:
    good.run(init)
    assert good.run([picked, looped], {fed: 1.0}) == [2.0, 3.0]


def test_a_file_that_an_option_names_may_go_once_the_session_is_made(tmp_path):
  mix = tmp_path / "mix.json"
  mix.write_text("{}")
  with tf.Session(config=configured(precision_mode_v2="mixed_float16", modify_mixlist=mix)) as session:
    mix.unlink()
    assert session.run(tf.constant(1) + 2) == 3


def small_model():
  tf.set_random_seed(5)
  x = tf.placeholder(tf.float32, [None, 4], name="x")
  hidden = tf.nn.relu(tf.matmul(x, tf.get_variable("w1", [4, 8])))
  loss = tf.reduce_mean(tf.square(tf.matmul(hidden, tf.get_variable("w2", [8, 1]))))
  return x, loss, tf.train.AdamOptimizer(0.05).minimize(loss)


def losses(config, target=""):
  tf.reset_default_graph()
  x, loss, train = small_model()
  data = np.random.default_rng(1).normal(size=[16, 4]).astype(np.float32)
  session = tf.Session(target, config=config)
  with session:
    session.run(tf.global_variables_initializer())
    return [session.run([loss, train], {x: data})[0] for _ in range(5)]


def test_g47_precision_mode_v2_origin_leaves_the_losses_alone(server):
  stock = losses(None)
  np.testing.assert_allclose(losses(configured(precision_mode_v2="origin")), stock, rtol=1e-5)
  np.testing.assert_allclose(losses(configured(precision_mode_v2="origin"), server.target), stock, rtol=1e-5)


def test_g20_each_rewrite_that_stays_on_gives_the_same_results_off_and_is_reported(log):
  stock = losses(configured())
  assert not [line for line in log() if line.startswith("rewrite_options")]
  names = "function_optimization constant_folding shape_optimization arithmetic_optimization loop_optimization"
  for name in (*names.split(), "dependency_optimization", "layout_optimizer", "disable_model_pruning"):
    config = configured()
    setattr(config.graph_options.rewrite_options, name, True if name == "disable_model_pruning" else RewriterConfig.OFF)
    np.testing.assert_allclose(losses(config), stock, rtol=1e-6)
    assert [line for line in log() if line.startswith(f"rewrite_options.{name} is ")]


def test_precision_modes_without_the_hardware_stay_float32_with_one_warning(log, monkeypatch):
  monkeypatch.setenv("MXREC_BFLOAT16", "0")
  stock = losses(None)
  for _ in range(2):
    assert losses(configured(precision_mode="allow_mix_precision")) == stock
  assert len([line for line in log() if "'allow_mix_precision'" in line and "stays float32" in line]) == 1
  assert losses(configured(precision_mode="force_fp16")) == stock
  assert len([line for line in log() if "'force_fp16'" in line and "stays float32" in line]) == 1


MIXED = """
import json, os, sys
import numpy as np
import tensorflow.compat.v1 as tf
tf.disable_v2_behavior()
sys.path.insert(0, sys.argv[1])
from test_npu_options import configured

def types(target="", **options):
  tf.reset_default_graph()
  tf.set_random_seed(1)
  x = tf.placeholder(tf.float32, [None, 4], name="x")
  w = [tf.get_variable(f"w{i}", [4, 4]) for i in range(3)]
  h = tf.nn.relu(tf.matmul(x, w[0], name="first"), name="relu")
  with tf.get_default_graph()._attr_scope({"_keep_dtype": tf.AttrValue(i=1)}):
    h = tf.matmul(h, w[1], name="kept")
  h = tf.while_loop(lambda i, a: i < 2, lambda i, a: (i + 1, tf.tanh(a)), [0, h])[1]
  h = tf.cond(tf.reduce_sum(h) > -1e9, lambda: h * 2, lambda: h)
  out = tf.identity(tf.matmul(h, w[2], name="last"), name="out")
  train = tf.train.GradientDescentOptimizer(0.1).minimize(tf.reduce_mean(tf.square(out)))
  data = np.random.default_rng(2).normal(size=[8, 4]).astype(np.float32)
  with tf.Session(target, config=configured(**options)) as session:
    session.run(tf.global_variables_initializer())
    record = tf.RunMetadata()
    value = session.run([out, train], {x: data}, tf.RunOptions(output_partition_graphs=True), record)[0]
    for _ in range(3):
      session.run(train, {x: data})
  found = {n.name: tf.as_dtype(n.attr["T"].type).name for g in record.partition_graphs for n in g.node if n.attr["T"].type}
  names = ("first", "kept", "last", "relu")
  return {"types": {name: found.get(name) for name in names}, "out": value.tolist(), "dtype": str(value.dtype)}

server = tf.train.Server.create_local_server()
mix = sys.argv[2]
deny = mix + "/deny.json"; allow = mix + "/allow.json"; odd = mix + "/odd.json"
open(deny, "w").write(json.dumps({"white-list": {"to-remove": ["MatMul"]}}))
open(allow, "w").write(json.dumps({"black-list": {"to-add": ["Relu"]}}))
open(odd, "w").write(json.dumps({"black-list": {"to-add": ["MatMulV2", "NoSuchOp"]}}))
print("RESULT" + json.dumps({
  "stock": types(),
  "mixed": types(precision_mode="allow_mix_precision"),
  "v2": types(precision_mode_v2="mixed_bfloat16"),
  "server": types(server.target, precision_mode_v2="mixed_float16"),
  "origin": types(precision_mode_v2="origin"),
  "lowered": types(precision_mode="allow_fp32_to_fp16"),
  "deny": types(precision_mode="allow_mix_precision", modify_mixlist=deny),
  "relu": types(precision_mode="allow_mix_precision", modify_mixlist=allow),
  "odd": types(precision_mode="allow_mix_precision", modify_mixlist=odd),
  "again": types(precision_mode="allow_mix_precision"),
}))
os.environ["MXREC_BFLOAT16"] = "maybe"
types(precision_mode="allow_mix_precision")
"""


def test_mixed_precision_by_tensorflows_pass_with_lists_and_kept_ops(tmp_path):
  # Of its own process: oneDNN, which has the pass, is decided when TensorFlow is loaded.
  environment = dict(os.environ, TF_ENABLE_ONEDNN_OPTS="1", MXREC_BFLOAT16="on")
  script = tmp_path / "mixed.py"
  script.write_text(MIXED)
  here = os.path.dirname(__file__)
  done = subprocess.run([sys.executable, script, here, tmp_path], capture_output=True, text=True, env=environment, timeout=300)
  assert done.returncode == 0, done.stderr[-4000:]
  found = json.loads(re.search(r"^RESULT(.*)$", done.stdout, re.MULTILINE).group(1))
  half = {"first": "bfloat16", "kept": "float32", "last": "bfloat16", "relu": "bfloat16"}
  full = dict.fromkeys(half, "float32")
  for name in ("stock", "origin", "lowered", "deny", "odd"):
    assert found[name]["types"] == full, name
    np.testing.assert_allclose(found[name]["out"], found["stock"]["out"], rtol=1e-6)
  for name in ("mixed", "v2", "server", "again"):
    assert found[name]["types"] == half, name
    assert found[name]["dtype"] == "float32"
    np.testing.assert_allclose(found[name]["out"], found["stock"]["out"], rtol=0.1, atol=0.1)
    assert found[name]["out"] != found["stock"]["out"]
  assert found["relu"]["types"] == dict(half, relu="float32")
  assert "TensorFlow has no op type 'NoSuchOp'" in done.stderr
  assert 'MXREC_BFLOAT16 must be 1, true, yes or on, 0, false, no or off; found "maybe"; it is passed over' in done.stderr


# Fusions


@pytest.mark.parametrize("switch, fused", [({"GraphFusion": {"ALL": "off"}}, False), ({"GraphFusion": {"ALL": "on"}}, True)])
def test_a_fusion_switch_file_keeps_table_ops_and_allreduces_apart(tmp_path, monkeypatch, switch, fused):
  monkeypatch.setenv("MXREC_FUSE", "64")
  path = tmp_path / "fusion.cfg"
  path.write_text(json.dumps({"Switch": switch}))
  monkeypatch.setenv("MXREC_MERGE", "1")
  rows = [mxrec.embedding_lookup(helpers.table(name), [1, 2]) for name in ("a", "b")]
  sums = [_collective.allreduce(tf.constant(value)) for value in (1.0, 2.0)]
  with tf.Session(config=configured(fusion_switch_file=path)) as session:
    record = tf.RunMetadata()
    session.run([rows, sums], options=tf.RunOptions(output_partition_graphs=True), run_metadata=record)
  ops = [node.op for graph in record.partition_graphs for node in graph.node]
  assert ("MxrecLookupMany" in ops) == fused and (ops.count("MxrecLookup") == 2) != fused
  assert ops.count("MxrecAllReduce") == (1 if fused else 2)


# deterministic


def test_deterministic_holds_op_determinism_during_runs_when_everything_is_seeded():
  x, _, train = small_model()
  seen = []
  look = tf.py_func(lambda: seen.append(tf_config.is_op_determinism_enabled()) or np.float32(0), [], tf.float32)
  with tf.Session(config=configured(deterministic=1)) as session:
    session.run(tf.global_variables_initializer())
    session.run([train, look], {x: np.ones([2, 4])})
    with pytest.raises(tf.errors.InvalidArgumentError):
      session.run(tf.debugging.check_numerics(tf.constant(np.nan), "bad"))
  assert seen == [True]
  assert not tf_config.is_op_determinism_enabled()
  tf.reset_default_graph()
  with tf.Session() as session:  # seeds are not asked for elsewhere
    session.run(tf.random.uniform([2]))


def by_callable_options(session, fetch):
  options = config_pb2.CallableOptions(fetch=[fetch.name])
  return session._make_callable_from_options(options)()[0]


def by_partial_run(session, fetch):
  return session.partial_run(session.partial_run_setup([fetch]), fetch)


def by_monitored_session(session, fetch):
  creator = tf.train.ChiefSessionCreator(config=session._config)
  with tf.train.MonitoredSession(creator) as monitored:
    return monitored.run(fetch)


# How a session runs things, other than session.run.
WAYS = {
  "run": lambda session, fetch: session.run(fetch),
  "make_callable": lambda session, fetch: session.make_callable(fetch)(),
  "make_callable of a list": lambda session, fetch: session.make_callable([fetch])()[0],
  "make_callable with options": lambda session, fetch: session.make_callable(fetch, accept_options=True)(options=tf.RunOptions()),
  "make_callable with feeds": lambda session, fetch: session.make_callable(fetch, [])(),
  "CallableOptions": by_callable_options,
  "partial_run": by_partial_run,
  "MonitoredSession": by_monitored_session,
}


@pytest.mark.parametrize("way", WAYS)
def test_deterministic_holds_in_every_kind_of_run(way):
  look = tf.py_func(lambda: np.bool_(tf_config.is_op_determinism_enabled()), [], tf.bool)
  if way == "MonitoredSession":
    tf.train.get_or_create_global_step()
  with tf.Session(config=configured(deterministic=1)) as session:
    assert WAYS[way](session, look)
  assert not tf_config.is_op_determinism_enabled()


def test_deterministic_without_seeds_warns_once_and_runs(tmp_path):
  # Of its own process: what it finds holds to the end.
  script = tmp_path / "unseeded.py"
  script.write_text(
    textwrap.dedent("""
      import sys
      import tensorflow.compat.v1 as tf
      tf.disable_v2_behavior()
      sys.path.insert(0, sys.argv[1])
      from test_npu_options import configured
      draw = tf.random.uniform([3], name="draw")
      for _ in range(2):
        with tf.Session(config=configured(deterministic=1)) as session:
          session.run(draw)
          session.run(tf.data.make_one_shot_iterator(tf.data.Dataset.range(9).shuffle(9)).get_next())
      print("DONE")
      """)
  )
  done = subprocess.run([sys.executable, script, os.path.dirname(__file__)], capture_output=True, text=True, timeout=300)
  assert done.stdout.strip() == "DONE", done.stderr[-4000:]
  assert (
    len(re.findall(r"WARNING mxrec: NpuOptimizer option 'deterministic' = 1: the random op 'draw/RandomUniform'", done.stderr)) == 1
  )


def test_deterministic_sees_a_data_set_that_shuffles_without_a_seed(tmp_path):
  script = tmp_path / "shuffled.py"
  script.write_text(
    textwrap.dedent("""
      import sys
      import tensorflow.compat.v1 as tf
      tf.disable_v2_behavior()
      sys.path.insert(0, sys.argv[1])
      from test_npu_options import configured
      data = lambda seed: tf.data.make_one_shot_iterator(tf.data.Dataset.range(9).shuffle(9, seed=seed)).get_next()
      with tf.Session(config=configured(deterministic=1)) as session:
        session.run(data(4))
        print("SEEDED", file=sys.stderr)
        session.run(data(None))
      """)
  )
  done = subprocess.run([sys.executable, script, os.path.dirname(__file__)], capture_output=True, text=True, timeout=300)
  assert done.returncode == 0, done.stderr[-4000:]
  before, after = done.stderr.split("SEEDED")
  assert "has no seed" not in before and "ShuffleDataset" in after and "has no seed" in after


def test_deterministic_false_values():
  assert "'deterministic' = 2" in refused(deterministic=2)
  assert "field i (int)" in refused(deterministic=True)


def test_op_determinism_that_a_script_has_switched_on_stays():
  tf_config.enable_op_determinism()
  try:
    tf.set_random_seed(1)
    with tf.Session(config=configured(deterministic=1)) as session:
      session.run(tf.random.uniform([2]))
    assert tf_config.is_op_determinism_enabled()
  finally:
    tf_config.disable_op_determinism()


def test_g48_op_select_implmode():
  before = tf_config.tensor_float_32_execution_enabled()
  try:
    tf_config.enable_tensor_float_32_execution(True)
    assert accepted(op_select_implmode="high_performance") == 7
    assert tf_config.tensor_float_32_execution_enabled()
    assert accepted(op_select_implmode="high_precision") == 7
    assert not tf_config.tensor_float_32_execution_enabled()
    assert "high_performance_for_all" in refused(op_select_implmode="exact")
  finally:
    tf_config.enable_tensor_float_32_execution(before)


# Loops


def test_iterations_per_loop_is_compared_with_the_count_of_the_call():
  assert _options.check_iterations_per_loop(configured(iterations_per_loop=10), 10) is None
  assert _options.check_iterations_per_loop(configured(), 10) is None
  assert _options.check_iterations_per_loop(None, 10) is None
  assert "= 10 differs from the 20 iterations" in _options.check_iterations_per_loop(configured(iterations_per_loop=10), 20)
  assert "1 or more" in refused(iterations_per_loop=0)


# Profiles


def profiles(folder):
  return sorted(path.name for path in folder.glob("plugins/profile/*/*.xplane.pb"))


@pytest.mark.parametrize("text", ['{{"output": "{0}", "task_trace": "on"}}', "{{'output':'{0}','training_trace':'on',}}"])
def test_profiling_mode_writes_a_profile_when_the_session_closes(tmp_path, text):
  output = tmp_path / "made"
  options = dict(profiling_mode=True, profiling_options=text.format(output))
  with tf.Session(config=configured(**options)) as session:
    assert not output.exists()
    assert session.run(tf.constant(1) + 2) == 3
    assert profiles(output) == []
  assert len(profiles(output)) == 1


def trace_of(folder):
  """The ops of the one Chrome trace in a folder, in their order."""
  (path,) = folder.glob("timeline_*.json")
  events = json.loads(path.read_text())["traceEvents"]
  ops = sorted((event["ts"], event["args"]["name"]) for event in events if event.get("ph") == "X" and event.get("cat") == "Op")
  return [name for _, name in ops]


@pytest.mark.parametrize("way", WAYS)
def test_profiling_mode_sees_every_kind_of_run(way, tmp_path):
  if way == "MonitoredSession":
    tf.train.get_or_create_global_step()
  options = dict(profiling_mode=True, profiling_options=json.dumps({"output": str(tmp_path)}))
  product = tf.matmul(tf.random.uniform([2, 2], seed=1), tf.ones([2, 2]), name="product")
  with tf.Session(config=configured(**options)) as session:
    assert WAYS[way](session, product).shape == (2, 2)
  assert len(profiles(tmp_path)) == 1
  if way == "partial_run":  # TensorFlow gives no statistics of these
    assert not list(tmp_path.glob("timeline_*"))
  else:
    assert "product" in trace_of(tmp_path)


def test_the_chrome_trace_has_the_first_twenty_runs_and_leaves_the_runs_alone(tmp_path):
  options = dict(profiling_mode=True, profiling_options=json.dumps({"output": str(tmp_path)}))
  product = tf.matmul(tf.random.uniform([2, 2], seed=1), tf.ones([2, 2]), name="product")
  metadata, full = tf.RunMetadata(), tf.RunMetadata()
  with tf.Session(config=configured(**options)) as session:
    with pytest.raises(tf.errors.InvalidArgumentError):
      session.run(tf.debugging.check_numerics(tf.constant(np.nan) * product, "bad"))
    for _ in range(18):
      session.run(product)
    session.run(product, options=tf.RunOptions(output_partition_graphs=True), run_metadata=metadata)
    assert metadata.partition_graphs and metadata.step_stats.dev_stats
    for _ in range(3):
      session.run(product, options=tf.RunOptions(trace_level=tf.RunOptions.FULL_TRACE), run_metadata=full)
      assert full.step_stats.dev_stats
  assert trace_of(tmp_path).count("product") == 19
  assert not list(tmp_path.glob("*.part"))


@pytest.mark.parametrize("level", [tf.RunOptions.NO_TRACE, tf.RunOptions.FULL_TRACE])
def test_the_chrome_trace_has_callables_of_callable_options(level, tmp_path):
  options = dict(profiling_mode=True, profiling_options=json.dumps({"output": str(tmp_path)}))
  fed = tf.placeholder(tf.float32, [2, 2], name="fed")
  tf.matmul(fed, tf.ones([2, 2]), name="product")
  what = config_pb2.CallableOptions(feed=["fed:0"], fetch=["product:0"], run_options=tf.RunOptions(trace_level=level))
  with tf.Session(config=configured(**options)) as session:
    call = session._make_callable_from_options(what)
    for i in range(25):
      metadata = tf.RunMetadata()
      assert call(np.full([2, 2], i, np.float32), run_metadata=metadata)[0].tolist() == [[2 * i] * 2] * 2
      assert bool(metadata.step_stats.dev_stats) == (level != tf.RunOptions.NO_TRACE or i < 20)
  assert trace_of(tmp_path).count("product") == 20


def test_each_session_has_a_trace_of_its_own_also_without_close(tmp_path):
  script = tmp_path / "open.py"
  script.write_text(
    textwrap.dedent("""
      import json, sys
      import tensorflow.compat.v1 as tf
      tf.disable_v2_behavior()
      sys.path.insert(0, sys.argv[1])
      from test_npu_options import configured
      sessions = []
      for name in ("one", "two"):
        options = dict(profiling_mode=True, profiling_options=json.dumps({"output": f"{sys.argv[2]}/{name}"}))
        sessions.append(tf.Session(config=configured(**options)))
        sessions[-1].run(tf.matmul(tf.random.uniform([2, 2]), tf.ones([2, 2]), name=name))
      """)
  )
  done = subprocess.run([sys.executable, script, os.path.dirname(__file__), tmp_path], capture_output=True, text=True, timeout=300)
  assert done.returncode == 0, done.stderr[-4000:]
  for name, other in (("one", "two"), ("two", "one")):
    ops = trace_of(tmp_path / name)
    assert name in ops and other not in ops
  assert len(profiles(tmp_path / "one")) == 1


def test_two_sessions_share_a_profile(tmp_path):
  options = dict(profiling_mode=True, profiling_options=json.dumps({"output": str(tmp_path)}))
  first, second = (tf.Session(config=configured(**options)) for _ in range(2))
  total = tf.constant(1) + 2
  first.run(total)
  second.run(total)
  first.close()
  assert profiles(tmp_path) == []
  second.close()
  second.close()
  assert len(profiles(tmp_path)) == 1


def test_a_folder_that_cannot_be_made_costs_the_profile_and_not_the_run(tmp_path):
  (tmp_path / "file").write_text("")
  options = dict(profiling_mode=True, profiling_options=json.dumps({"output": str(tmp_path / "file" / "x")}))
  with tf.Session(config=configured(**options)) as session:
    assert session.run(tf.constant(1) + 2) == 3


def test_profiling_reaches_a_monitored_session_and_an_exit_without_close(tmp_path):
  script = tmp_path / "monitored.py"
  script.write_text(
    textwrap.dedent("""
      import json, sys
      import tensorflow.compat.v1 as tf
      tf.disable_v2_behavior()
      sys.path.insert(0, sys.argv[1])
      from test_npu_options import configured
      options = dict(profiling_mode=True, profiling_options=json.dumps({"output": sys.argv[2]}))
      tf.train.get_or_create_global_step()
      session = tf.train.MonitoredTrainingSession(config=configured(**options))
      print(session.run(tf.train.get_global_step()))
      """)
  )
  done = subprocess.run([sys.executable, script, os.path.dirname(__file__), tmp_path], capture_output=True, text=True, timeout=300)
  assert done.returncode == 0 and done.stdout.strip() == "0", done.stderr[-4000:]
  assert len(profiles(tmp_path)) == 1


def test_profiler_is_a_context_manager_with_start_and_stop(tmp_path):
  from npu_bridge.profiler.profiler import Profiler

  with tf.Session() as session:
    with Profiler(level="L1", output_path=str(tmp_path)):
      session.run(tf.constant(1) + 2)
    assert len(profiles(tmp_path)) == 1
    profiler = Profiler(output_path=str(tmp_path))
    with pytest.raises(RuntimeError, match="was not started"):
      profiler.stop()
    profiler.start()
    for another in (profiler, Profiler(output_path=str(tmp_path))):
      with pytest.raises(RuntimeError):
        another.start()
    profiler.stop()
  with pytest.raises(TypeError):
    Profiler("L0")
  for name in ("level", "aic_metrics", "output_path"):
    with pytest.raises(ValueError, match=name):
      Profiler(**{name: 1})


# The table, its page, and the specification


def specified():
  """{key: (field or "", policy, cell of allowed values)} from the tables of the specification, where it is at hand."""
  page = ROOT.parent / "shared" / "spec" / "npu_bridge_options.md"
  if not page.is_file():
    pytest.skip("the specification is not beside this tree: the table is not compared with it")
  section = page.read_text(encoding="utf-8").split("## 3. ")[1].split("### 3.6")[0]
  rows = {}
  for line in section.splitlines():
    cells = [part.strip().replace("\\|", "|") for part in re.split(r"(?<!\\)\|", line.strip())[1:-1]]
    if len(cells) < 5 or cells[0] in ("key", "---"):
      continue
    policy = re.match(r"act|valid|accept", cells[-1]).group()
    names = [name.strip() for name in re.split(r",(?![^(]*\))| / ", cells[0])]
    fields = [part.strip().strip("*")[:1] for part in re.split(r", | / ", cells[1])]
    for position, name in enumerate(names):
      own = re.match(r"(\w+) \((\w)\b.*\)$", name)
      key, field = own.groups() if own else (name, fields[min(position, len(fields) - 1)])
      rows[key] = (field, policy, cells[2] if len(names) == 1 else "")
  return rows


def test_the_table_has_the_keys_fields_and_policies_of_the_specification():
  spec = specified()
  table = {row["key"]: row for row in _options.table()}
  assert table.keys() == spec.keys()
  for key, (field, policy, allowed) in spec.items():
    row = table[key]
    assert (row["field"], row["policy"]) == (field, policy), key
    for word in row["words"]:
      if len(word) > 1:
        assert word in allowed, f"{key}: {word}"
    for word in re.findall(r"\b[A-Za-z]+(?:_[A-Za-z0-9]+)+\b", allowed if row["words"] else ""):
      assert word in row["words"] or word == "mix_compile_mode", f"{key}: {word} is missing"


def test_the_page_of_the_parameter_map_is_fresh():
  sys.path.insert(0, str(ROOT / "scripts"))
  try:
    import make_parameter_map
  finally:
    sys.path.pop(0)
  page = make_parameter_map.PAGE.read_text(encoding="utf-8")
  assert page == make_parameter_map.render(_options.table()), "run scripts/make_parameter_map.py"
  for row in _options.table():
    assert f"\n| `{row['key']}` | {row['field']} | " in page


def test_nearest_finds_what_was_meant():
  for wrong, right in (("precison_mode", "precision_mode"), ("autotune_tune_mode", "auto_tune_mode"), ("sump_mode", "dump_mode")):
    assert _options.nearest(wrong) == right
  assert _options.nearest("") in {row["key"] for row in _options.table()}
