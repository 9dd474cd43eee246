"""DistributedOptimizer for optimizers of TensorFlow 1, and DistributedGradientTape."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import tensorflow as tf

from mxrec import _minimize
from mxrec import optimizer as optimizer_lib
from mxrec.horovod import _ops
from mxrec.horovod._compression import Compression
from mxrec.horovod._process_sets import ProcessSet, global_process_set
from mxrec.horovod._reduce import Accumulator, Reducer


class _DistributedOptimizer(tf.compat.v1.train.Optimizer):
  """An optimizer whose gradients are reduced over the ranks; with op=Adasum, whose steps are."""

  # mxrec.minimize hands variables and looked-up rows together to compute_gradients and apply_gradients.
  takes_looked_up_rows = True

  def __init__(self, optimizer: Any, name: str, use_locking: bool, reducer: Reducer, accumulator: Accumulator | None):
    super().__init__(name=name, use_locking=use_locking)
    self._optimizer, self._reducer, self._accumulator = optimizer, reducer, accumulator
    self._last_pass: tf.Tensor | None = None
    self._combines_steps = reducer.op == _ops.Adasum

  def __getattr__(self, name: str) -> Any:
    if name in ("_optimizer", "__getstate__", "__setstate__"):
      raise AttributeError(name)
    return getattr(self._optimizer, name)

  def register_local_var(self, var: Any) -> None:
    """The gradient of this variable stays on its rank."""
    self._reducer.register_local(var)

  def compute_gradients(self, *args: Any, **kwargs: Any) -> list[tuple[Any, Any]]:
    """The other optimizer's (gradient, variable) pairs, with gradients reduced over the ranks (not with op=Adasum)."""
    self._reducer.check_membership()
    pairs = self._optimizer.compute_gradients(*args, **kwargs)
    gradients, variables = [gradient for gradient, _ in pairs], [variable for _, variable in pairs]
    if self._accumulator is None and not self._combines_steps:
      gradients = self._reducer(gradients, variables)
    elif self._accumulator is not None:
      if self._reducer.sparse_as_dense:
        gradients = [tf.convert_to_tensor(g) if isinstance(g, tf.IndexedSlices) else g for g in gradients]
      given = [variable for gradient, variable in zip(gradients, variables) if gradient is not None]
      reduce = (lambda sums: sums) if self._combines_steps else lambda sums: self._reducer(sums, given)
      gradients, self._last_pass = self._accumulator.add(gradients, variables, reduce)
    return list(zip(gradients, variables))

  def apply_gradients(self, grads_and_vars: Iterable[tuple[Any, Any]], global_step: Any = None, name: str | None = None) -> Any:
    """The other optimizer's; with backward_passes_per_step it changes variables and global_step in every so many-th step only."""
    pairs = list(grads_and_vars)
    last = self._last_pass
    if self._accumulator is None or last is None:
      return self._apply(pairs, global_step, name)
    collection = tf.compat.v1.get_collection_ref(tf.compat.v1.GraphKeys.TRAIN_OP)
    before = list(collection)

    def apply() -> tf.Tensor:
      with tf.control_dependencies([self._apply(pairs, global_step, name)]):
        return tf.constant(True)

    with tf.control_dependencies([value for gradient, _ in pairs if gradient is not None for value in _parts(gradient)]):
      train_op = tf.cond(last, apply, lambda: tf.constant(False)).op
    collection[:] = [*before, train_op]
    return train_op

  def _apply(self, pairs: list[tuple[Any, Any]], global_step: Any, name: str | None) -> Any:
    if self._combines_steps and (self._reducer.process_set.size() or 1) > 1:
      return self._apply_combined(pairs, global_step, name)
    return self._apply_alone(pairs, global_step, name)

  def _apply_combined(self, pairs: list[tuple[Any, Any]], global_step: Any, name: str | None) -> Any:
    """Lets the other optimizer make its step here, and replaces what it changed by the combination of all ranks' changes."""
    variables = [
      variable
      for gradient, variable in pairs
      if gradient is not None and optimizer_lib.find_lookup(variable) is None and not self._reducer.is_local(variable)
    ]
    collection = tf.compat.v1.get_collection_ref(tf.compat.v1.GraphKeys.TRAIN_OP)
    train_ops = list(collection)
    with tf.name_scope(self._name):
      # Steps change variables in place: what they were needs memory of its own.
      before = [tf.raw_ops.DeepCopy(x=_ops.read(variable)) for variable in variables]
      with tf.control_dependencies([value.op for value in before]):
        pairs = [(gradient if gradient is None else _copied(gradient), variable) for gradient, variable in pairs]
        stepped = self._apply_alone(pairs, global_step, name)
      with tf.control_dependencies([stepped]):
        changes = [_ops.read(variable) - value for variable, value in zip(variables, before)]
        combined = self._reducer(changes, variables)
        assigned = [variable.assign(old + change) for variable, old, change in zip(variables, before, combined)]
        train_op = tf.group(stepped, *assigned)
    collection[:] = [*train_ops, train_op]
    return train_op

  def _apply_alone(self, pairs: list[tuple[Any, Any]], global_step: Any, name: str | None) -> Any:
    inner = self._optimizer
    if getattr(inner, "takes_looked_up_rows", False) or not any(optimizer_lib.find_lookup(variable) for _, variable in pairs):
      return inner.apply_gradients(pairs, global_step=global_step, name=name)
    return _minimize.apply_gradients(inner, pairs, global_step, name)

  @property
  def applies_by(self) -> Any:
    """The optimizer that applies gradients as they are once they are reduced; None when there is more to it."""
    plain = self._accumulator is None and not self._combines_steps and not getattr(self._optimizer, "takes_looked_up_rows", False)
    return self._optimizer if plain else None

  def get_slot(self, *args: Any, **kwargs: Any) -> Any:
    """The other optimizer's slot variable."""
    return self._optimizer.get_slot(*args, **kwargs)

  def get_slot_names(self, *args: Any, **kwargs: Any) -> list[str]:
    """The names of the other optimizer's slots."""
    return self._optimizer.get_slot_names(*args, **kwargs)

  def variables(self, *args: Any, **kwargs: Any) -> list[Any]:
    """The other optimizer's own variables."""
    return self._optimizer.variables(*args, **kwargs)


