"""What manifests say of a store's files: which there are, what they hold, and which nobody needs any more."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from trainers.run.manifest import MANIFEST, read_manifest
from warpdrive.config import shown
from warpdrive.errors import CheckpointError, ConfigError

DATASET = "dataset.json"
"""What says which files a dataset has."""
REPLAY = "replay"
"""The folder, and the key of manifests."""
_NAME = re.compile(r"[^/]+\.[0-9]{12,}-[0-9]{12,}\.[0-9a-f]{16}\.safetensors")


def path_of(name: str, path: object) -> Path:
    """A path as whoever calls gave it, followed to where it leads. Raises ConfigError if it is none."""
    given = os.fspath(path) if isinstance(path, os.PathLike) else path
    if not isinstance(given, str) or not given or "\0" in given:
        raise ConfigError(f"{name} is {shown(path)}. Take a path, such as 'kept'.")
    return Path(os.path.realpath(given))


@dataclass(frozen=True)
class Part:
    """A file with the steps from `begin` to `end`."""

    name: str
    begin: int
    end: int
    bytes: int
    sha256: str


@dataclass(frozen=True)
class Listing:
    """Which files hold a store."""

    num_steps: int
    """That were added to it."""
    num_slots: int
    parts: tuple[Part, ...]
    """In order, one beginning where another ends, or a gap does."""
    layout: Mapping[str, Any]
    """Of the store, described."""
    gaps: tuple[tuple[int, int], ...] = ()
    """Steps between them that a tier of files did not take, or lost, from one to another."""
    counted: Mapping[str, float] = field(default_factory=dict)
    """What its tiers had counted so far, by the metric's name; {} without, and in older checkpoints."""
    tiers: Mapping[str, Any] = field(default_factory=dict)
    """Division.described of them; likewise."""

    @property
    def first(self) -> int:
        """The oldest step that is of use: older ones were overwritten."""
        return first_step(self.num_steps, self.num_slots)


def first_step(num_steps: int, num_slots: int) -> int:
    """The oldest of a store to which so many were added."""
    return max(0, num_steps - num_slots + 1)


def part_name(name: str, begin: int, end: int, found: str = "") -> str:
    """Of a file with these steps of a store, once its SHA-256 is known."""
    return f"{name}.{begin:012d}-{end:012d}{f'.{found[:16]}' if found else ''}.safetensors"


def listing_to_json(listing: Listing) -> dict[str, Any]:
    """What JSON takes."""
    found = {**vars(listing), "parts": [asdict(part) for part in listing.parts]}
    return {key: one for key, one in found.items() if one or key not in ("gaps", "counted", "tiers")}


def listings_of(manifest: Mapping[str, Any], path: Path) -> dict[str, Listing]:
    """By store, what a manifest says under REPLAY; {} if nothing.

    Raises:
        CheckpointError: it makes no sense.
    """
    found = manifest.get(REPLAY, {})
    try:
        listings = {name: _listing_of(one) for name, one in found.items()}
    except (AttributeError, KeyError, TypeError, ValueError):
        raise CheckpointError(f"{path}: '{REPLAY}' says nothing of use. Use an older checkpoint.") from None
    return listings


