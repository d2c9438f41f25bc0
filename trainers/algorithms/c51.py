"""C51: DQN that learns how likely each return is, by the probabilities of atoms between `v_min` and `v_max`.

Rainbow is C51 with `double`, `dueling`, `noisy`, `prioritized` and `n_step: 3` (examples/cartpole_rainbow.yaml).

Source: Bellemare et al. 2017, "A distributional perspective on reinforcement learning", arXiv:1707.06887; Hessel et al.
2018, "Rainbow", arXiv:1710.02298: priorities are what the loss is above its least.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from trainers import torch_later as torch
from trainers.algorithms.dqn import DQN, DQNConfig, best_actions
from trainers.algorithms.q_replay import Losses
from warpdrive.config import Between

if TYPE_CHECKING:  # a config is checked before torch is loaded
    from trainers.networks.policy import Policy
    from trainers.replay.of_group import Samples


@dataclass(frozen=True)
class C51Config(DQNConfig):
    """`policy.<name>:` with `algorithm: C51`."""

    num_atoms: Annotated[int, Between(2, 1000)] = 101
    """Returns that have a probability, from v_min to v_max."""
    v_min: float = -100.0
    """The lowest discounted return that can be told from lower ones."""
    v_max: float = 100.0
    """The highest."""
    huber_delta: None = None
    """Not read: probabilities are learned by their cross entropy."""

    def problems(self) -> Iterator[tuple[str, str]]:
        yield from super().problems()
        if self.v_min >= self.v_max:
            yield "v_min", f"{self.v_min:g} is not below v_max: {self.v_max:g}. Returns lie between them."


def projected(
    probability: torch.Tensor, reward: torch.Tensor, discount: torch.Tensor, support: torch.Tensor
) -> torch.Tensor:
    """The distribution of reward + discount * return on the atoms of `support`, [N, atoms].

    What falls between two atoms is shared by how near each is; what falls outside goes to the first or last. Each atom
    adds up what it gets, in the same order every time.

    Args:
        probability: [N, atoms] of the return after these steps.
        reward: [N], of the steps that count, added up. discount: [N], of what comes after; 0 where nothing does.
        support: [atoms], evenly apart.
    """
    moved = (reward.unsqueeze(-1) + discount.unsqueeze(-1) * support).clamp(support[0], support[-1])
    share = moved.unsqueeze(-2) - support.unsqueeze(-1)  # [N, atom, from]; large: all that follows is done in place
    share.abs_().div_(support[1] - support[0]).neg_().add_(1.0).clamp_min_(0.0)
    return share.mul_(probability.unsqueeze(-2)).sum(-1)


def c51_loss(log_probability: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """[N]: cross entropy of what should have been, relative to what was predicted; [N, atoms] each."""
    return -(target * log_probability).sum(-1)


def support_of(config: C51Config, like: torch.Tensor) -> torch.Tensor:
    """[atoms]: their returns."""
    return torch.linspace(config.v_min, config.v_max, config.num_atoms, dtype=like.dtype, device=like.device)


class C51(DQN):
    """DQN whose network gives each action the logits of atoms. Its Q-value is their mean."""

    FIGURES = {
        **DQN.FIGURES,
        "outermost": "probability of v_min and v_max together: where it is large, widen them",
    }

    @classmethod
    def num_atoms(cls, config: C51Config) -> int:
        return config.num_atoms

    @classmethod
    def outputs(cls, policy: Policy, found: Mapping[str, torch.Tensor]) -> torch.Tensor:
        logits = found["q"].unflatten(-1, (-1, policy.config.num_atoms))
        return (logits.softmax(-1) * support_of(policy.config, logits)).sum(-1)

    @classmethod
    def losses_of(
        cls, policy: Policy, target_policy: Policy, batch: Samples, config: C51Config, generator: torch.Generator
    ) -> Losses:
        logits = policy.heads(batch.observation)["q"].unflatten(-1, (-1, config.num_atoms))
        log_probability = logits[torch.arange(len(logits), device=logits.device), batch.action].log_softmax(-1)
        support = support_of(config, logits)
        with torch.no_grad():
            of_target = target_policy.heads(batch.next_observation)
            chooses = policy.heads(batch.next_observation) if config.double else of_target
            best = best_actions(cls.outputs(policy, chooses), batch.next_mask)
            after = of_target["q"].unflatten(-1, (-1, config.num_atoms))
            after = after[torch.arange(len(logits), device=logits.device), best].softmax(-1)
            target = projected(after, batch.reward, batch.discount, support)
        loss = c51_loss(log_probability, target)
        with torch.no_grad():
            probability = log_probability.exp()
            q, aim = ((one * support).sum(-1) for one in (probability, target))
            error = (loss + torch.special.xlogy(target, target).sum(-1)).clamp_min(0.0)
            return Losses(loss, q, aim, error, {"outermost": probability[:, 0] + probability[:, -1]})