def _copied(gradient: Any) -> Any:
  """The same gradient, behind the control dependencies of here."""
  if isinstance(gradient, tf.IndexedSlices):
    return tf.IndexedSlices(tf.identity(gradient.values), gradient.indices, gradient.dense_shape)
  return tf.identity(gradient)


def _parts(gradient: Any) -> list[tf.Tensor]:
  return [gradient.values, gradient.indices] if isinstance(gradient, tf.IndexedSlices) else [gradient]


def DistributedOptimizer(
  optimizer: Any,
  name: str | None = None,
  use_locking: bool = False,
  device_dense: str = "",
  device_sparse: str = "",
  compression: Any = Compression.none,
  sparse_as_dense: bool = False,
  backward_passes_per_step: int = 1,
  op: int = _ops.Average,
  gradient_predivide_factor: float = 1.0,
  average_aggregated_gradients: bool = False,
  num_groups: int = 0,
  groups: Any = None,
  process_set: ProcessSet = global_process_set,
  scale_local_gradients: bool = True,
) -> Any:
  """An optimizer that reduces gradients over the ranks before it applies them.

  Args:
    optimizer: a tf.compat.v1.train.Optimizer, or one of Keras.
    name: its name; None: "Distributed" and the other's class.
    use_locking: as for other optimizers of TensorFlow 1.
    device_dense, device_sparse: ignored.
    compression: Compression.none, fp16, bf16, or a Compressor of your own.
    sparse_as_dense: tf.IndexedSlices become dense tensors first.
    backward_passes_per_step: gradients of so many steps are added up before they travel and are applied.
    op: Average, Sum or Adasum. With Adasum an optimizer of TensorFlow 1 makes its step on each rank, and the ranks' changes of the
      variables are combined, as in Horovod; of an optimizer of Keras the gradients are.
    gradient_predivide_factor: with Average, gradients are divided by it before the sum, and by size / factor after.
    average_aggregated_gradients: the sum over steps is divided by their number.
    num_groups: gradients travel in so many operations; 0: each in its own.
    groups: lists of variables whose gradients travel together, or a number.
    process_set: the ranks that take part; others may make the optimizer, but not use it (ValueError).
    scale_local_gradients: gradients of local variables (register_local_var) are divided by the number of ranks.

  Returns:
    An optimizer with the slots and attributes of the other one. Gradients of looked-up rows of mxrec's tables pass untouched.

  Raises:
    ValueError: a wrong argument; an optimizer of another kind.
  """
  arguments = {
    "op": op,
    "compression": compression,
    "sparse_as_dense": sparse_as_dense,
    "gradient_predivide_factor": gradient_predivide_factor,
    "num_groups": num_groups,
    "groups": groups,
    "process_set": process_set,
    "scale_local_gradients": scale_local_gradients,
  }
  name = name or f"Distributed{type(optimizer).__name__}"
  reducer = Reducer(name=name, **arguments)
  accumulator: Accumulator | None = Accumulator(backward_passes_per_step, average_aggregated_gradients)
  if backward_passes_per_step == 1:
    accumulator = None
  if isinstance(optimizer, tf.compat.v1.train.Optimizer):
    return _DistributedOptimizer(optimizer, name, use_locking, reducer, accumulator)
  from mxrec.horovod import _keras

  if _keras.is_optimizer(optimizer):
    return _keras.distributed(optimizer, name, reducer, accumulator)
  raise ValueError(
    f"hvd.DistributedOptimizer takes an optimizer of tf.compat.v1.train or of Keras: got {type(optimizer).__module__}."
    f"{type(optimizer).__name__}"
  )


