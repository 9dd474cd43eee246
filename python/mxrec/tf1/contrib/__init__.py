"""Parts of `tf.contrib`, which TensorFlow 2 dropped, on tensorflow.compat.v1. Scripts get what `__all__` of each module lists."""
