"""A convolutional network for images, beside whatever else an observation has."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np
import torch
from gymnasium import spaces
from torch import nn

from trainers.networks.features import Inputs, scale_of
from trainers.networks.images import CONVOLUTIONS, images_of, problem_of_images, size_behind
from trainers.networks.mlp import ACTIVATIONS, add_heads, apply_heads, drawn, has_own_critic, linear
from trainers.settings.config import ModelConfig
from warpdrive.errors import ConfigError

IMAGES = (np.uint8, np.int8, np.bool_, np.float32)
"""Dtypes that are scaled to 0 to 1 by their space's bounds."""


class CNN(nn.Module):
    """Convolutions over each image, a layer over all that they found and all else that is observed, and a linear layer
    a head; the value's may have convolutions of its own.

    An image is a part of the observation of shape [height, width] or [height, width, channels]; the parts that are none
    go into the layer behind the convolutions as they are. Images are scaled to 0 to 1 by their space's bounds.
    Initialised as MLP is.

    Args: as MLP's. `config.conv` names the convolutions, `config.dense_dim` the width of the layer behind them. A
    critic that has rows of its own judges by a layer of that width over them.
    """

    sees = "arrays"
    memory_size = 0
    compiles = takes_bf16 = True
    """See Stage.of_torch."""

    def __init__(
        self, config: ModelConfig, inputs: Inputs, heads: Mapping[str, int], generator: torch.Generator | None
    ) -> None:
        super().__init__()
        self.heads = dict(heads)
        if (wrong := problem_of_images(config.conv, inputs.spaces)) is not None:
            raise ConfigError(wrong[1])
        layers, width = CONVOLUTIONS[config.conv]
        width = config.dense_dim or width
        like = layers, width, config.activates, config.norms_hidden
        self.encoder = Encoder(inputs.spaces, *like, generator)
        self.critic_encoder = None
        if has_own_critic(config, inputs, heads):
            if inputs.num_critic_features is None:
                self.critic_encoder = Encoder(inputs.spaces, *like, generator)
            else:
                layer = linear(inputs.num_critic_features, width, math.sqrt(2.0), generator)
                norms = [nn.LayerNorm(width)] if config.norms_hidden else []
                activation = nn.ReLU() if config.activates == "relu" else nn.Tanh()
                self.critic_encoder = nn.Sequential(layer, *norms, activation)
        add_heads(self, dict.fromkeys(heads, width), generator)

    def forward(
        self, observation: dict[str, torch.Tensor], critic_input: torch.Tensor | None = None
    ) -> dict[str, torch.Tensor]:
        """By key [N, *shape] in the env's dtype -> by head [N, numbers]."""
        hidden = critic_hidden = self.encoder(observation)
        if self.critic_encoder is not None:
            critic_hidden = self.critic_encoder(observation if critic_input is None else critic_input)
        return apply_heads(self, hidden, critic_hidden)


class Encoder(nn.Module):
    """From the parts of an observation to one vector [N, width].

    Args:
        seen: the space of each part.
        layers: (channels, kernel, stride) of each convolution.
        width: of the layer behind them.
        norms: whether a LayerNorm stands before each activation: over the channels of each place of a convolution.
    """

    def __init__(
        self,
        seen: Mapping[str, spaces.Box],
        layers: Sequence[tuple[int, int, int]],
        width: int,
        activation: str,
        norms: bool,
        generator: torch.Generator | None,
    ) -> None:
        super().__init__()
        self.activation = ACTIVATIONS[activation]
        self.images = images_of(seen)
        self.scales = {key: scale_of(seen[key], IMAGES) for key in self.images}
        self.convolutions, self.norms = nn.ModuleList(), nn.ModuleList()
        num_features = sum(math.prod(space.shape) for key, space in seen.items() if key not in self.images)
        for height, wide, *channels in self.images.values():
            found, num_in = nn.ModuleList(), (channels or [1])[0]
            for num_out, kernel, stride in layers:
                found.append(drawn(partial(nn.Conv2d, num_in, num_out, kernel, stride), math.sqrt(2.0), generator))
                height, wide = (size_behind(size, kernel, stride) for size in (height, wide))
                num_in = num_out
            num_features += height * wide * num_in
            self.convolutions.append(found)
            self.norms.append(nn.ModuleList(nn.LayerNorm(num_out) for num_out, *_ in layers if norms))
        self.dense = linear(num_features, width, math.sqrt(2.0), generator)
        self.dense_norm = nn.LayerNorm(width) if norms else None

    def layers_of(self, image: int) -> list[nn.Module]:
        """One after the other, of the image of a number."""
        convolutions, norms = self.convolutions[image], self.norms[image]
        found = [one for pair in itertools.zip_longest(convolutions, norms) for one in pair]
        return [one for one in (*found, self.dense, self.dense_norm) if one is not None]

    def forward(self, observation: dict[str, torch.Tensor]) -> torch.Tensor:
        dtype, found = self.dense.weight.dtype, []
        for (key, shape), layers, norms in zip(self.images.items(), self.convolutions, self.norms, strict=True):
            image = observation[key].to(dtype)
            if self.scales[key] is not None:
                low, scale = self.scales[key]
                image = (image - low) * scale
            image = image.unsqueeze(-3) if len(shape) == 2 else image.movedim(-1, -3)
            for layer, norm in itertools.zip_longest(layers, norms):
                image = convolved(layer, image)
                if norm is not None:
                    image = norm(image.movedim(-3, -1)).movedim(-1, -3)
                image = self.activation(image)
            found.append(image.flatten(-3))
        found += [one.to(dtype).flatten(1) for key, one in observation.items() if key not in self.images]
        hidden = self.dense(torch.cat(found, dim=-1))
        return self.activation(hidden if self.dense_norm is None else self.dense_norm(hidden))


def convolved(layer: nn.Conv2d, image: torch.Tensor) -> torch.Tensor:
    """What a convolution makes of images [N, channels, height, width].

    One of stride s, a divisor of its kernel, is one of stride 1 over squares of s x s pixels, and GPUs are far better
    at that: 64 channels of 2 x 2 instead of 4 of 8 x 8.
    """
    (kernel, _), (stride, _) = layer.kernel_size, layer.stride
    if stride == 1 or kernel % stride:
        return layer(image)
    height, width = (size_behind(size, kernel, stride) * stride + kernel - stride for size in image.shape[-2:])
    seen, weight = squares(image[..., :height, :width], stride), squares(layer.weight, stride)
    return nn.functional.conv2d(seen, weight, layer.bias)


def squares(image: torch.Tensor, size: int) -> torch.Tensor:
    """[N, C, H, W] -> [N, size size C, H / size, W / size], channels last in memory."""
    number, channels, height, width = image.shape
    rows = image.movedim(1, -1).reshape(number, height // size, size, width // size, size, channels)
    return rows.transpose(2, 3).flatten(3).movedim(-1, 1)
