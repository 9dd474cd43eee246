"""What the guide on sess.run migration promises of sessions, loops, equal runs (G-8 to G-11, G-17, G-20 to G-24, G-51, G-52)."""

import npu_bridge
import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from npu_bridge import npu_init
from tensorflow.core.protobuf.rewriter_config_pb2 import RewriterConfig

import mxrec

SWITCHES = (
  "function_optimization",
  "constant_folding",
  "shape_optimization",
  "arithmetic_optimization",
  "loop_optimization",
  "dependency_optimization",
  "layout_optimizer",
)


@pytest.fixture(autouse=True)
def stock(monkeypatch):
  for name in ("RANK_SIZE", "RANK_ID", "RANK_TABLE_FILE", "CM_WORKER_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE"):
    monkeypatch.delenv(name, raising=False)
  npu_bridge.unpatch_sessions()
  yield
  npu_bridge.unpatch_sessions()


def train(make_session, wrap=lambda optimizer: optimizer, steps=50):
  """Losses of a small network on made-up data."""
  with tf.Graph().as_default():
    tf.set_random_seed(7)
    rows = np.random.RandomState(3).rand(256, 6).astype(np.float32)
    labels = (rows.sum(axis=1, keepdims=True) > 3).astype(np.float32)
    dataset = tf.data.Dataset.from_tensor_slices((rows, labels)).repeat().batch(32, drop_remainder=True)
    x, y = tf.data.make_one_shot_iterator(dataset).get_next()
    for i, size in enumerate((16, 1)):
      w = tf.get_variable(f"w{i}", [x.shape[1].value, size])
      x = tf.matmul(x, w) + tf.get_variable(f"b{i}", [size], initializer=tf.zeros_initializer())
      x = tf.nn.relu(x) if size > 1 else x
    loss = tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(labels=y, logits=x))
    op = wrap(tf.train.AdamOptimizer(0.01)).minimize(loss, tf.train.get_or_create_global_step())
    with make_session() as session:
      session.run(tf.global_variables_initializer())
      return [session.run([loss, op])[0] for _ in range(steps)]


def test_g8_a_migrated_script_has_the_losses_of_the_unmigrated_one():
  plain = train(tf.Session)
  assert plain[-1] < plain[0]
  migrated = train(lambda: tf.Session(config=npu_init.npu_config_proto()), npu_init.npu_distributed_optimizer_wrapper)
  np.testing.assert_allclose(migrated, plain, rtol=0, atol=1e-6)
  npu_bridge.patch_sessions()
  np.testing.assert_allclose(train(tf.Session, npu_init.npu_tf_optimizer), plain, rtol=0, atol=1e-6)


def test_g20_the_options_that_stay_on_are_left_alone_and_change_no_result():
  plain = train(tf.Session, steps=10)
  for value in (RewriterConfig.OFF, RewriterConfig.ON):
    config = tf.ConfigProto()
    options = config.graph_options.rewrite_options
    for name in SWITCHES:
      setattr(options, name, value)
    options.disable_model_pruning = value == RewriterConfig.OFF
    npu_init.npu_config_proto(config)
    assert {getattr(options, name) for name in SWITCHES} == {value}
    assert options.disable_model_pruning == (value == RewriterConfig.OFF)
    np.testing.assert_allclose(train(lambda config=config: tf.Session(config=config), steps=10), plain, rtol=0, atol=1e-6)
  untouched = npu_init.npu_config_proto().graph_options.rewrite_options
  assert {getattr(untouched, name) for name in SWITCHES} == {RewriterConfig.DEFAULT} and not untouched.disable_model_pruning


def test_g21_a_device_that_is_not_there_does_not_stop_a_script():
  npu_bridge.patch_sessions()
  with tf.device("/gpu:0"):
    result = tf.get_variable("v", [2], initializer=tf.ones_initializer()) * 2
  with tf.Session() as session:
    session.run(tf.global_variables_initializer())
    assert session.run(result).tolist() == [2, 2]


