"""Small worlds of continuous Tag, for cases that can be worked out on paper."""

import math

import numpy as np

from .tag_continuous import State, TagContinuousParameters

PI = math.pi


def parameters_of(**changes: object) -> TagContinuousParameters:
    """One tagger and one runner on a 16 by 16 square, with few actions, unless told otherwise.

    Acceleration actions 0 to 3: none, -0.5, none, +0.5. Turn actions 0 to 3: none, -pi/2, none, +pi/2.
    """
    return TagContinuousParameters(
        **{
            "num_taggers": 1,
            "num_runners": 1,
            "grid_length": 16.0,
            "tagging_distance": 0.0625,  # 1 of 16
            "num_acceleration_levels": 3,
            "max_acceleration": 0.5,
            "min_acceleration": -0.5,
            "num_turn_levels": 3,
            **changes,
        }
    )


def one_env(x: list[float], y: list[float], **others: object) -> State:
    """State of one env. Agents are at rest, facing along x, in the game at time 0, unless `others` says otherwise."""
    num_agents = len(x)
    state = {"x": x, "y": y, "speed": [0] * num_agents, "direction": [0] * num_agents, "acceleration": [0] * num_agents}
    state.update({name: value for name, value in others.items() if name in state})
    return {
        **{name: np.array([value], dtype=np.float32) for name, value in state.items()},
        "active": np.array([others.get("active", [True] * num_agents)], dtype=bool),
        "time_step": np.array([others.get("time_step", 0)], dtype=np.int32),
    }


def stay(num_agents: int, num_envs: int = 1) -> np.ndarray:
    """The action that changes nothing."""
    return np.zeros((num_envs, num_agents, 2), dtype=np.int32)


def close(actual: np.ndarray, expected: list) -> bool:
    """Whether two arrays agree in shape and to 2e-6 in value."""
    expected_array = np.array(expected)
    return actual.shape == expected_array.shape and np.abs(actual - expected_array).max() <= 2e-6
