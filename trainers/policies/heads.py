"""Distributions over actions: what a network's last layer means."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from warpdrive.errors import EnvError


@dataclass(frozen=True)
class CategoricalHeads:
    """Independent categorical choices: one for a Discrete action, several for a MultiDiscrete one.

    `head_sizes` counts each head's choices. Logits hold the heads one after the other.
    """

    head_sizes: tuple[int, ...]

    @staticmethod
    def of_space(space: Any) -> CategoricalHeads:
        """Heads for an action space, known by its shape: Discrete has `n`, MultiDiscrete `nvec`."""
        if hasattr(space, "nvec") and space.nvec.ndim == 1:
            return CategoricalHeads(tuple(int(size) for size in space.nvec))
        if hasattr(space, "n"):
            return CategoricalHeads((int(space.n),))
        raise EnvError(f"no policy here acts in a {type(space).__name__} yet. Actions are Discrete or MultiDiscrete.")

    @property
    def num_logits(self) -> int:
        return sum(self.head_sizes)

    def log_prob_and_entropy(self, logits: torch.Tensor, action: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Of the joint action: sums over the heads.

        Args:
            logits: [N, num_logits].
            action: [N] integers for one head, [N, heads] for several.
        Returns:
            log_prob [N], entropy [N] in nats.
        """
        index = action.long().view(len(logits), len(self.head_sizes))
        log_prob = entropy = None
        for head, part in enumerate(split_heads(logits, self.head_sizes)):
            log_probs = torch.log_softmax(part, dim=-1)
            head_log_prob = log_probs.gather(-1, index[:, head : head + 1]).squeeze(-1)
            head_entropy = -(log_probs.exp() * log_probs).sum(-1)
            log_prob = head_log_prob if log_prob is None else log_prob + head_log_prob
            entropy = head_entropy if entropy is None else entropy + head_entropy
        return log_prob, entropy


def split_heads(logits: torch.Tensor, head_sizes: Sequence[int]) -> tuple[torch.Tensor, ...]:
    """Each head's logits; the whole tensor for a single head."""
    return (logits,) if len(head_sizes) == 1 else logits.split(list(head_sizes), dim=-1)
