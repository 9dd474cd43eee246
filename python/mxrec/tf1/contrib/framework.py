"""tf.contrib.framework: argument scopes, and short ways to checkpoints and variables."""

from __future__ import annotations

import contextlib
import functools
import re
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow.compat.v1 as tf
from tensorflow.python.util import nest

__all__ = [
  "add_arg_scope",
  "add_model_variable",
  "arg_scope",
  "arg_scope_func_key",
  "arg_scoped_arguments",
  "argsort",
  "assert_scalar",
  "assign_from_checkpoint",
  "assign_from_checkpoint_fn",
  "assign_from_values_fn",
  "checkpoints_iterator",
  "create_global_step",
  "current_arg_scope",
  "filter_variables",
  "get_global_step",
  "get_local_variables",
  "get_model_variables",
  "get_or_create_global_step",
  "get_trainable_variables",
  "get_variables",
  "get_variables_by_name",
  "get_variables_by_suffix",
  "get_variables_to_restore",
  "has_arg_scope",
  "init_from_checkpoint",
  "is_tensor",
  "list_variables",
  "load_checkpoint",
  "load_variable",
  "local_variable",
  "model_variable",
  "nest",
  "sort",
  "variable",
]

argsort = tf.argsort
sort = tf.sort
is_tensor = tf.is_tensor
get_global_step = tf.train.get_global_step
create_global_step = tf.train.create_global_step
get_or_create_global_step = tf.train.get_or_create_global_step
list_variables = tf.train.list_variables
load_checkpoint = tf.train.load_checkpoint
load_variable = tf.train.load_variable
init_from_checkpoint = tf.train.init_from_checkpoint
checkpoints_iterator = tf.train.checkpoints_iterator
assert_scalar = tf.debugging.assert_scalar

# Argument scopes

_scopes: list[dict[str, dict[str, Any]]] = [{}]


def arg_scope_func_key(op: Callable[..., Any]) -> str:
  """The key of a function in a scope."""
  return getattr(op, "_arg_scope_key", f"{op.__module__}.{op.__qualname__}")


def current_arg_scope() -> dict[str, dict[str, Any]]:
  """Function key -> defaults that hold now."""
  return _scopes[-1]


def has_arg_scope(func: Callable[..., Any]) -> bool:
  """Whether the function takes part in argument scopes."""
  return hasattr(func, "_arg_scope_key")


def arg_scoped_arguments(func: Callable[..., Any]) -> tuple[str, ...]:
  """The names that a scope may set for the function."""
  return func._arg_scope_names


def add_arg_scope(func: Callable[..., Any]) -> Callable[..., Any]:
  """Decorator: defaults of the function's arguments can be set by `arg_scope`."""
  key = f"{func.__module__}.{func.__qualname__}"

  @functools.wraps(func)
  def with_scope(*args: Any, **kwargs: Any) -> Any:
    return func(*args, **{**_without_given(func, args, current_arg_scope().get(key, {})), **kwargs})

  code = func.__code__
  with_scope._arg_scope_key = key
  with_scope._arg_scope_names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
  return with_scope


def _without_given(func: Callable[..., Any], args: tuple[Any, ...], defaults: dict[str, Any]) -> dict[str, Any]:
  given = func.__code__.co_varnames[: len(args)]
  return {name: value for name, value in defaults.items() if name not in given}


@contextlib.contextmanager
def arg_scope(list_ops_or_scope: Any, **kwargs: Any) -> Iterator[dict[str, dict[str, Any]]]:
  """Sets default arguments within a `with` block.

  Args:
    list_ops_or_scope: functions decorated with add_arg_scope, or a scope that an earlier arg_scope gave.
    **kwargs: the defaults; none with a scope.

  Yields:
    The scope, for use again.

  Raises:
    ValueError: a function takes no part in scopes, or a scope comes with further defaults.
    TypeError: neither a list nor a scope.
  """
  if isinstance(list_ops_or_scope, dict):
    if kwargs:
      raise ValueError("arg_scope: a scope that exists takes no further arguments")
    scope = {key: dict(value) for key, value in list_ops_or_scope.items()}
  elif isinstance(list_ops_or_scope, (list, tuple)):
    scope = {key: dict(value) for key, value in current_arg_scope().items()}
    for op in list_ops_or_scope:
      if not has_arg_scope(op):
        raise ValueError(f"arg_scope: {arg_scope_func_key(op)} is not decorated with add_arg_scope")
      unknown = [name for name in kwargs if name not in arg_scoped_arguments(op)]
      if unknown and not op.__wrapped__.__code__.co_flags & 0x08:  # no **kwargs
        raise ValueError(f"arg_scope: {arg_scope_func_key(op)} has no argument {unknown[0]!r}")
      scope.setdefault(arg_scope_func_key(op), {}).update(kwargs)
  else:
    raise TypeError(f"arg_scope takes a list of functions or a scope: got {type(list_ops_or_scope).__name__}")
  _scopes.append(scope)
  try:
    yield scope
  finally:
    _scopes.pop()


