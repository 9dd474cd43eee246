"""Optimizers that average gradients over the ranks, and that scale losses.

Each gradient of a variable becomes one collective op (HcomAllReduce; of IndexedSlices, whose duplicates are summed first, an
MxrecMergeSlices or MxrecAllGather), which starts as soon as the gradient is there, while the backward pass goes on. Gradients of
looked-up rows of mxrec tables stay as they are: their rows differ from rank to rank, and tables see to them themselves. Means of
integers are rounded down.

With one rank nothing is exchanged: gradients stay the very tensors they are. All of them take looked-up rows of mxrec tables beside
variables, and mxrec's own optimizers as well as TensorFlow's.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import Any

import tensorflow.compat.v1 as tf

from mxrec import _groups, _slices
from npu_bridge.estimator.npu import _gradients, _sharding

_WORLD = "hccl_world_group"
_REDUCTIONS = ("mean", "max", "min", "prod", "sum")


def allreduce(tensor: Any, average: bool = True) -> Any:
  """A tensor summed over the ranks.

  Args:
    tensor: a tensor, or IndexedSlices, of which the ranks may have different numbers of rows.
    average: divide by the number of ranks; integers are rounded down.

  Returns:
    Like `tensor`; with one rank `tensor` itself.
  """
  size = _gradients.rank_size()
  return tensor if size <= 1 else _gradients.reduced(tensor, "mean" if average else "sum")


def npu_allreduce(values: Any, reduction: str = "mean", fusion: int = 1, fusion_id: int = -1, group: str = _WORLD) -> Any:
  """Tensors reduced over the ranks.

  Args:
    values: a tensor, IndexedSlices or None, or a list or tuple of them. Gradients of looked-up rows of mxrec tables stay as they
      are: tables see to them themselves.
    reduction: "mean" (sum divided by the number of ranks of the group; integers are rounded down), "max", "min", "prod" or "sum";
      IndexedSlices: "mean" or "sum".
    fusion: how exchanges are merged: 0 not, 1 by the gradient split, 2 by `fusion_id`.
    fusion_id: see `fusion`.
    group: name of the group of ranks.

  Returns:
    A list for a list or tuple, else one value. None stays None. With one rank the values themselves.

  Raises:
    ValueError: another reduction or fusion, no such group.
  """
  if reduction not in _REDUCTIONS:
    raise ValueError(f"reduction of npu_allreduce must be one of {', '.join(_REDUCTIONS)}: got {reduction!r}")
  if fusion not in (0, 1, 2):
    raise ValueError(f"fusion of npu_allreduce must be 0, 1 or 2: got {fusion!r}")
  _groups.ranks_of(group)
  alone = isinstance(values, tf.IndexedSlices) or not isinstance(values, (list, tuple))
  if _gradients.rank_size() <= 1:
    return values if alone else list(values)
  results = _gradients.reduced_all([values] if alone else list(values), None, reduction, fusion, fusion_id, group)
  return results[0] if alone else results


def reduce(tensor: Any, root_rank: int, average: bool = True, fusion: int = 0, fusion_id: int = -1) -> Any:
  """A tensor summed over the ranks; the result counts on `root_rank` only.

  Args:
    tensor: a tensor.
    root_rank: the rank that gets the result.
    average: divide by the number of ranks.
    fusion: as for npu_allreduce.
    fusion_id: as for npu_allreduce.

  Raises:
    ValueError: the environment variable DEVICE_ID is not set.
  """
  _require_device_id("npu_optimizer.reduce")
  size = _gradients.rank_size()
  if size <= 1:
    return tensor
  if isinstance(tensor, tf.IndexedSlices):
    return _gradients.reduced(tensor, "mean" if average else "sum")
  from npu_bridge.hccl import hccl_ops

  summed = hccl_ops.reduce(tensor, "sum", root_rank, fusion, fusion_id)
  return _slices.divided(summed, size) if average else summed


def _require_device_id(who: str) -> None:
  if not os.environ.get("DEVICE_ID"):
    raise ValueError(f"{who} needs the environment variable DEVICE_ID: it is not set")


def npu_distributed_optimizer_wrapper(optimizer: Any) -> Any:
  """Makes an optimizer average its gradients over the ranks. The number of ranks is read now.

  Args:
    optimizer: an optimizer of TensorFlow 1, of Keras or of mxrec, or the name of a Keras optimizer.

  Returns:
    The same object, with compute_gradients, get_gradients and _compute_gradients (those it has) replaced.

  Raises:
    ValueError: None, or a name that Keras does not know.
    TypeError: what is no optimizer.
  """
  if optimizer is None:
    raise ValueError("npu_distributed_optimizer_wrapper needs an optimizer or the name of a Keras optimizer: got None")
  if isinstance(optimizer, str):
    optimizer = tf.keras.optimizers.get(optimizer)
  methods = ("compute_gradients", "_compute_gradients", "get_gradients")
  if isinstance(optimizer, type) or not any(callable(getattr(optimizer, name, None)) for name in methods):
    found = f"the class {optimizer.__name__}" if isinstance(optimizer, type) else f"{type(optimizer).__name__} {optimizer!r}"
    raise TypeError(f"npu_distributed_optimizer_wrapper needs an optimizer or the name of a Keras optimizer: got {found}")
  size = _gradients.rank_size()

  def pairs(compute: Callable[..., Any]) -> Callable[..., Any]:
    def compute_averaged(*args: Any, **kwargs: Any) -> Any:
      found = compute(*args, **kwargs)
      return found if size <= 1 else _gradients.averaged(found)

    return compute_averaged

  def plain(compute: Callable[..., Any]) -> Callable[..., Any]:
    def compute_averaged(*args: Any, **kwargs: Any) -> Any:
      found = compute(*args, **kwargs)
      return found if size <= 1 else _gradients.reduced_all(found, None, "mean")

    return compute_averaged

  for name, wrap in (("compute_gradients", pairs), ("_compute_gradients", pairs), ("get_gradients", plain)):
    compute = getattr(optimizer, name, None)
    if callable(compute):
      setattr(optimizer, name, wrap(compute))
  return optimizer


class NPUDistributedOptimizer(_gradients.WrappingOptimizer):
  """An optimizer that averages the gradients of another one over the ranks."""

  def __init__(self, optimizer: Any, is_weight_update_sharding: bool = False, name: str | None = None) -> None:
    """Makes an optimizer.

    Args:
      optimizer: a tf.train.Optimizer; mxrec's are.
      is_weight_update_sharding: each variable is updated by one rank, which alone has its slots, and which sends it to the others.
        compute_gradients then needs the environment variable DEVICE_ID, with one rank too, and raises ValueError without it; with
        more ranks there must be a gradient for each.
      name: name of the optimizer; None: "Distributed" and the name of the other's class.

    Raises:
      TypeError: no optimizer.
    """
    super().__init__(optimizer, name or f"Distributed{type(optimizer).__name__}")
    self._is_weight_update_sharding = is_weight_update_sharding

  def compute_gradients(self, *args: Any, **kwargs: Any) -> list[tuple[Any, Any]]:
    """The other optimizer's (gradient, variable) pairs, averaged over the ranks; the very same with one rank."""
    if self._is_weight_update_sharding:
      _require_device_id("NPUDistributedOptimizer with is_weight_update_sharding=True")
    pairs = self._opt.compute_gradients(*args, **kwargs)
    size = _gradients.rank_size()
    if size <= 1:
      return pairs
    if self._is_weight_update_sharding:
      return _sharding.reduce_to_owners(pairs, size)
    return _gradients.averaged(pairs)

  def apply_gradients(self, grads_and_vars: Iterable[tuple[Any, Any]], global_step: Any = None, name: str | None = None) -> Any:
    """The train op; see tf.train.Optimizer.apply_gradients."""
    if self._is_weight_update_sharding and _gradients.rank_size() > 1:
      return _sharding.apply_by_owners(self._opt, list(grads_and_vars), global_step, name)
    return _gradients.apply(self._opt, grads_and_vars, global_step, name)


