"""What the fused kernels can do for a policy, and how: the one place for their limits, launches, constants and bytes.

    found = plan(Request.of(policy.config, spec), Limits.of(backend), "bf16")
    if isinstance(found, str):  # why torch plays and learns for it
    found.bytes_of_playing(num_rows), found.learning(num_samples, num_epochs, num_minibatches).num_bytes

All of it is arithmetic: no network, no array and no device has to exist. Where numbers lie is in shape.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass

import torch

from trainers.algorithms import find_algorithm
from trainers.experience.spec import GroupSpec
from trainers.fused.cell import MOST_KEPT, CellPlan, RecurrentShape, Sequences, why_no_cell, with_input
from trainers.fused.conv_shape import MOST_CHANNELS, MOST_DENSE, ConvShape, Forward, Image, with_image
from trainers.fused.layers_shape import MAX_GROUP_WIDTH, PANEL, LayersShape, WarpgroupShape
from trainers.fused.learning_plan import NUM_FIGURES, GradientPlan, LearningPlan, Part
from trainers.fused.limits import CPU, LARGE_GPU, MAX_ROWS, Limits, check_rows, split_blocks  # noqa: F401
from trainers.fused.seen import Gathered, Seen, plain
from trainers.fused.shape import STAGE_ROWS, WARPS, Shape, Way, tiles_together, to_tiles
from trainers.heads import CategoricalHeads, GaussianHead, make_head
from trainers.networks import find_network
from trainers.networks.cnn import CNN
from trainers.networks.gru import GRU
from trainers.networks.images import CONVOLUTIONS
from trainers.networks.mlp import MLP
from trainers.networks.normalise import CLIP
from trainers.settings.config import PolicyConfig
from warpdrive.function_manager import Constant
from warpdrive.layout import parts

RUNS_ON_CPU = False
"""Tests set it: on a CPU, where lanes must exchange what tensor cores multiply, torch is far faster."""
FULL_PRECISION = "fused-fp32"
"""A precision for tests: elements are floats, to find mistakes; slow."""
MAX_WIDTH, MAX_LAYERS = 256, 2
"""Of hidden layers whose activations stay in registers. Others go through memory, one layer after the other."""
MAX_NORMED_TILES = 8
"""Of 16 features, whose mean and deviation a warp finds while it has them in registers."""
MAX_NORMED_WIDTH = 2048
"""Of a hidden layer with a LayerNorm: the columns that a block has at once."""
MANY_ROWS = 64
"""Rows a warp from which it plays for 32 at once instead of 16, so that every weight it loads serves two tiles."""
WIDEST_OF_TWO_TILES = {"act": 128, "learn": 32}
"""The widest layer for which a warp's registers hold 32 samples at once, by kernel."""
MAX_BLOCKS_A_WARP = 14
"""Of 16 x 16 sums: what a warp's registers hold beside a network's activations. Wider networks write records."""
GROUP_TILES = 4
"""Of a layer, which warps that multiply in fours compute at once."""
MAX_RECORDS = 1 << 20
"""Samples whose records are in memory at once."""


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
    norms_input: bool = False
    """Whether a LayerNorm stands before its first layer."""
    normalises: bool = False
    """Its observation."""
    seen: Seen | None = None
    """What the actor's input is made of; None: of one float32 array."""
    critic_seen: Seen | None = None
    """Of a central critic; None: it sees what the actor sees."""
    num_numbers: int = 0
    """Of an action in a Box."""
    norms_hidden: bool = False
    """Whether a LayerNorm stands before each activation."""
    memory_size: int = 0
    """Units of each recurrent cell; 0: it has none."""
    shapes_seen: tuple[tuple[int, ...], ...] = ()
    """Of each part of what a network of convolutions sees."""
    conv: str = "minatar"
    """Its convolutions."""
    gives_values: bool = False
    """Whether its outputs are values of actions, and it has no critic."""

    @property
    def num_outputs(self) -> int:
        """That say the action's distribution; of a Box means and, as biases alone, logarithms of deviations."""
        return 2 * self.num_numbers + sum(self.head_sizes)

    @classmethod
    def of(cls, config: PolicyConfig, spec: GroupSpec) -> Request:
        """As a policy's config and its group say it."""
        model = config.model
        algorithm, _ = find_algorithm(config.algorithm)
        head, seen = make_head(spec.action_space), Seen.by_actor(spec, config.agent_id)
        network, critic_widths, widths = find_network(model.type), None, model.fc_dims
        if network is CNN:
            widths = (model.dense_dim or CONVOLUTIONS[model.conv][1],)
        gives_values = "q" in algorithm.heads(config, head.num_outputs)
        if config.central_critic or not (model.shared_trunk or gives_values):
            critic_widths = widths if model.critic_fc_dims is None else model.critic_fc_dims
        return cls(
            seen.num_features,
            widths,
            head.head_sizes if isinstance(head, CategoricalHeads) else (),
            critic_widths,
            network,
            model.activates,
            model.norms_input,
            config.normalize_observation,
            seen,
            Seen.by_central_critic(spec) if config.central_critic else None,
            head.num_outputs if isinstance(head, GaussianHead) else 0,
            model.norms_hidden,
            model.memory_size if network is GRU else 0,
            tuple(tuple(one.shape) for one in parts(spec.observation_space).values()) if network is CNN else (),
            model.conv,
            gives_values,
        )