# Variables


def filter_variables(
  var_list: Any, include_patterns: Any = None, exclude_patterns: Any = None, reg_search: bool = True
) -> list[Any]:
  """The variables whose op name fits one of the patterns to include (all without) and none of those to exclude."""
  find = re.search if reg_search else re.match
  kept = list(var_list)
  if include_patterns is not None:
    kept = [variable for variable in kept if any(find(pattern, variable.op.name) for pattern in include_patterns)]
  if exclude_patterns is not None:
    kept = [variable for variable in kept if not any(find(pattern, variable.op.name) for pattern in exclude_patterns)]
  return kept


def get_variables(scope: Any = None, suffix: str | None = None, collection: str = tf.GraphKeys.GLOBAL_VARIABLES) -> list[Any]:
  """Variables of a collection, below a scope, with names that end in `suffix`."""
  if isinstance(scope, tf.VariableScope):
    scope = scope.name
  if suffix is not None:
    suffix = suffix if ":" in suffix else suffix + ":"
    scope = (scope or "") + ".*" + suffix
  return tf.get_collection(collection, scope)


def get_trainable_variables(scope: Any = None, suffix: str | None = None) -> list[Any]:
  """As get_variables, of those that are trained."""
  return get_variables(scope, suffix, tf.GraphKeys.TRAINABLE_VARIABLES)


def get_model_variables(scope: Any = None, suffix: str | None = None) -> list[Any]:
  """As get_variables, of those that layers of contrib made."""
  return get_variables(scope, suffix, tf.GraphKeys.MODEL_VARIABLES)


def get_local_variables(scope: Any = None, suffix: str | None = None) -> list[Any]:
  """As get_variables, of local ones."""
  return get_variables(scope, suffix, tf.GraphKeys.LOCAL_VARIABLES)


def get_variables_by_suffix(suffix: str, scope: Any = None) -> list[Any]:
  """As get_variables with `suffix`."""
  return get_variables(scope=scope, suffix=suffix)


def get_variables_by_name(given_name: str, scope: Any = None) -> list[Any]:
  """The variables whose last name part is `given_name`."""
  return get_variables(scope=scope, suffix="/" + given_name + ":|^" + given_name + ":")


def get_variables_to_restore(include: list[str] | None = None, exclude: list[str] | None = None) -> list[Any]:
  """Global variables below the scopes to include (all without), without those below the scopes to exclude."""
  chosen: list[Any] = []
  for scope in include or [None]:
    chosen += [variable for variable in get_variables(scope) if not any(variable is other for other in chosen)]
  dropped = [variable for scope in exclude or [] for variable in get_variables(scope)]
  return [variable for variable in chosen if not any(variable is other for other in dropped)]


def add_model_variable(var: Any) -> None:
  """Adds to the collection of model variables, once."""
  if not any(var is other for other in tf.get_collection(tf.GraphKeys.MODEL_VARIABLES)):
    tf.add_to_collection(tf.GraphKeys.MODEL_VARIABLES, var)


@add_arg_scope
def variable(
  name: str,
  shape: Any = None,
  dtype: Any = None,
  initializer: Any = None,
  regularizer: Any = None,
  trainable: bool = True,
  collections: Any = None,
  caching_device: Any = None,
  device: Any = None,
  partitioner: Any = None,
  custom_getter: Any = None,
  use_resource: Any = None,
) -> Any:
  """tf.get_variable with a device."""
  collections = list(collections) if collections is not None else [tf.GraphKeys.GLOBAL_VARIABLES]
  getter = custom_getter or tf.get_variable
  with tf.device(device or ""):
    return getter(
      name,
      shape=shape,
      dtype=dtype or tf.float32,
      initializer=initializer,
      regularizer=regularizer,
      trainable=trainable,
      collections=collections,
      caching_device=caching_device,
      partitioner=partitioner,
      use_resource=use_resource,
    )


