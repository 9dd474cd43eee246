"""Every argument of every public function and method, given things of a wrong type: ValueError that names the argument, says what
was expected and what was found. An argument without a line in CASES fails a test.
"""

import dataclasses
import inspect
import re
from collections.abc import Callable
from typing import Any

import helpers
import numpy as np
import pytest
import tensorflow.compat.v1 as tf

import mxrec

STEP_PATH = "somewhere"


class Thing:
  def __repr__(self):
    return "<a thing>"


@dataclasses.dataclass
class World:
  """What calls need that are right but for one argument."""

  sess: Any
  table: Any
  loss: Any
  rows: list
  pairs: list
  saver: Any
  sgd: Any
  adamw: Any


@pytest.fixture
def world(sess):
  emb_table = helpers.table(dimension=2)
  loss = tf.reduce_sum(mxrec.embedding_lookup(emb_table, [1, 2]))
  rows = mxrec.get_sparse_embedding()
  pairs = list(zip(tf.gradients(loss, rows), rows))
  saver = mxrec.EmbeddingTableSaver([emb_table])
  return World(sess, emb_table, loss, rows, pairs, saver, tf.train.GradientDescentOptimizer(0.1), mxrec.AdamWOptimizer())


def tensors(*values):
  """Makes the tensors in the graph of the test."""
  return lambda: [tf.constant(value) for value in values]


def make_table(w, **arguments):
  return mxrec.get_embedding_table(**{"name": "u", "dimension": 2, "device_vocabulary_size": 10, **arguments})


def look_up(w, **arguments):
  pooled = {"weights", "combiner"} & set(arguments)
  return mxrec.embedding_lookup(**{"table": w.table, "ids": tf.sparse.from_dense([[1, 2]]) if pooled else [1], **arguments})


def make_column(w, **arguments):
  column = tf.feature_column.categorical_column_with_identity("c", 10)
  made = mxrec.embedding_column(**{"categorical_column": column, "table": w.table, **arguments})
  return tf.feature_column.input_layer({"c": [[1]]}, [made])


CALLS: dict[str, Callable] = {  # public name -> call with one argument replaced
  "init": lambda w, **a: mxrec.init(**a),
  "get_embedding_table": make_table,
  "embedding_lookup": look_up,
  "embedding_column": make_column,
  "minimize": lambda w, **a: mxrec.minimize(**{"loss": w.loss, "optimizer": w.sgd, **a}),
  "save_with_tf_saver": lambda w, **a: mxrec.save_with_tf_saver(**a),
  "stats": lambda w, **a: mxrec.stats(**a),
  "summary": lambda w, **a: mxrec.summary(**a),
  "warm_start": lambda w, **a: mxrec.warm_start(**{"checkpoint": STEP_PATH, **a}),
  "testing.set_clock": lambda w, **a: mxrec.testing.set_clock(**a),
  "AdamWOptimizer": lambda w, **a: mxrec.AdamWOptimizer(**a),
  "AMSGradOptimizer": lambda w, **a: mxrec.AMSGradOptimizer(**a),
  "GroupFtrlOptimizer": lambda w, **a: mxrec.GroupFtrlOptimizer(**a),
  "LambOptimizer": lambda w, **a: mxrec.LambOptimizer(**a),
  "RowWiseAdagradOptimizer": lambda w, **a: mxrec.RowWiseAdagradOptimizer(**a),
  "sparse_optimizer": lambda w, **a: mxrec.sparse_optimizer(**{"optimizer": w.sgd, **a}),
  "RowOptimizer.minimize": lambda w, **a: w.adamw.minimize(**{"loss": w.loss, **a}),
  "RowOptimizer.compute_gradients": lambda w, **a: w.adamw.compute_gradients(**{"loss": w.loss, **a}),
  "RowOptimizer.apply_gradients": lambda w, **a: w.adamw.apply_gradients(**{"grads_and_vars": w.pairs, **a}),
  "EmbeddingTableSaver": lambda w, **a: mxrec.EmbeddingTableSaver(**{"emb_tables": [w.table], **a}),
  "EmbeddingTableSaver.save": lambda w, **a: w.saver.save(**{"sess": w.sess, "save_path": STEP_PATH, "global_step": 1, **a}),
  "EmbeddingTableSaver.load": lambda w, **a: w.saver.load(**{"sess": w.sess, "save_path": STEP_PATH, **a}),
  "EmbeddingTableSaver.latest_step": lambda w, **a: w.saver.latest_step(**a),
  "EmbeddingTable.size": lambda w, **a: w.table.size(**a),
  "EmbeddingTable.stats": lambda w, **a: w.table.stats(**a),
  "EmbeddingTable.export": lambda w, **a: w.table.export(**a),
  "EmbeddingTable.evict": lambda w, **a: w.table.evict(**a),
  "EmbeddingTable.lookup_numpy": lambda w, **a: w.table.lookup_numpy(**{"keys": [1], "session": w.sess, **a}),
  "EmbeddingTable.insert": lambda w, **a: w.table.insert(**{"keys": [1], "session": w.sess, **a}),
  "EmbeddingTable.erase": lambda w, **a: w.table.erase(**{"keys": [1], "session": w.sess, **a}),
}

