"""tf.contrib.layers, with the variable names of TensorFlow 1.15, so that old checkpoints load."""

from __future__ import annotations

import numbers
from collections.abc import Callable
from typing import Any

import tensorflow.compat.v1 as tf
from tensorflow.python.training import moving_averages

from mxrec.tf1.contrib import _common
from mxrec.tf1.contrib._optimize import (
  OPTIMIZER_CLS_NAMES,
  OPTIMIZER_SUMMARIES,
  optimize_loss,
  summarize_activation,
  summarize_activations,
  summarize_collection,
  summarize_tensor,
  summarize_tensors,
)
from mxrec.tf1.contrib.framework import add_arg_scope, model_variable

__all__ = [
  "OPTIMIZER_CLS_NAMES",
  "OPTIMIZER_SUMMARIES",
  "apply_regularization",
  "avg_pool2d",
  "batch_norm",
  "bias_add",
  "conv2d",
  "convolution",
  "convolution2d",
  "dropout",
  "embed_sequence",
  "embedding_lookup_unique",
  "flatten",
  "fully_connected",
  "l1_l2_regularizer",
  "l1_regularizer",
  "l2_regularizer",
  "layer_norm",
  "legacy_fully_connected",
  "linear",
  "max_pool2d",
  "one_hot_encoding",
  "optimize_loss",
  "relu",
  "relu6",
  "repeat",
  "safe_embedding_lookup_sparse",
  "softmax",
  "stack",
  "sum_regularizer",
  "summarize_activation",
  "summarize_activations",
  "summarize_collection",
  "summarize_tensor",
  "summarize_tensors",
  "unit_norm",
  "variance_scaling_initializer",
  "xavier_initializer",
  "xavier_initializer_conv2d",
]

# Regularizers


def _check_scale(scale: Any) -> None:
  if isinstance(scale, numbers.Integral):
    raise ValueError(f"scale cannot be an integer: got {scale}")
  if isinstance(scale, numbers.Real) and scale < 0:
    raise ValueError(f"scale cannot be below 0: got {scale}")


def _scaled(scale: Any, measure: Callable[[Any], Any], scope: str | None, default: str) -> Callable[..., Any]:
  _check_scale(scale)
  if isinstance(scale, numbers.Real) and scale == 0.0:
    return lambda _: None

  def regularizer(weights: Any, name: str | None = None) -> Any:
    with tf.name_scope(name, scope or default, [weights]):
      factor = tf.convert_to_tensor(scale, dtype=weights.dtype.base_dtype, name="scale")
      return tf.multiply(factor, measure(weights), name=name or default)

  return regularizer


def l1_regularizer(scale: Any, scope: str | None = None) -> Callable[..., Any]:
  """weights -> scale * sum(|weights|); ValueError for an int or a negative scale; 0.0 regularizes nothing."""
  return _scaled(scale, lambda weights: tf.reduce_sum(tf.abs(weights)), scope, "l1_regularizer")


def l2_regularizer(scale: Any, scope: str | None = None) -> Callable[..., Any]:
  """weights -> scale * sum(weights^2) / 2; ValueError for an int or a negative scale; 0.0 regularizes nothing."""
  return _scaled(scale, tf.nn.l2_loss, scope, "l2_regularizer")


def l1_l2_regularizer(scale_l1: Any = 1.0, scale_l2: Any = 1.0, scope: str | None = None) -> Callable[..., Any]:
  """The sum of both."""
  scope = scope or "l1_l2_regularizer"
  return sum_regularizer([l1_regularizer(scale_l1), l2_regularizer(scale_l2)], scope=scope)


def sum_regularizer(regularizer_list: Any, scope: str | None = None) -> Callable[..., Any] | None:
  """One regularizer that adds up several; None entries are skipped."""
  kept = [regularizer for regularizer in regularizer_list if regularizer is not None]
  if not kept:
    return None

  def regularizer(weights: Any) -> Any:
    with tf.name_scope(scope, "sum_regularizer", [weights]):
      parts = [part for part in (one(weights) for one in kept) if part is not None]
      return tf.add_n(parts) if parts else None

  return regularizer


