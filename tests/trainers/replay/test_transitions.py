"""What a store draws, against plain lists of what was played: bit for bit."""

import numpy as np
import pytest
import torch
from replay_oracle import Kept, Played

from trainers.replay.selectors import Uniform
from trainers.replay.windows import Transitions

GAMMA = 0.9
KINDS = {
    "whole envs": {"acts": torch.float32, "shape": (3,), "dtype": torch.float32},  # a Box, and rows of 12 bytes
    "one step a window": {"acts": torch.int32, "shape": (2, 8), "dtype": torch.uint8},
    "the ring is one window": {"acts": torch.int32, "shape": (5,), "dtype": torch.bool},
    "long frames": {"shape": (48, 48), "dtype": torch.uint8},
    "long frames of whole envs": {"shape": (512,), "dtype": torch.float32},
}
CASES = {
    # envs, agents, steps of a window, windows in the store, windows played, n_step, stack, axis
    "one step": (3, 2, 4, 3, 7, 1, 1, "agent"),
    "steps and frames": (3, 2, 4, 3, 8, 3, 3, "agent"),
    "whole envs": (3, 2, 4, 3, 7, 2, 2, "env"),
    "one env, longer than a window": (1, 1, 2, 4, 9, 4, 3, "agent"),
    "one step a window": (2, 1, 1, 6, 11, 2, 2, "agent"),
    "the ring is one window": (2, 2, 6, 1, 3, 2, 1, "agent"),
    "long frames": (2, 1, 4, 3, 7, 3, 4, "agent"),
    "long frames of whole envs": (2, 2, 4, 3, 7, 1, 2, "env"),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_every_item_that_may_be_drawn_is_what_was_played(case, backend):
    num_envs, num_agents, num_steps, windows, num_played, n_step, stack, axis = CASES[case]
    played = Played(num_envs, num_agents, num_steps, seed=3, **KINDS.get(case, {}))
    kept = Kept(played, windows, backend)
    window = Transitions(n_step=n_step, stack=stack, gamma=GAMMA, axis=axis)
    table = kept.store.table("all", Uniform(), window)
    num_rows = num_envs * (num_agents if axis == "agent" else 1)
    for number in range(1, num_played + 1):
        kept.add()
        head = number * num_steps
        first = max(stack - 1, head - windows * num_steps + stack)
        anchors = [(s, row) for s in range(first, head - n_step + 1) for row in range(num_rows)]
        assert table.num_drawable == len(anchors)
        if not anchors:
            continue
        if number not in (2, num_played):
            continue
        batch = table.draw(len(anchors))  # as many strata as items: each is drawn once, and in order
        num_slots = windows * num_steps
        assert batch.index.tolist() == [s % num_slots * num_rows + row for s, row in anchors]
        assert batch.weight.tolist() == [1.0] * len(anchors)
        for i, (step, row) in enumerate(anchors):
            agents = [row % num_agents] if axis == "agent" else range(num_agents)
            env = row // num_agents if axis == "agent" else row
            items = [played.transition(step, env, agent, n_step, stack, GAMMA) for agent in agents]
            for name, found in fields_of(batch).items():
                of_env = name in ("image", "next_image", "version")
                expected = items[0][name] if of_env or axis == "agent" else stacked([one[name] for one in items])
                assert np.array_equal(np.asarray(expected), found[i].cpu().numpy()), (name, step, row)
    assert batch.action.dtype is (torch.float32 if case == "whole envs" else torch.int64)
    assert kept.store.num_dropped == 0


def fields_of(batch) -> dict[str, torch.Tensor]:
    found = {**batch.observation, **{f"next_{name}": one for name, one in batch.next_observation.items()}}
    found |= {name: getattr(batch, name) for name in ("action", "reward", "discount", "mask", "next_mask", "active")}
    return found | batch.fields


def stacked(values: list) -> np.ndarray:
    return np.stack([np.asarray(one) for one in values])


@pytest.mark.parametrize("n_step", [2, 5])
def test_sums_of_rewards_are_torchrls(n_step, backend):
    """Without agents that leave, which TorchRL does not know."""
    pytest.importorskip("torchrl")
    from tensordict import TensorDict
    from torchrl.envs.transforms import MultiStepTransform

    played = Played(3, 1, 20, seed=8, ends=0.15, leaves=0.0)
    kept = Kept(played, 3, backend)
    table = kept.store.table("all", Uniform(), Transitions(n_step=n_step, gamma=GAMMA))
    for _ in range(2):
        kept.add()
    batch = table.draw(table.num_drawable)
    names = ("reward", "terminated", "truncated")
    steps = {name: torch.stack([one[name] for one in played.steps], 1) for name in names}
    last = torch.stack([one["last"]["obs"] for one in played.steps], 1)[:, :, 0]
    ended = (steps["terminated"] | steps["truncated"]).unsqueeze(-1)
    after = {"obs": last, "reward": steps["reward"], "done": ended, "terminated": steps["terminated"].unsqueeze(-1),
             "truncated": steps["truncated"].unsqueeze(-1)}  # fmt: skip
    data = TensorDict({"obs": torch.stack([one["obs"] for one in played.steps], 1)[:, :, 0], "next": after}, [3, 40])
    expected = MultiStepTransform(n_steps=n_step, gamma=GAMMA)._inv_call(data)
    for i, index in enumerate(batch.index.tolist()):
        step, env = divmod(index, 3)
        if step >= expected.shape[1]:
            continue
        of_item = expected[env, step]
        torch.testing.assert_close(batch.reward[i].cpu(), of_item["next", "reward"].squeeze())
        if batch.discount[i] > 0:  # of what terminated they give what was seen last, which nobody uses
            assert torch.equal(batch.next_observation["obs"][i].cpu(), of_item["next", "obs"])
            assert batch.discount[i].item() == pytest.approx(GAMMA ** of_item["steps_to_next_obs"].item())
        last_step = step + of_item["steps_to_next_obs"].item() - 1
        assert (batch.discount[i].item() == 0) == bool(steps["terminated"][env, last_step])
    assert expected.shape[1] >= 40 - n_step and ended.sum() > 10
