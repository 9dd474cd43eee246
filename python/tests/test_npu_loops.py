"""Iteration loops: one run of the loop op is N steps."""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from npu_bridge import _loops, _options, _session
from npu_bridge.estimator.npu import util
from tensorflow.core.framework import summary_pb2  # noqa: F401 - registers the proto that hooks write
from tensorflow.core.protobuf import config_pb2

N = 10


class Model:
  """Counts: value takes the sum of the dataset's elements; loss shows the element and the value before the step."""

  def __init__(self, elements=1000):
    self.element = tf.data.make_one_shot_iterator(tf.data.Dataset.range(elements)).get_next()
    self.value = tf.get_variable("value", [], tf.int64, initializer=tf.zeros_initializer(), use_resource=True)
    self.step = tf.train.get_or_create_global_step()
    self.loss = self.value.read_value() * 1000 + self.element
    with tf.control_dependencies([self.loss]):
      adds = [self.value.assign_add(self.element), self.step.assign_add(1)]
    self.train = tf.group(*[add.op for add in adds])

  def start(self, session):
    session.run(tf.global_variables_initializer())
    return self


def test_fact_16_iteration_loop(sess):
  model = Model().start(sess)
  op = util.set_iteration_per_loop(sess, model.train, N)
  assert isinstance(op, tf.Operation) and op.name.endswith("IterationOp")
  sess.run(op)
  assert sess.run([model.step, model.value]) == [N, sum(range(N))]
  _, loss, element = sess.run([op, model.loss, model.element])
  assert element == 2 * N - 1, "ten more elements, the last one shown"
  assert loss == sum(range(2 * N - 1)) * 1000 + element, "the loss of the tenth step"
  assert sess.run(model.step) == 2 * N
  assert sess.run(model.element) == 2 * N, "a run without the loop takes one element"


def test_fact_16_arguments(sess):
  model = Model().start(sess)
  assert util.set_iteration_per_loop(sess, model.train, 1) is model.train
  assert util.set_iteration_per_loop(sess, model.train) is model.train
  for wrong in (0, -1):
    with pytest.raises(ValueError, match="iterations_per_loop"):
      util.set_iteration_per_loop(sess, model.train, wrong)
  for wrong in ("3", 2.0, True):
    with pytest.raises(TypeError, match="iterations_per_loop"):
      util.set_iteration_per_loop(sess, model.train, wrong)
  for wrong in (model.loss, "train", None):
    with pytest.raises(ValueError, match="train_op"):
      util.set_iteration_per_loop(sess, wrong, 2)


def test_a_no_op_under_control_dependencies_loops(sess):
  model = Model().start(sess)
  with tf.control_dependencies([model.train]):
    train = tf.no_op()
  op = util.set_iteration_per_loop(sess, train, N)
  sess.run(op)
  assert sess.run(model.step) == N


@pytest.mark.parametrize(
  "fetch",
  [
    lambda op: op,
    lambda op: op.name,
    lambda op: [op],
    lambda op: {"a": [op], "b": ()},
    lambda op: tf.group(op, tf.no_op()),
    lambda op: depends(op),
    lambda op: [depends(op), op],
  ],
)
def test_whatever_executes_the_loop_op_loops(sess, fetch):
  model = Model().start(sess)
  op = util.set_iteration_per_loop(sess, model.train, N)
  fetched = fetch(op)
  for run in (1, 2):
    sess.run(fetched)
    assert sess.run(model.step) == N * run


def depends(op):
  with tf.control_dependencies([op]):
    return tf.constant(1) + 0


def test_a_callable_loops(sess):
  model = Model().start(sess)
  op = util.set_iteration_per_loop(sess, model.train, N)
  sess.make_callable(op)()
  loss = sess.make_callable([op, model.loss])()[1]
  assert sess.run(model.step) == 2 * N
  assert loss % 1000 == 2 * N - 1


def test_feeds_are_the_same_in_every_iteration(sess):
  total = tf.get_variable("total", [], initializer=tf.zeros_initializer())
  x = tf.placeholder(tf.float32, [])
  op = util.set_iteration_per_loop(sess, total.assign_add(x).op, N)
  sess.run(total.initializer)
  sess.run(op, {x: 2.5})
  assert sess.run(total) == 25.0


def test_what_is_cut_off_by_a_feed_does_not_loop(sess):
  model = Model().start(sess)
  op = util.set_iteration_per_loop(sess, model.train, N)
  with tf.control_dependencies([op]):
    late = tf.constant(1.0) + 0
  result = late * 2
  assert sess.run(result, {late: 5.0}) == 10.0
  assert sess.run(model.step) == 0
  assert sess.run(result) == 2.0
  assert sess.run(model.step) == N


