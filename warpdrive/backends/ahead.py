"""Compiles sources side by side: each is begun where it is asked for, and waited for where its first launch is."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any

from warpdrive.backends.base import Backend, LaunchShape, Module, Source
from warpdrive.errors import CompileError
from warpdrive.signature import Signature

THREAD = "compiling ahead"
"""Name of the threads."""


@contextmanager
def compiling_ahead(backend: Backend) -> Iterator[None]:
    """Whatever the backend compiles within is compiled beside what goes on, on as many cores as there are.

    Launches can be prepared at once. A kernel's first launch waits for it, and raises what its compiler found wrong.
    """
    compile_here = backend.compile
    cores = threading.Semaphore(len(os.sched_getaffinity(0)))

    begun: dict[tuple, Future[None]] = {}

    def begin(source: Source) -> Module:
        key = (source.path, source.text, source.constants, source.include_folders, source.options)
        if key not in begun:  # policies share kernels
            begun[key] = built = Future()
            # The compiler is a process, which ends with this one.
            threading.Thread(target=build, args=(source, built), daemon=True, name=THREAD).start()
        return ModuleAhead(begun[key], lambda: compile_here(source))

    def build(source: Source, built: Future[None]) -> None:
        with cores:
            try:
                built.set_result(backend.build(source))
            except BaseException as error:  # for whoever waits
                built.set_exception(error)

    backend.compile = begin
    try:
        yield
    finally:
        backend.compile = compile_here


def this_or(call: Callable[[], None], others: Callable[[], Sequence[Callable[[], None]]]) -> Callable[[], None]:
    """A launch; or, if its kernel does not compile, what `others` prepares then, from the first call on."""
    chosen: list[Callable[[], None]] = []

    def launch() -> None:
        if not chosen:
            try:
                call()
            except CompileError:
                chosen.extend(others())
            else:
                chosen.append(call)
                return
        for one in chosen:
            one()

    return launch


class ModuleAhead(Module):
    """Kernels that are being compiled."""

    def __init__(self, built: Future[None], load: Callable[[], Module]) -> None:
        self._built, self._load = built, load
        self._module: Module | None = None

    def module(self) -> Module:
        if self._module is None:
            self._built.result()
            self._module = self._load()
        return self._module

    def prepare(self, signature: Signature, arguments: Sequence[Any], shape: LaunchShape) -> Callable[[], None]:
        if self._module is not None:
            return self._module.prepare(signature, arguments, shape)
        launch: Callable[[], None] | None = None

        def call() -> None:
            nonlocal launch
            if launch is None:
                launch = self.module().prepare(signature, arguments, shape)
            launch()

        return call
