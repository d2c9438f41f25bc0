"""The replay's law at full size: who is drawn how often, exactly, after very many draws and updates.

python benchmarks/replay_law.py --device cuda                     # seconds
python benchmarks/replay_law.py --device cpu --smaller 1000       # a look; minutes without --smaller

    chi_square  10^7 independent draws of 2^16 items against their exact chances; standard deviations off, at most 5
    zero        10^8 draws of items, half of them of priority 0: these drawn, none may be
    uses        10^6 draws of items that may be drawn 32 times each: counted by the host, and by the store
    sums        10^6 random updates with duplicates and zeros: nodes that are not the sum of their children, none may be
    runs        the same draws and updates again: whether each bit is the same

Exit code 1 if one does not hold.
"""

from __future__ import annotations

import argparse
import math
import sys
from pathlib import Path
from typing import Any

import torch
from report import write_report

from trainers.experience.field import Field
from trainers.replay.selectors import Prioritized
from trainers.replay.store import ReplayStore
from trainers.replay.sum_tree import CHILDREN, num_nodes
from trainers.replay.windows import Transitions
from warpdrive.backends import choose_backend
from warpdrive.backends.base import Backend

MANY, FEW = (257, 256), (17, 16)
"""Slots and envs of a store: 2^16 items that may be drawn, and 2^8, as the last step's follow-up is not seen yet."""
MOST_SIGMAS = 5.0
MOST_USES = 32
ZERO_SHARE = 0.5
BATCH = 65_536


