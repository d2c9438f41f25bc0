"""Stops a run that meets a NaN or an infinity, before anything is learned from it; the host waits for nothing.

What is found is kept on the device: a flag that makes every later step of every optimiser do nothing, and the place.
The host reads both when it reports.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from trainers.errors import NonFiniteError
from trainers.rollout import Rollout
from warpdrive.function_manager import FunctionManager
from warpdrive.layout import GLOBAL_STATE

SOURCE = Path(__file__).parent / "kernels" / "finite.cu"
NOTHING_FOUND = np.iinfo(np.int32).max


@dataclass(frozen=True)
class _Place:
    """One tensor that is watched: `agents` of which policies its rows are."""

    tensor: str
    policy: str | None
    """None: of whichever policy the row's agent has."""
    first_agent: int
    num_agents: int
    """Rows are [step, env, agent]; 0: the rows are no steps, but parameters of the policy."""
    names: tuple[str, ...] = ()


class Guard:
    """Watches observations, rewards, losses and gradients of a run.

    guard.check_rollout()                 # after collect
    guard.check_loss("tagger", losses, index)
    guard.check_gradient("tagger")
    optimizer.found_inf = guard.halted    # a fused optimiser then skips its step
    guard.raise_if_halted(iteration)      # waits for the device

    Args:
        rollout: what is watched.
    """

    def __init__(self, rollout: Rollout) -> None:
        env = rollout.env
        self.rollout = rollout
        self.num_envs, self.num_agents = env.num_envs, env.num_agents
        self._functions = FunctionManager(
            rollout.data, SOURCE, num_envs=env.num_envs, num_agents=env.num_agents, backend=env.backend
        )
        self._places: list[_Place] = []
        for name in rollout.observations:
            if name == GLOBAL_STATE:
                self._places.append(_Place(name, None, 0, 1))
                continue
            array = env.layout.observations[name]
            first = next(
                (env.groups[group].agents.start for group, places in env.layout.observation.items()
                 if any(place.array == name for place in places.values())), 0,
            )  # fmt: skip
            self._places.append(
                _Place(name, None, 0 if array.num_agents == self.num_agents else first, array.num_agents)
            )
        self._places.append(_Place("reward", None, 0, self.num_agents))
        self._num_of_rollout = len(self._places)
        for name, group in rollout.groups.items():
            self._places.append(_Place("loss", name, group.agents.start, len(group.agents)))
            names = tuple(parameter for parameter, _ in group.policy.named_parameters())
            self._places.append(_Place("gradient", name, 0, 0, names))
        self.halted = torch.zeros(1, device=env.device)
        """[1] float32: 1 once anything was found."""
        self._first = torch.full((len(self._places),), NOTHING_FOUND, dtype=torch.int32, device=env.device)
        self._good_iterations = torch.zeros(1, device=env.device)
        """Iterations since the last report in which nothing was found; exact below 2^24."""
        self._searches = [
            self._prepare_search(place, i) for i, place in enumerate(self._places[: self._num_of_rollout])
        ]

    def check_rollout(self) -> None:
        """Looks at what the envs gave in this rollout: one pass over it, on the device."""
        for search in self._searches:
            search()
        self._latch()

    def check_loss(self, policy: str, losses: torch.Tensor, index: torch.Tensor) -> None:
        """Looks at the loss of each sample.

        Args:
            losses: [N].
            index: [N] rows of [T, E, agents of the policy], as in Samples.
        """
        rows = torch.where(torch.isfinite(losses.detach()), NOTHING_FOUND, index)
        self._keep("loss", policy, rows.min())

    def check_gradient(self, policy: str, parameters: list[torch.nn.Parameter], norm: torch.Tensor) -> None:
        """Looks at the gradient: at its norm, and where that is not finite, at each parameter's."""
        sums = torch.stack([p.grad.sum() if p.grad is not None else norm.new_zeros(()) for p in parameters])
        bad = ~torch.isfinite(sums)
        row = torch.where(bad.any(), bad.int().argmax(), torch.where(torch.isfinite(norm), NOTHING_FOUND, 0))
        self._keep("gradient", policy, row)

    def end_iteration(self) -> None:
        self._good_iterations += 1.0 - self.halted

    def raise_if_halted(self, iterations_since: int, iteration: int) -> None:
        """Waits for the device; to be called with a report.

        Args:
            iterations_since: iterations made since the last call.
            iteration: iterations made so far.
        Raises:
            NonFiniteError: names policy, tensor, env, agent and step.
        """
        halted, good, *first = torch.cat([self.halted, self._good_iterations, self._first.float()]).tolist()
        first = self._first.tolist() if halted else first
        self._good_iterations.zero_()
        if halted:
            failed = iteration - iterations_since + int(good)
            number = next(i for i, row in enumerate(first) if row != NOTHING_FOUND)
            raise NonFiniteError(self._describe(self._places[number], int(first[number]), failed))

    def _describe(self, place: _Place, row: int, iteration: int) -> str:
        when = f"iteration {iteration + 1}"
        if not place.num_agents:
            return (
                f"policy '{place.policy}': the gradient of '{place.names[row]}' became a NaN or an infinity in {when}. "
                "Lower its lr or max_grad_norm."
            )
        step, rest = divmod(row, self.num_envs * place.num_agents)
        env, agent = divmod(rest, place.num_agents)
        agent += place.first_agent
        policy = place.policy or next(
            (name for name, group in self.rollout.groups.items() if agent in group.agents), "none"
        )
        way_out = {
            "loss": "Lower its lr.",
            "reward": "Mend the env's kernel: python -m warpdrive.testing shows what it does.",
        }.get(place.tensor, "Mend the env's kernel: python -m warpdrive.testing shows what it does.")
        whose, where = f"policy '{policy}': ", f"env {env}, agent {agent}"
        if place.tensor == GLOBAL_STATE:  # it has no agent axis
            whose, where = "", f"env {env}"
        return (
            f"{whose}{place.tensor} is a NaN or an infinity at {where}, step {step} of "
            f"{when} (step {iteration * self.rollout.num_steps + step} of the run). {way_out}"
        )

    def _prepare_search(self, place: _Place, number: int) -> Callable[[], None]:
        values = self.rollout.data[place.tensor]
        if not values.is_floating_point():
            return lambda: None
        num_rows = values.shape[0] * values.shape[1] * place.num_agents
        return self._functions.prepare(
            "first_nonfinite",
            values=values,
            halted=self.halted,
            first=self._first[number : number + 1],
            num_rows=num_rows,
            width=values.numel() // num_rows,
        )

    def _keep(self, tensor: str, policy: str, row: torch.Tensor) -> None:
        number = next(i for i, one in enumerate(self._places) if (one.tensor, one.policy) == (tensor, policy))
        slot = self._first[number]
        slot.copy_(torch.where(self.halted[0] == 0, torch.minimum(slot, row.to(torch.int32)), slot))
        self._latch()

    def _latch(self) -> None:
        self.halted.copy_((self._first != NOTHING_FOUND).any().float().view(1))
