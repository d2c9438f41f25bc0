"""The CUDA backend: compile to a cubin, load it, launch it on a stream that torch shares.

Two parts, each with two interchangeable ways:

* compile to a cubin: NVRTC when it is there (a CUDA build of torch brings it), else nvcc;
* load and launch: PyCUDA when it is installed, else cuda.bindings (a CUDA build of torch brings it).

So a GPU machine needs no CUDA toolkit. Launches and torch work go to one stream, so they are
ordered without a synchronisation and can be captured together in a CUDA graph.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch

from warpdrive.backends import nvrtc
from warpdrive.backends.base import Backend, LaunchShape, Module, Source, check_room, show_source_line, too_much_shared
from warpdrive.backends.compiler_process import run_compiler, work_folder
from warpdrive.backends.cuda_drivers import BindingsDriver, Driver, PyCudaDriver
from warpdrive.backends.dependent_launch import WAIT, can_wait, launch_early, wait_first, waiting_kernels
from warpdrive.cache import cache_key, cached, read_entry
from warpdrive.data_manager import find_device
from warpdrive.errors import BackendError, CompileError
from warpdrive.signature import Signature

_FLAGS = ("-std=c++17", "-lineinfo")
_MAX_STATIC_SHARED = 48 * 1024


class CudaBackend(Backend):
    """One GPU.

    Args:
        index: which GPU.
        debug: compile with full debug information (slow kernels; for cuda-gdb and compute-sanitizer).
        driver: "auto", "pycuda" or "bindings".
    Raises:
        BackendError: no GPU, or the driver asked for is not installed.
    """

    name = "cuda"
    prefers_one_thread = False

    def __init__(self, index: int = 0, debug: bool = False, driver: str = "auto") -> None:
        self.device = find_device(f"cuda:{index}")
        self.debug = debug
        self.driver = _driver(index, driver)
        self.arch = arch_of(*torch.cuda.get_device_capability(index))
        self.stream = torch.cuda.ExternalStream(self.driver.stream_handle, device=self.device)
        """torch's view of the stream."""
        self._side = torch.cuda.ExternalStream(self.driver.side_handle, device=self.device)
        torch.cuda.synchronize(self.device)  # what torch did so far was on another stream
        torch.cuda.set_stream(self.stream)
        self._waiting: set[str] = set()
        """Kernels that begin with a wait for the one before them."""

    @property
    def has_warpgroups(self) -> bool:
        """Whether kernels may use `wgmma`: with full debug information its products would wait for each other."""
        return self.arch == "sm_90a" and not self.debug

    def compile(self, source: Source) -> Module:
        cubin = compile_to_cubin(source, self.arch, debug=self.debug)
        if can_wait(self.arch):
            self._waiting |= waiting_kernels(source.text)
        return CudaModule(self.driver, self.driver.load(cubin), source)

    def build(self, source: Source) -> None:
        compile_to_cubin(source, self.arch, debug=self.debug, beside=True)

    def in_thread(self) -> AbstractContextManager[None]:
        return self.driver.in_thread()

    @contextmanager
    def beside(self) -> Iterator[Callable[[], None]]:
        self._side.wait_stream(self.stream)
        try:
            with self.driver.on_side(), torch.cuda.stream(self._side):
                yield partial(self.stream.wait_stream, self._side)
        except BaseException:  # else what comes next would meet what is still at work
            self.stream.wait_stream(self._side)
            raise

    @contextmanager
    def capture(
        self, generators: Sequence[torch.Generator] = (), pool: tuple[int, int] | None = None
    ) -> Iterator[torch.cuda.CUDAGraph]:
        """Records what is launched within, and torch's work there, as a CUDA graph: none of it is done before a replay.

        Args:
            generators: torch's on this device that are drawn from.
            pool: of another graph, whose memory this one may use, too.
        Raises:
            RuntimeError: something within cannot be recorded.
        """
        graph = torch.cuda.CUDAGraph(keep_graph=True)
        for generator in generators:
            graph.register_generator_state(generator)
        with torch.cuda.graph(graph, pool=pool, stream=self.stream):
            yield graph
        launch_early(graph.raw_cuda_graph(), self._waiting)
        graph.instantiate()

    def synchronize(self) -> None:
        self.driver.synchronize()

    def __str__(self) -> str:
        return f"{self.arch}, launches by {self.driver.name}"


