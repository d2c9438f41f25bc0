"""NVRTC compiles CUDA C to machine code, here or, in the process that this file is, too, beside what goes on.

The process imports little. It reads pickled requests, (number, unit, name, flags), from standard input and writes
answers, (number, what compile_unit returns), to standard output as they are ready; in place of the latter a text where
NVRTC failed. See nvrtc_server.py.
"""

from __future__ import annotations

import os
import pickle
import sys
import threading
from collections.abc import Sequence
from typing import Any


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


def main() -> None:
    """Answers requests, each in a thread of its own, until whoever asks has ended or wants no more."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # for what a compiler prints
    nvrtc, one_at_a_time = load(), threading.Lock()

    def answer(number: int, *asked: Any) -> None:
        try:
            found: Any = compile_unit(nvrtc, *asked)
        except Exception as error:
            found = str(error)
        with one_at_a_time:
            pickle.dump((number, found), answers)
            answers.flush()

    while True:
        try:
            request = pickle.load(sys.stdin.buffer)
        except EOFError:
            os._exit(0)  # at once: no thread is waited for, and nothing taken down beneath them
        threading.Thread(target=answer, args=request, daemon=True).start()


if __name__ == "__main__":
    main()
