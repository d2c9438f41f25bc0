"""Runs unmodified CUDA C on the CPU: the host compiler, fibers for barriers, and a pool of threads over envs.

How it works is told where it happens: kernels/cpu_shim.h lets the compiler read CUDA C, kernels/cpu_block.h
schedules the threads of a block, kernels/cpu_runtime.cpp shares blocks out over cores, cpu_debug.py looks for
mistakes.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Sequence

import torch

from warpdrive.backends.base import SANITIZERS, Backend, LaunchShape, Module, Source
from warpdrive.backends.cpu_compiler import Compiler, Variant, build_kernels, find_compiler
from warpdrive.backends.cpu_debug import DebugModule
from warpdrive.backends.cpu_launch import (
    EVERY_FIBER,
    SPREAD,
    Argument,
    check_shape,
    describe_failure,
    load_entries,
    load_runtime,
    make_launch,
    pack_arguments,
)
from warpdrive.backends.cpu_sanitize import require_preloaded
from warpdrive.errors import BackendError, KernelError
from warpdrive.signature import Signature


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

    def compile(self, source: Source) -> CpuModule | DebugModule:
        return DebugModule(self.compiler, source) if self.debug else CpuModule(self, source)

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
        self.library_path = build_kernels(backend.compiler, source, Variant(sanitize=backend.sanitize))
        self.runtime = load_runtime(backend.compiler)
        self.entries = load_entries(self.library_path)

    def prepare(self, signature: Signature, arguments: Sequence[Argument], shape: LaunchShape) -> Callable[[], None]:
        check_shape(signature.name, shape)
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


def _default_num_threads() -> int:
    text = os.environ.get("WARPDRIVE_NUM_THREADS")
    if not text:
        return len(os.sched_getaffinity(0))
    if not text.isdigit() or int(text) < 1:
        raise BackendError(f"WARPDRIVE_NUM_THREADS is '{text}'. Set it to a whole number from 1.")
    return int(text)
