"""A recurrent network: hidden layers, then a long short-term memory."""

from __future__ import annotations

import torch
from torch import nn

from trainers.networks.gru import GRU


class LSTMCell(nn.LSTMCell):
    """torch's, whose memory is one row [N, 2 units]: what other layers see, then what the cell keeps to itself."""

    def forward(self, given: torch.Tensor, memory: torch.Tensor) -> torch.Tensor:
        return torch.cat(super().forward(given, memory.chunk(2, dim=-1)), dim=-1)


class LSTM(GRU):
    """As GRU, of LSTM cells.

    Source: Hochreiter and Schmidhuber 1997, "Long short-term memory"; Gers et al. 2000, "Learning to forget", whose
    forget gates are open at first: their bias is 1.
    """

    cell_type = LSTMCell
    numbers_of_unit = 2

    def _make_cell(self, num_in: int, size: int, generator: torch.Generator | None) -> nn.RNNCellBase:
        cell = super()._make_cell(num_in, size, generator)
        if generator is not None:
            nn.init.ones_(cell.bias_ih.data[size : 2 * size])  # torch's gates: input, forget, cell, output
        return cell
