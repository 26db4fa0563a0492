"""``python -m stepwatch``: the command line, where no script of that name is on the path."""

import sys

from ._cli import main

sys.exit(main())
