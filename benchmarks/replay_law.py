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

from trainers.replay.sum_tree import CHILDREN, Anchors, SumTree, num_nodes
from warpdrive.backends import choose_backend
from warpdrive.backends.base import Backend

MANY, FEW = Anchors(num_slots=257, num_rows=256), Anchors(num_slots=17, num_rows=16)
"""2^16 items that may be drawn, and 2^8: the first slot has what is seen now."""
MOST_SIGMAS = 5.0
MOST_USES = 32
ZERO_SHARE = 0.5
BATCH = 65_536


class Law:
    """A tree with its draws and updates packed; batches of 65,536, or of one in `smaller` of them from few items."""

    def __init__(self, backend: Backend, smaller: int, **options: Any) -> None:
        device = backend.device
        self.items = items = MANY if smaller == 1 else FEW
        head = torch.full((1,), items.num_slots, dtype=torch.int64, device=device)
        seed = torch.tensor([3, 4, 0], dtype=torch.uint32, device=device)
        self.backend, self.number = backend, max(64, BATCH // smaller)
        self.tree = SumTree(items, head, backend, seed, **options)
        self.tree.follow()
        self.index = torch.zeros(self.number, dtype=torch.int64, device=device)
        self.weight = torch.zeros(self.number, device=device)
        self.drawn = self.tree.prepare_draw(self.index, self.weight)
        self.generator = torch.Generator(device).manual_seed(5)
        every = torch.arange(items.num_rows, items.num_leaves, device=device)
        self.set(every, self.random(len(every)).neg().log1p().neg())

    def random(self, number: int) -> torch.Tensor:
        return torch.rand(number, generator=self.generator, device=self.backend.device)

    def set(self, index: torch.Tensor, priority: torch.Tensor) -> None:
        self.tree.prepare_set(index, priority, in_order=False)()

    @property
    def leaves(self) -> torch.Tensor:
        return self.tree.leaves[: self.items.num_leaves].long()

    def count(self, number: int) -> torch.Tensor:
        """How often each item is drawn, of at least so many draws; those of weight 0 do not count."""
        found = torch.zeros(self.items.num_leaves, dtype=torch.int64, device=self.backend.device)
        for _ in range(math.ceil(number / self.number)):
            self.drawn()
            found.index_add_(0, self.index, (self.weight > 0).long())
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
    index = torch.arange(law.items.num_rows, law.items.num_leaves, device=backend.device)
    law.set(index, torch.where(law.random(len(index)) < ZERO_SHARE, 0.0, law.random(len(index)) + 1e-3))
    found = law.count(number)
    is_zero = law.leaves == 0
    told = {"draws": int(found.sum()), "items_of_zero": int(is_zero.sum()), "drawn_of_them": int(found[is_zero].sum())}
    return {**told, "holds": told["drawn_of_them"] == 0 and told["items_of_zero"] > 0}


def uses(backend: Backend, number: int, smaller: int) -> dict[str, Any]:
    law = Law(backend, smaller, max_uses=MOST_USES)
    found = law.count(number)
    is_same = torch.equal(found, law.tree.uses.long()) and int(found.max()) <= MOST_USES
    return {"draws": int(found.sum()), "most": int(found.max()), "holds": bool(is_same)}


def sums(backend: Backend, number: int, smaller: int) -> dict[str, Any]:
    law, wrong, done = Law(backend, smaller), 0, 0
    while done < number:
        index = (law.random(law.number).square() * law.items.num_leaves).long()  # low ones are often twice in a batch
        priority = torch.where(law.random(law.number) < 0.3, 0.0, law.random(law.number) * 3)
        law.set(index, priority)
        done += law.number
    nodes, below, start = law.tree.nodes, law.tree.leaves.long(), 0
    for level in num_nodes(law.items.num_leaves)[1:]:
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
