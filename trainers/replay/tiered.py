"""What of a store lies outside its device: steps go down as newer ones come in, and are found wherever they are."""

from __future__ import annotations

import contextlib
import hashlib
import os
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from trainers.errors import MemoryShortError
from trainers.replay.file_tier import Filed
from trainers.replay.listing import REPLAY
from trainers.replay.records import Sizes
from trainers.replay.rows import between
from trainers.replay.storage import Layout, bytes_of
from trainers.replay.tiers import Division
from trainers.run import disk
from trainers.run.free_memory import free_bytes
from trainers.run.lock import FolderHold, hold_folder, inode_of
from trainers.run.reading import check_folder
from warpdrive.backends.base import Backend
from warpdrive.errors import ConfigError, tell_anyway

if TYPE_CHECKING:
    from trainers.learning.distributed import World
    from trainers.run.run_folder import RunFolder

Rows = dict[str, torch.Tensor]
"""By field, [steps / every, ...]."""
SO_FAR = {"dropped_steps", "fetched", "hits", "stalls", "stall_seconds"}
SO_FAR |= {"bytes_admitted", "bytes_written", "bytes_read"}
"""What is counted over the whole run."""


_places: weakref.WeakValueDictionary[Path, Tiered] = weakref.WeakValueDictionary()
"""Of stores that are no run's, by the folder of their files."""


def hot_sizes(of_rings: Sizes, division: Division | None) -> Sizes:
    """Of the rings on the device."""
    if division is None:
        return of_rings
    return _sizes(of_rings, division, division.hot) | {"done": of_rings["done"]}


