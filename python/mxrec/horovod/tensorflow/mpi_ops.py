"""horovod.tensorflow.mpi_ops: start and end, ranks, sizes and operations. The same as horovod.tensorflow."""

from mxrec.horovod.tensorflow import *  # noqa: F403
from mxrec.horovod.tensorflow import __all__ as __all__
