"""A replay store eight times as large as its device's share of memory, beside one that is all on the device.

python benchmarks/replay_tiers.py --device cuda     # 1 GB of 8: frames of 84 x 84 bytes, batches of 4,096
python benchmarks/replay_tiers.py --device cpu --frames 16 --envs 1024 --batch 64 --device-mb 70
python benchmarks/replay_tiers.py --device cuda --device-mb 250 --batch 256 --updates 32 --hidden 32768 --ahead 8 \\
    --name paced
                                                    # updates that take as long as a disk needs for a batch, or longer

Of each: whether the losses of a small Q-network are those of the first, bit for bit (uniform draws). And, after the
ring has gone round once: how long an update takes; how often, and which part of the time, the learner waited for items,
or envs for files; and the bytes that were written to files, over those that went down to them. The same window is
added over and over, changed a little.

    device   all of it on the device
    pinned   an eighth; the rest in pinned host memory
    file     an eighth, as much in pinned host memory; the rest in files
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from report import write_report
from torch import nn

from trainers.experience.field import Field
from trainers.learning.graphs import Graphed
from trainers.replay.selectors import Uniform
from trainers.replay.store import ReplayStore
from trainers.replay.tiers import Device, File, Pinned, Tier
from trainers.replay.windows import Transitions
from warpdrive.backends import choose_backend
from warpdrive.backends.base import Backend

ACTIONS, GAMMA, ENDS, AHEAD = 4, 0.99, 0.02, 4
KINDS = ("device", "pinned", "file")
HIDDEN = 512


class Learner:
    """A Q-network that learns from frames of a store whose steps are made up.

    Args:
        side: of a frame, in bytes.
        num_windows: of 8 steps, in the store.
        hidden: units of the network.
        ahead: batches that are under way.
    """

    def __init__(
        self,
        backend: Backend,
        side: int,
        num_envs: int,
        num_windows: int,
        batch_size: int,
        tiers: list[Tier],
        hidden: int,
        ahead: int,
    ) -> None:
        torch.manual_seed(1)
        self.backend, device, rows = backend, backend.device, (8, num_envs)
        fields = [Field("observation", (side, side), torch.uint8, extra=1), Field("action", dtype=torch.int32)]
        capacity = num_windows * 8 * num_envs
        self.store = ReplayStore(
            [*fields, Field("reward")], num_envs, 1, 8, capacity, backend, seed=1, episode_length=100, tiers=tiers
        )
        new = {"dtype": torch.uint8, "device": device}
        self.window = {
            "observation": torch.randint(0, 256, (9, num_envs, 1, side, side), **new),
            "final_observation": torch.randint(0, 256, (1, num_envs, 1, side, side), **new),
            "action": torch.randint(0, ACTIONS, (*rows, 1), dtype=torch.int32, device=device),
            "reward": torch.randn(*rows, 1, device=device),
            "terminated": torch.rand(rows, device=device) < ENDS,
            "truncated": torch.zeros(rows, dtype=torch.bool, device=device),
        }
        self.add = self.store.prepare_add(self.window)
        table = self.store.table("uniform", Uniform(), Transitions(n_step=3, gamma=GAMMA))
        self.feed = None if self.store.tiered is None else table.feed(batch_size, ahead)
        self.draw, self.batch = table.prepare_draw(batch_size) if self.feed is None else (None, self.feed.batch)
        layers = [nn.Flatten(), nn.Linear(side * side, hidden), nn.ReLU(), nn.Linear(hidden, ACTIONS)]
        self.network = nn.Sequential(*layers).to(device)
        self.loss = torch.zeros((), device=device)
        self.learn = Graphed(self._learn, backend)
        if self.feed is not None:
            self.learn = self.feed.learning(self.learn)

    def _learn(self) -> None:
        if self.draw is not None:
            self.draw()
        batch = self.batch
        q = self.network(batch.observation["observation"].float() / 255).gather(1, batch.action.unsqueeze(1)).squeeze(1)
        with torch.no_grad():
            after = self.network(batch.next_observation["observation"].float() / 255).amax(1)
            target = batch.reward + batch.discount * after
        loss = ((q - target).square() * batch.weight).mean()
        for one in self.network.parameters():
            one.grad = None
        loss.backward()
        with torch.no_grad():
            for one in self.network.parameters():
                one.sub_(one.grad, alpha=1e-3)
            self.loss.copy_(loss)

    def run(self, num_windows: int, num_updates: int) -> torch.Tensor:
        """Losses [windows, updates], after each window; nobody waits for them."""
        losses = torch.zeros(num_windows, num_updates, device=self.backend.device)
        for number in range(num_windows):
            self.window["observation"].add_(1)
            self.window["reward"].neg_().add_(0.1)
            self.store.count_window()
            self.add()
            if self.feed is not None:
                self.feed.begin(num_updates, num_updates)
            for i in range(num_updates):
                self.learn()
                losses[number, i].copy_(self.loss)
        return losses


def tiers_of(kind: str, size: int, folder: Path) -> list[Tier]:
    """With so many bytes on the device."""
    below = {"device": [], "pinned": [Pinned(1 << 40)], "file": [Pinned(size), File(str(folder), 1 << 40)]}
    return [] if kind == "device" else [Device(size), *below[kind]]


def measure(
    backend: Backend,
    side: int,
    num_envs: int,
    batch_size: int,
    device_bytes: int,
    num_updates: int,
    folder: Path,
    kinds: Sequence[str] = KINDS,
    hidden: int = HIDDEN,
    ahead: int = AHEAD,
) -> dict[str, dict[str, Any]]:
    """By kind of store."""
    num_windows = 8 * device_bytes // (8 * num_envs * (side * side + 8))
    found, first = {}, None
    for kind in kinds:
        tiers = tiers_of(kind, device_bytes, folder)
        learner = Learner(backend, side, num_envs, num_windows, batch_size, tiers, hidden, ahead)
        losses = [learner.run(num_windows + 1, num_updates)]
        backend.synchronize()
        tiered = learner.store.tiered
        before = {} if tiered is None else tiered.counters()
        started = time.perf_counter()
        losses.append(learner.run(max(4, num_windows // 4), num_updates))
        backend.synchronize()
        seconds = time.perf_counter() - started
        losses = torch.cat(losses).cpu()
        first = losses if first is None else first
        result: dict[str, Any] = {
            "same_losses": torch.equal(losses, first),
            "num_losses": losses.numel(),
            "us_an_update": round(1e6 * seconds / losses[num_windows + 1 :].numel(), 1),
        }
        if tiered is not None:
            learner.store.flush()  # a file that is being written is admitted already
            after = tiered.counters()
            result |= {name: after[name] - before[name] for name in ("fetched", "stalls")}
            result["stalled"] = round((after["stall_seconds"] - before["stall_seconds"]) / seconds, 4)
            result["data_over_device"] = round(num_windows * 8 / tiered.division.hot, 2)
            if kind == "file":
                read = after["bytes_read"] - before["bytes_read"]
                result["MB_a_second_from_files"] = round(read / seconds / 1e6, 1)
                result["bytes_ratio"] = round(after["bytes_written"] / after["bytes_admitted"], 4)
        found[kind] = result
        del learner
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--frames", type=int, default=84, help="side of a frame")
    parser.add_argument("--envs", type=int, default=1024)
    parser.add_argument("--batch", type=int, default=4096)
    parser.add_argument("--updates", type=int, default=8, help="a window of 8 steps")
    parser.add_argument("--device-mb", type=int, default=1000)
    parser.add_argument("--hidden", type=int, default=HIDDEN, help="units; with more an update takes longer")
    parser.add_argument("--ahead", type=int, default=AHEAD, help="batches that are under way")
    parser.add_argument("--name", help="of the results: replay_tiers_<name>_<device>.json")
    parser.add_argument("--folder", type=Path, help="of the files; a temporary one if not given")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    backend = choose_backend(options.device)
    folder = Path(tempfile.mkdtemp(prefix="warpdrive-tiers-", dir=options.folder))
    try:
        sizes = (options.frames, options.envs, options.batch, options.device_mb * 10**6, options.updates)
        results = measure(backend, *sizes, folder, hidden=options.hidden, ahead=options.ahead)
        name = "_".join(filter(None, ["replay_tiers", options.name, backend.name]))
        write_report(name, backend, results, options.out)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
