"""A network that remembers, small enough to be written out by a loop."""

import torch
from torch import nn


class Recurrent(nn.Module):
    """A cell and a layer, in float64; one step at a time."""

    def __init__(self, num_actions: int) -> None:
        super().__init__()
        self.cell, self.layer, self.memory_size = nn.GRUCell(3, 5).double(), nn.Linear(5, num_actions).double(), 5

    def unroll_outputs(self, observation, critic_input, memory, starts, burn_in):
        found = []
        for t, (seen, start) in enumerate(zip(observation, starts, strict=True)):
            memory = self.cell(seen, torch.where(start.unsqueeze(-1), 0.0, memory))
            if t < burn_in:
                memory = memory.detach()
            else:
                found.append(self.layer(memory))
        return torch.stack(found), memory
