"""Actions from logits: every head of every agent of a policy group in one launch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch

from warpdrive.backends.base import KERNELS_FOLDER, Backend
from warpdrive.data_manager import DataManager
from warpdrive.errors import ShapeError
from warpdrive.function_manager import FunctionManager

SOURCE: Path = KERNELS_FOLDER / "sampler.cu"


class Sampler:
    """Draws categorical and multi-discrete actions, with their log-probability and entropy beside them.

    A draw depends on (seed, env, agent, env step) alone: not on how many envs there are, nor on the
    launch. In a CUDA graph each replay draws anew, as `env_step` has moved on.

    Args:
        data: holds `seed` [3] uint32 and `env_step` [env] int64; a sampler without an env makes them,
            and then counts its own calls in `env_step`.
        num_envs: E.
        agents: the group's agents among all of the env.
        num_agents: agents that the action array holds: all of the env, or the group alone.
        head_sizes: number of actions of each head; Discrete(5) is (5,).
        seed: used only if `data` has none.
        first_column: where the group starts in the action array; the first agent's number if not given.
    """

    def __init__(
        self,
        data: DataManager,
        num_envs: int,
        agents: range,
        num_agents: int,
        head_sizes: Sequence[int],
        backend: Backend | None = None,
        seed: int = 0,
        first_column: int | None = None,
    ) -> None:
        self.data = data
        self.agents = agents
        self.head_sizes = tuple(int(size) for size in head_sizes)
        first_column = column_of(agents, num_agents, first_column)
        if not self.head_sizes or min(self.head_sizes) < 1:
            raise ShapeError(f"sampler: every head needs at least one action, got head_sizes={self.head_sizes}.")
        if "seed" not in data:
            data.push("seed", seed_words(seed))
        self._counts = "env_step" not in data
        if self._counts:
            data.push("env_step", np.zeros(num_envs, np.int64))
        self.logits_shape = (num_envs, len(agents), sum(self.head_sizes))
        self._row_shape = (num_envs, len(agents))
        heads = () if len(self.head_sizes) == 1 else (len(self.head_sizes),)
        self._action_shape = (num_envs, num_agents, *heads)
        constants = {
            "NUM_COLUMNS": num_agents,
            "FIRST_COLUMN": first_column,
            "FIRST_AGENT": agents.start,
            "NUM_HEADS": len(self.head_sizes),
            "HEAD_SIZES": self.head_sizes,
            "NUM_LOGITS": sum(self.head_sizes),
        }
        self._functions = FunctionManager(data, SOURCE, constants, num_envs, len(agents), backend)

    def prepare(
        self,
        logits: torch.Tensor,
        action: torch.Tensor,
        log_prob: torch.Tensor,
        entropy: torch.Tensor,
        mask: torch.Tensor | None = None,
        greedy: bool = False,
    ) -> Callable[[], None]:
        """A launch, packed once.

        Args:
            logits: [E, agents of the group, sum of head sizes] float32, heads side by side. Read.
            action: [E, num_agents] int32, or [E, num_agents, heads] if there are several heads. Only the
                group's columns are written.
            log_prob, entropy: [E, agents of the group] float32, summed over heads, nats. Written.
            mask: as logits, bool: actions that may be taken. A head of which none may is no choice: it takes action
                0, and adds 0 to log_prob and entropy.
            greedy: take the likeliest action, the lowest of equals, instead of drawing.
        Raises:
            ShapeError, WiringError: an array does not fit.
        """
        for name, tensor, shape in (
            ("seed", self.data["seed"], (3,)),
            ("env_step", self.data["env_step"], self._row_shape[:1]),
            ("logits", logits, self.logits_shape),
            ("action", action, self._action_shape),
            ("log_prob", log_prob, self._row_shape),
            ("entropy", entropy, self._row_shape),
            ("mask", mask, self.logits_shape),
        ):
            if tensor is not None and tuple(tensor.shape) != shape:
                raise ShapeError(f"sampler: '{name}' must be {list(shape)}, got {list(tensor.shape)}.")
        kernel = "best_actions" if greedy else "sample_actions"
        arrays = {"logits": logits, "action": action, "log_prob": log_prob, "entropy": entropy}
        if mask is not None:
            kernel, arrays["mask"] = f"{kernel}_masked", mask
        return self._functions.prepare(kernel, **arrays)

    def sample(
        self,
        logits: torch.Tensor,
        action: torch.Tensor | None = None,
        log_prob: torch.Tensor | None = None,
        entropy: torch.Tensor | None = None,
        mask: torch.Tensor | None = None,
        greedy: bool = False,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Draws once; see `prepare`. Outputs not given are made.

        Returns:
            action, log_prob, entropy.
        """
        device = self.data.device
        action = torch.zeros(self._action_shape, dtype=torch.int32, device=device) if action is None else action
        log_prob = torch.empty(self._row_shape, device=device) if log_prob is None else log_prob
        entropy = torch.empty(self._row_shape, device=device) if entropy is None else entropy
        self.prepare(logits.contiguous(), action, log_prob, entropy, mask, greedy)()
        if self._counts:
            self.data["env_step"] += 1
        return action, log_prob, entropy


def column_of(agents: range, num_agents: int, first_column: int | None) -> int:
    """Where a group starts in an action array; the first agent's number if not given. Raises ShapeError where it does
    not fit."""
    if not isinstance(agents, range) or agents.step != 1 or len(agents) < 1:
        raise ShapeError(f"sampler: agents must be a range such as range(0, 4), got {agents!r}.")
    first_column = agents.start if first_column is None else first_column
    if first_column < 0 or first_column + len(agents) > num_agents:
        raise ShapeError(
            f"sampler: {agents} in columns {first_column} to {first_column + len(agents) - 1} do not fit an action "
            f"array of {num_agents} agents. Give num_agents of that array."
        )
    return first_column


def seed_words(seed: int, first_env: int = 0) -> np.ndarray:
    """The array `seed` [3] uint32: a seed of up to 64 bits, low word first, and the number of the first env here.

    With that number, the envs of several processes draw what they would draw in one.
    """
    seed = int(seed) % 2**64
    return np.array([seed & 0xFFFFFFFF, seed >> 32, first_env], np.uint32)
