"""tf.contrib.tpu: there is no TPU here; TPUEstimator with use_tpu=False behaves as tf.estimator.Estimator."""

from __future__ import annotations

from typing import Any

from mxrec.tf1._facade import load_estimator

__all__ = ["CrossShardOptimizer", "InputPipelineConfig", "RunConfig", "TPUConfig", "TPUEstimator", "TPUEstimatorSpec"]


def CrossShardOptimizer(opt: Any, *_: Any, **__: Any) -> Any:
  """The optimizer itself: there is one shard."""
  return opt


class InputPipelineConfig:
  """Constants of TPUConfig."""

  PER_SHARD_V1 = 1
  PER_HOST_V1 = 2
  PER_HOST_V2 = 3
  BROADCAST = 4


class TPUConfig:
  """Settings of a TPU, kept and not used."""

  def __init__(self, iterations_per_loop: int = 2, num_shards: Any = None, **others: Any):
    self.iterations_per_loop = iterations_per_loop
    self.num_shards = num_shards
    self.__dict__.update(others)


def _make_run_config() -> type:
  estimator = load_estimator()

  class RunConfig(estimator.RunConfig):
    """tf.estimator.RunConfig that takes the TPU's arguments, and keeps `tpu_config`."""

    def __init__(
      self, tpu_config: Any = None, evaluation_master: Any = None, master: Any = None, cluster: Any = None, **others: Any
    ):
      super().__init__(**others)
      self._tpu_config = tpu_config or TPUConfig()

    @property
    def tpu_config(self) -> Any:
      return self._tpu_config

  return RunConfig


def _make_estimator_spec() -> Any:
  estimator = load_estimator()

  def TPUEstimatorSpec(
    mode: Any,
    predictions: Any = None,
    loss: Any = None,
    train_op: Any = None,
    eval_metrics: Any = None,
    export_outputs: Any = None,
    scaffold_fn: Any = None,
    host_call: Any = None,
    training_hooks: Any = None,
    evaluation_hooks: Any = None,
    prediction_hooks: Any = None,
  ) -> Any:
    """An EstimatorSpec: `eval_metrics` (function, tensors) and `scaffold_fn` are called at once, `host_call` is left out."""
    metrics = None
    if eval_metrics is not None:
      function, tensors = eval_metrics
      metrics = function(**tensors) if isinstance(tensors, dict) else function(*tensors)
    return estimator.EstimatorSpec(
      mode,
      predictions=predictions,
      loss=loss,
      train_op=train_op,
      eval_metric_ops=metrics,
      export_outputs=export_outputs,
      scaffold=scaffold_fn() if scaffold_fn is not None else None,
      training_hooks=training_hooks,
      evaluation_hooks=evaluation_hooks,
      prediction_hooks=prediction_hooks,
    )

  return TPUEstimatorSpec


def _make_estimator() -> type:
  estimator = load_estimator()

  class TPUEstimator(estimator.Estimator):
    """tf.estimator.Estimator whose params hold `batch_size`, as on a TPU."""

    def __init__(
      self,
      model_fn: Any = None,
      model_dir: Any = None,
      config: Any = None,
      params: Any = None,
      use_tpu: bool = True,
      train_batch_size: Any = None,
      eval_batch_size: Any = None,
      predict_batch_size: Any = None,
      warm_start_from: Any = None,
      **_: Any,
    ):
      """ValueError: use_tpu=True."""
      if use_tpu:
        raise ValueError("TPUEstimator: there is no TPU here; give use_tpu=False")
      self._batch_sizes = {"train": train_batch_size, "eval": eval_batch_size, "infer": predict_batch_size}
      super().__init__(model_fn, model_dir=model_dir, config=config, params=dict(params or {}), warm_start_from=warm_start_from)

    def _call_input_fn(self, input_fn: Any, mode: Any, *args: Any, **kwargs: Any) -> Any:
      size = self._batch_sizes.get(mode)
      params = self._params
      self._params = {**params, **({} if size is None else {"batch_size": size})}
      try:
        return super()._call_input_fn(input_fn, mode, *args, **kwargs)
      finally:
        self._params = params

  return TPUEstimator


_MAKERS = {"RunConfig": _make_run_config, "TPUEstimator": _make_estimator, "TPUEstimatorSpec": _make_estimator_spec}


def __getattr__(name: str) -> Any:
  if name in _MAKERS:
    globals()[name] = _MAKERS[name]()
    return globals()[name]
  raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
