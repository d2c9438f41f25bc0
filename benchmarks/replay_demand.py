"""What published algorithms ask of a replay store, as synthetic load: the highest multiple of their rates that is held.

python benchmarks/replay_demand.py --device cuda
python benchmarks/replay_demand.py --device cpu --smaller 1000 --rounds 2

Each row keeps so many items of so many bytes, takes in and draws items at the published rates, and gives what is drawn
by priority new ones. An item here is one step with an observation of its bytes, drawn with the one that follows; frames
are one uint8 frame a step, and stacks of four are made at the draw. A multiple is the published second over the time
that its work takes here.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from report import NUM_REPEATS, median, time_calls, write_report

from trainers.experience.field import Field
from trainers.replay.selectors import Prioritized, Uniform
from trainers.replay.store import ReplayStore
from trainers.replay.sum_tree import all_of
from trainers.replay.table import Table
from trainers.replay.windows import Transitions
from warpdrive.backends import choose_backend
from warpdrive.backends.base import Backend

FRAME, STACK = 84 * 84, 4
MOST_BATCH, MOST_BATCH_BYTES = 512, 256 << 20
NUM_STEPS, MOST_ENVS = 1, 64


@dataclass(frozen=True)
class Demand:
    """A row of published rates, in items."""

    kept: int
    num_bytes: int
    """Of an item as it is told: stacks of float32 frames, where it has any."""
    added: float
    """A second."""
    drawn: float
    needs: str = ""
    """"priorities", "use count" or nothing."""
    num_frames: int = 0
    """Frames of 84 x 84 that an item is, as one uint8 frame a step; 0: it has none."""

    @property
    def bytes_here(self) -> int:
        """Of an item as it is kept here."""
        return self.num_frames * FRAME if self.num_frames else self.num_bytes


STACKED_BYTES = STACK * FRAME * 4
DEMANDS = {
    "DQN, Atari Qbert": Demand(400_000, 110_000, 400, 1650, "priorities", 1),
    "PPO off-policy, Atari Qbert": Demand(100_000, 120_000, 50, 87, "use count", 1),
    "R2D2, Atari Qbert": Demand(10_000, 10_000_000, 3, 45, "priorities", 10_000_000 // STACKED_BYTES),
    "IMPALA, Atari Qbert": Demand(100_000, 3_000_000, 4, 253, "use count", 3_000_000 // STACKED_BYTES),
    "SAC, MuJoCo Hopper": Demand(1_000_000, 3_000, 71, 138),
    "QMIX, SMAC 3s5z": Demand(50_000, 290_000, 19, 60),
    "MASAC, SMAC 3s5z": Demand(1_000_000, 29_000, 116, 63),
    "DQN, GoBigger": Demand(100_000, 400_000, 30, 83, "priorities"),
}


class Load:
    """A store of a demand that is full, and its calls."""

    def __init__(self, demand: Demand, smaller: int, backend: Backend) -> None:
        self.demand, self.backend = demand, backend
        self.is_frame = demand.num_frames == 1
        kept = max(64, demand.kept // smaller)
        self.num_envs = min(MOST_ENVS, kept // 8)
        slots, device = -(-kept // self.num_envs) + STACK, backend.device
        shape = (84, 84) if self.is_frame else (demand.bytes_here,)
        seen = Field("observation", shape, torch.uint8, extra=1)
        fields = [seen, Field("action", dtype=torch.int32), Field("reward")]
        sizes = (fields, self.num_envs, 1, NUM_STEPS, slots * self.num_envs)
        # what truncated episodes saw last is kept apart: one in a thousand steps of an env at most
        self.num_bytes = ReplayStore.plan(*sizes, episode_length=1000)
        self.store = ReplayStore(*sizes, backend, seed=1, episode_length=1000)
        rows = (NUM_STEPS, self.num_envs)
        played = {
            "observation": torch.zeros(NUM_STEPS + 1, self.num_envs, 1, *shape, dtype=torch.uint8, device=device),
            "final_observation": torch.zeros(1, self.num_envs, 1, *shape, dtype=torch.uint8, device=device),
            "action": torch.zeros(*rows, 1, dtype=torch.int32, device=device),
            "reward": torch.ones(*rows, 1, device=device),
            "terminated": torch.zeros(rows, dtype=torch.bool, device=device),
            "truncated": torch.zeros(rows, dtype=torch.bool, device=device),
        }
        self.add = self.store.prepare_add(played)
        limits = {"max_times_sampled": 1_000_000} if demand.needs == "use count" else {}
        selector = Prioritized() if demand.needs == "priorities" else Uniform()
        window = Transitions(stack=STACK if self.is_frame else 1)
        self.table: Table = self.store.table("load", selector, window, **limits)
        for _ in range(slots + 1):
            self.add()
            self.store.count_window()
        most = max(1, MOST_BATCH_BYTES // smaller // (2 * demand.bytes_here * (STACK if self.is_frame else 1)))
        self.batch = min(MOST_BATCH, most, self.table.num_drawable)
        draw, batch = self.table.prepare_draw(self.batch)
        calls: list[Callable[[], None]] = [draw]
        if demand.needs == "priorities":
            calls.append(self.table.prepare_update(batch.index, batch.reward))
        self.draw = all_of(calls)

    def measure(self, rounds: int, repeats: int) -> dict[str, Any]:
        """Microseconds of the calls, and the published second in them."""
        add, draw = (median(time_calls(self.backend, call, rounds, repeats)) for call in (self.add, self.draw))
        demand = self.demand
        parts = {
            "adding": demand.added / self.num_envs * add * 1e-6,
            "drawing": demand.drawn / self.batch * draw * 1e-6,
        }
        seconds = math.fsum(parts.values())
        moved = demand.bytes_here * (STACK if self.is_frame else 1)
        return {
            "published": {"added": demand.added, "drawn": demand.drawn, "bytes_an_item": demand.num_bytes},
            "needs": demand.needs,
            "store_bytes": self.num_bytes,
            "items": self.table.num_drawable,
            "batch": self.batch,
            "num_envs": self.num_envs,
            "add_us": round(add, 3),
            "draw_us": round(draw, 3),
            "multiple": round(1 / seconds, 1),
            "limited_by": max(parts, key=parts.__getitem__),
            "share_of_it": round(max(parts.values()) / seconds, 3),
            "drawn_GB_a_second": round(2 * self.batch * moved / draw / 1e3, 3),
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--rows", nargs="+", choices=DEMANDS, default=list(DEMANDS))
    parser.add_argument("--smaller", type=int, default=1, help="keep so many times fewer items")
    parser.add_argument("--rounds", type=int, default=20, help="calls that are timed at once")
    parser.add_argument("--repeats", type=int, default=NUM_REPEATS)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    for name in ("smaller", "rounds", "repeats"):
        if getattr(given, name) < 1:
            parser.error(f"--{name} must be at least 1, got {getattr(given, name)}")
    backend, results = choose_backend(device=given.device), {}
    for name in given.rows:
        load = Load(DEMANDS[name], given.smaller, backend)
        results[name] = load.measure(given.rounds, given.repeats)
        del load
    together = sum(one["store_bytes"] for one in results.values())
    write_report(f"replay_demand_{backend.name}", backend, {"rows": results, "bytes_together": together}, given.out)


if __name__ == "__main__":
    main()
