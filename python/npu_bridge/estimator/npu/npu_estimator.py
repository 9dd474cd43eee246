"""NPUEstimator and NPUEstimatorSpec."""

from __future__ import annotations

import inspect
import json
import os
import random
import string
from collections.abc import Callable
from typing import Any

import tensorflow.compat.v1 as tf
from tensorflow.python.ops import gen_summary_ops, summary_ops_v2

from mxrec import _estimator
from npu_bridge import _session
from npu_bridge.estimator.npu import npu_config

_TRAIN = "train"
_RESTORE_VARIABLES = ("LOCAL_CHECKPOINT_DIR", "RESTORE_FROM")


class NPUEstimatorSpec:
  """An EstimatorSpec that can have a function called in every step of the training.

  `host_call` is a pair (function, tensors): the function is called once, while the graph is built, with the tensors (a list or
  tuple: by position, a dict: by name); what it returns, ops or tensors such as summaries, runs in every step.
  """

  def __new__(
    cls,
    mode: str,
    predictions: Any = None,
    loss: Any = None,
    train_op: Any = None,
    eval_metric_ops: Any = None,
    export_outputs: Any = None,
    training_chief_hooks: Any = None,
    training_hooks: Any = None,
    scaffold: Any = None,
    evaluation_hooks: Any = None,
    prediction_hooks: Any = None,
    host_call: Any = None,
  ) -> Any:
    """Makes a spec; arguments but host_call as of EstimatorSpec.

    Raises:
      ValueError: host_call is no list or tuple of two, or its tensors are in no list, tuple or dict; what EstimatorSpec refuses.
      TypeError: the function of host_call cannot be called.
      RuntimeError: the function does not take the tensors.
    """
    kind = _estimator.joined(cls, "EstimatorSpec")
    spec = super(NPUEstimatorSpec, kind).__new__(
      kind,
      mode,
      predictions,
      loss,
      train_op,
      eval_metric_ops,
      export_outputs,
      training_chief_hooks,
      training_hooks,
      scaffold,
      evaluation_hooks,
      prediction_hooks,
    )
    if host_call is not None:
      _check_host_call(host_call)
    spec.host_call = host_call
    return spec

  def _replace(self, **arguments: Any) -> Any:
    """A spec with some fields replaced."""
    host_call = arguments.pop("host_call", self.host_call)
    spec = super()._replace(**arguments)
    spec.host_call = host_call
    return spec


def _check_host_call(host_call: Any) -> None:
  if not isinstance(host_call, (list, tuple)):
    raise ValueError(f"host_call must be a tuple (function, tensors): got {type(host_call).__name__}")
  if len(host_call) != 2:
    raise ValueError(f"host_call must be a tuple (function, tensors): got {len(host_call)} items")
  function, tensors = host_call
  if not callable(function):
    raise TypeError(f"the first item of host_call must be a function: got {type(function).__name__}")
  if not isinstance(tensors, (list, tuple, dict)):
    raise ValueError(f"the tensors of host_call must be in a list, tuple or dict: got {type(tensors).__name__}")
  try:
    signature = inspect.signature(function)
  except (TypeError, ValueError):
    return  # a built-in function: it will say itself
  try:
    signature.bind(**tensors) if isinstance(tensors, dict) else signature.bind(*tensors)
  except TypeError as error:
    raise RuntimeError(f"the function of host_call does not take its {len(tensors)} tensors: {error}") from error


