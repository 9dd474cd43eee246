"""TensorFlow 1 for scripts that were written for it, on the TensorFlow 2 that is installed.

`mxrec run script.py` executes a script so that `import tensorflow` in the script's own modules gives the names of TensorFlow 1.15,
`tf.contrib` included, while every library keeps the true TensorFlow. docs/guide/running_tf1_scripts.md shows it.
"""

from mxrec.tf1._run import DEFAULT_VERSION, CannotRun, Options, run

__all__ = ["DEFAULT_VERSION", "CannotRun", "Options", "run"]