def apply_regularization(regularizer: Any, weights_list: Any = None) -> Any:
  """The sum of a regularizer over weights (default: collection WEIGHTS); also added to REGULARIZATION_LOSSES."""
  weights_list = tf.get_collection(tf.GraphKeys.WEIGHTS) if weights_list is None else weights_list
  if not weights_list:
    raise ValueError("apply_regularization: no weights to regularize")
  with tf.name_scope("get_regularization_penalty", values=weights_list) as scope:
    penalties = [penalty for penalty in (regularizer(weights) for weights in weights_list) if penalty is not None]
    penalties = penalties or [tf.constant(0.0)]
    for penalty in penalties:
      if penalty.shape.rank != 0:
        raise ValueError(f"regularizer must return a scalar: got shape {penalty.shape}")
    total = tf.add_n(penalties, name=scope)
    tf.add_to_collection(tf.GraphKeys.REGULARIZATION_LOSSES, total)
    return total


# Initializers


def xavier_initializer(uniform: bool = True, seed: Any = None, dtype: Any = tf.float32) -> Any:
  """Glorot: variance 2 / (fan in + fan out)."""
  return variance_scaling_initializer(factor=1.0, mode="FAN_AVG", uniform=uniform, seed=seed, dtype=dtype)


xavier_initializer_conv2d = xavier_initializer


def variance_scaling_initializer(
  factor: float = 2.0, mode: str = "FAN_IN", uniform: bool = False, seed: Any = None, dtype: Any = tf.float32
) -> Any:
  """Variance `factor` / n, where n is fan in, fan out or their mean; truncated normal, or uniform.

  Raises:
    TypeError: dtype is not a floating type.
    ValueError: mode is none of FAN_IN, FAN_OUT, FAN_AVG.
  """
  if not tf.as_dtype(dtype).is_floating:
    raise TypeError(f"dtype of an initializer must be a floating type: got {dtype}")
  modes = {"FAN_IN": "fan_in", "FAN_OUT": "fan_out", "FAN_AVG": "fan_avg"}
  if mode not in modes:
    raise ValueError(f"mode must be one of {', '.join(modes)}: got {mode!r}")
  return tf.initializers.variance_scaling(
    scale=factor, mode=modes[mode], distribution="uniform" if uniform else "truncated_normal", seed=seed, dtype=dtype
  )


# Layers


@add_arg_scope
def fully_connected(
  inputs: Any,
  num_outputs: int,
  activation_fn: Any = tf.nn.relu,
  normalizer_fn: Any = None,
  normalizer_params: Any = None,
  weights_initializer: Any = xavier_initializer(),
  weights_regularizer: Any = None,
  biases_initializer: Any = tf.zeros_initializer(),
  biases_regularizer: Any = None,
  reuse: Any = None,
  variables_collections: Any = None,
  outputs_collections: Any = None,
  trainable: bool = True,
  scope: Any = None,
) -> Any:
  """activation(inputs [..., n] x weights [n, num_outputs] + biases); variables <scope>/weights and <scope>/biases.

  With `normalizer_fn` there are no biases. ValueError: num_outputs is not an integer, or the last dimension is unknown.
  """
  if not isinstance(num_outputs, numbers.Integral):
    raise ValueError(f"num_outputs must be an integer: got {num_outputs!r}")
  with tf.variable_scope(scope, "fully_connected", [inputs], reuse=reuse):
    inputs = tf.convert_to_tensor(inputs)
    size = _common.last_dimension(inputs, "fully_connected")
    weights = model_variable(
      "weights",
      [size, int(num_outputs)],
      inputs.dtype.base_dtype,
      weights_initializer,
      weights_regularizer,
      trainable,
      _common.variable_collections(variables_collections, "weights"),
    )
    if inputs.shape.rank == 2:
      outputs = tf.matmul(inputs, weights)
    else:
      outputs = tf.tensordot(inputs, weights, [[inputs.shape.rank - 1], [0]])
      outputs.set_shape(inputs.shape[:-1].concatenate([num_outputs]))
    outputs = _finish(
      outputs,
      int(num_outputs),
      "NHWC",
      normalizer_fn,
      normalizer_params,
      biases_initializer,
      biases_regularizer,
      variables_collections,
      trainable,
      activation_fn,
    )
    return _collected(outputs_collections, outputs)


