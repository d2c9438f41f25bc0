"""Other goals for what was drawn: as if what an episode came to later had been what it was to come to.

An env whose agents are told a goal observes a Dict with the keys `achieved_goal` and `desired_goal`, and has a kernel
`<env>_relabel`, which says what a step is worth under another goal (docs/write_an_env.md).

Source: Andrychowicz et al. 2017, "Hindsight experience replay", arXiv:1707.01495, section 4.5, strategy "future".
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from trainers.replay.goals import ACHIEVED, DESIRED
from trainers.replay.storage import TERMINATED, TRUNCATED
from warpdrive.backends.base import LaunchShape
from warpdrive.errors import ConfigError
from warpdrive.layout import parts

if TYPE_CHECKING:
    from trainers.experience.spec import GroupSpec
    from trainers.replay.batch import Batch
    from trainers.replay.table import Table
    from warpdrive.env_wrapper import EnvWrapper

KERNEL = "_relabel"
"""How the name of the env's kernel ends."""
THREADS = 128


class Hindsight:
    """Gives transitions of a batch, k of k + 1, a goal that their episode reached with the same step or later.

    What it draws from are the steps up to the end of the episode, or up to the newest that is kept; a step that
    terminated has no observation after it, so that it is none of these, and keeps its own goal.

    Args:
        table: of single agents' transitions of one step.
        batch: that its draws fill; observations, rewards and discounts of it are written.
        spec: of the agents. `why_no_goals` found nothing.
        number: k.
    Raises:
        ConfigError: the env has no kernel for it.
    """

    def __init__(
        self, table: Table, batch: Batch, env: EnvWrapper, spec: GroupSpec, number: int, generator: torch.Generator
    ) -> None:
        store = table.store
        self.batch, self.generator = batch, generator
        self.part, self.gamma, self.num_rows = number / (number + 1), table.window.gamma, table.num_rows
        self.num_agents, self.num_slots = store.layout.num_agents, store.layout.num_slots
        keys = list(parts(spec.observation_space))
        achieved, desired = (f"observation_{keys.index(one)}" for one in (ACHIEVED, DESIRED))
        self.done, self.head = store.tensors["done"], store.small["head"]
        self.reached, self.reached_last = store.tensors[achieved], store.small[f"side_{achieved}"]
        self.goals = [batch.observation[desired], batch.next_observation[desired]]
        self.ahead = torch.arange(min(spec.episode_length, self.num_slots), device=self.done.device)
        self.reward = torch.zeros_like(batch.reward)
        self.terminated = torch.zeros_like(batch.reward, dtype=torch.bool)
        kernel, size = f"{env.env.name}{KERNEL}", len(batch.index)
        if kernel not in env.functions.signatures:
            raise ConfigError(f"policy.{spec.name}.hindsight: {env.env.source} has no kernel '{kernel}'. Write one.")
        self.judge = env.functions.prepare(
            kernel,
            LaunchShape(-(-size // THREADS), (THREADS, 1)),
            achieved_goal=batch.next_observation[achieved],
            desired_goal=self.goals[1],
            num_rows=size,
            goal_reward=self.reward,
            goal_terminated=self.terminated,
        )

    def relabel(self) -> None:
        """After a draw."""
        batch = self.batch
        slot, row = batch.index // self.num_rows, batch.index % self.num_rows
        env, agent = row // self.num_agents, row % self.num_agents
        behind = (self.head[0] - 1 - slot) % self.num_slots  # steps that were kept after this one
        slots = (slot.unsqueeze(-1) + self.ahead) % self.num_slots
        codes = self.done[slots, env.unsqueeze(-1)].long()
        goes_on = (codes == 0).cumprod(-1)
        is_same = torch.cat([torch.ones_like(goes_on[:, :1]), goes_on[:, :-1]], -1).bool()
        number = (is_same & (codes != TERMINATED) & (self.ahead <= behind.unsqueeze(-1))).sum(-1)
        chance = torch.rand(2, len(slot), generator=self.generator, device=slot.device)
        which = (chance[0] * number).long().minimum((number - 1).clamp_min(0)).unsqueeze(-1)
        code, after = codes.gather(-1, which).squeeze(-1), (slots.gather(-1, which).squeeze(-1) + 1) % self.num_slots
        last = self.reached_last[(code - TRUNCATED).clamp_min(0), env, agent]
        goal = torch.where(_as(code >= TRUNCATED, last), last, self.reached[after, env, agent])
        is_other = (number > 0) & (chance[1] < self.part)
        for one in self.goals:
            one.copy_(torch.where(_as(is_other, goal), goal, one))
        self.judge()
        batch.reward.copy_(torch.where(is_other, self.reward, batch.reward))
        discount = self.gamma * (~self.terminated).to(batch.discount.dtype)
        batch.discount.copy_(torch.where(is_other, discount, batch.discount))


def _as(mask: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """[N] with as many axes as [N, ...]."""
    return mask.view(-1, *(1 for _ in like.shape[1:]))
