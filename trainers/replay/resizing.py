"""From one store's memory to another's, larger or smaller."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from trainers.replay.storage import TERMINATED, TRUNCATED, Layout


@dataclass(frozen=True)
class Kept:
    """What a store holds."""

    layout: Layout
    rings: dict[str, torch.Tensor]
    small: dict[str, torch.Tensor]


def move(old: Kept, new: Kept, head: int, first: int) -> None:
    """Copies what fits, the newest steps, to their new slots and rows.

    Args:
        head: steps so far.
        first: the first that the old one may hold.
    """
    num_slots = min(old.layout.num_slots, new.layout.num_slots)
    # The slot of step `head` holds what was seen last; ahead of the oldest step nothing is whole.
    begin = max(first, head - num_slots + 1)
    for name, ring in new.rings.items():
        every = old.layout[name].every if name in old.layout else 1
        begin_row = begin // every
        for row in range(begin_row, head // every + 1):
            ring[row % len(ring)].copy_(old.rings[name][row % len(old.rings[name])])
    rows = _move_sides(old, new)
    done, envs = new.rings["done"], torch.arange(new.layout.num_envs, device=new.rings["done"].device)
    for step in range(begin, head):
        slot = step % len(done)
        code = old.rings["done"][step % len(old.rings["done"])].long()
        row = rows[(code - TRUNCATED).clamp_min(0), envs]
        is_lost = (code >= TRUNCATED) & (row < 0)
        new.small["num_dropped"] += is_lost
        moved = torch.where(code >= TRUNCATED, torch.where(row < 0, TERMINATED, TRUNCATED + row), code)
        done[slot].copy_(moved)
    new.small["head"].copy_(torch.tensor([head, head, begin]))


def _move_sides(old: Kept, new: Kept) -> torch.Tensor:
    """[old rows, E]: where each row of the sides is now; -1: nowhere."""
    number = old.small["num_truncated"]
    envs, had, has = torch.arange(len(number), device=number.device), old.layout.num_sides, new.layout.num_sides
    for name in ("num_truncated", "num_dropped"):
        new.small[name].copy_(old.small[name])
    moved = torch.full((had, len(number)), -1, dtype=torch.int64, device=number.device)
    for back in range(1, min(had, has) + 1):
        (of,) = torch.nonzero(number >= back, as_tuple=True)
        count = number[of] - back
        source, goal, env = count % had, count % has, envs[of]
        moved[source, env] = goal
        for name, one in new.small.items():
            if name.startswith("side_"):
                one[goal, env] = old.small[name][source, env]
    return moved
