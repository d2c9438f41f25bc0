"""What torch computes in one piece: traced once, and compiled to kernels of its own by torch.compile."""

from __future__ import annotations

import functools
import os
import time
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch

from warpdrive.cache import cache_folder

OPTIONS = {"deterministic": True}
"""Of torch's compiler: nothing is chosen by how long it takes, so that the same run has the same bits."""

MAX_REASON = 300
"""Letters of what torch's compiler says of its failure: it goes on for pages."""


class Compiler:
    """Compiles functions when they are first called; what cannot be compiled goes on as it is.

    compiler = Compiler()
    loss_of = compiler(loss_of)
    loss_of(samples).backward()     # forward and backward are compiled
    compiler.tell()                 # ... in 12.3 s ...

    Args:
        say: is told of it in a line, and likewise of what could not be compiled, and why.
        takes_all: whether all that torch computes is to be compiled, or only what gains most.
    """

    def __init__(self, say: Callable[[str], None] = print, takes_all: bool = True) -> None:
        self.say = say
        self.takes_all = takes_all
        self.names: list[str] = []
        """Of what was compiled and not told yet."""
        self.begun = 0.0
        """Seconds that the process had compiled for before the first of them."""

    def __call__(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """A function of tensors, which reads all else that it needs as constants."""
        return Compiled(function, self)

    def tell(self) -> None:
        """Says what was compiled since it last did, and how long this process took for it."""
        if self.names:
            told, seconds = ", ".join(dict.fromkeys(self.names)), _Clock.started().seconds - self.begun
            self.say(f"torch.compile made kernels of {told} in {seconds:.1f} s; the next run finds most of them")
            self.names = []


class Compiled:
    """One of its functions; see Compiler."""

    def __init__(self, function: Callable[..., Any], compiler: Compiler) -> None:
        self.function = function
        self.compiler = compiler
        self._call: Callable[..., Any] | None = None

    def __call__(self, *given: Any) -> Any:
        if self._call is None:
            return self._first_call(given)
        return self._call(*given)

    def _first_call(self, given: Sequence[Any]) -> Any:
        # Others can foresee, and make, the folder that torch would take.
        os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(cache_folder() / "torch"))
        from torch._dynamo.exc import TorchDynamoException

        if not self.compiler.names:
            self.compiler.begun = _Clock.started().seconds
        name = self.function.__qualname__
        call = torch.compile(_of_its_own(self.function), fullgraph=True, dynamic=False, options=OPTIONS)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of how well the compiler could do
                found = call(*given)
        except TorchDynamoException as error:  # before anything was computed
            self._call = self.function
            reason = " ".join(str(error).replace("backend='inductor' raised:", "").split())[:MAX_REASON]
            self.compiler.say(f"torch.compile could not take {name} ({reason}): it goes on as it is, more slowly")
            return self.function(*given)
        self._call = call
        self.compiler.names.append(name)
        return found


def _of_its_own(function: Callable[..., Any]) -> Callable[..., Any]:
    """The same with code of its own: torch compiles the same code for eight different uses at most, and every policy of
    every run is another."""

    def call(*given: Any) -> Any:
        return function(*given)

    call.__code__ = call.__code__.replace()
    return call


class _Clock:
    """How long torch's compiler has been at work in this process, backward passes included."""

    def __init__(self) -> None:
        self.seconds, self._begun = 0.0, 0.0

    @staticmethod
    @functools.cache
    def started() -> _Clock:
        from torch._dynamo.callback import callback_handler

        clock = _Clock()
        callback_handler.register_start_callback(clock._begin)
        callback_handler.register_end_callback(clock._end)
        return clock

    def _begin(self, _: Any) -> None:
        self._begun = time.perf_counter()

    def _end(self, _: Any) -> None:
        self.seconds += time.perf_counter() - self._begun
