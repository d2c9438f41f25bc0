"""`warpdrive` and `python -m warpdrive`: the command line, which stands on top of all floors. No package imports this
module."""

import sys
from typing import Any


def main(**how: Any) -> int:
    """`trainers.cli.main`, which Ctrl-C may also end while it is being imported."""
    try:
        from trainers.cli import main as run
    except KeyboardInterrupt:
        print("stopped by Ctrl-C", file=sys.stderr)
        return 130
    return run(**how)


if __name__ == "__main__":
    sys.exit(main())