def _listing_of(value: Mapping[str, Any]) -> Listing:
    parts = tuple(sorted((Part(**one) for one in value["parts"]), key=lambda part: part.begin))
    gaps = tuple((begin, end) for begin, end in value.get("gaps", ()))
    counted, tiers = dict(value.get("counted", {})), dict(value.get("tiers", {}))
    found = Listing(value["num_steps"], value["num_slots"], parts, dict(value["layout"]), gaps, counted, tiers)
    numbers = [found.num_steps, found.num_slots, *(n for one in parts for n in (one.begin, one.end, one.bytes))]
    numbers += [number for one in gaps for number in one]
    if not all(type(number) is int and 0 <= number < 1 << 62 for number in numbers) or not found.num_slots:
        raise ValueError("numbers")
    if not all(type(number) in (int, float) and 0 <= number < 1 << 62 for number in counted.values()):
        raise ValueError("counts")
    if not all(type(tiers.get(name, 0)) is int for name in ("hot", "warm")):
        raise ValueError("tiers")
    if not all(_NAME.fullmatch(part.name) and part.name.isprintable() for part in parts):
        raise ValueError("names")
    spans = sorted([*((part.begin, part.end) for part in parts), *gaps])
    ends = [spans[0][0] if spans else found.num_steps, *(end for _, end in spans)]
    if ends[0] > found.first or ends[-1] != found.num_steps or (spans and spans[0][1] <= found.first):
        raise ValueError("steps are missing, or too many")
    for (begin, stop), end in zip(spans, ends, strict=False):
        if begin != end or stop <= begin:
            raise ValueError("steps")
    if any(part.begin % found.num_slots + part.end - part.begin > found.num_slots for part in parts):
        raise ValueError("steps")
    return found


def missing(parts: Iterable[Part], begin: int, end: int) -> list[tuple[int, int]]:
    """Of these steps those that no file has, from one to another; files are in order."""
    spans = []
    for part in parts:
        if begin < min(part.begin, end):
            spans.append((begin, min(part.begin, end)))
        begin = max(begin, part.end)
    return spans + [(begin, end)] * (begin < end)


def cut_at_chunks(begin: int, end: int, size: int, num_slots: int) -> Iterator[tuple[int, int]]:
    """These steps in pieces that end where chunks of `size` steps do, and where slots begin again."""
    while begin < end:
        stop = min(end, (begin // size + 1) * size, (begin // num_slots + 1) * num_slots)
        yield begin, stop
        begin = stop


def without(ranges: Sequence[tuple[int, int]], lost: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """What is left of these spans of steps."""
    for first, last in lost:
        cut = [((begin, min(end, first)), (max(begin, last), end)) for begin, end in ranges]
        ranges = [one for pair in cut for one in pair if one[0] < one[1]]
    return list(ranges)


def remove_unlisted(folder: Path, spared: Iterable[str] = ()) -> None:
    """Removes the files in a run's `checkpoints` that no checkpoint lists, nor one that was set aside; but for those
    that are spared. Where one cannot be read, nobody knows what it lists: then nothing goes. Nor through a link."""
    listed = listed_in(folder)
    if listed is None or (folder / REPLAY).is_symlink():
        return
    for path in (folder / REPLAY).iterdir():
        if _NAME.fullmatch(path.name) and path.name not in listed and path.name not in spared:
            with contextlib.suppress(IsADirectoryError):  # no run's
                path.unlink(missing_ok=True)


def listed_in(folder: Path) -> set[str] | None:
    """Names of the files that the checkpoints in a folder list; None if nobody knows, as one cannot be read."""
    listed = set()
    for path in folder.glob(f"*/{MANIFEST}"):
        if path.parent.is_symlink():
            continue  # `last` and `best`
        try:
            listed |= {part.name for one in listings_of(read_manifest(path), path).values() for part in one.parts}
        except CheckpointError:
            return None
    return listed


def difference_of(was: object, now: Sequence[Mapping[str, Any]]) -> str:
    """Of a file's description of fields, whatever it holds, and the store's, the first in which they differ."""
    listed = was if isinstance(was, list) else []
    saved = {str(one["name"]): one for one in listed if isinstance(one, dict) and "name" in one}
    ours = {one["name"]: one for one in now}
    for name in [*ours, *saved]:
        if name not in saved or name not in ours:
            was_kept, is_kept = (" not" if name not in fields else "" for fields in (saved, ours))
            return f"field {shown(name)} was{was_kept} kept in the run that was saved, and is{is_kept}"
        for key, one in ours[name].items():
            if (other := saved[name].get(key)) != one:
                return f"field '{name}' had {key} {shown(other)} in the run that was saved, and has {shown(one)}"
    return f"fields were {shown(was)} in the run that was saved, and are {', '.join(ours)}, in this order"
