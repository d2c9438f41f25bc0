"""Where a network's numbers lie for the fused kernels: weights, the record of a sample, the parts of a gradient.

The kernels have no formulas of their own for this: they take these as constants, and assert what they assume of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from warpdrive.function_manager import Constant

WARPS = 8
"""Of a block: with 255 registers a lane, as many as a multiprocessor holds."""
STAGE_ROWS, HEAD_BYTES = 64, 512
"""Samples whose records a block of `products` multiplies at once; its shared memory before the first of them."""
OF_LAYER2 = {1: 0.8, 2: 0.88}
"""The part of the blocks of `products` that have pieces of layer 2, so many of them, where they make what they
multiply."""
MAX_STAGES = 4
"""How many times as many samples as it multiplies a block of `products` has in shared memory."""
NORM_EPS = 1e-5
"""Of torch's LayerNorm: added to the variance."""
TILE_BYTES = 16 * STAGE_ROWS * 2
"""Of 16 columns of their records."""

Way = Literal["registers", "records", "pieces", "layers"]
"""How a gradient is summed up: in the registers of the blocks that learn; by a matrix library out of records; by
blocks that keep a piece of it each, out of records as well; or layer by layer, by a matrix library that computes all
products of the network."""

Pair = tuple[np.ndarray, np.ndarray]
"""Places of a layer's weights, [out, in], and of its biases, [out]."""


