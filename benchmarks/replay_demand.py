"""What published algorithms ask of a replay store, as synthetic load: the highest multiple of their rates that is held.

python benchmarks/replay_demand.py --device cuda
python benchmarks/replay_demand.py --device cpu --smaller 1000 --seconds 0.1

Each row keeps so many items of so many bytes, and for some seconds takes in and draws items as fast as it can, in the
published proportion; what is drawn by priority gets new ones. A multiple is the lower one of the rates that were held,
over the published ones: the highest by so many envs that add and so many items a draw, of those that are tried. On a
GPU all of it is replayed from one CUDA graph, so that no host limits it. At the end all rows' stores are there at once,
each as it was best, and they take turns, so that all hold the same multiple.

An item is as published: a step with an observation of its bytes, drawn with the one that follows; or a sequence of
steps that shares none with the next one. Frames are one uint8 frame a step: stacks of four are made at the draw where
an item is a step, and recurrent policies see them one by one. What limits a row is the call that takes most of its
time, and whether the bytes that the calls read and write are most of what a copy moves in that time.
"""

from __future__ import annotations

import argparse
import gc
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from report import NUM_REPEATS, captured, median, time_calls, time_graph, write_report

from trainers.experience.field import Field
from trainers.replay.selectors import Prioritized, Uniform
from trainers.replay.sequences import Sequences
from trainers.replay.store import ReplayStore
from trainers.replay.sum_tree import all_of
from trainers.replay.table import Table
from trainers.replay.windows import Transitions
from warpdrive.backends import choose_backend
from warpdrive.backends.base import Backend

FRAME, STACK = 84 * 84, 4
NUM_ENVS, BATCHES = (64, 1024, 4096), (512, 4096, 32_768)
MOST_BATCH_BYTES = 2 << 30
NUM_STEPS = 1
NUM_PRIORITIES = 7
"""Sets of new priorities that take turns: what is stored already would change nothing."""
NUM_CALLS = 256
"""Adds and draws of a graph, about."""
MEMORY, LATENCY = "memory", "latency"


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
    steps: int = 1
    """Of an item: 1: a transition; more: a sequence of them."""
    burn_in: int = 0
    """Of these, those that only warm up a memory."""
    is_frames: bool = False
    """Whether a step is seen as a frame of 84 x 84, kept once as uint8."""

    @property
    def bytes_here(self) -> int:
        """Of an item as it is kept here."""
        return self.steps * FRAME if self.is_frames else self.num_bytes // self.steps * self.steps


