"""`python -m mxrec`: the command mxrec."""

import sys

from mxrec.cli import main

sys.exit(main())
