"""Iteration loops, marks on graphs, and the small helpers that migrated scripts call as `util.<name>`."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence
from typing import Any

import tensorflow.compat.v1 as tf
from tensorflow.core.framework import attr_value_pb2
from tensorflow.core.framework import variable_pb2 as _variable_pb2
from tensorflow.python.framework import ops as _ops
from tensorflow.python.ops import variable_scope as _variable_scope

from npu_bridge import _loops, _session

_COLLECTION = "npu_runconfig"
# So that import_meta_graph gives variables back and not tensors.
_ops.register_proto_function(
  _COLLECTION,
  proto_type=_variable_pb2.VariableDef,
  to_proto=lambda variable, export_scope=None: variable.to_proto(export_scope=export_scope),
  from_proto=tf.Variable.from_proto,
)
_LOOP_VARIABLES = ("iterations_per_loop", "loop_cond", "zero", "one")
_values: dict[Any, Any] = {}


# --- iteration loops ---


def set_iteration_per_loop(sess: Any, train_op: tf.Operation, iterations_per_loop: int = 1) -> tf.Operation:
  """Makes one run of the training op advance N steps.

  A run of the returned op, or of anything that depends on it, takes N dataset elements and N steps of the global step; other
  fetches show the last iteration, and feeds are the same for all. The end of the data, as any error, ends the run at once; the
  iterations before it stay done.

  Args:
    sess: the session that will run it; its local variables `npu_runconfig/*` are loaded.
    train_op: an operation.
    iterations_per_loop: N.

  Returns:
    An operation named `IterationOp`; with N = 1, train_op itself.

  Raises:
    ValueError: train_op is no operation (a tensor is none), or N is below 1.
    TypeError: N is no int, or sess no session.
  """
  _check_operation(train_op)
  check_positive_integer(iterations_per_loop, "iterations_per_loop")
  _session.check("sess must be a session", sess)
  if iterations_per_loop == 1:
    return train_op
  loop = IterationPerLoop()
  op = loop.create_iteration_per_loop_var(train_op)
  loop.load_iteration_per_loop_var(sess, iterations_per_loop)
  return op


class IterationPerLoop:
  """set_iteration_per_loop in two steps, so that the graph can be frozen between them."""

  def __init__(self) -> None:
    self._loops: list[_loops.Loop] = []
    self._graph: tf.Graph | None = None

  def create_iteration_per_loop_var(self, train_op: tf.Operation) -> tf.Operation:
    """Builds the loop; returns an operation named `IterationOp`. ValueError if train_op is no operation."""
    _check_operation(train_op)
    with train_op.graph.as_default():
      for name in _LOOP_VARIABLES:
        create_or_get_var(name)
      # Not tf.group, which marks train_op, and TensorFlow warns of changes to an op that a session has seen.
      with tf.control_dependencies(None):
        op = tf.no_op(name=_loops.OP_NAME)
      op._add_control_input(train_op)
    self._loops.append(_loops.add(op))
    self._graph = train_op.graph
    return op

  def load_iteration_per_loop_var(self, sess: Any, iterations_per_loop: int = 1) -> None:
    """Sets the number of iterations in a session.

    Raises:
      RuntimeError: before create_iteration_per_loop_var.
      TypeError: the number is no int, or sess no session.
      ValueError: the number is below 1.
    """
    check_positive_integer(iterations_per_loop, "iterations_per_loop")
    _session.check("sess must be a session", sess)
    if self._graph is None:
      raise RuntimeError("load_iteration_per_loop_var needs create_iteration_per_loop_var before")
    _load_loop_variables(self._graph, sess, iterations_per_loop, self._loops)

  def shorten(self, sess: Any, iterations: int) -> None:
    """Sets the number of iterations in a session that goes on, leaving what the loop variables and options say of the others."""
    for loop in self._loops:
      loop.by_session[_loops.raw_session(sess)] = iterations


def _check_operation(train_op: Any) -> None:
  if not isinstance(train_op, tf.Operation):
    raise ValueError(f"train_op must be a tf.Operation: got {type(train_op).__name__} {getattr(train_op, 'name', train_op)!r}")


def _load_loop_variables(graph: tf.Graph, session: Any, count: int, loops: Iterable[_loops.Loop]) -> None:
  """What the graph's loop variables say, and what the session does."""
  _loops.set_count(loops, session, count)
  with graph.as_default():
    values = dict(zip(_LOOP_VARIABLES, (count - 1, 0, 0, 1)))
    raw = _loops.raw_session(session)
    for name, value in values.items():
      create_or_get_var(name).load(value, session if raw is None else raw)


