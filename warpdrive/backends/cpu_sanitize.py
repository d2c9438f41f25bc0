"""What a sanitized kernel needs around it: the sanitizer's library must be in Python before anything else."""

from __future__ import annotations

import ctypes
import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from warpdrive.backends.compiler_process import run_tool
from warpdrive.backends.cpu_compiler import Compiler, find_compiler
from warpdrive.errors import BackendError

_LIBRARIES = {"address": "asan", "thread": "tsan", "undefined": "ubsan_standalone"}
_SYMBOLS = {"address": "__asan_init", "thread": "__tsan_init", "undefined": "__ubsan_handle_add_overflow"}

_OPTIONS = {
    # Python and torch keep memory until they exit, which is no leak of a kernel.
    "address": ("ASAN_OPTIONS", "detect_leaks=0"),
    # Only kernels are watched: Python and torch are not built for it.
    "thread": ("TSAN_OPTIONS", "ignore_noninstrumented_modules=1:halt_on_error=1"),
    "undefined": ("UBSAN_OPTIONS", "halt_on_error=1:print_stacktrace=1"),
}


def sanitizer_environment(kinds: Sequence[str], compiler: str | None = None) -> dict[str, str]:
    """Environment variables for a Python process that launches kernels under these sanitizers."""
    found = find_compiler(compiler)
    environment = dict(_OPTIONS[kind] for kind in kinds)
    libraries = [str(_library(kind, found)) for kind in kinds if _must_be_preloaded(kind, found)]
    if libraries:
        # The sanitizer looks for libstdc++'s functions when it starts, so that comes in with it.
        environment["LD_PRELOAD"] = " ".join([*libraries, str(_file(found, "libstdc++.so.6"))])
    return environment


def require_preloaded(kinds: Sequence[str], compiler: Compiler) -> None:
    """Raises BackendError with the command to run if a sanitizer's library is not in this process."""
    process = ctypes.CDLL(None)
    for kind in kinds:
        if not _must_be_preloaded(kind, compiler) or hasattr(process, _SYMBOLS[kind]):
            continue
        name, value = _OPTIONS[kind]
        library = f"$({shlex.join(compiler.command)} -print-file-name={_file_name(kind, compiler)})"
        raise BackendError(
            f"the {kind} sanitizer must be loaded before Python. Run: LD_PRELOAD={library} {name}={value} "
            f"{shlex.join([Path(sys.executable).name, *sys.orig_argv[1:]])}"
        )


def _must_be_preloaded(kind: str, compiler: Compiler) -> bool:
    return kind != "undefined" or compiler.is_clang  # g++'s is an ordinary library that kernels load themselves


def _library(kind: str, compiler: Compiler) -> Path:
    path = _file(compiler, _file_name(kind, compiler))
    if not path.is_absolute():
        raise BackendError(
            f"'{shlex.join(compiler.command)}' has no {kind} sanitizer ({path}). "
            "Install it (Debian/Ubuntu: g++ brings it, for clang it is in libclang-rt-dev), "
            "or set CXX to a compiler that has it."
        )
    return path


def _file_name(kind: str, compiler: Compiler) -> str:
    if compiler.is_clang:
        return f"libclang_rt.{_LIBRARIES[kind]}-{os.uname().machine}.so"
    return f"lib{_LIBRARIES[kind]}.so"


def _file(compiler: Compiler, name: str) -> Path:
    return Path(run_tool([*compiler.command, f"-print-file-name={name}"]).stdout.strip())
