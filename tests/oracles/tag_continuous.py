"""Continuous Tag in plain numpy: the rules that every other implementation is compared with.

Taggers chase runners over a square. Every function works on all envs at once. Nothing here is random and nothing
resets: a caller draws the start, and starts ended envs again, itself. States and rewards are float32. Distances are
float64, from float32 positions, so that who is near and who is tagged is as good as exact; `margins` tells where
float32 distances could decide otherwise.
"""

import math
from functools import cached_property
from typing import Any

import numpy as np

State = dict[str, np.ndarray]
"""[E, N] float32: `x`, `y`, 0 to grid_length; `speed`, 0 to the agent's top speed; `direction`, radians, 0 is along x;
`acceleration`, added to the speed at each step until it changes. `active`: [E, N] bool, in the game.
`time_step`: [E] int32, steps since the start."""

TAGGER = 1

NUM_BLOCKS = 7
"""dx, dy, dv, da, dtheta, type and active, each with one feature per agent seen."""

NUM_RELATIVE_BLOCKS = 5
"""The blocks up to dtheta: differences from the observing agent."""

FULL_TURN = np.float32(2 * math.pi)


class TagContinuousParameters:
    """The env's config, and what follows from it."""

    def __init__(self, config: Any) -> None:
        self.config = config

    def __getattr__(self, name: str) -> Any:
        return getattr(self.config, name)

    @property
    def num_agents(self) -> int:
        """N: taggers and runners."""
        return self.num_taggers + self.num_runners

    @property
    def num_features(self) -> int:
        """F: length of one agent's observation."""
        num_others = self.num_agents - 1 if self.use_full_observation else self.num_other_agents_observed
        return NUM_BLOCKS * num_others + 1

    @cached_property
    def is_tagger(self) -> np.ndarray:
        """[N] bool."""
        if self.agent_types is None:
            return np.arange(self.num_agents) < self.num_taggers
        return np.array(self.agent_types) == TAGGER

    @cached_property
    def taggers(self) -> np.ndarray:
        """Ids of the taggers, ascending."""
        return np.flatnonzero(self.is_tagger)

    @cached_property
    def runners(self) -> np.ndarray:
        """Ids of the runners, ascending."""
        return np.flatnonzero(~self.is_tagger)

    @cached_property
    def top_speed(self) -> np.ndarray:
        """[N] float32."""
        skill = np.where(self.is_tagger, self.skill_level_tagger, self.skill_level_runner)
        return (self.max_speed * skill).astype(np.float32)

    @cached_property
    def acceleration_table(self) -> np.ndarray:
        """[num_acceleration_levels + 1] float32, what each action adds to the acceleration."""
        return _table(self.min_acceleration, self.max_acceleration, self.num_acceleration_levels)

    @cached_property
    def turn_table(self) -> np.ndarray:
        """[num_turn_levels + 1] float32, radians that each action adds to the direction."""
        return _table(self.min_turn, self.max_turn, self.num_turn_levels)