TEXT = (3, None, Thing(), ["a"], b"a")
NUMBERS = ("1", None, Thing(), [1], 1.5, True)
OPTIONAL_INT = ("1", Thing(), [1], 1.5, True)
FLAGS = (1, "yes", None, Thing(), np.bool_(True))
OPTIONAL_NAME = (5, Thing(), ["a"], b"a", "a b", "é", "_a")
SESSIONS = (3, "session", Thing(), [None])
OUTSIDE = ([2**64], [-(2**63) - 1], [2**63, -1])
INTEGERS = (None, [None], "a", ["a"], {1}, {"a": 1}, Thing(), 1.5, [1.5], [True], [[1], [2, 3]], *OUTSIDE)
HYPER = (1, True, None, "0.1", [0.1], Thing(), np.float32(0.1), tensors(1, "a", [0.1, 0.2]))
NUMBER_OR_TENSOR = ("1", [1.0], Thing(), True, tensors("a", True, [1.0, 2.0]))
FINITE = (None, True, "0.1", [0.1], Thing(), 1j, float("nan"), float("inf"), tensors(0.1))
STEP = (3, "x", Thing(), [1], 1.5, tensors(1))
LOSS = (3.0, None, "x", Thing(), [1.0], lambda: [tf.Variable(1.0)], tensors(1, "a"))

COMBINERS = (3, Thing(), ["sum"], "max", b"sum")
MAX_NORM = ("1", Thing(), [1.0], True, 0.0, tensors(1.0))
PADDING = ("1", Thing(), 1.5, True, [], [[1]], [1, None], [[1], [2, 3]], [2**64], tensors(1))