def test_g11_g22_g24_iterators_feeds_fetches_metadata_and_several_sessions():
  npu_bridge.patch_sessions()
  dataset = tf.data.Dataset.range(10).batch(4, drop_remainder=True)
  iterator = tf.data.Iterator.from_structure(tf.data.get_output_types(dataset), tf.data.get_output_shapes(dataset))
  element, start = iterator.get_next(), iterator.make_initializer(dataset)
  assert element.shape == [4]
  scale = tf.placeholder_with_default(np.int64(1), [])
  fetches = {"a": [element * scale, (element,)], "b": tf.no_op()}
  first, second = tf.Session(), tf.Session(config=tf.ConfigProto(inter_op_parallelism_threads=1))
  for _ in range(2):  # starting again begins with the first row
    for session in (first, second):
      session.run(start)
      metadata = tf.RunMetadata()
      trace = tf.RunOptions(trace_level=tf.RunOptions.FULL_TRACE)
      got = session.run(fetches, {scale: 3}, options=trace, run_metadata=metadata)
      assert got["a"][0].tolist() == [0, 3, 6, 9] and got["a"][1][0].tolist() == [0, 1, 2, 3] and got["b"] is None
      assert metadata.step_stats.dev_stats
      assert session.run(element).tolist() == [4, 5, 6, 7]
      with pytest.raises(tf.errors.OutOfRangeError):
        session.run(element)
  first.close()
  second.close()


def test_g10_tensorflow_1_names_stay_whichever_import_comes_first():
  script = "assert tf.Session and tf.ConfigProto and tf.train.AdamOptimizer and tf.get_variable and npu_ops and hccl_ops"
  own, star = "import tensorflow.compat.v1 as tf", "from npu_bridge.npu_init import *"
  for lines in ((own, star), (star, own), (star,)):
    exec("\n".join([*lines, script]), {})


def test_g17_gelu_is_the_formula_of_the_guide_in_value_and_gradient(sess):
  x = tf.constant(np.linspace(-10, 10, 4001, dtype=np.float32))
  formula = x * 0.5 * (1.0 + tf.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * tf.pow(x, 3))))
  ours = npu_init.npu_unary_ops.gelu(x)
  values, slopes = sess.run([[ours, formula], [tf.gradients(y, x)[0] for y in (ours, formula)]])
  np.testing.assert_allclose(values[0], values[1], rtol=0, atol=1e-5)
  np.testing.assert_allclose(slopes[0], slopes[1], rtol=0, atol=1e-4)


def test_g52_repeated_runs_without_randomness_have_equal_losses():
  reference = train(tf.Session, steps=20)
  assert train(tf.Session, steps=20) == reference
  device = [train(lambda: tf.Session(config=npu_init.npu_config_proto()), npu_init.npu_tf_optimizer, 20) for _ in range(2)]
  assert device[0][0] == device[1][0]
  np.testing.assert_allclose(device[0], device[1], rtol=0, atol=1e-3)


def deterministic_run(folder, threads):
  """Losses of a model with a table and a dense part, under `deterministic`, and what the files of its checkpoints hold."""
  with tf.Graph().as_default():
    tf.set_random_seed(7)
    table = mxrec.get_embedding_table("items", 8, 10_000, tf.random_normal_initializer(stddev=0.1))
    batches = np.random.default_rng(0).zipf(1.3, [10, 256, 4]) % 5_000
    ids = tf.data.make_one_shot_iterator(tf.data.Dataset.from_tensor_slices(batches)).get_next()
    rows = tf.reshape(mxrec.embedding_lookup(table, ids), [256, 32])
    hidden = npu_init.npu_ops.dropout(tf.nn.relu(tf.matmul(rows, tf.get_variable("w0", [32, 16]))), 0.8)
    logits = tf.matmul(hidden, tf.get_variable("w1", [16, 1]))[:, 0]
    labels = tf.cast(ids[:, 0] % 2, tf.float32)
    loss = tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(labels=labels, logits=logits))
    step = mxrec.minimize(loss, tf.train.AdagradOptimizer(0.1))
    saver, tables = tf.train.Saver(), mxrec.EmbeddingTableSaver([table])
    config = npu_init.npu_config_proto()
    config.graph_options.rewrite_options.custom_optimizers[0].parameter_map["deterministic"].i = 1
    config.intra_op_parallelism_threads = config.inter_op_parallelism_threads = threads
    config.use_per_session_threads = True
    with tf.Session(config=config) as session:
      session.run(tf.global_variables_initializer())
      session.run(mxrec.get_init_hashtable_op())
      losses = [float(session.run([loss, step])[0]) for _ in range(10)]
      saver.save(session, str(folder / "model"))
      tables.save(session, str(folder), 10)
  # The names of files of tables are drawn anew in every run.
  return losses, sorted(path.read_bytes() for path in folder.rglob("*") if ".data-" in path.name or path.suffix == ".mxt")


def test_g51_deterministic_runs_are_equal_to_the_bit_in_losses_and_checkpoints(tmp_path):
  found = []
  for threads in (1, 4, 16):
    for run in range(2):
      folder = tmp_path / f"{threads}_{run}"
      folder.mkdir()
      found.append(deterministic_run(folder, threads))
  assert len(found[0][1]) >= 2 and found[0][0][-1] < found[0][0][0]
  for other in found[1:]:
    assert other == found[0]
