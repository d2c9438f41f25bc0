"""Errors of a run, besides the framework's own."""

from __future__ import annotations

import re
from typing import Any

from warpdrive.errors import CheckpointError, WarpDriveError


class RunFolderError(WarpDriveError):
    """The folder of a run cannot be made or written, or another process trains in it."""


class NotSavedError(RunFolderError):
    """A checkpoint could not be written. The older ones are as they were."""


class UnreadableError(CheckpointError):
    """A checkpoint, or a run's config, cannot be read now, and may be whole: nothing older is taken instead."""


class MisfitError(CheckpointError):
    """A checkpoint is of another run than the one that is to go on from it. No older one is taken instead."""


class NothingLeftError(MisfitError):
    """A run is to be shorter than it was trained already. Nothing is written."""


class MemoryShortError(WarpDriveError, MemoryError):
    """A run does not fit into the memory that there is."""


class CallbackError(WarpDriveError):
    """A callback failed, or gave what a run cannot take."""


class NonFiniteError(WarpDriveError):
    """A run met a NaN or an infinity, and learned nothing from it.

    `place` says where, for the crash dump: tensor, policy, env, agent, step (of the iteration), iteration (from 1).
    """

    def __init__(self, message: str, place: dict[str, Any] | None = None) -> None:
        super().__init__(message)
        self.place = place or {}


class PriorityError(WarpDriveError):
    """An item of a replay table was given a priority that is NaN or negative. It kept the one it had."""


def is_shortage(error: BaseException) -> bool:
    """Whether torch, numpy or Python found no memory, of the host or of a GPU."""
    if isinstance(error, MemoryError):
        return True
    return isinstance(error, RuntimeError) and bool(re.search(r"out of memory|can't allocate memory", str(error)))


_FAULTS = (
    "CUDA error",
    "failed on the GPU",
    "could not be launched",
    "STATUS_EXECUTION_FAILED",
    "STATUS_INTERNAL_ERROR",
)


def is_device_fault(error: Exception) -> bool:
    """Whether a GPU met an error after which it does nothing more for this process; too little memory is none."""
    kind = type(error)
    text = str(error)
    if "out of memory" in text or kind.__name__ == "OutOfMemoryError":
        return False
    is_cuda = kind.__name__ == "AcceleratorError" or kind.__module__.startswith("pycuda")
    return is_cuda or any(one in text for one in _FAULTS)


def describe_device_fault(error: Exception, last_good: str, checkpoint: str) -> str:
    """One line: what failed, the last step that is known to be good, the last checkpoint, and how to find the kernel.

    Args:
        last_good, checkpoint: as words.
    """
    first_line = (str(error).strip() or type(error).__name__).splitlines()[0]
    reason = first_line.removeprefix("CUDA error: ").removesuffix(" Run it on the CPU in debug mode.").rstrip(".")
    return (
        f"the GPU failed: {reason}. {last_good}; {checkpoint}. A GPU tells late and of no kernel in a CUDA graph: "
        "CUDA_LAUNCH_BLOCKING=1 with trainer.cuda_graphs=false names the kernel, and the env's kernels on the CPU in "
        "debug mode (python -m warpdrive.testing) name the line."
    )
