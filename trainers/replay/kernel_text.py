"""Kernels whose text is written around the functions that they call, as their arrays are only known at run time."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path

import torch

from trainers.replay.records import in_one_run
from warpdrive.backends.base import Backend, LaunchShape
from warpdrive.errors import ConfigError
from warpdrive.function_manager import Constant, FunctionManager
from warpdrive.signature import CTYPES

HERE = Path(__file__).parent
MULTIPROCESSORS = 132
"""Of an H100 and an H200, for which shapes are chosen; any other number is right, too."""


class KernelText:
    """A kernel under way: an array is named, typed and wired in one place.

    text = KernelText("draw", ["gather.cuh"])
    text.line(f"const Drawable drawable = drawable_of({text.read('head', head)}[0]);")
    call = text.prepare(backend, shape, {"NUM_SLOTS": 100}, num_envs=8)
    """

    def __init__(self, name: str, includes: list[str]) -> None:
        self.name = name
        self.lines: list[str] = []
        self._includes = includes
        self._parameters: dict[str, str] = {}
        self._given: dict[str, torch.Tensor | int] = {}

    def read(self, name: str, tensor: torch.Tensor, as_bytes: bool = False) -> str:
        """A parameter that nothing in the kernel writes: reads of it wait for no write. Like one that is written, it
        begins with a ring's first number, be it in records or not; see `strides_of`. Raises ConfigError where another
        tensor has the name; those of fields are `of_field`'s."""
        return self._array(name, tensor, "const {}* __restrict__", as_bytes)

    def write(self, name: str, tensor: torch.Tensor, as_bytes: bool = False) -> str:
        """A parameter that is written."""
        return self._array(name, tensor, "{}*", as_bytes)

    def number(self, name: str, ctype: str, value: int) -> str:
        """A parameter that is a number."""
        self._parameters[name], self._given[name] = f"{ctype} {name}", value
        return name

    def line(self, text: str) -> None:
        self.lines.append(f"    {text}")

    def prepare(
        self,
        backend: Backend,
        shape: LaunchShape,
        constants: Mapping[str, Constant],
        num_envs: int,
    ) -> Callable[[], None]:
        """Compiles it and packs its launch."""
        includes = [f'#include "{one}"' for one in self._includes]
        bounds = f"__launch_bounds__({shape.block[0] * shape.block[1]})"  # so many must find registers
        head = f'extern "C" __global__ void {bounds} replay_{self.name}({", ".join(self._parameters.values())})'
        text = "\n".join([*includes, "", head, "{", *self.lines, "}", ""])
        functions = FunctionManager(
            None, text, constants, num_envs, backend=backend,
            include_folders=[HERE], name=f"<replay {self.name}>",
        )  # fmt: skip
        return functions.prepare(f"replay_{self.name}", shape, **self._given)

    def _array(self, name: str, tensor: torch.Tensor, pointer: str, as_bytes: bool) -> str:
        tensor = in_one_run(tensor)
        if as_bytes:
            tensor = tensor.flatten().view(torch.uint8)
        other = self._given.get(name, tensor)
        if not isinstance(other, torch.Tensor) or other.data_ptr() != tensor.data_ptr():
            raise ConfigError(f"kernel 'replay_{self.name}': two of its arrays are named '{name}'. Rename one.")
        self._parameters[name], self._given[name] = f"{pointer.format(CTYPES[tensor.dtype])} {name}", tensor
        return name


def of_field(name: str, kind: str = "") -> str:
    """What a kernel calls an array of a field, or what it makes of it: as nothing else there, whatever the name is."""
    return f"{kind}_field_{name}" if kind else f"field_{name}"


def launch_shape(
    backend: Backend, num_units: int, threads: int = 256, blocks: int = 16 * MULTIPROCESSORS
) -> LaunchShape:
    """For a kernel that loops over units from `global_thread()`."""
    if backend.name != "cuda":
        return LaunchShape(max(1, min(num_units, 4)))
    return LaunchShape(max(1, min(-(-num_units // threads), blocks)), (threads, 1))


def draw_shape(backend: Backend, num_threads: int) -> LaunchShape:
    """For a kernel whose blocks meet: few enough on a GPU to run at the same time, and one on a CPU, which may run them
    one after the other."""
    if backend.name != "cuda":
        return LaunchShape(1)
    threads = 64
    while threads < 512 and num_threads > MULTIPROCESSORS * threads:
        threads *= 2
    return LaunchShape(min(-(-num_threads // threads), 4 * MULTIPROCESSORS), (threads, 1))


def has_copy_engine(backend: Backend) -> bool:
    """Whether blocks may leave copies to an engine of its own (bulk.cuh): from compute capability 9.0 on."""
    found = re.match(r"sm_(\d+)", getattr(backend, "arch", ""))
    return found is not None and int(found[1]) >= 90