CASES: dict[str, dict[str, tuple[tuple, str]]] = {  # public name -> argument -> (wrong values, words that say what was expected)
  "init": {"toml_path": ((3, Thing(), ["a"], b"a", ""), "str|length")},
  "get_embedding_table": {
    "name": (TEXT, "str"),
    "dimension": (NUMBERS, "int"),
    "device_vocabulary_size": (NUMBERS, "int"),
    "initializer": ((3, None, "zeros", Thing(), tf.zeros_initializer), "TensorFlow initializer"),
    "key_dtype": ((3.5, None, "zeros", Thing(), [1], tf.int32), "int64"),
    "value_dtype": ((3.5, None, "zeros", Thing(), [1], tf.float64), "float32"),
    "distribution_strategy": ((3, None, Thing(), ["MP"]), "MP"),
    "min_used_times": (OPTIONAL_INT, "int"),
    "max_cold_secs": (OPTIONAL_INT, "int"),
    "capacity_policy": ((3, None, Thing(), ["grow"]), "grow, error, evict"),
    "evict_by": ((3, Thing(), ["lru"], b"lru"), "capacity_policy"),
    "evict_half_life": (OPTIONAL_INT, "capacity_policy"),
    "max_bytes": (OPTIONAL_INT, "int"),
    "non_finite": ((3, None, Thing(), ["skip"]), "apply, skip, error"),
    "check_lookups": (FLAGS, "bool"),
    "allow_large_dimension": (FLAGS, "bool"),
    "save_with_tf_saver": ((1, "yes", Thing()), "bool"),
    "owner": ((1, None, "rank", Thing()), "owner"),
    "hot_keys": ((3, "1", Thing(), [], [1.5], True, [[1], [2]], tensors(1)), "a list of 1 to 65536 integers"),
    "expected_batch_ids": ((0, "1", Thing(), [1], 1.5, True, tensors(1)), "int|expected_batch_ids"),
  },
  "embedding_lookup": {
    "table": ((3, None, "t", Thing(), ["t"]), "get_embedding_table"),
    "ids": (
      (*INTEGERS, lambda: [tf.data.Dataset.range(3), [tf.constant(1), tf.constant("a")]], tensors(1.5, "a", True)),
      "int64, int32 or uint64|64-bit|int64 or all uint64|one type",
    ),
    "training": (FLAGS, "bool"),
    "default": (
      ("x", True, {1}, Thing(), [[1], [2, 3]], [1.0, "a"], [1, 2, 3], tensors("a", True, 1j, [1.0, 2.0, 3.0])),
      r"numbers|a number or have shape \[2\]",
    ),
    "weights": (
      ("x", Thing(), {1: 2}, ["a", "b"], [[1.0], [2.0, 3.0]], tensors("a", 1, [1, 2])),
      "numbers|floating type|one value",
    ),
    "combiner": (COMBINERS, "sum, mean, sqrtn"),
    "max_norm": (MAX_NORM, "number above 0"),
    "padding_id": (PADDING, "integer or a list"),
    "name": (OPTIONAL_NAME, "str|TensorFlow name"),
  },
  "embedding_column": {
    "categorical_column": ((3, None, "c", Thing(), ["c"]), "categorical column"),
    "table": ((3, None, "t", Thing(), ["t"]), "get_embedding_table"),
    "combiner": ((*COMBINERS, None), "mean|sum"),
    "max_norm": (MAX_NORM, "number above 0"),
    "training": (FLAGS, "bool"),
    "default": (("x", True, Thing(), [1, 2, 3]), r"numbers|a number or have shape \[2\]"),
    "padding_id": (PADDING, "integer or a list"),
  },
  "minimize": {
    "loss": (LOSS, "float tensor"),
    "optimizer": (("sgd", None, 3, Thing(), tf.train.AdamOptimizer), "object"),
    "global_step": (STEP, "variable"),
    "clip_norm": (NUMBER_OR_TENSOR, "number"),
  },
  "save_with_tf_saver": {"enabled": (FLAGS, "bool")},
  "stats": {"session": (SESSIONS, "Session")},
  "summary": {"table": ((3, None, "t", Thing(), ["t"]), "get_embedding_table")},
  "warm_start": {
    "checkpoint": ((*TEXT, ""), "str|length"),
    "names": ((3, "t", Thing(), ["t"], {1: "t"}, {"t": 3}, {"t": "nobody"}, {"t": Thing()}), "dict|names of tables|no table"),
    "with_optimizer": (FLAGS, "bool"),
  },
  "testing.set_clock": {"seconds": (("1", Thing(), [1], True, 1j), "number")},
  "AdamWOptimizer": {
    **{name: (HYPER, "float|scalar") for name in ("learning_rate", "weight_decay", "beta_1", "beta_2", "epsilon")},
    "name": (TEXT, "str"),
    "initial_state": ((3, None, Thing(), ["zeros"]), "zeros, original"),
  },
  "AMSGradOptimizer": {
    **{name: (HYPER, "float|scalar") for name in ("learning_rate", "beta_1", "beta_2", "epsilon")},
    "name": (TEXT, "str"),
  },
  "LambOptimizer": {
    **{name: (HYPER, "float|scalar") for name in ("learning_rate", "weight_decay", "beta_1", "beta_2", "epsilon")},
    "name": (TEXT, "str"),
  },
  "RowWiseAdagradOptimizer": {
    **{name: (HYPER, "float|scalar") for name in ("learning_rate", "epsilon")},
    "initial_accumulator_value": (FINITE, "number"),
    "name": (TEXT, "str"),
  },
  "GroupFtrlOptimizer": {
    **{name: (HYPER, "float|scalar") for name in ("learning_rate", "beta")},
    **{f"{name}_regularization_strength": (HYPER, "float|scalar") for name in ("l1", "l2", "l21")},
    "initial_accumulator_value": (FINITE, "number"),
    "name": (TEXT, "str"),
  },
  "sparse_optimizer": {
    "optimizer": (("sgd", None, 3, Thing(), tf.train.AdamOptimizer), "object"),
    "weight_decay": (FINITE, "number"),
    "l2_regularization": (FINITE, "number"),
    "row_clip_norm": (tuple(value for value in FINITE if value is not None), "number"),
    "learning_rate_multipliers": (
      (
        3,
        "t",
        "",
        Thing(),
        [("t", 1.0)],
        [],
        {3: 1.0},
        {"t": "1"},
        {"t": None},
        {"t": True},
        lambda: [{"t": tf.constant(value)} for value in (1, "a", [1.0])],
      ),
      "dict|keyed by tables|number|scalar|float",
    ),
  },
  "RowOptimizer.minimize": {
    "loss": (LOSS, "float tensor"),
    "global_step": (STEP, "variable"),
    "var_list": ((3, "x", Thing(), [3], [None], {"a": 1}, []), "looked-up rows|No variables"),
    "gate_gradients": ((7, "x", None, Thing()), "GATE_OP"),
    "aggregation_method": ((7, "x", Thing()), "[Aa]ccepted values"),
    "colocate_gradients_with_ops": (FLAGS, "bool"),
    "name": (OPTIONAL_NAME, "str|TensorFlow name"),
    "grad_loss": ((3, "x", Thing(), [1.0]), "tensor"),
  },
  "RowOptimizer.apply_gradients": {
    "grads_and_vars": (
      (3, None, Thing(), [3], ["abc"], [None], [(1,)], [(1, 2, 3)], [(1, 2)], [(None, None)], {1: 2}, [Thing()], []),
      "gradient, rows",
    ),
    "global_step": (STEP, "variable"),
    "name": (OPTIONAL_NAME, "str|TensorFlow name"),
  },
  "EmbeddingTableSaver": {"emb_tables": ((3, None, "t", Thing(), (1,), [3], [None]), "table"), "keep": (OPTIONAL_INT, "int")},
  "EmbeddingTableSaver.save": {
    "sess": (SESSIONS, "Session"),
    "save_path": ((*TEXT, ""), "str|length"),
    "global_step": (NUMBERS, "int"),
  },
  "EmbeddingTableSaver.load": {
    "sess": (SESSIONS, "Session"),
    "save_path": ((*TEXT, ""), "str|length"),
    "global_step": (OPTIONAL_INT, "int"),
  },
  "EmbeddingTableSaver.latest_step": {"save_path": ((*TEXT, ""), "str|length")},
  **{f"EmbeddingTable.{name}": {"session": (SESSIONS, "Session")} for name in ("size", "stats", "export", "evict")},
  "EmbeddingTable.lookup_numpy": {
    "keys": ((*INTEGERS, tensors(1)), "integers|int64"),
    "session": (SESSIONS, "Session"),
    "return_found": (FLAGS, "bool"),
  },
  "EmbeddingTable.insert": {
    "keys": ((*INTEGERS, tensors(1)), "integers|int64"),
    "values": (("x", Thing(), {1: 2}, [[1], [2, 3]], [["a", "b"]], [1.0], tensors([[1.0, 2.0]])), r"numbers|shape \[1, 2\]"),
    "session": (SESSIONS, "Session"),
  },
  "EmbeddingTable.erase": {"keys": ((*INTEGERS, tensors(1)), "integers|int64"), "session": (SESSIONS, "Session")},
}
CASES["RowOptimizer.compute_gradients"] = {
  name: case for name, case in CASES["RowOptimizer.minimize"].items() if name not in ("global_step", "name")
}
WITHOUT_ARGUMENTS = {
  "get_existing_tables",
  "get_init_hashtable_op",
  "get_sparse_embedding",
  "version",
  "testing.now",
  "RowOptimizer.row_rule",
  "NamedRowOptimizer.row_rule",
}
NOT_CALLED_BY_USERS = {"EmbeddingTable"}  # made by get_embedding_table


