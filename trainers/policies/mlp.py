"""A multilayer perceptron: one trunk, from which both the action's logits and the value come."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import torch
from torch import nn

from trainers.config import ModelConfig


class MLP(nn.Module):
    """Hidden layers with ReLU, then one layer to the logits and one to the value.

    Initialised orthogonally, gain sqrt 2 in the trunk, 0.01 for the logits (so that play starts
    close to uniform) and 1 for the value; biases 0. Drawn on the CPU: the same on every device.

    Source: Huang et al. 2022, "The 37 implementation details of PPO", detail 2.
    """

    def __init__(self, config: ModelConfig, num_features: int, num_logits: int, generator: torch.Generator) -> None:
        super().__init__()
        widths = [num_features, *config.fc_dims]
        gain = math.sqrt(2.0)
        self.trunk = nn.ModuleList(
            _linear(width, next_width, gain, generator) for width, next_width in itertools.pairwise(widths)
        )
        self.policy_head = _linear(widths[-1], num_logits, 0.01, generator)
        self.value_head = _linear(widths[-1], 1, 1.0, generator)

    def forward(self, observation: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """observation [N, features] -> logits [N, num_logits], value [N]."""
        hidden = observation
        for layer in self.trunk:
            hidden = torch.relu_(layer(hidden))
        return self.policy_head(hidden), self.value_head(hidden).squeeze(-1)

    def prepare_act(
        self, observation: torch.Tensor, logits: torch.Tensor | None, value: torch.Tensor
    ) -> Callable[[], None]:
        """A forward pass packed once: calling the result reads `observation` and writes `logits` and `value`.

        Nothing is allocated by the call, and what it writes is the memory that the sampler reads.

        Args:
            observation: [N, features]; rows may be apart.
            logits: [N, num_logits], contiguous; None if only the value is wanted.
            value: [N], contiguous.
        """
        rows = len(observation)
        # Views of the parameters: the optimiser changes them in place, so they stay true.
        layers = [
            (layer.bias.detach(), layer.weight.detach().t(), self._hidden(rows, index))
            for index, layer in enumerate(self.trunk)
        ]
        heads = [(self.value_head.bias.detach(), self.value_head.weight.detach().t(), value.view(rows, 1))]
        if logits is not None:
            heads.append((self.policy_head.bias.detach(), self.policy_head.weight.detach().t(), logits))

        def act() -> None:
            hidden = observation
            for bias, weight, out in layers:
                torch.addmm(bias, hidden, weight, out=out).relu_()
                hidden = out
            for bias, weight, out in heads:
                torch.addmm(bias, hidden, weight, out=out)

        return act

    def _hidden(self, rows: int, layer: int) -> torch.Tensor:
        """Memory for a hidden layer of `rows` rows; every prepared pass of as many rows shares it."""
        if not hasattr(self, "_buffers_of_act"):
            self._buffers_of_act: dict[tuple[int, int], torch.Tensor] = {}
        if (rows, layer) not in self._buffers_of_act:
            weight = self.trunk[layer].weight
            self._buffers_of_act[rows, layer] = weight.new_empty(rows, len(weight), requires_grad=False)
        return self._buffers_of_act[rows, layer]


def _linear(num_in: int, num_out: int, gain: float, generator: torch.Generator) -> nn.Linear:
    layer = nn.utils.skip_init(nn.Linear, num_in, num_out)  # nothing is drawn from torch's global generator
    nn.init.orthogonal_(layer.weight, gain, generator=generator)
    nn.init.zeros_(layer.bias)
    return layer