@dataclass(frozen=True)
class Shape:
    """One network of a policy, in tiles of 16 columns."""

    num_features: int
    widths: tuple[int, ...]
    """Of one or two hidden layers."""
    num_outputs: int
    """Numbers that say the action's distribution; 0 for a critic alone."""
    has_value: bool
    norms_input: bool = False
    """Whether rows of features are brought to mean 0 and deviation 1. (Its gain and shift are folded into layer 1.)"""
    norms_hidden: bool = False
    """Whether sums of hidden layers are, with a gain and a shift each, before their activation."""

    @property
    def tiles(self) -> tuple[int, int, int, int]:
        """Of the features with a column of ones, of both hidden layers (0: there is no second), of the outputs."""
        widths = (*self.widths, 0)[:2]
        return tuple(-(-width // 16) for width in (self.num_features + 1, *widths, self.num_outputs + self.has_value))

    @property
    def layers(self) -> list[tuple[int, int]]:
        """(outputs, inputs) of each layer; the last has the action's outputs and the value."""
        given = (self.num_features, *self.widths)
        return list(zip((*self.widths, self.num_outputs + self.has_value), given, strict=True))

    @property
    def tiles_of_layers(self) -> list[tuple[int, int]]:
        """The same in tiles."""
        features, first, second, outputs = self.tiles
        hidden = [first, second] if second else [first]
        return list(zip([*hidden, outputs], [features, *hidden], strict=True))

    @property
    def num_parameters(self) -> int:
        of_norms = 2 * (self.num_features * self.norms_input + sum(self.widths) * self.norms_hidden)
        return sum(out * (given + 1) for out, given in self.layers) + of_norms

    # ---------------------------------------------------------------------------------------- weights

    @property
    def sizes(self) -> tuple[int, int, int]:
        """Elements of each layer's weights; of the second hidden layer 0, if there is none."""
        features, first, second, outputs = self.tiles
        return first * features * 256, second * first * 256, outputs * (second or first) * 256

    @property
    def num_elements(self) -> int:
        return sum(self.sizes)

    @property
    def work(self) -> int:
        """Elements that a block goes through for a sample, by which networks of a launch share its blocks."""
        return self.num_elements

    @property
    def num_biases(self) -> int:
        return sum(self.tiles[1:]) * 16

    def places(self) -> list[Pair]:
        """Of each layer: among the elements, where weights lie in blocks [row / 8][column / 8][8][8]; among biases."""
        found, at, bias_at = [], 0, 0
        for (out, given), (out_tiles, in_tiles) in zip(self.layers, self.tiles_of_layers, strict=True):
            row, column = np.indices((out, given))
            block = row // 8 * (2 * in_tiles) + column // 8
            found.append((at + block * 64 + row % 8 * 8 + column % 8, bias_at + np.arange(out)))
            at += out_tiles * in_tiles * 256
            bias_at += out_tiles * 16
        return found

    def stage_floats(self, row_tiles: int) -> int:
        """Of a warp's shared memory, where it keeps what its rows' outputs are."""
        return -(-row_tiles * 16 * self.stage_pitch // 4) * 4

    @property
    def stage_pitch(self) -> int:
        """Floats from a row's outputs to the next one's: odd, so that lanes read their rows without conflicts."""
        return self.tiles[3] * 16 + 1

    def stage_bytes(self, row_tiles: int) -> int:
        """Shared memory of a block besides weights: biases, and each warp's outputs."""
        return 4 * (self.num_biases + WARPS * self.stage_floats(row_tiles))

    def constants(self, row_tiles: int) -> dict[str, Constant]:
        """What layers/mlp.cuh asks of it."""
        features, first, second, outputs = self.tiles
        size1, size2, size3 = self.sizes
        return {
            "NUM_FEATURES": self.num_features,
            "NORMS_INPUT": self.norms_input,
            "NORM_EPS": NORM_EPS,
            "FEATURE_TILES": features,
            "TILES1": first,
            "TILES2": second,
            "NUM_OUTPUTS": self.num_outputs,
            "HAS_VALUE": self.has_value,
            "OUTPUT_TILES": outputs,
            "SIZE1": size1,
            "SIZE2": size2,
            "SIZE3": size3,
            "NUM_BIASES": 16 * sum(self.tiles[1:]),
            "WARPS": WARPS,
            "ROW_TILES": row_tiles,
            "STAGE_PITCH": self.stage_pitch,
            "STAGE_FLOATS": self.stage_floats(row_tiles),
        }

    # ---------------------------------------------------------------------------------------- records

    def widths_of_record(self, way: Way) -> list[int]:
        """Features, hidden 1, hidden 2, delta 1, delta 2, delta of the outputs."""
        features, first, second, outputs = (16 * tiles for tiles in self.tiles)
        if way == "pieces" and self.is_made_anew:
            return [features, 0, second, first, 0, outputs]
        return [features, first, second, first, second, outputs]

    def record(self, way: Way) -> int:
        """Elements of a sample's."""
        return sum(self.widths_of_record(way))

    def pitch(self, way: Way, element_bytes: int) -> int:
        """Elements from a record to the next; in shared memory so many that rows do not meet in a bank."""
        record = self.record(way)
        if way != "registers":
            return record
        return (record + 31) // 64 * 64 + 32 if element_bytes == 2 else record + 4

    def constants_of_record(self, way: Way, element_bytes: int) -> dict[str, Constant]:
        """What fused_learn.cuh and fused_products.cuh ask of it: where columns, and parts of a gradient, begin."""
        ends = np.cumsum(self.widths_of_record(way)).tolist()
        names = ("HIDDEN1_AT", "HIDDEN2_AT", "DELTA1_AT", "DELTA2_AT", "DELTA_OUT_AT", "RECORD")
        constants = dict(zip(names, ends, strict=True)) | {
            "MAKES": way == "pieces" and self.is_made_anew,
            "PITCH": self.pitch(way, element_bytes),
            "AT_ONCE0": tiles_together(self.tiles[0]),
            "ONES_AT": self._ones_at,
        }
        names = ("BLOCKS2_AT", "BLOCKS3_AT", "BIASES_AT", "NUM_BLOCKS")
        constants |= dict(zip(names, self._starts_of_blocks(), strict=True))
        if way == "pieces":
            names = ("BIAS2_AT", "WEIGHT1_AT", "WEIGHT3_AT", "BIAS3_AT", "PART")
            constants |= dict(zip(names, self._ends_of_pieces(), strict=True))
        return constants

    # ---------------------------------------------------------------------------------------- gradients

    def part_size(self, way: Way) -> int:
        """Numbers of one part of the gradient."""
        if way == "registers":
            return self.num_blocks * 256
        if way == "pieces":
            return self._ends_of_pieces()[-1]
        tiles = self.tiles_of_layers
        return 256 * (sum(out for out, _ in tiles) * self.tiles[0] + sum(out * given for out, given in tiles[1:]))

    def gradient_places(self, way: Way) -> list[Pair]:
        """Of each layer: where the gradient is in a part."""
        tiles, found = self.tiles_of_layers, []
        of_layer = {"registers": self._in_blocks, "records": self._in_products, "pieces": self._in_pieces}[way]
        for number, (out, given) in enumerate(self.layers):
            out_tiles, in_tiles = tiles[number]
            together = 1 if number == len(tiles) - 1 else tiles_together(out_tiles)  # outputs come one tile at a time
            row, column = np.indices((out, given))
            row, column = place_in_record(row, together), place_in_record(column, tiles_together(in_tiles))
            bias_row = place_in_record(np.arange(out), together)
            found.append(of_layer(number, row, column, bias_row, self._ones_at))
        return found

    @property
    def _ones_at(self) -> int:
        """Where the column of ones, whose products are the first layer's biases, stands in a record."""
        return place_in_record(self.num_features, tiles_together(self.tiles[0]))

    @property
    def num_blocks(self) -> int:
        """Blocks of 16 x 16 of the weights' gradient, as registers hold them."""
        return self._starts_of_blocks()[-1]

    def _starts_of_blocks(self) -> list[int]:
        """Of the second layer's, the outputs', the biases' (those of the first come with its weights); and the end."""
        features, first, second, outputs = self.tiles
        sizes = [first * features, second * first, outputs * (second or first), second + outputs]
        return np.cumsum(sizes).tolist()

    def _in_blocks(self, number: int, row: np.ndarray, column: np.ndarray, bias_row: np.ndarray, ones: int) -> Pair:
        in_tiles = self.tiles_of_layers[number][1]
        second = bool(self.tiles[2])
        blocks2, blocks3, biases_at, _ = self._starts_of_blocks()
        block = (0, blocks2, blocks3)[number if second or number == 0 else 2]
        weights = (block + row // 16 * in_tiles + column // 16) * 256 + row % 16 * 16 + column % 16
        if number == 0:
            of_bias = bias_row // 16 * in_tiles + ones // 16
        else:
            of_bias = biases_at + (self.tiles[2] if number == 2 else 0) + bias_row // 16
        return weights, of_bias * 256 + bias_row % 16 * 16 + ones % 16

    def _in_products(self, number: int, row: np.ndarray, column: np.ndarray, bias_row: np.ndarray, ones: int) -> Pair:
        """All deltas by the features come first, then each further layer's by what it got."""
        tiles, features = self.tiles_of_layers, 16 * self.tiles[0]
        rows_before = 16 * sum(out for out, _ in tiles[:number])
        if number == 0:
            weights = row * features + column
        else:
            at = 16 * sum(out for out, _ in tiles) * features
            at += 256 * sum(out * given for out, given in tiles[1:number])
            weights = at + row * (16 * tiles[number][1]) + column
        return weights, (rows_before + bias_row) * features + ones

    def _in_pieces(self, number: int, row: np.ndarray, column: np.ndarray, bias_row: np.ndarray, ones: int) -> Pair:
        features, first, _, outputs = self.tiles
        bias2, weight1, weight3, bias3, _ = self._ends_of_pieces()
        if number == 0:
            return weight1 + row * (16 * features) + column, weight1 + bias_row * (16 * features) + ones
        if number == 1:
            return row * (16 * first) + column, bias2 + bias_row
        return weight3 + column * (16 * outputs) + row, bias3 + bias_row

    def _ends_of_pieces(self) -> list[int]:
        """Of layer 2: weights, biases; of layer 1: both; of the outputs: weights, biases, as if they were 128."""
        features, first, second, outputs = self.tiles
        sizes = [256 * second * first, 16 * second, 256 * first * features, 256 * second * outputs, 128]
        return np.cumsum(sizes).tolist()

    @property
    def suits_warpgroups(self) -> bool:
        """Whether layers/mlp_by_warpgroups.cuh and fused_products.cuh are written for it."""
        features, *hidden, outputs = self.tiles
        return all(tiles in (8, 16) for tiles in hidden) and features <= 8 and outputs <= 8

    @property
    def is_made_anew(self) -> bool:
        """Whether blocks of `products` make hidden 1 and deltas 2 themselves: that is quicker than to write and read
        them where features and outputs are few (benchmarks/LOG.md)."""
        features, first, _, outputs = self.tiles
        return features * first <= 32 and outputs <= 2

    def pieces(self, num_blocks: int, num_tiles: int, shared_bytes: int) -> tuple[dict[str, Constant], int]:
        """What fused_products.cuh asks of it, and the shared memory of a block.

        Args:
            num_blocks: about as many as are to work for it.
            num_tiles: of STAGE_ROWS samples.
            shared_bytes: that a block can have.
        """
        features, first, second, outputs = self.tiles
        count = second // 8  # pieces of layer 2
        made, of_layer1 = 0, first + features + outputs  # tiles of records that a block needs of 64 samples
        of_layer2 = 16 + first + outputs
        part = count * of_layer2 / (count * of_layer2 + of_layer1)
        if self.is_made_anew:
            made = 2 * self.sizes[0] + 2 * first * TILE_BYTES  # the weights of layer 1, and its outputs two times
            of_layer2, part = 8 + features + outputs, OF_LAYER2[count]
        shares2 = max(1, min(num_tiles, round(num_blocks * part) // count, (num_blocks - 1) // count))
        shares1 = max(1, min(shares2, num_blocks - count * shares2))
        found = {"PIECES2": count, "SHARES2": shares2, "SHARES1": shares1, "HEAD_BYTES": HEAD_BYTES}
        found, taken = found | {"TILE_BYTES": TILE_BYTES, "MADE_BYTES": made}, HEAD_BYTES
        for number, begin, tiles in ((2, HEAD_BYTES + made, of_layer2), (1, HEAD_BYTES, of_layer1)):
            num_bytes = tiles * TILE_BYTES
            stages = min(MAX_STAGES, (shared_bytes - begin) // num_bytes)
            found |= {f"STAGES{number}": stages, f"STAGE_BYTES{number}": num_bytes}
            taken = max(taken, begin + stages * num_bytes)
        return found, taken


def to_tiles(columns: int) -> int:
    """Columns, made whole tiles of 16."""
    return -(-columns // 16) * 16


def tiles_together(tiles: int) -> int:
    """Tiles, of so many that are neighbours in a record, whose columns stand there as a lane holds them."""
    return 2 if tiles % 2 == 0 else 1


def place_in_record(column: int | np.ndarray, together: int) -> int | np.ndarray:
    """Where a column stands among those it is a neighbour of, of which `together` tiles go as one.

    Column 8 j + 2 t + i of them is what lane t holds: it stands at 8 t + 2 j + i of two tiles, 4 t + 2 j + i of one.
    """
    within = column % (16 * together)
    return column - within + 4 * together * (within % 8 // 2) + 2 * (within // 8) + within % 2
