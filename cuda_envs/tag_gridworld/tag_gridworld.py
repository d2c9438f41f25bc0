"""Grid-world Tag: taggers chase one runner on a grid.

Each step an agent stays or moves one cell; who would leave the grid stops at its edge and pays for it. The
episode terminates when a tagger stands on the runner's cell and is truncated after `episode_length` steps.

Source: the rules of WarpDrive's TagGridWorld (Lan et al. 2021, arXiv:2108.13976).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
from gymnasium import spaces

from warpdrive.config import Amount, Between, Steps
from warpdrive.drawing import Drawing, agent_circles, grid_lines, outline
from warpdrive.env import Env, Group

MAX_SEEN = 4_001
"""Agents of an env whose full observations fill 256 MiB."""


@dataclass(frozen=True)
class TagGridworldConfig:
    num_taggers: Annotated[int, Between(1, 8_000)] = 10
    """At least 1; there is one runner besides."""
    grid_length: Annotated[int, Between(1, 10_000)] = 10
    """A side has grid_length + 1 cells."""
    episode_length: Steps = 100
    """Steps."""
    starting_location_x: tuple[int, ...] | None = None
    """A cell an agent, taggers first; None: taggers in the middle, the runner in the corner."""
    starting_location_y: tuple[int, ...] | None = None
    wall_hit_penalty: Amount = 0.1
    """Taken from whoever tries to leave the grid."""
    tag_reward_for_tagger: Amount = 10.0
    """Paid to every tagger when one of them tags the runner."""
    tag_penalty_for_runner: Amount = 2.0
    """Taken from the runner when it is tagged."""
    step_cost_for_tagger: Amount = 0.01
    """Taken from each tagger, and paid to the runner, in a step without a tag."""
    use_full_observation: bool = True
    """All positions and types, of at most 4,001 agents; else an agent's own position and that of its opponent."""

    def problems(self) -> Iterator[tuple[str, str]]:
        num_agents = self.num_taggers + 1
        for name in ("starting_location_x", "starting_location_y"):
            cells = getattr(self, name)
            if cells is None:
                continue
            if len(cells) != num_agents:
                yield name, f"has {len(cells)} cells for {num_agents} agents. Give one an agent."
            elif outside := [cell for cell in cells if not 0 <= cell <= self.grid_length]:
                yield name, f"leaves the grid: cells are 0 to {self.grid_length}, got {outside[0]}."
        if self.use_full_observation and num_agents > MAX_SEEN:
            wanted = f"Set use_full_observation: false, or take at most {MAX_SEEN - 1:,}."
            yield "num_taggers", f"{num_agents:,} agents cannot each see all the others. {wanted}"


class TagGridworld(Env):
    """Agents 0 .. num_taggers - 1 are taggers, the last agent is the runner.

    Observation, full: [x of all][y of all][type of all][one-hot of self][time]; 4 N + 1 features.
    Partial: own x, own y, other x, other y, own type, time; "other" is the runner for a tagger, and the nearest
    tagger for the runner. Positions are in grid lengths, time in episode lengths, the type of the runner is 1.

    Actions: 0 stay, 1 x + 1, 2 x - 1, 3 y + 1, 4 y - 1.
    """

    Config = TagGridworldConfig
    config: TagGridworldConfig

    def __init__(self, config: TagGridworldConfig | None = None) -> None:
        super().__init__(config)
        config = self.config
        self.num_agents = config.num_taggers + 1
        self.episode_length = config.episode_length
        middle = (*[config.grid_length // 2] * config.num_taggers, 0)
        x, y = config.starting_location_x, config.starting_location_y
        self._start_x, self._start_y = (middle if given is None else tuple(given) for given in (x, y))
        self.num_features = 4 * self.num_agents + 1 if config.use_full_observation else 6
        seen = spaces.Box(0.0, 1.0, (self.num_features,), np.float32)
        moves = spaces.Discrete(5)
        self.groups = {
            "tagger": Group(range(config.num_taggers), seen, moves),
            "runner": Group(range(config.num_taggers, self.num_agents), seen, moves),
        }

    def arrays(self) -> dict[str, np.ndarray]:
        return {
            "x": np.array(self._start_x, np.int32),
            "y": np.array(self._start_y, np.int32),
            "time_step": np.zeros((), np.int32),
        }

    def drawing(self, episode: Mapping[str, np.ndarray]) -> Drawing:
        cells = self.config.grid_length + 1
        turn = np.linspace(0, 2 * np.pi, self.num_agents, endpoint=False)  # agents may share a cell: each has its side
        x, y = episode["x"] + 0.22 * np.cos(turn), episode["y"] + 0.22 * np.sin(turn)
        edges = (-0.5, -0.5, cells - 0.5, cells - 0.5)
        shapes = [grid_lines(cells, cells), outline(*edges, width=0.08), *agent_circles(self, x, y, 0.2)]
        return Drawing(shapes, bounds=(-0.8, -0.8, cells - 0.2, cells - 0.2))

    def constants(self) -> dict[str, Any]:
        config = self.config
        return {
            "GRID_LENGTH": config.grid_length,
            "EPISODE_LENGTH": config.episode_length,
            "START_X": self._start_x,
            "START_Y": self._start_y,
            "WALL_HIT_PENALTY": float(config.wall_hit_penalty),
            "TAG_REWARD_FOR_TAGGER": float(config.tag_reward_for_tagger),
            "TAG_PENALTY_FOR_RUNNER": float(config.tag_penalty_for_runner),
            "STEP_COST_FOR_TAGGER": float(config.step_cost_for_tagger),
            "USE_FULL_OBSERVATION": config.use_full_observation,
            "NUM_FEATURES": self.num_features,
        }
