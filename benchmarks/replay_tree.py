"""Prioritised draws, new priorities and rows that come in, by the sum tree; beside them what torch has for that.

python benchmarks/replay_tree.py --device cuda
python benchmarks/replay_tree.py --device cpu --leaves 65536 --batches 256 --num-calls 3
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

import torch
from report import median, time_calls, time_graph, write_report

from trainers.experience.field import Field
from trainers.replay.selectors import Prioritized, Selector
from trainers.replay.store import ReplayStore
from trainers.replay.sum_tree import all_of
from trainers.replay.table import Table
from trainers.replay.windows import Transitions
from warpdrive.backends import choose_backend
from warpdrive.backends.base import Backend

NUM_PRIORITIES = 7
"""Sets of new priorities that take turns: what is stored already would change nothing."""
MOST_ENVS = 65_536


def filled_table(num_leaves: int, selector: Selector, backend: Backend) -> tuple[Table, Callable[[], None]]:
    """Of CartPole's fields, with n = 3, 2 % of steps ending episodes, and every slot written; and what adds a row."""
    num_envs = min(MOST_ENVS, num_leaves // 16)
    num_slots = num_leaves // num_envs
    fields = [Field("observation", (4,), extra=1), Field("action", dtype=torch.int32), Field("reward")]
    store = ReplayStore(fields, num_envs, 1, 1, num_envs * num_slots, backend, seed=1, episode_length=500)
    table = store.table("priorities", selector, Transitions(n_step=3, gamma=0.99))
    device = backend.device
    window = {
        "observation": torch.randn(2, num_envs, 1, 4, device=device),
        "final_observation": torch.zeros(1, num_envs, 1, 4, device=device),
        "action": torch.zeros(1, num_envs, 1, dtype=torch.int32, device=device),
        "reward": torch.ones(1, num_envs, 1, device=device),
        "terminated": torch.rand(1, num_envs, device=device) < 0.02,
        "truncated": torch.zeros(1, num_envs, dtype=torch.bool, device=device),
    }
    add = store.prepare_add(window)
    for _ in range(num_slots + 2):
        add()
        store.count_window()
    return table, add


def time_call(backend: Backend, call: Callable[[], object], num_calls: int) -> float:
    """Microseconds of a call: within a CUDA graph, where there is any."""
    if backend.name != "cuda":
        return median(time_calls(backend, call, num_calls))
    return median(time_graph(backend, call, num_calls))


def measure(num_leaves: int, batches: list[int], num_calls: int, backend: Backend) -> dict[str, object]:
    """Rows R1 to R4 for one number of leaves."""
    selector, device = Prioritized(), backend.device
    table, _ = filled_table(num_leaves, selector, backend)
    found: dict[str, object] = {"leaves": num_leaves, "num_envs": table.num_rows}
    tree, head = selector.tree, table.store.small["head"]
    follow = all_of([lambda: head.add_(1), tree.follow])
    found["row_us"] = time_call(backend, follow, num_calls) - time_call(backend, lambda: head.add_(1), num_calls)
    tree.follow()
    turn = 0
    for number in batches:
        draw, batch = table.prepare_draw(number)
        priorities = [torch.rand(number, device=device) + 0.1 for _ in range(NUM_PRIORITIES)]
        sets = [table.prepare_update(batch.index, one) for one in priorities]
        any_order = [table.prepare_update(batch.index, one, in_order=False) for one in priorities]

        def cycle(draw=draw, sets=sets) -> None:
            nonlocal turn
            draw()
            sets[turn := (turn + 1) % NUM_PRIORITIES]()

        def set_any(sets=any_order) -> None:
            nonlocal turn
            sets[turn := (turn + 1) % NUM_PRIORITIES]()

        def set_in_order(sets=sets) -> None:
            nonlocal turn
            sets[turn := (turn + 1) % NUM_PRIORITIES]()

        found[f"cycle_{number}_us"] = time_call(backend, cycle, num_calls)
        found[f"draw_{number}_us"] = time_call(backend, draw, num_calls)
        found[f"set_{number}_us"] = time_call(backend, set_in_order, num_calls)
        found[f"set_any_order_{number}_us"] = time_call(backend, set_any, num_calls)
        found[f"cumsum_cycle_{number}_us"] = time_call(backend, dense_cycle(table, number, priorities[0]), num_calls)
    return found


def dense_cycle(table: Table, number: int, priority: torch.Tensor) -> Callable[[], None]:
    """The same by torch alone: all priorities summed up for each draw, gathers of CartPole's fields, n = 3."""
    store, device = table.store, priority.device
    num_slots, num_envs = store.num_slots, table.num_rows
    leaves = torch.rand(num_slots * num_envs, device=device)
    fields = {name: store.tensors[name].flatten(0, 1) for name in ("observation", "action", "reward", "done")}

    def cycle() -> None:
        sums = leaves.cumsum(0)
        points = (torch.arange(number, device=device) + torch.rand(number, device=device)) / number * sums[-1]
        index = torch.searchsorted(sums, points).clamp_max(len(leaves) - 1)
        weight = (leaves[index] / sums[-1] * len(leaves)).pow(-0.4)
        weight = weight / weight.max()
        following = [(index + k * num_envs) % len(leaves) for k in range(4)]
        goes_on, reward = torch.ones(number, device=device), torch.zeros(number, device=device)
        for k in range(3):
            reward = reward + 0.99**k * goes_on * fields["reward"][following[k]].view(-1)
            goes_on = goes_on * (fields["done"][following[k]].view(-1) == 0)
        for one in (fields["observation"][index], fields["observation"][following[3]], fields["action"][index]):
            one.contiguous()
        leaves[index] = (priority + 1e-6).pow(0.6)

    return cycle


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--leaves", type=int, nargs="+", default=[1 << 20, 1 << 24, 1 << 27])
    parser.add_argument("--batches", type=int, nargs="+", default=[256, 4096, 65_536])
    parser.add_argument("--num-calls", type=int, default=20)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    backend = choose_backend(device=arguments.device)
    torch.manual_seed(1)
    results = [measure(one, arguments.batches, arguments.num_calls, backend) for one in arguments.leaves]
    write_report(f"replay_tree_{backend.name}", backend, results, arguments.out)


if __name__ == "__main__":
    main()
