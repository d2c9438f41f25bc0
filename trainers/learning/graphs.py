"""CUDA graphs: what a call launches, recorded once and replayed as a whole, so that the host has no part in it."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from warpdrive.backends.base import Backend

WARM_UP = 2
"""Calls that run as they are first: libraries choose their algorithms and optimisers make their state."""


@contextmanager
def without_collection() -> Iterator[None]:
    """No garbage is collected: an earlier trainer's kernels, say, whose end would end the capture that goes on."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


class Graphed:
    """A call that runs as it is a few times, and from then on as one CUDA graph. On a CPU it always runs as it is.

    update = Graphed(algorithm.learn, backend)
    figures = update()

    The call must do the same launches each time, on memory that stays where it is; what changes between calls
    is read from the device. What it returns is the graph's memory: the next call overwrites it.

    Args:
        call: without arguments.
        generators: torch generators on the device that it may draw from. Those that it drew from while it warmed up get
            their place anew before each replay, by two launches; the others only if it cannot be captured without.
        say: is told, in a line, why the call could not be captured. It then goes on running as it is.
        is_enabled: false: never captured.
        warm_up: calls that run as they are first.
        beside: another call whose graph's memory this one may use, as the two never run at once and return nothing.
    """

    def __init__(
        self,
        call: Callable[[], Any],
        backend: Backend,
        generators: Sequence[torch.Generator] = (),
        say: Callable[[str], None] = print,
        is_enabled: bool = True,
        warm_up: int = WARM_UP,
        beside: Graphed | None = None,
    ) -> None:
        self.call = call
        self.backend = backend
        self.generators = generators
        self.say = say
        self.warm_up = warm_up
        self.beside = beside
        self._is_enabled = is_enabled and backend.name == "cuda"
        self.forget()

    def forget(self) -> None:
        """Starts anew: memory that the graph knows has been replaced."""
        self._num_calls = 0
        self._drawn_from: list[torch.Generator] = [] if self.warm_up else [*self.generators]
        self._graph: torch.cuda.CUDAGraph | None = None
        self._result: Any = None

    @property
    def is_captured(self) -> bool:
        return self._graph is not None

    def __call__(self) -> Any:
        if self._graph is None:
            self._num_calls += 1
            if not self._is_enabled:
                return self.call()
            if self._num_calls <= self.warm_up:
                return self._warm_up()
            if not self._capture():
                return self.call()
        self._graph.replay()
        return self._result

    def _warm_up(self) -> Any:
        before = [generator.get_state() for generator in self.generators]
        result = self.call()
        for generator, state in zip(self.generators, before, strict=True):
            if generator not in self._drawn_from and not torch.equal(generator.get_state(), state):
                self._drawn_from.append(generator)
        return result

    def _capture(self) -> bool:
        before = [(generator, generator.get_state()) for generator in self._drawn_from]
        try:
            pool = self.beside._graph.pool() if self.beside is not None and self.beside.is_captured else None
            with without_collection(), self.backend.capture(self._drawn_from, pool) as graph:
                self._result = self.call()
        except RuntimeError as error:  # the work was not done, only recorded: it is still to do
            torch.cuda.synchronize(self.backend.device)
            for generator, state in before:  # which still waits for the capture's end: as it was, without a graph
                fresh = torch.Generator(generator.device)
                fresh.set_state(state)
                generator.graphsafe_set_state(fresh.graphsafe_get_state())
            if len(self._drawn_from) < len(self.generators):  # it may draw from one that it left alone before
                self._drawn_from = [*self.generators]
                return self._capture()
            self._is_enabled = False
            reason = str(error).strip().splitlines()[0]
            self.say(f"warning: no CUDA graph could be made ({reason}): going on without, more slowly.")
            return False
        self._graph = graph
        return True


class SideBySide:
    """Makes calls that do not depend on each other: one after the other, or, once each replays its graph, at the same
    time, so that another fills the GPU while one waits or its last blocks are at work.

    Args:
        graphs: of each call, those that it may replay; calls share nothing that one of them writes.
        is_enabled: false: always one after the other.
    """

    def __init__(self, graphs: Sequence[Sequence[Graphed]], backend: Backend, is_enabled: bool = True) -> None:
        self.graphs = graphs
        self.backend = backend
        self.is_enabled = is_enabled and backend.name == "cuda" and len(graphs) > 1
        self._streams = [torch.cuda.Stream(backend.device) for _ in graphs[1:]] if self.is_enabled else []
        self._ended = [torch.cuda.Event() for _ in self._streams]
        self._begun = torch.cuda.Event() if self.is_enabled else None

    @property
    def is_at_once(self) -> bool:
        """Whether the next calls run at the same time."""
        return self.is_enabled and all(graph.is_captured for graphs in self.graphs for graph in graphs)

    def __call__(self, calls: Sequence[Callable[[], Any]]) -> list[Any]:
        """Makes them, each of which replays graphs at its place, and returns what they return."""
        if not self.is_at_once:
            return [call() for call in calls]
        # Another's than the backend's, where these calls are within one of several.
        ours = torch.cuda.current_stream(self.backend.device)
        streams = [*self._streams, ours]
        results: list[Any] = []
        self._begun.record(ours)
        try:
            for call, stream in zip(calls, streams, strict=True):
                if stream is not ours:
                    stream.wait_event(self._begun)
                torch.cuda.set_stream(stream)
                results.append(call())
        finally:  # after Ctrl-C, too: else what comes next would meet what is still at work
            torch.cuda.set_stream(ours)
            for stream, ended in zip(self._streams, self._ended, strict=True):
                ended.record(stream)
                ours.wait_event(ended)
        return results
