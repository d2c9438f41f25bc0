"""Grid-world Tag in plain numpy: the rules that every other implementation is compared with.

Taggers are agents 0 to N-2 and the one runner is agent N-1. Every function works on all envs at once. Nothing here
is random and nothing resets: a caller starts ended envs again itself.
"""

from typing import Any

import numpy as np

State = dict[str, np.ndarray]
"""`x`, `y`: [E, N] int32, cells, 0 to grid_length. `time_step`: [E] int32, steps since the start."""

MOVE_X = np.array([0, 1, -1, 0, 0], dtype=np.int32)
MOVE_Y = np.array([0, 0, 0, 1, -1], dtype=np.int32)

TAGGER = 0
RUNNER = 1


class TagGridworldParameters:
    """The env's config, and what follows from it."""

    def __init__(self, config: Any) -> None:
        self.config = config

    def __getattr__(self, name: str) -> Any:
        return getattr(self.config, name)

    @property
    def num_agents(self) -> int:
        """N: the taggers and the one runner."""
        return self.num_taggers + 1

    @property
    def num_features(self) -> int:
        """F: length of one agent's observation."""
        return 4 * self.num_agents + 1 if self.use_full_observation else 6


def start(parameters: TagGridworldParameters, num_envs: int) -> State:
    """State of `num_envs` envs at time step 0, all alike."""
    centre = [parameters.grid_length // 2] * parameters.num_taggers + [0]
    cells = {"x": parameters.starting_location_x or centre, "y": parameters.starting_location_y or centre}
    places = {name: np.tile(np.array(place, np.int32), (num_envs, 1)) for name, place in cells.items()}
    return {**places, "time_step": np.zeros(num_envs, dtype=np.int32)}


def observe(parameters: TagGridworldParameters, state: State) -> np.ndarray:
    """What each agent sees of the state.

    Returns:
        [E, N, F] float32. Coordinates are divided by grid_length, the time step by episode_length; a type is 0 for a
        tagger and 1 for the runner. F is
        full, 4N+1: x of all agents, y of all agents, type of all agents, one-hot of self, time step;
        partial, 6: own x, own y, other's x, other's y, own type, time step. The other is the runner for a tagger and
        the nearest tagger for the runner, the lowest id on ties.
    """
    if parameters.use_full_observation:
        return _observe_full(parameters, state)
    return _observe_partial(parameters, state)


def step(
    parameters: TagGridworldParameters, state: State, action: np.ndarray
) -> tuple[State, np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Moves every agent at once, then looks for a tag.

    Args:
        state: read, never written.
        action: [E, N] int. 0 stay, 1 x+1, 2 x-1, 3 y+1, 4 y-1.
    Returns:
        The new state; reward [E, N] float32; terminated [E] bool, a tag; truncated [E] bool, out of time without a
        tag; observation [E, N, F] float32 of the new state, on an episode's last step too.
    """
    wanted_x = state["x"] + MOVE_X[action]
    wanted_y = state["y"] + MOVE_Y[action]
    x = np.clip(wanted_x, 0, parameters.grid_length)
    y = np.clip(wanted_y, 0, parameters.grid_length)
    wall = (x != wanted_x) | (y != wanted_y)
    tag = ((x[:, :-1] == x[:, -1:]) & (y[:, :-1] == y[:, -1:])).any(axis=1)

    time_step = state["time_step"] + np.int32(1)
    terminated = tag
    truncated = ~tag & (time_step >= parameters.episode_length)

    tag_reward = np.float32(parameters.tag_reward_for_tagger)
    tag_penalty = np.float32(parameters.tag_penalty_for_runner)
    step_cost = np.float32(parameters.step_cost_for_tagger)
    reward = np.empty(x.shape, dtype=np.float32)
    reward[:, :-1] = np.where(tag, tag_reward, -step_cost)[:, None]
    reward[:, -1] = np.where(tag, -tag_penalty, step_cost)
    reward -= np.float32(parameters.wall_hit_penalty) * wall

    new_state = {"x": x, "y": y, "time_step": time_step}
    return new_state, reward, terminated, truncated, observe(parameters, new_state)


def _observe_full(parameters: TagGridworldParameters, state: State) -> np.ndarray:
    num_envs, num_agents = state["x"].shape
    # Agents of one env differ in the one-hot only, so the rest is built once per env.
    shared = np.zeros((num_envs, parameters.num_features), dtype=np.float32)
    x, y, agent_type = (shared[:, first : first + num_agents] for first in (0, num_agents, 2 * num_agents))
    x[:] = _share(state["x"], parameters.grid_length)
    y[:] = _share(state["y"], parameters.grid_length)
    agent_type[:, :-1] = TAGGER
    agent_type[:, -1] = RUNNER
    shared[:, -1] = _share(state["time_step"], parameters.episode_length)

    observation = np.repeat(shared[:, None, :], num_agents, axis=1)
    agent = np.arange(num_agents)
    observation[:, agent, 3 * num_agents + agent] = 1
    return observation


def _observe_partial(parameters: TagGridworldParameters, state: State) -> np.ndarray:
    num_envs, num_agents = state["x"].shape
    x = _share(state["x"], parameters.grid_length)
    y = _share(state["y"], parameters.grid_length)

    # Integers, so that ties are exact; 64 bits, so that no square overflows.
    gap_x = (state["x"][:, :-1] - state["x"][:, -1:]).astype(np.int64)
    gap_y = (state["y"][:, :-1] - state["y"][:, -1:]).astype(np.int64)
    nearest = np.argmin(gap_x**2 + gap_y**2, axis=1)  # the first of equals, so the lowest id
    env = np.arange(num_envs)

    observation = np.empty((num_envs, num_agents, parameters.num_features), dtype=np.float32)
    observation[:, :, 0] = x
    observation[:, :, 1] = y
    observation[:, :-1, 2] = x[:, -1:]
    observation[:, :-1, 3] = y[:, -1:]
    observation[:, -1, 2] = x[env, nearest]
    observation[:, -1, 3] = y[env, nearest]
    observation[:, :-1, 4] = TAGGER
    observation[:, -1, 4] = RUNNER
    observation[:, :, 5] = _share(state["time_step"], parameters.episode_length)[:, None]
    return observation


def _share(value: np.ndarray, whole: int) -> np.ndarray:
    """`value` as a float32 part of `whole`."""
    return value.astype(np.float32) / np.float32(whole)