def _finish(
  outputs: Any,
  channels: int,
  data_format: str,
  normalizer_fn: Any,
  normalizer_params: Any,
  biases_initializer: Any,
  biases_regularizer: Any,
  variables_collections: Any,
  trainable: bool,
  activation_fn: Any,
) -> Any:
  """Bias or normalization, then activation."""
  if normalizer_fn is not None:
    outputs = normalizer_fn(outputs, **(normalizer_params or {}))
  elif biases_initializer is not None:
    biases = model_variable(
      "biases",
      [channels],
      outputs.dtype.base_dtype,
      biases_initializer,
      biases_regularizer,
      trainable,
      _common.variable_collections(variables_collections, "biases"),
    )
    outputs = tf.nn.bias_add(outputs, biases, data_format=data_format) if outputs.shape.rank in (2, 4) else outputs + biases
  return activation_fn(outputs) if activation_fn is not None else outputs


def _collected(collections: Any, outputs: Any) -> Any:
  _common.collect(collections, outputs)
  return outputs


def linear(*args: Any, **kwargs: Any) -> Any:
  """fully_connected without activation."""
  return fully_connected(*args, **{"activation_fn": None, **kwargs})


def relu(*args: Any, **kwargs: Any) -> Any:
  """fully_connected with relu."""
  return fully_connected(*args, **{"activation_fn": tf.nn.relu, **kwargs})


def relu6(*args: Any, **kwargs: Any) -> Any:
  """fully_connected with relu6."""
  return fully_connected(*args, **{"activation_fn": tf.nn.relu6, **kwargs})


def legacy_fully_connected(
  x: Any,
  num_output_units: int,
  activation_fn: Any = None,
  weight_init: Any = xavier_initializer(),
  bias_init: Any = tf.zeros_initializer(),
  name: Any = None,
  **others: Any,
) -> Any:
  """fully_connected with its oldest argument names."""
  return fully_connected(
    x, num_output_units, activation_fn, weights_initializer=weight_init, biases_initializer=bias_init, scope=name, **others
  )


@add_arg_scope
def bias_add(
  inputs: Any,
  activation_fn: Any = None,
  initializer: Any = tf.zeros_initializer(),
  regularizer: Any = None,
  reuse: Any = None,
  variables_collections: Any = None,
  outputs_collections: Any = None,
  trainable: bool = True,
  data_format: str = "NHWC",
  scope: Any = None,
) -> Any:
  """Adds the variable <scope>/biases."""
  with tf.variable_scope(scope, "BiasAdd", [inputs], reuse=reuse):
    channels = tf.dimension_value(inputs.shape[1 if data_format.startswith("NC") else -1])
    outputs = _finish(
      inputs, channels, data_format, None, None, initializer, regularizer, variables_collections, trainable, activation_fn
    )
    return _collected(outputs_collections, outputs)


