"""What checkpoints of older versions hold, as this one reads it."""

from __future__ import annotations

import torch

_COUNTS_OF_32_BITS = {"env_step", "running_length", "length_sum", "num_ended", "num_dropped"}


def of_this_version(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Tensors of an older version as they are now: of a policy mean and square of returns, and Box actions in their own
    unit; of the envs counts of 32 bits, of which the steps went on below 0."""
    for name in _COUNTS_OF_32_BITS & tensors.keys():
        if tensors[name].dtype == torch.int32:
            tensors[name] = tensors[name].long() & 0xFFFFFFFF
    if "value_norm.running_mean" in tensors:
        mean, square = (tensors.pop(f"value_norm.running_{word}").double() for word in ("mean", "square"))
        weight = tensors["value_norm.weight"] = tensors["value_norm.weight"].double()
        mean, square = mean / weight.clamp_min(1e-9), square / weight.clamp_min(1e-9)
        tensors |= {"value_norm.mean": mean, "value_norm.variance": (square - mean.square()).clamp_min(0.0)}
    if "head.log_std" in tensors and "head.scale" not in tensors:
        one = torch.ones_like(tensors["head.log_std"])
        tensors |= {"head.centre": 0.0 * one, "head.scale": one}
    return tensors
