"""Choices from lists of actions."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

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


def split_heads(logits: torch.Tensor, head_sizes: Sequence[int]) -> tuple[torch.Tensor, ...]:
    """Each head's logits; the whole tensor for a single head."""
    return (logits,) if len(head_sizes) == 1 else logits.split(list(head_sizes), dim=-1)
