"""Horovod's TensorFlow API on the collectives of mxrec.

`import mxrec.horovod as hvd` gives what `import horovod.tensorflow as hvd` gives. After install(), or under `mxrec run --horovod`,
the second form works as well. docs/guide/horovod.md has the differences.
"""

from typing import Any

from mxrec._horovod_import import install, installed
from mxrec.horovod import common, tensorflow
from mxrec.horovod.tensorflow import *  # noqa: F403
from mxrec.horovod.tensorflow import __all__ as _names

__version__ = "0.28.1"  # the release whose API this follows

__all__ = ["common", "install", "installed", "tensorflow", *_names]


def __getattr__(name: str) -> Any:
  return getattr(tensorflow, name)
