"""Several CUDA graphs as one, by the driver: chains of graphs side by side, which one launch starts."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

from warpdrive.errors import KernelError
from warpdrive.nvidia_driver import LIBRARY


class JoinedGraph:
    """Graphs that are launched as one: those of a chain one after the other, chains side by side.

    Args:
        chains: handles (`cudaGraph_t`) of captured graphs. They are copied: what becomes of them later is no matter.
    Raises:
        KernelError: the driver makes no graph of them.
    """

    def __init__(self, chains: Sequence[Sequence[int]]) -> None:
        self._driver = ctypes.CDLL(LIBRARY)
        self._graph, self._launchable = ctypes.c_void_p(), ctypes.c_void_p()
        self._call("cuGraphCreate", ctypes.byref(self._graph), 0)
        for chain in chains:
            before: ctypes.Array | None = None
            for handle in chain:
                node = ctypes.c_void_p()
                waits = before, ctypes.c_size_t(0 if before is None else 1)
                child = ctypes.c_void_p(handle)
                self._call("cuGraphAddChildGraphNode", ctypes.byref(node), self._graph, *waits, child)
                before = (ctypes.c_void_p * 1)(node)
        self._call("cuGraphInstantiateWithFlags", ctypes.byref(self._launchable), self._graph, ctypes.c_uint64(0))

    def launch(self, stream_handle: int) -> None:
        """Starts them on a stream (`CUstream`); what comes after on it waits for them all."""
        self._call("cuGraphLaunch", self._launchable, ctypes.c_void_p(stream_handle))

    def __del__(self) -> None:
        if self._launchable:
            self._driver.cuGraphExecDestroy(self._launchable)
        if self._graph:
            self._driver.cuGraphDestroy(self._graph)

    def _call(self, name: str, *arguments: Any) -> None:
        if result := getattr(self._driver, name)(*arguments):
            raise KernelError(f"{name} gave {result} (CUresult).")
