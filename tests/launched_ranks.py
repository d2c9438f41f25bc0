"""Which processes a launcher started, and what code of theirs begins with."""

import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[1]

IMPORTS = f"""
import os, signal, sys, time
sys.path[:0] = [{str(ROOT)!r}]
import torch
from trainers.settings.config import TrainerConfig
from trainers.learning.distributed import join
from warpdrive.errors import ConfigError
world = join(TrainerConfig(num_gpus=int(os.environ["WORLD_SIZE"]), device="cpu"))
rank = world.rank
"""


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
