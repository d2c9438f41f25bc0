"""A convolution over pictures of bytes, and a cell that remembers what they showed."""

import torch
from torch import nn

from my_package.nets import Cnn


class Recurrent(Cnn):
    memory_size = 16
    sequence_length = None

    def __init__(self, config, inputs, heads, generator):
        super().__init__(config, inputs, heads, generator)
        ((_, space),) = inputs.spaces.items()
        _, height, width = space.shape
        self.cell = nn.GRUCell(config.channels * height * width, self.memory_size)
        self.ends = nn.ModuleDict({name: nn.Linear(self.memory_size, n) for name, n in heads.items()})

    def unroll(self, observation, critic_input, memory, starts=None):
        pictures = observation[self.key].float() / 255  # [L, N, depth, height, width]
        hidden = self.body(pictures.flatten(0, 1)).unflatten(0, pictures.shape[:2])
        states = []
        for t, seen in enumerate(hidden):
            if starts is not None:  # [L, N]: who remembers nothing now
                memory = memory.masked_fill(starts[t].unsqueeze(-1), 0.0)
            memory = self.cell(seen, memory)
            states.append(memory)
        states = torch.stack(states)
        return {name: end(states) for name, end in self.ends.items()}, memory
