"""tf.contrib.opt: optimizers."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow.compat.v1 as tf

__all__ = [
  "AdamWOptimizer",
  "DecoupledWeightDecayExtension",
  "ExternalOptimizerInterface",
  "LazyAdamOptimizer",
  "MomentumWOptimizer",
  "ScipyOptimizerInterface",
  "extend_with_decoupled_weight_decay",
]


class LazyAdamOptimizer(tf.train.AdamOptimizer):
  """Adam that leaves values and moments of rows alone that a sparse gradient does not touch. Dense gradients: as Adam.

  A row in several places of the gradient is updated once, with the sum.
  """

  def _apply_sparse(self, grad: Any, var: Any) -> tf.Operation:
    beta1_power, beta2_power = self._get_beta_accumulators()
    kind = var.dtype.base_dtype
    beta1_power, beta2_power = tf.cast(beta1_power, kind), tf.cast(beta2_power, kind)
    rate, beta1, beta2, epsilon = (tf.cast(value, kind) for value in (self._lr_t, self._beta1_t, self._beta2_t, self._epsilon_t))
    rate = rate * tf.sqrt(1 - beta2_power) / (1 - beta1_power)
    m, v = self.get_slot(var, "m"), self.get_slot(var, "v")
    new_m = beta1 * tf.gather(m, grad.indices) + (1 - beta1) * grad.values
    new_v = beta2 * tf.gather(v, grad.indices) + (1 - beta2) * tf.square(grad.values)
    return tf.group(
      tf.scatter_update(m, grad.indices, new_m, use_locking=self._use_locking),
      tf.scatter_update(v, grad.indices, new_v, use_locking=self._use_locking),
      tf.scatter_sub(var, grad.indices, rate * new_m / (tf.sqrt(new_v) + epsilon), use_locking=self._use_locking),
    )

  def _resource_apply_sparse(self, grad: Any, var: Any, indices: Any) -> tf.Operation:
    return self._apply_sparse(tf.IndexedSlices(grad, indices), var)


class DecoupledWeightDecayExtension:
  """Mixin for an optimizer: variables (those of `decay_var_list`, else all) shrink by weight_decay times themselves first."""

  def __init__(self, weight_decay: Any, **kwargs: Any):
    """`weight_decay` is not multiplied by the learning rate; the rest goes to the optimizer."""
    self._decay_var_list: Any = None
    self._weight_decay = weight_decay
    super().__init__(**kwargs)

  def minimize(self, loss: Any, *args: Any, decay_var_list: Any = None, **kwargs: Any) -> Any:
    """As of the optimizer."""
    self._decay_var_list = decay_var_list
    return super().minimize(loss, *args, **kwargs)

  def apply_gradients(self, grads_and_vars: Any, global_step: Any = None, name: Any = None, decay_var_list: Any = None) -> Any:
    """As of the optimizer."""
    grads_and_vars = list(grads_and_vars)
    chosen = decay_var_list if decay_var_list is not None else self._decay_var_list
    rate = self._weight_decay() if callable(self._weight_decay) else self._weight_decay
    decays = []
    for gradient, variable in grads_and_vars:
      if gradient is not None and (chosen is None or any(variable is other for other in chosen)):
        decays.append(tf.assign_sub(variable, tf.cast(rate, variable.dtype.base_dtype) * variable, use_locking=self._use_locking))
    with tf.control_dependencies(decays):
      return super().apply_gradients(grads_and_vars, global_step=global_step, name=name)


def extend_with_decoupled_weight_decay(base_optimizer: type) -> type:
  """A class: `base_optimizer` with a first argument `weight_decay`."""

  class OptimizerWithDecoupledWeightDecay(DecoupledWeightDecayExtension, base_optimizer):
    """The optimizer with decoupled weight decay."""

    def __init__(self, weight_decay: Any, *args: Any, **kwargs: Any):
      self._decay_var_list = None
      self._weight_decay = weight_decay
      base_optimizer.__init__(self, *args, **kwargs)

  return OptimizerWithDecoupledWeightDecay


class AdamWOptimizer(DecoupledWeightDecayExtension, tf.train.AdamOptimizer):
  """Adam with decoupled weight decay."""

  def __init__(
    self,
    weight_decay: Any,
    learning_rate: Any = 0.001,
    beta1: Any = 0.9,
    beta2: Any = 0.999,
    epsilon: Any = 1e-8,
    use_locking: bool = False,
    name: str = "AdamW",
  ):
    """Arguments as of AdamOptimizer."""
    super().__init__(
      weight_decay, learning_rate=learning_rate, beta1=beta1, beta2=beta2, epsilon=epsilon, use_locking=use_locking, name=name
    )


class MomentumWOptimizer(DecoupledWeightDecayExtension, tf.train.MomentumOptimizer):
  """Momentum with decoupled weight decay."""

  def __init__(
    self,
    weight_decay: Any,
    learning_rate: Any,
    momentum: Any,
    use_locking: bool = False,
    name: str = "MomentumW",
    use_nesterov: bool = False,
  ):
    """Arguments as of MomentumOptimizer."""
    super().__init__(
      weight_decay, learning_rate=learning_rate, momentum=momentum, use_locking=use_locking, name=name, use_nesterov=use_nesterov
    )


class ExternalOptimizerInterface:
  """Minimizes a loss by a program outside of the graph, which gets all variables as one vector."""

  def __init__(
    self,
    loss: Any,
    var_list: Any = None,
    equalities: Any = None,
    inequalities: Any = None,
    var_to_bounds: Any = None,
    **optimizer_kwargs: Any,
  ):
    """Builds the gradients.

    Args:
      loss: scalar.
      var_list: default: all trainable variables.
      equalities: scalars to be kept at 0.
      inequalities: scalars to be kept at 0 or above.
      var_to_bounds: variable -> (lower, upper), arrays or numbers.
      **optimizer_kwargs: for the program.
    """
    self._loss = loss
    self._vars = tf.trainable_variables() if var_list is None else list(var_list)
    self._equalities, self._inequalities = list(equalities or []), list(inequalities or [])
    self.optimizer_kwargs = optimizer_kwargs
    self._bounds = None if var_to_bounds is None else self._pack_bounds(var_to_bounds)
    self._loss_gradient = self._flat_gradient(loss)
    self._equality_gradients = [self._flat_gradient(scalar) for scalar in self._equalities]
    self._inequality_gradients = [self._flat_gradient(scalar) for scalar in self._inequalities]
    self._feeds = [tf.placeholder(variable.dtype.base_dtype, variable.shape) for variable in self._vars]
    self._assign = tf.group(*[tf.assign(variable, feed) for variable, feed in zip(self._vars, self._feeds)])
    self._sizes = [variable.shape.num_elements() for variable in self._vars]
    self._packed = tf.concat([tf.reshape(variable, [-1]) for variable in self._vars], 0)

  def _flat_gradient(self, scalar: Any) -> Any:
    gradients = tf.gradients(scalar, self._vars)
    parts = [
      tf.zeros([variable.shape.num_elements()], variable.dtype.base_dtype) if gradient is None else tf.reshape(gradient, [-1])
      for gradient, variable in zip(gradients, self._vars)
    ]
    return tf.concat(parts, 0)

  def _pack_bounds(self, var_to_bounds: Any) -> list[tuple[float, float]]:
    by_name = {variable.name: bounds for variable, bounds in var_to_bounds.items()}
    packed: list[tuple[float, float]] = []
    for variable in self._vars:
      shape = variable.shape.as_list()
      lower, upper = by_name.get(variable.name, (-np.inf, np.inf))
      low, high = (np.broadcast_to(bound, shape).ravel() for bound in (lower, upper))
      packed.extend(zip(low.tolist(), high.tolist()))
    return packed

  def minimize(
    self,
    session: Any = None,
    feed_dict: Any = None,
    fetches: Any = None,
    step_callback: Any = None,
    loss_callback: Any = None,
    **run_kwargs: Any,
  ) -> None:
    """Minimizes and leaves the result in the variables.

    Args:
      session: default: the default session.
      feed_dict: for every evaluation.
      fetches: evaluated with each loss and handed to loss_callback.
      step_callback: gets the vector after each step.
      loss_callback: gets the values of `fetches`.
      **run_kwargs: for session.run.
    """
    session = session or tf.get_default_session()
    feed_dict, fetches = dict(feed_dict or {}), list(fetches or [])

    def feeds(vector: np.ndarray) -> dict[Any, Any]:
      parts = np.split(vector, np.cumsum(self._sizes)[:-1])
      return {variable_feed: part.reshape(variable_feed.shape.as_list()) for variable_feed, part in zip(self._feeds, parts)}

    def evaluate(vector: np.ndarray, what: list[Any], callback: Any = None, more: Any = ()) -> list[np.ndarray]:
      session.run(self._assign, feeds(vector))
      values = session.run([*what, *more], feed_dict, **run_kwargs)
      if callback is not None:
        callback(*values[len(what) :])
      return [np.asarray(value, np.float64) for value in values[: len(what)]]

    initial = session.run(self._packed, feed_dict)
    result = self._minimize(
      initial_val=np.asarray(initial, np.float64),
      loss_grad_func=lambda vector: tuple(evaluate(vector, [self._loss, self._loss_gradient], loss_callback, fetches)),
      equality_funcs=[lambda vector, s=scalar: evaluate(vector, [s])[0] for scalar in self._equalities],
      equality_grad_funcs=[lambda vector, g=gradient: evaluate(vector, [g])[0] for gradient in self._equality_gradients],
      inequality_funcs=[lambda vector, s=scalar: evaluate(vector, [s])[0] for scalar in self._inequalities],
      inequality_grad_funcs=[lambda vector, g=gradient: evaluate(vector, [g])[0] for gradient in self._inequality_gradients],
      packed_bounds=self._bounds,
      step_callback=step_callback,
      optimizer_kwargs=self.optimizer_kwargs,
    )
    session.run(self._assign, feeds(np.asarray(result)))

  def _minimize(self, **arguments: Any) -> np.ndarray:
    raise NotImplementedError("an ExternalOptimizerInterface needs _minimize: use ScipyOptimizerInterface")


class ScipyOptimizerInterface(ExternalOptimizerInterface):
  """Minimizes by scipy.optimize.minimize; default method L-BFGS-B, SLSQP with constraints."""

  def _minimize(
    self,
    initial_val: np.ndarray,
    loss_grad_func: Any,
    equality_funcs: list[Any],
    equality_grad_funcs: list[Any],
    inequality_funcs: list[Any],
    inequality_grad_funcs: list[Any],
    packed_bounds: Any,
    step_callback: Any,
    optimizer_kwargs: dict[str, Any],
  ) -> np.ndarray:
    import scipy.optimize

    constraints = [{"type": "eq", "fun": fun, "jac": jac} for fun, jac in zip(equality_funcs, equality_grad_funcs)]
    constraints += [{"type": "ineq", "fun": fun, "jac": jac} for fun, jac in zip(inequality_funcs, inequality_grad_funcs)]
    arguments = dict(optimizer_kwargs)
    arguments.setdefault("method", "SLSQP" if constraints else "L-BFGS-B")
    result = scipy.optimize.minimize(
      loss_grad_func, initial_val, jac=True, bounds=packed_bounds, constraints=constraints, callback=step_callback, **arguments
    )
    tf.logging.info("scipy.optimize: %s; %s evaluations, loss %s", result.message, result.nfev, result.fun)
    return result.x