class NPUOptimizer(_gradients.WrappingOptimizer):
  """Averaging over the ranks and loss scaling in one."""

  def __init__(
    self,
    opt: Any,
    loss_scale_manager: Any = None,
    is_distributed: bool = False,
    is_loss_scale: bool = False,
    is_tailing_optimization: bool = False,
    name: str | None = None,
  ) -> None:
    """Makes an optimizer.

    Args:
      opt: a tf.train.Optimizer; mxrec's are.
      loss_scale_manager: of npu_loss_scale_manager; needed with is_loss_scale.
      is_distributed: average gradients over the ranks.
      is_loss_scale: scale the loss, and skip steps whose gradients are not all finite.
      is_tailing_optimization: accepted; changes nothing here.
      name: name of the optimizer; None: "NPUOptimizer" and the name of the other's class.

    Raises:
      TypeError: no optimizer, or no manager.
      ValueError: is_loss_scale without a loss_scale_manager.
    """
    if is_loss_scale and loss_scale_manager is None:
      raise ValueError("NPUOptimizer with is_loss_scale=True needs a loss_scale_manager: got None")
    if is_loss_scale:
      _gradients.checked_manager("NPUOptimizer", loss_scale_manager)
    super().__init__(opt, name or f"NPUOptimizer{type(opt).__name__}")
    self._loss_scale_manager = loss_scale_manager
    self._is_distributed = is_distributed
    self._is_loss_scale = is_loss_scale
    self._is_tailing_optimization = is_tailing_optimization

  def compute_gradients(self, loss: Any, *args: Any, **kwargs: Any) -> list[tuple[Any, Any]]:
    """The (gradient, variable) pairs of `loss`, free of the loss scale, averaged over the ranks."""
    if self._is_loss_scale:
      pairs = _gradients.compute_scaled(self._opt, self._loss_scale_manager.get_loss_scale(), loss, *args, **kwargs)
    else:
      pairs = self._opt.compute_gradients(loss, *args, **kwargs)
    size = _gradients.rank_size() if self._is_distributed else 1
    if size <= 1:
      return pairs
    return _gradients.averaged(pairs)

  def apply_gradients(self, grads_and_vars: Iterable[tuple[Any, Any]], global_step: Any = None, name: str | None = None) -> Any:
    """The train op; with loss scaling it skips steps as NPULossScaleOptimizer does."""
    if not self._is_loss_scale:
      return _gradients.apply(self._opt, grads_and_vars, global_step, name)
    return _gradients.apply_if_finite(self._opt, self._loss_scale_manager, self._is_distributed, grads_and_vars, global_step, name)


