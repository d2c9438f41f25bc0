"""Programmatic dependent launch: on Hopper and later, a kernel of a CUDA graph is launched while the one before ends.

Two parts, each useless without the other:

* every kernel begins by waiting until what the one before it wrote is seen (`wait_first`);
* in a recorded graph, a kernel is launched when the blocks of the one before it are done, not when what they wrote is
  seen, too (`launch_early`).

As each waits before it does anything else, what all before it wrote is seen as well. Launches outside of a graph are as
they were: there the wait is over at once. No kernel lets the next one be launched earlier still, while its own blocks
are at work (`griddepcontrol.launch_dependents`): blocks that wait are then crowded on the multiprocessors that were
free first, which costs large kernels more than small ones gain.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Container
from typing import Any

from warpdrive.nvidia_driver import LIBRARY
from warpdrive.signature import starts_of_bodies

WAIT = ' asm volatile("griddepcontrol.wait;" ::: "memory");'
"""What a kernel begins with, on the line of its brace, so that lines keep their numbers. NVRTC knows no `__asm__`."""

_KERNEL_NODE, _PROGRAMMATIC = 0, 1


class _Edge(ctypes.Structure):
    """CUgraphEdgeData."""

    _fields_ = [
        ("from_port", ctypes.c_ubyte),
        ("to_port", ctypes.c_ubyte),
        ("type", ctypes.c_ubyte),
        ("reserved", ctypes.c_ubyte * 5),
    ]


def can_wait(arch: str) -> bool:
    """Whether GPUs of `arch` ("sm_90a") have the instructions."""
    return int(arch.removeprefix("sm_").rstrip("af")) >= 90


def wait_first(text: str) -> str:
    """CUDA C whose kernels begin with WAIT."""
    for start in sorted(starts_of_bodies(text).values(), reverse=True):
        text = text[:start] + WAIT + text[start:]
    return text


def waiting_kernels(text: str) -> set[str]:
    """The names of those that `wait_first` finds."""
    return set(starts_of_bodies(text))


def launch_early(graph: int, kernels: Container[str], load: Callable[[str], Any] = ctypes.CDLL) -> int:
    """Lets kernels of these names, which wait, be launched as soon as the blocks of the kernel before them are done: in
    a graph that is not instantiated yet. What comes after several others stays as it is, all of it with an old driver.

    Args:
        graph: the handle of a CUgraph.
        kernels: names of kernels that begin with WAIT.
    Returns:
        How many are launched so.
    Raises:
        RuntimeError: the driver left an edge out: the graph must not be used.
    """
    library = load(LIBRARY)
    if not hasattr(library, "cuGraphAddDependencies_v2") or not hasattr(library, "cuFuncGetName"):
        return 0  # before CUDA 12.3
    handle, number = ctypes.c_void_p(graph), ctypes.c_size_t()
    if library.cuGraphGetEdges_v2(handle, None, None, None, ctypes.byref(number)):
        return 0
    nodes, edges = ctypes.c_void_p * number.value, (_Edge * number.value)()
    sources, targets = nodes(), nodes()
    if library.cuGraphGetEdges_v2(handle, sources, targets, edges, ctypes.byref(number)):
        return 0
    of_target: dict[int, list[int]] = {}
    for index, target in enumerate(targets):
        of_target.setdefault(target, []).append(index)
    num_early = 0
    for target, (index, *others) in of_target.items():
        is_whole = not (others or edges[index].type or edges[index].from_port)
        if is_whole and _kernel_of(library, target) in kernels and _is_kernel(library, sources[index]):
            num_early += _replace(library, handle, sources[index], target)
    return num_early


def _replace(library: Any, graph: ctypes.c_void_p, source: int, target: int) -> bool:
    """An edge by one that asks for less; whether the driver did."""
    pair = ctypes.byref(ctypes.c_void_p(source)), ctypes.byref(ctypes.c_void_p(target))
    early, one = ctypes.byref(_Edge(_PROGRAMMATIC, 0, _PROGRAMMATIC)), ctypes.c_size_t(1)
    if library.cuGraphRemoveDependencies_v2(graph, *pair, None, one):
        return False
    if not library.cuGraphAddDependencies_v2(graph, *pair, early, one):
        return True
    if error := library.cuGraphAddDependencies_v2(graph, *pair, None, one):
        raise RuntimeError(f"the driver took an edge of the graph away and did not put it back (error {error})")
    return False


def _is_kernel(library: Any, node: int) -> bool:
    kind = ctypes.c_int(-1)
    library.cuGraphNodeGetType(ctypes.c_void_p(node), ctypes.byref(kind))
    return kind.value == _KERNEL_NODE


def _kernel_of(library: Any, node: int) -> str | None:
    """Its name, if the node is a kernel."""
    if not _is_kernel(library, node):
        return None
    parameters, name = (ctypes.c_void_p * 16)(), ctypes.c_char_p()  # CUDA_KERNEL_NODE_PARAMS begins with the function
    if library.cuGraphKernelNodeGetParams_v2(ctypes.c_void_p(node), parameters) or not parameters[0]:
        return None
    if library.cuFuncGetName(ctypes.byref(name), ctypes.c_void_p(parameters[0])):
        return None
    return (name.value or b"").decode()
