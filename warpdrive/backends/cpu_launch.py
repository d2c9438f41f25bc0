"""What Python and the CPU runtime hand each other: arguments, launches, entry points, and what went wrong."""

from __future__ import annotations

import ctypes
import functools
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path

import torch

from warpdrive.backends.base import KERNELS_FOLDER, LaunchShape
from warpdrive.backends.cpu_compiler import MAX_SHARED_BYTES, Compiler, build_runtime
from warpdrive.errors import KernelError
from warpdrive.signature import Signature

MAX_THREADS_PER_BLOCK = 1024

Argument = torch.Tensor | float | int | bool

# Options of cpu_block.h.
DEBUG, REVERSE, MUTED, SPREAD, EVERY_FIBER = 1, 2, 4, 8, 16

UNKNOWN_THREAD = 0xFFFFFFFF
"""Of a fault outside of debug mode, where a fiber runs one thread after the other; cpu_runtime.cpp has the same."""

# What debug mode's watched build looks for: Watch of cpu_accesses.h.
LOST_UPDATES, RACES, ANY_RACES, UNSET, RECORD, COMPARE, FIND = range(7)

_SCALARS = {
    "float": ctypes.c_float,
    "double": ctypes.c_double,
    "int": ctypes.c_int32,
    "unsigned int": ctypes.c_uint32,
    "long long": ctypes.c_int64,
    "unsigned long long": ctypes.c_uint64,
    "short": ctypes.c_int16,
    "unsigned short": ctypes.c_uint16,
    "signed char": ctypes.c_int8,
    "char": ctypes.c_int8,
    "unsigned char": ctypes.c_uint8,
    "bool": ctypes.c_bool,
}


class Launch(ctypes.Structure):
    """`Launch` of cpu_block.h, field by field."""

    _fields_ = [
        ("entry", ctypes.c_void_p),
        ("arguments", ctypes.c_void_p),
        ("num_blocks", ctypes.c_uint),
        ("threads_x", ctypes.c_uint),
        ("threads_y", ctypes.c_uint),
        ("options", ctypes.c_uint),
        ("num_threads", ctypes.c_int),
        ("fill", ctypes.c_uint),
        ("limit", ctypes.c_int64),
        ("expected", ctypes.c_int64),
        ("watch", ctypes.c_uint),
        ("watched", ctypes.c_size_t),
        ("failed", ctypes.c_int),
        ("failed_block", ctypes.c_uint),
        ("failed_thread", ctypes.c_uint),
        ("failed_line", ctypes.c_uint),
        ("failed_address", ctypes.c_size_t),
        ("other_address", ctypes.c_size_t),
        ("failed_file", ctypes.c_char_p),
        ("message", ctypes.c_char * 400),
    ]


class _Entry(ctypes.Structure):
    _fields_ = [("name", ctypes.c_char_p), ("entry", ctypes.c_void_p)]


def check_shape(kernel: str, shape: LaunchShape) -> None:
    """Raises KernelError where a GPU would refuse the launch too."""
    num_threads = shape.block[0] * shape.block[1]
    if not 1 <= num_threads <= MAX_THREADS_PER_BLOCK or min(shape.block) < 1:
        raise KernelError(
            f"kernel '{kernel}': a block of {shape.block[0]} x {shape.block[1]} threads. "
            f"Use 1 to {MAX_THREADS_PER_BLOCK}."
        )
    if not 1 <= shape.num_blocks < 2**31:
        raise KernelError(f"kernel '{kernel}': a grid of {shape.num_blocks} blocks. Use 1 to 2147483647.")
    if not 0 <= shape.shared_bytes <= MAX_SHARED_BYTES:
        raise KernelError(
            f"kernel '{kernel}': {shape.shared_bytes} bytes of dynamic shared memory. Use at most {MAX_SHARED_BYTES}."
        )


