"""A convolution over pictures of bytes."""

from dataclasses import dataclass

from torch import nn

from trainers.settings.config import ModelConfig


@dataclass(frozen=True)
class CnnConfig(ModelConfig):
    channels: int = 4
    """Of the convolution."""


class Cnn(nn.Module):
    sees = "arrays"

    def __init__(self, config, inputs, heads, generator):
        super().__init__()
        ((self.key, space),) = inputs.spaces.items()
        depth, height, width = space.shape
        self.body = nn.Sequential(nn.Conv2d(depth, config.channels, 3, padding=1), nn.ReLU(), nn.Flatten())
        self.ends = nn.ModuleDict({name: nn.Linear(config.channels * height * width, n) for name, n in heads.items()})

    def forward(self, observation, critic_input=None):
        hidden = self.body(observation[self.key].float() / 255)
        return {name: end(hidden) for name, end in self.ends.items()}
