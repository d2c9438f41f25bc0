"""Adam's memory in one piece, and its step by kernels that share out the largest tensor, too."""

from __future__ import annotations

import bisect
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from warpdrive.backends.base import Backend, LaunchShape
from warpdrive.function_manager import FunctionManager

if TYPE_CHECKING:
    from trainers.learning.optimiser import SafeAdam

SOURCE = Path(__file__).parent / "adam.cu"
PIECE, THREADS = 1024, 256
"""Numbers of a block, and its threads."""


class AdamMemory:
    """Averages, their squares and step counts of an optimiser's parameters: one piece of memory each, of which the
    optimiser has views from then on."""

    def __init__(self, optimizer: SafeAdam) -> None:
        parameters = optimizer.parameters
        new = parameters[0].new_zeros
        self.average, self.square = (new(sum(one.numel() for one in parameters)).detach() for _ in range(2))
        """[parameters], in the module's order."""
        self.steps = new(len(parameters)).detach()
        """[tensors], the same number in each."""
        optimizer.tensors()  # so that it has some
        start = 0
        for number, parameter in enumerate(parameters):
            state, here = optimizer.state[parameter], slice(start, start + parameter.numel())
            start = here.stop
            for name, memory in (("exp_avg", self.average), ("exp_avg_sq", self.square)):
                memory[here] = state[name].flatten()
                state[name] = memory[here].view_as(parameter)
            self.steps[number] = state["step"]
            state["step"] = self.steps[number]


class AdamKernels:
    """A step in three launches around the guard's look, in place of one of torch's for each matter, whose blocks have
    65,536 numbers each.

    Args:
        optimizer: all of its parameters are learned, in float32; their memory stays where it is.
    """

    def __init__(self, optimizer: SafeAdam, backend: Backend) -> None:
        parameters, check, self._optimizer = optimizer.parameters, optimizer.check, optimizer
        self.addresses = [one.data_ptr() for one in parameters]
        memory = AdamMemory(optimizer)
        device, pieces = backend.device, list(pieces_of(parameters))
        rate_of = {id(one): group["lr"] for group in optimizer.param_groups for one in group["params"]}
        self._gradient, self._rates = torch.zeros_like(memory.average), [rate_of[id(one)] for one in parameters]
        shared = {
            "gradient": self._gradient, "pieces": torch.tensor(pieces, device=device).flatten(),
            "num_pieces": len(pieces), "steps": memory.steps, "num_tensors": len(parameters),
            "now": torch.zeros(1, device=device),
        }  # fmt: skip
        threads = THREADS if backend.name == "cuda" else 32
        functions = FunctionManager(None, SOURCE, {}, backend=backend)
        shape = LaunchShape(len(pieces), (threads, 1))
        of_pieces = [tensor for tensor, *_ in pieces]
        starts = [bisect.bisect_left(of_pieces, tensor) for tensor in range(len(parameters) + 1)]
        self._measure = functions.prepare(
            "measure_gradient", shape, first_piece=torch.tensor(starts, dtype=torch.int32, device=device),
            squares=torch.zeros(len(pieces), device=device), norms=check.norms,
            ticket=torch.zeros(1, dtype=torch.int32, device=device), **shared,
        )  # fmt: skip
        (settings, *_) = optimizer.param_groups
        (beta1, beta2), new = settings["betas"], shared["now"].new_tensor
        self._step = functions.prepare(
            "adam_step", shape, addresses=new(self.addresses, dtype=torch.int64),
            rates=new([one.data_ptr() for one in self._rates], dtype=torch.int64), average=memory.average,
            square=memory.square, scale=check.scale.view(1), skip=check.skip.view(1), beta1=beta1, beta2=beta2,
            epsilon=settings["eps"], **shared,
        )  # fmt: skip

    @property
    def holds(self) -> bool:
        """Whether parameters are where they were, and all have a gradient."""
        parameters = self._optimizer.parameters
        is_there = all(one.grad is not None for one in parameters)
        return is_there and self.addresses == [one.data_ptr() for one in parameters]

    def step(self) -> None:
        torch.cat([one.grad.flatten() for one in self._optimizer.parameters], out=self._gradient)
        self._measure()
        self._optimizer.check.look()
        self._step()


def can_step(optimizer: SafeAdam) -> bool:
    """Whether kernels make an optimiser's steps: on a GPU, of plain Adam with a gradient of each parameter."""
    if not optimizer.stopped.is_cuda:
        return False
    groups, parameters = optimizer.param_groups, optimizer.parameters
    of_groups = {id(one) for group in groups for one in group["params"]}
    same = all(one[key] == groups[0][key] for one in groups for key in ("betas", "eps"))
    plain = all(not one[key] for one in groups for key in ("weight_decay", "amsgrad", "maximize"))
    all_here = of_groups == {id(one) for one in parameters} and all(one.grad is not None for one in parameters)
    is_float = all(one.dtype == torch.float32 and one.is_contiguous() for one in parameters)
    return same and plain and all_here and is_float and all(torch.is_tensor(one["lr"]) for one in groups)


def pieces_of(parameters: Sequence[torch.Tensor]) -> Iterator[tuple[int, int, int, int]]:
    """Tensor, first of its numbers, first of all, and how many; see adam.cu."""
    start = 0
    for tensor, parameter in enumerate(parameters):
        for first in range(0, parameter.numel(), PIECE):
            count = min(PIECE, parameter.numel() - first)
            yield tensor, first, start + first, count
        start += parameter.numel()