def public_callables():
  """(name, callable) of what the package offers: functions, classes, and methods by the class of ours that defines them."""
  things = {name: getattr(mxrec, name) for name in mxrec.__all__ if callable(getattr(mxrec, name))}
  things |= {f"testing.{name}": thing for name, thing in vars(mxrec.testing).items() if inspect.isfunction(thing)}
  for thing in list(things.values()):
    if inspect.isclass(thing):
      for owner in (owner for owner in thing.__mro__ if owner.__module__.startswith("mxrec.")):
        for method, value in vars(owner).items():
          if not method.startswith("_") and callable(getattr(thing, method)) and not isinstance(value, property):
            things[f"{owner.__name__}.{method}"] = getattr(owner, method)
  return {name: thing for name, thing in things.items() if name not in NOT_CALLED_BY_USERS}


def test_every_argument_of_the_package_has_cases():
  arguments = {
    name: {argument for argument in inspect.signature(thing).parameters if argument != "self"}
    for name, thing in public_callables().items()
  }
  assert {name for name, given in arguments.items() if not given} == WITHOUT_ARGUMENTS
  assert {name: given for name, given in arguments.items() if given} == {name: set(cases) for name, cases in CASES.items()}
  assert set(CALLS) == set(CASES)


def found_in(text, value):
  """Whether a message says what was given: its type, dtype, shape or value, or those of something in it."""
  inner = [*value, *value.values()] if isinstance(value, dict) else value
  if isinstance(inner, (list, tuple)) and any(found_in(text, item) for item in inner):
    return True
  words = [type(value).__name__, repr(value), f" {value}"]
  if isinstance(value, (tf.Tensor, tf.Variable)):
    words += [value.dtype.name, str(value.shape)]
  elif isinstance(value, tf.DType):
    words += [value.name]
  elif isinstance(value, (list, tuple, str, bytes)) and len(value) == 0:
    words += ["empty", "got 0"]
  elif isinstance(value, (list, tuple, str, int, float)) and value != [[1], [2, 3]]:
    array = np.asarray(value if not isinstance(value, list) or not any(map(tf.is_tensor, value)) else [])
    words += [f"dtype {array.dtype}", f"got {list(array.shape)}", f"got {array.shape}"]
  return any(word in text for word in words)


