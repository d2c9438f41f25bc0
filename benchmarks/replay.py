"""The replay store: draws with all that a batch has, and adding, beside what torch's own operations take.

python benchmarks/replay.py --device cuda

    R1  uniform draw and batch of CartPole's fields, n = 3, of 2^20 transitions, 256, 4,096 and 65,536 at once
    R5  frames, 4 x 84 x 84 of uint8, 4,096 at once, n = 1 and 3; torch's indices are given
    R7  as R1, of 2^24 transitions, 4,096 at once
    R8  a window of 32 steps of 65,536 envs added
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from report import NUM_REPEATS, median, time_calls, time_graph, write_report

from trainers.experience.field import Field
from trainers.replay.batch import Batch
from trainers.replay.selectors import Uniform
from trainers.replay.store import ReplayStore
from trainers.replay.windows import Transitions
from warpdrive.backends import choose_backend
from warpdrive.backends.base import Backend

GAMMA, ENDS = 0.99, 0.02
CARTPOLE = [Field("observation", (4,), extra=1), Field("action", dtype=torch.int32), Field("reward")]
FRAMES = [Field("observation", (84, 84), torch.uint8, extra=1), *CARTPOLE[1:]]
ROWS = ("R1", "R5", "R7", "R8")
STACK = 4


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
        tensors, num_envs = self.store.tensors, self.num_envs
        flat = {name: one.flatten(0, 2) if name != "done" else one.flatten() for name, one in tensors.items()}
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


def draws(filled: Filled, window: Transitions, number: int, num_calls: int, repeats: int) -> dict[str, float]:
    """Our draw, and torch's."""
    table = filled.store.tables.get("uniform") or filled.store.table("uniform", Uniform(), window)
    draw, batch = table.prepare_draw(number)
    ours = filled.time(draw, num_calls, repeats)
    check(filled, batch, window)
    torchs = filled.time(
        lambda: filled.batch_by_torch(filled.index_by_torch(number, window), window), num_calls, repeats
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
    seen, index = filled.store.tensors["observation"].flatten(0, 2), batch.index.clone()
    steps = torch.arange(1 - STACK, 1, device=index.device) * filled.num_envs
    now = (index.unsqueeze(-1) + steps) % len(seen)
    following = (now + n_step * filled.num_envs) % len(seen)
    torchs = filled.time(lambda: (seen[now], seen[following]), num_calls, repeats)
    # Every different frame is read once, and each of both stacks is written.
    num_bytes = number * (STACK + min(n_step, STACK) + 2 * STACK) * 84 * 84
    found = {"ours_us": ours, "torch_us": torchs, "times": round(torchs / ours, 2)}
    return {**found, "bytes": num_bytes, "TB_a_second": round(num_bytes / ours / 1e6, 3)}


def added(filled: Filled, num_calls: int, repeats: int) -> dict[str, float]:
    """A window, and the bytes that it reads and writes."""
    ours = filled.time(filled.add, num_calls, repeats)
    window = filled.window
    num_bytes = 2 * sum(one.nbytes for name, one in window.items() if name != "final_observation")
    return {"ours_us": ours, "bytes": num_bytes, "TB_a_second": round(num_bytes / ours / 1e6, 3)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--rows", nargs="+", choices=ROWS, default=ROWS)
    parser.add_argument("--smaller", type=int, default=1, help="divide all sizes by this")
    parser.add_argument("--num-calls", type=int, default=20)
    parser.add_argument("--repeats", type=int, default=NUM_REPEATS)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    for name in ("smaller", "num_calls", "repeats"):
        if getattr(given, name) < 1:
            parser.error(f"--{name.replace('_', '-')} must be at least 1, got {getattr(given, name)}")
    backend = choose_backend(device=given.device)
    calls, num_envs = (given.num_calls, given.repeats), max(8, 65536 // given.smaller)
    window, results = Transitions(n_step=3, gamma=GAMMA), {}

    def batch_of(number: int) -> int:
        return max(8, number // given.smaller)

    if "R1" in given.rows:
        filled = Filled(backend, CARTPOLE, num_envs, 16, 16)
        results["R1"] = {n: draws(filled, window, batch_of(n), *calls) for n in (256, 4096, 65536)}
    if "R5" in given.rows:
        filled = Filled(backend, FRAMES, max(8, 1024 // given.smaller), 256 if given.smaller == 1 else 32, 32)
        results["R5"] = {f"n = {n}": frames(filled, n, batch_of(4096), *calls) for n in (1, 3)}
    if "R7" in given.rows or "R8" in given.rows:
        filled = Filled(backend, CARTPOLE, num_envs, 256 if given.smaller == 1 else 64, 32)
        if "R7" in given.rows:
            results["R7"] = draws(filled, window, batch_of(4096), *calls)
        if "R8" in given.rows:
            results["R8"] = added(filled, *calls)
    write_report(f"replay_{backend.name}", backend, results, given.out)


if __name__ == "__main__":
    main()
