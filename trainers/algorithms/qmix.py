"""QMIX: VDN whose agents' values are mixed by a network that knows the state of the whole env.

The team's value rises with each agent's, more or less as the state asks for: what is best for an agent alone is then
best for the team, and what one agent's action is worth may depend on what the others do. The mixer is only there while
a policy learns, so it may see what no agent sees: the state that the env gives, or all observations side by side.

Source: Rashid et al. 2018, "QMIX: monotonic value function factorisation for deep multi-agent reinforcement learning",
arXiv:1803.11485; Hu et al. 2021, "Rethinking the implementation tricks and monotonicity constraint in cooperative
multi-agent reinforcement learning", arXiv:2102.03479, which takes Adam, as is done here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from trainers.algorithms.algorithm import State
from trainers.algorithms.vdn import VDN, VDNConfig
from warpdrive.config import Count

if TYPE_CHECKING:  # a config is checked before torch is loaded
    import torch
    from torch import nn

    from trainers.experience.spec import GroupSpec


@dataclass(frozen=True)
class QMIXConfig(VDNConfig):
    """`policy.<name>:` with `algorithm: QMIX`."""

    mixer_dim: Count = 32
    """Width of the mixer's hidden layer."""

    reads_state: ClassVar[bool] = True


class QMIX(VDN):
    """Updates one policy, of a team, and its mixer."""

    config: QMIXConfig

    @classmethod
    def make_mixer(cls, config: QMIXConfig, spec: GroupSpec, generator: torch.Generator | None) -> nn.Module:
        from trainers.networks.mixer import MonotoneMixer

        return MonotoneMixer(spec.num_agents, cls.team(config, spec).num_state, config.mixer_dim, generator)

    def state(self) -> State:
        return {**super().state(), "mixer": self.learned["mixer"].state_dict()}