def why_not_here(limits: Limits, precision: str) -> str | None:
    """Why no fused kernels run on a device in a precision, in words; None if they do."""
    if limits.capability is None and not RUNS_ON_CPU:
        return "on a CPU torch is faster than the fused kernels"
    if precision not in ("bf16", FULL_PRECISION):
        return f"trainer.precision={precision} asks for it; fused kernels play and learn in bf16, or with auto"
    if limits.capability is not None and limits.capability < (8, 0):
        return "the GPU has no tensor cores for bfloat16 (sm_80 and later have)"
    return None


def plan(request: Request, limits: Limits, precision: str) -> Plan | str:
    """How the fused kernels play and learn for a policy; or in words why they cannot.

    Args:
        precision: of the networks, as trainer.precision.
    """
    if why := why_not_here(limits, precision):
        return why
    element_bytes = 4 if precision == FULL_PRECISION else 2
    if request.network is CNN:
        if why := _why_no_convolution(request, limits, element_bytes):
            return why
    elif request.network not in (MLP, GRU):
        return f"its network is {request.network.__name__}, and fused kernels serve model.type mlp, gru and cnn"
    if request.memory_size and (why := why_no_cell(request.memory_size, limits, element_bytes)):
        return why
    if request.gives_values and request.memory_size:
        return "it remembers, and gives actions values"
    widest = max((*request.widths, *(request.critic_widths or ())), default=0)
    if request.norms_hidden and widest > MAX_NORMED_WIDTH:
        return f"a hidden layer of {widest} with a LayerNorm is wider than {MAX_NORMED_WIDTH}"
    if request.norms_input and not request.widths:
        return "a LayerNorm stands before its outputs"
    # What a block's warps say of 16 samples each must fit, beside the biases of the widest network.
    num_outputs = request.num_outputs
    if Shape(1, (MAX_WIDTH, MAX_WIDTH), num_outputs, True).stage_bytes(1) > limits.shared_bytes:
        return f"its {num_outputs} outputs do not fit the shared memory of a block"
    for seen in (request.seen, request.critic_seen):
        if seen is not None and seen.why_not:
            return seen.why_not
    return Plan(request, limits, element_bytes)


