"""Lone agents: carts, hills and pendulums. See numpy_envs."""

from __future__ import annotations

import math

import numpy as np

from warpdrive.env import Env

from .arrays import Arrays, Step, rows


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
            "observation": rows([new_x, new_x_velocity, new_theta, new_theta_velocity]),
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
        "observation": rows([position, velocity]),
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
            "observation": rows([np.cos(theta), np.sin(theta), velocity]),
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
            "observation": rows([cosine1, sine1, cosine2, sine2, velocity1, velocity2]),
            "reward": (at_goal.astype(np.float32) - 1)[None],
            "terminated": at_goal,
            "truncated": ~at_goal & (time_step >= env.config.episode_length),
        }

    return step
