"""Runs unmodified CUDA C on the CPU: the host compiler, fibers for barriers, and a pool of threads over envs.

How it works is told where it happens: kernels/cpu_shim.h lets the compiler read CUDA C, kernels/cpu_block.h
schedules the threads of a block, kernels/cpu_runtime.cpp shares blocks out over cores, cpu_debug.py looks for
mistakes.
"""

from __future__ import annotations

import ctypes
import functools
import os
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from warpdrive.backends.base import SANITIZERS, Backend, LaunchShape, Module, Source
from warpdrive.backends.cpu_compiler import (
    MAX_SHARED_BYTES,
    Compiler,
    Variant,
    build_kernels,
    build_runtime,
    find_compiler,
)
from warpdrive.backends.cpu_debug import DebugBuild, DebugLaunch, Variables, find_line
from warpdrive.backends.cpu_sanitize import require_preloaded
from warpdrive.errors import BackendError, KernelError
from warpdrive.signature import Signature

MAX_THREADS_PER_BLOCK = 1024

Argument = torch.Tensor | float | int | bool

# Options of cpu_block.h.
DEBUG, REVERSE, MUTED, SPREAD, EVERY_FIBER = 1, 2, 4, 8, 16

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
        ("failed", ctypes.c_int),
        ("failed_block", ctypes.c_uint),
        ("failed_thread", ctypes.c_uint),
        ("failed_line", ctypes.c_uint),
        ("failed_address", ctypes.c_size_t),
        ("failed_file", ctypes.c_char_p),
        ("message", ctypes.c_char * 400),
    ]


class _Entry(ctypes.Structure):
    _fields_ = [("name", ctypes.c_char_p), ("entry", ctypes.c_void_p)]


class CpuBackend(Backend):
    """Compiles with g++ or clang++ and launches on the cores of this machine.

    Results do not depend on the number of cores. `debug` finds indices out of range, races, uninitialised reads,
    loops that do not end and more, at many times the cost; cpu_debug.py tells how, and what it cannot find.
    `sanitize` names any of SANITIZERS.

    Args:
        num_threads: None for $WARPDRIVE_NUM_THREADS, else every core this process may use.
        compiler: None for $CXX, else g++, else clang++.
    Raises:
        BackendError: no compiler, or a sanitizer whose library is not preloaded into Python.
    """

    name = "cpu"
    device = torch.device("cpu")

    def __init__(
        self,
        debug: bool = False,
        sanitize: Sequence[str] = (),
        num_threads: int | None = None,
        compiler: str | None = None,
    ) -> None:
        self.sanitize = (sanitize,) if isinstance(sanitize, str) else tuple(sanitize)
        self.debug = debug
        self.num_threads = num_threads if num_threads is not None else _default_num_threads()
        if unknown := [kind for kind in self.sanitize if kind not in SANITIZERS]:
            raise BackendError(f"no sanitizer '{unknown[0]}'. Choose among {', '.join(SANITIZERS)}.")
        if debug and self.sanitize:
            raise BackendError("debug mode and sanitizers exclude each other. Choose one: debug=True or sanitize=...")
        if {"address", "thread"} <= set(self.sanitize):
            raise BackendError("the sanitizers 'address' and 'thread' exclude each other. Run one after the other.")
        if self.num_threads < 1:
            raise BackendError(f"num_threads is {self.num_threads}. Give at least 1.")
        self.compiler: Compiler = find_compiler(compiler)
        require_preloaded(self.sanitize, self.compiler)

    def compile(self, source: Source) -> CpuModule:
        return CpuModule(self, source)

    def synchronize(self) -> None:
        """Launches have ended when they return."""

    @property
    def prefers_one_thread(self) -> bool:
        # Several threads an env are what a missing barrier needs in order to show.
        return not (self.debug or self.sanitize)


class CpuModule(Module):
    """A library of kernels. `library_path` is where it lies, for gdb."""

    def __init__(self, backend: CpuBackend, source: Source) -> None:
        self.backend = backend
        self.source = source
        second_build = DebugBuild(backend.compiler, source) if backend.debug else None
        variant = Variant(debug=backend.debug, sanitize=backend.sanitize)
        self.library_path = build_kernels(backend.compiler, source, variant)
        self.runtime = load_runtime(backend.compiler)
        self.entries = load_entries(self.library_path)
        if second_build and self.entries:
            self._load_second(second_build.path())

    def _load_second(self, path: Path | None) -> None:
        """The build that debug mode's third run uses."""
        self.variables = Variables(self.runtime, next(iter(self.entries.values())))
        self.zero_path, self.zero_entries = path, load_entries(path) if path else {}
        if path:
            self.zero_variables = Variables(self.runtime, next(iter(self.zero_entries.values())))

    def prepare(self, signature: Signature, arguments: Sequence[Argument], shape: LaunchShape) -> Callable[[], None]:
        check_shape(signature.name, shape)
        if self.backend.debug:
            return DebugLaunch(self, signature, arguments, shape)
        options = 0
        if "thread" in self.backend.sanitize:
            options |= EVERY_FIBER | SPREAD
        pack, keep = pack_arguments(signature, arguments)
        launch = make_launch(self.entries[signature.name], pack, shape, options, self.backend.num_threads)
        run, address = self.runtime.warpdrive_cpu_run, ctypes.addressof(launch)

        def call(_keep: object = (keep, pack, launch, arguments)) -> None:
            if run(address):
                raise KernelError(describe_failure(self.library_path, signature.name, launch))

        return call


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
    if launch.failed_file:
        place = f"{launch.failed_file.decode()}:{launch.failed_line}: "
    elif launch.failed_address:
        place = find_line(library, launch.entry, launch.failed_address)
    return f"{name_thread(kernel, launch)}: {place}{what}"


def name_thread(kernel: str, launch: Launch) -> str:
    x, y = launch.failed_thread % launch.threads_x, launch.failed_thread // launch.threads_x
    thread = f"{x}" if launch.threads_y == 1 else f"({x}, {y})"
    return f"kernel '{kernel}', block {launch.failed_block}, thread {thread}"


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


def _default_num_threads() -> int:
    text = os.environ.get("WARPDRIVE_NUM_THREADS")
    if not text:
        return len(os.sched_getaffinity(0))
    if not text.isdigit() or int(text) < 1:
        raise BackendError(f"WARPDRIVE_NUM_THREADS is '{text}'. Set it to a whole number from 1.")
    return int(text)
