"""Adam that cannot ruin a policy, and whose launches a GPU can replay."""

from __future__ import annotations

import contextlib
import inspect
import math
from collections.abc import Callable, Iterator, Mapping, Sequence

import torch
from torch import nn

from trainers.learning.adam_kernels import AdamKernels, can_step
from trainers.learning.distributed import world
from trainers.learning.guard import Guard

_BARE_STEP = inspect.unwrap(torch.optim.Adam.step)
"""What torch wraps around it loads its compiler, as `_without_compiler` tells."""


class SafeAdam(torch.optim.Adam):
    """Adam that makes no step once the guard found a NaN, or the iteration is stopped.

    loss.backward()                        # as often as it takes
    figures = optimizer.reduce(figures)    # gradients and figures of all ranks
    norm = optimizer.safe_step()

    One launch steps all parameters; their step counts stay on the device.

    Args:
        module: whose parameters are watched, by name.
        groups: as torch's; `lr` is a tensor on the device.
        guard: watches the gradient.
        policy: the guard's name for it.
        max_norm: of the gradient; longer ones are shortened.
        beside: what the module is, such as "critics", if it is no policy but learns with one.
    """

    def __init__(
        self,
        module: nn.Module,
        groups: Sequence[Mapping],
        lr: torch.Tensor,
        guard: Guard,
        policy: str,
        max_norm: float,
        beside: str | None = None,
    ) -> None:
        with _without_compiler(torch.optim.Optimizer.add_param_group):
            super().__init__(groups, lr=lr, eps=1e-5, fused=True, capturable=lr.device.type == "cuda")
        self.module = module
        self.parameters = list(module.parameters())
        self.first = 0
        """The number of the first of its parameters among all that learn with the policy, as the guard has them."""
        if beside is not None:
            self.first = guard.also_watch(policy, [f"{beside}.{name}" for name, _ in module.named_parameters()])
        self.guard = guard
        self.policy = policy
        self.max_norm = max_norm
        self.world = world()
        self.stopped = torch.zeros(1, device=lr.device)
        """[1], not 0: no more steps in this iteration."""
        self.grad_scale = None
        self._warned_capturable_if_run_uncaptured = True  # it runs uncaptured first, and that is meant
        self.check = guard.prepare_gradient(policy, len(self.parameters), self.stopped, max_norm, self.first)
        self.found_inf = self.check.skip  # what Adam's kernel stops for
        self._kernels: AdamKernels | None = None
        """What makes its steps instead, from the first one on, where something does."""

    def begin(self) -> None:
        """An iteration begins: steps are made again."""
        self.stopped.zero_()
        for parameter in self.parameters:
            parameter.grad = None  # a graph that could not be made may have left some

    def stop_if(self, condition: torch.Tensor) -> None:
        """From here to the end of this iteration no step is made if `condition` holds, a bool."""
        torch.maximum(self.stopped, condition.to(self.stopped.dtype).view(1), out=self.stopped)

    def reduce(self, figures: torch.Tensor) -> torch.Tensor:
        """Sums gradients and figures [N] over all ranks, through one buffer; and all halt where one has to.

        Call it after the last `backward` of a step. Returns the figures.
        """
        if self.world.size == 1:
            return figures
        parameters = [p for p in self.parameters if p.grad is not None]
        *gradients, figures, halted = self.world.sum(*(p.grad for p in parameters), figures, self.guard.halted)
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = gradient
        self.guard.take_over(halted)
        return figures

    def safe_step(self) -> torch.Tensor:
        """One step along the gradients there are, which are then gone.

        Returns:
            The gradient's norm before it was shortened.
        """
        if self._kernels is None and can_step(self):
            self._kernels = AdamKernels(self, self.guard.rollout.env.backend)
        if self._kernels is not None and self._kernels.holds:
            self._kernels.step()
        else:
            self._step_by_torch()
        for group in self.param_groups:  # torch's zero_grad loads its compiler, too
            for parameter in group["params"]:
                parameter.grad = None
        return self.check.norm.clone()

    @torch.no_grad()
    def step(self) -> None:
        """Adam's own, whatever the gradients are."""
        _BARE_STEP(self)

    def _step_by_torch(self) -> None:
        check, gradients = self.check, [p.grad for p in self.parameters if p.grad is not None]
        norms, none = iter(torch._foreach_norm(gradients)), check.norm.new_zeros(())
        torch.stack([none if p.grad is None else next(norms) for p in self.parameters], out=check.norms)
        check.look()  # before a NaN of one makes all of them NaN
        if self.max_norm < math.inf:
            torch._foreach_mul_(gradients, check.scale)
        self.step()

    def tensors(self) -> dict[str, torch.Tensor]:
        """What it remembers, as "<parameter>/<what>"; zeros before its first step."""
        own = {id(parameter) for group in self.param_groups for parameter in group["params"]}
        found = {}
        for name, parameter in self.module.named_parameters():
            if id(parameter) in own:
                for key, value in self._remembered(parameter).items():
                    found[f"{name}/{key}"] = value
        return found

    def _remembered(self, parameter: nn.Parameter) -> dict[str, torch.Tensor]:
        state = self.state[parameter]
        if not state:  # as Adam itself makes it at its first step
            state["step"] = torch.zeros((), device=parameter.device)
            for name in ("exp_avg", "exp_avg_sq"):
                state[name] = torch.zeros_like(parameter, memory_format=torch.preserve_format)
        return state


@contextlib.contextmanager
def _without_compiler(function: Callable) -> Iterator[None]:
    """While it is entered, a function that torch hides from its compiler runs without that compiler being loaded, which
    takes one to three seconds of a run's start."""
    plain = getattr(function, "__wrapped__", None)
    if plain is None or hasattr(plain, "__dynamo_disable"):
        yield
        return
    plain.__dynamo_disable = plain
    try:
        yield
    finally:
        del plain.__dynamo_disable
