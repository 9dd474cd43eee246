"""tf.contrib.data: functions for Dataset.apply, most of them under the same names in tf.data.experimental."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow.compat.v1 as tf
from tensorflow.python.util import nest

_new = tf.data.experimental
AUTOTUNE = _new.AUTOTUNE
Counter = _new.Counter
CsvDataset = _new.CsvDataset
Optional = _new.Optional
RandomDataset = _new.RandomDataset
Reducer = _new.Reducer
SqlDataset = _new.SqlDataset
TFRecordWriter = _new.TFRecordWriter
bucket_by_sequence_length = _new.bucket_by_sequence_length
choose_from_datasets = _new.choose_from_datasets
copy_to_device = _new.copy_to_device
dense_to_sparse_batch = _new.dense_to_sparse_batch
enumerate_dataset = _new.enumerate_dataset
get_next_as_optional = _new.get_next_as_optional
get_single_element = _new.get_single_element
group_by_reducer = _new.group_by_reducer
group_by_window = _new.group_by_window
ignore_errors = _new.ignore_errors
make_batched_features_dataset = _new.make_batched_features_dataset
make_csv_dataset = _new.make_csv_dataset
make_saveable_from_iterator = _new.make_saveable_from_iterator
map_and_batch = _new.map_and_batch
parallel_interleave = _new.parallel_interleave
parse_example_dataset = _new.parse_example_dataset
prefetch_to_device = _new.prefetch_to_device
rejection_resample = _new.rejection_resample
sample_from_datasets = _new.sample_from_datasets
scan = _new.scan
shuffle_and_repeat = _new.shuffle_and_repeat
unbatch = _new.unbatch
unique = _new.unique
Dataset = tf.data.Dataset
FixedLengthRecordDataset = tf.data.FixedLengthRecordDataset
Iterator = tf.data.Iterator
TFRecordDataset = tf.data.TFRecordDataset
TextLineDataset = tf.data.TextLineDataset

__all__ = [
  "AUTOTUNE",
  "Counter",
  "CsvDataset",
  "Dataset",
  "FixedLengthRecordDataset",
  "Iterator",
  "Optional",
  "RandomDataset",
  "Reducer",
  "SqlDataset",
  "TFRecordDataset",
  "TFRecordWriter",
  "TextLineDataset",
  "assert_element_shape",
  "batch_and_drop_remainder",
  "bucket_by_sequence_length",
  "choose_from_datasets",
  "copy_to_device",
  "dense_to_sparse_batch",
  "enumerate_dataset",
  "get_next_as_optional",
  "get_single_element",
  "group_by_reducer",
  "group_by_window",
  "ignore_errors",
  "make_batched_features_dataset",
  "make_csv_dataset",
  "make_saveable_from_iterator",
  "map_and_batch",
  "padded_batch_and_drop_remainder",
  "parallel_interleave",
  "parse_example_dataset",
  "prefetch_to_device",
  "rejection_resample",
  "sample_from_datasets",
  "scan",
  "shuffle_and_repeat",
  "sloppy_interleave",
  "unbatch",
  "unique",
]


def batch_and_drop_remainder(batch_size: Any) -> Callable[[Any], Any]:
  """Dataset.batch without the last short batch."""
  return lambda dataset: dataset.batch(batch_size, drop_remainder=True)


def padded_batch_and_drop_remainder(batch_size: Any, padded_shapes: Any, padding_values: Any = None) -> Callable[[Any], Any]:
  """Dataset.padded_batch without the last short batch."""
  return lambda dataset: dataset.padded_batch(batch_size, padded_shapes, padding_values, drop_remainder=True)


def sloppy_interleave(map_func: Any, cycle_length: int, block_length: int = 1) -> Callable[[Any], Any]:
  """parallel_interleave whose order may change between runs."""
  return parallel_interleave(map_func, cycle_length, block_length, sloppy=True)


def assert_element_shape(expected_shapes: Any) -> Callable[[Any], Any]:
  """Fails while the graph is built where static shapes contradict; sets them where they are unknown.

  The check at run time of TensorFlow 1 is the one that setting the shape makes.
  """

  def apply(dataset: Any) -> Any:
    def with_shapes(*element: Any) -> Any:
      element = element[0] if len(element) == 1 else element
      return nest.map_structure_up_to(element, tf.ensure_shape, element, expected_shapes)

    return dataset.map(with_shapes)

  return apply