@pytest.mark.parametrize("name, argument", [(name, argument) for name, cases in CASES.items() for argument in cases])
def test_a_wrong_type_is_a_value_error_that_names_the_argument_what_was_expected_and_what_was_found(
  name, argument, world, tmp_path, monkeypatch
):
  monkeypatch.chdir(tmp_path)
  wrong_values, expected = CASES[name][argument]
  for entry in wrong_values:
    made = entry() if inspect.isfunction(entry) else [entry]
    for value in made:
      before = len(tf.get_default_graph().get_operations())
      with pytest.raises(Exception) as caught:
        CALLS[name](world, **{argument: value})
      text = str(caught.value)
      assert type(caught.value) is ValueError, (value, caught.value)
      assert argument.split("_")[0] in text and (argument in text or argument == "values"), (value, text)
      assert re.search(expected, text), (value, text)
      assert found_in(text, value), (value, text)
      assert "MxrecApply" not in [op.type for op in tf.get_default_graph().get_operations()[before:]]
  assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("wrong", ["x", None, [1.0, 2.0], True])
def test_a_wrong_hyperparameter_inside_an_optimizer_object_names_it(wrong, world):
  makers = {
    "learning_rate": tf.train.GradientDescentOptimizer,
    "beta1": lambda value: tf.train.AdamOptimizer(0.1, beta1=value),
    "epsilon": lambda value: tf.train.AdamOptimizer(0.1, epsilon=value),
    "momentum": lambda value: tf.train.MomentumOptimizer(0.1, value),
    "rho": lambda value: tf.train.AdadeltaOptimizer(0.1, rho=value),
    "decay": lambda value: tf.train.RMSPropOptimizer(0.1, decay=value),
  }
  for argument, make in makers.items():
    with pytest.raises(ValueError, match=f"{argument} of the optimizer must be a number or a scalar tensor: got"):
      mxrec.minimize(world.loss, make(wrong))
  for optimizer in (mxrec.AdamWOptimizer(), mxrec.GroupFtrlOptimizer(), mxrec.sparse_optimizer(world.sgd)):
    optimizer._lr = wrong
    with pytest.raises(ValueError, match="learning_rate of the optimizer"):
      optimizer.minimize(world.loss)


