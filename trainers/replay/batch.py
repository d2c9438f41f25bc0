"""What a draw gives."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch


@dataclass(frozen=True)
class Batch:
    """N items, in memory that the next draw of as many overwrites. (A) is there where an item is an env with all of its
    agents."""

    index: torch.Tensor
    """[N] int64: which items; what `Table.update` takes."""
    weight: torch.Tensor
    """[N] float32: that a loss takes; 0 where there was nothing to draw."""
    observation: dict[str, torch.Tensor] = field(default_factory=dict)
    """[N, (A), (stack), *shape] by the field's name, in its dtype."""
    next_observation: dict[str, torch.Tensor] = field(default_factory=dict)
    """The same after the last step that counts: before any reset. Where nothing follows, whatever was there."""
    action: torch.Tensor | None = None
    """[N, (A), *shape]; whole numbers as int64."""
    reward: torch.Tensor | None = None
    """[N, (A)]: of the steps that count, discounted and added up."""
    discount: torch.Tensor | None = None
    """[N, (A)]: of what comes after them; 0 where nothing does."""
    mask: torch.Tensor | None = None
    """[N, (A), actions] bool: what could be done."""
    next_mask: torch.Tensor | None = None
    """The same after the last step that counts; where the episode ended, which does not say it, everything."""
    active: torch.Tensor | None = None
    """[N, (A)] float32: 0 where the agent was not in the game; None if all always are."""
    starts: torch.Tensor | None = None
    """[rows, N, (A)] bool: whether what was remembered ends ahead of the row, as an episode did. This and what follows
    is of sequences alone: there every tensor but `fields` with `every` above 1 begins with an axis of rows, burn-in +
    length + n_step of what is seen, burn-in + length of what is done, length of rewards and discounts."""
    valid: torch.Tensor | None = None
    """[length, N, (A)] float32: 0 where there is nothing to learn: the agent was not in the game; or the episode was
    truncated with this step, and no row has what was seen last."""
    bootstrap: torch.Tensor | None = None
    """[length, N] int64: the row whose value `discount` is of."""
    fields: dict[str, torch.Tensor] = field(default_factory=dict)
    """[N, (A), *shape]: every other field as it was at the item's step, by name."""