class KerasDistributeOptimizer:
  """A Keras optimizer that averages the gradients of another one over the ranks.

  An object is of the other one's class as well, and both are one optimizer: hyperparameters, slots and step counter are the same
  whichever of the two is asked or set. Its configuration holds the other's, so that models are cloned, saved and loaded with it. A
  process that loads such a model before it makes one gives `custom_objects={"KerasDistributeOptimizer": KerasDistributeOptimizer}`.
  """

  def __new__(cls, optimizer: Any, name: str = "NpuKerasOptimizer", **kwargs: Any) -> Any:
    """Makes the object; see __init__."""
    del name, kwargs
    if isinstance(optimizer, KerasDistributeOptimizer):
      return optimizer
    return object.__new__(_keras_class(cls, type(optimizer)))

  def __init__(self, optimizer: Any, name: str = "NpuKerasOptimizer", **kwargs: Any) -> None:
    """Makes an optimizer.

    Args:
      optimizer: of tf.keras.optimizers; its gradients are averaged from now on, as npu_distributed_optimizer_wrapper does. One that
        is wrapped already stays as it is.
      name: name of this optimizer; variables keep the names that the other gives.
      **kwargs: clipnorm, clipvalue, global_clipnorm, set on the optimizer.

    Raises:
      TypeError: not a Keras optimizer, or another argument.
    """
    for key in kwargs:
      if key not in ("clipnorm", "clipvalue", "global_clipnorm"):
        raise TypeError(f"KerasDistributeOptimizer got an unexpected keyword argument {key!r}")
    if optimizer is not self:
      npu_distributed_optimizer_wrapper(optimizer)
      object.__setattr__(self, "__dict__", optimizer.__dict__)
      self.__dict__["_npu_name"] = name
    for key, value in kwargs.items():
      setattr(self, key, value)

  def get_config(self) -> dict[str, Any]:
    """The name, and the other optimizer's class and configuration."""
    kind = type(self)._npu_wrapped
    return {"name": self._npu_name, "optimizer": {"class_name": kind.__name__, "config": kind.get_config(self)}}

  @classmethod
  def from_config(cls, config: dict[str, Any], custom_objects: Any = None) -> Any:
    """The optimizer of a configuration.

    Raises:
      ValueError: the configuration holds no optimizer, or one that Keras does not know.
    """
    if not isinstance(config.get("optimizer"), dict):
      raise ValueError(f"the configuration of a KerasDistributeOptimizer must hold 'optimizer': got {sorted(config)}")
    kind = getattr(cls, "_npu_wrapped", None)
    if kind is not None:
      made = kind.from_config(dict(config["optimizer"]["config"]))
    else:
      made = cls._optimizers().deserialize(config["optimizer"], custom_objects=custom_objects)
    return getattr(cls, "_npu_outer", cls)(made, config.get("name", "NpuKerasOptimizer"))

  @staticmethod
  def _optimizers() -> Any:
    """The module of optimizers of the Keras in use."""
    return tf.keras.optimizers


