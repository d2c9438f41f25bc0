"""What a device has, and what kernels can number, as far as the fused kernels care."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from warpdrive.backends.base import Backend
from warpdrive.errors import ConfigError

MAX_ROWS = (1 << 31) - (1 << 20)
"""Samples, or agents in all envs: kernels number them in 32 bits, up to what all blocks would take beyond the last."""
RESERVED = 1024
"""Bytes of shared memory that a block has besides its own."""


@dataclass(frozen=True)
class Limits:
    """What a device has, as far as the kernels care."""

    capability: tuple[int, int] | None
    """Of a GPU; None: it is a CPU."""
    shared_bytes: int
    """Shared memory that a block may have."""
    num_multiprocessors: int
    has_warpgroups: bool = False
    """Whether its warps multiply in fours (`wgmma`, which only sm_90a has)."""

    @classmethod
    def of(cls, backend: Backend) -> Limits:
        found = cls.of_device(backend.device)
        return found if found.capability is None else replace(found, has_warpgroups=backend.has_warpgroups)

    @classmethod
    def of_device(cls, device: torch.device | str) -> Limits:
        """Of "cpu"; of a GPU that is here; or, where there is none, of a large one."""
        if torch.device(device).type != "cuda":
            return CPU
        if not torch.cuda.is_available():
            return LARGE_GPU
        found = torch.cuda.get_device_properties(device)
        capability = found.major, found.minor
        shared_bytes, number = found.shared_memory_per_block_optin, found.multi_processor_count
        return cls(capability, shared_bytes, number, has_warpgroups=capability == (9, 0))

    def within(self, multiprocessors: int | None) -> Limits:
        """Of a part of a GPU: so many of its multiprocessors, or all."""
        if multiprocessors is None or self.capability is None:
            return self
        return replace(self, num_multiprocessors=min(multiprocessors, self.num_multiprocessors))

    def blocks_at_once(self, shared_bytes: int) -> int:
        """Blocks of so much shared memory that a multiprocessor holds, two at most."""
        return max(1, min(2, (self.shared_bytes + RESERVED) // (shared_bytes + RESERVED)))

    def bytes_a_block(self, blocks_at_once: int) -> int:
        """Shared memory that each of so many blocks of a multiprocessor can have."""
        return (self.shared_bytes + RESERVED) // blocks_at_once - RESERVED


CPU = Limits(None, 227 << 10, 2)
LARGE_GPU = Limits((9, 0), 227 << 10, 132, has_warpgroups=True)


def check_rows(number: int, what: str, key: str) -> None:
    """Raises ConfigError where the kernels cannot number so many rows."""
    if number > MAX_ROWS:
        raise ConfigError(
            f"{number:,} {what} are more than the {MAX_ROWS:,} that the fused kernels can number. Lower {key}, or set "
            "trainer.precision to tf32, with which torch plays and learns."
        )


def split_blocks(num_blocks: int, work: Sequence[float]) -> list[int]:
    """Blocks for each of several pieces of work, one at least, about as many as it is of the whole."""
    whole = sum(work)
    return [max(1, round(num_blocks * one / whole)) for one in work]