def load_loops(session: Any, iterations_per_loop: int) -> None:
  """Sets the number of iterations of all loop ops of a session's graph."""
  _load_loop_variables(session.graph, session, iterations_per_loop, _loops.of_graph(session.graph))


def create_or_get_var(var_name: str) -> tf.Variable:
  """The int64 local variable `npu_runconfig/<var_name>` of the default graph, made when it is not there.

  Raises:
    RuntimeError: the graph has several of that name.
    TypeError: the name is no text.
  """
  check_type(var_name, str, "var_name")
  name = f"{_COLLECTION}/{var_name}"
  found = [variable for variable in tf.get_collection(_COLLECTION) if variable.op.name == name]
  if len(found) > 1:
    raise RuntimeError(f"the collection {_COLLECTION} holds {len(found)} variables {name}, expected one")
  if found:
    return found[0]
  with tf.variable_scope(_variable_scope.VariableScope(reuse=tf.AUTO_REUSE), auxiliary_name_scope=False), tf.name_scope(""):
    return tf.get_variable(
      name,
      shape=[],
      dtype=tf.int64,
      initializer=tf.zeros_initializer(),
      trainable=False,
      collections=[_COLLECTION, tf.GraphKeys.LOCAL_VARIABLES],
      use_resource=True,
    )


def variable_initializer_in_host(var_list: Sequence[tf.Variable]) -> tf.Operation:
  """The initializers of variables as one operation named `var_in_host`. TypeError unless a list of variables."""
  check_type(var_list, (list, tuple), "var_list")
  for variable in var_list:
    if not hasattr(variable, "initializer"):
      raise TypeError(f"var_list must hold variables: got {type(variable).__name__} {variable!r}")
  if not var_list:
    return tf.no_op(name="var_in_host")
  return tf.group(*[variable.initializer for variable in var_list], name="var_in_host")


# --- marks on graphs: kept as attributes of the ops; only _keep_dtype has an effect here ---


def _attribute(value: Any) -> attr_value_pb2.AttrValue:
  if isinstance(value, bool):
    return attr_value_pb2.AttrValue(b=value)
  if isinstance(value, int):
    return attr_value_pb2.AttrValue(i=value)
  return attr_value_pb2.AttrValue(s=str(value).encode())


def _mark(op: tf.Operation, **attributes: Any) -> None:
  for name, value in attributes.items():
    op._set_attr(name, _attribute(value))


def set_graph_exec_config(
  fetch: Any,
  dynamic_input: bool = False,
  dynamic_graph_execute_mode: str = "dynamic_execute",
  dynamic_inputs_shape_range: str | None = None,
  is_train_graph: bool = False,
  experimental_config: Any = None,
) -> Any:
  """Marks what is fetched with how the device is to execute it. Runs are the same here.

  Args:
    fetch: an operation, a tensor, a tensor's name, or a list or tuple of them.
    dynamic_input: kept as an attribute, as are the others.
    dynamic_graph_execute_mode: "dynamic_execute" or "lazy_recompile".
    dynamic_inputs_shape_range: text such as "getnext:[1~128]".
    is_train_graph: whether it trains.
    experimental_config: an ExperimentalConfig or None.

  Returns:
    fetch.

  Raises:
    ValueError: another mode, or another kind of fetch.
  """
  if dynamic_graph_execute_mode not in ("dynamic_execute", "lazy_recompile"):
    raise ValueError(f"dynamic_graph_execute_mode must be dynamic_execute or lazy_recompile: got {dynamic_graph_execute_mode!r}")
  marks: dict[str, Any] = {
    "_graph_dynamic_input": bool(dynamic_input),
    "_graph_dynamic_graph_execute_mode": dynamic_graph_execute_mode,
    "_is_train_graph": bool(is_train_graph),
  }
  if dynamic_inputs_shape_range:
    marks["_graph_dynamic_inputs_shape_range"] = dynamic_inputs_shape_range

  def mark(one: Any) -> None:
    if isinstance(one, str):
      try:
        one = tf.get_default_graph().as_graph_element(one)
      except (KeyError, ValueError) as error:
        raise ValueError(f"fetch {one!r} names no tensor and no operation of the graph") from error
    if isinstance(one, (list, tuple)):
      for part in one:
        mark(part)
    elif isinstance(one, tf.Operation):
      _mark(one, **marks)
    elif isinstance(one, tf.Tensor):
      _mark(one.op, **marks)
    else:
      raise ValueError(f"fetch must be operations, tensors or names of tensors: got {type(one).__name__}")

  mark(fetch)
  return fetch


