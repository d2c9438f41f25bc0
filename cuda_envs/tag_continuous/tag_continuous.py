"""Continuous Tag: taggers chase runners on a square without cells.

An agent steers by accelerating and turning. A runner that has a tagger within reach is tagged by the nearest
one, and leaves the game if the config says so. The episode terminates when no runner is left, or
after `episode_length` steps: that end pays the runners, and the observation holds the time.

Source: the rules of WarpDrive's TagContinuous (Lan et al. 2021, arXiv:2108.13976), without its lost tag rewards and
without its bonus for runners tagged in the very last step.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import numpy as np
from gymnasium import spaces

from warpdrive.config import Amount, Between, Fraction, PositiveAmount, Size, Steps
from warpdrive.drawing import Drawing, agent_circles, outline
from warpdrive.env import Env, Group

TAGGER, RUNNER = 1, 0
"""Codes of the types, as agents see them."""

TWO_PI = 2 * math.pi
MAX_SHARED_BYTES = 48 * 1024
MAX_CONSTANT_BYTES = 63 * 1024
"""What every GPU gives a block and a kernel, less what the compiler keeps for itself."""


@dataclass(frozen=True)
class TagContinuousConfig:
    num_taggers: Annotated[int, Between(1, 10_000)] = 1
    """At least 1."""
    num_runners: Annotated[int, Between(1, 10_000)] = 10
    """At least 1."""
    grid_length: PositiveAmount = 10.0
    """Side of the square."""
    episode_length: Steps = 100
    """Steps."""
    start: Literal["random", "fixed"] = "random"
    """random: a new start for every env and episode. fixed: the same one for all, drawn from `seed` or as given."""
    starting_location_x: tuple[Amount, ...] | None = None
    """With start: fixed, one an agent, 0 to grid_length; None: drawn."""
    starting_location_y: tuple[Amount, ...] | None = None
    starting_directions: tuple[Amount, ...] | None = None
    """With start: fixed, one an agent, radians from the x axis; None: drawn among the four along the axes."""
    agent_types: tuple[int, ...] | None = None
    """One an agent, 1 tagger, 0 runner; None: taggers first. If taggers are not first, all agents are one group."""
    seed: Size | None = None
    """Of a fixed start; None is 0."""
    max_speed: Annotated[float, Between(0, 1e6)] = 1.0
    """Length units a step, at skill 1."""
    skill_level_runner: Annotated[float, Between(0, 1e6)] = 1.0
    """Multiplies max_speed."""
    skill_level_tagger: Annotated[float, Between(0, 1e6)] = 1.0
    max_acceleration: Amount = 1.0
    """What the highest acceleration level adds to the acceleration."""
    min_acceleration: Amount = -1.0
    max_turn: Amount = math.pi / 2
    """Radians that the highest turn level adds to the direction."""
    min_turn: Amount = -math.pi / 2
    num_acceleration_levels: Annotated[int, Between(0, 10_000)] = 10
    """Actions besides "as before", evenly from min_acceleration to max_acceleration."""
    num_turn_levels: Annotated[int, Between(0, 10_000)] = 10
    """Actions besides "straight on", evenly from min_turn to max_turn."""
    edge_hit_penalty: Annotated[float, Between(-1e6, 0)] = 0.0
    """At most 0; added for whoever tries to leave the square."""
    use_full_observation: bool = True
    """All others; else the nearest that are in the game."""
    num_other_agents_observed: Annotated[int, Between(1, 10_000)] = 2
    """How many others a partial observation holds."""
    tagging_distance: Fraction = 0.01
    """How near a tagger must be, in grid lengths."""
    tag_reward_for_tagger: Annotated[float, Between(0, 1e6)] = 1.0
    """At least 0; for each runner tagged."""
    step_penalty_for_tagger: Annotated[float, Between(-1e6, 0)] = 0.0
    """At most 0; added in every step."""
    tag_penalty_for_runner: Annotated[float, Between(-1e6, 0)] = -1.0
    """At most 0; added when it is tagged."""
    step_reward_for_runner: Annotated[float, Between(0, 1e6)] = 0.0
    """At least 0; added in every step."""
    end_of_game_reward_for_runner: Annotated[float, Between(0, 1e6)] = 1.0
    """At least 0; for runners in the game after the last step."""
    runner_exits_game_after_tagged: bool = True
    """Whether a tagged runner is out of the game; else it can be tagged again."""

    @property
    def num_agents(self) -> int:
        return self.num_taggers + self.num_runners

    @property
    def types(self) -> tuple[int, ...]:
        """One an agent."""
        default = (TAGGER,) * self.num_taggers + (RUNNER,) * self.num_runners
        return default if self.agent_types is None else tuple(self.agent_types)

    @property
    def taggers_first(self) -> bool:
        return TAGGER not in self.types[self.num_taggers :]

    def problems(self) -> Iterator[tuple[str, str]]:
        others = self.num_agents - 1
        if not self.use_full_observation and self.num_other_agents_observed > others:
            got = f"got {self.num_other_agents_observed}"
            yield "num_other_agents_observed", f"must be from 1 to {others}, the number of others, {got}."
        yield from self._problems_per_agent()
        yield from self._problems_of_memory()

    def _problems_per_agent(self) -> Iterator[tuple[str, str]]:
        """What is given for each agent: as many as there are, and within bounds."""
        for name in ("starting_location_x", "starting_location_y", "starting_directions", "agent_types"):
            values = getattr(self, name)
            if values is None:
                continue
            if len(values) != self.num_agents:
                yield name, f"has {len(values)} values for {self.num_agents} agents. Give one an agent."
                continue
            if name.startswith("starting") and self.start != "fixed":
                yield name, f"is for start: fixed, but env.start is {self.start}. Set start: fixed."
            outside = [value for value in values if "location" in name and not 0 <= value <= self.grid_length]
            if outside:
                yield name, f"leaves the square: {outside[0]} is not from 0 to {self.grid_length}."
        types = sorted(self.types)
        if len(types) == self.num_agents and types != [RUNNER] * self.num_runners + [TAGGER] * self.num_taggers:
            wanted = f"{self.num_taggers} times 1 (num_taggers) and {self.num_runners} times 0 (num_runners)"
            yield "agent_types", f"must hold {wanted}, got {types.count(TAGGER)} and {types.count(RUNNER)}."

    def _problems_of_memory(self) -> Iterator[tuple[str, str]]:
        """More agents than a GPU's on-chip memory holds."""
        padded = -(-self.num_agents // 32) * 32
        shared = 8 * padded + 4 * self.num_taggers + (padded if self.use_full_observation else 0) + 64
        if shared > MAX_SHARED_BYTES:
            message = f"{self.num_agents} agents need {shared} bytes of shared memory, and a block has"
            way_out = "Take fewer agents: 4096 fit with use_full_observation: false."
            yield "", f"{message} {MAX_SHARED_BYTES}. {way_out}"
        constant = 4 * (self.num_acceleration_levels + self.num_turn_levels + 2)
        constant += 12 * self.num_agents if self.start == "fixed" else 0
        constant += 0 if self.taggers_first else 4 * (self.num_agents + self.num_taggers)
        if constant > MAX_CONSTANT_BYTES:
            message = f"levels, agent_types and a fixed start take {constant} bytes of constant memory, and a kernel"
            way_out = "Use start: random, put taggers first, or take fewer agents."
            yield "", f"{message} has {MAX_CONSTANT_BYTES}. {way_out}"


class TagContinuous(Env):
    """Agents 0 .. num_taggers - 1 are taggers, the others runners, unless `agent_types` says otherwise.

    Actions: [levels + 1, levels + 1], of acceleration and of turn; 0 changes nothing.

    Observation: for each of the others that an agent sees, [dx][dy][speed][acceleration][direction], all relative to
    its own, then [type][in the game], each block by other; then the time, in episode lengths. Positions are in
    diagonals of the square, speeds and accelerations in max_speed, directions in turns. Full: all others by id.
    Partial: the nearest in the game, nearest first, zeros where there are too few. Who has left the game sees zeros (if
    full, types and who is in the game still).
    """

    Config = TagContinuousConfig
    config: TagContinuousConfig

    def __init__(self, config: TagContinuousConfig | None = None) -> None:
        super().__init__(config)
        config = self.config
        self.num_agents = config.num_taggers + config.num_runners
        self.episode_length = config.episode_length
        self.agent_types = config.types
        self.taggers_first = config.taggers_first
        self.num_seen = self.num_agents - 1 if config.use_full_observation else config.num_other_agents_observed
        self.num_features = 7 * self.num_seen + 1
        self._start = self._fixed_start()

        skill = max(config.skill_level_tagger, config.skill_level_runner) * (1 + 1e-6)  # a little, for rounding
        bound = np.repeat([1.0, 1.0, skill, 2 * skill, 1.0, 1.0, 1.0], self.num_seen)
        bound = np.append(bound, 1.0).astype(np.float32)
        low = -bound
        low[5 * self.num_seen :] = 0.0
        seen = spaces.Box(low, bound, dtype=np.float32)
        moves = spaces.MultiDiscrete([config.num_acceleration_levels + 1, config.num_turn_levels + 1])
        if self.taggers_first:
            self.groups = {
                "tagger": Group(range(config.num_taggers), seen, moves),
                "runner": Group(range(config.num_taggers, self.num_agents), seen, moves),
            }
        else:
            self.groups = {"agent": Group(range(self.num_agents), seen, moves)}

    def arrays(self) -> dict[str, np.ndarray]:
        x, y, direction = (np.array(values, np.float32) for values in self._start)
        return {
            "x": x,
            "y": y,
            "speed": np.zeros(self.num_agents, np.float32),
            "acceleration": np.zeros(self.num_agents, np.float32),
            "direction": direction,
            "active": np.ones(self.num_agents, np.bool_),
            "num_runners_left": np.array(self.config.num_runners, np.int32),
            "time_step": np.zeros((), np.int32),
        }

    def drawing(self, episode: Mapping[str, np.ndarray]) -> Drawing:
        length = self.config.grid_length
        # Discs that touch are within reach, unless the reach is too short to see.
        radius = length * max(self.config.tagging_distance / 2, 0.16 / (8 + math.sqrt(self.num_agents)))
        agents = agent_circles(self, episode["x"], episode["y"], radius, episode["active"])
        margin = 0.03 * length
        bounds = (-margin, -margin, length + margin, length + margin)
        return Drawing([outline(0, 0, length, length, width=0.006 * length), *agents], bounds)

    def constants(self) -> dict[str, Any]:
        config, nothing = self.config, (0,)
        is_fixed, diagonal = config.start == "fixed", math.sqrt(2) * config.grid_length
        x, y, direction = self._start if is_fixed else (nothing,) * 3
        taggers = [agent for agent, kind in enumerate(self.agent_types) if kind == TAGGER]
        # Turns are taken modulo a turn here, so that the kernel needs no more than one addition to come back.
        turns = [math.fmod(turn, TWO_PI) for turn in _levels(config.min_turn, config.max_turn, config.num_turn_levels)]
        accelerations = _levels(config.min_acceleration, config.max_acceleration, config.num_acceleration_levels)
        return {
            "NUM_TAGGERS": config.num_taggers,
            "NUM_RUNNERS": config.num_runners,
            "TAGGERS_FIRST": self.taggers_first,
            "AGENT_TYPE": nothing if self.taggers_first else self.agent_types,
            "TAGGER_ID": nothing if self.taggers_first else taggers,
            "GRID_LENGTH": float(config.grid_length),
            "EPISODE_LENGTH": config.episode_length,
            "START_IS_FIXED": is_fixed,
            "START_X": tuple(map(float, x)),
            "START_Y": tuple(map(float, y)),
            "START_DIRECTION": tuple(map(float, direction)),
            "ACCELERATION": accelerations,
            "TURN": turns,
            "TOP_SPEED_OF_TAGGER": float(config.max_speed * config.skill_level_tagger),
            "TOP_SPEED_OF_RUNNER": float(config.max_speed * config.skill_level_runner),
            "USE_FULL_OBSERVATION": config.use_full_observation,
            "NUM_SEEN": self.num_seen,
            "NUM_FEATURES": self.num_features,
            "PER_DIAGONAL": 1 / diagonal,
            "PER_MAX_SPEED": 1 / (config.max_speed + 1e-10),
            "SQUARED_TAGGING_DISTANCE": float((config.tagging_distance * config.grid_length) ** 2),
            "EDGE_HIT_PENALTY": float(config.edge_hit_penalty),
            "TAG_REWARD_FOR_TAGGER": float(config.tag_reward_for_tagger),
            "STEP_PENALTY_FOR_TAGGER": float(config.step_penalty_for_tagger),
            "TAG_PENALTY_FOR_RUNNER": float(config.tag_penalty_for_runner),
            "STEP_REWARD_FOR_RUNNER": float(config.step_reward_for_runner),
            "END_OF_GAME_REWARD_FOR_RUNNER": float(config.end_of_game_reward_for_runner),
            "RUNNER_EXITS": config.runner_exits_game_after_tagged,
        }

    def _fixed_start(self) -> tuple[tuple[float, ...], ...]:
        """x, y and direction of each agent: as given, else drawn. The same draws whatever is given."""
        config = self.config
        random = np.random.default_rng(0 if config.seed is None else config.seed)
        drawn = [random.uniform(0, config.grid_length, self.num_agents) for _ in range(2)]
        drawn.append(random.integers(4, size=self.num_agents) * (math.pi / 2))
        given = (config.starting_location_x, config.starting_location_y, config.starting_directions)
        x, y, direction = (tuple(map(float, b if a is None else a)) for a, b in zip(given, drawn, strict=True))
        return x, y, tuple(_wrap(angle) for angle in direction)


def _levels(low: float, high: float, number: int) -> list[float]:
    """What each action of a head adds: nothing, then evenly from low to high."""
    return [0.0, *np.linspace(low, high, number).tolist()]


def _wrap(angle: float) -> float:
    """The same direction in [0, 2 pi), as float32 sees it."""
    wrapped = angle % TWO_PI
    return wrapped if np.float32(wrapped) < np.float32(TWO_PI) else 0.0
