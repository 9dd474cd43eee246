"""tf.contrib.cluster_resolver: now tf.distribute.cluster_resolver."""

import tensorflow.compat.v1 as tf

ClusterResolver = tf.distribute.cluster_resolver.ClusterResolver
SimpleClusterResolver = tf.distribute.cluster_resolver.SimpleClusterResolver
TFConfigClusterResolver = tf.distribute.cluster_resolver.TFConfigClusterResolver
UnionClusterResolver = tf.distribute.cluster_resolver.UnionResolver

__all__ = ["ClusterResolver", "SimpleClusterResolver", "TFConfigClusterResolver", "UnionClusterResolver"]