def npu_compile(sess: Any, *fetches: Any) -> None:
  """Runs the fetches once, so that what happens once in a session has happened."""
  for fetch in fetches:
    sess.run(fetch)


def keep_tensors_dtypes(graph: tf.Graph, input_tensors: Sequence[str]) -> None:
  """Exempts the ops that make the named tensors from automatic mixed precision.

  Args:
    graph: their graph.
    input_tensors: list or tuple of names such as "x:0".

  Raises:
    ValueError: no graph, no list or tuple, or a name that is none.
  """
  if not isinstance(graph, tf.Graph):
    raise ValueError(f"graph must be a tf.Graph: got {type(graph).__name__}")
  if not isinstance(input_tensors, (list, tuple)):
    raise ValueError(f"input_tensors must be a list or tuple: got {type(input_tensors).__name__}")
  for name in input_tensors:
    if not isinstance(name, str):
      raise ValueError(f"input_tensors must hold names of tensors: got {type(name).__name__}")
    try:
      op = graph.get_tensor_by_name(name).op
    except KeyError as error:
      raise ValueError(f"input_tensors: the graph has no tensor {name}") from error
    _mark(op, _keep_dtype=1)


def _op_of(tensor: Any) -> tf.Operation:
  if not hasattr(tensor, "op"):
    raise TypeError(f"tensor must be a tensor of a graph: got {type(tensor).__name__} {tensor!r}")
  return tensor.op


def set_op_tensor_max_range(tensor: tf.Tensor, max_shape: Any) -> tf.Tensor:
  """Marks the op of a tensor with the biggest shape it will have; returns the tensor."""
  _mark(_op_of(tensor), _op_max_shape=str(max_shape))
  return tensor


def set_op_tensor_max_size(tensor: tf.Tensor, max_size: Any) -> tf.Tensor:
  """Marks the op of a tensor with the biggest size it will have; returns the tensor."""
  _mark(_op_of(tensor), _op_max_size=str(max_size))
  return tensor


def set_op_input_tensor_multi_dims(tensor: tf.Tensor, input_shape: Any, input_dims: Any) -> tf.Tensor:
  """Marks the op of a tensor with the shapes that its inputs may have; returns the tensor."""
  _mark(_op_of(tensor), _subgraph_multi_dims_input_shape=str(input_shape), _subgraph_multi_dims_input_dims=str(input_dims))
  return tensor


# --- ranks ---


def get_ranksize() -> str:
  """The number of ranks as text: RANK_SIZE or CM_WORKER_SIZE of the environment, "1" without them.

  Raises:
    ValueError: both are set.
  """
  rank_size, workers = os.environ.get("RANK_SIZE"), os.environ.get("CM_WORKER_SIZE")
  if rank_size is not None and workers is not None:
    raise ValueError("environment variables RANK_SIZE and CM_WORKER_SIZE exclude each other: both are set")
  return rank_size or workers or "1"


# --- a small dictionary for everybody ---


def global_dict_init() -> None:
  """Empties the dictionary that set_value and get_value share."""
  _values.clear()


def set_value(key: Any, value: Any) -> None:
  """Keeps a value."""
  _values[key] = value


def get_value(key: Any, def_value: Any = None) -> Any:
  """A kept value, or def_value."""
  return _values.get(key, def_value)


# --- who owns which weight, when the update is shared among ranks ---


def fair_division(inputs: Sequence[int], number: int) -> list[list[int]]:
  """Divides sizes, in their order, into `number` groups whose biggest sum is as small as it can be.

  Args:
    inputs: sizes of at least 0.
    number: how many groups.

  Returns:
    `number` lists, none of them empty, that follow each other in inputs.

  Raises:
    ValueError: fewer sizes than groups, or no group.
  """
  if number < 1 or len(inputs) < number:
    raise ValueError(f"fair_division needs at least one of {len(inputs)} sizes for each of {number} groups")

  def divide(limit: int) -> list[list[int]] | None:
    groups: list[list[int]] = [[]]
    for i, size in enumerate(inputs):
      # A new group when this one is full, or when each size left is needed to start one.
      if groups[-1] and (sum(groups[-1]) + size > limit or len(inputs) - i <= number - len(groups)):
        groups.append([])
      groups[-1].append(size)
    return groups if len(groups) <= number and all(sum(group) <= limit for group in groups) else None

  low, high = max(inputs), sum(inputs)
  while low < high:
    middle = (low + high) // 2
    low, high = (low, middle) if divide(middle) is not None else (middle + 1, high)
  return divide(low) or []


