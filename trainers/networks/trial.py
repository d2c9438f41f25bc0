"""Whether a network from outside does what is asked of one, tried on two rows of zeros."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from numbers import Integral
from typing import Any

import torch

from trainers.networks.features import Inputs, Observation, as_sequence

NUM_ROWS, NUM_STEPS = 2, 3


def try_network(network: Any, inputs: Inputs, heads: Mapping[str, int]) -> str | None:
    """What is wrong with it, as a part of a sentence; None if nothing is seen. What it raises is its own."""
    if (why := _why_not_by_name(network)) is not None:
        return why
    seen, of_critic = _zeros(network, inputs)
    if not network.memory_size:
        found = network(seen, of_critic)
        return _why_not_heads(found, "its forward", "two rows", [NUM_ROWS], heads)
    return _why_not_recurrent(network, seen, of_critic, heads)


def _why_not_by_name(network: Any) -> str | None:
    """What is wrong with what it says of itself."""
    for name, value, takes, is_one in (
        ("sees", network.sees, "'rows' or 'arrays'", network.sees in ("rows", "arrays")),
        ("memory_size", network.memory_size, "a whole number of at least 0", _is_whole(network.memory_size, 0)),
        (
            "sequence_length",
            network.sequence_length,
            "a whole number of at least 1, or None",
            network.sequence_length is None or _is_whole(network.sequence_length, 1),
        ),
    ):
        if not is_one:
            return f"its {name} is {value!r}, expected {takes}"
    return None


def _is_whole(value: Any, least: int) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool) and value >= least


def _zeros(network: Any, inputs: Inputs) -> tuple[Observation, torch.Tensor | None]:
    """What it sees, and its critic."""
    seen: Observation = torch.zeros(NUM_ROWS, inputs.num_features)
    if network.sees == "arrays":
        seen = {
            key: torch.zeros(NUM_ROWS, *space.shape, dtype=getattr(torch, str(space.dtype)))
            for key, space in inputs.spaces.items()
        }
    num = inputs.num_critic_features
    return seen, None if num is None else torch.zeros(NUM_ROWS, num)


def _why_not_recurrent(
    network: Any, seen: Observation, of_critic: torch.Tensor | None, heads: Mapping[str, int]
) -> str | None:
    """By a sequence whose second step begins an episode in the first row."""
    steps = as_sequence(seen), None if of_critic is None else as_sequence(of_critic)
    sequence = [None if one is None else _repeated(one) for one in steps]
    starts = torch.zeros(NUM_STEPS, NUM_ROWS, dtype=torch.bool)
    starts[1, 0] = True
    ways: list[tuple[int, tuple]] = [(0, ())]
    if "burn_in" in inspect.signature(network.unroll).parameters:
        ways.append((1, (1,)))
    for burn_in, given in ways:
        with torch.enable_grad():
            memory = torch.zeros(NUM_ROWS, network.memory_size, requires_grad=True)
            found = network.unroll(*sequence, 1.0 * memory, starts, *given)
            if not (isinstance(found, tuple) and len(found) == 2):
                return f"expected (a dict by head, the memory) of its unroll, and got a {found.__class__.__name__}"
            told = f"{NUM_STEPS} steps of two rows" + (f" with burn_in {burn_in}" if burn_in else "")
            shape = [NUM_STEPS - burn_in, NUM_ROWS]
            if (why := _why_not_heads(found[0], "its unroll", told, shape, heads)) is not None:
                return why
            after, expected = found[1], [NUM_ROWS, network.memory_size]
            if not isinstance(after, torch.Tensor) or list(after.shape) != expected or after.dtype != torch.float32:
                return f"gave {_what(after)} as the memory after {told}, expected {expected} float32"
            total = sum(found[0][name].sum() for name in heads)
            (by_memory,) = torch.autograd.grad(total, memory, allow_unused=True) if total.requires_grad else (None,)
        if burn_in and by_memory is not None and by_memory.abs().max() > 0:
            return "its unroll lets gradients reach what comes before its burn_in. Detach the memory there"
    return None


def _repeated(sequence: Observation) -> Observation:
    if isinstance(sequence, dict):
        return {name: _repeated(one) for name, one in sequence.items()}
    return sequence.repeat(NUM_STEPS, *(1 for _ in sequence.shape[1:]))


def _why_not_heads(found: Any, of: str, told: str, shape: list[int], heads: Mapping[str, int]) -> str | None:
    if not isinstance(found, Mapping):
        return f"expected a dict by head of {of}, and got a {found.__class__.__name__}"
    for name, size in heads.items():
        one, expected = found.get(name), [*shape, size]
        if not isinstance(one, torch.Tensor) or list(one.shape) != expected or one.dtype != torch.float32:
            return f"gave {_what(one)} as '{name}' for {told}, expected {expected} float32"
    return None


def _what(one: Any) -> str:
    if not isinstance(one, torch.Tensor):
        return "nothing" if one is None else f"a {one.__class__.__name__}"
    return f"{list(one.shape)} {str(one.dtype).removeprefix('torch.')}"
