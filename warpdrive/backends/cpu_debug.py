"""Debug mode: a launch runs several times on copies of its arrays, and must give the same result each time.

1. First thread to last. Arrays end at memory that cannot be touched, so an index beyond the end is a fault.
2. Last thread to first, last block to first; arrays begin at such memory. A result that differs from the first
   run's depends on the order of threads: a barrier is missing, or threads or envs race.
3. As the first, but shared memory and locals that the kernel never set hold other values. A result that differs
   was made of them. This run is of a watched build, which tells of every write: two threads that write different
   values to one place with nothing between that orders them lose an update (see cpu_accesses.h).

Once a result differs, the watched build runs again to find the accesses that made it, and so their lines.

In each run a block that takes longer than $WARPDRIVE_DEBUG_SECONDS (60; 0 for no limit) is stopped.

What the first run wrote is what the launch writes. A fault leaves the arrays as they were.

Not found: a lost update with a fence, or a __syncwarp of both, between the two writes (it may order them;
sanitize=("thread",) does find it), and threads that return while others of the block go on to
another __syncthreads, which GPUs since Volta allow: the barrier waits for those that have not returned.
"""

from __future__ import annotations

import ctypes
import functools
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from warpdrive.backends.base import LaunchShape, Module, Source
from warpdrive.backends.cpu_compiler import Compiler, Variant, build_kernels
from warpdrive.backends.cpu_guard import Argued, Copies, Difference
from warpdrive.backends.cpu_launch import (
    ANY_RACES,
    COMPARE,
    DEBUG,
    FIND,
    LOST_UPDATES,
    MUTED,
    RACES,
    RECORD,
    REVERSE,
    UNSET,
    Argument,
    Launch,
    check_shape,
    describe_failure,
    find_line,
    load_entries,
    load_runtime,
    make_launch,
    name_thread,
    pack_arguments,
)
from warpdrive.errors import KernelError, WarpDriveError
from warpdrive.signature import Signature

# What unset shared memory holds. As a float or an int the first is large and negative, the second large and
# positive, so that neither a minimum nor a maximum hides both; the third is what a lucky kernel gets.
NEGATIVE, POSITIVE, ZERO = 0xC7, 0x47, 0x00


class Variables:
    """The `__device__` variables of a library, which a repeated run must find as the first did."""

    def __init__(self, runtime: ctypes.CDLL, entry: int) -> None:
        data = ctypes.c_void_p()
        size = runtime.warpdrive_cpu_variables(entry, ctypes.byref(data))
        self._bytes = np.frombuffer((ctypes.c_char * size).from_address(data.value or 0), np.uint8) if size else None
        self.initial = self.read()

    def read(self) -> np.ndarray:
        return np.zeros(0, np.uint8) if self._bytes is None else self._bytes.copy()

    def write(self, content: np.ndarray) -> None:
        if self._bytes is not None and len(content) == len(self._bytes):
            ctypes.memmove(self._bytes.ctypes.data, content.ctypes.data, len(content))


class Build:
    """A library of a source's kernels: where it lies, their entry points, and its variables."""

    def __init__(self, runtime: ctypes.CDLL, path: Path) -> None:
        self.path = path
        self.entries = load_entries(path)
        self.variables = Variables(runtime, next(iter(self.entries.values()), 0))


class DebugModule(Module):
    """The builds of a source: one to run, one that tells of reads and writes. `library_path` is for gdb."""

    def __init__(self, compiler: Compiler, source: Source) -> None:
        self._compiler, self.source = compiler, source
        self.runtime = load_runtime(compiler)
        with ThreadPoolExecutor(1) as beside:
            watched = beside.submit(self._watched, "zero")
            self.library_path = build_kernels(compiler, source, Variant(debug=True))
        self.build = Build(self.runtime, self.library_path)
        self.watched: Build | None = watched.result()
        """Unset locals hold 0. None if the compiler refuses to build it."""

    @functools.cached_property
    def watched_pattern(self) -> Build | None:
        """As `watched`, but unset locals hold what they do in `build`."""
        return self._watched("pattern")

    def prepare(self, signature: Signature, arguments: Sequence[Argument], shape: LaunchShape) -> DebugLaunch:
        check_shape(signature.name, shape)
        return DebugLaunch(self, signature, arguments, shape)

    def _watched(self, locals_hold: str) -> Build | None:
        try:
            variant = Variant(debug=True, locals_hold=locals_hold, is_watched=True)
            return Build(self.runtime, build_kernels(self._compiler, self.source, variant))
        except WarpDriveError:
            return None  # what is wrong with the source, the plain build reports


