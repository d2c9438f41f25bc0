"""What a store draws, against plain lists of what was played: bit for bit."""

import numpy as np
import pytest
import torch
from replay_oracle import Kept, Played

from trainers.replay.selectors import Uniform
from trainers.replay.windows import Transitions

GAMMA = 0.9
CASES = {
    # envs, agents, steps of a window, windows in the store, windows played, n_step, stack, axis
    "one step": (3, 2, 4, 3, 7, 1, 1, "agent"),
    "steps and frames": (3, 2, 4, 3, 8, 3, 3, "agent"),
    "whole envs": (3, 2, 4, 3, 7, 2, 2, "env"),
    "one env, longer than a window": (1, 1, 2, 4, 9, 4, 3, "agent"),
    "one step a window": (2, 1, 1, 6, 11, 2, 2, "agent"),
    "the ring is one window": (2, 2, 6, 1, 3, 2, 1, "agent"),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_every_item_that_may_be_drawn_is_what_was_played(case, backend):
    num_envs, num_agents, num_steps, windows, num_played, n_step, stack, axis = CASES[case]
    played = Played(num_envs, num_agents, num_steps, seed=3)
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
        # As many strata as items: each is drawn once, and in order.
        batch = table.draw(len(anchors)) if number in (2, num_played) else None
        if batch is None:
            continue
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
    assert kept.store.num_dropped == 0 or kept.store.layout.num_sides < num_slots


def fields_of(batch) -> dict[str, torch.Tensor]:
    found = {**batch.observation, **{f"next_{name}": one for name, one in batch.next_observation.items()}}
    found |= {name: getattr(batch, name) for name in ("action", "reward", "discount", "mask", "next_mask", "active")}
    return found | batch.fields


def stacked(values: list) -> np.ndarray:
    return np.stack([np.asarray(one) for one in values])
