"""Memory that a process may still take."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch

from warpdrive.variables import number_in


@dataclass(frozen=True)
class _Kind:
    """Where one version of the kernel's control groups says what."""

    limit: str
    usage: str
    files: str
    """In memory.stat: bytes of files that were read into memory and can go."""


_V1 = _Kind("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
_V2 = _Kind("memory.max", "memory.current", "inactive_file")


def free_bytes(device: torch.device, root: Path = Path("/")) -> int | None:
    """Memory that this process may still take on a device; None where nobody knows.

    On a CPU the ranks of one machine share it evenly.

    Args:
        root: of the files in which Linux tells it.
    """
    if device.type == "cuda":
        free = torch.cuda.mem_get_info(device)[0]
        return free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    known = list(_left_to_groups(root))
    if found := re.search(r"MemAvailable:\s+(\d+) kB", _text(root / "proc/meminfo")):
        known.append(int(found.group(1)) * 1024)
    return min(known) // (number_in("LOCAL_WORLD_SIZE") or 1) if known else None


def _left_to_groups(root: Path) -> Iterator[int]:
    """Of what this process's control group may have, and each one around it: a container, a job, a session."""
    paths = {}
    for line in _text(root / "proc/self/cgroup").splitlines():
        _, controllers, path = f"{line}::".split(":", 2)
        if not controllers:
            paths[_V2] = path.removesuffix("::")
        elif "memory" in controllers.split(","):
            paths[_V1] = path.removesuffix("::")
    for line in _text(root / "proc/self/mountinfo").splitlines():
        mount, _, source = line.partition(" - ")
        _, _, _, top, place, *_ = [*map(_unescaped, mount.split()), *5 * [""]]
        system, _, options, *_ = [*source.split(), *3 * [""]]
        kind = {"cgroup2": _V2, "cgroup": _V1 if "memory" in options.split(",") else None}.get(system)
        if kind in paths:
            yield from _left_up_from(paths[kind], top, root / place.lstrip("/"), kind)


def _left_up_from(path: str, top: str, place: Path, kind: _Kind) -> Iterator[int]:
    """Of the group of this path and of those around it, up to that of path `top`, which is mounted at `place`."""
    inner = os.path.relpath(path, top)
    folder = place if inner.startswith("..") else place / inner  # of another namespace: only `place` is to be seen
    while folder.is_relative_to(place):
        limit, usage, stat = (_text(folder / name).strip() for name in (kind.limit, kind.usage, "memory.stat"))
        if limit.isdigit() and usage.isdigit():
            told = dict(line.split(" ", 1) for line in stat.splitlines() if " " in line)
            # v1 also tells of groups around it that are not to be seen from here.
            limit = min(int(limit), int(told.get("hierarchical_memory_limit", limit)))
            yield max(0, limit - int(usage) + int(told.get(kind.files, 0)))
        folder = folder.parent


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


def _unescaped(word: str) -> str:
    """Of mountinfo, which writes a blank as \\040."""
    return re.sub(r"\\([0-7]{3})", lambda found: chr(int(found.group(1), 8)), word)
