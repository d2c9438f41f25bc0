"""Where the numbers of networks lie whose layers go through memory one after the other."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from trainers.fused.shape import Pair, Shape, Way, place_in_record, to_tiles

PANEL, MAX_GROUP_WIDTH, MAX_GROUP_ROWS = 128, 768, 1 << 17
"""Columns of a layer that a block of by_warpgroups.cu computes; the widest input of which a multiprocessor holds their
weights; rows of a network that are in memory at once."""
SUM_BYTES = 16 << 20
"""Of a layer's sums that are in memory at once: the cache of a GPU holds them, until they are read."""


@dataclass(frozen=True)
class LayersShape(Shape):
    """One network of any layers, which go through memory one after the other: what by_layers.py computes.

    The kernels `act` and `learn` have of it the outputs alone. In memory every array has rows, padded by zeros to
    multiples of 16 columns; the outputs' columns are permuted as those of a record are.
    """

    @property
    def tiles(self) -> tuple[int, int, int, int]:
        """As those kernels see it: without hidden layers."""
        return -(-(self.num_features + 1) // 16), 0, 0, -(-(self.num_outputs + self.has_value) // 16)

    num_places = 1
    """In memory, for the hidden layers of a network that plays."""

    @property
    def padded(self) -> list[tuple[int, int]]:
        """`layers`, in columns of the arrays."""
        return [(to_tiles(out), to_tiles(given)) for out, given in self.layers]

    @property
    def rows_at_once(self) -> int:
        """Rows that go through a layer together."""
        return max(1024, SUM_BYTES // (4 * self.widest) // 1024 * 1024)

    @property
    def widest_sum(self) -> int:
        """Columns of the widest sums that are in memory."""
        return self.widest

    @property
    def sizes(self) -> tuple[int, int, int]:
        return 0, 0, 0

    @property
    def num_elements(self) -> int:
        return sum(out * given for out, given in self.padded)

    @property
    def work(self) -> int:
        return 256 * self.tiles[3]

    @property
    def rows_of_biases(self) -> list[int]:
        """Of each layer: biases, and behind them gain and shift of a LayerNorm."""
        return [3 if self.norms_hidden else 1 for _ in self.widths] + [1]

    @property
    def num_biases(self) -> int:
        return sum(rows * out for rows, (out, _) in zip(self.rows_of_biases, self.padded, strict=True))

    @property
    def num_row_sums(self) -> int:
        """Of the gradient, that each block of rows adds up."""
        return self.num_biases

    @property
    def widest(self) -> int:
        """Columns of the widest hidden layer."""
        return max((out for out, _ in self.padded[:-1]), default=16)

    @property
    def starts(self) -> list[tuple[int, int]]:
        """Where each layer's weights begin among the elements, and its biases among those."""
        rows = zip(self.rows_of_biases[:-1], self.padded[:-1], strict=True)
        sizes = [(0, 0), *((out * given, num_rows * out) for num_rows, (out, given) in rows)]
        return [tuple(one) for one in np.cumsum(sizes, axis=0).tolist()]

    def places(self) -> list[Pair]:
        """Of each layer: among the elements, rows of [out, in]; among biases."""
        return [self._in_rows(number) for number in range(len(self.layers))]

    def _in_rows(self, number: int, together: int | None = None) -> Pair:
        """Of one layer, whose outputs lie as those of a record do; so do, if they go so many tiles `together`, columns
        and rows of hidden layers."""
        (out, given), (start, bias_start) = self.layers[number], self.starts[number]
        (row, column), bias_row = np.indices((out, given)), np.arange(out)
        if number == len(self.layers) - 1:
            row, bias_row = place_in_record(row, 1), place_in_record(bias_row, 1)
        elif together:
            row = place_in_record(row, together)
        column = place_in_record(column, together) if together else column
        return start + row * self.padded[number][1] + column, bias_start + bias_row

    def part_size(self, way: Way) -> int:
        return self.num_elements

    def gradient_places(self, way: Way) -> list[Pair]:
        """Of each layer: in a part, as its weights lie among the elements; in a row of the sums of its deltas."""
        return self.places()

    def widths_of_record(self, way: Way) -> list[int]:
        """Of what the kernel `learn` writes: the outputs' deltas."""
        return [0, 0, 0, 0, 0, 16 * self.tiles[3]]

    def row_bytes(self, element_bytes: int, learns: bool) -> int:
        """What a row takes: features, hidden layers, which share places unless it `learns`, and deltas; two sums."""
        (_, features), (outputs, _) = self.padded[0], self.padded[-1]
        columns, sums = features + self.num_places * self.widest, self.widest_sum + outputs
        if learns:
            columns = features + sum(out for out, _ in self.padded)
            if self.norms_hidden:
                columns, sums = columns + sum(out for out, _ in self.padded[:-1]), sums + len(self.widths)
        return columns * element_bytes + 4 * sums


@dataclass(frozen=True)
class WarpgroupShape(LayersShape):
    """The same by whole warpgroups, with all that follows a product at once: what by_warpgroups.cu is written for.

    Hidden layers are padded to panels, features to half of one. Columns of both lie as those of a record do, two tiles
    together; weights in blocks [row / 8][column / 8][8][8], but those of the outputs in rows.
    """

    num_places = 2

    @property
    def padded(self) -> list[tuple[int, int]]:
        hidden = [-(-width // PANEL) * PANEL for width in self.widths]
        given = [-(-self.num_features // (PANEL // 2)) * (PANEL // 2), *hidden]
        return list(zip([*hidden, 16 * self.tiles[3]], given, strict=True))

    @property
    def rows_at_once(self) -> int:
        return MAX_GROUP_ROWS

    @property
    def widest_sum(self) -> int:
        return 0

    def places(self) -> list[Pair]:
        found = self.gradient_places("layers")
        for number, sizes in enumerate(self.layers[:-1]):
            (row, column), width = np.indices(sizes), self.padded[number][1]
            block = row // 8 * (width // 8) + column // 8
            found[number] = self.starts[number][0] + block * 64 + row % 8 * 8 + column % 8, found[number][1]
        return found

    def gradient_places(self, way: Way) -> list[Pair]:
        """Rows and columns of deltas' products, as they lie; sums of deltas of hidden layers lie in their order."""
        return [self._in_rows(number, 2) for number in range(len(self.layers))]
