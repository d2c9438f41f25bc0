"""Debug mode: a launch runs several times on copies of its arrays, and must give the same result each time.

1. First thread to last. Arrays end at memory that cannot be touched, so an index beyond the end is a fault.
2. Last thread to first, last block to first; arrays begin at such memory. A result that differs from the first
   run's depends on the order of threads: a barrier is missing, or threads or envs race.
3. As the first, but shared memory and locals that the kernel never set hold other values. A result that differs
   was made of them. This run also watches every write for lost updates (see cpu_writes.h): two threads that write
   different values to one place with nothing between that orders them.

In each run a block that takes longer than $WARPDRIVE_DEBUG_SECONDS (60; 0 for no limit) is stopped.

What the first run wrote is what the launch writes. A fault leaves the arrays as they were.

Not found: a lost update in a kernel whose block also uses atomics or fences, or __syncwarp, between the two writes
(they may order them; sanitize=("thread",) does find it), and threads that return while others of the block go on to
another __syncthreads, which GPUs since Volta allow: the barrier waits for those that have not returned.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import re
import subprocess
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from warpdrive.backends.base import KERNELS_FOLDER, LaunchShape, Source
from warpdrive.backends.cpu_compiler import Compiler, Variant, build_kernels
from warpdrive.comments import blank_comments
from warpdrive.errors import KernelError, WarpDriveError
from warpdrive.signature import Parameter, Signature

if TYPE_CHECKING:
    from warpdrive.backends.cpu import Argument, CpuModule

GUARD_BYTES = 1 << 28
"""Before and behind each array. An index that jumps further may hit something else unseen."""

# What unset shared memory holds. As a float or an int the first is large and negative, the second large and
# positive, so that neither a minimum nor a maximum hides both; the third is what a lucky kernel gets.
NEGATIVE, POSITIVE, ZERO = 0xC7, 0x47, 0x00

_NO_ACCESS, _READ_WRITE = 0, mmap.PROT_READ | mmap.PROT_WRITE
_MAP_NORESERVE = 0x4000

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
_libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]


class Guarded:
    """A copy of `size` bytes at `address`, at either end of memory that cannot be touched."""

    def __init__(self, address: int, size: int) -> None:
        self.address, self.size = address, size
        self.body_size = -(-max(size, 1) // mmap.PAGESIZE) * mmap.PAGESIZE
        self.mapped_size = self.body_size + 2 * GUARD_BYTES
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE
        self.mapped = _libc.mmap(None, self.mapped_size, _NO_ACCESS, flags, -1, 0)
        if self.mapped in (None, ctypes.c_void_p(-1).value):
            raise KernelError(
                f"debug mode cannot reserve memory around an array: {os.strerror(ctypes.get_errno())}. "
                "Raise the limit on virtual memory (ulimit -v), or leave debug mode."
            )
        self.body = self.mapped + GUARD_BYTES
        _libc.mprotect(self.body, self.body_size, _READ_WRITE)
        self.copy = self.body

    def fill(self, at_end: bool) -> None:
        self.copy = self.body + (self.body_size - self.size if at_end else 0)
        ctypes.memmove(self.copy, self.address, self.size)

    def content(self) -> bytes:
        return ctypes.string_at(self.copy, self.size)

    def free(self) -> None:
        _libc.munmap(self.mapped, self.mapped_size)


@dataclass
class Argued:
    """A pointer parameter, its tensor, and where that lies in the guarded copies."""

    parameter: Parameter
    tensor: torch.Tensor
    guarded: Guarded

    @property
    def size(self) -> int:
        return self.tensor.numel() * self.tensor.element_size()

    @property
    def offset(self) -> int:
        return self.tensor.data_ptr() - self.guarded.address

    @property
    def copy(self) -> int:
        return self.guarded.copy + self.offset


class DebugBuild:
    """The second build of a module: unset locals hold zero and writes are watched. Compiled beside the first."""

    def __init__(self, compiler: Compiler, source: Source) -> None:
        self._future: Future[Path] | None = None
        if compiler.supports("-ftrivial-auto-var-init=zero"):
            executor = ThreadPoolExecutor(1)
            variant = Variant(debug=True, locals_hold="zero", watch_writes=True)
            self._future = executor.submit(build_kernels, compiler, source, variant)
            executor.shutdown(wait=False)

    def path(self) -> Path | None:
        """None if the compiler cannot fill locals, or refuses the source, which the first build reports."""
        try:
            return self._future.result() if self._future else None
        except WarpDriveError:
            return None


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


class DebugLaunch:
    """A prepared launch in debug mode; calling it launches.

    Raises:
        KernelError: names kernel, file and line, and thread or array, of the first mistake found.
    """

    def __init__(
        self, module: CpuModule, signature: Signature, arguments: Sequence[Argument], shape: LaunchShape
    ) -> None:
        from warpdrive.backends import cpu  # cpu.py imports this file

        self._cpu = cpu
        self.module, self.signature, self.arguments, self.shape = module, signature, list(arguments), shape
        cpu.pack_arguments(signature, self.arguments)

    def __call__(self) -> None:
        argued = guard_arguments(self.signature, self.arguments)
        guards = list({id(one.guarded): one.guarded for one in argued}.values())
        try:
            self._run_all(argued, guards)
        finally:
            for guarded in guards:
                guarded.free()

    def _run_all(self, argued: list[Argued], guards: list[Guarded]) -> None:
        cpu, module = self._cpu, self.module
        before = module.variables.read()
        try:
            first = self._run(argued, guards, 0, NEGATIVE, at_end=True)
            after = module.variables.read()
            module.variables.write(before)
            second = self._run(argued, guards, cpu.REVERSE | cpu.MUTED, POSITIVE, at_end=False)
            if first != second:
                module.variables.write(before)
                again = self._run(argued, guards, cpu.REVERSE | cpu.MUTED, NEGATIVE, at_end=False)
                if again != first:
                    self._raise_order(argued, guards, first, again)
                self._raise_unset(argued, guards, first, second)
        finally:
            module.variables.write(before)
        if module.zero_entries:
            changed = before != module.variables.initial
            initial = module.zero_variables.initial
            if len(initial) == len(before):
                module.zero_variables.write(np.where(changed, before, initial))
            third = self._run(argued, guards, cpu.MUTED, ZERO, at_end=True, zero_locals=True)
        else:
            third = self._run(argued, guards, cpu.MUTED, ZERO, at_end=True)
        if first != third:
            module.variables.write(before)
            self._raise_unset(argued, guards, first, third)
        module.variables.write(after)
        for guarded, content in zip(guards, first, strict=True):
            ctypes.memmove(guarded.address, content, guarded.size)

    def _run(
        self,
        argued: list[Argued],
        guards: list[Guarded],
        options: int,
        fill: int,
        at_end: bool,
        zero_locals: bool = False,
    ) -> list[bytes]:
        """Runs on fresh copies; returns what the arrays hold then."""
        cpu, module, kernel = self._cpu, self.module, self.signature.name
        for guarded in guards:
            guarded.fill(at_end)
        copies = iter(argued)
        replaced = [
            next(copies).copy if parameter.is_pointer and isinstance(argument, torch.Tensor) else argument
            for parameter, argument in zip(self.signature.parameters, self.arguments, strict=True)
        ]
        pack, keep = cpu.pack_arguments(self.signature, replaced)
        entries = module.zero_entries if zero_locals else module.entries
        library = module.zero_path if zero_locals else module.library_path
        launch = cpu.make_launch(entries[kernel], pack, self.shape, cpu.DEBUG | options, num_threads=1)
        launch.fill = fill
        launch.limit = int(debug_seconds() * 1e9)
        if module.runtime.warpdrive_cpu_run(ctypes.addressof(launch)):
            if launch.message.startswith(b"@"):
                launch.message = explain_address(int(launch.message[1:], 16), argued).encode()
            elif launch.message.startswith(b"!"):
                address, block, thread = launch.message[1:].split()
                launch.message = self._explain_lost(int(address, 16), int(block), int(thread), argued).encode()
            raise KernelError(cpu.describe_failure(library, kernel, launch))
        del keep
        return [guarded.content() for guarded in guards]

    def _explain_lost(self, address: int, block: int, thread: int, argued: list[Argued]) -> str:
        threads_x = self.shape.block[0]
        other = f"{thread}" if self.shape.block[1] == 1 else f"({thread % threads_x}, {thread // threads_x})"
        name = "shared memory or a __device__ variable"
        for one in argued:
            if one.copy <= address < one.copy + one.size:
                name = self._name_element(one, (address - one.copy) // one.tensor.element_size())
                break
        return (
            f"lost update: this thread and thread {other} of block {block} write different values to {name} with "
            "no barrier between, and a GPU keeps one of the two. Let one thread alone write each element, put a "
            "barrier between, or use atomicAdd."
        )

    def _raise_order(self, argued: list[Argued], guards: list[Guarded], first: list[bytes], other: list[bytes]) -> None:
        place, value, other_value = self._difference(argued, guards, first, other)
        raise KernelError(
            f"{self._where(place)}: {place} is {value} when threads run first to last and {other_value} when they run "
            "last to first: the result depends on the order of threads, from a missing barrier or a race. Put "
            "__syncthreads() or env_sync() between a write and another thread's read, let one thread alone write each "
            "element, and do not add floats by atomicAdd."
        )

    def _raise_unset(self, argued: list[Argued], guards: list[Guarded], first: list[bytes], other: list[bytes]) -> None:
        place, value, other_value = self._difference(argued, guards, first, other)
        raise KernelError(
            f"{self._where(place)}: {place} is {value} or {other_value} depending on what memory held before the "
            "launch: the kernel reads shared memory or a local before writing it. Set it first, with a barrier in "
            "between if another thread does."
        )

    def _where(self, place: str) -> str:
        """The kernel and the line where it first writes the parameter that `place` names, else the one it starts on."""
        text, name = self.module.source.text, place.split("'")[1]
        line = find_write(text, self.signature, name) or self.signature.line
        return f"kernel '{self.signature.name}', {self.module.source.path}:{line}"

    def _difference(
        self, argued: list[Argued], guards: list[Guarded], first: list[bytes], other: list[bytes]
    ) -> tuple[str, str, str]:
        """The first element that differs, in the order of parameters: what it is called, and both values."""
        contents = {id(guarded): pair for guarded, pair in zip(guards, zip(first, other, strict=True), strict=True)}
        for one in argued:
            a, b = (content[one.offset : one.offset + one.size] for content in contents[id(one.guarded)])
            if a == b:
                continue
            item = one.tensor.element_size()
            differs = np.frombuffer(a, np.uint8) != np.frombuffer(b, np.uint8)
            flat = int(np.argmax(differs)) // item
            values = [_show(content[flat * item : (flat + 1) * item], one.tensor.dtype) for content in (a, b)]
            return self._name_element(one, flat), *values
        raise AssertionError("the results differ")

    def _name_element(self, one: Argued, flat: int) -> str:
        shape = tuple(one.tensor.shape) or (1,)
        index = [int(i) for i in np.unravel_index(flat, shape)]
        name = f"'{one.parameter.name}'[{', '.join(map(str, index))}]"
        num_envs = self.shape.num_blocks * self.shape.block[1]
        is_by_env = num_envs - self.shape.block[1] < shape[0] <= num_envs
        return f"{name} (env {index[0]})" if is_by_env else name


def guard_arguments(signature: Signature, arguments: Sequence[Argument]) -> list[Argued]:
    """Every pointer parameter with a guarded copy; tensors that share memory share the copy."""
    pointers = [
        (parameter, argument)
        for parameter, argument in zip(signature.parameters, arguments, strict=True)
        if parameter.is_pointer and isinstance(argument, torch.Tensor)
    ]
    spans: list[list[int]] = []  # disjoint [start, end), in order
    for start, size in sorted((t.data_ptr(), t.numel() * t.element_size()) for _, t in pointers):
        if spans and start < spans[-1][1]:
            spans[-1][1] = max(spans[-1][1], start + size)
        elif [start, start + size] not in spans:
            spans.append([start, start + size])
    guards = [Guarded(start, end - start) for start, end in spans]

    def find(tensor: torch.Tensor) -> Guarded:
        start = tensor.data_ptr()
        end = start + tensor.numel() * tensor.element_size()
        return next(g for g in guards if g.address <= start and end <= g.address + g.size)

    return [Argued(parameter, tensor, find(tensor)) for parameter, tensor in pointers]


def explain_address(address: int, argued: list[Argued]) -> str:
    """What lies, or should lie, at an address that a kernel could not touch."""
    for one in argued:
        index = (address - one.copy) // one.tensor.element_size()
        is_near = one.guarded.mapped <= address < one.guarded.mapped + one.guarded.mapped_size
        is_wrapped = 0 < 2**32 - index < 2**20  # an unsigned index went below 0
        if not is_near and not is_wrapped:
            continue
        shape = ", ".join(map(str, one.tensor.shape))
        return (
            f"index {index} is out of range of '{one.parameter.name}', which has {one.tensor.numel()} elements "
            f"(shape [{shape}]). Test the index, or push a larger array."
        )
    if address < mmap.PAGESIZE:
        return "null pointer. Give the kernel an array here."
    return f"no array lies at address {address:#x}. Test the index or the pointer."


def find_write(text: str, signature: Signature, name: str) -> int | None:
    """The first line of a kernel that plainly writes its parameter `name`, as `name[i] = 0` or `atomicAdd(&name[i]`."""
    lines = blank_comments(text, keep_strings=False).splitlines()
    for number, line in enumerate(lines[signature.line - 1 :], signature.line):
        if number > signature.line and "__global__" in line:
            return None
        body = line.partition("{")[2] if number == signature.line else line
        inner = r"[^\[\];]*(?:\[[^\[\];]*\][^\[\];]*)*"  # such as `x[index[i]]`
        element = rf"(?<![\w.>]){name}\s*\[{inner}\]"
        if re.search(rf"{element}\s*(?:(?:[-+*/%&|^]|<<|>>)?=(?!=)|\+\+|--)", body):
            return number
        if re.search(rf"(?:\+\+|--)\s*{element}|\batomic\w+\(\s*&?\s*{name}\b", body):
            return number
    return None


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


def find_line(library: Path, entry: int, address: int) -> str:
    """`path:line: ` of a machine instruction in `library`, or "" where that cannot be found out."""
    start = None
    for line in Path("/proc/self/maps").read_text().splitlines():
        fields = line.split(maxsplit=5)
        if len(fields) == 6 and fields[5] == str(library):
            low, high = (int(end, 16) for end in fields[0].split("-"))
            start = low if start is None else min(start, low)
            if low <= address < high:
                break
    else:
        return ""  # in another library
    try:
        command = ["addr2line", "-i", "-e", str(library), hex(address - start)]
        found = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return ""  # no addr2line: the message goes without
    for place in found.splitlines():  # innermost first
        match = re.match(r"(.+):(\d+)", place)
        if match and match[1] != "??" and not match[1].startswith(str(KERNELS_FOLDER / "cpu_")):
            return f"{match[1]}:{match[2]}: "
    return ""


def _show(content: bytes, dtype: torch.dtype) -> str:
    return str(torch.frombuffer(bytearray(content), dtype=dtype).item())
