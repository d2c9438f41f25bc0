"""Where two ranks run, which processes a launcher started, what code of theirs begins with, and where one listens."""

import contextlib
import re
import socket
import struct
import subprocess
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[1]

needs_two_gpus = pytest.mark.skipif(
    torch.cuda.device_count() < 2, reason=f"needs 2 GPUs for NCCL, and there are {torch.cuda.device_count()}"
)
DEVICES = ["cpu", pytest.param("cuda", marks=needs_two_gpus)]
"""Of two ranks."""

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


def listening(process: int) -> list[str]:
    """The addresses at which a process waits for connections by TCP, of IPv6 as the kernel tells them."""
    own = set()
    for one in Path(f"/proc/{process}/fd").iterdir():
        with contextlib.suppress(OSError):  # it is closed by now
            own.add(str(one.readlink()))
    found = []
    for version in ("tcp", "tcp6"):
        for line in Path(f"/proc/{process}/net/{version}").read_text().splitlines()[1:]:
            words = line.split()
            if words[3] == "0A" and f"socket:[{words[9]}]" in own:
                address = words[1].partition(":")[0]
                is_4 = version == "tcp"
                found.append(socket.inet_ntoa(struct.pack("<I", int(address, 16))) if is_4 else f"IPv6 {address}")
    return found
