"""Networks that follow others, such as target networks: a step of all their parameters in one launch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from trainers.learning.adam_kernels import THREADS, pieces_of
from warpdrive.backends.base import Backend, LaunchShape
from warpdrive.function_manager import FunctionManager

SOURCE = Path(__file__).parent / "follow.cu"

Followers = Sequence[tuple[torch.nn.Module, torch.nn.Module]]
"""Who follows, and whom."""


class Following:
    """Steps of `tau` of the way. On a GPU and in float32 by follow.cu, else by torch, one pair after the other.

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
            for target, network in followers:
                torch._foreach_lerp_(list(target.parameters()), list(network.parameters()), self._tau)

    def _is_ready(self, targets: list[torch.nn.Parameter], followed: list[torch.nn.Parameter]) -> bool:
        """Whether there is a launch for these parameters, where they are now."""
        addresses = tuple([one.data_ptr() for one in ones] for ones in (targets, followed))
        if addresses == self._addresses:
            return True
        everyone = (*targets, *followed)
        if any(one.dtype != torch.float32 or not one.is_contiguous() or not one.is_cuda for one in everyone):
            return False
        if len({*addresses[0]} | {*addresses[1]}) < len({*addresses[1]}) + len(targets):
            return False  # who follows is followed, or follows twice: then one comes after the other
        if torch.cuda.is_current_stream_capturing():  # nothing of a graph's own memory is kept
            return False
        self._step, self._addresses = self.prepare(targets, followed), addresses
        return True

    def prepare(self, targets: Sequence[torch.Tensor], followed: Sequence[torch.Tensor]) -> Callable[[], None]:
        """The launch, for tensors of float32 that stay where they are."""
        pieces, device = list(pieces_of(targets)), self._backend.device
        functions = FunctionManager(None, SOURCE, {}, backend=self._backend)
        return functions.prepare(
            "follow",
            LaunchShape(len(pieces), (THREADS if self._backend.name == "cuda" else 32, 1)),
            targets=torch.tensor([one.data_ptr() for one in targets], device=device),
            followed=torch.tensor([one.data_ptr() for one in followed], device=device),
            pieces=torch.tensor(pieces, device=device).flatten(),
            num_pieces=len(pieces),
            tau=self._tau,
        )
