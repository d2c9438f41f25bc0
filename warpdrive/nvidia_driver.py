"""What NVIDIA's driver says of this machine, asked through its own library. Imports no torch."""

from __future__ import annotations

import ctypes
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

LIBRARY = "libcuda.so.1"

NO_DEVICE, STUB, OS_REFUSED, MISMATCH = 100, 34, 304, 803
"""CUresults of cuInit that have a cause of their own."""

_MAJOR, _MINOR, _COMPUTE_MODE = 75, 76, 20
PROHIBITED = 2


@dataclass(frozen=True)
class Gpu:
    """`capability` is (9, 0) for sm_90; `compute_mode` 2 lets nobody use it."""

    name: str
    num_bytes: int
    capability: tuple[int, int]
    compute_mode: int = 0


@dataclass(frozen=True)
class NvidiaDriver:
    """The driver as it was found.

    error: None; or what cuInit returned; or, as text, why the library could not be loaded.
    cuda: the newest CUDA that it runs, such as (13, 0); None if unknown.
    version: its own, such as "580.65.06"; None if unknown.
    is_gpu_here: whether the machine has NVIDIA's hardware, with a driver or without.
    closed_files: of /dev/nvidia*, those that this user may not open.
    """

    error: int | str | None = None
    cuda: tuple[int, int] | None = None
    version: str | None = None
    gpus: tuple[Gpu, ...] = ()
    is_gpu_here: bool = False
    closed_files: tuple[str, ...] = ()


def find_driver(load: Callable[[str], Any] = ctypes.CDLL) -> NvidiaDriver:
    """Asks the driver, if there is one. Makes no context on any GPU."""
    here, closed, version = is_gpu_here(), closed_device_files(), kernel_module_version()
    try:
        library = load(LIBRARY)
    except OSError as error:
        return NvidiaDriver(str(error), version=version, is_gpu_here=here, closed_files=closed)
    number = ctypes.c_int()
    library.cuDriverGetVersion(ctypes.byref(number))
    cuda = (number.value // 1000, number.value % 1000 // 10) if number.value else None
    if error := library.cuInit(0):
        return NvidiaDriver(error, cuda, version, (), here, closed)
    library.cuDeviceGetCount(ctypes.byref(number))
    gpus = tuple(_gpu(library, index) for index in range(number.value))
    return NvidiaDriver(None, cuda, version, gpus, here or bool(gpus), closed)


def wake_first_gpu(load: Callable[[str], Any] = ctypes.CDLL) -> None:
    """Makes the context in which torch and launches share the first GPU, so that they need not wait for it. Whether
    that works they will find out themselves."""
    library, device, context = load(LIBRARY), ctypes.c_int(), ctypes.c_void_p()
    library.cuDeviceGet(ctypes.byref(device), 0)
    library.cuDevicePrimaryCtxRetain(ctypes.byref(context), device)


def _gpu(library: Any, index: int) -> Gpu:
    device, name, num_bytes = ctypes.c_int(), ctypes.create_string_buffer(256), ctypes.c_size_t()
    library.cuDeviceGet(ctypes.byref(device), index)
    library.cuDeviceGetName(name, len(name), device)
    library.cuDeviceTotalMem_v2(ctypes.byref(num_bytes), device)

    def attribute(which: int) -> int:
        value = ctypes.c_int()
        library.cuDeviceGetAttribute(ctypes.byref(value), which, device)
        return value.value

    capability = attribute(_MAJOR), attribute(_MINOR)
    return Gpu(name.value.decode(errors="replace"), num_bytes.value, capability, attribute(_COMPUTE_MODE))


def is_gpu_here(root: Path = Path("/")) -> bool:
    """Whether the machine has a display or compute device of NVIDIA's, be there a driver or none."""
    for device in (root / "sys/bus/pci/devices").glob("*"):
        try:
            vendor, kind = (device / "vendor").read_text().strip(), (device / "class").read_text().strip()
        except OSError:
            continue
        if vendor == "0x10de" and kind.startswith("0x03"):
            return True
    return False


def closed_device_files(root: Path = Path("/")) -> tuple[str, ...]:
    """Of the driver's device files, those that this user may not read and write."""
    files = sorted(path for path in (root / "dev").glob("nvidia*") if not path.is_dir())
    needed = [path for path in files if re.fullmatch(r"nvidia(\d+|ctl|-uvm)", path.name)]
    return tuple(str(path) for path in needed if not os.access(path, os.R_OK | os.W_OK))


def kernel_module_version(root: Path = Path("/")) -> str | None:
    """The version of the loaded kernel module, such as "580.65.06"."""
    try:
        text = (root / "proc/driver/nvidia/version").read_text()
    except OSError:
        return None
    found = re.search(r"Kernel Module[^\n]*?\s(\d+\.\d+(?:\.\d+)?)\s", text)
    return found.group(1) if found else None
