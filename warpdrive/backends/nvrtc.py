"""NVRTC compiles CUDA C to machine code, here or, as this file's own process, beside what goes on:

    python -P nvrtc.py UNIT NAME CUBIN FLAG ...

Exit code REFUSED: what is in UNIT is wrong, and standard error says why. The process imports little.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

REFUSED = 3


def load() -> Any:
    """cuda.bindings' nvrtc; None if it is not here."""
    try:
        from cuda.bindings import nvrtc

        nvrtc.nvrtcVersion()  # loads the library, which may be missing where the bindings are not
        return nvrtc
    except Exception:  # ImportError, or whatever a half-installed library raises
        return None


def compile_unit(nvrtc: Any, unit: str, name: str, flags: Sequence[str]) -> tuple[bytes | None, str]:
    """The cubin, or None and what the compiler says is wrong.

    Raises:
        RuntimeError: NVRTC itself failed.
    """

    def check(result, *values):
        if result != nvrtc.nvrtcResult.NVRTC_SUCCESS:
            raise RuntimeError(nvrtc.nvrtcGetErrorString(result)[1].decode())
        return values[0] if values else None

    program = check(*nvrtc.nvrtcCreateProgram(unit.encode(), name.encode(), 0, [], []))
    try:
        options = [flag.encode() for flag in flags]
        (result,) = nvrtc.nvrtcCompileProgram(program, len(options), options)
        if result != nvrtc.nvrtcResult.NVRTC_SUCCESS:
            log = b" " * check(*nvrtc.nvrtcGetProgramLogSize(program))
            check(*nvrtc.nvrtcGetProgramLog(program, log))
            return None, log.decode(errors="replace").rstrip("\0")
        cubin = b" " * check(*nvrtc.nvrtcGetCUBINSize(program))
        check(*nvrtc.nvrtcGetCUBIN(program, cubin))
        return cubin, ""
    finally:
        nvrtc.nvrtcDestroyProgram(program)


def main(unit: str, name: str, cubin: str, *flags: str) -> int:
    code, log = compile_unit(load(), Path(unit).read_text(), name, flags)
    if code is None:
        print(log, file=sys.stderr)
        return REFUSED
    Path(cubin).write_bytes(code)
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
