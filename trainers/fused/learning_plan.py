"""How an update is made by fused kernels, as arithmetic: its launches, minibatches and bytes. plan.py makes it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from trainers.fused.cell import CellPlan, RecurrentShape, Sequences
from trainers.fused.conv_shape import ConvShape
from trainers.fused.layers_shape import LayersShape
from trainers.fused.seen import Gathered, Seen
from trainers.fused.shape import Shape, Way
from warpdrive.function_manager import Constant

if TYPE_CHECKING:
    from trainers.fused.plan import Plan

NUM_FIGURES = 5
"""Sums that the learn kernel makes: policy loss, value loss, entropy, KL divergence, how often it was clipped."""
SUM_THREADS = 256
"""Of the blocks that sum up advantages."""
STEP_THREADS, MOST_SLICES = 256, 32
"""Of a block that steps parameters; threads that share the adding up of one parameter's gradient."""


def most_groups(num_parameters: int) -> int:
    """Blocks that add up the parts of a gradient, at most."""
    return -(-num_parameters * MOST_SLICES // STEP_THREADS) + 1


@dataclass(frozen=True)
class Part:
    """One network's share of a launch."""

    constants: Mapping[str, Constant]
    head_sizes: Sequence[int]
    num_blocks: int
    shared_bytes: int
    seen: Seen | Gathered


@dataclass(frozen=True)
class GradientPlan:
    """How the gradient of one network is summed up in a minibatch."""

    shape: Shape
    way: Way
    learn: Part
    """Of the kernel `learn`."""
    products: Part | None
    """Of the kernel `products`, where the gradient is in pieces."""
    record_rows: int
    """Samples whose records are in global memory at once; 0 where they never are."""
    num_parts: int
    """Of the gradient, which are added up in the end."""
    num_figures: int
    """Rows of figures."""
    element_bytes: int
    num_row_blocks: int = 0
    """Parts of what blocks of rows add up, where layers go through memory: of the biases' gradient, as a rule."""
    cell: CellPlan | None = None
    """Of a recurrent network: how its unit goes through the sequences of a chunk."""
    gather: Part | None = None
    """Of the kernel `gather`, where rows of features are brought together before the first epoch."""

    @property
    def size_of_parts(self) -> int:
        """Numbers of all parts."""
        of_cell = 0 if self.cell is None else self.num_parts * self.cell.bias_size
        of_rows = self.num_row_blocks * self.shape.num_row_sums if isinstance(self.shape, LayersShape) else 0
        return self.num_parts * self.part_size + of_rows + of_cell

    @property
    def part_size(self) -> int:
        """Numbers of a part."""
        return self.shape.part_size(self.way)

    @property
    def record_bytes(self) -> int:
        if isinstance(self.shape, RecurrentShape):
            rows, cell = self.record_rows, self.cell
            return self.shape.bytes_of(self.element_bytes, rows, rows, cell.num_rows, cell)
        if isinstance(self.shape, LayersShape):
            return self.record_rows * self.shape.row_bytes(self.element_bytes, learns=True)
        return max(self.record_rows * self.shape.record(self.way) * self.element_bytes, 16)


@dataclass(frozen=True)
class LearningPlan:
    """How an update is made of a rollout: `num_steps` minibatches of `size` samples, each learned in chunks."""

    policy: Plan
    num_samples: int
    num_epochs: int
    num_steps: int
    size: int
    chunk: int
    networks: tuple[GradientPlan, ...]
    blocks_at_once: int
    """Of `learn`, which a multiprocessor holds."""
    sequences: Sequences | None = None
    """Of a recurrent policy."""

    @property
    def has_order(self) -> bool:
        """Whether samples are shuffled, or come in sequences."""
        return self.num_steps > 1 or self.sequences is not None

    @property
    def num_ordered(self) -> int:
        return self.num_samples * self.num_epochs if self.has_order else 1

    @property
    def bytes_of_sample(self) -> int:
        """Of what a sample has besides its features (sample_row.cuh): five numbers, and its action."""
        request = self.policy.request
        return -(-(5 + len(request.head_sizes) + request.num_numbers) // 8) * 32

    @property
    def bytes_of_samples(self) -> int:
        """Of all of them, if they come in an order of their own."""
        return self.bytes_of_sample * self.num_samples if self.has_order else 1

    @property
    def num_chunks(self) -> int:
        return -(-self.size // self.chunk)

    @property
    def num_sums(self) -> int:
        """Blocks that sum up the advantages of a minibatch: all together keep the device busy."""
        busy = 8 * self.policy.limits.num_multiprocessors // self.num_steps
        return max(1, min(busy, -(-self.size // SUM_THREADS)))

    @property
    def num_figures(self) -> int:
        return sum(one.num_figures for one in self.networks)

    @property
    def rows_of_features(self) -> dict[Seen, int]:
        """Bytes of those that are brought together, by what they are of."""
        return {
            one.gather.seen: self.num_samples * one.gather.constants["ROW_COLUMNS"] * one.element_bytes
            for one in self.networks
            if one.gather is not None
        }

    @property
    def num_bytes(self) -> dict[str, int]:
        """By what holds them, besides the optimiser's memory."""
        tables = 8 + 4 * 4 + 1  # where a parameter's gradient is, its parts, name and number; whether it is a critic's
        tables += 24 if self.policy.request.norms_input else 0  # all but the last again, when its parts are added up
        tables += 4 if any(isinstance(shape, ConvShape) for shape in self.policy.shapes) else 0  # a step's order
        return {
            "order of samples": (5 if self.sequences else 4) * self.num_ordered,
            "samples": self.bytes_of_samples,
            "records": sum(one.record_bytes for one in self.networks),
            "parts of the gradient": sum(4 * one.size_of_parts for one in self.networks),
            "gradient": (4 + tables) * self.policy.num_parameters + 4 * most_groups(self.policy.num_parameters),
            "rows of features": sum(self.rows_of_features.values()),
            "figures": self.num_steps * (4 * NUM_FIGURES * (self.num_figures + 1) + 24 * self.num_sums + 8),
        }