class DebugLaunch:
    """A prepared launch in debug mode; calling it launches.

    Raises:
        KernelError: names kernel, file and line, and thread or array, of the first mistake found.
    """

    def __init__(
        self, module: DebugModule, signature: Signature, arguments: Sequence[Argument], shape: LaunchShape
    ) -> None:
        self.module, self.signature, self.arguments, self.shape = module, signature, list(arguments), shape
        pack_arguments(signature, self.arguments)

    def __call__(self) -> None:
        copies = Copies(self.signature, self.arguments, self.shape)
        before = self.module.build.variables.read()
        try:
            after = self._run_all(copies, before)
        except BaseException:
            self.module.build.variables.write(before)
            raise
        finally:
            copies.free()
        self.module.build.variables.write(after)

    def writer_of(self, parameter: str, flat: int) -> str:
        """`path:line` of the last write of an array's element in this launch, "" if there is none. Nothing is kept.

        Args:
            flat: the element's index in the array, flattened.
        """
        copies = Copies(self.signature, self.arguments, self.shape)
        try:
            for one in copies.argued.values():
                if one.parameter.name == parameter:
                    return self._writer_at(copies, one, flat)
        finally:
            copies.free()
        return ""

    def _run_all(self, copies: Copies, before: np.ndarray) -> np.ndarray:
        """Writes what the launch writes; returns what the variables hold after it, before being what they held."""
        build, watched = self.module.build, self.module.watched
        first = self._run(copies, build, 0, NEGATIVE)
        after = build.variables.read()
        build.variables.write(before)
        second = self._run(copies, build, REVERSE | MUTED, POSITIVE, at_end=False)
        build.variables.write(before)
        if first != second:
            again = self._run(copies, build, REVERSE | MUTED, NEGATIVE, at_end=False)
            build.variables.write(before)
            if again != first:
                raise KernelError(self._describe_order(copies, copies.difference(first, again)))
            raise KernelError(self._describe_unset(copies, copies.difference(first, second)))
        third = self._run(copies, watched or build, MUTED, ZERO)
        if first != third:
            raise KernelError(self._describe_unset(copies, copies.difference(first, third)))
        copies.write_back(first)
        return after

    def _run(self, copies: Copies, build: Build, options: int, fill: int, at_end: bool = True) -> list[bytes]:
        """Runs on fresh copies; returns what the arrays hold then."""
        launch = self._launch(copies, build, options, fill, at_end)
        if launch.failed:
            raise KernelError(self._describe(copies, build, launch))
        return copies.contents()

    def _launch(
        self,
        copies: Copies,
        build: Build,
        options: int,
        fill: int,
        at_end: bool = True,
        watch: int = LOST_UPDATES,
        watched: int = 0,
    ) -> Launch:
        """A launch that has run on fresh copies."""
        if build is not self.module.build:
            self._take_over_variables(build.variables)
        pack, keep = pack_arguments(self.signature, copies.fill(at_end))
        launch = make_launch(build.entries[self.signature.name], pack, self.shape, DEBUG | options, num_threads=1)
        launch.fill, launch.watch, launch.watched = fill, watch, watched
        launch.limit = int(debug_seconds() * 1e9)
        self.module.runtime.warpdrive_cpu_run(ctypes.addressof(launch))
        del keep
        return launch

    def _take_over_variables(self, variables: Variables) -> None:
        """What another build's variables must hold: its own addresses, but what kernels have changed."""
        ours = self.module.build.variables
        now = ours.read()
        if len(variables.initial) == len(now):
            variables.write(np.where(now != ours.initial, now, variables.initial))

    # ---- what is wrong, and where

    def _describe(self, copies: Copies, build: Build, launch: Launch) -> str:
        """What ended a run: a fault, a failed check, or a lost update."""
        if launch.message.startswith(b"@"):
            launch.message = copies.explain(int(launch.message[1:], 16)).encode()
        elif launch.message.startswith(b"!"):
            pair = self._pair(copies, build, launch)
            return (
                f"{pair.blamed}: lost update: this thread and {pair.other} write different values to {pair.place} with "
                "no barrier between, and a GPU keeps one of the two. Let one thread alone write each element, put a "
                "barrier between, or use atomicAdd."
            )
        return describe_failure(build.path, self.signature.name, launch)

    def _describe_order(self, copies: Copies, differs: Difference) -> str:
        effect = (
            f"{differs.name} is {differs.first} when threads run first to last and {differs.other} when they run last "
            "to first: the result depends on the order of threads. "
        )
        way_out = (
            "Put __syncthreads() or env_sync() between a write and another thread's read, let one thread alone write "
            "each element, and do not add floats by atomicAdd."
        )
        for watch in (RACES, ANY_RACES):
            found = self._look(copies, watch)
            if found is None:
                continue
            what = f"and {found.other} write different values to {found.place}"
            if found.kind == "r":
                what = f"reads {found.place}, which {found.other} changes"
            return f"{found.blamed}: race: this thread {what} with no barrier between. {effect}{way_out}"
        return f"{self._kernel_at(copies, differs)}: {effect}It comes from a missing barrier or a race. {way_out}"

    def _describe_unset(self, copies: Copies, differs: Difference) -> str:
        effect = f"{differs.name} is {differs.first} or {differs.other} depending on what memory held before the launch"
        cause = "the kernel reads shared memory or a local before writing it"
        way_out = "Set it first, with a barrier in between if another thread does."
        if (found := self._look(copies, UNSET)) is not None:
            cause = "this thread reads shared memory before anything is written there"
            return f"{found.blamed}: {cause}: {effect}. {way_out}"
        if self.module.watched_pattern is not None:
            self._launch(copies, self.module.watched_pattern, MUTED, NEGATIVE, watch=RECORD)
            if (found := self._look(copies, COMPARE)) is not None:
                what = f"what this thread writes to {found.place} comes from a local that was never set"
                return f"{found.blamed}: {what}: {effect}, as {cause}. {way_out}"
        return f"{self._kernel_at(copies, differs)}: {effect}: {cause}. {way_out}"

    def _look(self, copies: Copies, watch: int) -> _Pair | None:
        """What a run of the watched build finds."""
        build = self.module.watched
        if build is None:
            return None
        launch = self._launch(copies, build, MUTED, ZERO if watch == COMPARE else NEGATIVE, watch=watch)
        return self._pair(copies, build, launch) if launch.failed and launch.message.startswith(b"!") else None

    def _pair(self, copies: Copies, build: Build, launch: Launch) -> _Pair:
        kind, address, block, thread, other_block, other_thread = launch.message[1:].split()
        launch.failed_block, launch.failed_thread, launch.message = int(block), int(thread), b""
        line = find_line(build.path, launch.other_address)
        at = f" ({line})" if line else ""
        return _Pair(
            kind.decode(),
            describe_failure(build.path, self.signature.name, launch),
            copies.name(int(address, 16)),
            f"{name_thread(int(other_thread), self.shape.block)} of block {int(other_block)}{at}",
        )

    def _kernel_at(self, copies: Copies, differs: Difference) -> str:
        """The kernel and the line where it last wrote the element, else the one it starts on."""
        line = (
            self._writer_at(copies, differs.array, differs.flat) or f"{self.module.source.path}:{self.signature.line}"
        )
        return f"kernel '{self.signature.name}', {line}"

    def _writer_at(self, copies: Copies, one: Argued, flat: int) -> str:
        """`path:line` of the last write of an element."""
        build = self.module.watched
        if build is None:
            return ""
        copies.fill(at_end=True)
        address = one.copy + flat * one.tensor.element_size()
        launch = self._launch(copies, build, MUTED, NEGATIVE, watch=FIND, watched=address)
        return find_line(build.path, launch.other_address) if launch.other_address else ""


@dataclass(frozen=True)
class _Pair:
    """Two accesses that made a result wrong: the kernel, thread and line to blame, the place, the other one."""

    kind: str
    blamed: str
    place: str
    other: str


def debug_seconds() -> float:
    """How long a block may take, from $WARPDRIVE_DEBUG_SECONDS."""
    text = os.environ.get("WARPDRIVE_DEBUG_SECONDS", "60")
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < 1e9:
        raise KernelError(f"WARPDRIVE_DEBUG_SECONDS is '{text}'. Set it to a number of seconds, 0 for no limit.")
    return seconds
