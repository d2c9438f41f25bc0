"""Steps that neither the device nor host memory has room for: files, written and read by threads.

They are those of checkpoints (chunks.py), which share them where both lie in one folder: then no step is written twice.
A thread makes no call of CUDA: what it needs was copied to host memory before it is asked.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import torch

from trainers.replay.listing import Part, cut_at_chunks, listed_in, missing, part_name, without
from trainers.replay.stamps import Stamps
from trainers.replay.storage import Layout
from trainers.replay.tiers import Division
from trainers.run import disk
from trainers.run.manifest import sum_of
from trainers.run.tensor_file import mapped, write_tensors
from warpdrive.errors import ConfigError, tell

Rows = dict[str, torch.Tensor]
NUM_READERS = 4
"""Threads, each of which reads a batch."""


@dataclass
class _Waiting:
    """Chunks of which one is to be written, once it has come down."""

    chunks: range
    kept: torch.Tensor | None
    """[1] int64 on the host: which of them, from the first on; None: the first."""
    events: Sequence[Any]
    """Of the device, after which it is there."""
    writing: Future[None] | None = None


@dataclass
class Filed:
    """The files of a store.

    Args:
        warm: rings on the host, where chunks lie until they are written.
    """

    layout: Layout
    division: Division
    warm: Rows
    folder: Path | None = None
    name: str = "replay"
    is_shared: bool = False
    """Whether checkpoints share the files."""
    parts: tuple[Part, ...] = ()
    """That are there, in order."""
    claimed: frozenset[str] = frozenset()
    """Of a checkpoint under way: they stay."""
    settled: int = 0
    """Of steps before this one it was said whether they go into files; `dropped` are the chunks that do not."""
    dropped: frozenset[int] = frozenset()
    say: Callable[[str], None] = tell
    is_in_place: Callable[[], bool] = lambda: True  # whether the folder is still the run's
    num_stalls: int = 0
    """Times that the host waited for a file to be written."""
    stall_seconds: float = 0.0
    num_dropped: int = 0
    """Steps of each env that were not admitted, or found no room on the disk."""
    bytes_written: int = 0
    bytes_admitted: int = 0
    bytes_read: int = 0
    stamps: Stamps = field(default_factory=Stamps)
    _troubles: list[str] = field(default_factory=list)  # that were not said yet
    _troubled: dict[int | None, int] = field(default_factory=dict)  # error's number -> step when it came last
    _waiting: list[_Waiting] = field(default_factory=list)
    _maps: dict[str, dict[str, np.ndarray]] = field(default_factory=dict)
    _expired: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._lock = threading.RLock()
        self._writer = ThreadPoolExecutor(1, "replay-writer")
        self.reader = ThreadPoolExecutor(NUM_READERS, "replay-reader")
        if self.division.file.folder is not None:
            self.files_in(Path(self.division.file.folder), self.name)

    def files_in(self, folder: Path, name: str, is_shared: bool = False) -> None:
        """Says where files go."""
        self.folder, self.name, self.is_shared = folder, name, is_shared

    # --------------------------------------------------------------------------------------------- going down

    def came_down(
        self, end: int, head: int, event: Any, settle: Callable[[range], tuple[torch.Tensor, Any] | None]
    ) -> None:
        """Steps before `end` have come to host memory, or will have by the event."""
        size, one_of = self.division.chunk, self.division.file.one_of
        while (group := self._next_group()).stop * size <= end:
            found = settle(group)
            kept, *more = found or (None,)
            self._waiting.append(_Waiting(group, kept, [one for one in (event, *more) if one is not None]))
            self.settled = group.stop * size
            self.num_dropped += (one_of - 1) * size
            self.bytes_admitted += self._num_bytes(0, size)
        self.poll()
        with self._lock:
            gone = [part for part in self.parts if part.end <= self.division.first(head)]
            self._expired |= {part.name for part in gone}
            self.parts = self.parts[len(gone) :]

    def _next_group(self) -> range:
        one_of = self.division.file.one_of
        first = -(-self.settled // (self.division.chunk * one_of)) * one_of
        return range(first, first + one_of)

    def poll(self, must: bool = False) -> None:
        """Gives to the writer what has come down by now; `must`: waits for that."""
        for one in self._waiting:
            if one.writing is not None:
                continue
            if must:
                for event in one.events:
                    event.synchronize()
            elif not all(event.query() for event in one.events):
                break
            chunk = one.chunks[0 if one.kept is None else int(one.kept)]
            self._drop(frozenset(one.chunks) - {chunk})
            one.writing = self._writer.submit(self._write, chunk * self.division.chunk)
        self._waiting = [one for one in self._waiting if one.writing is None or not one.writing.done()]
        while self._troubles:
            self.say(f"warning: {self._troubles.pop(0)}")

    def is_written(self, step: int) -> bool:
        """Whether no step before this one waits for its file."""
        if self._waiting:
            self.poll()
        return all(one.chunks.start * self.division.chunk >= step for one in self._waiting)

    def wait_until_written(self, step: int, counts: bool = True) -> None:
        """Returns once no step before this one waits for its file; what that takes is counted, if it `counts`."""
        late = [one for one in self._waiting if one.chunks.start * self.division.chunk < step]
        if not late:
            return
        started = time.perf_counter()
        self.poll(must=True)
        is_stall = False
        for one in late:
            is_stall |= not one.writing.done()
            one.writing.result()
        if counts:
            self.num_stalls += is_stall
            self.stall_seconds += time.perf_counter() - started
        self.poll()

    def flush(self) -> None:
        """Returns once all that came down is in its file."""
        self.poll(must=True)
        for one in self._waiting:
            one.writing.result()
        self.poll()

    def _write(self, begin: int) -> None:
        """By the writer's thread."""
        end = begin + self.division.chunk
        with self._lock:
            there = [part.end for part in self.parts if begin <= part.begin and part.end <= end]
        start = max([begin, *there])
        self._remove_expired(end)  # first: what nobody needs any more may be what fills the disk
        try:
            for begin, stop in cut_at_chunks(start, end, self.division.chunk, self.division.num_slots):
                part, beside = self._written(begin, stop)
                with self._lock:  # who removes files meets both, or none
                    os.replace(beside, self.folder / part.name)
                    self.stamps.note(self.folder, [part])
                    known = [one for one in self.parts if one.name != part.name]
                    self.parts = tuple(sorted([*known, part], key=lambda one: one.begin))
                start = stop
        except OSError as error:
            why = disk.why_not_written(error, self.folder, self._num_bytes(start, end))
            dropped = f"{self.folder}: steps of {self.name} were dropped: {why}"
            way_out = "Make room: the next may fit" if error.errno in disk.FULL else "Mend that: the next are kept"
            self._say_once(error, f"{dropped}. Training goes on without them. {way_out}.", end)
            self.num_dropped += end - start
        self._remove_expired(end)

    def _say_once(self, error: OSError, trouble: str, step: int) -> None:
        """At the next poll; and not again until as many steps as the store holds went down without."""
        last = self._troubled.get(error.errno)
        if last is None or step - last > self.division.num_slots:
            self._troubles.append(trouble)
        self._troubled[error.errno] = step

    def _drop(self, chunks: frozenset[int]) -> None:
        """Of what a checkpoint wrote already, too."""
        with self._lock:
            oldest = self.parts[0].begin // self.division.chunk if self.parts else 0
            self.dropped = frozenset(one for one in self.dropped if one >= oldest) | chunks
            kept = self.kept_of(self.parts)
            self._expired |= {part.name for part in self.parts} - {part.name for part in kept}
            self.parts = kept

    def kept_of(self, parts: Sequence[Part]) -> tuple[Part, ...]:
        """Those whose chunk was not dropped."""
        return tuple(part for part in parts if part.begin // self.division.chunk not in self.dropped)

    def _written(self, begin: int, end: int) -> tuple[Part, Path]:
        """A file that is on the disk, under another name yet."""
        if self.folder is None:
            raise ConfigError("tiers: nobody said where files go. Give File a folder.")
        if not self.is_in_place():
            raise OSError("it was moved, removed or replaced")
        disk.make_folder(self.folder)
        os.close(os.open(self.folder, os.O_DIRECTORY | os.O_NOFOLLOW))  # an OSError where a link lies
        beside = disk.temporary(self.folder / part_name(self.name, begin, end))
        try:
            write_tensors(beside, self._warm_rows(begin, end))
            disk.flush(beside)
            found = sum_of(beside)
            part = Part(part_name(self.name, begin, end, found), begin, end, beside.stat().st_size, found)
        except BaseException:
            beside.unlink(missing_ok=True)
            raise
        self.bytes_written += part.bytes
        return part, beside

    def _warm_rows(self, begin: int, end: int) -> Rows:
        slots, first, found = self.division.warm, begin % self.division.warm, {}
        for name, ring in self.warm.items():
            every = slots // len(ring)
            found[name] = ring[first // every : (first + end - begin) // every]
        return found

    def _num_bytes(self, begin: int, end: int) -> int:
        return (end - begin) * (self.division.step_bytes + self.division.done_bytes)

    def _remove_expired(self, step: int) -> None:
        if not self._expired:
            return
        with self._lock:
            live = {part.name for part in self.parts} | self.claimed
            self._expired -= {part.name for part in self.parts}
            listed = listed_in(self.folder.parent) if self.is_shared else set()
            if listed is None or self.folder.is_symlink() or not self.is_in_place():
                return  # a manifest cannot be read, and nobody knows what it lists; or it is another's
            self._maps, left = {name: one for name, one in self._maps.items() if name in live}, set()
            for name in self._expired - live - listed:
                try:
                    (self.folder / name).unlink(missing_ok=True)
                    self.stamps.forget(self.folder / name)
                except OSError as error:
                    left.add(name)
                    told = f"{self.folder / name}: is needed no more and cannot be removed: {error.strerror or error}"
                    self._say_once(error, f"{told}. Training goes on.", step)
            self._expired &= live | left

    @property
    def most_unwritten(self) -> int:
        """Steps that a checkpoint may have to write."""
        in_memory = self.division.hot + self.division.warm
        return min(self.division.num_slots, in_memory) if self.is_shared else self.division.num_slots

    # ---------------------------------------------------------------------------------------------- reading

    def read(
        self, steps: torch.Tensor, rows: torch.Tensor, num_agents: int, into: Rows, places: torch.Tensor
    ) -> torch.Tensor:
        """Rows of steps, by the reader's thread, into tensors of the host; gives [N] bool: what is in no file.

        Args:
            steps, rows: [N] int64.
            num_agents: whose rows these are: 1 where a row is an env with all of its agents.
            into: by field, [W, M, ...].
            places: [N] int64 of 0 to W * M - 1, where each goes.
        """
        while True:
            with self._lock:
                parts = self.parts
            begins = torch.tensor([part.begin for part in parts])
            number = torch.searchsorted(begins, steps, right=True) - 1
            lost = number < 0
            lost[~lost] = steps[~lost] >= torch.tensor([part.end for part in parts])[number[~lost]]
            (found,) = (~lost).nonzero(as_tuple=True)
            found = found[number[found].argsort(stable=True)]  # those of a file side by side
            of_parts, counts = (one.tolist() for one in number[found].unique_consecutive(return_counts=True))
            maps = [self._mapped(parts[one]) for one in of_parts]
            if None not in maps:  # else without those that are gone
                break
        ends = list(accumulate(counts))
        for name, to in into.items():
            field_of = self.layout[name]
            of_env, every = field_of.axis == "env", field_of.every
            num_rows = self.layout.num_envs * (1 if of_env else num_agents)
            row = rows[found] // num_agents if of_env else rows[found]
            place = (steps[found] // every - begins[number[found]] // every) * num_rows + row
            size = to.nbytes // (to.shape[0] * to.shape[1])
            # Rows are void to numpy, which moves each as a whole; torch would byte by byte.
            into_rows = to.view(torch.uint8).numpy().reshape(-1).view(f"V{size}")
            of_rows, of_place = places[found].numpy(), place.numpy()
            for found_there, begin, end in zip(maps, [0, *ends], ends, strict=False):
                into_rows[of_rows[begin:end]] = found_there[name].view(f"V{size}").take(of_place[begin:end])
            self.bytes_read += len(found) * size
        return lost

    def rows(self, name: str, begin: int, end: int) -> torch.Tensor:
        """Of a field: what is known of these steps; zeros where they were dropped."""
        shape, dtype = self.layout.sizes()[0][name]
        every = 1 if name == "done" else self.layout[name].every
        found = torch.zeros((-(-end // every) - -(-begin // every), *shape[1:]), dtype=dtype)
        for part in [one for one in self.parts if one.end > begin and one.begin < end]:
            if (there := self._mapped(part)) is None:  # zeros of it would get a sum as if they were its steps
                raise OSError(f"{part.name} was changed while its steps were copied")
            first, last = max(begin, part.begin), min(end, part.end)
            of = torch.from_numpy(there[name]).view(dtype).view(-1, *shape[1:])
            to = found[first // every - begin // every : last // every - begin // every]
            to.copy_(of[first // every - part.begin // every : last // every - part.begin // every])
        return found

    def _mapped(self, part: Part, reads: bool = False) -> dict[str, np.ndarray] | None:
        """By field, [bytes] uint8: memory that the kernel reads from the file as it is asked for. None:
        the file cannot be read any more, and its steps are lost."""
        path = self.folder / part.name
        with self._lock:
            known = self._maps.get(part.name)
        if (why := self.stamps.why_other(self.folder, part, reads)) is not None:
            if known and not reads and not path.exists():  # what was mapped can be read though it is removed
                return known
            self.lose({part.name})
            self._troubles.append(f"{path}: {why}. Training goes on without its steps.")
            return None
        if known is not None:
            return known
        like = {}
        for name, (shape, dtype) in self.layout.sizes()[0].items():
            every = self.layout.num_slots // shape[0]
            like[name] = torch.empty(((part.end - part.begin) // every, *shape[1:]), dtype=dtype, device="meta")
        found = mapped(path, part.bytes, like)
        with self._lock:
            self._maps[part.name] = found
        return found

    # --------------------------------------------------------------------------------------------- as a whole

    def adopt(self, folder: Path, parts: Sequence[Part], head: int) -> None:
        """Takes over files that were checked, of a checkpoint after `head` steps."""
        self.forget()
        self.restored(head)
        kept = tuple(parts)
        if self.folder.resolve() != folder.resolve():
            kept = self._brought(folder, [part for part in parts if part.begin < self.settled])
        self.parts = kept
        size, first = self.division.chunk, self.division.first(head)
        there = {part.begin // size for part in kept}
        self.dropped = frozenset(range(first // size, self.settled // size)) - there

    def _brought(self, folder: Path, parts: Sequence[Part]) -> tuple[Part, ...]:
        """Of files elsewhere those that this folder has now, too: the newest, as many as there is room for."""
        kept: list[Part] = []
        try:
            disk.make_folder(self.folder)
            for part in reversed(parts):
                disk.link(folder / part.name, self.folder / part.name, part.bytes)
                kept.insert(0, part)
        except OSError as error:
            lost = sum(part.end - part.begin for part in parts[: len(parts) - len(kept)])
            why = disk.why_not_written(error, self.folder, self._num_bytes(0, lost))
            self.say(f"warning: {self.folder}: {lost:,} steps of {self.name} are left behind: {why}.")
            self.num_dropped += lost
        self.stamps.note(self.folder, kept)
        return tuple(kept)

    def claim(self) -> tuple[Part, ...]:
        """What there is, once all that came down is written, for a checkpoint: it stays until that is whole."""
        self.flush()
        with self._lock:
            self.claimed = frozenset(part.name for part in self.parts)
            return self.parts

    def lose(self, names: set[str]) -> None:
        """Files that are not what was written: what they hold counts for nothing from now on."""
        with self._lock:
            gone = [part for part in self.parts if part.name in names]
            self.parts = tuple(part for part in self.parts if part.name not in names)
            self.claimed -= names
            for part in gone:
                self._maps.pop(part.name, None)
                self.num_dropped += part.end - part.begin

    def saved(self, parts: Sequence[Part]) -> None:
        """A checkpoint that holds these is whole; some it may have written while the writer did so, too."""
        with self._lock:
            end = max([part.end for part in parts], default=0)
            kept = (*self.kept_of(parts), *(part for part in self.parts if part.begin >= end))
            self._expired |= {part.name for part in (*self.parts, *parts)} - {part.name for part in kept}
            self.parts, self.claimed = kept, frozenset()

    @contextlib.contextmanager
    def in_use(self) -> Iterator[set[str]]:
        """Names of files that are to stay; while it is entered there come no others."""
        with self._lock:
            yield {part.name for part in self.parts} | self.claimed

    def restored(self, head: int) -> None:
        """The store has `head` steps now: what of them had come down far enough was settled."""
        group = self.division.chunk * self.division.file.one_of
        down = head - self.division.hot + 2 * self.division.num_steps
        self.settled = max(0, down) // group * group

    def forget(self) -> None:
        """Waits for the writer, and knows of no file."""
        for one in self._waiting:
            if one.writing is not None:
                one.writing.result()
        self._waiting, self._maps, self.parts, self._troubled = [], {}, (), {}

    def num_steps(self, first: int, end: int) -> int:
        """In files, of these steps."""
        return sum(max(0, min(part.end, end) - max(part.begin, first)) for part in self.parts)

    def lost(self, head: int, needed: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
        """Of `head` steps, those that are in memory no more and in no file. Files of those that are `needed` are read
        before; what is not what was written is lost, and told."""
        for part in self.parts:
            if any(begin < part.end and part.begin < end for begin, end in needed):
                self._mapped(part, reads=True)
        self.poll()
        end = self.division.warm_from(head)
        return missing(self.parts, min(self.division.first(head), end), end)

    def unwritten(self, head: int) -> list[tuple[int, int]]:
        """Of `head` steps, those in memory that belong into files and are in none: a disk had no room, or lost them."""
        size, begin = self.division.chunk, max(self.division.first(head), self.division.warm_from(head))
        dropped = [(chunk * size, (chunk + 1) * size) for chunk in self.dropped]
        spans = without(missing(self.parts, begin, self.settled), dropped)
        return [piece for span in spans for piece in cut_at_chunks(*span, size, self.division.num_slots)]

    def counters(self) -> Mapping[str, float]:
        return {
            "dropped_steps": self.num_dropped * self.layout.num_envs,
            "bytes_written": self.bytes_written,
            "bytes_admitted": self.bytes_admitted,
            "bytes_read": self.bytes_read,
        }