def test_the_end_of_the_data_ends_the_run_at_once_and_the_steps_stay(sess):
  model = Model(elements=14).start(sess)
  op = util.set_iteration_per_loop(sess, model.train, N)
  sess.run(op)
  with pytest.raises(tf.errors.OutOfRangeError):
    sess.run([op, model.loss])
  assert sess.run(model.step) == 14


def test_losses_equal_those_of_single_steps(sess):
  def build():
    tf.set_random_seed(1)
    data = np.random.RandomState(0).rand(100, 3).astype(np.float32)
    row = tf.data.make_one_shot_iterator(tf.data.Dataset.from_tensor_slices(data).batch(2, drop_remainder=True)).get_next()
    w = tf.get_variable("w", [3, 1], initializer=tf.ones_initializer())
    loss = tf.reduce_mean(tf.square(tf.matmul(row, w)))
    return loss, tf.train.AdamOptimizer(0.1).minimize(loss, tf.train.get_or_create_global_step())

  single, looped = [], []
  with tf.Graph().as_default(), tf.Session() as session:
    loss, train = build()
    session.run(tf.global_variables_initializer())
    single = [session.run([loss, train])[0] for _ in range(40)]
  with tf.Graph().as_default(), tf.Session() as session:
    loss, train = build()
    session.run(tf.global_variables_initializer())
    op = util.set_iteration_per_loop(session, train, 5)
    looped = [session.run([loss, op])[0] for _ in range(8)]
  np.testing.assert_allclose(looped, single[4::5], rtol=1e-6)


def test_a_loop_made_after_the_first_run_changes_no_op_that_the_session_has_seen(sess, capfd):
  model = Model().start(sess)
  op = util.set_iteration_per_loop(sess, model.train, N)
  sess.run(op)
  assert op.control_inputs == [model.train]
  assert "was changed by" not in capfd.readouterr().err


def test_two_steps_allow_a_frozen_graph(sess):
  model = Model().start(sess)
  loop = util.IterationPerLoop()
  with pytest.raises(RuntimeError, match="create_iteration_per_loop_var"):
    loop.load_iteration_per_loop_var(sess, 2)
  op = loop.create_iteration_per_loop_var(model.train)
  sess.graph.finalize()
  for count, expected in ((3, 3), (1, 4), (5, 9)):
    loop.load_iteration_per_loop_var(sess, count)
    sess.run(op)
    assert sess.run(model.step) == expected


def test_each_session_has_its_own_number():
  model = Model()
  loop = util.IterationPerLoop()
  op = loop.create_iteration_per_loop_var(model.train)
  init = tf.global_variables_initializer()
  with tf.Session() as one, tf.Session() as two:
    for session, count in ((one, 3), (two, 7)):
      session.run(init)
      loop.load_iteration_per_loop_var(session, count)
    for session, count in ((one, 3), (two, 7)):
      session.run(op)
      assert session.run(model.step) == count
  with tf.Session() as three:
    three.run(init)
    three.run(op)
    assert three.run(model.step) == 7, "what was loaded last"


def test_loops_of_different_numbers_in_one_run(sess):
  counters = [tf.get_variable(name, [], tf.int64, initializer=tf.zeros_initializer(), use_resource=True) for name in "ab"]
  sess.run(tf.global_variables_initializer())
  ops = [util.set_iteration_per_loop(sess, counter.assign_add(1).op, count) for counter, count in zip(counters, (2, 5))]
  sess.run(ops)
  assert sess.run(counters) == [2, 5]
  sess.run(ops[0])
  assert sess.run(counters) == [4, 5]


def test_the_loop_variables_show_what_was_loaded(sess):
  model = Model().start(sess)
  util.set_iteration_per_loop(sess, model.train, N)
  found = {variable.op.name: sess.run(variable) for variable in tf.local_variables()}
  assert found == {f"npu_runconfig/{name}": value for name, value in zip(util._LOOP_VARIABLES, (N - 1, 0, 0, 1))}
  assert all(variable not in tf.global_variables() for variable in tf.local_variables())


def test_initializing_local_variables_later_does_not_end_the_loop(sess):
  """On the NPU it does, and the script trains N times too little without a word."""
  model = Model().start(sess)
  op = util.set_iteration_per_loop(sess, model.train, N)
  sess.run(tf.local_variables_initializer())
  sess.run(op)
  assert sess.run(model.step) == N


def test_create_or_get_var_finds_its_variable_in_any_scope():
  with tf.variable_scope("outer"), tf.name_scope("inner"):
    made = util.create_or_get_var("loop_cond")
  assert made.op.name == "npu_runconfig/loop_cond"
  assert util.create_or_get_var("loop_cond") is made
  tf.add_to_collection("npu_runconfig", made)
  with pytest.raises(RuntimeError, match="2 variables"):
    util.create_or_get_var("loop_cond")


