"""States of the generators that the user's code may draw from: Python's, numpy's and torch's."""

from __future__ import annotations

import hashlib
import math
import random
import struct
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from warpdrive.errors import CheckpointError

CPU_BYTES, MERSENNE_WORDS = 5056, 624
"""Of the state of torch's generator on a CPU; numbers that it makes at once."""
NORMALS, NORMAL = 24 + 8 * MERSENNE_WORDS, 48 + 8 * MERSENNE_WORDS + 8
"""Where in it three doubles and a float lie that it keeps of normal distributions."""


def seed_everything(seed: int) -> None:
    """Seeds all of them."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)


def generator_states(minibatches: Mapping[str, torch.Generator]) -> dict[str, Any]:
    """Their states, as JSON takes them; and of the generators that order each policy's minibatches."""
    kind, keys, *rest = np.random.get_state()
    states = {
        "python": random.getstate(),
        "numpy": [kind, keys.tolist(), *rest],
        "torch": _to_text(torch.get_rng_state()),
        "minibatches": {name: _to_text(generator.get_state()) for name, generator in minibatches.items()},
    }
    if torch.cuda.is_available():
        states["cuda"] = _to_text(torch.cuda.get_rng_state())
    return states


def prepare_generators(states: Any, file: Path | str, minibatches: Mapping[str, torch.Generator]) -> Callable[[], None]:
    """Checks what `generator_states` gave, on generators of no consequence; the result sets the real ones.

    Raises:
        CheckpointError: a state is missing or is none. Then no generator has changed.
    """
    if not isinstance(states, dict):
        raise CheckpointError(f"{file}: expected keys and values, got a {type(states).__name__}.")
    if missing := [name for name in ("python", "numpy", "torch", "minibatches") if name not in states]:
        raise CheckpointError(f"{file}: lacks {', '.join(missing)}. Use an older checkpoint.")
    calls = [
        _prepare("python", states, _python_state, random.Random().setstate, random.setstate, file),
        _prepare("numpy", states, _numpy_state, np.random.RandomState().set_state, np.random.set_state, file),
        _prepare("torch", states, _torch_state, torch.Generator().set_state, torch.set_rng_state, file),
    ]
    if "cuda" in states and torch.cuda.is_available():
        trial = torch.Generator("cuda").set_state
        calls.append(_prepare("cuda", states, _torch_state, trial, torch.cuda.set_rng_state, file))
    for name, generator in minibatches.items():
        trial = torch.Generator(generator.device).set_state
        calls.append(_prepare(name, states["minibatches"], _torch_state, trial, generator.set_state, file))

    def restore() -> None:
        for call in calls:
            call()

    return restore


def new_of_ranks(states: Any, minibatches: dict[str, torch.Generator], seed: int, iteration: int) -> Callable[[], None]:
    """Takes those generators out of `minibatches` that a checkpoint of another number of ranks knows nothing of; the
    result seeds them, each by its name and by the iterations made."""
    known = states.get("minibatches", {}) if isinstance(states, dict) else {}
    new = {name: minibatches.pop(name) for name in list(minibatches) if name not in known}

    def reseed() -> None:
        for name, generator in new.items():
            digest = hashlib.sha256(f"{seed} {iteration} {name}".encode()).digest()
            generator.manual_seed(int.from_bytes(digest[:8]) >> 1)

    return reseed


def _prepare(
    name: str,
    states: dict[str, Any],
    read: Callable[[Any], Any],
    trial: Callable[[Any], Any],
    real: Callable[[Any], Any],
    file: Path | str,
) -> Callable[[], Any]:
    try:
        state = read(states[name])
        trial(state)
    except (KeyError, IndexError, TypeError, ValueError, OverflowError, RuntimeError, AttributeError) as error:
        reason = " ".join((str(error) or type(error).__name__).split())
        raise CheckpointError(f"{file}: '{name}' is no state of a generator ({reason}).") from None
    return lambda: real(state)


def _to_text(state: torch.Tensor) -> str:
    return state.numpy().tobytes().hex()


def _python_state(state: Any) -> Any:
    version, numbers, gauss = state
    _check_gauss(gauss is not None, gauss)
    return version, tuple(numbers), gauss


def _numpy_state(state: Any) -> Any:
    kind, keys, position, has_gauss, gauss = state
    if kind != "MT19937" or type(position) is not int or not 0 <= position <= len(keys):  # numpy itself does not look
        raise ValueError(f"position {position!r} of {len(keys)} numbers")
    _check_gauss(has_gauss, gauss)
    return kind, np.array(keys, np.uint32), position, has_gauss, gauss


def _check_gauss(is_there: Any, gauss: Any) -> None:
    if is_there not in (0, 1) or (is_there and not (isinstance(gauss, float) and math.isfinite(gauss))):
        raise ValueError(f"{gauss!r} as the next number of a normal distribution")


def _torch_state(state: Any) -> torch.Tensor:
    content = bytearray.fromhex(state)
    if len(content) == CPU_BYTES:  # torch looks at each of these numbers by itself, and reads beyond its own
        left, drawn = struct.unpack_from("<8xi4xQ", content)
        if left + drawn != MERSENNE_WORDS + 1 and (left, drawn) != (1, 0):
            raise ValueError(f"{left} numbers left after {drawn} of {MERSENNE_WORDS}")
        gauss = (*struct.unpack_from("<3d", content, NORMALS), *struct.unpack_from("<f", content, NORMAL))
        if not all(map(math.isfinite, gauss)):
            raise ValueError("the next number of a normal distribution is none")
    return torch.frombuffer(content, dtype=torch.uint8)
