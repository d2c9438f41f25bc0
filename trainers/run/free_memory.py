"""Memory that a process may still take."""

from __future__ import annotations

import os
import re
from pathlib import Path

import torch


def free_bytes(device: torch.device) -> int | None:
    """Memory that this process may still take on a device; None where nobody knows.

    On a CPU the ranks of one machine share it evenly.
    """
    if device.type == "cuda":
        free = torch.cuda.mem_get_info(device)[0]
        return free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    known = [number for number in (_available(), _left_to_container()) if number is not None]
    return min(known) // int(os.environ.get("LOCAL_WORLD_SIZE", 1)) if known else None


def _available() -> int | None:
    """Of this machine's memory, in bytes."""
    try:
        found = re.search(r"MemAvailable:\s+(\d+) kB", Path("/proc/meminfo").read_text())
        return int(found.group(1)) * 1024 if found else None
    except OSError:
        return None


def _left_to_container() -> int | None:
    """Of what a container, or another control group, may have; files that were read into memory can go."""
    places = [("/sys/fs/cgroup", "memory.max", "memory.current", "inactive_file")]
    places.append(("/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"))
    for folder, limit, used, inactive in places:
        try:
            most, now = ((Path(folder) / name).read_text().strip() for name in (limit, used))
            files = re.search(rf"^{inactive} (\d+)$", (Path(folder) / "memory.stat").read_text(), re.MULTILINE)
            return None if most == "max" else max(0, int(most) - int(now) + (int(files.group(1)) if files else 0))
        except (OSError, ValueError):
            continue
    return None
