"""Asks the host compiler for the doctor, without torch, so that it compiles while torch is imported."""

from __future__ import annotations

import ctypes
import re

from warpdrive.backends.base import Source
from warpdrive.backends.compiler_process import work_folder
from warpdrive.backends.cpu_compiler import Variant, compile_kernels, find_compiler
from warpdrive.cache import cache_folder
from warpdrive.errors import WarpDriveError
from warpdrive.findings import OK, PROBLEM, Finding

KERNEL = 'extern "C" __global__ void doctor_step(int* x)\n{\n    x[threadIdx.x] = threadIdx.x + 1;\n}\n'
_SOURCE = Source("doctor.cu", KERNEL, "", {})  # it is compiled and loaded; nothing here launches it


def check_host_compiler(can_keep: bool = True) -> Finding:
    """g++ or clang++, as the CPU backend would take it, and whether it builds a kernel that can be loaded.

    Args:
        can_keep: whether the cache takes files; else nothing is built.
    """
    fix = "Debian, Ubuntu: sudo apt install g++; Fedora: sudo dnf install gcc-c++; or set CXX"
    try:
        compiler = find_compiler()
        version = re.search(r'__VERSION__ "(.*)"', compiler.description)
        text = f"{' '.join(compiler.command)} {version.group(1) if version else ''}".strip()
        if can_keep:
            with work_folder(cache_folder()) as folder:
                library = folder / "kernels.so"
                library.write_bytes(compile_kernels(compiler, _SOURCE, Variant()))
                ctypes.CDLL(str(library))
            text += ", builds kernels"
    except WarpDriveError as error:
        text = re.sub(r"[:.] Install g\+\+.*|: install g\+\+.*", "", " ".join(str(error).split()))
        return Finding("host compiler", PROBLEM, f"{text}: the CPU backend cannot compile kernels.", fix)
    except OSError as error:  # the library was built, but the system does not load it
        fix = "set WARPDRIVE_CACHE to a folder with room, on a disk that is not mounted noexec"
        return Finding("host compiler", PROBLEM, f"{text} builds a kernel that cannot be loaded ({error}).", fix)
    return Finding("host compiler", OK, text)
