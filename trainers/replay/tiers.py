"""Where a store keeps the steps that its device has no room for: pinned host memory, and files.

    newest                                                                                            oldest
    +---------------------------+-----------------------------------------+----------------------------+
    | device                    | pinned host memory: kernels read it     | files, a chunk of steps    |
    | [hot, E(, A), ...]        | over the bus   [warm, E(, A), ...]      | each; a thread reads items |
    +---------------------------+-----------------------------------------+----------------------------+
    head                        hot_from                                  warm_from              head - num_slots + 1

How steps end (`done`), what truncated episodes saw last, counters and priorities are always on the device.
"""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from trainers.replay.listing import path_of
from trainers.run import disk
from trainers.settings.config import PathName
from warpdrive.config import Between, Matching
from warpdrive.errors import ConfigError

if TYPE_CHECKING:  # a config is checked before torch is loaded
    from trainers.replay.storage import Layout

UNITS = {"": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
UNITS |= {"KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40}
_SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?) ?([KkMmGgTt]i?)?[Bb]?")
_ADMISSION = re.compile(r"all|(?:stride|priority):([1-9][0-9]{0,5})")
MIN_WINDOWS = 3
"""Of the device, at least: one that comes in, one that goes down, and what is between them."""
MAX_AHEAD = 16

Bytes = Annotated[str, Matching(_SIZE.pattern, "a size, such as 80GB or 512MiB")]
Admission = Annotated[str, Matching(_ADMISSION.pattern, "all, stride:4 or priority:4, with any whole number")]


def bytes_of_text(text: str | int) -> int:
    """Of "80GB" or "512MiB".

    Raises:
        ConfigError: it is no size.
    """
    found = _SIZE.fullmatch(str(text).strip())
    if found is None:
        raise ConfigError(f"'{text}' is no size. Write a number and its unit, such as 80GB or 512MiB.")
    unit = f"{found[2]}B".upper() if found[2] else ""
    return int(float(found[1]) * UNITS[unit])


@dataclass(frozen=True)
class Device:
    """The device's own memory, which has the newest steps."""

    size: str | int

    @property
    def num_bytes(self) -> int:
        return bytes_of_text(self.size)


@dataclass(frozen=True)
class Pinned(Device):
    """Host memory that the device reads over the bus."""


@dataclass(frozen=True)
class File:
    """Files in a folder, one a chunk of steps.

    Args:
        admit: which chunks go there: "all"; "stride:k", each k-th; "priority:k", of k in a row that whose items have
            the largest priorities. The others are dropped when their turn comes.
    """

    folder: str | os.PathLike[str] | None
    """None: that of the run's checkpoints, which then share the files."""
    size: str | int
    admit: str = "all"

    def __post_init__(self) -> None:
        if self.folder is not None:
            path_of("folder", self.folder)
        if not isinstance(self.admit, str) or not _ADMISSION.fullmatch(self.admit):
            raise ConfigError(f"admit: {self.admit!r} is no admission. Take all, stride:4 or priority:4.")

    @property
    def num_bytes(self) -> int:
        return bytes_of_text(self.size)

    @property
    def one_of(self) -> int:
        """Chunks of which one is kept."""
        return 1 if self.admit == "all" else int(self.admit.split(":")[1])

    @property
    def by_priority(self) -> bool:
        return self.admit.startswith("priority")


Tier = Device | File


@dataclass(frozen=True)
class TiersConfig:
    """`policy.<name>.tiers:` where transitions are kept; nothing set: all on the device."""

    device: Bytes | None = None
    """Bytes of the device's memory for steps, such as 80GB; if not given, all of them."""
    pinned: Bytes | None = None
    """Bytes of host memory, which a GPU reads over the bus, for what the device has no room for."""
    file: Bytes | None = None
    """Bytes of files, for what neither has room for."""
    folder: PathName | None = None
    """Of these files, for a disk of their own. If not given, the run's checkpoints share them, and no step is written
    twice."""
    admit: Admission = "all"
    """Which chunks of steps go into files: all; stride:4, one of four; priority:4, of four that with the largest
    priorities. The others are dropped."""
    ahead: Annotated[int, Between(1, MAX_AHEAD)] = 4
    """Batches that are drawn ahead, so that what they need is fetched while the learner works. Uniform draws are those
    of a store that is all on the device; priorities are up to so many updates old."""

    def __bool__(self) -> bool:
        return self.device is not None

    def problems(self) -> Iterator[tuple[str, str]]:
        """Keys that do not fit the others, each with what is wrong."""
        below = [key for key in ("pinned", "file") if getattr(self, key) is not None]
        if below and self.device is None:
            yield below[0], "it holds what the device has no room for. Say how much that is by device, such as 8GB."
        if self.device is not None and not below:
            yield "device", "what it has no room for needs pinned or file. Give one, or leave device out."
        for key, default in (("folder", None), ("admit", "all")):
            if self.file is None and getattr(self, key) != default:
                yield key, "it is about files, and there are none. Give file, such as 1TB, or leave it out."
        if self.file is not None and self.ahead < 2:
            yield "ahead", "files are read while two batches wait at least. Take 2 or more."

    def tiers(self) -> list[Tier]:
        """As a ReplayStore takes them."""
        if not self:
            return []
        found: list[Tier] = [Device(self.device)]
        if self.pinned is not None:
            found.append(Pinned(self.pinned))
        if self.file is not None:
            found.append(File(self.folder, self.file, self.admit))
        return found


@dataclass(frozen=True)
class Division:
    """Which steps of a ring lie where. Steps are counted since the store's beginning; `head` of them were added."""

    num_slots: int
    """Of the ring as a whole."""
    num_steps: int
    """Of a window."""
    hot: int
    """Slots on the device: whole windows."""
    warm: int
    """Slots in pinned memory: whole windows, and whole chunks where there are files."""
    chunk: int = 0
    """Steps of a file; 0: there are none."""
    file: File | None = None
    step_bytes: int = 0
    """Of all that goes down, of one step of all envs; and `done_bytes` besides in files."""
    done_bytes: int = 0
    fixed_bytes: int = 0
    """That stay on the device whatever goes down."""

    @classmethod
    def of(cls, layout: Layout, tiers: Sequence[Tier], steps_per_chunk: int) -> Division | None:
        """None: all of it fits the device.

        Raises:
            ConfigError: the tiers cannot hold the store.
        """
        from trainers.replay.storage import bytes_of

        device, pinned, file = _sorted(tiers)
        of_rings, small = layout.sizes()
        done = bytes_of({"done": of_rings.pop("done")})
        step = bytes_of(of_rings) // layout.num_slots
        slots, steps, fixed = layout.num_slots, layout.num_steps, done + bytes_of(small)
        if device.num_bytes >= fixed + step * slots:
            return None
        least = fixed + MIN_WINDOWS * steps * step
        hot = max(0, device.num_bytes - fixed) // (step * steps) * steps
        if hot < MIN_WINDOWS * steps:
            raise ConfigError(
                f"tiers.device: {_printed(device.num_bytes)}, of which {_printed(fixed)} are needed whatever goes "
                f"down, and the rest holds fewer than {MIN_WINDOWS} windows of {steps} steps. Give it at least "
                f"{least}B."
            )
        chunk = min(steps_per_chunk, slots) if file is not None else 0
        kept = 0 if pinned is None else pinned.num_bytes // (step * (chunk or steps)) * (chunk or steps)
        below = slots - hot + 2 * steps
        one = cls(slots, steps, hot, min(kept, below), chunk, file, step, done // slots, fixed)
        if file is None:
            return one._checked_without_files(pinned)
        least_chunks = file.one_of + 1
        if pinned is None:
            kept = least_chunks * chunk
        if kept < least_chunks * chunk:
            needed = least_chunks * chunk * step
            raise ConfigError(
                f"tiers.pinned: what goes into files waits in pinned memory, {least_chunks} chunks of {chunk} steps at "
                f"least. Give pinned {needed}B or more, or leave it out."
            )
        one = dataclasses.replace(one, warm=min(kept, -(-max(below, least_chunks * chunk) // chunk) * chunk))
        if one.file_bytes > file.num_bytes:
            raise ConfigError(
                f"tiers.file: files of {_printed(file.num_bytes)} are to hold {_printed(one.file_bytes)}: what is left "
                f"of {slots:,} steps of each env. Give them more room, admit fewer chunks, or lower the store's "
                "capacity."
            )
        return one

    def _checked_without_files(self, pinned: Pinned | None) -> Division:
        missing = self.num_slots - (self.hot + self.warm - 2 * self.num_steps)
        if missing > 0:
            held = (self.num_slots - missing) // self.num_steps * self.num_steps
            way_out = "Give pinned more" if pinned is not None else "Give pinned memory"
            raise ConfigError(
                f"tiers: they hold {max(0, held):,} steps of each env, and the store keeps {self.num_slots:,}. "
                f"{way_out}, add files, or lower the store's capacity."
            )
        return self

    @property
    def device_bytes(self) -> int:
        """Tables and batches apart."""
        return self.fixed_bytes + self.hot * self.step_bytes

    @property
    def pinned_bytes(self) -> int:
        """Batches apart."""
        return self.warm * self.step_bytes

    @property
    def file_bytes(self) -> int:
        """Once the ring has gone round: chunks that are under way included."""
        if not self.chunk:
            return 0
        chunks = -(-max(0, self.num_slots - self.warm_span) // self.chunk) + 1
        return -(-chunks // self.file.one_of) * self.chunk * (self.step_bytes + self.done_bytes)

    def plan(self) -> list[tuple[str, int, int]]:
        """Of each tier below the device: where, how many bytes at most, and the steps after which its first come."""
        found = [("pinned memory", self.pinned_bytes, self.hot - self.num_steps)]
        if self.chunk:
            group = self.chunk * self.file.one_of
            found.append(("files", self.file_bytes, self.hot - 2 * self.num_steps + group))
        return found

    def why_short(self, folder: Path, num_bytes: int = 0) -> str | None:
        """Why a disk will not hold all files, of which so many bytes are there already; None: it will."""
        place = Path(os.path.abspath(folder))
        free = disk.free_bytes(next(one for one in (place, *place.parents) if one.is_dir()))
        if self.file_bytes - num_bytes <= free:
            return None
        told = f"{folder}: files of tiers come to {_printed(self.file_bytes)}, and {_printed(free)} are free there"
        return f"{told}. What finds no room will be dropped. Make room, admit fewer chunks, or lower the capacity."

    @property
    def has_holes(self) -> bool:
        """Whether not all steps go into files."""
        return self.file is not None and self.file.one_of > 1

    @property
    def warm_span(self) -> int:
        """The newest steps, of which none is only in a file."""
        return self.hot + self.warm - 2 * self.num_steps - max(0, self.chunk - 1)

    def hot_from(self, head: int) -> int:
        """Steps from here on are taken from the device; those of the window from here on are in both."""
        return max(0, head - self.hot + self.num_steps)

    def warm_from(self, head: int) -> int:
        """Steps from here on are in memory; 0, where there are no files."""
        if not self.chunk:
            return 0
        return -(-max(0, head - self.hot + 2 * self.num_steps - self.warm) // self.chunk) * self.chunk

    def described(self) -> dict[str, Any]:
        """What decides of which steps there are files, for a manifest; {} where there are none."""
        return {"hot": self.hot, "warm": self.warm, "admit": self.file.admit} if self.chunk else {}

    def takes_gaps_of(self, described: Mapping[str, Any]) -> bool:
        """Whether a store of such a division, whose files lack steps, can be gone on from: steps that it did not have
        in memory must not lie there now, nor be admitted anew. One of an older version says nothing."""
        was = {**self.described(), **described}
        fits = self.hot <= was["hot"] and self.hot + self.warm <= was["hot"] + was["warm"]
        return fits and self.file.admit == was["admit"]

    def first(self, head: int) -> int:
        """The oldest step of the ring that is whole."""
        return max(0, head - self.num_slots + 1)


def _sorted(tiers: Sequence[Tier]) -> tuple[Device, Pinned | None, File | None]:
    kinds = [type(one) for one in tiers]
    if kinds not in ([Device, Pinned], [Device, Pinned, File], [Device, File], [Device]):
        names = ", ".join(kind.__name__ for kind in kinds)
        raise ConfigError(f"tiers: {names}. Give Device, then Pinned or File or both, each once and in this order.")
    found = {type(one): one for one in tiers}
    return found[Device], found.get(Pinned), found.get(File)


def _printed(num_bytes: int) -> str:
    for unit, size in (("TB", 10**12), ("GB", 10**9), ("MB", 10**6), ("KB", 10**3)):
        if num_bytes >= size:
            return f"{num_bytes / size:.1f} {unit}"
    return f"{num_bytes} B"
