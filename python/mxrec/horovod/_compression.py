"""Smaller types for values on their way between ranks."""

from __future__ import annotations

from typing import Any

import tensorflow as tf


class Compressor:
  """Changes a tensor before it travels, and the result back. Subclasses may be written by users."""

  # float32 travels as this type, while sums stay in float32; None: `compress` decides.
  wire: str | None = None

  @staticmethod
  def compress(tensor: tf.Tensor) -> tuple[tf.Tensor, Any]:
    """The tensor that travels, and what decompress needs."""
    raise NotImplementedError("a Compressor needs compress(tensor)")

  @staticmethod
  def decompress(tensor: tf.Tensor, ctx: Any) -> tf.Tensor:
    """The result as the caller wants it."""
    raise NotImplementedError("a Compressor needs decompress(tensor, ctx)")


class NoneCompressor(Compressor):
  """Leaves everything as it is."""

  @staticmethod
  def compress(tensor: tf.Tensor) -> tuple[tf.Tensor, Any]:
    return tensor, None

  @staticmethod
  def decompress(tensor: tf.Tensor, ctx: Any) -> tf.Tensor:
    return tensor


class FP16Compressor(Compressor):
  """Floating values travel as float16."""

  wire = "float16"
  _dtype = tf.float16

  @classmethod
  def compress(cls, tensor: tf.Tensor) -> tuple[tf.Tensor, Any]:
    dtype = tensor.dtype
    return (tf.cast(tensor, cls._dtype) if dtype.is_floating and dtype.size > cls._dtype.size else tensor), dtype

  @classmethod
  def decompress(cls, tensor: tf.Tensor, ctx: Any) -> tf.Tensor:
    return tensor if tensor.dtype == ctx else tf.cast(tensor, ctx)


class BF16Compressor(FP16Compressor):
  """Floating values travel as bfloat16."""

  wire = "bfloat16"
  _dtype = tf.bfloat16


class Compression:
  """The compressors there are."""

  none = NoneCompressor
  fp16 = FP16Compressor
  bf16 = BF16Compressor