@add_arg_scope
def model_variable(
  name: str,
  shape: Any = None,
  dtype: Any = tf.float32,
  initializer: Any = None,
  regularizer: Any = None,
  trainable: bool = True,
  collections: Any = None,
  caching_device: Any = None,
  device: Any = None,
  partitioner: Any = None,
  custom_getter: Any = None,
  use_resource: Any = None,
) -> Any:
  """As `variable`, also in the collection of model variables."""
  collections = [*(collections or []), tf.GraphKeys.GLOBAL_VARIABLES, tf.GraphKeys.MODEL_VARIABLES]
  return variable(
    name,
    shape,
    dtype,
    initializer,
    regularizer,
    trainable,
    list(dict.fromkeys(collections)),
    caching_device,
    device,
    partitioner,
    custom_getter,
    use_resource,
  )


def local_variable(initial_value: Any, validate_shape: bool = True, name: str | None = None, use_resource: Any = None) -> Any:
  """A variable that is neither trained nor saved."""
  return tf.Variable(
    initial_value,
    trainable=False,
    collections=[tf.GraphKeys.LOCAL_VARIABLES],
    validate_shape=validate_shape,
    name=name,
    use_resource=use_resource,
  )


# Checkpoints


def assign_from_checkpoint(model_path: str, var_list: Any, ignore_missing_vars: bool = False) -> tuple[Any, dict[Any, Any]]:
  """An op that assigns variables the values of a checkpoint, and its feeds.

  Args:
    model_path: prefix of a checkpoint.
    var_list: variables, or name in the checkpoint -> variable.
    ignore_missing_vars: variables that the checkpoint lacks are left out instead of being an error.

  Raises:
    ValueError: the checkpoint lacks a variable, or has it in another shape.
  """
  reader = tf.train.load_checkpoint(model_path)
  named = var_list if isinstance(var_list, dict) else {variable.op.name: variable for variable in var_list}
  assigns, feeds = [], {}
  for name, target in named.items():
    if not reader.has_tensor(name):
      if ignore_missing_vars:
        tf.logging.warning("variable %s is not in checkpoint %s", name, model_path)
        continue
      raise ValueError(f"checkpoint {model_path} has no variable {name!r}")
    value = reader.get_tensor(name)
    if tuple(value.shape) != tuple(target.shape.as_list()):
      raise ValueError(f"variable {name!r}: checkpoint {model_path} has shape {value.shape}, the graph {target.shape}")
    feed = tf.placeholder(target.dtype.base_dtype, value.shape, name=f"{target.op.name.replace('/', '_')}_restored")
    assigns.append(tf.assign(target, feed))
    feeds[feed] = value
  return tf.group(*assigns), feeds


def assign_from_checkpoint_fn(
  model_path: str, var_list: Any, ignore_missing_vars: bool = False, reshape_variables: bool = False
) -> Callable[[Any], None] | None:
  """A function of a session that restores the variables; None when none is left to restore."""
  named = var_list if isinstance(var_list, dict) else {variable.op.name: variable for variable in var_list}
  if ignore_missing_vars:
    reader = tf.train.load_checkpoint(model_path)
    named = {name: variable for name, variable in named.items() if reader.has_tensor(name)}
    if not named:
      tf.logging.warning("no variable of the list is in checkpoint %s", model_path)
      return None
  saver = tf.train.Saver(named, reshape=reshape_variables)
  return lambda session: saver.restore(session, model_path)


def assign_from_values_fn(var_names_to_values: dict[str, Any]) -> Callable[[Any], Any]:
  """A function of a session that sets variables, given by name, to arrays."""
  ops, feeds = [], {}
  for name, value in var_names_to_values.items():
    (target,) = [variable for variable in tf.global_variables() if variable.op.name == name]
    feed = tf.placeholder(target.dtype.base_dtype, value.shape)
    ops.append(tf.assign(target, feed))
    feeds[feed] = value
  group = tf.group(*ops)
  return lambda session: session.run(group, feeds)
