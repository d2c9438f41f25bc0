"""Continuous actions from normal distributions: every agent of a policy group in one launch."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from gymnasium import spaces

from warpdrive.backends.base import KERNELS_FOLDER, Backend
from warpdrive.data_manager import DataManager
from warpdrive.errors import ShapeError
from warpdrive.function_manager import Constant, FunctionManager
from warpdrive.sampler import column_of

SOURCE: Path = KERNELS_FOLDER / "gaussian_sampler.cu"
LARGEST_END = 1e30
"""Of a Box: larger ones stand for none."""


class GaussianSampler:
    """Draws actions of a Box, with their log-probability and entropy beside them.

    What is drawn is a part of the Box: 0 stands for its middle, -1 and 1 for its ends (see `parts_of_box`). The env
    gets that clipped to the Box; what was drawn is kept apart, as the log-probability is of that.
    A draw depends on (seed, env, agent, env step) alone, as the Sampler's.

    Args:
        data: holds `seed` [3] uint32 and `env_step` [env] int64.
        num_envs: E.
        agents: the group's agents among all of the env.
        num_agents: agents that the action array holds: all of the env, or the group alone.
        space: a Box of shape [n].
        first_column: where the group starts in the action array; the first agent's number if not given.
        squashes: whether the hyperbolic tangent brings what is drawn into the Box, which has to have bounds.
        rows_deviate: whether each agent of each env has standard deviations of its own.
    """

    def __init__(
        self,
        data: DataManager,
        num_envs: int,
        agents: range,
        num_agents: int,
        space: spaces.Box,
        backend: Backend | None = None,
        first_column: int | None = None,
        squashes: bool = False,
        rows_deviate: bool = False,
    ) -> None:
        first_column = column_of(agents, num_agents, first_column)
        if len(space.shape) != 1:
            raise ShapeError(f"sampler: a Box must have one axis, as [n], got {list(space.shape)}. Flatten it.")
        self.data = data
        num_numbers = space.shape[0]
        self.mean_shape = (num_envs, len(agents), num_numbers)
        self._log_std_shape = self.mean_shape if rows_deviate else self.mean_shape[2:]
        self._action_shape = (num_envs, num_agents, num_numbers)
        constants = {
            "NUM_COLUMNS": num_agents,
            "FIRST_COLUMN": first_column,
            "FIRST_AGENT": agents.start,
            "NUM_NUMBERS": num_numbers,
            **constants_of_box(space),
            "SQUASHES": squashes,
            "ROWS_DEVIATE": rows_deviate,
        }
        self._functions = FunctionManager(data, SOURCE, constants, num_envs, len(agents), backend)

    def prepare(
        self,
        mean: torch.Tensor,
        log_std: torch.Tensor,
        action: torch.Tensor,
        drawn: torch.Tensor,
        log_prob: torch.Tensor,
        entropy: torch.Tensor,
        greedy: bool = False,
    ) -> Callable[[], None]:
        """A launch, packed once.

        Args:
            mean: [E, agents of the group, n] float32, in parts of the Box. Read.
            log_std: [n] float32, the logarithm of the standard deviation, likewise, the same for all agents; as `mean`
                where `rows_deviate`. Read.
            action: [E, num_agents, n] float32, clipped to the Box. Only the group's columns are written.
            drawn: [E, agents of the group, n] float32, in parts of the Box, not clipped. Written.
            log_prob, entropy: [E, agents of the group] float32, of what was drawn in the Box's unit, summed over the
                numbers, nats; a squashed entropy is the estimate of one draw. Written.
            greedy: take the mean instead of drawing.
        Raises:
            ShapeError, WiringError: an array does not fit.
        """
        arrays = {"mean": mean, "log_std": log_std, "action": action, "drawn": drawn}
        arrays |= {"log_prob": log_prob, "entropy": entropy}
        shapes = {"mean": self.mean_shape, "drawn": self.mean_shape, "action": self._action_shape}
        shapes |= {"log_std": self._log_std_shape, "seed": (3,), "env_step": self.mean_shape[:1]}
        read = {name: self.data[name] for name in ("seed", "env_step")}
        for name, tensor in (arrays | read).items():
            shape = shapes.get(name, self.mean_shape[:2])
            if tuple(tensor.shape) != shape:
                raise ShapeError(f"sampler: '{name}' must be {list(shape)}, got {list(tensor.shape)}.")
        return self._functions.prepare("best_numbers" if greedy else "sample_numbers", **arrays)


def constants_of_box(space: spaces.Box) -> dict[str, Constant]:
    """What kernels that draw are told of it: its ends, where it has some, and its parts."""
    limit = np.finfo(np.float32).max
    ends = {"LOW": np.clip(space.low, -limit, limit), "HIGH": np.clip(space.high, -limit, limit)}
    parts = dict(zip(("CENTRE", "SCALE"), parts_of_box(space), strict=True))
    return {name: tuple(float(x) for x in numbers) for name, numbers in (ends | parts).items()}


def parts_of_box(space: spaces.Box) -> tuple[np.ndarray, np.ndarray]:
    """The middle of a Box and half its width, [n] float32 each; 0 and 1 where it has no end on one side."""
    low, high = space.low.astype(np.float64), space.high.astype(np.float64)
    has_ends = np.maximum(np.abs(low), np.abs(high)) < LARGEST_END
    has_ends &= low < high
    low, high = np.where(has_ends, low, -1.0), np.where(has_ends, high, 1.0)
    return ((low + high) / 2).astype(np.float32), ((high - low) / 2).astype(np.float32)
