"""Distributions over actions: what a network's last layer means."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from gymnasium import spaces
from torch import nn

from warpdrive.errors import EnvError

MASKED = -1e9
"""The logit of an action that may not be taken: its probability is exactly 0, and no gradient is a NaN."""


class CategoricalHeads(nn.Module):
    """Independent categorical choices: one for a Discrete action, several for a MultiDiscrete one.

    `head_sizes` counts each head's choices. Outputs are logits, the heads one after the other.
    """

    def __init__(self, head_sizes: Sequence[int]) -> None:
        super().__init__()
        self.head_sizes = tuple(int(size) for size in head_sizes)

    @property
    def num_outputs(self) -> int:
        return sum(self.head_sizes)

    def log_prob_and_entropy(
        self, outputs: torch.Tensor, action: torch.Tensor, mask: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Of the joint action: sums over the heads, which are independent.

        Args:
            outputs: [N, num_outputs] logits.
            action: [N] integers for one head, [N, heads] for several.
            mask: [N, num_outputs] bool, actions that may be taken. A head that allows none has log-probability
                and entropy 0: there is no choice.
        Returns:
            log_prob [N], entropy [N] in nats.
        """
        index = action.long().view(len(outputs), len(self.head_sizes))
        masks = [None] * len(self.head_sizes) if mask is None else split_heads(mask, self.head_sizes)
        log_prob = entropy = None
        for head, (logits, allowed) in enumerate(zip(split_heads(outputs, self.head_sizes), masks, strict=True)):
            if allowed is not None:
                logits = logits.masked_fill(~allowed, MASKED)
            log_probs = torch.log_softmax(logits, dim=-1)
            head_log_prob = log_probs.gather(-1, index[:, head : head + 1]).squeeze(-1)
            head_entropy = -(log_probs.exp() * log_probs).sum(-1)
            if allowed is not None:
                has_choice = allowed.any(-1)
                head_log_prob, head_entropy = head_log_prob * has_choice, head_entropy * has_choice
            log_prob = head_log_prob if log_prob is None else log_prob + head_log_prob
            entropy = head_entropy if entropy is None else entropy + head_entropy
        return log_prob, entropy


class GaussianHead(nn.Module):
    """A normal distribution for each number of a Box action, independent of each other.

    Outputs are the means. The standard deviation is a parameter of its own, the same in every state.
    The env gets the action clipped to the Box; everything here is of the action as drawn.

    Source: Huang et al. 2022, "The 37 implementation details of PPO", details 14 to 16 and 18.
    """

    def __init__(self, space: spaces.Box, log_std_init: float) -> None:
        super().__init__()
        self.space = space
        self.log_std = nn.Parameter(torch.full(space.shape, log_std_init, dtype=torch.float32))

    @property
    def num_outputs(self) -> int:
        return len(self.log_std)

    def log_prob_and_entropy(
        self, outputs: torch.Tensor, action: torch.Tensor, mask: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Of the whole action: sums over its numbers.

        Args:
            outputs: [N, n] means.
            action: [N, n] as drawn, not clipped.
            mask: must be None: there is nothing to choose from.
        Returns:
            log_prob [N], entropy [N] in nats.
        """
        deviate = (action - outputs) * torch.exp(-self.log_std)
        half_log_two_pi = 0.5 * math.log(2 * math.pi)
        log_prob = -(0.5 * deviate.square() + self.log_std + half_log_two_pi).sum(-1)
        entropy = (0.5 + half_log_two_pi + self.log_std).sum().expand(len(outputs))
        return log_prob, entropy


Head = CategoricalHeads | GaussianHead


def make_head(space: Any, log_std_init: float = 0.0) -> Head:
    """The head for an action space, known by its shape: Discrete has `n`, MultiDiscrete `nvec`, Box `low`.

    Raises:
        EnvError: no head acts in such a space.
    """
    if hasattr(space, "nvec") and space.nvec.ndim == 1:
        return CategoricalHeads(space.nvec)
    if hasattr(space, "n"):
        return CategoricalHeads([space.n])
    if hasattr(space, "low") and len(space.shape) == 1 and space.dtype.kind == "f":
        return GaussianHead(space, log_std_init)
    shape = f" of shape {list(space.shape)}" if getattr(space, "shape", None) else ""
    shape += f", {space.dtype}" if hasattr(space, "low") else ""
    raise EnvError(
        f"no policy here acts in a {type(space).__name__}{shape}. "
        "Actions are Discrete, MultiDiscrete [heads] or Box [n] of floats."
    )


def split_heads(logits: torch.Tensor, head_sizes: Sequence[int]) -> tuple[torch.Tensor, ...]:
    """Each head's logits; the whole tensor for a single head."""
    return (logits,) if len(head_sizes) == 1 else logits.split(list(head_sizes), dim=-1)
