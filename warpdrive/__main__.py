"""`warpdrive` and `python -m warpdrive`: the command line, which stands on top of all floors. No package imports this
module."""

import signal
import sys
from typing import Any

from warpdrive.interrupts import remember_interrupts


def main(**how: Any) -> int:
    """`trainers.cli.main`, which Ctrl-C may also end while it is being imported.

    Where no torch was loaded the process ends here: taking modules down takes a sixth of the time of `config check`.
    """
    remember_interrupts()
    try:
        from trainers.cli import main as run
        from trainers.run.stop import end_at_once
    except KeyboardInterrupt:
        print("stopped by Ctrl-C", file=sys.stderr)
        return 130
    code = run(**how)
    if code == 130:  # what ends already would abort by another Ctrl-C
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    if "torch" not in sys.modules:
        end_at_once(code)
    return code


if __name__ == "__main__":
    sys.exit(main())
