"""What the fused kernels can do for a policy, and how: the one place for their limits, launches, constants and bytes.

    found = plan(Request.of(policy.config, spec), Limits.of(backend), "bf16")
    if isinstance(found, str):  # why torch plays and learns for it
    found.bytes_of_playing(num_rows), found.learning(num_samples, num_epochs, num_minibatches).num_bytes

All of it is arithmetic: no network, no array and no device has to exist. Where numbers lie is in shape.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from trainers.experience.spec import GroupSpec
from trainers.fused.seen import Seen, plain
from trainers.fused.shape import HEAD_BYTES, STAGE_ROWS, WARPS, Shape, Way, tiles_together
from trainers.heads import CategoricalHeads, GaussianHead, make_head
from trainers.networks import find_network
from trainers.networks.mlp import MLP
from trainers.networks.normalise import CLIP
from trainers.settings.config import PolicyConfig
from warpdrive.backends.base import Backend
from warpdrive.errors import ConfigError
from warpdrive.function_manager import Constant

RUNS_ON_CPU = False
"""Tests set it: on a CPU, where lanes must exchange what tensor cores multiply, torch is far faster."""
FULL_PRECISION = "fused-fp32"
"""A precision for tests: elements are floats, to find mistakes; slow."""
MAX_WIDTH = 256
NUM_FIGURES = 5
"""Sums that the learn kernel makes: policy loss, value loss, entropy, KL divergence, how often it was clipped."""
MANY_ROWS = 64
"""Rows a warp from which it plays for 32 at once instead of 16, so that every weight it loads serves two tiles."""
WIDEST_OF_TWO_TILES = {"act": 128, "learn": 32}
"""The widest layer for which a warp's registers hold 32 samples at once, by kernel."""
MAX_BLOCKS_A_WARP = 14
"""Of 16 x 16 sums: what a warp's registers hold beside a network's activations. Wider networks write records."""
MAX_RECORDS = 1 << 20
"""Samples whose records are in memory at once."""
MAX_ROWS = (1 << 31) - (1 << 20)
"""Samples, or agents in all envs: kernels number them in 32 bits, up to what all blocks would take beyond the last."""
MAX_STAGES = 4
"""How many times as many samples as it multiplies a block of `products` has in shared memory."""
SUM_THREADS = 256
"""Of the blocks that sum up advantages."""
STEP_THREADS, SLICES = 256, 4
"""Of a block that steps parameters; threads that share the adding up of one parameter's gradient."""


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

    def blocks_at_once(self, shared_bytes: int) -> int:
        """Blocks of so much shared memory that a multiprocessor holds, two at most."""
        reserved = 1024  # of each block
        return max(1, min(2, (self.shared_bytes + reserved) // (shared_bytes + reserved)))


CPU = Limits(None, 227 << 10, 2)
LARGE_GPU = Limits((9, 0), 227 << 10, 132, has_warpgroups=True)


@dataclass(frozen=True)
class Request:
    """A policy, as far as it decides whether the kernels can play and learn for it, and how."""

    num_features: int
    """Of the actor's input."""
    widths: tuple[int, ...]
    head_sizes: tuple[int, ...]
    """Actions of each head; none of a Box."""
    critic_widths: tuple[int, ...] | None = None
    """None: the critic shares the hidden layers."""
    network: type = MLP
    activation: str = "relu"
    has_layer_norm: bool = False
    normalises: bool = False
    """Its observation."""
    seen: Seen | None = None
    """What the actor's input is made of; None: of one float32 array."""
    critic_seen: Seen | None = None
    """Of a central critic; None: it sees what the actor sees."""
    num_numbers: int = 0
    """Of an action in a Box."""

    @property
    def num_outputs(self) -> int:
        """That say the action's distribution; of a Box means and, as biases alone, logarithms of deviations."""
        return 2 * self.num_numbers + sum(self.head_sizes)

    @classmethod
    def of(cls, config: PolicyConfig, spec: GroupSpec) -> Request:
        """As a policy's config and its group say it."""
        model = config.model
        critic_widths = None
        if config.central_critic or not model.shared_trunk:
            critic_widths = model.fc_dims if model.critic_fc_dims is None else model.critic_fc_dims
        head, seen = make_head(spec.action_space), Seen.by_actor(spec, config.agent_id)
        return cls(
            seen.num_features,
            model.fc_dims,
            head.head_sizes if isinstance(head, CategoricalHeads) else (),
            critic_widths,
            find_network(model.type),
            model.activates,
            model.layer_norm,
            config.normalize_observation,
            seen,
            Seen.by_central_critic(spec) if config.central_critic else None,
            head.num_outputs if isinstance(head, GaussianHead) else 0,
        )


def plan(request: Request, limits: Limits, precision: str) -> Plan | str:
    """How the fused kernels play and learn for a policy; or in words why they cannot.

    Args:
        precision: of the networks, as trainer.precision.
    """
    if limits.capability is None and not RUNS_ON_CPU:
        return "on a CPU it is faster than the fused kernels"
    if precision not in ("bf16", FULL_PRECISION):
        return f"trainer.precision={precision} asks for it; fused kernels play and learn in bf16, or with auto"
    if limits.capability is not None and limits.capability < (8, 0):
        return "the GPU has no tensor cores for bfloat16 (sm_80 and later have)"
    if request.network is not MLP:
        return f"the network is a {request.network.__name__}, not an MLP"
    if request.has_layer_norm:
        return "it has a LayerNorm"
    for widths in (request.widths, request.critic_widths):
        if widths is not None and not 1 <= len(widths) <= 2:
            return f"it has {len(widths)} hidden layers, not 1 or 2"
        if widths is not None and max(widths) > MAX_WIDTH:
            return f"a hidden layer of {max(widths)} is wider than {MAX_WIDTH}"
    # What a block's warps say of 16 samples each must fit, beside the biases of the widest network.
    num_outputs = request.num_outputs
    if Shape(1, (MAX_WIDTH, MAX_WIDTH), num_outputs, True).stage_bytes(1) > limits.shared_bytes:
        return f"its {num_outputs} outputs do not fit the shared memory of a block"
    for seen in (request.seen, request.critic_seen):
        if seen is not None and seen.why_not:
            return seen.why_not
    return Plan(request, limits, 4 if precision == FULL_PRECISION else 2)


@dataclass(frozen=True)
class Part:
    """One network's share of a launch."""

    constants: Mapping[str, Constant]
    head_sizes: Sequence[int]
    num_blocks: int
    shared_bytes: int
    seen: Seen


@dataclass(frozen=True)
class Plan:
    """How the kernels play and learn for a policy."""

    request: Request
    limits: Limits
    element_bytes: int
    """Of a weight, as the kernels read it."""

    @property
    def shapes(self) -> list[Shape]:
        """Of its one network; or of its actor and its critic."""
        asked, num_outputs = self.request, self.request.num_outputs
        if asked.critic_widths is None:
            return [Shape(asked.num_features, asked.widths, num_outputs, True)]
        actor = Shape(asked.num_features, asked.widths, num_outputs, False)
        central = asked.critic_seen
        num_features = asked.num_features if central is None else central.num_features
        return [actor, Shape(num_features, asked.critic_widths, 0, True)]

    def seen_by(self, shape: Shape) -> Seen:
        """What one of these sees."""
        asked = self.request
        if shape.num_outputs == 0 and asked.critic_seen is not None:
            return asked.critic_seen
        return asked.seen or plain(asked.num_features)

    @property
    def num_parameters(self) -> int:
        without_weights = self.request.num_numbers * self.request.widths[-1]
        return sum(shape.num_parameters for shape in self.shapes) - without_weights

    def bytes_of_playing(self, num_rows: int) -> dict[str, int]:
        """By what holds them, of so many agents in all envs."""
        check_rows(num_rows, "agents of a policy in all envs", "trainer.num_envs")
        packed = sum(self.element_bytes * shape.num_elements + 4 * shape.num_biases for shape in self.shapes)
        return {"packed parameters": packed + 4 * self.num_parameters, "entropy": 4 * num_rows}

    def learning(self, num_samples: int, num_epochs: int, num_minibatches: int) -> LearningPlan:
        """Of a rollout's samples, in minibatches, several times."""
        check_rows(num_samples, "samples of a policy in a rollout (steps x envs x agents)", "trainer.train_batch_size")
        size, limits = -(-num_samples // num_minibatches), self.limits
        shapes, heads = self.shapes, self.request.head_sizes
        found = [self._way(shape) for shape in shapes]
        chunk = size if all(way == "registers" for way, _, _ in found) else min(size, MAX_RECORDS)
        num_chunks = -(-size // chunk)
        at_once = limits.blocks_at_once(max(num_bytes for _, _, num_bytes in found))
        blocks = split_blocks(at_once * limits.num_multiprocessors, [shape.num_elements for shape in shapes])
        in_pieces = [i for i, (way, _, _) in enumerate(found) if way == "pieces"]
        shares = split_blocks(limits.num_multiprocessors, [shapes[i].record for i in in_pieces])
        blocks_of_products = dict(zip(in_pieces, shares, strict=True))
        networks = []
        for i, (shape, (way, constants, num_bytes), count) in enumerate(zip(shapes, found, blocks, strict=True)):
            rows_a_block = 16 * WARPS * constants["ROW_TILES"]
            num_tiles = -(-chunk // rows_a_block)
            seen = self.seen_by(shape)
            learn = Part(constants, heads, min(count, num_tiles), num_bytes, seen)
            products, num_parts = None, learn.num_blocks * num_chunks if way == "registers" else num_chunks
            if way == "pieces":
                _, pieces = shape.num_pieces
                num_parts = max(1, min(blocks_of_products[i] // pieces, -(-chunk // STAGE_ROWS)))
                stages = min(MAX_STAGES, (limits.shared_bytes - HEAD_BYTES) // shape.products_bytes)
                num_bytes = HEAD_BYTES + stages * shape.products_bytes
                products = Part({**constants, "STAGES": stages}, heads, num_parts * pieces, num_bytes, seen)
            record_rows = 0 if way == "registers" else num_tiles * rows_a_block
            num_figures = learn.num_blocks * WARPS * num_chunks
            networks.append(
                GradientPlan(shape, way, learn, products, record_rows, num_parts, num_figures, self.element_bytes)
            )
        num_steps = num_epochs * num_minibatches
        return LearningPlan(self, num_samples, num_epochs, num_steps, size, chunk, tuple(networks), at_once)

    def _way(self, shape: Shape) -> tuple[Way, dict[str, Constant], int]:
        """How a network's gradient is summed up, with the constants and the shared memory of its learn kernel.

        A narrow one adds products up in its blocks' registers, of records that are in shared memory. A wide one writes
        records, whose products are sums over a million rows: a matrix library's work; or, where warps multiply in
        fours, that of a kernel whose blocks hold a piece of the gradient each.
        """
        element_bytes, limits = self.element_bytes, self.limits
        row_tiles = 2 if max(shape.widths) <= WIDEST_OF_TWO_TILES["learn"] else 1
        records = 16 * WARPS * row_tiles * shape.pitch("registers", element_bytes) * element_bytes
        needed = shape.stage_bytes(row_tiles) + records + shape.num_elements * element_bytes
        accumulates = needed <= limits.shared_bytes and -(-shape.num_blocks // WARPS) <= MAX_BLOCKS_A_WARP
        if not accumulates:
            row_tiles, records = 1, 0
        group_tiles = 8 if shape.tiles[3] == 1 else 4  # more outputs take the registers
        constants, num_bytes = self._part(shape, row_tiles, records, not accumulates, group_tiles)
        way = "registers" if accumulates else "pieces" if constants["WARPGROUPS"] else "records"
        constants |= {"ACCUMULATES": accumulates, "NUM_FIGURES": NUM_FIGURES}
        return way, constants | shape.constants_of_record(way, element_bytes), num_bytes

    def _part(
        self, shape: Shape, row_tiles: int, taken_bytes: int, in_fours: bool, group_tiles: int = 8
    ) -> tuple[dict[str, Constant], int]:
        """Constants of layers/mlp.cuh, and the shared memory that a block needs.

        Layers whose weights do not fit stay in global memory.

        Args:
            row_tiles: of 16 samples, which a warp carries at once.
            taken_bytes: of shared memory, by what is neither weights nor outputs.
            in_fours: whether warps may multiply by fours, where the device's can and the network suits them.
            group_tiles: of a layer, which they then compute at once.
        """
        taken_bytes += shape.stage_bytes(row_tiles)
        is_shared = [False] * 3
        for layer in (1, 2, 0):  # the largest that is read most often first
            num_bytes = shape.sizes[layer] * self.element_bytes
            is_shared[layer] = 0 < num_bytes <= self.limits.shared_bytes - taken_bytes
            taken_bytes += num_bytes * is_shared[layer]
        in_fours = in_fours and self.limits.has_warpgroups and self.element_bytes == 2
        in_fours = in_fours and shape.suits_warpgroups and all(is_shared) and row_tiles == 1
        _, first, second, _ = shape.tiles
        constants = {
            **shape.constants(row_tiles),
            **{f"SHARED{layer + 1}": found for layer, found in enumerate(is_shared)},
            "IS_TANH": self.request.activation == "tanh",
            "NORMALISES": self.request.normalises,
            "CLIP": CLIP,
            "WARPGROUPS": in_fours,
            "GROUP_TILES": group_tiles,
            "AT_ONCE1": group_tiles if in_fours else tiles_together(first),
            "AT_ONCE2": group_tiles if in_fours else tiles_together(second or 1),
        }
        return constants, taken_bytes


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


def plan_acting(networks: Sequence[tuple[Plan, Shape, int]]) -> tuple[list[Part], int]:
    """One launch that plays for several networks, and how many of its blocks a multiprocessor holds.

    Args:
        networks: each with its policy's plan and the number of its rows.
    """
    limits = networks[0][0].limits
    rows = sum(num_rows for _, _, num_rows in networks)
    widest = max(max(shape.widths) for _, shape, _ in networks)
    has_many = rows > MANY_ROWS * WARPS * limits.num_multiprocessors
    fits = max(shape.stage_bytes(2) for _, shape, _ in networks) <= limits.shared_bytes
    row_tiles = 2 if has_many and widest <= WIDEST_OF_TWO_TILES["act"] and fits else 1
    found = [one._part(shape, row_tiles, 0, in_fours=True) for one, shape, _ in networks]
    at_once = limits.blocks_at_once(max(num_bytes for _, num_bytes in found))
    work = [num_rows * shape.num_elements for _, shape, num_rows in networks]
    blocks = split_blocks(at_once * limits.num_multiprocessors, work)
    parts = []
    for (one, shape, num_rows), (constants, num_bytes), count in zip(networks, found, blocks, strict=True):
        num_tiles = -(-num_rows // (16 * row_tiles))
        parts.append(Part(constants, one.request.head_sizes, min(count, num_tiles), num_bytes, one.seen_by(shape)))
    return parts, at_once


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

    @property
    def part_size(self) -> int:
        """Numbers of a part."""
        return self.shape.part_size(self.way)

    @property
    def record_bytes(self) -> int:
        return max(self.record_rows * self.shape.record * self.element_bytes, 16)


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

    @property
    def has_order(self) -> bool:
        """Whether samples are shuffled."""
        return self.num_steps > 1

    @property
    def num_ordered(self) -> int:
        return self.num_samples * self.num_epochs if self.has_order else 1

    @property
    def num_chunks(self) -> int:
        return -(-self.size // self.chunk)

    @property
    def num_sums(self) -> int:
        """Blocks that sum up the advantages of a minibatch: all together keep the device busy."""
        busy = 8 * self.policy.limits.num_multiprocessors // self.num_steps
        return max(1, min(busy, -(-self.size // SUM_THREADS)))

    @property
    def num_groups(self) -> int:
        """Blocks that add up the parts of the gradient."""
        return -(-self.policy.num_parameters // (STEP_THREADS // SLICES))

    @property
    def num_figures(self) -> int:
        return sum(one.num_figures for one in self.networks)

    @property
    def num_bytes(self) -> dict[str, int]:
        """By what holds them, besides the optimiser's memory."""
        tables = 8 + 3 * 4 + 1  # where a parameter's gradient is, its parts and its name; whether it is a critic's
        return {
            "order of samples": 4 * self.num_ordered,
            "records": sum(one.record_bytes for one in self.networks),
            "parts of the gradient": sum(4 * one.num_parts * one.part_size for one in self.networks),
            "gradient": (4 + tables) * self.policy.num_parameters + 4 * self.num_groups,
            "figures": self.num_steps * (4 * NUM_FIGURES * self.num_figures + 24 * self.num_sums + 4),
        }