def _why_no_convolution(request: Request, limits: Limits, element_bytes: int) -> str | None:
    """Why kernels cannot see by a policy's convolutions; None if they can."""
    serve = "and fused kernels see by one of 3 x 3, as model.conv: minatar has it"
    if request.conv != "minatar":
        return f"its convolutions are those of model.conv: {request.conv}, {serve}"
    if request.critic_seen is not None or len(request.shapes_seen) != 1 or request.seen.num_ids:
        return "it sees more than an image, and fused kernels see one image alone"
    (source,), (_, _, *channels) = request.seen.sources, request.shapes_seen[0]
    if source.dtype != torch.bool:
        return f"its image is of {str(source.dtype).removeprefix('torch.')}, and fused kernels see images of bool"
    if channels and channels[0] > MOST_CHANNELS:
        return f"its image has {channels[0]} channels, and fused kernels see {MOST_CHANNELS} at most"
    if (width := max((*request.widths, *(request.critic_widths or ())))) > MOST_DENSE:
        return f"the layer behind its convolutions has {width} numbers, and fused kernels have {MOST_DENSE} at most"
    for shape in Plan(request, limits, element_bytes).shapes:
        needed = max(shape.forward_bytes(Forward(), element_bytes), shape.backward_bytes(element_bytes))
        if needed > limits.shared_bytes:
            return f"its convolutions need {needed} bytes of shared memory of a block's {limits.shared_bytes}"
    return None