def test_gradients_that_are_no_tensors_name_the_table(world):
  for wrong in ("x", Thing(), 3, tf.constant("a")):
    with pytest.raises(ValueError, match=r"gradient for table 't' must (be float32|be a float32 tensor|have shape)"):
      world.adamw.apply_gradients([(wrong, world.rows[0])])


def test_things_of_another_graph_are_refused_by_name(world):
  with tf.Graph().as_default():
    other_step, other_ids = tf.Variable(0), tf.constant([1], tf.int64)
  with pytest.raises(ValueError, match="global_step must be a variable of the graph in use"):
    mxrec.minimize(world.loss, world.sgd, global_step=other_step)
  with pytest.raises(ValueError, match="ids of table 't' must be a tensor of the table's graph"):
    mxrec.embedding_lookup(world.table, other_ids)


def test_what_is_right_is_still_taken(world):
  w = world
  steps = [tf.Variable(0, use_resource=resource, dtype=dtype) for resource in (False, True) for dtype in (tf.int64, tf.int32)]
  for step in steps:
    mxrec.minimize(w.loss, w.sgd, global_step=step, clip_norm=np.float32(1))
    w.adamw.minimize(w.loss, global_step=step, name="scope/mine", var_list=w.rows[0], grad_loss=tf.constant(2.0))
  mxrec.minimize(w.loss, w.sgd, clip_norm=tf.constant(1))
  ids = (5, np.int64(5), (1, 2), [np.int64(1), 2], [tf.constant(1), tf.constant(2)], [])
  defaults = (1, np.float64(2), [1, 2], [tf.constant(1.0), 2.0], tf.constant(3))
  rows = [mxrec.embedding_lookup(w.table, some) for some in ids]
  rows += [mxrec.embedding_lookup(w.table, [1], default=row) for row in defaults]
  rows += [mxrec.embedding_lookup(w.table, [1], name=name) for name in ("a/b", "", ".a", None)]
  with tf.name_scope("around"):
    rows.append(mxrec.embedding_lookup(w.table, [1], name="_a"))
  w.sess.run(rows)
  mxrec.testing.set_clock(np.float32(3))
