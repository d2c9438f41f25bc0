"""Networks that follow others, such as target networks: a step of all their parameters in one launch."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from trainers.learning.adam_kernels import THREADS, pieces_of
from warpdrive.backends.base import Backend, LaunchShape
from warpdrive.function_manager import FunctionManager

SOURCE = Path(__file__).parent / "follow.cu"

Followers = Sequence[tuple[torch.nn.Module, torch.nn.Module]]
"""Who follows, and whom."""


class Following:
    """Steps of `tau` of the way. On a GPU and in float32 by follow.cu, else by torch, which gives each tensor 64 blocks
    at most.

    Args:
        tau: 0 to 1; 1 copies.
    """

    def __init__(self, tau: float, backend: Backend) -> None:
        self._tau, self._backend = tau, backend
        self._addresses: tuple[list[int], list[int]] | None = None

    def step(self, followers: Followers) -> None:
        """Of modules that have the same parameters each."""
        targets = [one for target, _ in followers for one in target.parameters()]
        followed = [one for _, network in followers for one in network.parameters()]
        if self._backend.name == "cuda" and self._is_ready(targets, followed):
            self._step()
            return
        with torch.no_grad():
            torch._foreach_lerp_(targets, followed, self._tau)

    def _is_ready(self, targets: list[torch.nn.Parameter], followed: list[torch.nn.Parameter]) -> bool:
        """Whether there is a launch for these parameters, where they are now."""
        addresses = tuple([one.data_ptr() for one in ones] for ones in (targets, followed))
        if addresses == self._addresses:
            return True
        if any(one.dtype != torch.float32 or not one.is_contiguous() for one in (*targets, *followed)):
            return False
        if torch.cuda.is_current_stream_capturing():  # nothing of a graph's own memory is kept
            return False
        pieces, device = list(pieces_of(targets)), self._backend.device
        functions = FunctionManager(None, SOURCE, {}, backend=self._backend)
        self._step = functions.prepare(
            "follow",
            LaunchShape(len(pieces), (THREADS, 1)),
            targets=torch.tensor(addresses[0], device=device),
            followed=torch.tensor(addresses[1], device=device),
            pieces=torch.tensor(pieces, device=device).flatten(),
            num_pieces=len(pieces),
            tau=self._tau,
        )
        self._addresses = addresses
        return True
