"""A multilayer perceptron: hidden layers, then one layer to the action's distribution and one to the value."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence

import torch
from torch import nn

from trainers.settings.config import ModelConfig

ACTIVATIONS = {"relu": torch.relu_, "tanh": torch.tanh_}


class MLP(nn.Module):
    """Hidden layers, in one trunk for both ends or in one each, and a linear layer at each end.

    Initialised orthogonally, gain sqrt 2 in the trunks, 0.01 for the action's outputs (so that play starts close to
    uniform) and 1 for the value; biases 0. Drawn on the CPU: the same on every device.

    Args:
        config: widths, activation, whether the trunk is shared.
        num_features: of the observation.
        num_outputs: numbers that say the action's distribution.
        num_critic_features: of the critic's own input, which makes a trunk of its own for it; None if it sees
            what the actor sees.
        generator: draws the weights.

    Source: Huang et al. 2022, "The 37 implementation details of PPO", details 2, 13 and 17.
    """

    memory_size = 0
    """Numbers that it remembers from step to step: none."""

    def __init__(
        self,
        config: ModelConfig,
        num_features: int,
        num_outputs: int,
        num_critic_features: int | None,
        generator: torch.Generator,
    ) -> None:
        super().__init__()
        self.activation = ACTIVATIONS[config.activation]
        self.trunk = make_trunk(num_features, config.fc_dims, config.layer_norm, generator)
        self.critic_trunk = None
        critic_dims = config.fc_dims if config.critic_fc_dims is None else config.critic_fc_dims
        if num_critic_features is not None or not config.shared_trunk:
            self.critic_trunk = make_trunk(
                num_critic_features or num_features, critic_dims, config.layer_norm, generator
            )
        else:
            critic_dims = config.fc_dims
        self.policy_head = linear(last_width(num_features, config.fc_dims), num_outputs, 0.01, generator)
        width = last_width(num_critic_features or num_features, critic_dims)
        self.value_head = linear(width, 1, 1.0, generator)

    def forward(
        self, observation: torch.Tensor, critic_input: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """observation [..., features] -> outputs [..., num_outputs], value [...]."""
        hidden = self.encode(self.trunk, observation)
        critic_hidden = hidden
        if self.critic_trunk is not None:
            critic_hidden = self.encode(self.critic_trunk, observation if critic_input is None else critic_input)
        return self.policy_head(hidden), self.value_head(critic_hidden).squeeze(-1)

    def encode(self, trunk: nn.ModuleList, features: torch.Tensor) -> torch.Tensor:
        for layer in trunk:
            features = layer(features)
            if isinstance(layer, nn.Linear):
                features = self.activation(features)
        return features

    def prepare_act(
        self,
        observation: torch.Tensor,
        critic_input: torch.Tensor | None,
        outputs: torch.Tensor | None,
        value: torch.Tensor,
    ) -> Callable[[], None]:
        """A forward pass packed once: calling the result reads `observation` and writes `outputs` and `value`.

        Nothing is allocated by the call, and what it writes is the memory that the sampler reads.

        Args:
            observation: [N, features]; rows may be apart.
            critic_input: [N, critic's features], if the critic has inputs of its own.
            outputs: [N, num_outputs], contiguous; None if only the value is wanted.
            value: [N], contiguous.
        """
        rows = len(observation)
        calls, hidden = [], None
        if outputs is not None or self.critic_trunk is None:
            hidden = self._prepare_trunk(calls, "trunk", observation)
        if outputs is not None:
            calls.append(_prepare_linear(self.policy_head, hidden, outputs, None))
        if self.critic_trunk is not None:
            hidden = self._prepare_trunk(calls, "critic_trunk", observation if critic_input is None else critic_input)
        calls.append(_prepare_linear(self.value_head, hidden, value.view(rows, 1), None))

        def act() -> None:
            for call in calls:
                call()

        return act

    def _prepare_trunk(self, calls: list[Callable[[], None]], name: str, features: torch.Tensor) -> torch.Tensor:
        """Adds the calls of a trunk; returns where the last layer writes."""
        for index, layer in enumerate(getattr(self, name)):
            out = self._buffer(
                name, index, len(features), features.shape[-1] if layer.weight.dim() == 1 else len(layer.weight)
            )
            if isinstance(layer, nn.Linear):
                calls.append(_prepare_linear(layer, features, out, self.activation))
            else:
                calls.append(_prepare_layer_norm(layer, features, out))
            features = out
        return features

    def _buffer(self, name: str, layer: int, rows: int, width: int) -> torch.Tensor:
        """Memory for a hidden layer of `rows` rows; every prepared pass of as many rows shares it."""
        if not hasattr(self, "_buffers_of_act"):
            self._buffers_of_act: dict[tuple[str, int, int], torch.Tensor] = {}
        if (name, layer, rows) not in self._buffers_of_act:
            self._buffers_of_act[name, layer, rows] = self.value_head.weight.new_empty(rows, width, requires_grad=False)
        return self._buffers_of_act[name, layer, rows]


def make_trunk(num_features: int, widths: Sequence[int], layer_norm: bool, generator: torch.Generator) -> nn.ModuleList:
    """Linear layers of these widths, behind a LayerNorm of the input if asked for."""
    layers = [nn.LayerNorm(num_features)] if layer_norm else []
    for width, next_width in itertools.pairwise([num_features, *widths]):
        layers.append(linear(width, next_width, math.sqrt(2.0), generator))
    return nn.ModuleList(layers)


def last_width(num_features: int, widths: Sequence[int]) -> int:
    return widths[-1] if widths else num_features


def linear(num_in: int, num_out: int, gain: float, generator: torch.Generator) -> nn.Linear:
    with torch.random.fork_rng(devices=()):  # nothing is drawn from torch's global generator
        layer = nn.Linear(num_in, num_out)  # (skip_init would do it, and load sympy and more: two seconds)
    nn.init.orthogonal_(layer.weight, gain, generator=generator)
    nn.init.zeros_(layer.bias)
    return layer


def _prepare_linear(
    layer: nn.Linear, features: torch.Tensor, out: torch.Tensor, activation: Callable | None
) -> Callable[[], None]:
    # Views of the parameters: the optimiser changes them in place, so they stay true.
    bias, weight = layer.bias.detach(), layer.weight.detach().t()

    def call() -> None:
        torch.addmm(bias, features, weight, out=out)
        if activation is not None:
            activation(out)

    return call


def _prepare_layer_norm(layer: nn.LayerNorm, features: torch.Tensor, out: torch.Tensor) -> Callable[[], None]:
    def call() -> None:
        out.copy_(layer(features))

    return call