def add_grads_and_vars(grads_and_vars: Sequence[tuple[Any, Any]], rank_size: int) -> None:
  """Divides the variables among the ranks by their number of values, in order, for get_gid_by_grad and get_gid_by_weight.

  Raises:
    ValueError: fewer gradients than ranks.
  """
  pairs = [(gradient, variable) for gradient, variable in grads_and_vars if gradient is not None]
  sizes = [int(variable.shape.num_elements() or 0) for _, variable in pairs]
  owners = [rank for rank, group in enumerate(fair_division(sizes, rank_size)) for _ in group]
  for (gradient, variable), rank in zip(pairs, owners):
    set_value(("gradient", gradient.name), rank)
    set_value(("weight", variable.name), rank)


def get_gid_by_grad(grad: Any) -> int:
  """The rank that owns the update of a gradient; -1 if add_grads_and_vars did not see it. TypeError unless a tensor."""
  _op_of(grad)
  return get_value(("gradient", grad.name), -1)


def get_gid_by_weight(weight: Any) -> int:
  """The rank that owns the update of a variable; -1 if add_grads_and_vars did not see it. TypeError unless a variable."""
  _op_of(weight)
  return get_value(("weight", weight.name), -1)


# --- checks of arguments: TypeError for a wrong type, ValueError for a wrong value ---


def check_not_none(value: Any, name: str) -> None:
  """ValueError for None."""
  if value is None:
    raise ValueError(f"{name} must not be None")


def check_type(value: Any, type1: type | tuple[type, ...], name: str) -> None:
  """TypeError unless the value is of the type."""
  if not isinstance(value, type1):
    expected = " or ".join(one.__name__ for one in (type1 if isinstance(type1, tuple) else (type1,)))
    raise TypeError(f"{name} must be {expected}: got {type(value).__name__} {value!r}")


def _check_int(value: Any, name: str, low: int) -> None:
  check_not_none(value, name)
  if not isinstance(value, int) or isinstance(value, bool):
    raise TypeError(f"{name} must be int: got {type(value).__name__} {value!r}")
  if value < low:
    raise ValueError(f"{name} must be at least {low}: got {value}")


def check_nonnegative_integer(value: Any, name: str) -> None:
  """TypeError unless int, ValueError below 0 and for None."""
  _check_int(value, name, 0)


def check_positive_integer(value: Any, name: str) -> None:
  """TypeError unless int, ValueError below 1 and for None."""
  _check_int(value, name, 1)


def check_bool_type(value: Any, name: str) -> None:
  """TypeError unless bool."""
  check_type(value, bool, name)


def check_path(path: str) -> str:
  """The real path of a folder. TypeError unless str, ValueError if it is none."""
  check_type(path, str, "path")
  if not os.path.isdir(path):
    raise ValueError(f"path must be a folder: got {path!r}")
  return os.path.realpath(path)


def check_aoe_mode(aoe_mode: str) -> None:
  """ValueError unless "1", "2" or "4"."""
  if aoe_mode not in ("1", "2", "4"):
    raise ValueError(f"aoe_mode must be '1', '2' or '4': got {aoe_mode!r}")


def check_profiling_options(profiling_options: Any) -> str:
  """The profiling options as text. ValueError for None and empty ones, TypeError unless str or list."""
  if profiling_options is None or profiling_options == "" or profiling_options == []:
    raise ValueError("profiling_options must be set when profiling is enabled")
  check_type(profiling_options, (str, list, dict), "profiling_options")
  return profiling_options if isinstance(profiling_options, str) else json.dumps(profiling_options)


def convert_bool_to_int(value: bool | None) -> int:
  """1 for True, 0 for False, -1 for None. TypeError for anything else."""
  if value is None:
    return -1
  check_bool_type(value, "value")
  return int(value)


def format_string(value: Any, name: str) -> str:
  """A text or a whole number as text, "" for None. TypeError for anything else."""
  if value is None:
    return ""
  check_type(value, (str, int), name)
  return str(value)
