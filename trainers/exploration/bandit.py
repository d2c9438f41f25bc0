"""Bandits that choose by which arm an env plays its next episode.

Source: Puigdomènech Badia et al. 2020, "Agent57: outperforming the Atari human benchmark", arXiv:2003.13350, section
3.2 and appendix D: sliding-window UCB with epsilon-greedy exploration (Garivier and Moulines 2008, arXiv:0805.3415).
"""

from __future__ import annotations

import math

import torch

from trainers.acting.epsilon_greedy import NEVER
from trainers.exploration.episodic import LARGEST, MOST_STEPS
from warpdrive.backends.base import Backend
from warpdrive.data_manager import DataManager
from warpdrive.sampler import Sampler


class Bandits:
    """One of each env, that knows which arms its last `window` episodes were played by and what each returned.

    What they know are arrays of the envs, so that a checkpoint holds it: `arm` [E] int64, `arm_return` [E], of the
    episode so far, `arm_count` [E] int64, episodes so far, and of the last ones `arm_played` [E, window] int64 and
    `arm_returned` [E, window].

    Args:
        data: of the envs; draws depend on its `seed` and `env_step`, and on the env's number.
        prefix: of the arrays' names.
        arm: [E] int64, by which each env begins.
        num_arms: to choose from.
        num_agents: of an env, beside whose draws these are.
        epsilon: probability of an arm drawn from all.
        bonus: of an arm that was played once in the window; of one that was n times, over sqrt(n).
    """

    def __init__(
        self,
        data: DataManager,
        prefix: str,
        arm: torch.Tensor,
        num_arms: int,
        num_agents: int,
        window: int,
        epsilon: float,
        bonus: float,
        backend: Backend,
    ) -> None:
        num_envs, new = len(arm), {"device": arm.device}
        self.num_arms, self.epsilon, self.bonus = num_arms, epsilon, bonus
        self.arm = data.add(prefix, arm)
        self.returned_now = data.add(f"{prefix}_return", torch.zeros(num_envs, **new))
        self.count = data.add(f"{prefix}_count", torch.zeros(num_envs, dtype=torch.int64, **new))
        self.played = data.add(f"{prefix}_played", torch.zeros(num_envs, window, dtype=torch.int64, **new))
        self.returned = data.add(f"{prefix}_returned", torch.zeros(num_envs, window, **new))
        of_arms, of_returns = (0, num_arms - 1), (-LARGEST, LARGEST)
        self.bounds = {prefix: of_arms, f"{prefix}_played": of_arms, f"{prefix}_count": (0, MOST_STEPS)}
        self.bounds |= {f"{prefix}_{word}": of_returns for word in ("return", "returned")}
        self._slot = torch.arange(window, **new)
        self._number = torch.arange(num_arms, **new)
        self._logits = torch.zeros(num_envs, 1, num_arms, **new)
        self._chosen = torch.zeros(num_envs, 1, dtype=torch.int32, **new)
        unread = torch.zeros(2, num_envs, 1, **new)
        beside = range(num_agents, num_agents + 1)  # an agent's number that no agent draws by
        drawn_by = DataManager(arm.device)  # whose arrays alone the sampler's kernel is wired to
        for name in ("seed", "env_step"):
            drawn_by.add(name, data[name])
        sampler = Sampler(drawn_by, num_envs, beside, 1, (num_arms,), backend, first_column=0)
        self._draw = sampler.prepare(self._logits, self._chosen, unread[0], unread[1])

    @staticmethod
    def num_bytes(num_envs: int, window: int, num_arms: int) -> int:
        """Without `arm`."""
        return num_envs * (12 + 12 * window + 4 * num_arms + 12) + 8 * (window + num_arms)

    def step(self, reward: torch.Tensor, ended: torch.Tensor) -> None:
        """After a step of all envs: where an episode ended, it is known, and the next has an arm.

        Args:
            reward: [E]. ended: [E] bool.
        """
        self.returned_now += reward
        is_slot = ended.unsqueeze(-1) & (self._slot == (self.count % len(self._slot)).unsqueeze(-1))
        self.played.copy_(torch.where(is_slot, self.arm.unsqueeze(-1), self.played))
        self.returned.copy_(torch.where(is_slot, self.returned_now.unsqueeze(-1), self.returned))
        self.count += ended
        best = self.values().argmax(-1, keepdim=True) == self._number
        probability = self.epsilon / self.num_arms + (1.0 - self.epsilon) * best
        self._logits.copy_(probability.clamp_min(NEVER).log().unsqueeze(1))
        self._draw()
        self.arm.copy_(torch.where(ended, self._chosen[:, 0].long(), self.arm))
        self.returned_now.masked_fill_(ended, 0.0)

    def values(self) -> torch.Tensor:
        """[E, arms], what each arm is chosen by: its mean return in the window, and a bonus that falls with how often
        it was played there; an infinity where it was not."""
        is_known = self._slot < self.count.unsqueeze(-1)
        is_of = (self.played.unsqueeze(-1) == self._number) & is_known.unsqueeze(-1)
        number = is_of.sum(1)
        mean = (self.returned.unsqueeze(-1) * is_of).sum(1) / number.clamp_min(1)
        found = mean + self.bonus * number.clamp_min(1).float().rsqrt()
        return found.masked_fill(number == 0, math.inf)
