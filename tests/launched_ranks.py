"""Which processes a launcher started."""

import re
import subprocess
from pathlib import Path


def ranks_of(process: subprocess.Popen[str]) -> dict[int, int]:
    """RANK -> process id, of the processes that a launcher started."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            parent = int(re.search(r"PPid:\t(\d+)", (folder / "status").read_text()).group(1))
            variables = (folder / "environ").read_text().split("\0")
        except OSError:
            continue  # it is gone
        if parent == process.pid:
            found |= {int(one[5:]): int(folder.name) for one in variables if one.startswith("RANK=")}
    return found
