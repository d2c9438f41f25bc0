"""Sequences that a store draws, against plain lists of what was played: bit for bit."""

import numpy as np
import pytest
import torch
from replay_oracle import Kept, Played

from trainers.experience.field import Field
from trainers.replay.selectors import Uniform
from trainers.replay.sequences import Sequences
from trainers.replay.store import ReplayStore

GAMMA = 0.9
CASES = {
    # envs, agents, steps of a window, windows in the store, windows played, sequences, axis, steps to a memory
    "whole envs": (3, 2, 4, 6, 11, Sequences(6, 4, 4, n_step=3, gamma=GAMMA, axis="env"), "env", 4),
    "agents, no burn-in": (2, 2, 4, 4, 9, Sequences(3, 0, 2, n_step=1, gamma=GAMMA, axis="agent"), "agent", 2),
    "across many windows": (1, 1, 2, 10, 17, Sequences(5, 2, 2, n_step=4, gamma=GAMMA, axis="agent"), "agent", 2),
}


@pytest.mark.parametrize("case", CASES)
def test_every_row_of_a_sequence_is_what_was_played(case, backend):
    num_envs, num_agents, num_steps, windows, num_played, window, axis, every = CASES[case]
    played = Played(num_envs, num_agents, num_steps, seed=5, every=every)
    kept = Kept(played, windows, backend)
    table = kept.store.table("all", Uniform(), window)
    num_rows, num_slots = num_envs * (num_agents if axis == "agent" else 1), windows * num_steps
    for number in range(1, num_played + 1):
        kept.add()
        head = number * num_steps
        behind, ahead = window.burn_in, window.length + window.n_step - 1
        first = max(behind, head - num_slots + 1 + behind)
        steps = [s for s in range(first, head - ahead + 1) if s % window.period == 0]
        assert table.num_drawable == len(steps) * num_rows
    anchors = [(s, row) for s in steps for row in range(num_rows)]
    assert len(anchors) > num_rows  # some overlap
    batch = table.draw(len(anchors))
    assert batch.index.tolist() == [s % num_slots // window.period * num_rows + row for s, row in anchors]
    length, n_step = window.length, window.n_step
    for i, (step, row) in enumerate(anchors):
        env, agents = (row // num_agents, row % num_agents) if axis == "agent" else (row, slice(None))
        begin = step - behind
        for r in range(behind + length + n_step):
            for name in ("obs", "mask"):
                given = batch.observation["obs"] if name == "obs" else batch.mask
                assert torch.equal(given[r, i].cpu(), played.after(name, begin + r - 1)[env, agents])
            assert torch.equal(batch.observation["image"][r, i].cpu(), played.after("image", begin + r - 1)[env])
            assert torch.equal(batch.starts[r, i].cpu(), is_start(played, begin, r, env, agents))
        for r in range(behind + length):
            now = played.steps[begin + r]
            assert torch.equal(batch.action[r, i].cpu(), now["action"][env, agents].long())
            assert batch.fields["version"][r, i].item() == now["version"][env].item()
        assert torch.equal(batch.fields["memory"][i].cpu(), played.steps[begin]["memory"][env, agents])
        for r in range(length):
            each = [agents] if axis == "agent" else range(num_agents)
            targets = [played.target(step + r, env, agent, n_step, GAMMA) for agent in each]
            for j, name in enumerate(("reward", "discount", "valid")):
                found = np.atleast_1d(getattr(batch, name)[r, i].cpu().numpy())
                assert found.tolist() == [float(one[j]) for one in targets], (name, step, r)
            assert batch.bootstrap[r, i].item() == behind + r + targets[0][3]
    assert 0 < batch.valid.mean() < 1 and batch.starts.any()


def is_start(played: Played, begin: int, r: int, env: int, agents: int | slice) -> torch.Tensor:
    before = played.steps[begin + r - 1]
    is_in = (before["active"] & before["survived"])[env, agents]
    ended = bool(before["terminated"][env] or before["truncated"][env])
    return (~is_in | ended) & (r > 0)


@pytest.mark.parametrize("length", [2, 5])
def test_sequences_begin_and_end_where_slices_of_torchrl_do(backend, length):
    """Random episodes of 1 to 12 steps: which sequences lie in one of them, and how long the others go on in theirs."""
    torchrl = pytest.importorskip("torchrl.data", reason="TorchRL, the oracle, is not installed")
    from tensordict import TensorDict

    random, num_steps = np.random.default_rng(11), 120
    ends = np.zeros(num_steps, bool)
    at = np.cumsum(random.integers(1, 13, num_steps))
    ends[at[at < num_steps]] = True
    is_truncated = random.random(num_steps) < 0.5
    ring = ReplayStore([Field("seen", extra=1), Field("reward")], 1, 1, 4, num_steps + 4, backend)
    table = ring.table("all", Uniform(), Sequences(length, 0, 1, axis="agent"))
    for begin in range(0, num_steps, 4):
        now = slice(begin, begin + 4)
        seen = torch.arange(begin, begin + 5.0, device=backend.device).view(5, 1, 1)
        flags = {"terminated": ends[now] & ~is_truncated[now], "truncated": ends[now] & is_truncated[now]}
        flags = {name: torch.from_numpy(one).view(4, 1).to(backend.device) for name, one in flags.items()}
        ring.add({"seen": seen, "final_seen": seen[1:], "reward": seen[:4], **flags})
    batch = table.draw(num_steps - length + 1)  # of as many as there are: each once
    first, starts = batch.observation["seen"][0].flatten().long().tolist(), batch.starts[1:length].cpu()
    assert sorted(first) == list(range(num_steps - length + 1))
    ours = {s: length if not row.any() else int(row.int().argmax()) + 1 for s, row in zip(first, starts.T, strict=True)}

    def slices(is_strict: bool) -> dict[int, int]:
        """Drawn often enough that each is among them: first step -> steps."""
        torch.manual_seed(3)
        sampler = torchrl.replay_buffers.SliceSampler(slice_len=length, strict_length=is_strict, end_key="done")
        buffer = torchrl.ReplayBuffer(storage=torchrl.LazyTensorStorage(num_steps), sampler=sampler)
        buffer.extend(TensorDict({"step": torch.arange(num_steps), "done": torch.from_numpy(ends)}, [num_steps]))
        found: dict[int, int] = {}
        for _ in range(20):
            step, info = buffer.sample(length * 200, return_info=True)
            stops = info[("next", "truncated")].flatten().nonzero().flatten() + 1
            for part in step["step"].tensor_split(stops[stops < len(step["step"])]):
                found[int(part[0])] = len(part)
        return found

    strict, loose = slices(True), slices(False)
    assert strict == {step: count for step, count in ours.items() if count == length} and len(strict) > 20
    shorter = {step: count for step, count in loose.items() if count < length}
    assert shorter.items() <= ours.items() | {(s, num_steps - s) for s in range(num_steps - length, num_steps)}
    assert bool(shorter)