class _DistributedGradientTape(tf.GradientTape):
  """A tape whose gradients are reduced over the ranks."""

  _reducer: Reducer

  @tf.autograph.experimental.do_not_convert
  def gradient(self, target: Any, sources: Any, output_gradients: Any = None, **kwargs: Any) -> Any:
    """As tf.GradientTape.gradient, and reduced over the ranks."""
    self._reducer.check_membership()
    gradients = super().gradient(target, sources, output_gradients, **kwargs)
    reduced = self._reducer(tf.nest.flatten(gradients), _flat_sources(sources))
    return tf.nest.pack_sequence_as(gradients, reduced) if isinstance(sources, (list, tuple, dict)) else reduced[0]

  def register_local_source(self, source: Any) -> None:
    """The gradient of this variable stays on its rank."""
    self._reducer.register_local(source)


def _flat_sources(sources: Any) -> Sequence[Any]:
  return tf.nest.flatten(sources) if isinstance(sources, (list, tuple, dict)) else [sources]


def DistributedGradientTape(
  gradtape: tf.GradientTape,
  device_dense: str = "",
  device_sparse: str = "",
  compression: Any = Compression.none,
  sparse_as_dense: bool = False,
  op: int = _ops.Average,
  gradient_predivide_factor: float = 1.0,
  num_groups: int = 0,
  groups: Any = None,
  process_set: ProcessSet = global_process_set,
  scale_local_gradients: bool = True,
) -> Any:
  """A tape that reduces gradients over the ranks; arguments and errors as DistributedOptimizer.

  Args:
    gradtape: a tape, before, while or after it records. Use the result instead of it.
    device_dense, device_sparse, compression, sparse_as_dense, op, gradient_predivide_factor, num_groups, groups, process_set,
      scale_local_gradients: as for DistributedOptimizer.
  """
  if not isinstance(gradtape, tf.GradientTape):
    raise ValueError(f"hvd.DistributedGradientTape takes a tf.GradientTape: got {type(gradtape).__name__}")
  kind = type(type(gradtape).__name__, (_DistributedGradientTape, type(gradtape)), {})
  tape = kind.__new__(kind)
  tape.__dict__.update(gradtape.__dict__)
  tape._reducer = Reducer(
    op=op,
    compression=compression,
    sparse_as_dense=sparse_as_dense,
    gradient_predivide_factor=gradient_predivide_factor,
    num_groups=num_groups,
    groups=groups,
    process_set=process_set,
    scale_local_gradients=scale_local_gradients,
    name="DistributedGradientTape",
  )
  return tape


def PartialDistributedOptimizer(optimizer: Any, *args: Any, local_layers: Any = None, **kwargs: Any) -> Any:
  """DistributedOptimizer, where gradients of the trainable variables of some Keras layers stay on their ranks."""
  made = DistributedOptimizer(optimizer, *args, **kwargs)
  for variable in _variables_of(local_layers):
    made.register_local_var(variable)
  return made


def PartialDistributedGradientTape(gradtape: tf.GradientTape, *args: Any, local_layers: Any = None, **kwargs: Any) -> Any:
  """DistributedGradientTape, where gradients of the trainable variables of some Keras layers stay on their ranks."""
  made = DistributedGradientTape(gradtape, *args, **kwargs)
  for variable in _variables_of(local_layers):
    made.register_local_source(variable)
  return made


def _variables_of(layers: Any) -> list[Any]:
  layers = [] if layers is None else layers if isinstance(layers, (list, tuple, set)) else [layers]
  return [variable for layer in layers for variable in layer.trainable_weights]
