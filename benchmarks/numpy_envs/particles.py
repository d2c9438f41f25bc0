"""Discs that push each other: the two games of MPE. See numpy_envs."""

from __future__ import annotations

import numpy as np

from warpdrive.env import Env

from .arrays import Arrays, Observation, Step

CONTACT_FORCE, CONTACT_MARGIN = 100.0, 1e-3
CONTACT_REACH = 30 * CONTACT_MARGIN


def _steering(action: np.ndarray, strength: np.ndarray) -> np.ndarray:
    """Forces [A, 2, E] from actions [A, E] or [A, 5, E]; strength [A, 1]."""
    force = np.empty((len(action), 2, action.shape[-1]), np.float32)
    for axis, (down, up) in enumerate([(1, 2), (3, 4)]):
        if action.dtype == np.int32:
            wanted = (action == up).view(np.int8) - (action == down).view(np.int8)
        else:
            wanted = np.clip(action[:, up], 0, 1) - np.clip(action[:, down], 0, 1)
        np.multiply(wanted, strength, out=force[:, axis])
    return force


def _add_contacts(force: np.ndarray, apart: np.ndarray, contact: np.ndarray) -> None:
    """Pushes discs apart; only pairs near enough are computed, which are few.

    Args:
        force: [A, 2, E], added to.
        apart: [A, B, 2, E], from B's centre to A's.
        contact: [A, B, 1], distance of the centres of discs that just touch; 0 where nothing pushes.
    """
    squared = apart[:, :, 0] * apart[:, :, 0] + apart[:, :, 1] * apart[:, :, 1]
    reach = np.where(contact > 0, (contact + np.float32(CONTACT_REACH)) ** 2, np.float32(0))
    near = np.flatnonzero((squared < reach) & (squared > 0))
    num_envs = force.shape[-1]
    pair, env = np.divmod(near, num_envs)
    distance = np.sqrt(np.take(squared, near))
    overlap = np.take(contact, pair) - distance
    soft = CONTACT_MARGIN * np.log1p(np.exp(-np.abs(overlap) / CONTACT_MARGIN))
    factor = CONTACT_FORCE * (np.maximum(overlap, 0) + soft) / distance
    agent = pair // squared.shape[1]
    for axis in range(2):
        push = factor * np.take(apart, (2 * pair + axis) * num_envs + env)
        np.add.at(force.reshape(-1), (2 * agent + axis) * num_envs + env, push)


def simple_spread(env: Env, num_envs: int) -> Step:
    config, num_agents = env.config, env.num_agents
    strength = np.full((num_agents, 1), 5, np.float32)
    contact = np.where(np.eye(num_agents, dtype=bool), 0, 0.3).astype(np.float32)[:, :, None]
    squared_contact = np.square(contact)
    others = [[other for other in range(num_agents) if other != agent] for agent in range(num_agents)]
    observation = Observation(num_envs, num_agents, 6 * num_agents)
    pairs = observation.features.reshape(num_agents, 3 * num_agents, 2, num_envs)

    def step(state: Arrays, action: np.ndarray) -> Arrays:
        position, velocity, landmark = state["position"], state["velocity"], state["landmark_position"]
        force = _steering(action, strength)
        _add_contacts(force, position[:, None] - position[None], contact)
        position = position + 0.1 * velocity
        velocity = 0.75 * velocity + 0.1 * force

        to_agent = position[None] - position[:, None]  # [from, to, 2, E]
        squared = to_agent[:, :, 0] * to_agent[:, :, 0] + to_agent[:, :, 1] * to_agent[:, :, 1]
        num_touching = (squared < squared_contact).sum(axis=1, dtype=np.int8)
        to_landmark = landmark[None] - position[:, None]
        squared = to_landmark[:, :, 0] * to_landmark[:, :, 0] + to_landmark[:, :, 1] * to_landmark[:, :, 1]
        shared = -np.sqrt(squared.min(axis=0)).sum(axis=0)
        reward = (1 - config.local_ratio) * shared - np.float32(config.local_ratio) * num_touching

        pairs[:, 0] = velocity
        pairs[:, 1] = position
        pairs[:, 2 : 2 + num_agents] = to_landmark
        for agent in range(num_agents):
            pairs[agent, 2 + num_agents : 1 + 2 * num_agents] = to_agent[agent, others[agent]]
        return {
            "position": position,
            "velocity": velocity,
            "observation": observation.rows(),
            "reward": reward,
            **_time(env, state),
        }

    return step