def pack_arguments(signature: Signature, arguments: Sequence[Argument]) -> tuple[ctypes.Array, list]:
    """The array of pointers that a kernel's entry point takes, and what it points to."""
    if len(arguments) != len(signature.parameters):
        raise KernelError(
            f"kernel '{signature.name}' takes {len(signature.parameters)} arguments, got {len(arguments)}. "
            "Give one a parameter."
        )
    keep: list = []
    for parameter, argument in zip(signature.parameters, arguments, strict=True):
        if parameter.is_pointer:
            address = argument.data_ptr() if isinstance(argument, torch.Tensor) else argument
            keep.append(ctypes.c_void_p(address))
        elif parameter.ctype in _SCALARS:
            keep.append(_SCALARS[parameter.ctype](argument))
        else:
            raise KernelError(f"kernel '{signature.name}': the CPU cannot pass '{parameter}'. Pass a float instead.")
    pack = (ctypes.c_void_p * max(1, len(keep)))(*(ctypes.addressof(value) for value in keep))
    return pack, keep


def make_launch(entry: int, pack: ctypes.Array, shape: LaunchShape, options: int, num_threads: int) -> Launch:
    launch = Launch()
    launch.entry = entry
    launch.arguments = ctypes.addressof(pack)
    launch.num_blocks = shape.num_blocks
    launch.threads_x, launch.threads_y = shape.block
    launch.options = options
    launch.num_threads = num_threads
    launch.expected = -1
    return launch


def describe_failure(library: Path, kernel: str, launch: Launch) -> str:
    """`kernel 'f', block 2, thread 3: file:line: what`."""
    place, what = "", launch.message.decode(errors="replace")
    if what.startswith("@"):  # an address; debug mode, which knows what lies around arrays, has put its name there
        what = (
            "it read or wrote where no array is. The CPU's debug mode names array and index: "
            "`python -m warpdrive.testing ENV`, or choose_backend('cpu', debug=True)."
        )
    if launch.failed_file:
        place = f"{launch.failed_file.decode()}:{launch.failed_line}"
    elif launch.failed_address:
        place = find_line(library, launch.failed_address)
    who = f"kernel '{kernel}', block {launch.failed_block}"
    if launch.failed_thread != UNKNOWN_THREAD:
        who += f", {name_thread(launch.failed_thread, (launch.threads_x, launch.threads_y))}"
    return ": ".join(part for part in (who, place, what) if part)


def name_thread(thread: int, block: tuple[int, int]) -> str:
    """`thread 3`, or `thread (3, 1)` of a block with two sides."""
    width, height = block
    return f"thread {thread}" if height == 1 else f"thread ({thread % width}, {thread // width})"


@functools.lru_cache
def load_runtime(compiler: Compiler) -> ctypes.CDLL:
    runtime = ctypes.CDLL(str(build_runtime(compiler)))
    runtime.warpdrive_cpu_run.argtypes = [ctypes.c_void_p]
    runtime.warpdrive_cpu_run.restype = ctypes.c_int
    runtime.warpdrive_cpu_variables.argtypes = [ctypes.c_size_t, ctypes.POINTER(ctypes.c_void_p)]
    runtime.warpdrive_cpu_variables.restype = ctypes.c_size_t
    return runtime


def load_entries(path: Path) -> dict[str, int]:
    """Address of every kernel's entry point, by name."""
    library = ctypes.CDLL(str(path))
    table = ctypes.cast(library.warpdrive_cpu_entries, ctypes.POINTER(_Entry))
    entries: dict[str, int] = {}
    while table[len(entries)].name:
        entry = table[len(entries)]
        entries[entry.name.decode()] = entry.entry
    return entries


def find_line(library: Path, address: int) -> str:
    """`path:line` of a machine instruction in `library`, or "" where that cannot be found out.

    Of a line of ours that the compiler put into the user's, it is the user's.
    """
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
    places = [match.groups() for match in re.finditer(r"^(?!\?\?)(.+):(\d+)", found, re.MULTILINE)]  # innermost first
    ours, shim = (str(KERNELS_FOLDER / start) for start in ("", "cpu_"))
    for path, line in [
        *((path, line) for path, line in places if not path.startswith((ours, "<"))),
        *((path, line) for path, line in places if not path.startswith(shim)),
    ]:
        return f"{path}:{line}"
    return ""