class Recorder(tf.train.SessionRunHook):
  def __init__(self, fetch):
    self.fetch = fetch
    self.seen = []

  def before_run(self, run_context):
    return tf.train.SessionRunArgs(self.fetch)

  def after_run(self, run_context, run_values):
    self.seen.append(run_values.results)


def test_a_monitored_session_runs_its_hooks_once_a_run(tmp_path):
  model = Model()
  loop = util.IterationPerLoop()
  op = loop.create_iteration_per_loop_var(model.train)
  hook = Recorder(model.loss)
  hooks = [hook, tf.train.StopAtStepHook(last_step=35)]
  saving = {"checkpoint_dir": str(tmp_path), "save_checkpoint_steps": 20, "log_step_count_steps": None}
  with tf.train.MonitoredTrainingSession(hooks=hooks, **saving) as session:
    loop.load_iteration_per_loop_var(session, N)
    assert session.run_step_fn(lambda step_context: step_context.session.run(model.step)) == 0
    while not session.should_stop():
      session.run(op)
  assert [seen % 1000 for seen in hook.seen] == [9, 19, 29, 39]
  assert tf.train.latest_checkpoint(str(tmp_path)).endswith("-40")


def test_a_monitored_session_ends_at_the_end_of_the_data():
  model = Model(elements=25)
  loop = util.IterationPerLoop()
  op = loop.create_iteration_per_loop_var(model.train)
  steps = []
  with tf.train.MonitoredSession() as session:
    loop.load_iteration_per_loop_var(session, N)
    while not session.should_stop():
      steps.append(session.run([op, model.step])[1])
    raw = _loops.raw_session(session)
    assert raw is None
  assert len(steps) == 2


def test_another_number_in_the_parameter_map_is_reported(monkeypatch):
  lines = []
  _options.forget_notes()
  monkeypatch.setattr(_options.tf_logging, "warning", lambda text, *args: lines.append(text % args))
  config = _session.edit_config()
  config.graph_options.rewrite_options.custom_optimizers[0].parameter_map["iterations_per_loop"].i = 4
  with tf.Session(config=config) as session:
    model = Model().start(session)
    op = util.set_iteration_per_loop(session, model.train, 4)
    assert not [line for line in lines if "iterations_per_loop" in line]
    op = util.set_iteration_per_loop(session, model.train, 5)
    assert any("'iterations_per_loop' = 4" in line and "a run does 5 steps" in line for line in lines)
    session.run(op)
    assert session.run(model.step) == 5


def test_options_and_metadata_go_to_the_last_iteration(sess):
  model = Model().start(sess)
  op = util.set_iteration_per_loop(sess, model.train, 3)
  metadata = tf.RunMetadata()
  sess.run(op, options=tf.RunOptions(trace_level=tf.RunOptions.FULL_TRACE), run_metadata=metadata)
  assert sess.run(model.step) == 3
  assert metadata.step_stats.dev_stats


def test_a_server_session_loops():
  server = tf.train.Server.create_local_server()
  model = Model()
  with tf.Session(server.target) as session:
    model.start(session)
    op = util.set_iteration_per_loop(session, model.train, N)
    assert session.run([op, model.step])[1] in (N - 1, N)
    assert session.run(model.step) == N


def test_tables_train_in_a_loop(sess):
  import mxrec

  table = mxrec.get_embedding_table("t", 2, 100)
  ids = tf.data.make_one_shot_iterator(tf.data.Dataset.range(100)).get_next()
  rows = mxrec.embedding_lookup(table, tf.reshape(ids, [1]))
  train = mxrec.minimize(tf.reduce_sum(rows), tf.train.GradientDescentOptimizer(0.1))
  sess.run(tf.global_variables_initializer())
  op = util.set_iteration_per_loop(sess, train, N)
  sess.run(op)
  assert table.size(sess) == N


def test_a_callable_of_callable_options_loops(sess):
  model = Model().start(sess)
  extra = tf.get_variable("extra", [], tf.int64, initializer=tf.zeros_initializer(), use_resource=True)
  sess.run(extra.initializer)
  x = tf.placeholder(tf.int64, [], name="x")
  ops = [util.set_iteration_per_loop(sess, train, n) for train, n in ((model.train, N), (extra.assign_add(x).op, 3))]
  options = config_pb2.CallableOptions(feed=[x.name], fetch=[model.loss.name], target=[op.name for op in ops])
  call = sess._make_callable_from_options(options)
  metadata = tf.RunMetadata()
  for run in (1, 2):
    (loss,) = call(np.int64(2), run_metadata=metadata)
    assert loss % 1000 == run * N - 1
    assert sess.run([model.step, extra]) == [run * N, run * 6]
  plain = sess._make_callable_from_options(config_pb2.CallableOptions(fetch=[extra.read_value().name]))
  assert plain()[0] == 12


