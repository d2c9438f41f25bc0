"""NVRTC in a process of its own, for all that is compiled beside what goes on: several sources at once, in threads.

Not in threads of this process: it could not end while they compile, as NVRTC cannot be interrupted and crashes where
what it uses is taken down.
"""

from __future__ import annotations

import contextlib
import itertools
import pickle
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future

from warpdrive.backends import nvrtc
from warpdrive.backends.compiler_process import environment


class NvrtcServer:
    """Starts its process with the first source that comes, and ends it once nothing is to come.

    server = NvrtcServer()
    with server.held():                               # more may come
        cubin, log = server.compile(unit, name, flags)    # from any thread
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._numbers = itertools.count()
        self._num_holders = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._asked: dict[int, Future[tuple[bytes | None, str]]] = {}
        """Of the process at hand, by number: what is not answered yet."""

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Where several sources come: the process stays for them."""
        with self._lock:
            self._num_holders += 1
        try:
            yield
        finally:
            with self._lock:
                self._num_holders -= 1
                self._end_if_idle()

    def compile(self, unit: str, name: str, flags: Sequence[str]) -> tuple[bytes | None, str]:
        """See nvrtc.compile_unit; waits for it.

        Raises:
            OSError: the process could not be started, or ended.
            RuntimeError: NVRTC itself failed.
        """
        future: Future[tuple[bytes | None, str]] = Future()
        with self._lock:
            if self._process is None:
                self._start()
            number = next(self._numbers)
            self._asked[number] = future
            try:
                pickle.dump((number, unit, name, list(flags)), self._process.stdin)
                self._process.stdin.flush()
            except OSError:
                self._asked.pop(number, None)
                raise
        return future.result()

    def _start(self) -> None:
        # -P: or Python would take the files beside the script for packages. Ctrl-C is for us, so it has a session.
        command = [sys.executable, "-P", nvrtc.__file__]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
        self._process = subprocess.Popen(command, **pipes, env=environment(), start_new_session=True)
        self._asked = {}
        read = threading.Thread(target=self._read, args=(self._process, self._asked), daemon=True, name="NVRTC answers")
        read.start()

    def _read(self, process: subprocess.Popen[bytes], asked: dict[int, Future[tuple[bytes | None, str]]]) -> None:
        """Hands answers out until the process ends."""
        with process:
            while True:
                try:
                    number, answer = pickle.load(process.stdout)
                except (EOFError, OSError, pickle.UnpicklingError):
                    break
                with self._lock:
                    future = asked.pop(number)
                    self._end_if_idle()
                if isinstance(answer, str):
                    future.set_exception(RuntimeError(answer))
                else:
                    future.set_result(answer)
            with self._lock:
                if self._process is process:
                    self._process = None
                left, ended = list(asked.values()), OSError("the process that compiles by NVRTC has ended")
                asked.clear()
            for future in left:
                future.set_exception(ended)
            with contextlib.suppress(OSError):
                process.stdin.close()

    def _end_if_idle(self) -> None:
        if self._process is not None and not self._num_holders and not self._asked:
            process, self._process = self._process, None
            with contextlib.suppress(OSError):  # it has ended by itself
                process.stdin.close()


SERVER = NvrtcServer()
"""Of this process."""
