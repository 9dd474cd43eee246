"""horovod.common: exceptions, process sets and the small helpers that scripts import from here."""

from mxrec.horovod.common import exceptions, process_sets, util

__all__ = ["exceptions", "process_sets", "util"]
