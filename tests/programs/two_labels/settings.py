"""What the program reads from its TOML file."""

import os

import tensorflow as tf
import toml
from rec_sdk_common.communication.hccl.hccl_info import get_rank_id, get_rank_size


class Settings(object):
  rank_size = get_rank_size()
  rank_id = get_rank_id()
  learning_rate = 0.05
  user_dim = 32
  item_dim = 8
  user_features = 8
  item_features = 16
  id_range = 5000000 * rank_size

  def __init__(self, path):
    model = toml.load(path)["model"]
    self.toml_path = path
    self.mode = model["mode"]
    self.saved_path = model["saved_path"]
    self.train_steps = model["train_steps"]
    self.train_interval = model["train_interval"]
    self.eval_steps = model["eval_steps"]
    self.batch_size = model["batch_number"]
    self.deterministic = model["deterministic"]
    if not os.path.exists(self.saved_path):
      os.makedirs(self.saved_path)


def session_config(settings):
  from tensorflow.core.protobuf.rewriter_config_pb2 import RewriterConfig

  config = tf.compat.v1.ConfigProto(allow_soft_placement=False, log_device_placement=False)
  config.gpu_options.allow_growth = True
  custom_op = config.graph_options.rewrite_options.custom_optimizers.add()
  custom_op.name = "NpuOptimizer"
  custom_op.parameter_map["mix_compile_mode"].b = False
  custom_op.parameter_map["use_off_line"].b = True
  custom_op.parameter_map["min_group_size"].b = 1
  custom_op.parameter_map["enable_data_pre_proc"].b = True
  custom_op.parameter_map["iterations_per_loop"].i = 10
  custom_op.parameter_map["precision_mode"].s = tf.compat.as_bytes("must_keep_origin_dtype")
  custom_op.parameter_map["deterministic"].i = settings.deterministic
  custom_op.parameter_map["hcom_parallel"].b = False
  custom_op.parameter_map["op_precision_mode"].s = tf.compat.as_bytes("op_impl_mode.ini")
  custom_op.parameter_map["op_execute_timeout"].i = 2000
  custom_op.parameter_map["variable_memory_max_size"].s = tf.compat.as_bytes(str(13 * 1024 * 1024 * 1024))
  custom_op.parameter_map["graph_memory_max_size"].s = tf.compat.as_bytes(str(18 * 1024 * 1024 * 1024))
  custom_op.parameter_map["stream_max_parallel_num"].s = tf.compat.as_bytes("DNN_VM_AICPU:3,AIcoreEngine:3")
  config.graph_options.rewrite_options.remapping = RewriterConfig.OFF
  config.graph_options.rewrite_options.memory_optimization = RewriterConfig.OFF
  return config
