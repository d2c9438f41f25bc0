"""The replay store: prioritised cycles, rows and windows that come in, draws of frames; beside them what others take.

python benchmarks/replay.py --device cuda                       # every row; on an H200 less than 150 seconds
python benchmarks/replay.py --device cpu --smaller 4096 --rows R1 R7

    R1, R2, R3  prioritised: draw, batch of CartPole's fields with n = 3, weights, new priorities; of 2^20, 2^24 and
                2^27 transitions, 256, 4,096 and 65,536 at once
    R4          a row of 65,536 priorities that comes in, of 2^20
    R5          frames, 4 x 84 x 84 of uint8, 4,096 at once, n = 1 and 3; torch's indices are given
    R6          the cycle's share of a whole update of DQN by torch, 128 x 128
    R7          uniform draw and batch, of 2^24, 4,096 at once
    R8          a window of 32 steps of 65,536 envs added, beside the time that its bytes need at 4.3 TB/s

On a GPU all are replayed from CUDA graphs, the peers of benchmarks/replay_peers.py apart, which are called one by one.
TorchRL's tree kernels are in graphs, too, where --torchrl-tree says where their source is: cuda_segment_tree.cu of
https://github.com/pytorch/rl, in torchrl/csrc.
"""

from __future__ import annotations

import argparse
import copy
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from replay_peers import PEERS, TorchRLTree, flashbax_adds
from report import NUM_REPEATS, median, time_calls, time_graph, write_report

from trainers.experience.field import Field
from trainers.replay.batch import Batch
from trainers.replay.selectors import Prioritized, Uniform
from trainers.replay.store import ReplayStore
from trainers.replay.sum_tree import all_of
from trainers.replay.windows import Transitions
from trainers.report.throughput import temporary_trainer
from trainers.settings.read_config import read_config
from trainers.trainer import Trainer
from warpdrive.backends import choose_backend
from warpdrive.backends.base import Backend

GAMMA, ENDS = 0.99, 0.02
CARTPOLE = [Field("observation", (4,), extra=1), Field("action", dtype=torch.int32), Field("reward")]
FRAMES = [Field("observation", (84, 84), torch.uint8, extra=1), *CARTPOLE[1:]]
LEAVES = {"R1": 1 << 20, "R2": 1 << 24, "R3": 1 << 27}
BATCHES = (256, 4096, 65_536)
ROWS = (*LEAVES, "R4", "R5", "R6", "R7", "R8")
NUM_ENVS, STACK, WINDOW = 65_536, 4, Transitions(n_step=3, gamma=GAMMA)
BYTES_PER_S = 4.3e12
"""Copied by an H200: what is read and what is written."""
NUM_PRIORITIES = 7
"""Sets of new priorities that take turns: what is stored already would change nothing."""