@add_arg_scope
def convolution2d(
  inputs: Any,
  num_outputs: int,
  kernel_size: Any,
  stride: Any = 1,
  padding: str = "SAME",
  data_format: str | None = None,
  rate: Any = 1,
  activation_fn: Any = tf.nn.relu,
  normalizer_fn: Any = None,
  normalizer_params: Any = None,
  weights_initializer: Any = xavier_initializer(),
  weights_regularizer: Any = None,
  biases_initializer: Any = tf.zeros_initializer(),
  biases_regularizer: Any = None,
  reuse: Any = None,
  variables_collections: Any = None,
  outputs_collections: Any = None,
  trainable: bool = True,
  scope: Any = None,
) -> Any:
  """Convolution of [batch, height, width, channels]; variables <scope>/weights [kh, kw, in, out] and <scope>/biases."""
  data_format = data_format or "NHWC"
  with tf.variable_scope(scope, "Conv", [inputs], reuse=reuse):
    inputs = tf.convert_to_tensor(inputs)
    if inputs.shape.rank != 4:
      raise ValueError(f"convolution2d takes inputs of rank 4: got shape {inputs.shape}")
    channels = tf.dimension_value(inputs.shape[1 if data_format == "NCHW" else 3])
    kernel = [kernel_size] * 2 if isinstance(kernel_size, int) else list(kernel_size)
    weights = model_variable(
      "weights",
      [*kernel, channels, num_outputs],
      inputs.dtype.base_dtype,
      weights_initializer,
      weights_regularizer,
      trainable,
      _common.variable_collections(variables_collections, "weights"),
    )
    strides = [stride] * 2 if isinstance(stride, int) else list(stride)
    rates = [rate] * 2 if isinstance(rate, int) else list(rate)
    outputs = tf.nn.convolution(inputs, weights, padding, strides=strides, dilation_rate=rates, data_format=data_format)
    outputs = _finish(
      outputs,
      num_outputs,
      data_format,
      normalizer_fn,
      normalizer_params,
      biases_initializer,
      biases_regularizer,
      variables_collections,
      trainable,
      activation_fn,
    )
    return _collected(outputs_collections, outputs)


conv2d = convolution2d
convolution = convolution2d


def _pool(pool: Any, inputs: Any, kernel_size: Any, stride: Any, padding: str, data_format: str, name: Any) -> Any:
  def spread(size: Any) -> list[int]:
    pair = [size] * 2 if isinstance(size, int) else list(size)
    return [1, 1, *pair] if data_format == "NCHW" else [1, *pair, 1]

  return pool(inputs, spread(kernel_size), spread(stride), padding, data_format=data_format, name=name)


@add_arg_scope
def max_pool2d(
  inputs: Any,
  kernel_size: Any,
  stride: Any = 2,
  padding: str = "VALID",
  data_format: str = "NHWC",
  outputs_collections: Any = None,
  scope: Any = None,
) -> Any:
  """Maximum over windows."""
  outputs = _pool(tf.nn.max_pool, inputs, kernel_size, stride, padding, data_format, scope or "MaxPool2D")
  return _collected(outputs_collections, outputs)


@add_arg_scope
def avg_pool2d(
  inputs: Any,
  kernel_size: Any,
  stride: Any = 2,
  padding: str = "VALID",
  data_format: str = "NHWC",
  outputs_collections: Any = None,
  scope: Any = None,
) -> Any:
  """Mean over windows."""
  outputs = _pool(tf.nn.avg_pool, inputs, kernel_size, stride, padding, data_format, scope or "AvgPool2D")
  return _collected(outputs_collections, outputs)


@add_arg_scope
def dropout(
  inputs: Any,
  keep_prob: Any = 0.5,
  noise_shape: Any = None,
  is_training: Any = True,
  outputs_collections: Any = None,
  scope: Any = None,
  seed: Any = None,
) -> Any:
  """Dropout while training; `is_training` may be a tensor."""
  with tf.name_scope(scope, "Dropout", [inputs]):
    inputs = tf.convert_to_tensor(inputs)
    outputs = _switch(
      is_training,
      lambda: tf.nn.dropout(inputs, keep_prob=keep_prob, noise_shape=noise_shape, seed=seed),
      lambda: tf.identity(inputs),
    )
  return _collected(outputs_collections, outputs)