class Law:
    """A table of a full store, whose draws also gather; batches of 65,536, or of one in `smaller` of few items."""

    def __init__(
        self, backend: Backend, smaller: int, limit: int = 0, alpha: float = 1.0, epsilon: float = 0.0, **options: Any
    ) -> None:
        device = backend.device
        num_slots, num_envs = MANY if smaller == 1 else FEW
        self.backend, self.number = backend, max(64, BATCH // smaller)
        store = ReplayStore([Field("reward")], num_envs, 1, 1, num_slots * num_envs, backend, seed=3)
        reward = torch.zeros(1, num_envs, 1, device=device)
        ends = torch.zeros(1, num_envs, dtype=torch.bool, device=device)
        add = store.prepare_add({"reward": reward, "terminated": ends, "truncated": ends})
        selector = Prioritized(alpha, epsilon=epsilon, **options)
        self.table = store.table("law", selector, Transitions(), max_times_sampled=limit)
        for step in range(num_slots):
            reward.copy_(torch.arange(num_envs, device=device).view(1, -1, 1) + step * num_envs)  # the item's number
            add()
            store.count_window()
        self.drawn, batch = self.table.prepare_draw(self.number)
        self.index, self.weight, self.reward = batch.index, batch.weight, batch.reward
        self.tree = self.table.selector.tree
        self.generator = torch.Generator(device).manual_seed(5)
        self.items = self.leaves.nonzero().flatten()
        """[items that may be drawn]"""
        self.set(self.items, self.random(len(self.items)).neg().log1p().neg())

    def random(self, number: int) -> torch.Tensor:
        return torch.rand(number, generator=self.generator, device=self.backend.device)

    def set(self, index: torch.Tensor, priority: torch.Tensor) -> None:
        self.table.prepare_update(index, priority, in_order=False)()

    @property
    def leaves(self) -> torch.Tensor:
        return self.tree.leaves[: self.tree.anchors.num_leaves].long()

    def count(self, number: int) -> torch.Tensor:
        """How often each item is drawn, of at least so many draws; those of weight 0 do not count."""
        found = torch.zeros_like(self.leaves)
        for _ in range(math.ceil(number / self.number)):
            self.drawn()
            found.index_add_(0, self.index, (self.weight > 0).long())
        assert torch.equal(self.reward.view(-1).long(), self.index)  # what is gathered is of who was drawn
        return found


def chi_square(backend: Backend, number: int, smaller: int) -> dict[str, Any]:
    law = Law(backend, smaller, is_stratified=False)
    found, leaves = law.count(number).double(), law.leaves.double()
    expected = leaves / leaves.sum() * found.sum()
    few = expected < 5  # what is expected less than 5 times is put together
    pairs = [(found[~few], expected[~few]), (found[few].sum().view(1), expected[few].sum().view(1))]
    statistic = sum(((f - e).square() / e.clamp_min(1e-9)).sum().item() for f, e in pairs)
    freedom = int((~few).sum()) + int(few.any()) - 1
    sigmas = (statistic - freedom) / math.sqrt(2 * freedom)
    told = {"draws": int(found.sum()), "chi_square": round(statistic, 1), "degrees_of_freedom": freedom}
    return {**told, "sigmas": round(sigmas, 2), "holds": abs(sigmas) < MOST_SIGMAS}


def zero(backend: Backend, number: int, smaller: int) -> dict[str, Any]:
    law = Law(backend, smaller)
    number_of = len(law.items)
    law.set(law.items, torch.where(law.random(number_of) < ZERO_SHARE, 0.0, law.random(number_of) + 1e-3))
    found = law.count(number)
    is_zero = torch.zeros_like(law.leaves, dtype=torch.bool)
    is_zero[law.items] = law.leaves[law.items] == 0
    told = {"draws": int(found.sum()), "items_of_zero": int(is_zero.sum()), "drawn_of_them": int(found[is_zero].sum())}
    return {**told, "holds": told["drawn_of_them"] == 0 and told["items_of_zero"] > 0}


def uses(backend: Backend, number: int, smaller: int) -> dict[str, Any]:
    law = Law(backend, smaller, limit=MOST_USES)
    found = law.count(number)
    is_same = torch.equal(found, law.tree.uses.long()) and int(found.max()) <= MOST_USES
    return {"draws": int(found.sum()), "most": int(found.max()), "holds": bool(is_same)}


def sums(backend: Backend, number: int, smaller: int) -> dict[str, Any]:
    law, wrong, done = Law(backend, smaller), 0, 0
    while done < number:
        index = law.items[(law.random(law.number).square() * len(law.items)).long()]  # some are often twice in a batch
        priority = torch.where(law.random(law.number) < 0.3, 0.0, law.random(law.number) * 3)
        law.set(index, priority)
        done += law.number
    nodes, below, start = law.tree.nodes, law.tree.leaves.long(), 0
    for level in num_nodes(len(law.leaves))[1:]:
        ours = nodes[start : start + level]
        wrong += int((below.view(-1, CHILDREN).sum(1)[:level] != ours).sum())
        size = -(-level // CHILDREN) * CHILDREN
        below, start = nodes[start : start + size], start + size
    return {"updates": done, "wrong_nodes": wrong, "holds": wrong == 0 and int(nodes.sum()) > 0}


def runs(backend: Backend, number: int, smaller: int) -> dict[str, Any]:
    told = []
    for _ in range(3):
        law, done = Law(backend, smaller, alpha=0.6, epsilon=1e-6), 0
        while done < number:
            law.drawn()
            law.set(law.index, law.random(law.number))
            done += law.number
        told.append((law.index.cpu(), law.weight.cpu(), law.tree.leaves.cpu(), law.tree.nodes.cpu()))
    is_same = all(torch.equal(a, b) for one in told[1:] for a, b in zip(told[0], one, strict=True))
    return {"draws": done, "runs": len(told), "holds": is_same}


LAWS = {"chi_square": (chi_square, 10**7), "zero": (zero, 10**8), "uses": (uses, 10**6), "sums": (sums, 10**6),
        "runs": (runs, 10**6)}  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--laws", nargs="+", choices=LAWS, default=list(LAWS))
    parser.add_argument("--smaller", type=int, default=1, help="divide numbers of draws and updates by this")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    if given.smaller < 1:
        parser.error(f"--smaller must be at least 1, got {given.smaller}")
    backend, results = choose_backend(device=given.device), {}
    for name in given.laws:
        law, number = LAWS[name]
        results[name] = law(backend, max(1, number // given.smaller), given.smaller)
    write_report(f"replay_law_{backend.name}", backend, results, given.out)
    return int(not all(one["holds"] for one in results.values()))


if __name__ == "__main__":
    sys.exit(main())
