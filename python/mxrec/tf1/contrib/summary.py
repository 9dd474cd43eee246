"""tf.contrib.summary: now tf.compat.v2.summary; as much of it as scripts in graph mode use."""

import tensorflow.compat.v1 as tf
from tensorflow.python.ops import summary_ops_v2 as _ops

create_file_writer = tf.compat.v2.summary.create_file_writer
all_summary_ops = _ops.all_v2_summary_ops
flush = tf.compat.v2.summary.flush
should_record_summaries = tf.compat.v2.summary.should_record_summaries

__all__ = ["all_summary_ops", "create_file_writer", "flush", "should_record_summaries"]