def test_a_partial_run_of_a_loop_is_refused_by_name(sess):
  model = Model().start(sess)
  op = util.set_iteration_per_loop(sess, model.train, N)
  x = tf.placeholder(tf.float32, [])
  late = depends(op)
  for fetches in ([late], [op], [x * 2, late]):
    with pytest.raises(NotImplementedError, match="IterationOp: use session.run"):
      sess.partial_run_setup(fetches, [x])
  doubled = x * 2
  assert sess.partial_run(sess.partial_run_setup([doubled], [x]), doubled, {x: 2.0}) == 4.0


@pytest.fixture
def warnings(monkeypatch):
  lines = []
  monkeypatch.setattr(_loops.tf_logging, "warning", lambda text, *args: lines.append(text % args))
  return lines


def exported(path, count, **arguments):
  """Writes a meta graph whose op "train" adds one to the global step and is looped `count` times, if that is not None."""
  with tf.Graph().as_default(), tf.Session() as session, tf.name_scope("part"):
    step = tf.train.get_or_create_global_step()
    session.run(step.initializer)
    loop = util.IterationPerLoop()
    loop.create_iteration_per_loop_var(tf.assign_add(step, 1, name="train").op)
    if count is not None:
      loop.load_iteration_per_loop_var(session, count)
    tf.train.export_meta_graph(str(path), **arguments)
  return str(path)


@pytest.mark.parametrize("scope", [None, "inner"])
def test_a_loop_op_of_an_imported_meta_graph_loops(tmp_path, scope, warnings):
  path = exported(tmp_path / "graph.meta", 5)
  with tf.Graph().as_default() as graph, tf.Session() as session:
    tf.train.import_meta_graph(path, import_scope=scope)
    (op,) = [op for op in graph.get_operations() if op.name.endswith("IterationOp")]
    (step,) = tf.global_variables()
    session.run([tf.global_variables_initializer(), tf.local_variables_initializer()])
    session.run(op)
    assert session.run(step) == 5
    session.run(op.name)
    assert session.run(step) == 10
    tf.train.export_meta_graph(str(tmp_path / "again.meta"))
  with tf.Graph().as_default() as graph, tf.Session() as session:
    tf.train.import_meta_graph(str(tmp_path / "again.meta"))
    session.run([tf.global_variables_initializer(), tf.local_variables_initializer()])
    session.run(op.name)
    assert session.run(tf.global_variables()[0]) == 5
    util.load_loops(session, 2)
    session.run(op.name)
    assert session.run(tf.global_variables()[0]) == 7
  assert not warnings


def test_a_scope_is_exported_with_its_loops_and_without_others(tmp_path):
  path = exported(tmp_path / "part.meta", 4, export_scope="other")
  with tf.Graph().as_default() as graph:
    tf.train.import_meta_graph(path)
    assert not graph.get_operations() and not _loops.of_graph(graph)


def test_a_loop_op_without_its_number_runs_one_step_and_says_so(tmp_path, warnings):
  path = exported(tmp_path / "graph.meta", None)
  with tf.Graph().as_default() as graph, tf.Session() as session:
    tf.train.import_meta_graph(path)
    session.run(tf.global_variables_initializer())
    op = next(op for op in graph.get_operations() if op.name.endswith("IterationOp"))
    for _ in range(2):
      session.run(op)
    assert session.run(tf.global_variables()[0]) == 2
  assert len(warnings) == 1 and "was given no number of iterations" in warnings[0]
  definition = graph.as_graph_def()
  with tf.Graph().as_default() as graph, tf.Session() as session:
    tf.import_graph_def(definition, name="bare")
    session.run(graph.get_operation_by_name("bare/global_step/Assign"))
    for _ in range(2):
      session.run(f"bare/{op.name}")
    assert session.run("bare/global_step:0") == 2
  assert len(warnings) == 2 and f"the op bare/{op.name} is no loop in this graph" in warnings[1]


def test_a_loop_can_be_made_in_an_imported_graph(tmp_path):
  with tf.Graph().as_default(), tf.Session() as session:
    step = tf.train.get_or_create_global_step()
    session.run(step.initializer)
    util.set_iteration_per_loop(session, tf.assign_add(step, 1, name="train").op, 5)
    tf.train.export_meta_graph(str(tmp_path / "graph.meta"))
  with tf.Graph().as_default() as graph, tf.Session() as session:
    tf.train.import_meta_graph(str(tmp_path / "graph.meta"))
    session.run([tf.global_variables_initializer(), tf.local_variables_initializer()])
    looped = util.set_iteration_per_loop(session, graph.get_operation_by_name("train"), 3)
    session.run(looped)
    assert session.run(tf.train.get_global_step()) == 3