class CudaModule(Module):
    """A loaded cubin."""

    def __init__(self, driver: Driver, handle: object, source: Source) -> None:
        self._driver = driver
        self._handle = handle
        self._source = source
        self._functions: dict[str, object] = {}
        self._shared_bytes: dict[str, int] = {}
        """That each function may have: the most of its launches, which may differ."""

    def prepare(
        self, signature: Signature, arguments: Sequence[torch.Tensor | float | int | bool], shape: LaunchShape
    ) -> Callable[[], None]:
        function = self._functions.get(signature.name)
        if function is None:
            function = self._driver.function(self._handle, signature.name)
            used = self._driver.static_shared_bytes(function)
            if used > _MAX_STATIC_SHARED:  # the compilers of CUDA 13 refuse it themselves
                raise CompileError(too_much_shared(self._source, signature.name, used, _MAX_STATIC_SHARED))
            self._functions[signature.name] = function
        if shape.shared_bytes > self._shared_bytes.get(signature.name, _MAX_STATIC_SHARED):
            try:
                self._driver.allow_shared_bytes(function, shape.shared_bytes)
            except Exception as error:  # of whichever driver it is
                raise CompileError(
                    f"{self._source.path}:{signature.line}: kernel '{signature.name}' has "
                    f"{self._driver.static_shared_bytes(function):,} bytes of static shared memory, and asks for "
                    f"{shape.shared_bytes:,} more, which the GPU's block has not ({error}). "
                    "Use fewer or smaller __shared__ arrays."
                ) from None
            self._shared_bytes[signature.name] = shape.shared_bytes
        return self._driver.prepare(function, signature, tuple(arguments), shape)


_drivers: dict[tuple[int, str], Driver] = {}


def _driver(index: int, name: str) -> Driver:
    """One driver, and so one stream, a GPU and process."""
    if name == "auto":
        name = "pycuda" if PyCudaDriver.is_installed() and PyCudaDriver.import_error() is None else "bindings"
    kinds = {"pycuda": PyCudaDriver, "bindings": BindingsDriver}
    if name not in kinds:
        raise BackendError(f"unknown driver '{name}'. Choose auto, pycuda or bindings.")
    if (index, name) not in _drivers:
        _drivers[index, name] = kinds[name](index)
    return _drivers[index, name]


def arch_of(major: int, minor: int) -> str:
    """What to compile for: with the instructions that only Hopper has, where that is the GPU."""
    return "sm_90a" if (major, minor) == (9, 0) else f"sm_{major}{minor}"


def compile_to_cubin(
    source: Source, arch: str, compiler: str = "auto", debug: bool = False, beside: bool = False
) -> bytes:
    """Machine code for `arch` ("sm_90"); from the cache if it was compiled before. Needs no GPU.

    Args:
        compiler: "nvrtc", "nvcc", or "auto" for the first of them that is here.
        beside: whether NVRTC works in a process of its own, as nvcc does.
    Raises:
        CompileError: the source is wrong.
        BackendError: the compiler is not here.
    """
    if compiler == "auto":
        compiler = "nvrtc" if _nvrtc() is not None else "nvcc"
    flags = [f"-arch={arch}", *_FLAGS, *(["-G"] if debug else []), *source.options]
    flags += [f"-I{folder}" for folder in source.all_include_folders()]
    run = _run_nvcc if compiler == "nvcc" else _run_nvrtc_beside if beside else _run_nvrtc
    version = _nvcc_version() if compiler == "nvcc" else _nvrtc_version()
    included = source.included_text()
    source = replace(source, path=source.path.replace('"', "'"))  # the assembler cannot read a quote in a path
    text = wait_first(source.text) if can_wait(arch) else source.text
    unit = f"{source.constants}\n{source.line_directive()}\n{text}"
    key = cache_key([compiler, version, *flags, unit, included])
    return read_entry(cached(key, ".cubin", lambda: run(source, unit, flags), source.path))


def _nvrtc():
    return nvrtc.load()


def _nvrtc_version() -> str:
    found = _nvrtc()
    if found is None:
        raise BackendError("NVRTC is not here. Install it with `pip install nvidia-cuda-nvrtc cuda-bindings`.")
    _, major, minor = found.nvrtcVersion()
    return f"nvrtc {major}.{minor}"


