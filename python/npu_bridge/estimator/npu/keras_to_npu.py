"""A Keras model as an NPUEstimator."""

from __future__ import annotations

from typing import Any

from mxrec import _estimator
from npu_bridge.estimator.npu.npu_estimator import NPUEstimator


def model_to_npu_estimator(
  keras_model: Any = None,
  keras_model_path: str | None = None,
  custom_objects: Any = None,
  model_dir: str | None = None,
  checkpoint_format: str = "saver",
  config: Any = None,
  job_start_file: str = "",
) -> NPUEstimator:
  """Makes an NPUEstimator of a compiled Keras model. Needs tf_keras, and TF_USE_LEGACY_KERAS=1 before TensorFlow is imported.

  Args:
    keras_model: a compiled model of tf.keras; or:
    keras_model_path: path of a model that tf.keras saved.
    custom_objects: as of tf.keras.models.load_model.
    model_dir: folder of checkpoints and summaries.
    checkpoint_format: "saver" or "checkpoint".
    config: an NPURunConfig.
    job_start_file: as of NPUEstimator.

  Raises:
    ImportError: tensorflow-estimator is missing, or tf.keras is not tf_keras.
    ValueError: neither or both of keras_model and keras_model_path; the model is not compiled; what NPUEstimator refuses.
  """
  _estimator.load()
  import tensorflow.compat.v1 as tf
  from tensorflow_estimator.python.estimator import keras_lib

  if not hasattr(tf.keras, "__internal__") or not hasattr(tf.keras.backend, "set_session"):
    raise ImportError(
      "model_to_npu_estimator needs tf_keras: run pip install --no-deps tf_keras, and set TF_USE_LEGACY_KERAS=1 in the environment "
      "before TensorFlow is imported"
    )
  made = keras_lib.model_to_estimator(
    keras_model, keras_model_path, custom_objects, model_dir, config=config, checkpoint_format=checkpoint_format
  )
  return NPUEstimator(
    made._model_fn,
    made.model_dir,
    config.replace(model_dir=made.model_dir) if config is not None else None,
    None,
    job_start_file,
    made._warm_start_settings,
  )
