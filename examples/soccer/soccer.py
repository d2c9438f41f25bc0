"""Soccer: two teams, one ball. An env outside the framework: this file and soccer.cu are all of it."""

from dataclasses import dataclass
from typing import Annotated

import numpy as np
from gymnasium import spaces

from warpdrive.config import Between, PositiveAmount, Steps
from warpdrive.drawing import DARK, Drawing, agent_circles, circles, outline
from warpdrive.env import Env, Group


@dataclass(frozen=True)
class SoccerConfig:
    players_per_team: Annotated[int, Between(1, 1_000)] = 2
    episode_length: Steps = 100
    """Steps."""
    length: PositiveAmount = 12.0
    """Metres from goal line to goal line."""
    width: PositiveAmount = 6.0
    """Metres."""
    speed: PositiveAmount = 0.5
    """Metres a step."""
    kick: PositiveAmount = 3.0
    """Metres that a kicked ball flies."""
    kick_radius: PositiveAmount = 0.8
    """Metres within which a player reaches the ball."""


class Soccer(Env):
    """The left team attacks to the right. Everyone sees the field along its own line of attack."""

    Config = SoccerConfig

    def __init__(self, config=None):
        super().__init__(config)
        players = self.config.players_per_team
        self.num_agents, self.episode_length = 2 * players, self.config.episode_length
        self.num_features = 2 * (self.num_agents + 1)
        seen, moves = spaces.Box(-2.0, 2.0, (self.num_features,), np.float32), spaces.Discrete(5)
        self.groups = {
            "left": Group(range(players), seen, moves),
            "right": Group(range(players, 2 * players), seen, moves),
        }

    def arrays(self):
        field = np.zeros(self.num_agents + 1, np.float32)  # soccer_reset draws the starts
        return {"x": field, "y": field, "time_step": np.zeros((), np.int32)}

    def drawing(self, episode):
        x, y, (length, width) = episode["x"], episode["y"], (self.config.length, self.config.width)
        ball = circles(x[:, -1].clip(-0.5, length + 0.5), y[:, -1], 0.12, colour=DARK, label="ball", tail=True)
        shapes = [outline(0, 0, length, width), *agent_circles(self, x, y, 0.2), ball]
        return Drawing(shapes, bounds=(-1, -1, length + 1, width + 1))

    def constants(self):
        names = ("length", "width", "speed", "kick", "kick_radius")
        numbers = {name.upper(): getattr(self.config, name) for name in names}
        return {**numbers, "EPISODE_LENGTH": self.episode_length, "NUM_FEATURES": self.num_features}