def observe(parameters: TagContinuousParameters, state: State, active: np.ndarray) -> np.ndarray:
    """What each agent sees of the state.

    Args:
        state: positions and speeds after the move. Its `active` is not read.
        active: [E, N] bool, in the game before anyone was tagged in this step.
    Returns:
        [E, N, F] float32, in blocks by feature, each with one number per other agent seen, then the time step divided
        by episode_length. The blocks are dx, dy, divided by the square's diagonal; dv, da, of speed and acceleration,
        divided by max_speed; dtheta, of direction, not wrapped, divided by a full turn; type, 1 for a tagger; active.
        Full: others are all by id. An agent out of the game sees only types and who is active.
        Partial: others are the num_other_agents_observed nearest in the game, nearest first, the lowest id on ties,
        with zeros for those missing. An agent out of the game sees zeros.
    """
    num_envs, num_agents = active.shape
    if parameters.use_full_observation:
        other = np.arange(num_agents - 1)
        other = other + (other >= np.arange(num_agents)[:, None])
        other = np.broadcast_to(other, (num_envs, *other.shape))
        known = np.ones((1, 1, 1), dtype=bool)
        related = active[:, :, None]
    else:
        other, distance_squared = _nearest_others(state, active, parameters.num_other_agents_observed)
        known = related = np.isfinite(distance_squared)
    index = other + num_agents * np.arange(num_envs)[:, None, None]
    diagonal = np.float32(math.sqrt(2) * parameters.grid_length)
    speed_scale = np.float32(parameters.max_speed + 1e-10)

    observation = np.zeros((num_envs, num_agents, parameters.num_features), dtype=np.float32)
    blocks = observation[:, :, :-1].reshape(num_envs, num_agents, NUM_BLOCKS, other.shape[2])
    scales = {"x": diagonal, "y": diagonal, "speed": speed_scale, "acceleration": speed_scale, "direction": FULL_TURN}
    for block, (name, scale) in enumerate(scales.items()):
        difference = np.take(state[name], index) - state[name][:, :, None]
        blocks[:, :, block] = np.where(related, difference / scale, np.float32(0))
    blocks[:, :, NUM_RELATIVE_BLOCKS] = known & parameters.is_tagger[other]
    blocks[:, :, NUM_RELATIVE_BLOCKS + 1] = known & np.take(active, index)
    time = state["time_step"].astype(np.float32) / np.float32(parameters.episode_length)
    observation[:, :, -1] = active * time[:, None]
    return observation


def move(parameters: TagContinuousParameters, state: State, action: np.ndarray) -> tuple[State, np.ndarray]:
    """The first half of a step: everyone moves, and nobody is tagged yet.

    Args:
        state: read, never written.
        action: [E, N, 2] int, indices into `acceleration_table` and `turn_table`. 0 changes nothing.
    Returns:
        The state after the move, and whether each agent hit an edge, [E, N] bool.
    """
    tables = (parameters.acceleration_table, parameters.turn_table)
    added, turn = (table[action[:, :, part]] for part, table in enumerate(tables))
    active = state["active"]

    acceleration = state["acceleration"] + added
    direction = np.mod(state["direction"] + turn, FULL_TURN)
    # A tiny negative angle plus a full turn rounds to a full turn.
    direction = np.where(direction < FULL_TURN, direction, np.float32(0)) * active
    speed = np.clip(state["speed"] + acceleration, np.float32(0), parameters.top_speed) * active
    acceleration[(speed <= 0) | (speed >= parameters.top_speed)] = 0

    wanted_x = state["x"] + speed * np.cos(direction)
    wanted_y = state["y"] + speed * np.sin(direction)
    grid_length = np.float32(parameters.grid_length)
    x = np.clip(wanted_x, np.float32(0), grid_length)
    y = np.clip(wanted_y, np.float32(0), grid_length)
    moved = {
        "x": x, "y": y, "speed": speed, "direction": direction, "acceleration": acceleration, "active": active.copy(),
        "time_step": state["time_step"] + np.int32(1),
    }  # fmt: skip
    return moved, (x != wanted_x) | (y != wanted_y)


