"""What the original keeps apart as experimental.

`file_constant` and `get_shape` are graph ops; `hccl_ops` and `image_ops` are the modules of the same names.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow.compat.v1 as tf

from npu_bridge.hccl import hccl_ops as hccl_ops


def file_constant(
  shape: Sequence[int],
  dtype: Any,
  file_path: str = "",
  file_id: str = "",
  offset: int = 0,
  length: int = 0,
  name: str | None = None,
) -> tf.Tensor:
  """A tensor read from the raw bytes of a file each time it runs.

  Args:
    shape: its shape, fully defined.
    dtype: its type, of fixed size.
    file_path: the file, values in row-major order and in the byte order of this machine.
    file_id: another name for file_path in older scripts.
    offset: where the values begin, in bytes.
    length: how many bytes they have; 0: as shape and type say.
    name: name of the op.

  Raises:
    ValueError: no file is named, or length contradicts shape and type.
    tf.errors.InvalidArgumentError: when it runs, if the file has too few bytes.
  """
  dtype = tf.as_dtype(dtype)
  path = file_path or file_id
  if not path:
    raise ValueError("file_constant needs file_path: it is empty")
  count = tf.TensorShape(shape).num_elements()
  if count is None:
    raise ValueError(f"shape of file_constant must be fully defined: got {shape}")
  size = count * dtype.size
  if length not in (0, size):
    raise ValueError(f"length of file_constant must be {size} bytes for shape {list(shape)} of {dtype.name}, or 0: got {length}")
  with tf.name_scope(name or "file_constant"):
    content = tf.strings.substr(tf.io.read_file(path), offset, size)
    found = tf.strings.length(content)
    enough = tf.debugging.assert_equal(found, size, message=f"file_constant: {path} must have {size} bytes from byte {offset} on")
    with tf.control_dependencies([enough]):
      return tf.reshape(tf.io.decode_raw(content, dtype), shape)


def get_shape(inputs: Sequence[Any], name: str | None = None) -> tf.Tensor:
  """The shapes of tensors, one after another, as one int32 vector.

  Args:
    inputs: list of tensors.
    name: name of the op.
  """
  return tf.concat([tf.shape(one) for one in inputs], 0, name=name or "get_shape")


def __getattr__(name: str) -> Any:
  if name == "image_ops":
    from npu_bridge.image import image_ops

    return image_ops
  raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
