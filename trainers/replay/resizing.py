"""From one store's memory to another's, larger or smaller."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from trainers.replay.storage import TERMINATED, TRUNCATED, Layout

if TYPE_CHECKING:
    from trainers.replay.listing import Listing
    from trainers.replay.store import ReplayStore


@dataclass(frozen=True)
class Kept:
    """What a store holds."""

    layout: Layout
    rings: dict[str, torch.Tensor]
    small: dict[str, torch.Tensor]


def store_of_size(store: ReplayStore, listing: Listing) -> ReplayStore | None:
    """One of the size that another run's had, to read its files into, where nothing but that differs; None where it
    does not, or more does, or where steps do not simply lie in a ring."""
    was, now = listing.layout, store.layout.described()
    differing = {key for key in now if was.get(key) != now[key]}
    if not differing or differing - {"num_slots", "num_sides"} or store.tiered is not None or listing.gaps:
        return None
    try:
        layout = Layout.of_description(was)
    except (KeyError, TypeError, ValueError):
        return None
    if layout.num_slots != listing.num_slots or layout.num_slots % layout.num_steps:
        return None
    sizes = {"num_slots": layout.num_slots, "num_sides": layout.num_sides}
    return type(store).of_layout(dataclasses.replace(store.layout, **sizes), store.backend)


def move(old: Kept, new: Kept, head: int) -> None:
    """Copies what fits, the newest steps, to their new slots and rows.

    Args:
        head: steps so far.
    """
    num_slots, num_steps = min(old.layout.num_slots, new.layout.num_slots), new.layout.num_steps
    # The slot of step `head` holds what was seen last; ahead of the oldest step nothing is whole.
    begin, shift = max(0, head - num_slots + 1), 0
    if begin and new.layout.num_slots > old.layout.num_slots:
        # Steps are counted anew: else it would look as if older ones were in slots that nothing was written to.
        begin = shift = -(-begin // num_steps) * num_steps
    for name, ring in new.rings.items():
        every = old.layout[name].every if name in old.layout else 1
        for row in range(begin // every, head // every + 1):
            ring[(row - shift // every) % len(ring)].copy_(old.rings[name][row % len(old.rings[name])])
    rows = _move_sides(old, new, shift)
    done, envs = new.rings["done"], torch.arange(new.layout.num_envs, device=new.rings["done"].device)
    for step in range(begin, head):
        code = old.rings["done"][step % len(old.rings["done"])].long()
        row = rows[(code - TRUNCATED).clamp_min(0), envs]
        new.small["num_dropped"] += (code >= TRUNCATED) & (row < 0)
        moved = torch.where(code >= TRUNCATED, torch.where(row < 0, TERMINATED, TRUNCATED + row), code)
        done[(step - shift) % len(done)].copy_(moved)
    done[(head - shift) % len(done)].zero_()  # of the oldest step, which is gone
    new.small["head"].fill_(head - shift)


def _move_sides(old: Kept, new: Kept, shift: int) -> torch.Tensor:
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
    new.small["side_step"].sub_(shift).clamp_min_(0)
    return moved
