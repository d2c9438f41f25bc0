"""Tag on a grid and on a square. See numpy_envs."""

from __future__ import annotations

import math

import numpy as np

from warpdrive.env import Env

from .arrays import Arrays, Observation, Step


def tag_gridworld(env: Env, num_envs: int) -> Step:
    config, num_agents = env.config, env.num_agents
    length = config.grid_length
    # What is the same in every step is written once: types, and who is who.
    observation = np.zeros((num_envs, num_agents, env.constants()["NUM_FEATURES"]), np.float32)
    if config.use_full_observation:
        observation[:, :, 3 * num_agents - 1] = 1
        observation[:, :, 3 * num_agents : -1] = np.eye(num_agents)
    else:
        observation[:, -1, 4] = 1
    scene = np.empty((num_envs, 2, num_agents), np.float32)
    envs = np.arange(num_envs)

    def step(state: Arrays, action: np.ndarray) -> Arrays:
        wanted_x = state["x"] + ((action == 1).view(np.int8) - (action == 2).view(np.int8))
        wanted_y = state["y"] + ((action == 3).view(np.int8) - (action == 4).view(np.int8))
        x, y = np.clip(wanted_x, 0, length), np.clip(wanted_y, 0, length)
        tag = ((x[:-1] == x[-1]) & (y[:-1] == y[-1])).any(axis=0)
        reward = ((x != wanted_x) | (y != wanted_y)) * np.float32(-config.wall_hit_penalty)
        reward[:-1] += np.where(tag, np.float32(config.tag_reward_for_tagger), np.float32(-config.step_cost_for_tagger))
        reward[-1] += np.where(tag, np.float32(-config.tag_penalty_for_runner), np.float32(config.step_cost_for_tagger))
        time_step = state["time_step"] + 1
        (see_all if config.use_full_observation else see_one)(x, y)
        observation[:, :, -1] = (time_step.astype(np.float32) / config.episode_length)[:, None]
        return {
            "x": x,
            "y": y,
            "time_step": time_step,
            "observation": observation,
            "reward": reward,
            "terminated": tag,
            "truncated": ~tag & (time_step >= config.episode_length),
        }

    def see_all(x: np.ndarray, y: np.ndarray) -> None:
        for axis, cells in enumerate((x, y)):
            scene[:, axis] = (cells.astype(np.float32) / length).T
        observation[:, :, : 2 * num_agents] = scene.reshape(num_envs, 1, -1)

    def see_one(x: np.ndarray, y: np.ndarray) -> None:
        gap_x, gap_y = x[:-1] - x[-1], y[:-1] - y[-1]  # of integers, so that ties are exact
        nearest = np.argmin(gap_x * gap_x + gap_y * gap_y, axis=0)
        for axis, cells in enumerate((x, y)):
            own = cells.astype(np.float32) / length
            observation[:, :, axis] = own.T
            observation[:, :-1, 2 + axis] = own[-1, :, None]
            observation[:, -1, 2 + axis] = own[nearest, envs]

    return step