def _switch(condition: Any, if_true: Callable[[], Any], if_false: Callable[[], Any]) -> Any:
  known = _common.truth(condition)
  if known is None:
    return tf.cond(tf.cast(condition, tf.bool), if_true, if_false)
  return if_true() if known else if_false()


@add_arg_scope
def flatten(inputs: Any, outputs_collections: Any = None, scope: Any = None) -> Any:
  """[batch, ...] -> [batch, product of the rest]; ValueError below rank 2."""
  with tf.name_scope(scope, "Flatten", [inputs]):
    inputs = tf.convert_to_tensor(inputs)
    if inputs.shape.rank is not None and inputs.shape.rank < 2:
      raise ValueError(f"flatten takes inputs of rank 2 and more: got shape {inputs.shape}")
    width = inputs.shape[1:].num_elements() if inputs.shape.rank is not None else None
    batch = tf.dimension_value(inputs.shape[0]) if inputs.shape.rank is not None else None
    if width is None:
      outputs = tf.reshape(inputs, tf.stack([tf.shape(inputs)[0], tf.reduce_prod(tf.shape(inputs)[1:])]))
    else:
      outputs = tf.reshape(inputs, [-1 if batch is None else batch, width])
    outputs.set_shape([batch, width])
  return _collected(outputs_collections, outputs)


@add_arg_scope
def one_hot_encoding(
  labels: Any, num_classes: int, on_value: float = 1.0, off_value: float = 0.0, outputs_collections: Any = None, scope: Any = None
) -> Any:
  """tf.one_hot of integer labels."""
  with tf.name_scope(scope, "OneHotEncoding", [labels]):
    labels = tf.convert_to_tensor(labels)
    if labels.dtype == tf.int32:
      labels = tf.cast(labels, tf.int64)
    outputs = tf.one_hot(labels, num_classes, on_value=on_value, off_value=off_value)
  return _collected(outputs_collections, outputs)


def unit_norm(inputs: Any, dim: int, epsilon: float = 1e-7, scope: Any = None) -> Any:
  """Divides by the Euclidean length along `dim`."""
  with tf.name_scope(scope, "UnitNorm", [inputs]):
    length = tf.sqrt(tf.reduce_sum(tf.square(inputs), dim, keepdims=True) + epsilon)
    return inputs / length


