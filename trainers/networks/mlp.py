"""A multilayer perceptron: hidden layers, then one layer to each head."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

import torch
from torch import nn

from trainers.networks.features import Inputs
from trainers.networks.linear import Linear
from trainers.settings.config import ModelConfig
from warpdrive.function_manager import all_of

Layer = TypeVar("Layer", nn.Linear, nn.Conv2d)
ACTIVATIONS = {"relu": torch.relu_, "tanh": torch.tanh_}
GAINS = {"policy": 0.01}
"""Of the last layer's weights; 1 for other heads."""
JUDGES = ("value", "intrinsic")
"""Heads whose trunk may be their own, the critic's; a network has one of them at most."""


class MLP(nn.Module):
    """Hidden layers, in one trunk for all heads or in one of its own for the value, and a linear layer a head.

    Initialised orthogonally, gain sqrt 2 in the trunks, 0.01 for the action's outputs (so that play starts close to
    uniform) and 1 for other heads; biases 0. Drawn on the CPU: the same on every device.

    Args:
        config: widths, activation, whether the trunk is shared.
        inputs: rows of features. The critic's own make a trunk of its own for it.
        heads: name -> numbers, such as {"policy": 5, "value": 1} or {"q": 5}.
        generator: draws the weights; None where shapes are all that is wanted, on torch's device "meta".

    Source: Huang et al. 2022, "The 37 implementation details of PPO", details 2, 13 and 17.
    """

    sees = "rows"
    memory_size = 0
    """Numbers that it remembers from step to step: none."""

    def __init__(
        self, config: ModelConfig, inputs: Inputs, heads: Mapping[str, int], generator: torch.Generator | None
    ) -> None:
        super().__init__()
        self.heads = dict(heads)
        self.activation = ACTIVATIONS[config.activates]
        self.trunk, width = make_trunk(config, inputs.num_features, generator)
        self.critic_trunk, critic_width = make_critic_trunk(config, inputs, heads, generator)
        add_heads(self, dict.fromkeys(heads, width) | dict.fromkeys(JUDGES, critic_width or width), generator)

    def forward(self, observation: torch.Tensor, critic_input: torch.Tensor | None = None) -> dict[str, torch.Tensor]:
        """observation [..., features] -> by head [..., numbers]."""
        hidden = critic_hidden = self.encode(self.trunk, observation)
        if self.critic_trunk is not None:
            critic_hidden = self.encode(self.critic_trunk, observation if critic_input is None else critic_input)
        return apply_heads(self, hidden, critic_hidden)

    def encode(self, trunk: nn.ModuleList, features: torch.Tensor) -> torch.Tensor:
        for layer, is_last in with_ends(trunk):
            features = layer(features)
            if is_last:
                features = self.activation(features)
        return features

    def prepare_act(
        self, observation: torch.Tensor, critic_input: torch.Tensor | None, into: Mapping[str, torch.Tensor]
    ) -> Callable[[], None]:
        """A forward pass packed once: calling the result reads `observation` and writes heads.

        Nothing is allocated by the call, and what it writes is the memory that the sampler reads.

        Args:
            observation: [N, features]; rows may be apart.
            critic_input: [N, critic's features], if the critic has inputs of its own.
            into: [N, numbers] of each head that is wanted, contiguous.
        """
        calls: list[Callable[[], None]] = []
        of_critic = [name for name in into if name in JUDGES and self.critic_trunk is not None]
        of_actor = [name for name in into if name not in of_critic]
        for names, trunk, features in (
            (of_actor, "trunk", observation),
            (of_critic, "critic_trunk", observation if critic_input is None else critic_input),
        ):
            if names:
                hidden = self._prepare_trunk(calls, trunk, features)
                calls += [_prepare_layer(getattr(self, f"{name}_head"), hidden, into[name], None) for name in names]
        return all_of(calls)

    def _prepare_trunk(self, calls: list[Callable[[], None]], name: str, features: torch.Tensor) -> torch.Tensor:
        """Adds the calls of a trunk; returns where the last layer writes."""
        for index, (layer, is_last) in enumerate(with_ends(getattr(self, name))):
            out = self._buffer(
                name, index, len(features), features.shape[-1] if layer.weight.dim() == 1 else len(layer.weight)
            )
            calls.append(_prepare_layer(layer, features, out, self.activation if is_last else None))
            features = out
        return features

    def _buffer(self, name: str, layer: int, rows: int, width: int) -> torch.Tensor:
        """Memory for a hidden layer of `rows` rows; every prepared pass of as many rows shares it."""
        if not hasattr(self, "_buffers_of_act"):
            self._buffers_of_act: dict[tuple[str, int, int], torch.Tensor] = {}
        if (name, layer, rows) not in self._buffers_of_act:
            weight = next(self.parameters())
            self._buffers_of_act[name, layer, rows] = weight.new_empty(rows, width, requires_grad=False)
        return self._buffers_of_act[name, layer, rows]

    def __getstate__(self) -> dict[str, Any]:
        """Without that memory: a copy, such as a target network, may never need it."""
        return {key: one for key, one in self.__dict__.items() if key != "_buffers_of_act"}


