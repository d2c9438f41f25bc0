"""Every shipped env's step in vectorised numpy, by the same rules: what one CPU core does without kernels.

`STEPS[name](env, num_envs)` makes the step of an Env: a function of the state and an action to all that a step changes,
by the kernel's own names. Written to be fast in numpy: float32, no loop over envs, and the env axis last, so that
numpy's inner loops run over many envs and not over the few agents of one. Observations alone have the env axis first,
[E, A, F], in memory too: that is how a policy reads them. They are the same array in every step, as the kernels' are.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from warpdrive.env import Env

Arrays = dict[str, np.ndarray]
"""An array by name, [..., E]; observations [E, A, F]."""

Step = Callable[[Arrays, np.ndarray], Arrays]
"""State and action, both with the env axis last, to the new state, observation, reward, terminated, truncated."""


def _rows(columns: list[np.ndarray]) -> np.ndarray:
    """Observations [E, 1, F] of lone agents from one [E] a feature."""
    rows = np.empty((len(columns[0]), 1, len(columns)), np.float32)
    for feature, column in enumerate(columns):
        rows[:, 0, feature] = column
    return rows


class _Observation:
    """An observation [E, A, F], and memory for the same with the env axis last, which it is made from."""

    def __init__(self, num_envs: int, num_agents: int, num_features: int) -> None:
        self.features = np.zeros((num_agents, num_features, num_envs), np.float32)
        self._rows = np.empty((num_envs, num_agents, num_features), np.float32)

    def rows(self) -> np.ndarray:
        num_envs = len(self._rows)
        self._rows.reshape(num_envs, -1)[:] = self.features.reshape(-1, num_envs).T
        return self._rows


# ---------------------------------------------------------------------------------------------------- classic control


def cartpole(env: Env, num_envs: int) -> Step:
    config = env.config
    total_mass = config.cart_mass + config.pole_mass
    share, length = config.pole_mass / total_mass, config.pole_half_length
    push_left, push_right = np.float32(-config.force / total_mass), np.float32(config.force / total_mass)
    fell_reward, stands_reward = (-1.0, 0.0) if config.sutton_barto_reward else (1.0, 1.0)

    def step(state: Arrays, action: np.ndarray) -> Arrays:
        x, x_velocity, theta, theta_velocity = (state[name] for name in ("x", "x_velocity", "theta", "theta_velocity"))
        sine, cosine = np.sin(theta), np.cos(theta)
        push = np.where(action[0] == 1, push_right, push_left)
        push += share * length * theta_velocity * theta_velocity * sine
        theta_acceleration = (config.gravity * sine - push * cosine) / (length * (4 / 3 - share * cosine * cosine))
        x_acceleration = push - share * length * theta_acceleration * cosine
        new_x = x + 0.02 * x_velocity
        new_x_velocity = x_velocity + 0.02 * x_acceleration
        new_theta = theta + 0.02 * theta_velocity
        new_theta_velocity = theta_velocity + 0.02 * theta_acceleration
        time_step = state["time_step"] + 1
        fell = (np.abs(new_x) > 2.4) | (np.abs(new_theta) > np.float32(math.radians(12)))
        return {
            "x": new_x,
            "x_velocity": new_x_velocity,
            "theta": new_theta,
            "theta_velocity": new_theta_velocity,
            "time_step": time_step,
            "observation": _rows([new_x, new_x_velocity, new_theta, new_theta_velocity]),
            "reward": np.where(fell, np.float32(fell_reward), np.float32(stands_reward))[None],
            "terminated": fell,
            "truncated": ~fell & (time_step >= config.episode_length),
        }

    return step


def mountain_car(env: Env, num_envs: int) -> Step:
    def step(state: Arrays, action: np.ndarray) -> Arrays:
        push = (action[0] - 1).astype(np.float32) * 0.001
        moved, at_goal = _drive(env, state, push, goal=0.5)
        return {**moved, "reward": np.full((1, len(at_goal)), -1, np.float32)}

    return step


def continuous_mountain_car(env: Env, num_envs: int) -> Step:
    def step(state: Arrays, action: np.ndarray) -> Arrays:
        throttle = action[0, 0]
        moved, at_goal = _drive(env, state, 0.0015 * np.clip(throttle, -1, 1), goal=0.45)
        reward = at_goal * np.float32(100) - 0.1 * throttle * throttle
        return {**moved, "reward": reward[None]}

    return step


def _drive(env: Env, state: Arrays, push: np.ndarray, goal: float) -> tuple[Arrays, np.ndarray]:
    """Everything but the reward, and who is at the goal. push: [E] velocity that the engine adds."""
    least, greatest = np.float32(-1.2), np.float32(0.6)
    velocity = state["velocity"] + push - 0.0025 * np.cos(3 * state["position"])
    velocity = np.clip(velocity, np.float32(-0.07), np.float32(0.07))
    position = np.clip(state["position"] + velocity, least, greatest)
    velocity[(position == least) & (velocity < 0)] = 0
    time_step = state["time_step"] + 1
    at_goal = (position >= np.float32(goal)) & (velocity >= env.config.goal_velocity)
    moved = {
        "position": position,
        "velocity": velocity,
        "time_step": time_step,
        "observation": _rows([position, velocity]),
        "terminated": at_goal,
        "truncated": ~at_goal & (time_step >= env.config.episode_length),
    }
    return moved, at_goal


def _wrap(angle: np.ndarray) -> np.ndarray:
    """The same angle between -pi and pi."""
    turn = 2 * math.pi
    return angle - turn * np.floor((angle + math.pi) / turn)


def pendulum(env: Env, num_envs: int) -> Step:
    config = env.config
    fall, turn = 1.5 * config.gravity / config.length, 3 / (config.mass * config.length**2)

    def step(state: Arrays, action: np.ndarray) -> Arrays:
        theta, velocity = _wrap(state["theta"]), state["theta_velocity"]
        torque = np.clip(action[0, 0], -2, 2)
        cost = theta * theta + 0.1 * velocity * velocity + 0.001 * torque * torque
        velocity = np.clip(velocity + 0.05 * (fall * np.sin(theta) + turn * torque), -8, 8)
        theta = theta + 0.05 * velocity
        time_step = state["time_step"] + 1
        return {
            "theta": theta,
            "theta_velocity": velocity,
            "time_step": time_step,
            "observation": _rows([np.cos(theta), np.sin(theta), velocity]),
            "reward": -cost[None],
            "terminated": np.zeros(len(theta), bool),
            "truncated": time_step >= config.episode_length,
        }

    return step


def acrobot(env: Env, num_envs: int) -> Step:
    gravity, step_seconds = 9.8, 0.2
    speed1, speed2 = np.float32(4 * math.pi), np.float32(9 * math.pi)

    def change(theta1, theta2, velocity1, velocity2, torque):
        """How fast the state changes; the links are 1 long, weigh 1, and have their mass in the middle."""
        sine1, cosine1, sine2, cosine2 = np.sin(theta1), np.cos(theta1), np.sin(theta2), np.cos(theta2)
        d1 = 3.5 + cosine2
        d2 = 1.25 + 0.5 * cosine2
        share = d2 / d1
        phi2 = 0.5 * gravity * (sine1 * cosine2 + cosine1 * sine2)
        phi1 = phi2 + 1.5 * gravity * sine1 - 0.5 * velocity2 * (velocity2 + 2 * velocity1) * sine2
        acceleration2 = torque + share * phi1 - 0.5 * velocity1 * velocity1 * sine2 - phi2
        acceleration2 /= 1.25 - share * d2
        return velocity1, velocity2, -(share * acceleration2 + phi1 / d1), acceleration2

    def step(state: Arrays, action: np.ndarray) -> Arrays:
        torque = (action[0] - 1).astype(np.float32)
        start = [state[name] for name in ("theta1", "theta2", "theta1_velocity", "theta2_velocity")]
        change1 = change(*start, torque)
        change2 = change(*(s + 0.5 * step_seconds * c for s, c in zip(start, change1, strict=True)), torque)
        change3 = change(*(s + 0.5 * step_seconds * c for s, c in zip(start, change2, strict=True)), torque)
        change4 = change(*(s + step_seconds * c for s, c in zip(start, change3, strict=True)), torque)
        theta1, theta2, velocity1, velocity2 = (
            s + step_seconds / 6 * (c1 + 2 * c2 + 2 * c3 + c4)
            for s, c1, c2, c3, c4 in zip(start, change1, change2, change3, change4, strict=True)
        )
        theta1, theta2 = _wrap(theta1), _wrap(theta2)
        velocity1, velocity2 = np.clip(velocity1, -speed1, speed1), np.clip(velocity2, -speed2, speed2)
        sine1, cosine1, sine2, cosine2 = np.sin(theta1), np.cos(theta1), np.sin(theta2), np.cos(theta2)
        at_goal = -cosine1 - (cosine1 * cosine2 - sine1 * sine2) > 1
        time_step = state["time_step"] + 1
        return {
            "theta1": theta1,
            "theta2": theta2,
            "theta1_velocity": velocity1,
            "theta2_velocity": velocity2,
            "time_step": time_step,
            "observation": _rows([cosine1, sine1, cosine2, sine2, velocity1, velocity2]),
            "reward": (at_goal.astype(np.float32) - 1)[None],
            "terminated": at_goal,
            "truncated": ~at_goal & (time_step >= env.config.episode_length),
        }

    return step


# ---------------------------------------------------------------------------------------------------- particles

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
    observation = _Observation(num_envs, num_agents, 6 * num_agents)
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
    observations = [_Observation(num_envs, num_rows, 2 * num_pairs) for num_rows, num_pairs in sizes]
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


# ---------------------------------------------------------------------------------------------------- tag


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
    observation = _Observation(num_envs, num_agents, 7 * num_seen + 1)
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


STEPS: dict[str, Callable[[Env, int], Step]] = {
    make.__name__: make
    for make in (
        cartpole,
        mountain_car,
        continuous_mountain_car,
        pendulum,
        acrobot,
        simple_spread,
        simple_tag,
        tag_gridworld,
        tag_continuous,
    )
}
