"""What must hold of tensors before they are saved or taken over: the same on all ranks, and no NaN."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from trainers.learning.distributed import World
from trainers.run.tensor_file import sha256_of
from warpdrive.errors import CheckpointError

Tensors = Mapping[str, torch.Tensor]


def check_ranks_agree(files: Mapping[str, Tensors], world: World) -> None:
    """Raises CheckpointError, naming the file, if any rank has other parameters than the first."""
    if world.size == 1:
        return
    first, *others = world.gather({name: sha256_of(tensors) for name, tensors in files.items()})
    for rank, other in enumerate(others, 1):
        if differing := [name for name in first if other[name] != first[name]]:
            message = f"{differing[0]} is another one on rank {rank} than on rank 0, so nothing was saved."
            raise CheckpointError(f"{message} An algorithm must call `reduce` before each `step`.")


def check_finite(files: Mapping[str, Tensors], way_out: str) -> None:
    """Raises CheckpointError, naming file and tensor, if any number is a NaN or an infinity.

    One small tensor travels to the host, and nothing of a tensor's size is made.
    """
    named = [(file, name, tensor) for file, ones in files.items() for name, tensor in ones.items()]
    named = [one for one in named if one[2].is_floating_point() and one[2].numel()]
    if not named:
        return
    extremes = [torch.stack(_in_order(tensor.detach()).aminmax()).double() for _, _, tensor in named]  # NaNs spread
    are_finite = torch.stack(extremes).isfinite().all(-1).tolist()
    for (file, name, _), is_finite in zip(named, are_finite, strict=True):
        if not is_finite:
            raise CheckpointError(f"{file}: '{name}' holds a NaN or an infinity. {way_out}")


def _in_order(tensor: torch.Tensor) -> torch.Tensor:
    """A view whose axes are as they lie in memory: to look at all of its numbers takes no copy."""
    return tensor.permute(sorted(range(tensor.dim()), key=lambda axis: -tensor.stride(axis)))
