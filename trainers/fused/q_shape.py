"""How blocks have a Q-network and a batch: one alone (q_alone.cu), or a team (q_learn.cu)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from trainers.fused.limits import Limits
from trainers.fused.shape import to_tiles
from warpdrive.function_manager import Constant

PADDING = 8
"""Elements that a row in shared memory is longer than whole tiles."""
THREADS = 512
"""Of a block."""
MOST_ROWS = 128
"""Of a batch, which a block has."""
CLUSTER = 8
"""Blocks that may be one cluster."""
THREADS_ALONE = 256
"""Of a block that has the whole batch: fewer, which multiply more at once each."""
OF_TEAMS = ("TEAM", "IN_CLUSTER", "SLICES")
"""Constants that it has no use for."""
ENV_BYTES = 8 << 10
"""Static shared memory that an env's step may have, where it steps envs, too, with the arguments of joint runs."""
MOST_SLOTS = 16
"""Quads of parameters that a thread has there with Adam's memory of them in its registers."""


@dataclass(frozen=True)
class QShape:
    """A Q-network of one or two hidden layers, and how many of a batch's rows a block has."""

    widths: tuple[int, ...]
    """Of the features, the hidden layers and the actions."""
    batch: int
    rows: int
    team: int
    """Blocks."""
    in_cluster: bool
    element_bytes: int
    threads: int = THREADS
    kernel: ClassVar[str] = "q_learn"

    @property
    def layers(self) -> list[tuple[int, int]]:
        """(outputs, inputs) of each."""
        return list(zip(self.widths[1:], self.widths[:-1], strict=True))

    @property
    def num_parameters(self) -> int:
        return sum(out * (given + 1) for out, given in self.layers)

    @property
    def num_elements(self) -> int:
        """Of the weights of one network, as products read them."""
        return sum(to_tiles(out) * (to_tiles(given) + PADDING) for out, given in self.layers)

    @property
    def num_biases(self) -> int:
        return sum(to_tiles(out) for out, _ in self.layers)

    @property
    def num_quads(self) -> int:
        """Of parameters, as lanes hold sums of 16 by 8: what the parts of a gradient are made of."""
        fragments = sum(to_tiles(out) // 16 * -(-given // 8) for out, given in self.layers)
        return 32 * fragments + self.num_biases // 4

    @property
    def slices(self) -> int:
        """Threads that add up the parts of four parameters' gradient: more, where a block has few of them."""
        share = -(-self.num_quads // self.team)
        slices = 1
        while slices < min(32, self.team) and 2 * slices * share <= self.threads:
            slices *= 2
        return slices

    @property
    def shared_bytes(self) -> int:
        """Of a block: at least what q_learn.cu asks for."""
        features, *hidden, actions = (to_tiles(width) + PADDING for width in self.widths)
        if len(hidden) == 1:
            hidden.append(PADDING)
        elements = 2 * self.num_elements + self.rows * (2 * features + 3 * sum(hidden) + actions)
        floats = 2 * self.num_biases + self.rows * (3 * (actions - PADDING + 1) + 17) + 2 * 256 + self.threads // 32 + 4
        return -(-(self.element_bytes * elements + 4 * floats) // 16) * 16 + 64

    @property
    def launch_bytes(self) -> int:
        """Of shared memory, with which it is launched."""
        return self.shared_bytes

    @property
    def act_shared_bytes(self) -> int:
        """Of a block of q_act.cu, likewise: it has one network, and one set of rows."""
        *seen, actions = (to_tiles(width) + PADDING for width in self.widths)
        if len(seen) == 2:
            seen.append(PADDING)
        elements = self.num_elements + self.rows * sum(seen)
        return -(-(self.element_bytes * elements + 4 * (self.num_biases + self.rows * actions)) // 16) * 16 + 64

    @property
    def num_bytes(self) -> int:
        """Of the device's memory that a learner takes besides what is the algorithm's."""
        parts, sums = 16 * self.team * self.num_quads, 16 * self.team
        return parts + sums + 2 * self.num_elements * self.element_bytes + 8 * self.num_biases + 8 * self.batch

    def constants(self) -> dict[str, Constant]:
        """Of q_learn.cu and q_act.cu."""
        first, second = (*self.widths[1:-1], 0)[:2]
        return {
            "NUM_FEATURES": self.widths[0], "WIDTH1": first, "WIDTH2": second, "NUM_ACTIONS": self.widths[-1],
            "BATCH": self.batch, "ROWS": self.rows, "TEAM": self.team, "IN_CLUSTER": self.in_cluster,
            "THREADS": self.threads, "SLICES": self.slices, "SHARED_BYTES": self.shared_bytes,
            "FULL_PRECISION": self.element_bytes == 4,
        }  # fmt: skip


@dataclass(frozen=True)
class QAloneShape(QShape):
    """A Q-network of which one block makes all updates, so that as many learn side by side as there are
    multiprocessors."""

    kernel: ClassVar[str] = "q_alone"
    room: int = 0
    """Bytes of shared memory that the block has: beyond what it needs, gradients wait there."""

    @property
    def slots(self) -> int:
        """Quads of parameters of a thread."""
        return sum(self._slots(*(to_tiles(size) // 16 for size in one), one[1]) for one in self.layers)

    def _slots(self, down: int, across: int, columns: int) -> int:
        """Of a layer of so many tiles; see best_block of q_block.cuh."""
        warps = self.threads // 32
        blocks = [(i, j) for i in range(1, min(4, down) + 1) for j in range(1, min(3, across) + 1)]
        rounds = {(i, j): -(-(-(-down // i) * -(-across // j)) // warps) for i, j in blocks}
        i, j = min(blocks, key=lambda one: rounds[one] * (3 * one[0] * one[1] + sum(one)))
        return rounds[i, j] * i * (1 if columns <= 8 else 2 * j)

    @property
    def shared_bytes(self) -> int:
        """Of a block: at least what q_alone.cu asks for."""
        features, *hidden, actions = (to_tiles(width) + PADDING for width in self.widths)
        if len(hidden) == 1:
            hidden.append(PADDING)
        elements = 2 * self.num_elements + self.rows * (2 * features + sum(hidden) + actions)
        rest = 8 * self.threads * (self.slots if self.element_bytes == 2 else 1)
        floats = 5 * self.num_biases + self.rows * (3 * (self.widths[-1] | 1) + 17) + self.threads // 32 + 36
        return -(-(self.element_bytes * elements + rest + 4 * floats) // 16) * 16 + 64

    def bytes_to_play(self, rows: int) -> int:
        """Of a block that acts for so many rows, too, and keeps what they see next."""
        return self.shared_bytes + rows * (to_tiles(self.widths[0]) + PADDING) * self.element_bytes

    @property
    def launch_bytes(self) -> int:
        return self.room

    @property
    def num_bytes(self) -> int:
        return 3 * 16 * self.slots * self.threads

    def constants(self) -> dict[str, Constant]:
        """Of q_alone.cu."""
        of_block = {name: one for name, one in super().constants().items() if name not in OF_TEAMS}
        return {**of_block, "SHARED_BYTES": self.room}


def fit_alone(widths: Sequence[int], batch: int, limits: Limits, element_bytes: int) -> QAloneShape | str:
    """One block that has the whole batch and keeps all it needs on the chip, if it does fit; else why not."""
    rows = max(16, 1 << (batch - 1).bit_length())
    if rows > MOST_ROWS:
        return f"a batch of {batch:,} is more than the {MOST_ROWS} that a block alone learns from"
    sizes = tuple(widths), batch, rows, 1, False, element_bytes, THREADS_ALONE
    shape = QAloneShape(*sizes, room=limits.shared_bytes - ENV_BYTES)
    if shape.shared_bytes > shape.room or shape.slots > MOST_SLOTS or widths[-1] > 16:
        return "the network does not fit a block that learns alone"
    return shape


def fit_q(widths: Sequence[int], batch: int, limits: Limits, element_bytes: int) -> QShape | str:
    """The fewest rows a block for which there are blocks enough, of those that fit."""
    is_gpu = limits.capability is not None
    found = "the network does not fit the shared memory of a block"
    rows = 16
    while rows <= MOST_ROWS:
        team = -(-batch // rows)
        in_cluster = is_gpu and limits.capability >= (9, 0) and 1 < team <= CLUSTER
        shape = QShape(tuple(widths), batch, rows, team, in_cluster, element_bytes)
        if shape.shared_bytes > limits.shared_bytes:
            return found
        if team <= (limits.num_multiprocessors if is_gpu else 1):
            return shape
        found = f"a batch of {batch:,} does not fit the blocks of the GPU"
        rows *= 2
    return found
