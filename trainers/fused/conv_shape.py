"""Where the numbers of a network lie that sees an image by a convolution, as layers/convolution.cuh has it."""

from __future__ import annotations

from dataclasses import astuple, dataclass, replace

import numpy as np

from trainers.fused.layers_shape import LayersShape
from trainers.fused.limits import Limits
from trainers.fused.shape import NORM_EPS, WARPS, Pair, Shape, Way, place_in_record, to_tiles
from warpdrive.function_manager import Constant

SIDE, FILTERS = 3, 16
"""Of the convolution, which moves a step at a time."""
MOST_CHANNELS, MOST_DENSE = 10, 128
"""Of an image; columns of the layer behind the convolution: a row of a patch is a word of bits, and a warp's registers
hold that layer's sums."""
SUM_BYTES = 2 * WARPS * 16 * 4
"""Of shared memory: two sums over 16 rows, of each warp."""
ARRIVAL_BYTES = 16
"""Of what counts what comes to a block."""
SCRATCH_COLUMNS = 24
"""Of a warp's tile in shared memory: a row of 16, and the room behind it."""
MOST_STAGES = 4
"""See Forward.stages."""
CLUSTERS = (4, 2)
"""Blocks that share the places of the same rows: the first with which no multiprocessor has more than one of them."""
BACK_TILES = (4, 2, 1)
"""Of 16 samples, which a block that goes back has at once: the first that fit and make half of the multiprocessors
work."""


@dataclass(frozen=True)
class Image:
    """What a network sees: false and true."""

    height: int
    width: int
    channels: int

    @property
    def places(self) -> tuple[int, int]:
        """Rows and columns of what the convolution makes of it."""
        return self.height - SIDE + 1, self.width - SIDE + 1


