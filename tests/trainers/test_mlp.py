from __future__ import annotations

import pytest
import torch

from trainers.config import ModelConfig
from trainers.policies.mlp import MLP


def network(seed: int = 0, fc_dims: tuple[int, ...] = (16, 8)) -> MLP:
    return MLP(ModelConfig(fc_dims=fc_dims), 6, 5, torch.Generator().manual_seed(seed))


@pytest.mark.parametrize(
    ("layer", "gain"), [("trunk.0", 2.0**0.5), ("trunk.1", 2.0**0.5), ("policy_head", 0.01), ("value_head", 1.0)]
)
def test_layers_start_orthogonal_with_zero_bias(layer, gain):
    module = network().get_submodule(layer)
    weight = module.weight.detach()
    short = weight if weight.shape[0] <= weight.shape[1] else weight.t()
    torch.testing.assert_close(short @ short.t(), gain**2 * torch.eye(len(short)), rtol=1e-4, atol=1e-6)
    assert not module.bias.any()


def test_same_seed_same_start_whatever_torch_drew_before():
    torch.manual_seed(1)
    first = network(seed=3).state_dict()
    torch.manual_seed(2)
    second = network(seed=3).state_dict()
    assert all(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.parametrize("fc_dims", [(16, 8), (16, 16), (4,), ()])
def test_prepared_pass_writes_what_forward_returns(fc_dims):
    policy = network(fc_dims=fc_dims)
    observation = torch.randn(7, 2, 6)[:, 1]  # rows that are apart, as one group's agents are
    logits, value = torch.empty(7, 5), torch.empty(7)
    act = policy.prepare_act(observation, logits, value)
    with torch.no_grad():
        policy.value_head.bias += 1.0  # an update in place must be seen by the prepared pass
    with torch.inference_mode():
        act()
    expected_logits, expected_value = policy(observation)
    torch.testing.assert_close(logits, expected_logits.detach())
    torch.testing.assert_close(value, expected_value.detach())