class Filled:
    """A store that is full of random steps, 2 % of which end an episode, half of them truncated.

    Args:
        num_slots: a multiple of `num_steps`.
    """

    def __init__(self, backend: Backend, fields: list[Field], num_envs: int, num_slots: int, num_steps: int) -> None:
        self.backend, self.num_envs = backend, num_envs
        device, rows = backend.device, (num_steps, num_envs)
        torch.manual_seed(1)
        self.store = ReplayStore(fields, num_envs, 1, num_steps, num_envs * num_slots, backend, seed=1)
        seen = fields[0]
        new = {"dtype": seen.dtype, "device": device}
        shape = (num_envs, 1, *seen.shape)
        self.window = {
            "observation": torch.zeros(num_steps + 1, *shape, **new),
            "final_observation": torch.zeros(1, *shape, **new),
            "action": torch.zeros(*rows, 1, dtype=torch.int32, device=device),
            "reward": torch.zeros(*rows, 1, device=device),
            "terminated": torch.zeros(rows, dtype=torch.bool, device=device),
            "truncated": torch.zeros(rows, dtype=torch.bool, device=device),
        }
        self.add = self.store.prepare_add(self.window)
        for _ in range(num_slots // num_steps + 1):
            self._play()
            self.add()
            self.store.count_window()

    def _play(self) -> None:
        window, device = self.window, self.backend.device
        for name in ("observation", "final_observation"):
            one = window[name]
            one.random_(0, 256) if one.dtype is torch.uint8 else one.normal_()
        window["action"].random_(0, 2)
        window["reward"].normal_()
        kind = torch.rand(window["terminated"].shape, device=device)
        window["terminated"].copy_(kind < ENDS / 2)
        window["truncated"].copy_((kind > ENDS / 2) & (kind < ENDS))

    @cached_property
    def flat(self) -> dict[str, torch.Tensor]:
        """Each field in memory of its own, [steps of all envs, ...], as torch's operations like it best."""
        tensors = self.store.tensors
        return {name: one.flatten(0, 2 if name != "done" else 1).contiguous() for name, one in tensors.items()}

    def time(self, call: Callable[[], Any], num_calls: int, repeats: int) -> float:
        """Microseconds a call; on a GPU of those in a graph."""
        timed = time_graph if self.backend.name == "cuda" else time_calls
        return round(median(timed(self.backend, call, num_calls, repeats)), 3)

    def index_by_torch(self, number: int, window: Transitions) -> torch.Tensor:
        """[number] of what may be drawn."""
        num_slots, head = self.store.num_slots, self.store.num_steps_added
        first, last = head - num_slots + 1 + window.behind, head - window.ahead
        drawn = torch.randint(0, (last - first + 1) * self.num_envs, (number,), device=self.backend.device)
        return (drawn + first % num_slots * self.num_envs) % (num_slots * self.num_envs)

    def batch_by_torch(self, index: torch.Tensor, window: Transitions) -> tuple[torch.Tensor, ...]:
        """What a table's kernel gathers, in torch's operations: observation, action, reward, discount, next
        observation."""
        flat, num_envs = self.flat, self.num_envs
        count, n_step = len(flat["reward"]), window.n_step
        reward, code = flat["reward"][index], flat["done"][index].long()
        num_steps = torch.ones_like(index)
        for k in range(1, n_step):
            at = (index + k * num_envs) % count
            goes_on = code == 0
            reward = torch.addcmul(reward, flat["reward"][at], goes_on, value=GAMMA**k)
            code = torch.where(goes_on, flat["done"][at].long(), code)
            num_steps = num_steps + goes_on
        discount = torch.where(code == 1, 0.0, GAMMA**num_steps)
        seen, last = flat["observation"], self.store.small["side_observation"].flatten(0, 2)
        side = last[(code - 2).clamp_min(0) * num_envs + index % num_envs]
        after = (index + num_steps * num_envs) % count
        if window.stack == 1:
            is_side = (code > 1).view(-1, *[1] * (seen.dim() - 1))
            return seen[index], flat["action"][index].long(), reward, discount, torch.where(is_side, side, seen[after])
        frames = torch.arange(1 - window.stack, 1, device=index.device) * num_envs
        now, following = ((at.unsqueeze(-1) + frames) % count for at in (index, after))
        return seen[now], flat["action"][index].long(), reward, discount, seen[following]


class Cycle:
    """A prioritised draw, and new priorities of what was drawn."""

    def __init__(self, filled: Filled, number: int) -> None:
        device = filled.backend.device
        table = filled.store.tables.get("priorities") or filled.store.table("priorities", Prioritized(), WINDOW)
        self.filled, self.table, self.number, self.turn = filled, table, number, 0
        self.draw, self.batch = table.prepare_draw(number)
        self.priorities = [torch.rand(number, device=device) + 0.1 for _ in range(NUM_PRIORITIES)]
        self.sets = {
            in_order: [table.prepare_update(self.batch.index, one, in_order=in_order) for one in self.priorities]
            for in_order in (True, False)
        }

    def set(self, in_order: bool = True) -> None:
        self.turn = (self.turn + 1) % NUM_PRIORITIES
        self.sets[in_order][self.turn]()

    def __call__(self) -> None:
        self.draw()
        self.set()

    def dense(self) -> Callable[[], None]:
        """The same by torch alone: all priorities are summed up for each draw."""
        filled, number, device = self.filled, self.number, self.filled.backend.device
        leaves = torch.rand(self.table.selector.tree.anchors.num_leaves, device=device)
        parts = torch.arange(number, device=device)

        def cycle() -> None:
            sums = leaves.cumsum(0)
            points = (parts + torch.rand(number, device=device)) / number * sums[-1]
            index = torch.searchsorted(sums, points).clamp_max(len(leaves) - 1)
            weight = (leaves[index] / sums[-1] * len(leaves)).pow(-0.4)
            weight = weight / weight.max()
            filled.batch_by_torch(index, WINDOW)
            leaves[index] = (self.priorities[0] + 1e-6).pow(0.6)

        return cycle


    def torchrls(self, source: Path) -> Callable[[], None]:
        """The same by TorchRL's kernels, and a batch by torch."""
        filled, size = self.filled, self.table.selector.tree.anchors.num_leaves
        tree = TorchRLTree(source, size, self.number, filled.backend)
        tree.fill(torch.rand(size, device=filled.backend.device))
        return tree.cycle(lambda index: filled.batch_by_torch(index, WINDOW), self.priorities[0])


def cycles(filled: Filled, number: int, torchrl: Path | None, num_calls: int, repeats: int) -> dict[str, float]:
    """Ours, whole and in parts, and others'."""
    cycle = Cycle(filled, number)
    cycle.draw()
    check(filled, cycle.batch, WINDOW)
    parts = {
        "draw_us": cycle.draw,
        "set_us": cycle.set,
        "set_any_order_us": lambda: cycle.set(in_order=False),
        "ours_us": cycle,
        "dense_us": cycle.dense(),
    }
    if torchrl is not None:
        parts["torchrl_us"] = cycle.torchrls(torchrl)
    found = {name: filled.time(call, num_calls, repeats) for name, call in parts.items()}
    return {**found, "times": round(found["dense_us"] / found["ours_us"], 2)}


def row(filled: Filled, num_calls: int, repeats: int) -> dict[str, float]:
    """Priorities of one step of all envs that comes in, and of those that it takes out of the ring."""
    table = filled.store.tables.get("priorities") or filled.store.table("priorities", Prioritized(), WINDOW)
    head, follow = filled.store.small["head"], table.selector.tree.follow

    def one_more() -> None:
        head.add_(1)

    both, alone = (filled.time(call, num_calls, repeats) for call in (all_of([one_more, follow]), one_more))
    return {"ours_us": round(both - alone, 3), "with_the_step_us": both}


def share_of_an_update(
    filled: Filled, number: int, torchrl: Path | None, num_calls: int, repeats: int
) -> dict[str, float]:
    """Of an update of double DQN with Adam, by torch: with the cycle, and with a batch that stays; and how much of it
    other cycles would be."""
    cycle, device = Cycle(filled, number), filled.backend.device
    layers = (torch.nn.Linear(4, 128), torch.nn.ReLU(), torch.nn.Linear(128, 128), torch.nn.ReLU())
    network = torch.nn.Sequential(*layers, torch.nn.Linear(128, 2)).to(device)
    target = copy.deepcopy(network).requires_grad_(False)
    adam = torch.optim.Adam(network.parameters(), 1e-4, capturable=filled.backend.name == "cuda", fused=True)
    cycle.draw()
    batch, error = cycle.batch, torch.zeros(number, device=device)
    put = cycle.table.prepare_update(batch.index, error)
    now, following = (seen["observation"] for seen in (batch.observation, batch.next_observation))

    def update() -> None:
        adam.zero_grad(set_to_none=False)
        q = network(now).gather(1, batch.action.view(-1, 1)).squeeze(1)
        with torch.no_grad():
            best = network(following).argmax(1, keepdim=True)
            wanted = batch.reward + batch.discount * target(following).gather(1, best).squeeze(1)
        (torch.nn.functional.smooth_l1_loss(q, wanted, reduction="none") * batch.weight).mean().backward()
        adam.step()
        error.copy_((q.detach() - wanted).abs())

    whole, alone = (filled.time(call, num_calls, repeats) for call in (all_of([cycle.draw, update, put]), update))
    told = {"whole_us": whole, "learner_us": alone, "share_percent": round(100 * max(1e-3, 1 - alone / whole), 3)}
    others = {"dense": cycle.dense()} | ({} if torchrl is None else {"torchrl": cycle.torchrls(torchrl)})
    for name, call in others.items():
        us = filled.time(call, num_calls, repeats)
        told[f"{name}_share_percent"] = round(100 * us / (us + alone), 3)
    both = filled.time(all_of([cycle.draw, put]), num_calls, repeats)
    return {**told, "trainer": update_of_a_trainer(filled, number, both, num_calls, repeats)}


def update_of_a_trainer(filled: Filled, number: int, cycle_us: float, num_calls: int, repeats: int) -> dict[str, Any]:
    """Of the same update as a run makes it, by kernels on a GPU, which may draw themselves: what it takes as a whole,
    and how much of that a cycle by itself would be."""
    num_envs, backend = filled.num_envs, filled.backend
    policy = {
        "algorithm": "DQN",
        "prioritized": True,
        "n_step": WINDOW.n_step,
        "buffer_size": num_envs * filled.store.num_slots,
        "batch_size": number,
        "learning_starts": num_envs,
        "replay_ratio": 1 / num_envs,
        "model": {"fc_dims": [128, 128], "activation": "relu"},
    }
    sizes = {"num_envs": num_envs, "train_batch_size": num_envs, "total_timesteps": 10**12, "device": backend.name}
    config = read_config({"name": "cartpole", "trainer": sizes, "policy": {"agent": policy}})
    with temporary_trainer(config) as trainer:
        return _update_of(trainer, cycle_us, num_calls, repeats)


def _update_of(trainer: Trainer, cycle_us: float, num_calls: int, repeats: int) -> dict[str, Any]:
    algorithm = trainer.algorithms["agent"]
    for _ in range(WINDOW.n_step + 6):
        trainer.iterate()
    learner = algorithm.learns_by
    if hasattr(learner, "due"):  # as many as are due in one launch
        learner.due(0, 1)
    timed = time_graph if trainer.backend.name == "cuda" else time_calls
    whole = round(median(timed(trainer.backend, learner.learn, num_calls, repeats)), 3)
    share = round(100 * cycle_us / whole, 3)
    return {"path": algorithm.path, "whole_us": whole, "cycle_us": cycle_us, "percent": share}


def draws(filled: Filled, number: int, num_calls: int, repeats: int) -> dict[str, float]:
    """Our uniform draw, and torch's."""
    draw, batch = filled.store.table("uniform", Uniform(), WINDOW).prepare_draw(number)
    ours = filled.time(draw, num_calls, repeats)
    check(filled, batch, WINDOW)
    torchs = filled.time(
        lambda: filled.batch_by_torch(filled.index_by_torch(number, WINDOW), WINDOW), num_calls, repeats
    )
    return {"ours_us": ours, "torch_us": torchs, "times": round(torchs / ours, 2)}


def check(filled: Filled, batch: Batch, window: Transitions) -> None:
    """That both give the same of the same items."""
    seen, action, reward, discount, following = filled.batch_by_torch(batch.index, window)
    torch.testing.assert_close(batch.reward, reward, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(batch.discount, discount.float(), rtol=1e-6, atol=0)
    assert torch.equal(batch.action, action)
    if window.stack == 1:
        assert torch.equal(batch.observation["observation"], seen)
        has_next = discount > 0
        assert torch.equal(batch.next_observation["observation"][has_next], following[has_next])
    else:  # the newest frame; of an episode's start torch does not know
        assert torch.equal(batch.observation["observation"][:, -1], seen[:, -1])


def frames(filled: Filled, n_step: int, number: int, num_calls: int, repeats: int) -> dict[str, float]:
    """A draw of stacked frames beside torch's gather alone, of given indices."""
    window = Transitions(n_step=n_step, stack=STACK, gamma=GAMMA)
    table = filled.store.table(f"frames {n_step}", Uniform(), window)
    draw, batch = table.prepare_draw(number)
    ours = filled.time(draw, num_calls, repeats)
    check(filled, batch, window)
    seen, index = filled.flat["observation"], batch.index.clone()
    steps = torch.arange(1 - STACK, 1, device=index.device) * filled.num_envs
    now = (index.unsqueeze(-1) + steps) % len(seen)
    following = (now + n_step * filled.num_envs) % len(seen)
    torchs = filled.time(lambda: (seen[now], seen[following]), num_calls, repeats)
    # Every different frame is read once, and each of both stacks is written.
    num_bytes = number * (STACK + min(n_step, STACK) + 2 * STACK) * 84 * 84
    found = {"ours_us": ours, "torch_us": torchs, "times": round(torchs / ours, 2)}
    return {**found, "bytes": num_bytes, "TB_a_second": round(num_bytes / ours / 1e6, 3)}


def added(filled: Filled, num_calls: int, repeats: int) -> dict[str, float]:
    """A window, and the bytes that it reads and writes; and a plain copy of as many, on the same device."""
    ours = filled.time(filled.add, num_calls, repeats)
    window = filled.window
    num_bytes = 2 * sum(one.nbytes for name, one in window.items() if name != "final_observation")
    source = torch.zeros(num_bytes // 2, dtype=torch.uint8, device=filled.backend.device)
    target = torch.zeros_like(source)
    copy = filled.time(lambda: target.copy_(source), num_calls, repeats)
    found = {"ours_us": ours, "bytes": num_bytes, "TB_a_second": round(num_bytes / ours / 1e6, 3)}
    found |= {"copy_us": copy, "times_a_copy": round(ours / copy, 3)}
    return {**found, "times_the_limit": round(ours * 1e-6 / (num_bytes / BYTES_PER_S), 3)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--rows", nargs="+", choices=ROWS, default=ROWS)
    parser.add_argument("--smaller", type=int, default=1, help="divide all sizes by this")
    parser.add_argument("--num-calls", type=int, default=20)
    parser.add_argument("--repeats", type=int, default=NUM_REPEATS)
    parser.add_argument("--torchrl-tree", type=Path, metavar="FILE", help="cuda_segment_tree.cu of pytorch/rl")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    for name in ("smaller", "num_calls", "repeats"):
        if getattr(given, name) < 1:
            parser.error(f"--{name.replace('_', '-')} must be at least 1, got {getattr(given, name)}")
    backend = choose_backend(device=given.device)
    calls, results = (given.num_calls, given.repeats), {}

    def less(number: int, least: int = 8) -> int:
        return max(least, number // given.smaller)

    for name, leaves in LEAVES.items():
        wanted = {name} | ({"R4", "R6"} if name == "R1" else set())
        if not wanted & set(given.rows):
            continue
        num_envs = less(NUM_ENVS)
        filled = Filled(backend, CARTPOLE, num_envs, max(16, less(leaves) // num_envs), 1)
        if name in given.rows:
            results[name] = {
                str(number): cycles(filled, less(number), given.torchrl_tree, *calls) for number in BATCHES
            }
        if name == "R1" and "R6" in given.rows:
            results["R6"] = {
                str(number): share_of_an_update(filled, less(number), given.torchrl_tree, *calls)
                for number in BATCHES[1:]
            }
        if name == "R1" and "R4" in given.rows:  # the last: it moves the ring on without steps
            results["R4"] = row(filled, *calls)
            results["R4"]["peers"] = {"flashbax": flashbax_adds(less(leaves, 64), num_envs, backend, calls)}
        if name == "R1" and "R1" in given.rows:
            peers = {
                peer: {str(number): measure(less(leaves, 64), less(number), backend, calls) for number in BATCHES}
                for peer, measure in PEERS.items()
            }
            results["R1"]["peers"] = peers
        del filled
    if "R5" in given.rows:
        filled = Filled(backend, FRAMES, less(1024), 256 if given.smaller == 1 else 32, 32)
        results["R5"] = {f"n = {n}": frames(filled, n, less(4096), *calls) for n in (1, 3)}
    if "R7" in given.rows or "R8" in given.rows:
        filled = Filled(backend, CARTPOLE, less(NUM_ENVS), 256 if given.smaller == 1 else 64, 32)
        if "R7" in given.rows:
            results["R7"] = draws(filled, less(4096), *calls)
        if "R8" in given.rows:
            results["R8"] = added(filled, *calls)
    results = {name: results[name] for name in ROWS if name in results}
    write_report(f"replay_{backend.name}", backend, results, given.out)


if __name__ == "__main__":
    main()