@dataclass(frozen=True)
class Forward:
    """How conv_forward.cu goes through rows."""

    row_tiles: int = 1
    """Of 16 rows, which a block has at once; WARPS warps each."""
    stages: int = 2
    """WARPS places each, whose weights a block has, or waits for, at once."""
    cluster: int = 1
    """Blocks that have the same rows and share the places."""

    def num_blocks(self, num_rows: int) -> int:
        """Clusters, if they are."""
        return -(-num_rows // (16 * self.row_tiles))


@dataclass(frozen=True)
class ConvShape(LayersShape):
    """A convolution of bits, a dense layer and the outputs. Weights lie as layers/convolution.cuh says, parts of a
    gradient as conv_backward.cu does, of the dense layer and, by each block of places, of the filters; and as
    conv_outputs.cu does, of what is behind those."""

    image: Image = Image(SIDE, SIDE, 1)

    @property
    def num_places(self) -> int:
        rows, columns = self.image.places
        return rows * columns

    @property
    def patch(self) -> int:
        return SIDE * SIDE * self.image.channels

    @property
    def layers(self) -> list[tuple[int, int]]:
        (dense,), outputs = self.widths, self.num_outputs + self.has_value
        return [(FILTERS, self.patch), (dense, FILTERS * self.num_places), (outputs, dense)]

    @property
    def padded(self) -> list[tuple[int, int]]:
        (out, dense), given = (self.layers[-1][0], to_tiles(self.widths[0])), FILTERS * self.num_places
        return [(FILTERS, to_tiles(self.patch)), (dense, given), (to_tiles(out), dense)]

    @property
    def rows_of_biases(self) -> list[int]:
        return [3, 3, 1] if self.norms_hidden else [1, 1, 1]

    @property
    def num_parameters(self) -> int:
        return super().num_parameters + 2 * FILTERS * self.norms_hidden

    @property
    def rows_at_once(self) -> int:
        return 1 << 20

    def row_bytes(self, element_bytes: int, learns: bool) -> int:
        outputs, dense = self.padded[-1]
        norm = (4 + element_bytes * dense) * self.norms_hidden
        return 4 * outputs + (element_bytes * (dense + outputs) + self.image_bytes + norm) * learns

    # ---------------------------------------------------------------------------------------- places

    def places(self) -> list[Pair]:
        (filters_at, _), (dense_at, bias_at), (outputs_at, out_bias_at) = self.starts
        dense, outputs = self.padded[1][0], self.layers[-1][0]
        filter, patch = self._filters()
        row, place, column = self._dense()
        block = place * (2 * dense // 8) + row // 8 * 2 + column // 8
        out, given = np.indices(self.layers[-1])
        out, out_bias = place_in_record(out, 1), place_in_record(np.arange(outputs), 1)
        of_out = (out // 8 * (dense // 8) + given // 8) * 64 + out % 8 * 8 + given % 8
        return [
            (filters_at + filter * self.padded[0][1] + patch, np.arange(FILTERS)),
            (dense_at + block * 64 + row % 8 * 8 + column % 8, bias_at + np.arange(self.widths[0])),
            (outputs_at + of_out, out_bias_at + out_bias),
        ]

    def _filters(self) -> Pair:
        """Of torch's [filter, channel x row x column]: the filter; the place in a patch, whose channels are last."""
        filter, number = np.indices(self.layers[0])
        return filter, number % SIDE**2 * self.image.channels + number // SIDE**2

    def _dense(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Of torch's [row, filter x place]: the row, the place and the filter."""
        row, number = np.indices(self.layers[1])
        return row, number % self.num_places, number // self.num_places

    # ------------------------------------------------------------------------------------- gradients

    @property
    def num_groups(self) -> int:
        """Of places, which a block has together."""
        return -(-self.num_places // WARPS)

    @property
    def patch_columns(self) -> int:
        """Of a patch and a one behind it, whose products are the filters' biases."""
        return -(-(self.patch + 1) // 8) * 8

    @property
    def sizes_of_parts(self) -> tuple[int, int, int]:
        """Of the dense layer; of the filters, by one block of places; of the outputs, and the dense layer's biases, by
        one block of rows."""
        dense, (of_filters, of_outputs) = self.padded[-1][1], self.norms_at
        norms = 2 * self.norms_hidden
        return dense * FILTERS * self.num_places, of_filters + norms * FILTERS, of_outputs + norms * dense

    @property
    def norms_at(self) -> tuple[int, int]:
        """In a part of the filters, and in one of the outputs, where gains and shifts of LayerNorms begin."""
        outputs, dense = self.padded[-1]
        return FILTERS * self.patch_columns, outputs * dense + dense + outputs

    def part_size(self, way: Way) -> int:
        of_dense, of_filters, _ = self.sizes_of_parts
        return of_dense + self.num_groups * of_filters

    @property
    def num_row_sums(self) -> int:
        return self.sizes_of_parts[2]

    def gradient_places(self, way: Way) -> list[Pair]:
        """Of each layer, in the first of `sizes_of_parts` that has it; the dense layer's biases are among the outputs'.
        Gains and shifts of LayerNorms stand behind each other, where `norms_at` says."""
        outputs, dense = self.padded[-1]
        filter, patch = self._filters()
        row, place, column = self._dense()
        of_warp = (row // 16 * 2 + column // 8) * 32 + row % 8 * 4 + column % 8 // 2  # 8 columns, a lane
        number = row % 16 // 8 * 2 + column % 2  # of its sums
        out, hidden = np.indices(self.layers[-1])
        out_bias = place_in_record(np.arange(self.layers[-1][0]), 1)
        return [
            (filter * self.patch_columns + patch, np.arange(FILTERS) * self.patch_columns + self.patch),
            (place * FILTERS * dense + 4 * of_warp + number, outputs * dense + np.arange(self.widths[0])),
            (place_in_record(out, 1) * dense + hidden, outputs * dense + dense + out_bias),
        ]

    def forward(self, num_rows: int, element_bytes: int, limits: Limits) -> Forward:
        """Two tiles of rows a block where there are enough to keep all multiprocessors busy; clusters where there are
        so few that most would be idle."""

        def fits(one: Forward) -> bool:
            return self.forward_bytes(one, element_bytes) <= limits.shared_bytes

        two_tiles, count = Forward(row_tiles=2), limits.num_multiprocessors
        if num_rows > 16 * count and fits(two_tiles):
            found = two_tiles
        else:
            has_clusters = limits.capability is not None and limits.capability >= (9, 0)
            clusters = [Forward(cluster=one) for one in CLUSTERS if has_clusters]
            suits = [one for one in clusters if one.num_blocks(num_rows) * one.cluster <= count and fits(one)]
            found = next(iter(suits), Forward())
        steps = -(-self.num_places // (found.cluster * WARPS))
        more = replace(found, stages=max(2, min(MOST_STAGES, steps)))
        return more if fits(more) else found

    def back_tiles(self, num_rows: int, element_bytes: int, limits: Limits) -> int:
        """Of 16 of so many samples, which a block that goes back has at once."""
        for tiles in BACK_TILES:
            is_busy = 2 * -(-num_rows // (16 * tiles)) * self.num_groups >= limits.num_multiprocessors
            if is_busy and self.backward_bytes(element_bytes, tiles) <= limits.shared_bytes:
                break
        return tiles

    def num_parts(self, num_rows: int, element_bytes: int, limits: Limits) -> tuple[int, int]:
        """Of the gradient of so many samples: shares of them among conv_backward's blocks, and conv_outputs' blocks; as
        few as take no longer."""
        pieces = -(-num_rows // (16 * self.back_tiles(num_rows, element_bytes, limits)))
        shares = _even(pieces, limits.num_multiprocessors // self.num_groups)
        return shares, _even(-(-num_rows // 16), limits.num_multiprocessors)

    # --------------------------------------------------------------------------------------- kernels

    def kernel_constants(self, forward: Forward, element_bytes: int) -> dict[str, Constant]:
        """Of conv_forward.cu."""
        return {
            "HEIGHT": self.image.height,
            "WIDTH": self.image.width,
            "CHANNELS": self.image.channels,
            "KERNEL_TILES": self.padded[0][1] // 16,
            "PATCH_BLOCKS": self.patch_columns // 8,
            "DENSE_TILES": self.padded[1][0] // 16,
            "OUTPUT_TILES": self.padded[2][0] // 16,
            "DENSE_COLUMNS": self.widths[0],
            "NORMS": self.norms_hidden,
            "NORM_EPS": NORM_EPS,
            "ROW_TILES": forward.row_tiles,
            "WARPS": WARPS,
            "STAGES": forward.stages,
            "CLUSTER": forward.cluster,
            "FORWARD_BYTES": self.forward_bytes(forward, element_bytes),
        }

    def outputs_constants(self, element_bytes: int) -> dict[str, Constant]:
        """What conv_outputs.cu has besides."""
        return {"OUTPUTS_BYTES": self.outputs_bytes(element_bytes)}

    def backward_constants(self, back_tiles: int, element_bytes: int) -> dict[str, Constant]:
        """What conv_backward.cu has besides."""
        return {"BACK_TILES": back_tiles, "BACKWARD_BYTES": self.backward_bytes(element_bytes, back_tiles)}

    @property
    def image_bytes(self) -> int:
        """Of an image's bits in shared memory."""
        return 4 * ((-(-self.num_features // 32) + 1) | 1)

    def forward_bytes(self, forward: Forward, element_bytes: int) -> int:
        """Shared memory of a block that goes forwards."""
        dense = self.padded[1][0]
        of_sums = 16 * (dense + 4) * 4
        first = WARPS * max(forward.stages * FILTERS * dense * element_bytes, forward.row_tiles * of_sums)
        of_tile = 16 * (dense + 8) * element_bytes + 16 * self.image_bytes + SUM_BYTES
        behind = self.padded[2][0] * dense * element_bytes + 4 * self.rows_of_biases[1] * dense
        return first + forward.row_tiles * of_tile + behind + (forward.cluster - 1) * of_sums + ARRIVAL_BYTES

    def outputs_bytes(self, element_bytes: int) -> int:
        """Of one that comes back from the outputs."""
        return self.padded[1][0] * 2 * SCRATCH_COLUMNS * element_bytes + SUM_BYTES

    def backward_bytes(self, element_bytes: int, back_tiles: int = BACK_TILES[-1]) -> int:
        """Of one that goes back from there."""
        dense = self.padded[1][0]
        first = WARPS * max(FILTERS * dense * element_bytes, 4 * self.sizes_of_parts[1])
        image = (dense + 8) * element_bytes + self.image_bytes
        scratch = WARPS * min(back_tiles, 2) * 2 * 16 * SCRATCH_COLUMNS * element_bytes
        return first + 2 * back_tiles * 16 * image + scratch


def with_image(shape: Shape, image: Image) -> ConvShape:
    return ConvShape(*astuple(shape), image)


def _even(pieces: int, most: int) -> int:
    """Shares of so many pieces, at most `most`: as few as need no more turns than those."""
    return -(-pieces // -(-pieces // max(1, most)))
