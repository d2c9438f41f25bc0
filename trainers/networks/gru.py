"""A recurrent network: hidden layers, then a gated recurrent unit that remembers from step to step."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import nn

from trainers.networks.features import Inputs
from trainers.networks.mlp import ACTIVATIONS, MLP, add_heads, apply_heads, make_critic_trunk, make_trunk
from trainers.settings.config import ModelConfig


class GRU(nn.Module):
    """Hidden layers, a GRU cell, and a linear layer a head; for the value its own, or the same.

    What it remembers, `memory` [N, memory_size], is zero at the start of an episode, and of an agent that is out of the
    game, also when it comes back.

    Args: as MLP's; `config.memory_size` is the units of each cell.

    Source: Cho et al. 2014, arXiv:1406.1078.
    """

    sees = "rows"
    cell_type: type[nn.RNNCellBase] = nn.GRUCell
    numbers_of_unit = 1
    """That it remembers; the first of each is what other layers see."""
    walk: Callable[[nn.RNNCellBase, torch.Tensor, torch.Tensor, torch.Tensor | None, int], torch.Tensor]
    """What goes through the steps of a sequence: `walk_by_steps`, or another that takes and gives the same."""

    def __init__(
        self, config: ModelConfig, inputs: Inputs, heads: Mapping[str, int], generator: torch.Generator | None
    ) -> None:
        super().__init__()
        self.heads = dict(heads)
        self.activation = ACTIVATIONS[config.activates]
        self.trunk, width = make_trunk(config, inputs.num_features, generator)
        self.cell = self._make_cell(width, config.memory_size, generator)
        self.critic_trunk, width = make_critic_trunk(config, inputs, heads, generator)
        self.critic_cell = None if width is None else self._make_cell(width, config.memory_size, generator)
        add_heads(self, dict.fromkeys(heads, config.memory_size), generator)
        self.sequence_length = config.sequence_length
        self.memory_size = config.memory_size * self.numbers_of_unit * (1 if self.critic_cell is None else 2)
        self.walk = walk_by_steps

    encode = MLP.encode

    def unroll(
        self,
        observation: torch.Tensor,
        critic_input: torch.Tensor | None,
        memory: torch.Tensor,
        starts: torch.Tensor | None = None,
        burn_in: int = 0,
    ) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
        """A sequence of steps.

        Args:
            observation: [L, N, features], critic_input: [L, N, critic's features] or None.
            memory: [N, memory_size] before the first step.
            starts: [L, N] bool, which rows remember nothing in this step, such as in the first of an episode; None
                if all do.
            burn_in: steps at first that only bring the memory up to date: no gradient reaches them.
        Returns:
            By head [L - burn_in, N, numbers]; memory [N, memory_size] after the last step.
        """
        inputs = [self._encode_rows(self.trunk, observation)]
        cells = [self.cell]
        if self.critic_cell is not None:
            inputs.append(self._encode_rows(self.critic_trunk, observation if critic_input is None else critic_input))
            cells.append(self.critic_cell)
        parts = memory.chunk(len(cells), dim=-1)
        kept = [self.walk(*one, starts, burn_in) for one in zip(cells, inputs, parts, strict=True)]
        hidden = [one if self.numbers_of_unit == 1 else one[..., : self.cell.hidden_size] for one in kept]
        last = [steps[-1] for steps in kept]
        return apply_heads(self, hidden[0], hidden[-1]), last[0] if len(last) == 1 else torch.cat(last, dim=-1)

    def _encode_rows(self, trunk: nn.ModuleList, seen: torch.Tensor) -> torch.Tensor:
        """Of [L, N, features]. As rows, since an activation in place of what a layer gives as a view copies it twice on
        the way back."""
        return self.encode(trunk, seen.flatten(0, 1)).unflatten(0, seen.shape[:2])

    def _make_cell(self, num_in: int, size: int, generator: torch.Generator | None) -> nn.RNNCellBase:
        with torch.random.fork_rng(devices=()):  # as in `linear`
            cell = self.cell_type(num_in, size)
        for name, parameter in cell.named_parameters() if generator is not None else ():
            if name.startswith("weight"):
                nn.init.orthogonal_(parameter, 1.0, generator=generator)
            else:
                nn.init.zeros_(parameter)
        return cell


def walk_by_steps(
    cell: nn.RNNCellBase,
    inputs: torch.Tensor,
    memory: torch.Tensor,
    starts: torch.Tensor | None,
    burn_in: int = 0,
) -> torch.Tensor:
    """What a cell remembers after each step of a sequence but those of the burn-in, [L - burn_in, N, numbers].

    Args:
        inputs: [L, N, features]; memory [N, numbers] before the first step; starts and burn_in as GRU.unroll's.
    """
    seen, is_learned = [], torch.is_grad_enabled()
    for t, given in enumerate(inputs):
        with torch.set_grad_enabled(is_learned and t >= burn_in):
            memory = cell(given, memory if starts is None else memory * (~starts[t]).unsqueeze(-1))
        if t >= burn_in:
            seen.append(memory)
    return torch.stack(seen) if len(seen) > 1 else seen[0].unsqueeze(0)
