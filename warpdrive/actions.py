"""Actions that a caller gives: those outside their space are counted and brought into it, on the device."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import torch
from gymnasium import spaces

from warpdrive.backends.base import KERNELS_FOLDER, Backend, LaunchShape
from warpdrive.data_manager import DataManager
from warpdrive.env import Group
from warpdrive.errors import EnvError
from warpdrive.function_manager import FunctionManager
from warpdrive.layout import Layout

SOURCE = KERNELS_FOLDER / "actions.cu"
THREADS, MAX_BLOCKS = 256, 1024


class ActionCheck:
    """Keeps the action arrays of an env within their spaces: one launch an array, and the host waits for nothing.

    Args:
        data: holds the arrays.
        num_invalid: [1] int64, to which each number outside its space adds 1.
    """

    def __init__(
        self,
        data: DataManager,
        layout: Layout,
        groups: Mapping[str, Group],
        backend: Backend,
        num_invalid: torch.Tensor,
    ) -> None:
        self._data = data
        self._layout = layout
        self._groups = groups
        self._num_invalid = num_invalid
        functions = FunctionManager(None, SOURCE, backend=backend)
        self._bounds = {name: self._bounds_of(name) for name in layout.actions}
        self._calls: dict[str, Callable[[], None]] = {}
        for name, (lowest, highest) in self._bounds.items():
            array = data[name]
            num_blocks = min(-(-array.numel() // THREADS), MAX_BLOCKS) if array.is_cuda else 1
            self._calls[name] = functions.prepare(
                "clamp_numbers" if array.is_floating_point() else "clamp_choices",
                LaunchShape(num_blocks, (THREADS if array.is_cuda else 1, 1)),
                action=array,
                lowest=torch.from_numpy(lowest).to(array.device),
                highest=torch.from_numpy(highest).to(array.device),
                num_invalid=num_invalid,
                num_envs=array.shape[0],
                num_columns=lowest.size,
            )

    def clamp(self) -> None:
        """Counts what is outside, and takes the nearest number in the space instead; of a NaN, the lowest."""
        for call in self._calls.values():
            call()

    def raise_if_outside(self) -> None:
        """Waits for the device.

        Raises:
            EnvError: names array, env, agent, and what was given there.
        """
        for name, (lowest, highest) in self._bounds.items():
            values = self._data.pull(name)
            rows = values.reshape(len(values), -1)
            outside = np.argwhere(~((rows >= lowest) & (rows <= highest)))
            if not len(outside):
                continue
            env, column = (int(one) for one in outside[0])
            of_array = [group for group, place in self._layout.action.items() if place.array == name]
            first = min(self._groups[group].agents.start for group in of_array)
            agent = first + column // (lowest.size // self._layout.actions[name].num_agents)
            raise EnvError(
                f"{name}: env {env}, agent {agent} is given {rows[env, column]}, which is not in its space: "
                f"{lowest[column]} to {highest[column]}. Outside debug mode it would count as the nearest in it."
            )

    def _bounds_of(self, name: str) -> tuple[np.ndarray, np.ndarray]:
        """Lowest and highest of each number of one env's row."""
        array = self._layout.actions[name]
        bounds = np.zeros((2, array.num_agents, *array.shape), array.dtype)
        for group, place in self._layout.action.items():
            if place.array != name:
                continue
            space = self._groups[group].action_space
            if isinstance(space, spaces.Box):
                bounds[0, place.columns], bounds[1, place.columns] = space.low, space.high
            else:
                bounds[1, place.columns] = (space.n if isinstance(space, spaces.Discrete) else space.nvec) - 1
        return bounds[0].reshape(-1), bounds[1].reshape(-1)
