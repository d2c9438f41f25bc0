"""Where the parts of a network's gradient come from: the blocks of `learn`, or products of what it recorded."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch

from trainers.fused.network import WARPS, FusedNetwork, FusedPolicy, group_of, place_in_record
from trainers.fused.source import Part
from warpdrive.function_manager import Constant

MAX_WIDTH_OF_TWO_TILES = 32
"""The widest layer for which a warp's registers hold 32 samples at once instead of 16."""
MAX_BLOCKS_A_WARP = 14
"""Of 16 x 16 sums: what a warp's registers hold beside a network's activations. Wider networks write records."""
ROWS_OF_STAGE, MAX_STAGES = 64, 4
"""Samples whose records a block multiplies at once, and how many times as many it has in shared memory."""
TILE_BYTES, HEAD_BYTES = 16 * ROWS_OF_STAGE * 2, 512
"""Of 16 columns of their records; of shared memory before them (fused_products.cuh)."""


class NetworkGradient:
    """The gradient of one network: how its learn kernel is made, and where the parts go that the gradient is made of.

    A narrow network adds products up in its blocks' registers: a part a block. A wide one writes records, whose
    products are sums over a million rows. They are a matrix library's work; or, where warps multiply in fours, that of
    a kernel whose blocks hold a piece of the gradient each.

    Args:
        fused: the policy.
        constants: of the group and of the loss.
        network: one of the policy's.
    """

    parts: torch.Tensor
    """[num_parts, part_size], flat."""
    records: torch.Tensor
    """Bytes of [rows, record], where it does not accumulate."""

    def __init__(self, fused: FusedPolicy, constants: dict[str, Constant], network: FusedNetwork) -> None:
        self.fused = fused
        self.network = network
        shape = network.shape
        self.widths = shape.widths_of_record
        self.record = sum(self.widths)
        weight_bytes = shape.num_elements * fused.element_bytes
        row_tiles = 2 if max(shape.widths) <= MAX_WIDTH_OF_TWO_TILES else 1
        stage = shape.stage_bytes(row_tiles)
        tile_bytes = 16 * WARPS * row_tiles * shape.shared_pitch(fused.element_bytes) * fused.element_bytes
        fits = stage + tile_bytes + weight_bytes <= fused.max_shared_bytes
        self.accumulates = fits and -(-shape.num_blocks // WARPS) <= MAX_BLOCKS_A_WARP
        if not self.accumulates:
            row_tiles, tile_bytes = 1, 0
            stage = shape.stage_bytes(row_tiles)
        self.rows_a_block = 16 * WARPS * row_tiles
        left = fused.max_shared_bytes - stage - tile_bytes
        multiplies_in_fours = fused.has_warpgroups and not self.accumulates
        group_tiles = 8 if shape.tiles[3] == 1 else 4  # more outputs take the registers
        self.constants = {
            **shape.constants(fused.policy, fused.element_bytes, row_tiles, left, multiplies_in_fours, group_tiles),
            **constants,
            "ACCUMULATES": self.accumulates,
            "ONES_AT": int(place_in_record(shape.num_features, group_of(shape.tiles[0]))),
        }
        self.shared_bytes = stage + tile_bytes + shape.shared_weights(self.constants, fused.element_bytes)
        self.is_in_pieces = bool(self.constants["WARPGROUPS"])
        self.writes_records = not self.accumulates and not self.is_in_pieces
        self.part_size = network.part_size_of_pieces() if self.is_in_pieces else network.part_size(self.accumulates)

    def gradient_places(self) -> list[tuple[np.ndarray, np.ndarray]]:
        """(parameters, where the gradient of each is in a part)."""
        if self.is_in_pieces:
            return self.network.gradient_places_of_pieces()
        return self.network.gradient_places(self.accumulates)

    def set_shares(self, num_blocks: int, chunk: int) -> None:
        """Says how many blocks multiply the records of a chunk: as many shares of the samples as there are parts."""
        first, second = self.network.shape.tiles[1:3]
        pieces = second // 8 + max(first, second) // 8
        self.num_parts = max(1, min(num_blocks // pieces, -(-chunk // ROWS_OF_STAGE)))
        self._num_product_blocks = self.num_parts * pieces

    def part_of_products(self, head_sizes: Sequence[int]) -> Part:
        """What compile_fused makes the kernel of these products of."""
        features, first, _, outputs = self.network.shape.tiles
        stage = (8 + max(first, 8 + features + outputs)) * TILE_BYTES
        stages = min(MAX_STAGES, (self.fused.max_shared_bytes - HEAD_BYTES) // stage)
        constants = {**self.constants, "STAGES": stages}
        return Part(constants, head_sizes, self._num_product_blocks, HEAD_BYTES + stages * stage)

    def set_blocks(self, num_blocks: int, num_chunks: int) -> None:
        """Says how many blocks work for the network in a launch, and in how many launches a minibatch is learned."""
        self.num_blocks = num_blocks
        self.num_parts = num_blocks * num_chunks if self.accumulates else num_chunks
        self.num_figures = num_blocks * WARPS * num_chunks

    def prepare_products(self, number: int, rows: int) -> list[Callable[[], None]]:
        """The products of a chunk's records: deltas and features, then each further layer's."""
        dtype = torch.float32 if self.fused.element_bytes == 4 else torch.bfloat16
        records = self.records.view(dtype)[: rows * self.record].view(rows, self.record)
        widths = self.widths
        features, hidden1, hidden2, _, delta2, delta_out = records.split(widths, dim=1)
        deltas = records[:, sum(widths[:3]) :]
        pairs = [(deltas, features)]
        if widths[2]:
            pairs.append((delta2, hidden1))
        pairs.append((delta_out, hidden2 if widths[2] else hidden1))
        part = self.parts[number * self.part_size : (number + 1) * self.part_size]
        calls, at = [], 0
        for delta, given in pairs:
            out = part[at : at + delta.shape[1] * given.shape[1]].view(delta.shape[1], given.shape[1])
            at += out.numel()
            calls.append(_prepare_product(delta.t(), given, out))
        return calls


def _prepare_product(left: torch.Tensor, right: torch.Tensor, out: torch.Tensor) -> Callable[[], None]:
    """out = left right, summed in float32."""
    if left.dtype == torch.float32:
        return lambda: torch.mm(left, right, out=out)
    if left.is_cuda:
        return lambda: torch.mm(left, right, out_dtype=torch.float32, out=out)
    return lambda: torch.mm(left.float(), right.float(), out=out)
