"""Simple Tag: slow adversaries hunt faster agents among round obstacles.

Episodes are truncated after `episode_length` steps; nothing terminates them. Everyone starts anywhere in the arena,
-1 to 1 along each axis, at rest; obstacles keep to -0.9 to 0.9. Nothing keeps agents inside, but good ones pay for
leaving.

Source: Lowe et al. 2017, arXiv:1706.02275; the rules are those of mpe2 1.1.1.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np

from cuda_envs.mpe.mpe import ParticleEnv, seen_space
from warpdrive.config import Between, Steps
from warpdrive.drawing import GREY, Drawing, agent_circles, circles, outline
from warpdrive.env import Group

RADIUS = {"adversary": 0.075, "agent": 0.05}
OBSTACLE_RADIUS = 0.2
"""As the kernel has them, for pictures."""


@dataclass(frozen=True)
class SimpleTagConfig:
    num_good: Annotated[int, Between(1, 500)] = 1
    """Agents that are hunted."""
    num_adversaries: Annotated[int, Between(1, 500)] = 3
    """Agents that hunt."""
    num_obstacles: Annotated[int, Between(0, 500)] = 2
    """0 or more."""
    episode_length: Steps = 25
    """Steps."""
    continuous_actions: bool = False
    """How much of each of the five moves, 0 to 1, instead of one of them."""


class SimpleTag(ParticleEnv):
    """Two groups, `adversary` and then `agent`, the good ones.

    Observation: own velocity, own position, each obstacle from itself, each other agent from itself, velocities of
    the other good agents. An adversary sees two numbers more than a good agent, which is one of the good itself.

    Reward: 10 to every adversary for each good agent and adversary that overlap, whoever it is; a good agent pays 10
    for each adversary it overlaps, and up to 10 along each axis for being near the edge or outside.
    """

    Config = SimpleTagConfig
    config: SimpleTagConfig

    def __init__(self, config: SimpleTagConfig | None = None) -> None:
        super().__init__(config)
        config = self.config
        self.num_agents = config.num_adversaries + config.num_good
        self.episode_length = config.episode_length
        num_seen = 4 + 2 * config.num_obstacles + 2 * (self.num_agents - 1) + 2 * config.num_good
        self.groups = {
            "adversary": Group(range(config.num_adversaries), seen_space(num_seen), self.action_space),
            "agent": Group(range(config.num_adversaries, self.num_agents), seen_space(num_seen - 2), self.action_space),
        }

    def arrays(self) -> dict[str, np.ndarray]:
        return {
            "position": np.zeros((self.num_agents, 2), np.float32),
            "velocity": np.zeros((self.num_agents, 2), np.float32),
            "obstacle_position": np.zeros((self.config.num_obstacles, 2), np.float32),
            "time_step": np.zeros((), np.int32),
        }

    def drawing(self, episode: Mapping[str, np.ndarray]) -> Drawing:
        x, y = np.moveaxis(episode["position"], -1, 0)
        obstacle_x, obstacle_y = np.moveaxis(episode["obstacle_position"], -1, 0)
        obstacles = circles(obstacle_x, obstacle_y, OBSTACLE_RADIUS, colour=GREY, label="obstacle")
        return Drawing([outline(-1, -1, 1, 1), obstacles, *agent_circles(self, x, y, RADIUS)])

    def constants(self) -> dict[str, Any]:
        config = self.config
        return {
            "NUM_GOOD": config.num_good,
            "NUM_ADVERSARIES": config.num_adversaries,
            "NUM_OBSTACLES": config.num_obstacles,
            "EPISODE_LENGTH": config.episode_length,
        }
