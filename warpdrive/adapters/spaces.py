"""What the adapters share: spaces, actions that are checked, seeds."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from gymnasium import spaces

from warpdrive.distribution import pip_install
from warpdrive.errors import BackendError, EnvError


def finite(space: spaces.Space) -> spaces.Space:
    """The same space with the largest numbers of its dtype where a bound was infinite.

    No observation lies between the two, since an env shows finite numbers only; but an infinite bound is taken for a
    forgotten one by the checks of other libraries.
    """
    if isinstance(space, spaces.Dict):
        return spaces.Dict({key: finite(part) for key, part in space.items()})
    if not isinstance(space, spaces.Box) or not np.issubdtype(space.dtype, np.floating):
        return space
    largest = np.finfo(space.dtype).max
    return spaces.Box(space.low.clip(-largest, largest), space.high.clip(-largest, largest), dtype=space.dtype)


def check_action(action: Any, space: spaces.Space, name: str = "action") -> torch.Tensor:
    """An action, or a batch of them, as a tensor of the space's shape.

    Integers must be inside the space. Floats may lie beyond the bounds of a Box, as a Gaussian policy's do. On a GPU
    values are not looked at, since that would wait for the device. EnvWrapper.check_actions() brings both inside.

    Raises:
        EnvError: it is of another shape or dtype, or outside; names the first place that is.
    """
    try:
        values = action if isinstance(action, torch.Tensor) else torch.from_numpy(_signed(np.array(action)))
    except (TypeError, ValueError):
        raise EnvError(f"{name} must be numbers of shape {list(space.shape)}, got {type(action).__name__}.") from None
    if values.shape != space.shape:
        raise EnvError(f"{name} must be of shape {list(space.shape)}, got {list(values.shape)}.")
    is_box = isinstance(space, spaces.Box) and np.issubdtype(space.dtype, np.floating)
    if values.dtype is torch.bool or values.is_complex() or (values.is_floating_point() and not is_box):
        wanted = "float32" if is_box else "integers"
        raise EnvError(f"{name} must be {wanted}, got {str(values.dtype).removeprefix('torch.')}.")
    if values.device.type != "cpu":
        return values
    largest = 0 if is_box else _largest(space)
    bad = ~torch.isfinite(values) if is_box else (values < 0) | (values > torch.as_tensor(largest))
    if bad.any():
        place = tuple(bad.nonzero()[0].tolist())
        where = f" at {list(place)}" if place else ""
        expected = "a finite number" if is_box else f"0 to {largest[place]}"
        raise EnvError(f"{name} is {values[place].item():g}{where}, expected {expected}.")
    return values


def _largest(space: spaces.Space) -> np.ndarray:
    """The last choice of each; Gymnasium makes a Box of integers where it batches a MultiDiscrete."""
    if isinstance(space, spaces.Box):
        return space.high
    return np.asarray(space.nvec if isinstance(space, spaces.MultiDiscrete) else space.n) - 1


def _signed(array: np.ndarray) -> np.ndarray:
    """torch compares no unsigned integers."""
    return array.astype(np.int64) if array.dtype.kind == "u" else array


def new_seed() -> int:
    """A seed that nobody chose: other libraries' envs differ from run to run unless they are given one."""
    return int(np.random.SeedSequence().generate_state(1, np.uint64)[0])


def missing(package: str, extra: str) -> BackendError:
    """The error where an optional package is not installed."""
    return BackendError(f"this adapter needs {package}: {pip_install(extra)}.")
