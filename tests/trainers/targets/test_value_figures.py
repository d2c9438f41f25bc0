"""What is told of a critic, by hand."""

import math

import pytest
import torch

from trainers.targets import value_figures


@pytest.mark.parametrize("most_parts", [1, 2, 16])
def test_figures_of_three_envs_that_differ_however_many_parts_share_them(make_trainer, monkeypatch, most_parts):
    """Two steps of three envs. The first env ends for good in its second step, the second is cut off there, the third
    ends for good in its first. At discount 1/2 this pays 0 + 4/2 = 2 and 4, and 6; said were 3 and 3, and 6: of errors
    -1, 1 and 0 the variance is a quarter of that of returns."""
    monkeypatch.setattr(value_figures, "MAX_PARTS", most_parts)
    group = make_trainer("cartpole", {"agent": {}}, num_envs=3, num_steps=2).rollout.groups["agent"]
    rollout = group.rollout
    for array in (rollout.reward, rollout.terminated, rollout.truncated, group.value):
        array.zero_()
    said = torch.tensor([[3.0, -9.0, 6.0], [3.0, 7.0, 2.0]])
    group.value_moments.copy_(torch.tensor([1.0, 2.0]))  # the critic's numbers are of mean 0 and deviation 1
    group.value[:2, :, 0] = (said.to(group.value.device) - 1.0) / 2.0
    rollout.reward[:2, 0, 0] = torch.tensor([0.0, 4.0])
    rollout.reward[:2, 2, 0] = torch.tensor([6.0, 1.0])
    rollout.terminated[1, 0] = rollout.truncated[1, 1] = rollout.terminated[0, 2] = True
    figures = value_figures.prepare_value_figures(group, discount=0.5, reward_clip=math.inf)()
    assert {name: one.item() for name, one in figures.items()} == pytest.approx(
        {
            "value_mean": 2.0,  # 12 / 6
            "value_std": math.sqrt(188 / 6 - 4),
            "value_max": 9.0,  # of the size: it is -9
            "explained_variance_of_returns": 0.75,
        }
    )