def with_ends(trunk: nn.ModuleList) -> Iterator[tuple[nn.Module, bool]]:
    """Its layers, each with whether an activation follows: a hidden layer is a Linear, and the LayerNorm after it."""
    for number, layer in enumerate(trunk):
        is_normalised = number + 1 < len(trunk) and isinstance(trunk[number + 1], nn.LayerNorm)
        yield layer, not is_normalised and (number > 0 or isinstance(layer, nn.Linear))


def has_own_critic(config: ModelConfig, inputs: Inputs, heads: Mapping[str, int]) -> bool:
    """Whether the value has hidden layers of its own."""
    return any(one in heads for one in JUDGES) and (inputs.num_critic_features is not None or not config.shared_trunk)


def add_heads(network: nn.Module, widths: Mapping[str, int], generator: torch.Generator | None) -> None:
    """Gives a network a linear layer, `<name>_head`, for each of its heads.

    Args:
        widths: of what goes into each.
    """
    for name, num_outputs in network.heads.items():
        network.add_module(f"{name}_head", linear(widths[name], num_outputs, GAINS.get(name, 1.0), generator))


def apply_heads(network: nn.Module, hidden: torch.Tensor, critic_hidden: torch.Tensor) -> dict[str, torch.Tensor]:
    """What the layers of `add_heads` make of what is before them, in full float where that is in bf16."""
    found = {}
    for name in network.heads:
        layer, features = getattr(network, f"{name}_head"), critic_hidden if name in JUDGES else hidden
        if features.dtype == torch.bfloat16:
            with torch.autocast(features.device.type, enabled=False):
                found[name] = layer(features.float())
        else:
            found[name] = layer(features)
    return found


def make_trunk(
    config: ModelConfig, num_features: int, generator: torch.Generator | None, widths: Sequence[int] | None = None
) -> tuple[nn.ModuleList, int]:
    """Linear layers of these widths, or else of `fc_dims`, with a LayerNorm before the first and after each if asked
    for; and how wide what comes out of them is."""
    widths = [num_features, *(config.fc_dims if widths is None else widths)]
    layers: list[nn.Module] = [nn.LayerNorm(num_features)] if config.norms_input else []
    for pair in itertools.pairwise(widths):
        layers.append(linear(*pair, math.sqrt(2.0), generator))
        layers += [nn.LayerNorm(pair[1])] if config.norms_hidden else []
    return nn.ModuleList(layers), widths[-1]


def make_critic_trunk(
    config: ModelConfig, inputs: Inputs, heads: Mapping[str, int], generator: torch.Generator | None
) -> tuple[nn.ModuleList | None, int | None]:
    """The same for the value alone; None, None where it has none of its own."""
    if not has_own_critic(config, inputs, heads):
        return None, None
    return make_trunk(config, inputs.num_critic_features or inputs.num_features, generator, config.critic_fc_dims)


def linear(num_in: int, num_out: int, gain: float, generator: torch.Generator | None) -> nn.Linear:
    return drawn(partial(Linear, num_in, num_out), gain, generator)


def drawn(make: Callable[[], Layer], gain: float, generator: torch.Generator | None) -> Layer:
    """A linear layer or a convolution, orthogonal, biases 0."""
    with torch.random.fork_rng(devices=()):  # nothing is drawn from torch's global generator
        layer = make()  # (skip_init would do it, and load sympy and more: two seconds)
    if generator is not None:
        nn.init.orthogonal_(layer.weight, gain, generator=generator)
        nn.init.zeros_(layer.bias)
    return layer


def _prepare_layer(
    layer: nn.Module, features: torch.Tensor, out: torch.Tensor, activation: Callable | None
) -> Callable[[], None]:
    if isinstance(layer, nn.Linear):
        # Views of the parameters: the optimiser changes them in place, so they stay true.
        bias, weight = layer.bias.detach(), layer.weight.detach().t()
        call = partial(torch.addmm, bias, features, weight, out=out)
    else:

        def call() -> None:
            out.copy_(layer(features))

    return call if activation is None else all_of([call, partial(activation, out)])