@dataclass(frozen=True)
class Plan:
    """How the kernels play and learn for a policy, whose weights they read as elements of `element_bytes`."""

    request: Request
    limits: Limits
    element_bytes: int

    @property
    def shapes(self) -> list[Shape]:
        """Of its one network; or of its actor and its critic."""
        asked, num_outputs = self.request, self.request.num_outputs
        if asked.critic_widths is None:
            return [self._make_shape(asked.num_features, asked.widths, num_outputs, not asked.gives_values)]
        actor = self._make_shape(asked.num_features, asked.widths, num_outputs, False)
        central = asked.critic_seen
        num_features = asked.num_features if central is None else central.num_features
        return [actor, self._make_shape(num_features, asked.critic_widths, 0, True)]

    @property
    def remark(self) -> str | None:
        """What would be faster, in words; None if nothing known would."""
        asked = self.request
        if asked.memory_size:
            slow = asked.memory_size > MOST_KEPT
            return f"up to a memory_size of {MOST_KEPT} they hold its weights, and are faster" if slow else None
        if not any(isinstance(shape, LayersShape) for shape in self.shapes) or asked.network is CNN:
            return None
        return (
            f"layer by layer through memory; with 1 to {MAX_LAYERS} hidden layers of at most {MAX_WIDTH}, and no "
            "LayerNorm between them, they would be faster"
        )

    def _make_shape(self, num_features: int, widths: tuple[int, ...], num_outputs: int, has_value: bool) -> Shape:
        """A network of the policy, by the kernels that are for its layers."""
        asked = self.request
        found = Shape(num_features, widths, num_outputs, has_value, asked.norms_input, asked.norms_hidden)
        if asked.memory_size:
            return RecurrentShape(*astuple(found), asked.memory_size)
        if asked.network is CNN:
            height, width, *channels = asked.shapes_seen[0]
            return with_image(found, Image(height, width, *channels or (1,)))
        stays = 1 <= len(widths) <= MAX_LAYERS and max(widths) <= MAX_WIDTH and not asked.norms_hidden
        if stays and (not asked.norms_input or found.tiles[0] <= MAX_NORMED_TILES):
            return found
        by_groups = self.limits.has_warpgroups and not asked.norms_hidden
        by_groups = by_groups and (self.element_bytes == 2 or self.limits.capability is None)
        by_groups = by_groups and max((num_features, *widths)) <= MAX_GROUP_WIDTH
        by_groups = by_groups and min(widths, default=0) > PANEL // 2  # else half of a panel would be padding
        return (WarpgroupShape if by_groups else LayersShape)(*astuple(found))

    def seen_by(self, shape: Shape) -> Seen:
        """What one of these sees."""
        asked = self.request
        if shape.num_outputs == 0 and asked.critic_seen is not None:
            return asked.critic_seen
        return asked.seen or plain(asked.num_features)

    def cell(self, number: int, num_rows: int, step_rows: int = 1) -> CellPlan | None:
        """How the recurrent unit of a network of this number goes through so many rows; None if it has none."""
        asked, shapes = self.request, self.shapes
        units, widths = asked.memory_size, shapes[number].widths
        if not units:
            return None
        whole = len(shapes) * units
        found = CellPlan(
            units, num_rows, self.limits, self.element_bytes, whole, number * units, step_rows,
            out_width=shapes[number].padded[-1][0],
        )  # fmt: skip
        if not widths or asked.norms_hidden:
            return found
        return with_input(found, widths[-1], asked.activation == "tanh")

    @property
    def num_parameters(self) -> int:
        without_weights = self.request.num_numbers * (self.request.num_features, *self.request.widths)[-1]
        return sum(shape.num_parameters for shape in self.shapes) - without_weights

    def bytes_of_playing(self, num_rows: int) -> dict[str, int]:
        """By what holds them, of so many agents in all envs."""
        check_rows(num_rows, "agents of a policy in all envs", "trainer.num_envs")
        packed = sum(self.element_bytes * shape.num_elements + 4 * shape.num_biases for shape in self.shapes)
        packed += self.bytes_of_norms
        rows = [self.bytes_of_rows(shape, num_rows) for shape in self.shapes if isinstance(shape, LayersShape)]
        for number in range(len(self.shapes)) if self.request.memory_size else ():
            cell = self.cell(number, 1)  # whose weights are there in two orders of their own, too
            packed += 2 * self.element_bytes * (3 * cell.units**2 + max(cell.input_elements, 1))
        found = {"packed parameters": packed + 4 * self.num_parameters, "entropy": 4 * num_rows}
        return found | ({"hidden layers": sum(rows)} if rows else {})

    @property
    def bytes_of_norms(self) -> int:
        """Of the tables by which LayerNorms of the input are folded into what follows them, and a bias without use."""
        tables = [36 + 4 * shape.layers[0][0] * (shape.num_features + 1) for shape in self.shapes]
        return 4 + sum(tables) if self.request.norms_input else 0

    @property
    def num_row_blocks(self) -> int:
        """Blocks of a kernel that goes through rows in memory."""
        return 2 * self.limits.num_multiprocessors

    def bytes_of_rows(self, shape: LayersShape, num_rows: int) -> int:
        """What a network that plays for so many takes: all outputs, and the layers of some at once."""
        outputs, at_once = 4 * shape.padded[-1][0], min(num_rows, shape.rows_at_once)
        if isinstance(shape, RecurrentShape):
            cell = self.cell(self.shapes.index(shape), 1)
            return shape.bytes_of(self.element_bytes, num_rows, at_once, None, cell)
        return num_rows * outputs + at_once * (shape.row_bytes(self.element_bytes, learns=False) - outputs)

    def gathering(self, shape: Shape, num_rows: int) -> Part:
        """The launch that brings so many rows of features together."""
        together = 2 if isinstance(shape, WarpgroupShape) else 0 if isinstance(shape, LayersShape) else 1
        columns = to_tiles(shape.num_features) if together == 1 else shape.padded[0][1]
        constants, _ = self._part(shape, 1, 0, in_fours=False)
        num_blocks = min(8 * self.limits.num_multiprocessors, -(-num_rows // (16 * WARPS)))
        constants |= {"ROW_COLUMNS": columns, "TOGETHER": together}
        return Part(constants, self.request.head_sizes, num_blocks, 0, self.seen_by(shape))

    def learning(
        self, num_samples: int, num_epochs: int, num_minibatches: int, sequences: Sequences | None = None
    ) -> LearningPlan:
        """Of a rollout's samples, in minibatches, several times; a recurrent policy's in sequences."""
        check_rows(num_samples, "samples of a policy in a rollout (steps x envs x agents)", "trainer.train_batch_size")
        unit, limits = sequences.size if sequences else 1, self.limits
        size = -(-num_samples // unit // num_minibatches) * unit
        num_minibatches = -(-num_samples // size)
        shapes, heads = self.shapes, self.request.head_sizes
        found = [self._way(shape) for shape in shapes]
        chunk = size if all(way == "registers" for way, _, _ in found) else min(size, MAX_RECORDS)
        if sequences:
            chunk = max(chunk // unit, 1) * unit
        else:
            chunk = min([chunk, *(shape.rows_at_once for shape in shapes if isinstance(shape, LayersShape))])
        num_chunks = -(-size // chunk)
        has_pieces = any(way == "pieces" for way, _, _ in found)  # two blocks would have half the registers each
        at_once = 1 if has_pieces else limits.blocks_at_once(max(num_bytes for _, _, num_bytes in found))
        blocks = split_blocks(at_once * limits.num_multiprocessors, [shape.work for shape in shapes])
        in_pieces = [i for i, (way, _, _) in enumerate(found) if way == "pieces"]
        shares = split_blocks(limits.num_multiprocessors, [shapes[i].record("pieces") for i in in_pieces])
        blocks_of_products = dict(zip(in_pieces, shares, strict=True))
        networks = []
        for i, (shape, (way, constants, num_bytes), count) in enumerate(zip(shapes, found, blocks, strict=True)):
            rows_a_block = 16 * WARPS * constants["ROW_TILES"]
            num_tiles = -(-chunk // rows_a_block)
            seen = self.seen_by(shape)
            gathers = num_epochs > 1 and way != "layers" and seen.is_scattered and not self.request.norms_input
            gather = self.gathering(shape, num_samples) if gathers else None
            learn = Part(constants, heads, min(count, num_tiles), num_bytes, Gathered(seen) if gathers else seen)
            products, num_parts = None, learn.num_blocks * num_chunks if way == "registers" else num_chunks
            if way == "pieces":
                pieces, num_bytes = shape.pieces(blocks_of_products[i], -(-chunk // STAGE_ROWS), limits.shared_bytes)
                num_parts = pieces["SHARES2"]
                count = pieces["PIECES2"] * num_parts + pieces["SHARES1"]
                products = Part({**constants, **pieces}, heads, count, num_bytes, learn.seen)
            record_rows = 0 if way == "registers" else num_tiles * rows_a_block
            num_figures = learn.num_blocks * WARPS * num_chunks
            row_blocks = self.num_row_blocks if way == "layers" else 0
            if isinstance(shape, ConvShape):
                num_parts, row_blocks = (num_chunks * one for one in shape.num_parts(chunk, self.element_bytes, limits))
            cell = self.cell(i, chunk // sequences.length, sequences.step_rows) if sequences else None
            networks.append(
                GradientPlan(
                    shape, way, learn, products, record_rows, num_parts, num_figures, self.element_bytes, row_blocks,
                    cell, gather,
                )
            )  # fmt: skip
        num_steps = num_epochs * num_minibatches
        return LearningPlan(self, num_samples, num_epochs, num_steps, size, chunk, tuple(networks), at_once, sequences)

    def _way(self, shape: Shape) -> tuple[Way, dict[str, Constant], int]:
        """How a network's gradient is summed up, with the constants and the shared memory of its learn kernel.

        A narrow one adds products up in its blocks' registers, of records that are in shared memory. A wide one, or one
        whose warps multiply in fours, writes records, whose products are sums over a million rows: those in fours by a
        kernel whose blocks hold a piece of the gradient each, the others by a matrix library.
        """
        element_bytes, limits = self.element_bytes, self.limits
        if isinstance(shape, LayersShape):
            row_tiles = 2 if 2 * shape.stage_bytes(2) <= limits.shared_bytes else 1
            constants, num_bytes = self._part(shape, row_tiles, 0, in_fours=False)
            constants |= {"ACCUMULATES": False, "NUM_FIGURES": NUM_FIGURES}
            return "layers", constants | shape.constants_of_record("layers", element_bytes), num_bytes
        row_tiles = 2 if max(shape.widths) <= WIDEST_OF_TWO_TILES["learn"] else 1
        records = 16 * WARPS * row_tiles * shape.pitch("registers", element_bytes) * element_bytes
        needed = shape.stage_bytes(row_tiles) + records + shape.num_elements * element_bytes
        fits = needed <= limits.shared_bytes and -(-shape.num_blocks // WARPS) <= MAX_BLOCKS_A_WARP
        accumulates = fits and not self._suits_warpgroups(shape)
        if not accumulates:
            row_tiles, records = 1, 0
        constants, num_bytes = self._part(shape, row_tiles, records, not accumulates)
        way = "registers" if accumulates else "pieces" if constants["WARPGROUPS"] else "records"
        constants |= {"ACCUMULATES": accumulates, "NUM_FIGURES": NUM_FIGURES}
        return way, constants | shape.constants_of_record(way, element_bytes), num_bytes

    def _suits_warpgroups(self, shape: Shape) -> bool:
        return self.limits.has_warpgroups and self.element_bytes == 2 and shape.suits_warpgroups

    def _part(self, shape: Shape, row_tiles: int, taken_bytes: int, in_fours: bool) -> tuple[dict[str, Constant], int]:
        """Constants of layers/mlp.cuh, and the shared memory that a block needs.

        Layers whose weights do not fit stay in global memory.

        Args:
            row_tiles: of 16 samples, which a warp carries at once.
            taken_bytes: of shared memory, by what is neither weights nor outputs.
            in_fours: whether warps may multiply by fours, where the device's can and the network suits them.
        """
        in_fours = in_fours and self._suits_warpgroups(shape) and row_tiles == 1
        given_bytes = taken_bytes + shape.stage_bytes(row_tiles)
        for added_bytes in (256 * (1 + sum(shape.tiles[1:3])), 0) if in_fours else (0,):
            is_shared, taken_bytes = [False] * 3, given_bytes + added_bytes
            for layer in (1, 2, 0):  # the largest that is read most often first
                num_bytes = shape.sizes[layer] * self.element_bytes
                is_shared[layer] = 0 < num_bytes <= self.limits.shared_bytes - taken_bytes
                taken_bytes += num_bytes * is_shared[layer]
            if all(is_shared):
                break
        in_fours = in_fours and all(is_shared)
        _, first, second, _ = shape.tiles
        constants = {
            **shape.constants(row_tiles),
            **{f"SHARED{layer + 1}": found for layer, found in enumerate(is_shared)},
            "IS_TANH": self.request.activation == "tanh",
            "NORMALISES": self.request.normalises,
            "CLIP": CLIP,
            "WARPGROUPS": in_fours,
            "ADDED_BYTES": added_bytes,
            "LAYERS": isinstance(shape, LayersShape),
            "GIVES_VALUES": self.request.gives_values,
            "GROUP_TILES": GROUP_TILES,
            "AT_ONCE1": GROUP_TILES if in_fours else tiles_together(first),
            "AT_ONCE2": GROUP_TILES if in_fours else tiles_together(second or 1),
        }
        return constants, taken_bytes


def plan_acting(networks: Sequence[tuple[Plan, Shape, int]]) -> tuple[list[Part], int]:
    """One launch that plays for several networks, and how many of its blocks a multiprocessor holds.

    Args:
        networks: each with its policy's plan and the number of its rows.
    """
    limits = networks[0][0].limits
    rows = sum(num_rows for _, _, num_rows in networks)
    widest = max(16 * max(shape.tiles[1:3]) for _, shape, _ in networks)
    has_many = rows > MANY_ROWS * WARPS * limits.num_multiprocessors
    fits = max(shape.stage_bytes(2) for _, shape, _ in networks) <= limits.shared_bytes
    row_tiles = 2 if has_many and widest <= WIDEST_OF_TWO_TILES["act"] and fits else 1
    found = [one._part(shape, row_tiles, 0, in_fours=True) for one, shape, _ in networks]
    at_once = limits.blocks_at_once(max(num_bytes for _, num_bytes in found))
    blocks = split_blocks(at_once * limits.num_multiprocessors, [rows * shape.work for _, shape, rows in networks])
    parts = []
    for (one, shape, num_rows), (constants, num_bytes), count in zip(networks, found, blocks, strict=True):
        num_tiles = -(-num_rows // (16 * row_tiles))
        parts.append(Part(constants, one.request.head_sizes, min(count, num_tiles), num_bytes, one.seen_by(shape)))
    return parts, at_once