class NPUEstimator:
  """An Estimator with an NPURunConfig: iteration loops, host_call, broadcast over ranks, and options of NpuOptimizer.

  Objects are Estimators; making the first one imports tensorflow-estimator.
  """

  def __new__(cls, *args: Any, **kwargs: Any) -> Any:
    """Makes an object that is an Estimator too."""
    del args, kwargs
    return object.__new__(_estimator.joined(cls, "Estimator"))

  def __init__(
    self,
    model_fn: Callable[..., Any] | None = None,
    model_dir: str | None = None,
    config: Any = None,
    params: Any = None,
    job_start_file: str = "",
    warm_start_from: Any = None,
  ) -> None:
    """Makes an Estimator.

    Args:
      model_fn: as of tf.estimator.Estimator; may return an NPUEstimatorSpec.
      model_dir: folder of checkpoints and summaries; None: that of config, else a new folder `model_dir_<10 letters and digits>`
        below the working folder.
      config: an NPURunConfig.
      params: passed on to model_fn.
      job_start_file: a JSON file that describes the job, or "". Nothing in it is needed here.
      warm_start_from: as of tf.estimator.Estimator; None: what the environment variable LOCAL_CHECKPOINT_DIR names, else
        RESTORE_FROM.

    Raises:
      ValueError: config is no NPURunConfig; job_start_file cannot be read or is not JSON; model_dir differs from that of config; a
        value of config that NpuOptimizer does not allow, or values that contradict each other.
    """
    if not isinstance(config, npu_config.NPURunConfig):
      raise ValueError(f"config of NPUEstimator must be an NPURunConfig: got {type(config).__name__}")
    _check_job_file(job_start_file)
    if model_dir is None and config.model_dir is None:
      letters = random.SystemRandom().choices(string.ascii_letters + string.digits, k=10)
      model_dir = os.path.join(os.getcwd(), f"model_dir_{''.join(letters)}")
    if warm_start_from is None:
      warm_start_from = next((os.environ[name] for name in _RESTORE_VARIABLES if os.environ.get(name)), None)
    super().__init__(model_fn, model_dir, config.replace(session_config=session_config(config)), params, warm_start_from)

  def train(self, input_fn: Any, hooks: Any = None, steps: Any = None, max_steps: Any = None, saving_listeners: Any = None) -> Any:
    """Trains, as tf.estimator.Estimator.train does, exactly as many steps as asked for.

    Where the steps that are left are fewer than iterations_per_loop, the last run of the session has only so many iterations.
    """
    self._npu_steps = (steps, max_steps)
    try:
      return super().train(input_fn, hooks, steps, max_steps, saving_listeners)
    finally:
      self._npu_steps = (None, None)

  _npu_steps: tuple[Any, Any] = (None, None)

  def _assert_members_are_not_overridden(self) -> None:
    """Allows what Estimator forbids its subclasses, for the method below."""

  def _call_model_fn(self, features: Any, labels: Any, mode: str, config: Any) -> Any:
    try:
      spec = super()._call_model_fn(features, labels, mode, config)
    except ValueError as error:
      if mode == _TRAIN and str(error) == "model_fn should return an EstimatorSpec.":
        raise RuntimeError("model_fn of NPUEstimator must return an EstimatorSpec or NPUEstimatorSpec") from error
      raise
    return self._for_training(spec) if mode == _TRAIN else spec

  def _for_training(self, spec: Any) -> Any:
    from npu_bridge.estimator.npu import _gradients, npu_saver, util

    hooks: list[Any] = []
    if _gradients.rank_size() > 1 and not self._config.horovod_mode:
      from npu_bridge.estimator.npu import npu_hook

      hooks.append(npu_hook.NPUBroadcastGlobalVariablesHook(0, int(os.environ.get("RANK_ID") or 0)))
    train_op = getattr(spec.train_op, "op", spec.train_op)
    if getattr(spec, "host_call", None) is not None:
      function, tensors = spec.host_call
      called = function(**tensors) if isinstance(tensors, dict) else function(*tensors)
      train_op = tf.group(train_op, *(item for item in tf.nest.flatten(called) if item is not None))
      hooks.append(_SummaryWriterHook())
    if self._config.iterations_per_loop > 1:
      loop = util.IterationPerLoop()
      train_op = loop.create_iteration_per_loop_var(train_op)
      hooks.append(_LoopHook(loop, self._config.iterations_per_loop, *self._npu_steps))
    if not (spec.scaffold.saver or tf.get_collection(tf.GraphKeys.SAVERS)):
      saver = npu_saver.NPUSaver(
        sharded=True,
        max_to_keep=self._config.keep_checkpoint_max,
        keep_checkpoint_every_n_hours=self._config.keep_checkpoint_every_n_hours,
        defer_build=True,
        save_relative_paths=True,
      )
      tf.add_to_collection(tf.GraphKeys.SAVERS, saver)
    return spec._replace(train_op=train_op, training_hooks=(*hooks, *spec.training_hooks))


