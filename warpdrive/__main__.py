"""`python -m warpdrive`: the command line, which stands on top of all floors. Nothing imports this module."""

import sys

from trainers.cli import main

if __name__ == "__main__":
    sys.exit(main())
