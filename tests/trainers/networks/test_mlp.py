import pytest
import torch

from trainers.networks import linear
from trainers.networks.features import Inputs
from trainers.networks.linear import Linear, OneProduct
from trainers.networks.mlp import MLP
from trainers.settings.config import ModelConfig


def network(seed: int = 0, num_critic_features: int | None = None, **model: object) -> MLP:
    config = ModelConfig(**{"fc_dims": (16, 8), **model})
    return MLP(config, Inputs(6, num_critic_features), {"policy": 5, "value": 1}, torch.Generator().manual_seed(seed))


def test_same_seed_same_start_whatever_torch_drew_before():
    torch.manual_seed(1)
    first = network(seed=3).state_dict()
    torch.manual_seed(2)
    second = network(seed=3).state_dict()
    assert all(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.parametrize(
    "model",
    [
        {"fc_dims": (16, 8)},
        {"fc_dims": (16, 16)},
        {"fc_dims": (4,)},
        {"fc_dims": ()},
        {"activation": "tanh"},
        {"layer_norm": True},
        {"layer_norm": True, "fc_dims": ()},
        {"layer_norm": "hidden", "activation": "relu"},
        {"layer_norm": "all"},
        {"shared_trunk": False},
        {"shared_trunk": False, "critic_fc_dims": (4, 4, 4), "layer_norm": True},
    ],
)
@pytest.mark.parametrize("num_critic_features", [None, 9])
def test_prepared_pass_and_one_for_the_value_alone_write_what_forward_returns(model, num_critic_features):
    policy = network(num_critic_features=num_critic_features, **model)
    observation = torch.randn(7, 2, 6)[:, 1]  # rows that are apart, as one group's agents are
    critic_input = None if num_critic_features is None else torch.randn(7, num_critic_features)
    logits, value = torch.empty(7, 5), torch.empty(7, 1)
    act = policy.prepare_act(observation, critic_input, {"policy": logits, "value": value})
    with torch.no_grad():
        policy.value_head.bias += 1.0  # an update in place must be seen by the prepared pass
    with torch.inference_mode():
        act()
    expected = policy(observation, critic_input)
    torch.testing.assert_close({"policy": logits, "value": value}, {key: one.detach() for key, one in expected.items()})
    alone = torch.empty(7, 1)
    with torch.inference_mode():
        policy.prepare_act(observation, critic_input, {"value": alone})()
    torch.testing.assert_close(alone, expected["value"].detach())


@pytest.mark.parametrize(("layer_norm", "norms"), [(False, []), (True, [6]), ("hidden", [16, 8]), ("all", [6, 16, 8])])
def test_a_layer_norm_stands_before_the_first_layer_or_before_each_activation(layer_norm, norms):
    trunk = network(layer_norm=layer_norm, shared_trunk=True, activation="relu").trunk
    assert [len(layer.bias) for layer in trunk if isinstance(layer, torch.nn.LayerNorm)] == norms
    relu, both = torch.nn.ReLU(), norms == [6, 16, 8]
    linear = [layer for layer in trunk if isinstance(layer, torch.nn.Linear)]
    norm = [torch.nn.LayerNorm(width) for width in norms]
    expected = norm[:both] + [linear[0], *norm[both : 1 + both], relu, linear[1], *norm[1 + both :], relu]
    if layer_norm is True:
        expected = [norm[0], linear[0], relu, linear[1], relu]
    observation = torch.randn(7, 6)
    found = network(layer_norm=layer_norm, shared_trunk=True, activation="relu").encode(trunk, observation)
    torch.testing.assert_close(found, torch.nn.Sequential(*expected)(observation))


def test_a_critic_without_hidden_layers_is_linear():
    policy = network(shared_trunk=False, critic_fc_dims=())
    assert len(policy.critic_trunk) == 0
    assert policy.value_head.weight.shape == (1, 6)  # the features
    assert policy.policy_head.weight.shape == (5, 8)


def test_gradients_of_many_narrow_rows_are_those_of_torch(device, monkeypatch):
    monkeypatch.setattr(linear, "MANY_ROWS", 50)
    generator = torch.Generator().manual_seed(0)
    ours, theirs = Linear(3, 8, device=device), torch.nn.Linear(3, 8, device=device)
    theirs.load_state_dict(ours.state_dict())
    features, by_output = (torch.randn(50, size, generator=generator).to(device) for size in (3, 8))
    found = []
    for layer in (ours, theirs):
        seen = features.clone().requires_grad_()
        output = torch.tanh_(layer(seen))
        (output * by_output).sum().backward()
        gradients = {"seen": seen.grad, "weight": layer.weight.grad, "bias": layer.bias.grad}
        found.append({"output": output.detach(), **gradients})
    torch.testing.assert_close(*found)
    is_one = type(ours(features).grad_fn).__name__ == "OneProductBackward"
    assert is_one == (torch.device(device).type == "cuda")


def test_one_product_by_hand():
    features = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    weight, bias = torch.tensor([[1.0, -1.0]], requires_grad=True), torch.tensor([10.0], requires_grad=True)
    output = OneProduct.apply(features, weight, bias)
    assert output.tolist() == [[9.0], [9.0]]
    output.backward(torch.tensor([[1.0], [10.0]]))
    assert weight.grad.tolist() == [[1.0 + 30.0, 2.0 + 40.0]] and bias.grad.tolist() == [11.0]