class _LoopHook(tf.train.SessionRunHook):
  """Sets the number of iterations in each new session, and a smaller one for a last run that would go too far.

  Args:
    loop: the util.IterationPerLoop.
    iterations: how many a run has.
    steps, max_steps: as of Estimator.train.
  """

  def __init__(self, loop: Any, iterations: int, steps: int | None, max_steps: int | None) -> None:
    self._loop, self._iterations, self._steps, self._last = loop, iterations, steps, max_steps
    self._now = 0  # the global step, if each iteration is one

  def begin(self) -> None:
    """Called by MonitoredSession."""
    self._step = tf.train.get_global_step()

  def after_create_session(self, session: Any, coord: Any) -> None:
    """Called by MonitoredSession."""
    del coord
    self._loop.load_iteration_per_loop_var(session, self._iterations)
    self._now = int(session.run(self._step))
    if self._last is None and self._steps is not None:
      self._last = self._now + self._steps

  def before_run(self, run_context: Any) -> None:
    """Called by MonitoredSession."""
    if self._last is not None and self._now + self._iterations > self._last:
      self._now = int(run_context.session.run(self._step))  # an iteration may have been no step
      self._loop.shorten(run_context.session, max(1, min(self._iterations, self._last - self._now)))
    self._now += self._iterations


class _SummaryWriterHook(tf.train.SessionRunHook):
  """Opens the summary writers that a host_call made, and writes out what they hold at the end."""

  def begin(self) -> None:
    """Called by MonitoredSession."""
    self._open = summary_ops_v2.summary_writer_initializer_op()
    self._flush = [gen_summary_ops.flush_summary_writer(op.inputs[0]) for op in self._open]

  def after_create_session(self, session: Any, coord: Any) -> None:
    """Called by MonitoredSession."""
    del coord
    session.run(self._open)

  def end(self, session: Any) -> None:
    """Called by MonitoredSession."""
    session.run(self._flush)


def _check_job_file(path: str) -> None:
  if not path:
    return
  try:
    with open(path, encoding="utf-8") as file:
      json.load(file)
  except (OSError, ValueError) as error:
    raise ValueError(f"job_start_file {path!r} of NPUEstimator cannot be read as JSON: {error}") from error


def session_config(config: Any) -> tf.ConfigProto:
  """The configuration of an NPUEstimator's sessions: that of the NPURunConfig, with NpuOptimizer and its options.

  Keys that a session_config of the user has already stay, except where an argument of NPURunConfig differs from its default.

  Raises:
    ValueError: NpuOptimizer does not allow a value, or values contradict each other.
  """
  proto = tf.ConfigProto()
  if config.session_config is not None:
    proto.CopyFrom(config.session_config)
  else:
    options = proto.graph_options.rewrite_options
    options.meta_optimizer_iterations = type(options).ONE
  _session.edit_config(proto)
  parameters = _session.npu_optimizer_of(proto).parameter_map
  options = {"use_off_line": ("b", True), **config._options()}
  if config.cluster_spec:
    options.update(job=("s", config.task_type), task_index=("i", config.task_id))
  for key, (field, value) in options.items():
    setattr(parameters[key], field, value.encode() if field == "s" else value)
  try:
    from npu_bridge import _options
  except ImportError:
    return proto
  _options.validate(proto)
  return proto
