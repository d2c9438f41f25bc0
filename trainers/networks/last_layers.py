"""What may end a network of Q-values instead of one linear layer: two streams, and layers with noise in them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import nn

from trainers.networks.mlp import linear
from warpdrive.errors import ConfigError

Noise = Sequence[tuple[torch.Tensor, torch.Tensor]]
"""Of each noisy layer, for its inputs [N, in] and its outputs [N, out]."""


class NoisyLinear(nn.Module):
    """A linear layer whose weights and biases are drawn: the mean that a Linear has, and a size of the noise, learned.

    While `noise_of` gives noise, each row has weights of its own, w + s * f(out) f(in)^T with independent normal
    numbers and f(x) = sign(x) sqrt|x|. As this is a product, it costs a second multiplication and not a weight a row.
    Else it is the Linear of the means.

    Source: Fortunato et al. 2018, "Noisy networks for exploration", arXiv:1706.10295, factorised noise, sigma_0 0.5.
    """

    def __init__(self, num_in: int, num_out: int, generator: torch.Generator | None) -> None:
        super().__init__()
        bound = 1.0 / math.sqrt(num_in)
        self.weight, self.bias = (nn.Parameter(torch.empty(shape)) for shape in ((num_out, num_in), (num_out,)))
        self.weight_noise = nn.Parameter(torch.full((num_out, num_in), 0.5 * bound))
        self.bias_noise = nn.Parameter(torch.full((num_out,), 0.5 * bound))
        self.noise: tuple[torch.Tensor, torch.Tensor] | None = None
        if generator is not None:
            for one in (self.weight, self.bias):
                nn.init.uniform_(one, -bound, bound, generator=generator)

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        """[N, in] or, N rows of K draws, [N, K, in] -> [..., out]."""
        found = nn.functional.linear(features, self.weight, self.bias)
        if self.noise is None:
            return found
        of_in, of_out = (one if features.dim() == 2 else one.unsqueeze(1) for one in self.noise)
        return found + of_out * nn.functional.linear(features * of_in, self.weight_noise, self.bias_noise)


class Dueling(nn.Module):
    """Two streams, each with a hidden layer as wide as what it reads: what it is worth to be here, and how much better
    than the mean of all each action is.

    Args:
        num_in: width of what it reads.
        num_actions, num_atoms: it gives [..., num_actions * num_atoms]; each atom has a value and advantages.
        is_noisy: whether all of its layers are NoisyLinear.

    Source: Wang et al. 2016, "Dueling network architectures for deep reinforcement learning", arXiv:1511.06581.
    """

    def __init__(
        self, num_in: int, num_actions: int, num_atoms: int, is_noisy: bool, generator: torch.Generator | None
    ) -> None:
        super().__init__()
        self.num_atoms = num_atoms
        self.value_stream, self.advantage_stream = (
            nn.ModuleList([_layer(num_in, num_in, math.sqrt(2.0), is_noisy, generator),
                           _layer(num_in, num_out, 1.0, is_noisy, generator)])
            for num_out in (num_atoms, num_actions * num_atoms)
        )  # fmt: skip

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        streams = (self.value_stream, self.advantage_stream)
        value, advantage = (last(torch.relu_(first(features))) for first, last in streams)
        advantage = advantage.unflatten(-1, (-1, self.num_atoms))
        return (value.unsqueeze(-2) + advantage - advantage.mean(-2, keepdim=True)).flatten(-2)


class Kept(nn.Module):
    """Keeps layers that a network is to call later, with what it is given here and more: gives that on as it is."""

    def __init__(self, last: nn.Module) -> None:
        super().__init__()
        self.last = last

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        return features


def change_last_layer(
    network: nn.Module, num_atoms: int, dueling: bool, noisy: bool, generator: torch.Generator | None
) -> None:
    """Puts two streams, or noise, where a network's layer of Q-values was.

    Raises:
        ConfigError: it has no such layer.
    """
    if dueling or noisy:
        last = last_layer(network, "dueling: true and noisy: true change")
        given = (noisy, generator)
        if dueling:
            network.q_head = Dueling(last.in_features, last.out_features // num_atoms, num_atoms, *given)
        else:
            network.q_head = _layer(last.in_features, last.out_features, 1.0, *given)


def last_layer(network: nn.Module, who_changes: str) -> nn.Linear:
    """A network's layer of Q-values.

    Raises:
        ConfigError: it has none, being from outside.
    """
    last = getattr(network, "q_head", None)
    if not isinstance(last, nn.Linear):
        name = type(network).__name__
        raise ConfigError(
            f"network '{name}': {who_changes} a network's last layer, a Linear that is called q_head, which it has "
            "not. Call it so, or take model.type: mlp or cnn."
        )
    return last


def noisy_layers(network: nn.Module) -> list[NoisyLinear]:
    return [layer for layer in network.modules() if isinstance(layer, NoisyLinear)]


@contextmanager
def noise_of(network: nn.Module, noise: Noise) -> Iterator[None]:
    """While it is entered, the network's layers have this noise, or none if it is empty."""
    layers = noisy_layers(network) if noise else []
    for layer, one in zip(layers, noise, strict=True):
        layer.noise = one
    try:
        yield
    finally:
        for layer in layers:
            layer.noise = None


def make_noise(network: nn.Module, num_rows: int) -> Noise:
    """Memory for the noise of so many rows: zeros, which is none."""
    return [
        tuple(layer.weight.new_zeros(num_rows, size, requires_grad=False) for size in reversed(layer.weight.shape))
        for layer in noisy_layers(network)
    ]


def draw_noise(network: nn.Module, num_rows: int, generator: torch.Generator) -> Noise:
    """Noise of so many rows, each drawn by itself."""
    noise = make_noise(network, num_rows)
    redraw(noise, generator)
    return noise


def redraw(noise: Noise, generator: torch.Generator) -> None:
    """Draws it anew, in its place."""
    for pair in noise:
        for one in pair:
            one.normal_(generator=generator)
            one.copy_(one.sign() * one.abs().sqrt_())


def _layer(num_in: int, num_out: int, gain: float, is_noisy: bool, generator: torch.Generator | None) -> nn.Module:
    return NoisyLinear(num_in, num_out, generator) if is_noisy else linear(num_in, num_out, gain, generator)
