"""tf.contrib.distribute: now tf.distribute."""

from __future__ import annotations

import collections

import tensorflow.compat.v1 as tf

MirroredStrategy = tf.distribute.MirroredStrategy
OneDeviceStrategy = tf.distribute.OneDeviceStrategy
ParameterServerStrategy = tf.distribute.experimental.ParameterServerStrategy
CollectiveAllReduceStrategy = tf.distribute.experimental.MultiWorkerMirroredStrategy
DistributeConfig = collections.namedtuple("DistributeConfig", ["train_distribute", "eval_distribute", "remote_cluster"])
DistributeConfig.__new__.__defaults__ = (None, None, None)

__all__ = ["CollectiveAllReduceStrategy", "DistributeConfig", "MirroredStrategy", "OneDeviceStrategy", "ParameterServerStrategy"]
