"""Lets `python -m rlinf.cli` stand for the command `rlinf`."""

import sys

from rlinf.cli import main

sys.exit(main())
