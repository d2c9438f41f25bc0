"""Sequences that a store draws, against plain lists of what was played: bit for bit."""

from itertools import pairwise

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


NUM_STEPS, LAST = 120, 64  # of one env; what is seen counts on by 1 / LAST


@pytest.fixture
def slices():
    """A function that draws TorchRL's slices of some steps, one after the other; so many that each is among them."""
    torchrl = pytest.importorskip("torchrl.data", reason="TorchRL, the oracle, is not installed")

    def call(steps, slice_len: int, end_key: str, is_strict: bool = True):
        torch.manual_seed(3)
        sampler = torchrl.SliceSampler(slice_len=slice_len, strict_length=is_strict, end_key=end_key)
        buffer = torchrl.TensorDictReplayBuffer(storage=torchrl.LazyTensorStorage(NUM_STEPS), sampler=sampler)
        buffer.extend(steps)
        return buffer.sample(slice_len * 4000)

    return call


def played_and_drawn(backend, window: Sequences):
    """Random episodes of 1 to 12 steps, as TorchRL keeps them; and a batch with each sequence that we have of them."""
    from tensordict import TensorDict

    random = np.random.default_rng(11)
    ends = np.zeros(NUM_STEPS, bool)
    at = np.cumsum(random.integers(1, 13, NUM_STEPS))
    ends[at[at < NUM_STEPS]] = True
    is_truncated = random.random(NUM_STEPS) < 0.5
    is_init = np.insert(ends[:-1], 0, True)
    memory = torch.from_numpy(np.where(is_init[:, None], 0, random.random((NUM_STEPS, 3))).astype(np.float32))
    seen = torch.arange(NUM_STEPS + 1.0)[:, None] / LAST
    fields = [Field("seen", (1,), extra=1), Field("memory", (3,)), Field("reward")]
    ring = ReplayStore(fields, 1, 1, 4, NUM_STEPS + 4, backend)
    table = ring.table("all", Uniform(), window)
    flags = {"terminated": torch.from_numpy(ends & ~is_truncated), "truncated": torch.from_numpy(ends & is_truncated)}
    steps = {"memory": memory[:, None, None], "reward": seen[:-1, :, None], **{k: x[:, None] for k, x in flags.items()}}
    for begin in range(0, NUM_STEPS, 4):
        added = {name: one[begin : begin + 4].to(backend.device) for name, one in steps.items()}
        now = seen[begin : begin + 5, None, None].to(backend.device)
        ring.add({"seen": now, "final_seen": now[1:], **added})
    bits = {"done": ends, "never": np.zeros(NUM_STEPS, bool), "is_init": is_init}
    bits = {name: torch.from_numpy(one)[:, None] for name, one in bits.items()}
    kept = {"seen": seen[:-1], "memory": memory[:, None], "cut": flags["truncated"][:, None], **bits}
    return TensorDict(kept, [NUM_STEPS]), table.draw(table.num_drawable)


@pytest.mark.parametrize(
    ("length", "burn_in", "period"), [(2, 0, 1), (5, 0, 1), (2, 1, 1), (5, 3, 1), (5, 3, 2), (3, 4, 4)]
)
def test_sequences_begin_and_end_where_slices_of_torchrl_do(backend, slices, length, burn_in, period):
    """Which sequences there are and where memories are emptied in them; which of them lie in one episode; and how long
    the others go on in theirs. TorchRL's slices begin at any step: those on the grid are ours."""
    steps, batch = played_and_drawn(backend, Sequences(length, burn_in, period, axis="agent"))
    total = burn_in + length
    rows = batch.observation["seen"][:total, :, 0].T.cpu(), batch.starts[1:total].T.cpu()
    ours = {int(seen[0] * LAST): (seen.tolist(), starts.tolist()) for seen, starts in zip(*rows, strict=True)}
    assert list(ours) == [s for s in range(NUM_STEPS - total + 1) if (s + burn_in) % period == 0]

    def theirs(end_key: str, is_strict: bool = True) -> dict[int, tuple[list[float], list[bool]]]:
        drawn = slices(steps, total, end_key, is_strict)
        seen, starts = drawn["seen"].flatten().tolist(), drawn["is_init"].flatten().tolist()
        stops = (drawn["next", "truncated"].flatten().nonzero().flatten() + 1).tolist()
        found = {int(seen[i] * LAST): (seen[i:j], starts[i + 1 : j]) for i, j in pairwise([0, *stops])}
        return {begin: one for begin, one in found.items() if (begin + burn_in) % period == 0}

    assert theirs("never") == ours
    within = {begin: one for begin, one in ours.items() if not any(one[1])}
    assert theirs("done") == within and 20 / period < len(within) < len(ours)
    shorter = {begin: len(seen) for begin, (seen, _) in theirs("done", False).items() if len(seen) < total}
    go_on = {begin: [*starts, True].index(True) + 1 for begin, (_, starts) in ours.items()}
    beyond = {(begin, NUM_STEPS - begin) for begin in range(NUM_STEPS - total, NUM_STEPS)}
    assert shorter.items() <= go_on.items() | beyond
    assert shorter.items() - beyond


@pytest.mark.parametrize(("length", "burn_in", "period"), [(2, 1, 1), (5, 3, 2), (3, 4, 4)])
def test_a_memory_is_warmed_up_by_the_steps_that_torchrl_burns_in(backend, slices, length, burn_in, period):
    """By a GRU, across the ends of episodes; and what is left to learn from are the same steps."""
    pytest.importorskip("torchrl", "0.14", reason="TorchRL before 0.14 burns in otherwise where an episode ends")
    from torchrl.envs.transforms import BurnInTransform
    from torchrl.modules import GRUModule

    steps, batch = played_and_drawn(backend, Sequences(length, burn_in, period, axis="agent"))
    keys = {"in_keys": ["seen", "memory"], "out_keys": ["out", ("next", "memory")]}
    gru = GRUModule(input_size=1, hidden_size=3, default_recurrent_mode=True, **keys)
    drawn = slices(steps, burn_in + length, "never").exclude("next").view(-1, burn_in + length)
    drawn = BurnInTransform([gru], burn_in)(drawn)
    seen, memory = batch.observation["seen"].cpu(), batch.fields["memory"][:1].cpu()
    with torch.no_grad():
        for now, starts in zip(seen[:burn_in], batch.starts.cpu(), strict=False):
            memory = gru.gru(now[:, None], memory.masked_fill(starts[:, None], 0))[1]
    first = (seen[burn_in].flatten() * LAST).long()
    place = torch.full((NUM_STEPS,), -1)
    place[first] = torch.arange(len(first))
    ours = place[(drawn["seen"][:, 0, 0] * LAST).long()]
    drawn, ours = drawn[ours >= 0], ours[ours >= 0]  # of those on the grid
    assert drawn.shape[1] == length and ours.unique().tolist() == list(range(len(first)))
    torch.testing.assert_close(drawn["memory"][:, 0, 0], memory[0, ours], rtol=1e-5, atol=1e-6)
    rows = {"reward": drawn["seen"].squeeze(-1), "valid": (~drawn["cut"]).squeeze(-1).float()}
    for name, theirs in rows.items():
        assert torch.equal(theirs.T, getattr(batch, name).cpu()[:, ours]), name