def simple_tag(env: Env, num_envs: int) -> Step:
    config, num_agents = env.config, env.num_agents
    num_adversaries, num_obstacles = config.num_adversaries, config.num_obstacles
    is_good = np.arange(num_agents) >= num_adversaries
    strength = np.where(is_good, 4, 3).astype(np.float32)[:, None]
    top_speed = np.where(is_good, 1.3, 1).astype(np.float32)[:, None]
    radius = np.concatenate([np.where(is_good, 0.05, 0.075), np.full(num_obstacles, 0.2)]).astype(np.float32)
    contact = (radius[:num_agents, None] + radius)[:, :, None]
    contact[np.arange(num_agents), np.arange(num_agents)] = 0
    squared_touch = np.square(contact[num_adversaries:, :num_adversaries])
    others = [[other for other in range(num_agents) if other != agent] for agent in range(num_agents)]

    def step(state: Arrays, action: np.ndarray) -> Arrays:
        position, velocity, obstacle = state["position"], state["velocity"], state["obstacle_position"]
        force = _steering(action, strength)
        _add_contacts(force, position[:, None] - np.concatenate([position, obstacle]), contact)
        position = position + 0.1 * velocity
        velocity = 0.75 * velocity + 0.1 * force
        squared = velocity[:, 0] * velocity[:, 0] + velocity[:, 1] * velocity[:, 1]
        too_fast = squared > top_speed * top_speed
        velocity *= np.where(too_fast, top_speed / np.sqrt(np.maximum(squared, 1e-6)), np.float32(1))[:, None]

        to_entity = np.concatenate([position, obstacle]) - position[:, None]  # [from, to, 2, E]
        to_adversary = to_entity[num_adversaries:, :num_adversaries]
        squared = to_adversary[:, :, 0] * to_adversary[:, :, 0] + to_adversary[:, :, 1] * to_adversary[:, :, 1]
        num_touching = (squared < squared_touch).sum(axis=1, dtype=np.int8)
        out = np.abs(position[num_adversaries:])
        penalty = np.where(out < 1, np.maximum(out - np.float32(0.9), 0) * 10, 0)
        outside = np.nonzero(out >= 1)  # few, and only they need an exponential
        penalty[outside] = np.minimum(np.exp(2 * out[outside] - 2), 10)
        reward = np.empty((num_agents, position.shape[-1]), np.float32)
        reward[:num_adversaries] = 10 * num_touching.sum(axis=0, dtype=np.int8).astype(np.float32)
        reward[num_adversaries:] = -10 * num_touching.astype(np.float32) - penalty.sum(axis=1)
        return {
            "position": position,
            "velocity": velocity,
            "observation_adversary": see(0, range(num_adversaries), position, velocity, to_entity),
            "observation_agent": see(1, range(num_adversaries, num_agents), position, velocity, to_entity),
            "reward": reward,
            **_time(env, state),
        }

    seen, num_others = 2 + num_obstacles, num_agents - 1
    sizes = [(num_adversaries, seen + num_others + config.num_good)]
    sizes.append((config.num_good, seen + num_others + config.num_good - 1))
    observations = [Observation(num_envs, num_rows, 2 * num_pairs) for num_rows, num_pairs in sizes]
    pairs_of = [one.features.reshape(*size, 2, num_envs) for one, size in zip(observations, sizes, strict=True)]

    def see(number: int, group: range, position: np.ndarray, velocity: np.ndarray, to_entity: np.ndarray) -> np.ndarray:
        for pairs, agent in zip(pairs_of[number], group, strict=True):
            pairs[0] = velocity[agent]
            pairs[1] = position[agent]
            pairs[2:seen] = to_entity[agent, num_agents:]
            pairs[seen : seen + num_others] = to_entity[agent, others[agent]]
            pairs[seen + num_others :] = velocity[[one for one in range(num_adversaries, num_agents) if one != agent]]
        return observations[number].rows()

    return step


def _time(env: Env, state: Arrays) -> Arrays:
    time_step = state["time_step"] + 1
    return {
        "time_step": time_step,
        "terminated": np.zeros(len(time_step), bool),
        "truncated": time_step >= env.config.episode_length,
    }