_keras_classes: dict[tuple[type, type], type] = {}


def _keras_class(cls: type, wrapped: type) -> type:
  """The class of a KerasDistributeOptimizer around an optimizer of the class `wrapped`."""
  roots = [kind for kind in wrapped.__mro__ if kind.__name__ in ("OptimizerV2", "_BaseOptimizer", "Optimizer")]
  roots = [kind for kind in roots if "keras" in kind.__module__]
  if not roots:
    raise TypeError(f"KerasDistributeOptimizer needs an optimizer of tf.keras.optimizers: got {wrapped.__name__}")
  if (cls, wrapped) not in _keras_classes:
    known = {"__doc__": cls.__doc__, "__module__": cls.__module__, "_npu_wrapped": wrapped, "_npu_outer": cls}
    _keras_classes[cls, wrapped] = type(cls.__name__, (cls, wrapped), known)
    _register(roots[0].__module__)
  return _keras_classes[cls, wrapped]


def _register(module: str) -> None:
  """Lets the Keras that `module` is of load models that were saved with a KerasDistributeOptimizer."""
  import importlib

  keras = "tensorflow.python.keras" if module.startswith("tensorflow.python.keras") else module.partition(".")[0]
  if keras == "tf_keras":
    library = tf.keras
  else:
    library = importlib.import_module(keras)
    for part in ("optimizers", "utils.generic_utils"):
      importlib.import_module(f"{keras}.{part}")
  utils = library.utils if keras == "tf_keras" else library.utils.generic_utils
  loading = type(
    KerasDistributeOptimizer.__name__,
    (KerasDistributeOptimizer,),
    {"_optimizers": staticmethod(lambda: library.optimizers), "_npu_outer": KerasDistributeOptimizer},
  )
  utils.get_custom_objects().setdefault(KerasDistributeOptimizer.__name__, loading)