def _run_nvrtc(source: Source, unit: str, flags: list[str]) -> bytes:
    try:
        cubin, log = nvrtc.compile_unit(_nvrtc(), unit, source.path, flags)
    except RuntimeError as error:
        raise BackendError(f"NVRTC failed on {source.path}: {error}.") from None
    if cubin is None:
        raise CompileError(_read_diagnostics(log, source))
    return cubin


def _run_nvrtc_beside(source: Source, unit: str, flags: list[str]) -> bytes:
    """In a process of its own, so that several work at once."""
    with work_folder() as folder:
        unit_path, cubin_path = folder / "kernel.cu", folder / "kernel.cubin"
        unit_path.write_text(unit)
        # -P: or Python would take the files beside the script for packages
        command = [sys.executable, "-P", nvrtc.__file__, str(unit_path), source.path, str(cubin_path), *flags]
        done = run_compiler(command, folder)
        if done.returncode == 0:
            return cubin_path.read_bytes()
    if done.returncode == nvrtc.REFUSED:
        raise CompileError(_read_diagnostics(done.stderr, source))
    return _run_nvrtc(source, unit, flags)  # here it may be found, or at least say what is wrong


def _nvcc() -> str | None:
    found = shutil.which("nvcc")
    return found or next((str(path) for path in [Path("/usr/local/cuda/bin/nvcc")] if path.is_file()), None)


def _nvcc_version() -> str:
    nvcc = _nvcc()
    if nvcc is None:
        raise BackendError(
            "no compiler for CUDA here: neither NVRTC nor nvcc. "
            "`pip install nvidia-cuda-nvrtc cuda-bindings` brings one, or put nvcc on the PATH."
        )
    return subprocess.run([nvcc, "--version"], capture_output=True, text=True, check=True).stdout


def _run_nvcc(source: Source, unit: str, flags: list[str]) -> bytes:
    with work_folder() as folder:
        unit_path, cubin_path = folder / "kernel.cu", folder / "kernel.cubin"
        unit_path.write_text(unit)
        command = [_nvcc(), "-cubin", *flags, str(unit_path), "-o", str(cubin_path)]
        done = run_compiler(command, folder)
        if done.returncode:
            check_room(done.stdout + done.stderr, source.path)
            raise CompileError(_read_diagnostics(done.stdout + done.stderr, source))
        return cubin_path.read_bytes()


_TOO_MUCH_SHARED = re.compile(
    r"Entry function '(\w+)' uses too much shared data \(0x([0-9a-f]+) bytes, 0x([0-9a-f]+) max\)"
)
_DIAGNOSTIC = re.compile(r"^(.+?)\((\d+)\): (?:catastrophic )?error(?: #[\w-]+)?: (.*)$")


def _read_diagnostics(log: str, source: Source) -> str:
    """The first errors of an NVRTC or nvcc log as `file:line:column: error`, source line and caret."""
    lines, shown = log.splitlines(), []
    for number, line in enumerate(lines):
        match = _DIAGNOSTIC.match(line)
        if not match:
            continue
        path, row, message = match.group(1), int(match.group(2)), match.group(3)
        after = lines[number + 1 : number + 6]
        caret = next((index for index, text in enumerate(after) if text.strip() == "^"), None)
        text, column = source.text, 1
        if caret is not None:
            # the log indents the source line; the file's own line tells by how much
            column = after[caret].index("^") + 1
            column -= len(WAIT) * after[caret - 1][:column].count(WAIT)  # which the user did not write
            own = text.splitlines()[row - 1] if path == source.path and row <= text.count("\n") + 1 else ""
            if own.strip():
                logged = after[caret - 1]
                column -= (len(logged) - len(logged.lstrip())) - (len(own) - len(own.lstrip()))
        elif path != source.path:
            text = ""
        if path != source.path and Path(path).is_file():
            text = Path(path).read_text()
        shown.append(show_source_line(message, path, row, max(column, 1), text))
        if len(shown) == 5:
            break
    if not shown and (match := _TOO_MUCH_SHARED.search(log)):
        shown.append(too_much_shared(source, match.group(1), int(match.group(2), 16), int(match.group(3), 16)))
    return "\n".join(shown) or f"{source.path}: the compiler failed:\n{log.replace(WAIT, '').strip()}"
