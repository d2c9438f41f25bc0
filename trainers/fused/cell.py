"""The gated recurrent units of a policy, as arithmetic: where their numbers lie, and how gru.cu is launched for them.

Gates stand in the order n, r, z, q (see layers/gru.cuh): what belongs to the input is the first three, what belongs to
the state the last three.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

from trainers.fused.layers_shape import LayersShape
from trainers.fused.limits import Limits
from trainers.fused.shape import to_tiles
from warpdrive.function_manager import Constant

MAX_UNITS = 512
MOST_OF_A_BLOCK = 256
"""Units of a block on a GPU; more are those of a cluster."""
CLUSTER = 8
"""Blocks that share a cell then."""
KEPT_OF_CLUSTER = 34
"""Pieces of 16 x 16 weights that a warp of these has in registers; the others are in shared memory."""
MOST_KEPT = 128
"""Units whose weights are in registers."""
OF_COLUMNS = 128
"""Units, and columns of their input, for which gru_by_columns.cu takes gru.cu's place."""
MAX_ROWS_AT_ONCE = 1 << 17
MOST_OF_TWO_TILES = 192
"""Units for which registers hold two tiles of rows."""


@dataclass(frozen=True)
class CellPlan:
    """How one cell walks through sequences."""

    units: int
    num_rows: int
    """Sequences, or agents that play, at once."""
    limits: Limits
    element_bytes: int
    memory_size: int
    """Of the policy's cells together."""
    first: int = 0
    """Of all their units, this cell's."""
    step_rows: int = 1
    """Agents of the group in all envs."""
    in_width: int = 0
    """Columns of an input whose products the kernels make, too; 0: they are given."""
    is_tanh: bool = False
    """Whether the input came out of tanh."""
    out_width: int = 0
    """Columns of the layer after it."""

    @property
    def split(self) -> int:
        """Blocks that share the cell, each with a part of its units."""
        return CLUSTER if self.units > MOST_OF_A_BLOCK and self.limits.capability is not None else 1

    @property
    def by_columns(self) -> bool:
        """Whether gru_by_columns.cu goes through sequences."""
        is_for_it = self.limits.has_warpgroups and self.element_bytes == 2
        return is_for_it and self.units == self.in_width == OF_COLUMNS and self.columns > 0

    @property
    def columns(self) -> int:
        """Of 8 sequences each, of a block of gru_by_columns.cu: fewer where each multiprocessor has one block then; 0:
        deltas of the layer after it leave no room."""
        are_few = self.num_rows <= 16 * self.limits.num_multiprocessors
        fits = [columns for columns in (4, 2) if self.back_by_columns(columns) <= self.limits.shared_bytes]
        return min(fits, default=0) if are_few else max(fits, default=0)

    @property
    def block_by_columns(self) -> tuple[int, int]:
        return 2 * self.units + 128, 1

    @property
    def there_by_columns(self) -> int:
        """Bytes of shared memory of a block of gru_by_columns.cu: weights; states and inputs; what a step makes."""
        rows, units = 8 * self.columns, self.units
        return 2 * (3 * units**2 + 5 * rows * units + 2 * rows * (5 * units + 8))

    def back_by_columns(self, columns: int) -> int:
        """And on the way back: arrivals; the last layer's weights; deltas; what comes of four steps."""
        rows, units, outputs = 8 * columns, self.units, self.out_width
        return 128 + 2 * (outputs * units + 6 * rows * units + 4 * rows * (5 * units + 8 + outputs))

    @property
    def threads(self) -> int:
        return 2 * self.units // self.split

    @cached_property
    def tiles(self) -> tuple[int, int]:
        """Of 16 rows: those of an item, and the items of a block. As few as keep all multiprocessors busy; as many as
        there is shared memory for."""
        blocks = self.limits.num_multiprocessors * self.blocks_at_once
        wanted = -(-self.num_rows // (16 * max(1, blocks // self.split)))
        fits = self.units <= MOST_OF_TWO_TILES and self.shared_bytes_of(2, 1) <= self._most_shared
        row_tiles = 2 if wanted > 1 and fits else 1
        items = -(-wanted // row_tiles)
        while items > 1 and self.shared_bytes_of(row_tiles, items) > self._most_shared:
            items -= 1
        return row_tiles, items

    @property
    def blocks_at_once(self) -> int:
        """That a multiprocessor is to hold: weights of 128 units fill its registers."""
        by_registers = max(1, MOST_KEPT // max(self.units, 32))
        return max(1, min(by_registers, self.limits.shared_bytes // self.shared_bytes_of(1, 1)))

    @property
    def _most_shared(self) -> int:
        return self.limits.shared_bytes // self.blocks_at_once

    def shared_bytes_of(self, row_tiles: int, items: int) -> int:
        """Of a block that goes forwards, or backwards."""
        rows, pitches = 16 * row_tiles, self._pitches
        state = 4 * rows * items * pitches["STATE_PITCH"]
        there = 2 * rows * (items * pitches["HIDDEN_PITCH"] + pitches["IN_PITCH"])
        back = 2 * rows * pitches["DELTA_PITCH"]
        return self.element_bytes * (max(there, back) + self.input_elements + self.shared_weights) + state

    @property
    def kept(self) -> int:
        """Pieces of 16 x 16 weights that a warp has in registers."""
        if self.split > 1:
            return KEPT_OF_CLUSTER
        return 3 * self.units // 16 if self.units <= MOST_KEPT else 0

    @property
    def shared_weights(self) -> int:
        """Recurrent weights that a block has in shared memory."""
        return (3 * self.units // 16 - self.kept) * 256 * (self.threads // 32) if self.split > 1 else 0

    @property
    def input_elements(self) -> int:
        """Of the input's weights."""
        return 3 * self.units * self.in_width

    @property
    def _pitches(self) -> dict[str, int]:
        """From a row to the next, 16 bytes more than whole ones of 128: eight rows meet in no bank."""
        piece = 16 // self.element_bytes
        return {
            "DELTA_PITCH": (4 if self.in_width else 3) * self.units + piece,
            "IN_PITCH": self.in_width + piece,
            "HIDDEN_PITCH": self.units + piece,
            "STATE_PITCH": self.units // self.split + 4,
        }

    @property
    def num_blocks(self) -> int:
        """That go through sequences of their own: each `split` ones."""
        if self.by_columns:
            return self.limits.num_multiprocessors
        row_tiles, items = self.tiles
        return -(-self.num_rows // (16 * row_tiles * items))

    @property
    def shared_bytes(self) -> int:
        return self.shared_bytes_of(*self.tiles)

    @property
    def step_bytes(self) -> int:
        """Of shared memory of a block of gru_step."""
        rows, pitches = 16 * self.tiles[0], self._pitches
        elements = rows * (pitches["HIDDEN_PITCH"] + 2 * pitches["IN_PITCH"])
        return self.element_bytes * (elements + self.input_elements + self.shared_weights)

    @property
    def bias_size(self) -> int:
        """Numbers of what all blocks sum up of the biases' gradient."""
        return self.num_blocks * self.bias_width

    @property
    def bias_width(self) -> int:
        """Of what a block sums up: of the deltas of n, r, z, q, and of the input."""
        return 4 * self.units + self.in_width

    @property
    def constants(self) -> dict[str, Constant]:
        """Of gru.cu."""
        row_tiles, _ = self.tiles
        return {
            "STEP_BYTES": self.step_bytes,
            "FULL_PRECISION": self.element_bytes == 4,
            "UNITS": self.units,
            "SPLIT": self.split,
            "ROW_TILES": row_tiles,
            "KEPT": self.kept,
            "IN_TILES": self.in_width // 16,
            "IS_TANH": self.is_tanh,
            **self._pitches,
        }

    @property
    def constants_by_columns(self) -> dict[str, Constant]:
        return {
            "FULL_PRECISION": False,
            "UNITS": self.units,
            "COLUMNS": self.columns,
            "OUTPUTS": self.out_width,
            "THERE_BYTES": self.there_by_columns,
            "BACK_BYTES": self.back_by_columns(self.columns),
        }


def with_input(plan: CellPlan, width: int, is_tanh: bool) -> CellPlan:
    """The same, with the products of an input that came out of an activation; if there is room for its weights."""
    found = replace(plan, in_width=to_tiles(width), is_tanh=is_tanh)
    fits = found.in_width <= plan.units <= MOST_KEPT and found.shared_bytes_of(1, 1) <= plan.limits.shared_bytes
    return found if fits else plan


def why_no_cell(units: int, limits: Limits, element_bytes: int, most: int = MOST_OF_A_BLOCK) -> str | None:
    """Why the kernels cannot compute a cell of so many units, in words.

    Args:
        most: units of what is asked for; more than a block's take a cluster, or a CPU.
    """
    has_clusters = limits.capability is None or limits.capability >= (9, 0)
    whole = 16
    if units > MOST_OF_A_BLOCK and has_clusters and most > MOST_OF_A_BLOCK:
        whole = 16 * CLUSTER
    else:
        most = MOST_OF_A_BLOCK
    if units % whole or units > most:
        nearest = min(most, -(-units // whole) * whole)
        return f"its memory_size is {units}, not a multiple of {whole} up to {most}: {nearest} would do"
    if CellPlan(units, 1, limits, element_bytes, units).shared_bytes > limits.shared_bytes:
        return f"its memory_size is {units}, of which the shared memory of a block holds too little"
    return None


@dataclass(frozen=True)
class Sequences:
    """What a recurrent policy learns from: steps that stay together, of all the group's agents of an env."""

    length: int
    num_agents: int
    num_envs: int

    @property
    def size(self) -> int:
        """Samples that stay together."""
        return self.length * self.num_agents

    @property
    def step_rows(self) -> int:
        return self.num_envs * self.num_agents


@dataclass(frozen=True)
class RecurrentShape(LayersShape):
    """One whose hidden layers have a gated recurrent unit after them.

    Two layers more: the products of the cell's input, whose gates are n, r, z; and of its state, r, z, n.
    """

    units: int = 16

    @property
    def layers(self) -> list[tuple[int, int]]:
        given = (self.num_features, *self.widths)
        cell = [(3 * self.units, given[-1]), (3 * self.units, self.units)]
        return [*zip(self.widths, given, strict=False), *cell, (self.num_outputs + self.has_value, self.units)]

    @property
    def rows_of_biases(self) -> list[int]:
        return [3 if self.norms_hidden else 1 for _ in self.widths] + [1, 1, 1]

    @property
    def rows_at_once(self) -> int:
        """Agents that play together."""
        return MAX_ROWS_AT_ONCE

    @property
    def sum_rows(self) -> int:
        """Rows whose sums of a layer are in memory at once, where a matrix library makes them."""
        return super().rows_at_once

    @property
    def widest(self) -> int:
        """Columns of the widest layer before the cell."""
        return max((out for out, _ in self.padded[:-3]), default=16)

    def arrays(
        self, num_rows: int, at_once: int, sequences: int | None, cell: CellPlan
    ) -> dict[str, tuple[int, int, bool]]:
        """Rows and columns of each array in memory, and whether it has floats; else elements.

        Args:
            num_rows: whose outputs there is room for; all the rest too, if it learns.
            at_once: rows that go through the network together.
            sequences: that these rows are, of who learns; None for who plays, `at_once` agents at once.
            cell: of these units, for whatever rows.
        """
        outputs, (_, features) = self.padded[-1][0], self.padded[0]
        rows = at_once if sequences is None else num_rows
        found = {"outputs": (num_rows, outputs, True), "sum": (min(rows, self.sum_rows), self.widest, True)}
        found["features"] = (rows, features, False)
        for number, (width, _) in enumerate(self.padded[:-3]):
            found[f"hidden{number}"] = (rows, width, False)
            if self.norms_hidden and sequences is not None:
                found |= {f"standard{number}": (rows, width, False), f"scale{number}": (rows, 1, True)}
        if sequences is None:
            gates = 1 if cell.in_width else rows  # nobody reads them
            return found | {"gates": (gates, 3 * self.units, False), "states": (rows, self.units, False)}
        if cell.in_width:
            found["by_input"] = (rows, cell.in_width, False)
        if not cell.by_columns:
            found["by_states"] = (rows, self.units, False)
        return found | {
            "gates": (rows, 4 * self.units, False),
            "states": (rows + sequences, self.units, False),
            "delta": (rows, outputs, False),
        }

    def bytes_of(self, element_bytes: int, num_rows: int, at_once: int, sequences: int | None, cell: CellPlan) -> int:
        arrays = self.arrays(num_rows, at_once, sequences, cell).values()
        return sum(rows * width * (4 if is_float else element_bytes) for rows, width, is_float in arrays)
