"""horovod.tensorflow.sync_batch_norm."""

from mxrec.horovod._sync_batch_norm import layer_class

SyncBatchNormalization = layer_class()

__all__ = ["SyncBatchNormalization"]
