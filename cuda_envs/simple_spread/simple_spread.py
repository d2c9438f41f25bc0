"""Simple Spread: agents on a plane share out landmarks among them without bumping into each other.

Episodes are truncated after `episode_length` steps; nothing terminates them. Agents and landmarks start anywhere in
the arena, -1 to 1 along each axis, at rest. Nothing keeps agents inside.

Source: Lowe et al. 2017, arXiv:1706.02275; the rules are those of mpe2 1.1.1.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np

from cuda_envs.mpe.mpe import ParticleEnv, seen_space
from warpdrive.config import Between, Fraction, Steps
from warpdrive.drawing import GREY, Drawing, agent_circles, circles, outline
from warpdrive.env import Group

RADIUS = 0.15
"""Of agents, as the kernel has it, for pictures."""


@dataclass(frozen=True)
class SimpleSpreadConfig:
    N: Annotated[int, Between(1, 500)] = 3
    """Agents, and as many landmarks."""
    episode_length: Steps = 25
    """Steps."""
    local_ratio: Fraction = 0.5
    """Weight of an agent's own collisions in its reward, 0 to 1; the rest is that of the shared distances."""
    continuous_actions: bool = False
    """How much of each of the five moves, 0 to 1, instead of one of them."""


class SimpleSpread(ParticleEnv):
    """One group, `agent`.

    Observation, 6 N features: own velocity, own position, each landmark from itself, each other agent from itself,
    two zeros for each other agent, which could talk in other envs of the family.

    Reward: minus the distance of each landmark to its nearest agent, summed over landmarks, weighed 1 - local_ratio;
    minus local_ratio for each agent that one overlaps.
    """

    Config = SimpleSpreadConfig
    config: SimpleSpreadConfig

    def __init__(self, config: SimpleSpreadConfig | None = None) -> None:
        super().__init__(config)
        config = self.config
        self.num_agents = config.N
        self.episode_length = config.episode_length
        self.groups = {"agent": Group(range(config.N), seen_space(6 * config.N), self.action_space)}

    def arrays(self) -> dict[str, np.ndarray]:
        return {
            "position": np.zeros((self.num_agents, 2), np.float32),
            "velocity": np.zeros((self.num_agents, 2), np.float32),
            "landmark_position": np.zeros((self.num_agents, 2), np.float32),
            "time_step": np.zeros((), np.int32),
        }

    def drawing(self, episode: Mapping[str, np.ndarray]) -> Drawing:
        x, y = np.moveaxis(episode["position"], -1, 0)
        landmark_x, landmark_y = np.moveaxis(episode["landmark_position"], -1, 0)
        landmarks = circles(landmark_x, landmark_y, 0.05, colour=GREY, label="landmark")
        return Drawing([outline(-1, -1, 1, 1), landmarks, *agent_circles(self, x, y, RADIUS)])

    def constants(self) -> dict[str, Any]:
        return {"EPISODE_LENGTH": self.config.episode_length, "LOCAL_RATIO": float(self.config.local_ratio)}