STACKED_BYTES = STACK * FRAME * 4
DEMANDS = {
    "DQN, Atari Qbert": Demand(400_000, 110_000, 400, 1650, "priorities", is_frames=True),
    "PPO off-policy, Atari Qbert": Demand(100_000, 120_000, 50, 87, "use count", is_frames=True),
    "R2D2, Atari Qbert": Demand(
        10_000, 10_000_000, 3, 45, "priorities", 10_000_000 // STACKED_BYTES, burn_in=40, is_frames=True
    ),
    "IMPALA, Atari Qbert": Demand(100_000, 3_000_000, 4, 253, "use count", 3_000_000 // STACKED_BYTES, is_frames=True),
    "SAC, MuJoCo Hopper": Demand(1_000_000, 3_000, 71, 138),
    "QMIX, SMAC 3s5z": Demand(50_000, 290_000, 19, 60, steps=58),
    "MASAC, SMAC 3s5z": Demand(1_000_000, 29_000, 116, 63),
    "DQN, GoBigger": Demand(100_000, 400_000, 30, 83, "priorities"),
}


@dataclass(frozen=True)
class Round:
    """Adds and draws in the published proportion."""

    play: Callable[[], None]
    num_adds: int
    added: float
    """Items."""
    drawn: int
    published_seconds: float
    """In which as much is added and drawn by the published rates."""


class Load:
    """A store of a demand that is full, and its calls.

    Args:
        num_envs: add a step each; fewer where that many would not have eight items each.
        batch: items a draw; fewer where there are not as many, or where they are too large.
    """

    def __init__(self, demand: Demand, smaller: int, backend: Backend, num_envs: int, batch: int) -> None:
        self.demand, self.backend, self.smaller = demand, backend, smaller
        steps, device = demand.steps, backend.device
        kept = max(64, demand.kept // smaller)
        self.num_envs = min(num_envs, kept // 8)
        shape = (84, 84) if demand.is_frames else (demand.num_bytes // steps,)
        self.stack = STACK if demand.is_frames and steps == 1 else 1
        items_of_env = -(-kept // self.num_envs)
        slots = items_of_env + STACK if steps == 1 else (items_of_env + 1) * steps
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
        window: Transitions | Sequences = Transitions(stack=self.stack)
        if steps > 1:
            window = Sequences(steps - demand.burn_in, demand.burn_in, period=steps)
        self.table: Table = self.store.table("load", selector, window, **limits)
        for _ in range(slots + 1):
            self.add()
            self.store.count_window()
        self.draw_by(batch)

    def draw_by(self, number: int) -> None:
        """From here on a draw is of so many items, or of as many as there may be."""
        most = max(1, MOST_BATCH_BYTES // self.smaller // self.bytes_moved)
        self.batch, self.num_draws = min(number, most, self.table.num_drawable), 0
        draw, batch = self.table.prepare_draw(self.batch)
        self.draws: list[Callable[[], None]] = [draw]
        if self.demand.needs == "priorities":
            new = [torch.rand(self.batch, device=self.backend.device) + 0.1 for _ in range(NUM_PRIORITIES)]
            self.draws = [all_of([draw, self.table.prepare_update(batch.index, one)]) for one in new]

    @property
    def bytes_moved(self) -> int:
        """Read and written for an item that is drawn: of a transition two observations, whose stacks share frames."""
        bytes_here, stack = self.demand.bytes_here, self.stack
        return bytes_here * (stack + 1 + 2 * stack) if self.demand.steps == 1 else 2 * bytes_here

    def draw(self) -> None:
        self.num_draws += 1
        self.draws[self.num_draws % len(self.draws)]()

    def schedule(self) -> tuple[list[Callable[[], None]], int]:
        """Adds, and after each as many draws as the published rates have; and how many of the calls are adds."""
        a_draw_adds = self.demand.added / self.demand.drawn * self.batch  # items
        an_add_draws = self.num_envs * NUM_STEPS / self.demand.steps / a_draw_adds
        num_adds = max(1, round(NUM_CALLS / (1 + an_add_draws)))
        num_adds = max(1, round(max(1, round(num_adds * an_add_draws)) / an_add_draws))  # whole draws
        calls: list[Callable[[], None]] = []
        for i in range(num_adds):
            num_draws = math.floor((i + 1) * an_add_draws + 0.5) - math.floor(i * an_add_draws + 0.5)
            calls += [self.add, *[self.draw] * num_draws]
        return calls, num_adds

    def round(self) -> Round:
        calls, num_adds = self.schedule()
        once = all_of(calls)
        once()
        play = captured(self.backend, once) if self.backend.name == "cuda" else once
        added = num_adds * self.num_envs * NUM_STEPS / self.demand.steps
        drawn = (len(calls) - num_adds) * self.batch
        return Round(play, num_adds, added, drawn, min(added / self.demand.added, drawn / self.demand.drawn))

    def measure(self, seconds: float, rounds: int, repeats: int, copied: float) -> dict[str, Any]:
        """Items a second that are held, what each call takes alone, and what limits them.

        Args:
            copied: bytes a second that a copy on this device reads and writes.
        """
        demand, timed = self.demand, time_graph if self.backend.name == "cuda" else time_calls
        once = self.round()
        [rounds_a_second] = sustain([self], [once], seconds)
        added, drawn = rounds_a_second * once.added, rounds_a_second * once.drawn
        add, draw = (median(timed(self.backend, call, rounds, repeats)) for call in (self.add, self.draw))
        parts = {
            "adding": added * demand.steps / (self.num_envs * NUM_STEPS) * add,
            "drawing": drawn / self.batch * draw,
        }
        limit = max(parts, key=parts.__getitem__)
        moved = (2 * added * demand.bytes_here + drawn * self.bytes_moved) / copied
        return {
            "published": {"added": demand.added, "drawn": demand.drawn, "bytes_an_item": demand.num_bytes},
            "needs": demand.needs,
            "steps_an_item": demand.steps,
            "store_bytes": self.num_bytes,
            "items": self.table.num_drawable,
            "batch": self.batch,
            "num_envs": self.num_envs,
            "seconds": seconds,
            "added": round(added, 1),
            "drawn": round(drawn, 1),
            "multiple": round(rounds_a_second * once.published_seconds, 1),
            "add_us": round(add, 3),
            "draw_us": round(draw, 3),
            "limited_by": limit,
            "share_of_it": round(parts[limit] / math.fsum(parts.values()), 3),
            "memory_share": round(moved, 3),
            "resource": MEMORY if moved > 0.5 else LATENCY,
        }


def sustain(loads: Sequence[Load], rounds: Sequence[Round], seconds: float) -> list[float]:
    """Rounds a second of each over so many seconds or more, one at least; whose rates were served least is next."""
    backend, done = loads[0].backend, [0] * len(loads)
    backend.synchronize()
    start = time.perf_counter()
    while (taken := time.perf_counter() - start) < seconds or 0 in done:
        least = min(range(len(loads)), key=lambda i: done[i] * rounds[i].published_seconds)
        rounds[least].play()
        for _ in range(rounds[least].num_adds):
            loads[least].store.count_window()
        backend.synchronize()
        done[least] += 1
    return [number / taken for number in done]


def best_of(demand: Demand, smaller: int, backend: Backend, seconds: float) -> tuple[dict[str, float], tuple[int, int]]:
    """Multiples by numbers of envs and batches, as `"64 envs, 512 a draw"`, held for so many seconds each; and the two
    of the highest."""
    tried: dict[tuple[int, int], float] = {}
    for num_envs in NUM_ENVS:
        tried |= by_batches(Load(demand, smaller, backend, num_envs, BATCHES[0]), seconds)
        free_memory()  # of this store, before the next one is made
    named = {f"{envs} envs, {batch} a draw": round(one, 1) for (envs, batch), one in tried.items()}
    return named, max(tried, key=tried.__getitem__)


def by_batches(load: Load, seconds: float) -> dict[tuple[int, int], float]:
    """Number of envs and batch -> multiple."""
    tried: dict[tuple[int, int], float] = {}
    for batch in BATCHES:
        load.draw_by(batch)
        if (load.num_envs, load.batch) not in tried:
            once = load.round()
            [rounds_a_second] = sustain([load], [once], seconds)
            tried[load.num_envs, load.batch] = rounds_a_second * once.published_seconds
    return tried


def all_at_once(bests: Mapping[str, tuple[int, int]], smaller: int, backend: Backend, seconds: float) -> dict[str, Any]:
    """All rows' stores on one device, and the multiple of all published rates that they hold by turns."""
    loads = [Load(DEMANDS[name], smaller, backend, *best) for name, best in bests.items()]
    rounds = [load.round() for load in loads]
    rates = sustain(loads, rounds, seconds)
    multiple = min(rate * once.published_seconds for rate, once in zip(rates, rounds, strict=True))
    return {"bytes": sum(load.num_bytes for load in loads), "seconds": seconds, "multiple": round(multiple, 1)}


def free_memory() -> None:
    """Of what only cycles hold on to, and of torch's own cache."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def copied_a_second(backend: Backend, num_bytes: int, repeats: int) -> float:
    """Bytes that a copy of so many reads and writes."""
    source = torch.zeros(num_bytes, dtype=torch.uint8, device=backend.device)
    target = torch.zeros_like(source)
    return 2 * num_bytes / median(time_calls(backend, lambda: target.copy_(source), 5, repeats)) * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--rows", nargs="+", choices=DEMANDS, default=list(DEMANDS))
    parser.add_argument("--smaller", type=int, default=1, help="keep so many times fewer items")
    parser.add_argument("--seconds", type=float, default=3.0, help="for which the rates are held")
    parser.add_argument("--search-seconds", type=float, default=0.2, help="for which each of the tried is held")
    parser.add_argument("--rounds", type=int, default=20, help="calls that are timed at once")
    parser.add_argument("--repeats", type=int, default=NUM_REPEATS)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    for name in ("smaller", "rounds", "repeats"):
        if getattr(given, name) < 1:
            parser.error(f"--{name} must be at least 1, got {getattr(given, name)}")
    for name in ("seconds", "search_seconds"):
        if not 0 < getattr(given, name) < math.inf:
            parser.error(f"--{name.replace('_', '-')} must be above 0, got {getattr(given, name)}")
    backend, results = choose_backend(device=given.device), {}
    copied = copied_a_second(backend, max(1 << 20, (4 << 30) // given.smaller), given.repeats)
    bests: dict[str, tuple[int, int]] = {}
    for name in given.rows:
        tried, bests[name] = best_of(DEMANDS[name], given.smaller, backend, given.search_seconds)
        load = Load(DEMANDS[name], given.smaller, backend, *bests[name])
        results[name] = load.measure(given.seconds, given.rounds, given.repeats, copied) | {"tried": tried}
        del load
        free_memory()
    together = all_at_once(bests, given.smaller, backend, given.seconds)
    found = {"rows": results, "together": together, "copied_GB_a_second": round(copied / 1e9, 1)}
    write_report(f"replay_demand_{backend.name}", backend, found, given.out)


if __name__ == "__main__":
    main()