def step(
    parameters: TagContinuousParameters, state: State, action: np.ndarray
) -> tuple[State, np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Moves every agent, as `move` does, observes, then tags.

    Returns:
        The new state; reward [E, N] float32; terminated [E] bool, no runner is left or time is up; truncated [E] bool,
        never; observation [E, N, F] float32 of everyone after the move, and in the game or not as before
        the tags, on an episode's last step too.
    """
    new_state, hit = move(parameters, state, action)
    active = new_state["active"]
    observation = observe(parameters, new_state, active)

    each_step = np.where(parameters.is_tagger, parameters.step_penalty_for_tagger, parameters.step_reward_for_runner)
    reward = active * (np.float32(parameters.edge_hit_penalty) * hit + each_step.astype(np.float32))

    runners = parameters.runners
    num_envs, num_agents = active.shape
    distance_squared = _tagger_distance_squared(parameters, new_state)
    nearest = parameters.taggers[np.argmin(distance_squared, axis=2)]  # the first of equals, so the lowest id
    near = np.sqrt(distance_squared.min(axis=2)) < parameters.tagging_distance * parameters.grid_length
    tagged = active[:, runners] & near
    tagged_by = (nearest + num_agents * np.arange(num_envs)[:, None])[tagged]
    num_tagged = np.bincount(tagged_by, minlength=num_envs * num_agents).reshape(num_envs, num_agents)
    reward += np.float32(parameters.tag_reward_for_tagger) * num_tagged.astype(np.float32)
    reward[:, runners] += np.float32(parameters.tag_penalty_for_runner) * tagged

    still_active = active[:, runners]
    if parameters.runner_exits_game_after_tagged:
        still_active = still_active & ~tagged
    new_state["active"] = active.copy()
    new_state["active"][:, runners] = still_active
    last = new_state["time_step"] == parameters.episode_length
    reward[:, runners] += np.float32(parameters.end_of_game_reward_for_runner) * (last[:, None] & still_active)

    terminated = ~still_active.any(axis=1) | (new_state["time_step"] >= parameters.episode_length)
    return new_state, reward, terminated, np.zeros_like(terminated), observation


def margins(parameters: TagContinuousParameters, state_after_move: State) -> tuple[np.ndarray, np.ndarray]:
    """How close the decisions of a step were, [E, N] float64, infinite where there is nothing to decide.

    Args:
        state_after_move: what `move` returns, so with everyone still in the game who is tagged in this step.
    Returns:
        Of a runner's distance to its nearest tagger, from that at which it is tagged, and from that to its second.
    """
    active = state_after_move["active"]
    runners = parameters.runners
    distance = np.sort(np.sqrt(_tagger_distance_squared(parameters, state_after_move)), axis=2)
    runner_active = active[:, runners]
    threshold = np.full(active.shape, np.inf)
    to_threshold = np.abs(distance[:, :, 0] - parameters.tagging_distance * parameters.grid_length)
    threshold[:, runners] = np.where(runner_active, to_threshold, np.inf)
    second_tagger = np.full(active.shape, np.inf)
    if parameters.num_taggers > 1:
        second_tagger[:, runners] = np.where(runner_active, distance[:, :, 1] - distance[:, :, 0], np.inf)
    return threshold, second_tagger


def _table(lowest: float, highest: float, num_levels: int) -> np.ndarray:
    """Nothing, then `num_levels` values evenly from `lowest` to `highest`."""
    return np.concatenate([[0.0], np.linspace(lowest, highest, num_levels)]).astype(np.float32)


def _nearest_others(state: State, active: np.ndarray, num_nearest: int) -> tuple[np.ndarray, np.ndarray]:
    """The nearest other agents in the game, nearest first, the lowest id on ties.

    Returns:
        Ids, [E, N, num_nearest] int64, and squared distances, [E, N, num_nearest] float64: infinite where there is no
        such agent, and for an agent that is itself out of the game.
    """
    num_envs, num_agents = active.shape
    x, y = state["x"].astype(np.float64), state["y"].astype(np.float64)
    distance_squared = x[:, :, None] - x[:, None, :]
    distance_squared *= distance_squared
    gap_y = y[:, :, None] - y[:, None, :]
    gap_y *= gap_y
    distance_squared += gap_y
    both_active = active[:, :, None] & active[:, None, :]
    both_active[:, np.arange(num_agents), np.arange(num_agents)] = False
    distance_squared[~both_active] = np.inf

    row = np.arange(num_envs * num_agents)
    remaining = distance_squared.reshape(-1, num_agents)
    other = np.zeros((len(row), num_nearest), dtype=np.int64)
    nearest_squared = np.full((len(row), num_nearest), np.inf)
    for rank in range(num_nearest):
        nearest = np.argmin(remaining, axis=1)  # the first of equals, so the lowest id
        other[:, rank] = nearest
        nearest_squared[:, rank] = remaining[row, nearest]
        remaining[row, nearest] = np.inf
    shape = (num_envs, num_agents, num_nearest)
    return other.reshape(shape), nearest_squared.reshape(shape)


def _tagger_distance_squared(parameters: TagContinuousParameters, state: State) -> np.ndarray:
    """[E, num_runners, num_taggers] float64."""
    x, y = state["x"].astype(np.float64), state["y"].astype(np.float64)
    gap_x = x[:, parameters.runners, None] - x[:, None, parameters.taggers]
    gap_y = y[:, parameters.runners, None] - y[:, None, parameters.taggers]
    return gap_x**2 + gap_y**2