def tag_continuous(env: Env, num_envs: int) -> Step:
    config, num_agents, num_seen = env.config, env.num_agents, env.num_seen
    is_tagger = np.array(env.agent_types) == 1
    taggers, runners = np.flatnonzero(is_tagger), np.flatnonzero(~is_tagger)
    constants = env.constants()
    accelerations, turns = np.float32(constants["ACCELERATION"]), np.float32(constants["TURN"])
    full_turn, length = np.float32(2 * math.pi), np.float32(config.grid_length)
    skill = np.where(is_tagger, config.skill_level_tagger, config.skill_level_runner)
    top_speed = np.float32(config.max_speed * skill)[:, None]
    usual = np.where(is_tagger, config.step_penalty_for_tagger, config.step_reward_for_runner).astype(np.float32)
    squared_reach = np.float32(constants["SQUARED_TAGGING_DISTANCE"])
    scales = {"x": constants["PER_DIAGONAL"], "y": constants["PER_DIAGONAL"], "speed": constants["PER_MAX_SPEED"]}
    scales |= {"acceleration": constants["PER_MAX_SPEED"], "direction": 1 / (2 * math.pi)}
    agents = np.arange(num_agents)
    everyone_else = np.array([[other for other in agents if other != agent] for agent in agents])  # by id
    observation = Observation(num_envs, num_agents, 7 * num_seen + 1)
    blocks = observation.features[:, :-1].reshape(num_agents, 7, num_seen, num_envs)

    def step(state: Arrays, action: np.ndarray) -> Arrays:
        active = state["active"]
        acceleration = state["acceleration"] + np.take(accelerations, action[:, 0])
        direction = state["direction"] + np.take(turns, action[:, 1])
        direction += (direction < 0) * full_turn
        direction -= (direction >= full_turn) * full_turn
        direction *= active
        speed = np.clip(state["speed"] + acceleration, 0, top_speed) * active
        acceleration[(speed <= 0) | (speed >= top_speed)] = 0
        wanted_x, wanted_y = state["x"] + speed * np.cos(direction), state["y"] + speed * np.sin(direction)
        x, y = np.clip(wanted_x, 0, length), np.clip(wanted_y, 0, length)
        reward = ((x != wanted_x) | (y != wanted_y)) * np.float32(config.edge_hit_penalty)
        reward += usual[:, None]
        reward *= active
        time_step = state["time_step"] + 1
        moved = {"x": x, "y": y, "speed": speed, "acceleration": acceleration, "direction": direction}
        now = time_step.astype(np.float32) / config.episode_length
        seen = (see_all if config.use_full_observation else see_nearest)(moved, active, now)

        gap_x, gap_y = x[runners, None] - x[taggers], y[runners, None] - y[taggers]
        squared = gap_x * gap_x + gap_y * gap_y  # [runner, tagger, E]
        tagged = active[runners] & (squared < squared_reach).any(axis=1)
        runner, envs = np.nonzero(tagged)  # few
        tagger = taggers[squared[runner, :, envs].argmin(axis=1)]
        np.add.at(reward, (tagger, envs), np.float32(config.tag_reward_for_tagger))
        reward[runners] += np.float32(config.tag_penalty_for_runner) * tagged
        stays = active[runners]
        num_left = state["num_runners_left"]
        if config.runner_exits_game_after_tagged:
            stays &= ~tagged
            num_left = num_left - tagged.sum(axis=0, dtype=np.int32)
        still_active = active.copy()
        still_active[runners] = stays
        last = time_step == config.episode_length
        if last.any():
            reward[runners] += np.float32(config.end_of_game_reward_for_runner) * (last & stays)
        return {
            **moved,
            "active": still_active,
            "num_runners_left": num_left,
            "time_step": time_step,
            "observation": seen,
            "reward": reward,
            "terminated": num_left == 0,
            "truncated": (num_left != 0) & (time_step >= config.episode_length),
        }

    def see_all(moved: Arrays, active: np.ndarray, now: np.ndarray) -> np.ndarray:
        for feature, (name, scale) in enumerate(scales.items()):
            value = moved[name] * np.float32(scale)
            for agent in agents:
                difference = np.subtract(value[everyone_else[agent]], value[agent], out=blocks[agent, feature])
                difference *= active[agent]
        blocks[:, 5] = is_tagger[everyone_else][:, :, None]
        blocks[:, 6] = active[everyone_else]
        np.multiply(active, now, out=observation.features[:, -1])
        return observation.rows()

    def see_nearest(moved: Arrays, active: np.ndarray, now: np.ndarray) -> np.ndarray:
        gap_x, gap_y = (moved[name][:, None] - moved[name] for name in "xy")
        squared = gap_x * gap_x + gap_y * gap_y  # [agent, other, E]
        sees = active[:, None] & active
        sees[agents, agents] = False
        other = _nearest(np.where(sees, squared, np.float32(np.inf)), num_seen)
        exists = sees.sum(axis=1, dtype=np.int32)[:, None] > np.arange(num_seen)[:, None]
        index = other * num_envs + np.arange(num_envs)
        for feature, (name, scale) in enumerate(scales.items()):
            value = moved[name] * np.float32(scale)
            difference = np.subtract(np.take(value, index), value[:, None], out=blocks[:, feature])
            difference *= exists
        blocks[:, 5] = np.take(is_tagger, other) & exists
        blocks[:, 6] = exists
        np.multiply(active, now, out=observation.features[:, -1])
        return observation.rows()

    return step


def _nearest(distance: np.ndarray, num_nearest: int) -> np.ndarray:
    """Ids of the nearest, nearest first, the lowest of equals first: [agent, num_nearest, E].

    Counts for each how many come before it, which takes as many comparisons as there are pairs: for few agents.

    Args:
        distance: [agent, other, E].
    """
    num_agents, _, num_envs = distance.shape
    place = np.zeros(distance.shape, np.int8)
    for one in range(num_agents):
        for later in range(one + 1, num_agents):
            is_first = distance[:, one] <= distance[:, later]
            place[:, later] += is_first
            place[:, one] += ~is_first
    nearest = np.empty((num_agents, num_nearest, num_envs), np.int64)
    for other in range(num_agents):
        for rank in range(num_nearest):
            np.copyto(nearest[:, rank], other, where=place[:, other] == rank)
    return nearest
