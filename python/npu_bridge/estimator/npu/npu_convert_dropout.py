"""Import-only module: on the NPU it makes Keras dropout layers use npu_ops.dropout. Here nothing has to change.

`tf.layers.dropout`, `tf.layers.Dropout`, `tf.keras.layers.Dropout` and the `SpatialDropout` layers drop with the same distribution,
divide what they keep by the same probability, and are the identity outside of training.
"""
