"""What a network of the fused kernels sees: columns of arrays, of any type, and which agent it is.

`Features` and `CentralFeatures` of trainers/networks/features.py say what that is; kernels read it where it lies.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import ClassVar, Literal

import numpy as np
import torch

from trainers.experience.spec import GroupSpec
from trainers.networks.features import Features, central_features, torch_dtype
from warpdrive.signature import CTYPES

NOT_READ = (torch.float16, torch.bfloat16)
"""Dtypes that layers/sources.cuh makes no floats of."""


@dataclass(frozen=True)
class Source:
    """Columns that come from one array."""

    array: str
    """Its name among those that a rollout keeps."""
    dtype: torch.dtype
    size: int
    """Columns."""
    pitch: int
    """Numbers from an env's to the next one's."""
    stride: int = 0
    """Numbers from an agent's to the next one's; 0: all agents of an env see the same."""
    first: int = 0
    """Of an env's numbers, where those of the group's first agent begin."""
    scale: tuple[float, float] | None = None
    """What is subtracted, and what the difference is then multiplied by."""

    def text(self, number: int, start: int) -> str:
        """Its C++, as layers/sources.cuh asks for it."""
        low, scale = self.scale or (0.0, 1.0)
        return "\n".join(
            [
                f"template <> struct Source<{number}> {{",
                f"    using Number = {CTYPES[self.dtype]};",
                f"    static constexpr int START = {start}, SIZE = {self.size};",
                f"    static constexpr long long PITCH = {self.pitch}, STRIDE = {self.stride}, FIRST = {self.first};",
                f"    static constexpr bool SCALES = {str(self.scale is not None).lower()};",
                f"    static constexpr float LOW = {_literal(low)}, SCALE = {_literal(scale)};",
                f"    __device__ static const Number* array(const Seen& seen) {{ return seen.seen{number}; }}",
                "};",
            ]
        )


@dataclass(frozen=True)
class Seen:
    """A row of a network's input: columns of sources, one after another, then the agent's number, one-hot."""

    sources: tuple[Source, ...]
    num_ids: int = 0
    """Agents of the group, if the row ends with which of them it is; else 0."""
    hides: bool = False
    """Whether an agent that is out of the game sees zeros, and its number alone."""

    @classmethod
    def by_actor(cls, spec: GroupSpec, sees_agent_id: bool) -> Seen:
        """What the agents of a group observe."""
        found = Features(spec.layout, spec.seen, spec.observation_space, spec.num_agents if sees_agent_id else 0)
        sources = tuple(
            Source(
                place.array,
                torch_dtype(array.dtype),
                size,
                pitch=array.num_agents * size,
                stride=size,
                first=place.columns.start * size,
                scale=scale,
            )
            for place, array, size, scale in zip(found.places, found.arrays, found.sizes, found.scales, strict=True)
        )
        return cls(sources, found.num_ids)

    @classmethod
    def by_central_critic(cls, spec: GroupSpec) -> Seen:
        """The state of the whole env, and the number of the agent that is judged."""
        sources = []
        for name in central_features(spec.layout, spec.num_agents).arrays:
            shape, dtype = spec.layout.kept[name]
            sources.append(Source(name, torch_dtype(np.dtype(dtype)), math.prod(shape), pitch=math.prod(shape)))
        return cls(tuple(sources), spec.num_agents, hides=spec.may_leave)

    def of_items(self) -> Seen:
        """The same of items of a replay store's batch, each a row by itself, whose parts are numbered there."""
        return replace(self, sources=tuple(
            replace(one, array=f"observation_{i}", pitch=one.size, stride=one.size, first=0)
            for i, one in enumerate(self.sources)
        ))  # fmt: skip

    @property
    def num_features(self) -> int:
        return sum(one.size for one in self.sources) + self.num_ids

    @property
    def kind(self) -> Literal["row", "sources"]:
        """"row" where it is numbers of one float32 array side by side, and nothing else: the fastest to read."""
        one = self.sources[0]
        is_row = self.num_ids == 0 and len(self.sources) == 1 and one.dtype == torch.float32 and one.stride == one.size
        return "row" if is_row else "sources"

    @property
    def is_scattered(self) -> bool:
        """Whether a row is in several arrays: reading it in every epoch takes longer than bringing it together once."""
        return len(self.sources) > 1

    @property
    def why_not(self) -> str | None:
        """Why kernels cannot read it; None if they can."""
        for one in self.sources:
            if one.dtype in NOT_READ or one.dtype not in CTYPES:
                return f"it sees '{one.array}', which is {str(one.dtype).removeprefix('torch.')}: float32 would do"
        return None

    @property
    def parameters(self) -> dict[str, str]:
        """Parameter of a kernel -> the type of the numbers that it points to."""
        return {f"seen{i}": CTYPES[one.dtype] for i, one in enumerate(self.sources)}

    def arrays(self, of: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """What these parameters get: the arrays of a rollout, or of one step of it."""
        return {f"seen{i}": of[one.array] for i, one in enumerate(self.sources)}

    def text(self) -> str:
        """The C++ that goes before layers/mlp.cuh."""
        members = " ".join(f"const {ctype}* {name};" for name, ctype in self.parameters.items())
        lines = [f"struct Seen {{ {members} }};"]
        if self.kind == "row":
            return lines[0]
        starts = accumulate((one.size for one in self.sources), initial=0)
        lines.append("template <int NUMBER> struct Source;")
        lines += [one.text(i, start) for i, (one, start) in enumerate(zip(self.sources, starts, strict=False))]
        lines.append(f"constexpr int NUM_SOURCES = {len(self.sources)}, NUM_IDS = {self.num_ids};")
        lines.append(f"constexpr bool HIDES = {str(self.hides).lower()};")
        return "\n".join(lines)


@dataclass(frozen=True)
class Gathered:
    """The same rows, brought together before: elements of whole tiles, as layers/gathered.cuh reads them."""

    seen: Seen
    """What they are of."""
    kind: ClassVar[str] = "gathered"
    parameters: ClassVar[dict[str, str]] = {"seen0": "unsigned char"}

    def text(self) -> str:
        return "struct Seen { const unsigned char* seen0; };"


def plain(num_features: int, array: str = "observation", num_agents: int = 1) -> Seen:
    """One float32 array of so many agents."""
    return Seen((Source(array, torch.float32, num_features, num_agents * num_features, num_features),))


def _literal(number: float) -> str:
    return f"{float(np.float32(number))!r}f"