class Tiered:
    """The tiers of a store below its device. `ReplayStore` makes it.

    tiered.before_add()     # nothing that goes down is overwritten before it is there
    tiered.count(head)      # after a window was counted: the next one's predecessors go down

    Steps go down by copies beside the learner's stream, whole windows, each once: from the device to host memory, and
    from there, by a thread, to files.
    """

    def __init__(self, layout: Layout, division: Division, hot: Rows, backend: Backend) -> None:
        self.layout, self.division, self.hot, self.backend = layout, division, hot, backend
        sizes = _sizes(layout.sizes()[0], division, division.warm)
        self.warm: Rows = {name: pinned(shape, dtype, backend, self) for name, (shape, dtype) in sizes.items()}
        self.side = torch.cuda.Stream(backend.device) if backend.name == "cuda" else None
        self._came_down: torch.cuda.Event | None = None
        self.files: Filed | None = None
        if division.chunk:
            _check_folder(division.file.folder)
            self.files = Filed(layout, division, self.warm)
        self._hold: FolderHold | None = None
        self._is_placed = self.files is None
        """Whether it was said for good where files go."""
        self.claim: Callable[[], None] = lambda: None
        """Keeps other stores from where checkpoints that are no run's have these files, or raises ConfigError."""
        self.num_fetched = [0, 0]
        """Batches whose items were fetched in time; and those that the host had to wait for."""
        self.stall_seconds = 0.0
        """That it waited for items."""
        self._counted_before: dict[str, float] = {}
        """By processes before this one; less what this one had counted when it went on from there."""
        self.head = 0
        self.dropping: list[Callable[[int, int, torch.Tensor | None], None]] = []
        """Are told which steps may not be drawn any more, from one to another; if a tensor [1] bool says so."""
        self.masses: Callable[[int, int], torch.Tensor] | None = None
        """Gives what the priorities of items that begin with these steps come to, [] on the device."""
        self.feeds: list[Any] = []
        """That have drawn ahead."""

    @staticmethod
    def check_room(layout: Layout, division: Division) -> None:
        """Raises MemoryShortError where the host has less memory than is to be pinned."""
        free = free_bytes(torch.device("cpu"))
        needed = bytes_of(_sizes(layout.sizes()[0], division, division.warm))
        if free is not None and needed > free:
            raise MemoryShortError(
                f"tiers.pinned: {needed / 2**30:.2f} GiB of pinned memory are needed, and {free / 2**30:.2f} GiB can "
                "be had. Give pinned less, and files more."
            )

    def drawn_from(self, drop: Callable, mass: Callable, by_priority: bool) -> None:
        """A table draws from the store, whose items go as steps are not admitted to files.

        Args:
            by_priority: whether these are what admission may go by.
        """
        self.dropping.append(drop)
        if by_priority and self.masses is None:
            self.masses = mass

    def before_add(self) -> None:
        """The next window may overwrite what has come down. A graph's replays take that from `count`."""
        if self._came_down is not None and not torch.cuda.is_current_stream_capturing():
            self.backend.stream.wait_event(self._came_down)

    def count(self, head: int) -> None:
        """A window was counted, `head` steps are there with it; its launch may still be to come."""
        division, low = self.division, head - self.division.hot + self.division.num_steps
        if self.side is not None:  # what is fetched is read before the window overwrites it, too
            self.backend.stream.wait_stream(self.side)
        self.head = head
        if not self._is_placed:
            self._place()
        if self.files is not None:
            self.files.poll()
        if low < 0:
            return
        if self.files is not None:
            self.files.wait_until_written(low + division.num_steps - division.warm)
        with self.beside():
            self._copy_down(low, low + division.num_steps)
        if self.files is not None:
            self.files.came_down(low + division.num_steps, head, self._came_down, self._settle)

    def _place(self) -> None:
        """Of a store that is no run's: its files go where they were said to go."""
        folder = self.files.folder
        if folder is None:
            told = "tiers: nobody said where files go: File(None) is of a run, or of StoreCheckpoints"
            raise ConfigError(f"{told}. Make these before the first window is added, or name a folder.")
        if self.files.is_shared:
            self.claim()
            self._is_placed = True
            return
        self._is_placed = True
        if folder.resolve() in _places:
            raise _is_taken(folder, "store of this process")
        self._hold = _taken(folder, self.files.name)
        _places[folder.resolve()] = self

    def beside(self) -> Any:
        """The stream beside the learner's, after what that was told so far."""
        if self.side is None:
            return contextlib.nullcontext()
        self.side.wait_stream(self.backend.stream)
        return torch.cuda.stream(self.side)

    def _copy_down(self, begin: int, end: int) -> None:
        for name, warm in self.warm.items():
            to, of = (between(ring, self._every(name), begin, end) for ring in (warm, self.hot[name]))
            to.copy_(of, non_blocking=True)
        if self.side is not None:
            self._came_down = self.side.record_event()

    def _settle(self, chunks: range) -> tuple[torch.Tensor, Any] | None:
        """Of these chunks one is kept: says which, by how far it is from the first, if priorities do; and drops the
        others."""
        file, size = self.division.file, self.division.chunk
        if file.one_of == 1:
            return None
        if not file.by_priority or self.masses is None:
            for chunk in chunks[1:]:
                self._drop(chunk * size, (chunk + 1) * size)
            return None
        masses = torch.stack([self.masses(chunk * size, (chunk + 1) * size) for chunk in chunks])
        kept = masses.argmax().view(1)
        for i, chunk in enumerate(chunks):
            self._drop(chunk * size, (chunk + 1) * size, kept != i)
        if self.side is None:
            return kept, None
        found = torch.empty(1, dtype=torch.int64, pin_memory=True).copy_(kept, non_blocking=True)
        return found, self.backend.stream.record_event()

    def _drop(self, begin: int, end: int, which: torch.Tensor | None = None) -> None:
        for call in self.dropping:
            call(begin, end, which)

    # ------------------------------------------------------------------------------------------- as a whole

    def rows(self, begin: int, end: int) -> Rows:
        """What is known of these steps: views where they lie in one piece of memory, else a copy on the host. What was
        dropped is zeros."""
        found = {}
        if self.side is not None:
            self.side.synchronize()  # what is coming down
        for name, hot in self.hot.items():
            pieces = list(self._pieces(name, hot, begin, end))
            found[name] = pieces[0] if len(pieces) == 1 else torch.cat([one.cpu() for one in pieces])
        return found

    def like(self, begin: int, end: int, device: str = "meta") -> Rows:
        """Tensors of their shapes."""
        found = {}
        for name, hot in self.hot.items():
            every = self._every(name)
            number = -(-end // every) - -(-begin // every)
            found[name] = torch.empty((number, *hot.shape[1:]), dtype=hot.dtype, device=device)
        return found

    def _pieces(self, name: str, hot: torch.Tensor, begin: int, end: int) -> Iterator[torch.Tensor]:
        every, division = self._every(name), self.division
        while begin < end:
            if name == "done":
                stop, ring, slots = end, hot, self.layout.num_slots
            elif begin >= division.hot_from(self.head):
                stop, ring, slots = end, hot, division.hot
            elif begin >= division.warm_from(self.head):
                stop, ring, slots = min(end, division.hot_from(self.head)), self.warm[name], division.warm
            else:
                stop = min(end, division.warm_from(self.head))
                yield self.files.rows(name, begin, stop)
                begin = stop
                continue
            stop = min(stop, (begin // slots + 1) * slots)
            yield between(ring, every, begin, stop)
            begin = stop

    def put(self, begin: int, rows: Rows, head: int) -> None:
        """Takes steps from `begin` on to where they lie when `head` were added."""
        division = self.division
        if self.side is not None:
            self.side.synchronize()
        low = head - division.hot + division.num_steps
        for name, given in rows.items():
            every, of_ring = self._every(name), self.layout.num_slots if name == "done" else division.hot
            end = begin + len(given) * every
            places = [(self.hot[name], of_ring, max(begin, head - of_ring + 1), end)]
            last = min(end, low + division.num_steps)
            first = max(begin, low + division.num_steps - division.warm)
            places.append((self.warm[name], division.warm, first, last))
            for ring, slots, start, stop in places:
                start = -(-start // every) * every
                while start < stop:
                    until = min(stop, (start // slots + 1) * slots)
                    of = given[(start - begin) // every : -(-(until - begin) // every)]
                    between(ring, every, start, until).copy_(of)
                    start = until

    def restored(self, head: int) -> None:
        """The store holds something else than before."""
        self.head = head
        for feed in self.feeds:
            feed.forget()
        if self.files is not None:
            self.files.restored(head)

    def files_of_run(self, name: str, run: RunFolder, are_saved: bool, world: World) -> None:
        """Says where files go: among those of the run's checkpoints, if these hold the store and no folder was given.
        Each of several ranks has a folder of its own.

        Args:
            name: of the store in checkpoints.
        Raises:
            ConfigError: another process has files there.
            CheckpointError: there is a link, or a file.
        """
        if self.files is None:
            return
        folder, is_shared = self.division.file.folder, False
        if folder is not None:
            # A place that no config can choose: of a run that was sent by somebody, it says the folder.
            place = Path(folder) / f"{run.path.name}-{hashlib.sha256(bytes(run.path.resolve())).hexdigest()[:8]}"
            if run.is_resumed and not place.is_dir():
                told = f"warning: {name}: this run has had no files in {folder}, so they lie in its own folder."
                run.say(f"{told} To have them there, make the folder {place}, and resume it.", style="yellow")
                folder = None
        if folder is None:
            is_shared = are_saved and world.size == 1
            place = (run.checkpoints if is_shared else run.path) / REPLAY
        places = [place, place / f"rank_{world.rank}"][: world.size]
        for place in places:
            if os.path.lexists(place):
                check_folder(place)
        if not is_shared:
            self._hold = _taken(place, name)
        self._is_placed = True
        owner = place if folder is not None else run.path
        began = inode_of(owner)
        self.files.files_in(place, name, is_shared)
        say = run.say if not world.rank else lambda line, **_: tell_anyway(f"rank {world.rank}: {line}")
        self.files.say = lambda line: say(line, style="yellow")
        self.files.is_in_place = lambda: inode_of(owner) == began

    def why_short(self) -> str | None:
        """Why its disk will not hold the files to come; None: it will, or there are none."""
        if self.files is None or self.files.folder is None:
            return None
        return self.division.why_short(self.files.folder, sum(part.bytes for part in self.files.parts))

    def _every(self, name: str) -> int:
        return 1 if name == "done" else self.layout[name].every

    def counters(self) -> dict[str, float]:
        """What is reported: what each tier holds, bytes, what was waited for."""
        division, head = self.division, self.head
        rows = self.layout.num_envs
        first, warm, hot = division.first(head), division.warm_from(head), division.hot_from(head)
        in_files = 0 if self.files is None else self.files.num_steps(first, min(warm, head))
        found = {
            "device_steps": (head - max(first, hot)) * rows,
            "pinned_steps": max(0, hot - max(first, warm)) * rows,
            "file_steps": in_files * rows,
            "fetched": self.num_fetched[0] + self.num_fetched[1],
            "hits": self.num_fetched[0],
            "stalls": self.num_fetched[1] + (0 if self.files is None else self.files.num_stalls),
            "stall_seconds": self.stall_seconds + (0.0 if self.files is None else self.files.stall_seconds),
        }
        found |= {} if self.files is None else self.files.counters()
        return {name: one + self._counted_before.get(name, 0) for name, one in found.items()}

    def counted(self) -> dict[str, float]:
        """What a checkpoint holds of them."""
        return {name: one for name, one in self.counters().items() if name in SO_FAR}

    def count_on_from(self, counted: Mapping[str, float]) -> None:
        """Goes on from what a checkpoint holds; what that lacks begins at 0."""
        self._counted_before = {}
        self._counted_before = {name: counted.get(name, 0) - one for name, one in self.counted().items()}


def _taken(folder: Path, name: str) -> FolderHold | None:
    """Keeps other stores from having their files there, and removes those of one before of this name, which nobody
    reads any more: checkpoints have what is needed of them."""
    try:
        disk.make_folder(folder)
        hold = hold_folder(folder)
    except BlockingIOError:
        raise _is_taken(folder, "process") from None
    except OSError:  # a disk that is full or knows no locks: what cannot be written is told when it is tried
        hold = None
    for path in folder.glob(f"{name}.*.safetensors"):
        path.unlink()
    return hold


def _is_taken(folder: Path, by: str) -> ConfigError:
    message = f"{folder}: another {by} has the files of its tiers here"
    return ConfigError(f"{message}. Wait until it has ended, or give another tiers.folder.")


def pinned(shape: Sequence[int], dtype: torch.dtype, backend: Backend, owner: object) -> torch.Tensor:
    """Zeros in host memory; for a GPU locked there while their owner lives, so that kernels and copies reach it.

    torch's own pinned memory is rounded up to a power of two: of 65 GB that would be 128.
    """
    tensor = torch.zeros(tuple(shape), dtype=dtype)
    if backend.name == "cuda" and tensor.nbytes:
        cudart = torch.cuda.cudart()
        code = int(cudart.cudaHostRegister(tensor.data_ptr(), tensor.nbytes, 0))
        if code != 0:
            raise MemoryShortError(
                f"tiers.pinned: {tensor.nbytes / 2**30:.2f} GiB of host memory could not be pinned (CUDA error "
                f"{code}). Give pinned less, and files more."
            )
        weakref.finalize(owner, _unpin, tensor).atexit = False
    return tensor


def _unpin(tensor: torch.Tensor) -> None:
    torch.cuda.cudart().cudaHostUnregister(tensor.data_ptr())


def _check_folder(folder: str | None) -> None:
    """Raises ConfigError where files could not be written; None: it is the checkpoints', and there already."""
    if folder is None:
        return
    try:
        disk.try_folder(Path(folder))
    except OSError as error:
        why = disk.why_not_written(error, Path(folder))
        raise ConfigError(f"tiers.folder: no files can be written to {folder} ({why}). Name one that can.") from None


def _sizes(of_rings: Sizes, division: Division, slots: int) -> Sizes:
    """As many slots of each."""
    return {
        name: ((shape[0] * slots // division.num_slots, *shape[1:]), dtype) for name, (shape, dtype) in of_rings.items()
    }
