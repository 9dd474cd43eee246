"""What `import horovod.keras as hvd` gives: the same as horovod.tensorflow.keras."""

from mxrec.horovod.tensorflow.keras import *  # noqa: F403
from mxrec.horovod.tensorflow.keras import __all__ as __all__