def repeat(inputs: Any, repetitions: int, layer: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
  """The same layer several times in a row, as <scope>/<scope>_1 and so on."""
  scope = kwargs.pop("scope", None)
  with tf.variable_scope(scope, "Repeat", [inputs]):
    name = (scope.name if isinstance(scope, tf.VariableScope) else scope) or getattr(layer, "__name__", "repeat")
    for index in range(repetitions):
      inputs = layer(inputs, *args, **{**kwargs, "scope": f"{name.split('/')[-1]}_{index + 1}"})
    return inputs


def stack(inputs: Any, layer: Callable[..., Any], stack_args: Any, **kwargs: Any) -> Any:
  """Layers in a row, each with its own positional arguments."""
  scope = kwargs.pop("scope", None)
  with tf.variable_scope(scope, "Stack", [inputs]):
    name = (scope.name if isinstance(scope, tf.VariableScope) else scope) or getattr(layer, "__name__", "stack")
    for index, arguments in enumerate(stack_args):
      arguments = arguments if isinstance(arguments, (list, tuple)) else [arguments]
      inputs = layer(inputs, *arguments, **{**kwargs, "scope": f"{name.split('/')[-1]}_{index + 1}"})
    return inputs


def softmax(logits: Any, scope: Any = None) -> Any:
  """Over the last dimension, of any rank."""
  with tf.name_scope(scope, "softmax", [logits]):
    return tf.nn.softmax(logits)


# Normalization


@add_arg_scope
def batch_norm(
  inputs: Any,
  decay: float = 0.999,
  center: bool = True,
  scale: bool = False,
  epsilon: float = 0.001,
  activation_fn: Any = None,
  param_initializers: Any = None,
  param_regularizers: Any = None,
  updates_collections: Any = tf.GraphKeys.UPDATE_OPS,
  is_training: Any = True,
  reuse: Any = None,
  variables_collections: Any = None,
  outputs_collections: Any = None,
  trainable: bool = True,
  batch_weights: Any = None,
  fused: Any = None,
  data_format: str = "NHWC",
  zero_debias_moving_mean: bool = False,
  scope: Any = None,
  renorm: bool = False,
  renorm_clipping: Any = None,
  renorm_decay: float = 0.99,
  adjustment: Any = None,
) -> Any:
  """Batch normalization; variables <scope>/beta, gamma (with `scale`), moving_mean, moving_variance, default scope BatchNorm.

  Args:
    inputs: float [batch, ..., channels] (NHWC) or [batch, channels, ...] (NCHW); the number of channels must be known.
    decay: of the moving mean and variance.
    center: with beta.
    scale: with gamma.
    epsilon: added to the variance.
    activation_fn: applied at the end.
    param_initializers: variable name -> initializer.
    param_regularizers: "beta", "gamma" -> regularizer.
    updates_collections: gets the updates of the moving values, which the train op has to run; None: they run with the layer itself.
    is_training: bool or bool tensor: statistics of the batch, or the moving ones.
    reuse: as in variable_scope.
    variables_collections: for all variables, or name -> collections.
    outputs_collections: gets the output.
    trainable: whether beta and gamma are trained.
    batch_weights: not supplied.
    fused: False: the moving variance takes that of the batch; else, for inputs of rank 2 and 4, times n / (n - 1), as in 1.15.
    data_format: NHWC or NCHW.
    zero_debias_moving_mean: corrects the start of the moving mean at zero.
    scope: variable scope.
    renorm: not supplied, nor what goes with it.
    renorm_clipping: see renorm.
    renorm_decay: see renorm.
    adjustment: not supplied.

  Raises:
    NotImplementedError: batch_weights, renorm or adjustment.
    ValueError: wrong data_format or shape.
  """
  for name, value in (("batch_weights", batch_weights), ("renorm", renorm or None), ("adjustment", adjustment)):
    if value is not None:
      raise NotImplementedError(f"tf.contrib.layers.batch_norm: {name} is not supplied by `mxrec run`")
  if data_format not in ("NHWC", "NCHW"):
    raise ValueError(f"data_format must be NHWC or NCHW: got {data_format!r}")
  initializers, regularizers = dict(param_initializers or {}), dict(param_regularizers or {})
  with tf.variable_scope(scope, "BatchNorm", [inputs], reuse=reuse):
    inputs = tf.convert_to_tensor(inputs)
    rank = inputs.shape.rank
    if rank is None or rank < 2:
      raise ValueError(f"batch_norm takes inputs of known rank, 2 or more: got shape {inputs.shape}")
    axis = 1 if data_format == "NCHW" else rank - 1
    channels = tf.dimension_value(inputs.shape[axis])
    if channels is None:
      raise ValueError(f"batch_norm: the number of channels must be known, found shape {inputs.shape}")
    kind = tf.float32 if inputs.dtype in (tf.float16, tf.bfloat16) else inputs.dtype.base_dtype

    def parameter(name: str, default: Any, trained: bool) -> Any:
      collections = _common.variable_collections(variables_collections, name)
      initializer = initializers.get(name, default)
      regularizer = regularizers.get(name) if trained else None
      return model_variable(name, [channels], kind, initializer, regularizer, trained and trainable, collections)

    beta = parameter("beta", tf.zeros_initializer(), True) if center else None
    gamma = parameter("gamma", tf.ones_initializer(), True) if scale else None
    moving_mean = parameter("moving_mean", tf.zeros_initializer(), False)
    moving_variance = parameter("moving_variance", tf.ones_initializer(), False)

    others = [index for index in range(rank) if index != axis]
    unbiased = fused is not False and rank in (2, 4)

    def batch_moments() -> tuple[Any, Any, Any]:
      """Mean and variance of the batch, and the variance as it enters the moving one."""
      mean, variance = tf.nn.moments(tf.cast(inputs, kind), others)
      if not unbiased:
        return mean, variance, variance
      count = tf.cast(tf.size(inputs) // channels, kind)
      return mean, variance, variance * (count / tf.maximum(count - 1.0, 1.0))

    def update(mean: Any, variance: Any) -> Any:
      return tf.group(
        moving_averages.assign_moving_average(moving_mean, mean, decay, zero_debias=zero_debias_moving_mean),
        moving_averages.assign_moving_average(moving_variance, variance, decay, zero_debias=False),
      )

    training = _common.truth(is_training)
    if training is False:
      mean, variance = tf.convert_to_tensor(moving_mean), tf.convert_to_tensor(moving_variance)
    elif training:
      mean, variance, moving = batch_moments()
      updates = update(mean, moving)
      if updates_collections is None:
        with tf.control_dependencies([updates]):
          mean, variance = tf.identity(mean), tf.identity(variance)
      else:
        _common.collect(updates_collections, updates)
    else:
      mean, variance = _moments_by_mode(
        tf.cast(is_training, tf.bool), batch_moments, update, moving_mean, moving_variance, updates_collections
      )
    if axis != rank - 1:
      spread = [1] * rank
      spread[axis] = channels
      mean, variance = tf.reshape(mean, spread), tf.reshape(variance, spread)
      beta = None if beta is None else tf.reshape(beta, spread)
      gamma = None if gamma is None else tf.reshape(gamma, spread)
    outputs = tf.nn.batch_normalization(tf.cast(inputs, kind), mean, variance, beta, gamma, epsilon)
    outputs = tf.cast(outputs, inputs.dtype)
    outputs.set_shape(inputs.shape)
    if activation_fn is not None:
      outputs = activation_fn(outputs)
    return _collected(outputs_collections, outputs)


def _moments_by_mode(
  is_training: Any, batch_moments: Any, update: Any, moving_mean: Any, moving_variance: Any, updates: Any
) -> tuple[Any, Any]:
  """Mean and variance to normalize with when a tensor says whether this is training."""
  if updates is None:

    def train() -> tuple[Any, Any]:
      mean, variance, moving = batch_moments()
      with tf.control_dependencies([update(mean, moving)]):
        return tf.identity(mean), tf.identity(variance)

    return tf.cond(is_training, train, lambda: (tf.identity(moving_mean), tf.identity(moving_variance)))
  batch_mean, batch_variance, batch_moving = batch_moments()
  mean, variance = tf.cond(
    is_training,
    lambda: (tf.identity(batch_mean), tf.identity(batch_variance)),
    lambda: (tf.identity(moving_mean), tf.identity(moving_variance)),
  )
  _common.collect(updates, tf.cond(is_training, lambda: update(batch_mean, batch_moving), lambda: tf.no_op()))
  return mean, variance


@add_arg_scope
def layer_norm(
  inputs: Any,
  center: bool = True,
  scale: bool = True,
  activation_fn: Any = None,
  reuse: Any = None,
  variables_collections: Any = None,
  outputs_collections: Any = None,
  trainable: bool = True,
  begin_norm_axis: int = 1,
  begin_params_axis: int = -1,
  scope: Any = None,
) -> Any:
  """Normalizes each example over the axes from `begin_norm_axis` on; variables <scope>/beta and gamma, default scope LayerNorm."""
  with tf.variable_scope(scope, "LayerNorm", [inputs], reuse=reuse):
    inputs = tf.convert_to_tensor(inputs)
    rank = inputs.shape.rank
    if rank is None:
      raise ValueError("layer_norm: the rank of its input must be known")
    begin = begin_norm_axis + rank if begin_norm_axis < 0 else begin_norm_axis
    first = begin_params_axis + rank if begin_params_axis < 0 else begin_params_axis
    if begin >= rank or first >= rank:
      raise ValueError(
        f"layer_norm: begin_params_axis {begin_params_axis} and begin_norm_axis {begin_norm_axis} must lie below the rank {rank}"
      )
    shape = inputs.shape[first:]
    if not shape.is_fully_defined():
      raise ValueError(f"layer_norm: the dimensions from {first} on must be known, found shape {inputs.shape}")

    def parameter(name: str, initializer: Any) -> Any:
      collections = _common.variable_collections(variables_collections, name)
      return model_variable(name, shape, inputs.dtype.base_dtype, initializer, None, trainable, collections)

    beta = parameter("beta", tf.zeros_initializer()) if center else None
    gamma = parameter("gamma", tf.ones_initializer()) if scale else None
    mean, variance = tf.nn.moments(inputs, list(range(begin, rank)), keepdims=True)
    epsilon = 1e-3 if inputs.dtype == tf.float16 else 1e-12
    outputs = tf.nn.batch_normalization(inputs, mean, variance, beta, gamma, epsilon)
    outputs.set_shape(inputs.shape)
    if activation_fn is not None:
      outputs = activation_fn(outputs)
    return _collected(outputs_collections, outputs)


# Embeddings


def embed_sequence(
  ids: Any,
  vocab_size: int | None = None,
  embed_dim: int | None = None,
  unique: bool = False,
  initializer: Any = None,
  regularizer: Any = None,
  trainable: bool = True,
  scope: Any = None,
  reuse: Any = None,
) -> Any:
  """Rows of the variable <scope>/embeddings [vocab_size, embed_dim] for ids of shape [batch, length]."""
  if not (reuse or (vocab_size and embed_dim)):
    raise ValueError(f"embed_sequence needs vocab_size and embed_dim: got {vocab_size} and {embed_dim}")
  with tf.variable_scope(scope, "EmbedSequence", [ids], reuse=reuse):
    shape = None if reuse and not vocab_size else [vocab_size, embed_dim]
    embeddings = model_variable("embeddings", shape, tf.float32, initializer, regularizer, trainable)
    look_up = embedding_lookup_unique if unique else tf.nn.embedding_lookup
    return look_up(embeddings, ids)


def embedding_lookup_unique(params: Any, ids: Any, partition_strategy: str = "mod", name: str | None = None) -> Any:
  """tf.nn.embedding_lookup that fetches each distinct id once."""
  with tf.name_scope(name, "EmbeddingLookupUnique", [params, ids]):
    ids = tf.convert_to_tensor(ids)
    distinct, place = tf.unique(tf.reshape(ids, [-1]))
    rows = tf.gather(tf.nn.embedding_lookup(params, distinct, partition_strategy=partition_strategy), place)
    width = tf.shape(rows)[1:]
    outputs = tf.reshape(rows, tf.concat([tf.shape(ids), width], 0))
    outputs.set_shape(ids.shape.concatenate(rows.shape[1:]))
    return outputs


def safe_embedding_lookup_sparse(
  embedding_weights: Any,
  sparse_ids: Any,
  sparse_weights: Any = None,
  combiner: str = "mean",
  default_id: Any = None,
  name: str | None = None,
  partition_strategy: str = "div",
  max_norm: Any = None,
) -> Any:
  """tf.nn.safe_embedding_lookup_sparse with contrib's default partition strategy, "div"."""
  return tf.nn.safe_embedding_lookup_sparse(
    embedding_weights,
    sparse_ids,
    sparse_weights=sparse_weights,
    combiner=combiner,
    default_id=default_id,
    name=name,
    partition_strategy=partition_strategy,
    max_norm=max_norm,
  )
