"""What the fused kernels know of a policy: which networks it has, and where every parameter lies for them."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from torch import nn

from trainers.experience.spec import GroupSpec
from trainers.heads import CategoricalHeads
from trainers.networks.mlp import MLP
from trainers.networks.policy import Policy
from warpdrive.backends.base import Backend, LaunchShape
from warpdrive.data_manager import DataManager
from warpdrive.function_manager import Constant, FunctionManager

KERNELS = Path(__file__).resolve().parent
WARPS = 8
"""Of a block: with 255 registers a lane, as many as a multiprocessor holds."""
MAX_WIDTH = 256
NUM_FIGURES = 5
"""Sums that the learn kernel makes: policy loss, value loss, entropy, KL divergence, how often it was clipped."""
RUNS_ON_CPU = False
"""Tests set it: on a CPU, where lanes must exchange what tensor cores multiply, torch is far faster."""
CPU_MULTIPROCESSORS, CPU_SHARED_BYTES = 2, 227 << 10


def why_not(policy: Policy, spec: GroupSpec, observation: torch.Tensor, backend: Backend, precision: str) -> str | None:
    """Why the fused kernels cannot play or learn for a policy; None if they can.

    Args:
        spec: of its group.
        observation: the array that they see, [E, columns, ...].
    """
    network = policy.network
    if precision not in ("bf16", "fused-fp32"):
        return f"precision is {precision}, and the fused kernels need bf16"
    if backend.name != "cuda" and not RUNS_ON_CPU:
        return "on a CPU torch is faster"
    if backend.name == "cuda" and torch.cuda.get_device_capability(backend.device) < (8, 0):
        return "the GPU has no tensor cores for bfloat16 (sm_80 and later have)"
    if type(network) is not MLP:
        return f"the network is a {type(network).__name__}, not an MLP"
    trunks = [network.trunk] + ([] if network.critic_trunk is None else [network.critic_trunk])
    for trunk in trunks:
        layers = list(trunk)
        if not all(isinstance(layer, nn.Linear) for layer in layers):
            return "it has a LayerNorm"
        if not 1 <= len(layers) <= 2:
            return f"it has {len(layers)} hidden layers, not 1 or 2"
        if widest := max((len(layer.weight) for layer in layers if len(layer.weight) > MAX_WIDTH), default=0):
            return f"a hidden layer of {widest} is wider than {MAX_WIDTH}"
    if not isinstance(policy.head, CategoricalHeads):
        return "its actions are a Box"
    if not outputs_fit(policy.head.num_outputs, shared_bytes_of(backend)):
        return f"its {policy.head.num_outputs} outputs do not fit the shared memory of a block"
    if policy.has_central_critic:
        return "its critic sees the whole env"
    if policy.sees_agent_id:
        return "its agents see their numbers"
    if len(spec.seen) != 1 or observation.dtype != torch.float32:
        return "its observation is not one array of float32"
    return None


def shared_bytes_of(backend: Backend) -> int:
    """Shared memory that a block may have."""
    if backend.name != "cuda":
        return CPU_SHARED_BYTES
    return torch.cuda.get_device_properties(backend.device).shared_memory_per_block_optin


def outputs_fit(num_outputs: int, shared_bytes: int) -> bool:
    """Whether a block can hold what its warps say of 16 samples each, beside the biases of the widest network."""
    return Shape(1, (MAX_WIDTH, MAX_WIDTH), num_outputs, True).stage_bytes(1) <= shared_bytes


@dataclass(frozen=True)
class Shape:
    """One network of a policy, in tiles of 16 columns: what fused_mlp.cuh calls it."""

    num_features: int
    widths: tuple[int, ...]
    num_outputs: int
    has_value: bool

    @property
    def tiles(self) -> tuple[int, int, int, int]:
        """Of the features with a column of ones, of both hidden layers (0: there is no second), of the outputs."""
        widths = (*self.widths, 0)[:2]
        return tuple(-(-width // 16) for width in (self.num_features + 1, *widths, self.num_outputs + self.has_value))

    @property
    def sizes(self) -> tuple[int, int, int]:
        """Elements of each layer's weights."""
        features, first, second, outputs = self.tiles
        return first * features * 256, second * first * 256, outputs * (second or first) * 256

    @property
    def num_elements(self) -> int:
        return sum(self.sizes)

    @property
    def num_biases(self) -> int:
        return sum(self.tiles[1:]) * 16

    @property
    def widths_of_record(self) -> list[int]:
        """Features, hidden 1, hidden 2, delta 1, delta 2, delta of the outputs."""
        features, first, second, outputs = (16 * tiles for tiles in self.tiles)
        return [features, first, second, first, second, outputs]

    @property
    def num_blocks(self) -> int:
        """Blocks of 16 x 16 of the weights' gradient, as fused_learn.cuh has them."""
        features, first, second, outputs = self.tiles
        return first * features + second * first + outputs * (second or first) + second + outputs

    @property
    def suits_warpgroups(self) -> bool:
        """Whether fused_groups.cuh and fused_products.cuh are written for it."""
        features, *hidden, outputs = self.tiles
        return all(tiles in (8, 16) for tiles in hidden) and features <= 8 and outputs <= 8

    def constants(
        self,
        policy: Policy,
        element_bytes: int,
        row_tiles: int,
        shared_bytes: int,
        has_warpgroups: bool = False,
        group_tiles: int = 8,
    ) -> dict[str, Constant]:
        """Of fused_mlp.cuh. `shared_bytes` are left for weights: layers that do not fit stay in global memory.

        Args:
            has_warpgroups: whether the device has them.
            group_tiles: that they compute of a layer at once.
        """
        features, first, second, outputs = self.tiles
        shared = {}
        for layer in (1, 2, 0):  # the largest that is read most often first
            num_bytes = self.sizes[layer] * element_bytes
            shared[layer] = 0 < num_bytes <= shared_bytes
            shared_bytes -= num_bytes * shared[layer]
        return {
            "NUM_FEATURES": self.num_features,
            "FEATURE_TILES": features,
            "TILES1": first,
            "TILES2": second,
            "NUM_OUTPUTS": self.num_outputs,
            "HAS_VALUE": self.has_value,
            "OUTPUT_TILES": outputs,
            "IS_TANH": policy.network.activation is torch.tanh_,
            "NORMALISES": policy.observation_norm is not None,
            "CLIP": 10.0 if policy.observation_norm is None else float(policy.observation_norm.clip),
            "SHARED1": shared[0],
            "SHARED2": shared[1],
            "SHARED3": shared[2],
            "WARPS": WARPS,
            "ROW_TILES": row_tiles,
            "WARPGROUPS": has_warpgroups and self.suits_warpgroups and all(shared.values()) and row_tiles == 1,
            "GROUP_TILES": group_tiles,
        }

    def shared_pitch(self, element_bytes: int) -> int:
        """Elements from a record to the next where a block keeps them in shared memory (fused_learn.cuh)."""
        record = sum(self.widths_of_record)
        return (record + 31) // 64 * 64 + 32 if element_bytes == 2 else record + 4

    def stage_bytes(self, row_tiles: int) -> int:
        """Shared memory of a block besides weights: biases, and each warp's outputs."""
        stage = row_tiles * 16 * (self.tiles[3] * 16 + 1)
        return 4 * (self.num_biases + WARPS * (-(-stage // 4) * 4))

    def shared_weights(self, constants: dict[str, Constant], element_bytes: int) -> int:
        """Bytes of the weights that are in shared memory."""
        return sum(self.sizes[layer] * element_bytes * constants[f"SHARED{layer + 1}"] for layer in range(3))


def place_in_record(column: np.ndarray, group: int) -> np.ndarray:
    """Where a column of a part of the record stands in it, within its 16 or 32 (`group`): see tensor_core.cuh."""
    within, each = column % group, group // 4
    return column - within + each * (within % 8 // 2) + 2 * (within // 8) + within % 2


def group_of(tiles: int) -> int:
    """Columns of a part of so many tiles that stand in the record as a lane holds them."""
    return 32 if tiles % 2 == 0 else 16


@dataclass
class Layer:
    """Parameters that are one layer to the kernels: rows of weights, and their biases."""

    weight: np.ndarray
    """[out, in] numbers of the parameters."""
    bias: np.ndarray


@dataclass
class FusedNetwork:
    """One network: its shape, and which parameters its layers are made of."""

    shape: Shape
    layers: list[Layer]
    first_element: int
    first_bias: int
    norm: nn.Module | None = field(default=None)

    def weight_places(self, place: np.ndarray) -> None:
        """Writes where each of its parameters lies: an element, or -1 - a bias."""
        at, bias_at = self.first_element, self.first_bias
        features, first, second, _ = self.shape.tiles
        inputs = [features, first, second] if second else [features, first]
        for layer, in_tiles in zip(self.layers, inputs, strict=True):
            row, column = np.indices(layer.weight.shape)
            block = row // 8 * (2 * in_tiles) + column // 8
            place[layer.weight] = at + block * 64 + row % 8 * 8 + column % 8
            place[layer.bias] = -1 - (bias_at + np.arange(len(layer.bias)))
            rows = -(-len(layer.bias) // 16) * 16
            at += rows * in_tiles * 16
            bias_at += rows

    def gradient_places(self, accumulates: bool) -> list[tuple[np.ndarray, np.ndarray]]:
        """(parameters, where the gradient of each is in a part) of every layer's weights and biases."""
        features, first, second, outputs = self.shape.tiles
        inputs = [features, first, second] if second else [features, first]
        rows = [first, second, outputs] if second else [first, outputs]
        ones = place_in_record(np.array(self.shape.num_features), group_of(features))
        places, block, bias_block = [], 0, sum(a * b for a, b in zip(rows, inputs, strict=True))
        row_at, matrix_at = 0, sum(rows) * 16 * features * 16
        for number, (layer, in_tiles, out_tiles) in enumerate(zip(self.layers, inputs, rows, strict=True)):
            row, column = np.indices(layer.weight.shape)
            row_group = 16 if number == len(rows) - 1 else group_of(out_tiles)  # outputs come one tile at a time
            row, column = place_in_record(row, row_group), place_in_record(column, group_of(in_tiles))
            bias_row = place_in_record(np.arange(len(layer.bias)), row_group)
            if accumulates:
                of_block = block + row // 16 * in_tiles + column // 16
                weights = of_block * 256 + row % 16 * 16 + column % 16
                if number == 0:
                    of_block = bias_row // 16 * features + ones // 16
                else:
                    of_block = bias_block + bias_row // 16
                    bias_block += out_tiles
                biases = of_block * 256 + bias_row % 16 * 16 + ones % 16
                block += out_tiles * in_tiles
            else:
                if number == 0:
                    weights = row * (16 * features) + column
                else:
                    weights = matrix_at + row * (16 * in_tiles) + column
                    matrix_at += out_tiles * in_tiles * 256
                biases = (row_at + bias_row) * (16 * features) + ones
                row_at += 16 * out_tiles
            places += [(layer.weight, weights), (layer.bias, biases)]
        return places

    def gradient_places_of_pieces(self) -> list[tuple[np.ndarray, np.ndarray]]:
        """The same where a part is what fused_products.cuh writes."""
        features, first, _, outputs = self.shape.tiles
        ones = place_in_record(np.array(self.shape.num_features), group_of(features))
        starts = np.cumsum([0, *self._sizes_of_pieces()])
        in_groups = (group_of(features), 32, 32, 16)  # outputs come one tile at a time
        places = []
        for number, layer in enumerate(self.layers):
            row, column = np.indices(layer.weight.shape)
            row, column = place_in_record(row, in_groups[number + 1]), place_in_record(column, in_groups[number])
            bias_row = place_in_record(np.arange(len(layer.bias)), in_groups[number + 1])
            if number == 0:
                weights = starts[2] + row * (16 * features) + column
                biases = starts[2] + bias_row * (16 * features) + ones
            elif number == 1:
                weights, biases = row * (16 * first) + column, starts[1] + bias_row
            else:
                weights, biases = starts[3] + column * (16 * outputs) + row, starts[4] + bias_row
            places += [(layer.weight, weights), (layer.bias, biases)]
        return places

    def _sizes_of_pieces(self) -> tuple[int, ...]:
        """Of layer 2: weights and biases; of layer 1: both; of the outputs: weights, biases."""
        features, first, second, outputs = self.shape.tiles
        return 256 * second * first, 16 * second, 256 * first * features, 256 * second * outputs, 128

    def part_size_of_pieces(self) -> int:
        """Numbers of one part of the gradient, as fused_products.cuh writes it."""
        return sum(self._sizes_of_pieces())

    def part_size(self, accumulates: bool) -> int:
        """Numbers of one part of the gradient."""
        features, first, second, outputs = self.shape.tiles
        if accumulates:
            return self.shape.num_blocks * 256
        return 256 * ((first + second + outputs) * features + second * first + outputs * (second or first))


class FusedPolicy:
    """A policy's parameters in one piece of memory, and copies of them as the kernels read them.

    Its networks: one that gives outputs and value, or an actor and a critic. `policy`'s parameters become views.

    Args:
        policy: on the backend's device; see `why_not`.
        full_precision: elements are floats, to find mistakes: slow.
    """

    def __init__(self, policy: Policy, backend: Backend, full_precision: bool = False) -> None:
        self.policy = policy
        self.backend = backend
        self.element_bytes = 4 if full_precision else 2
        parameters = list(policy.parameters())
        self.numbers = {id(p): start for p, start in zip(parameters, _starts(parameters), strict=True)}
        self.parameter = torch.cat([p.detach().flatten() for p in parameters])
        for p in parameters:
            start = self.numbers[id(p)]
            p.data = self.parameter[start : start + p.numel()].view(p.shape)
        self.networks = self._find_networks()
        num_elements = sum(network.shape.num_elements for network in self.networks)
        device = backend.device
        self.elements = torch.zeros(num_elements * self.element_bytes, dtype=torch.uint8, device=device)
        self.biases = torch.zeros(sum(network.shape.num_biases for network in self.networks), device=device)
        place = np.zeros(len(self.parameter), np.int32)
        for network in self.networks:
            network.weight_places(place)
        self.weight_place = torch.as_tensor(place, device=device)
        constants = {"NUM_PARAMETERS": len(self.parameter), "FULL_PRECISION": full_precision}
        self.step_constants = constants | {
            "NUM_GROUPS": 1, "STEP_THREADS": 256, "SLICES": 4, "NUM_FIGURES": NUM_FIGURES, "NUM_FIGURE_ROWS": 1,
            "MAX_NORM": 0.0, "TARGET_KL": 0.0,
        }  # fmt: skip
        functions = FunctionManager(
            DataManager(device), KERNELS / "fused_step.cu", self.step_constants, backend=backend
        )
        blocks = -(-len(self.parameter) // 256)
        self.pack = functions.prepare(
            "pack_parameters",
            LaunchShape(blocks, (256, 1)),
            weight_place=self.weight_place,
            parameter=self.parameter,
            elements=self.elements,
            biases=self.biases,
        )
        """Brings the copies up to date, after somebody else changed the parameters."""

    @property
    def num_multiprocessors(self) -> int:
        """Of the device."""
        if self.backend.name != "cuda":
            return CPU_MULTIPROCESSORS
        return torch.cuda.get_device_properties(self.backend.device).multi_processor_count

    @property
    def max_shared_bytes(self) -> int:
        """Shared memory that a block may have."""
        return shared_bytes_of(self.backend)

    @property
    def has_warpgroups(self) -> bool:
        """Whether warps of the device multiply in fours (`wgmma`, which only sm_90a has)."""
        return self.element_bytes == 2 and self.backend.name == "cuda" and self.backend.has_warpgroups

    def blocks_at_once(self, shared_bytes: int) -> int:
        """Blocks of so much shared memory that a multiprocessor holds, two at most."""
        reserved = 1024  # of each block
        return max(1, min(2, (self.max_shared_bytes + reserved) // (shared_bytes + reserved)))

    def arrays_of(self, network: FusedNetwork) -> dict[str, torch.Tensor]:
        """What every kernel of a network takes: its weights, and what features are normalised by."""
        first = network.first_element * self.element_bytes
        norm, nothing = network.norm, self.biases[:1]
        return {
            "weights": self.elements[first : first + network.shape.num_elements * self.element_bytes],
            "biases": self.biases[network.first_bias : network.first_bias + network.shape.num_biases],
            "mean": nothing if norm is None else norm.mean,
            "variance": nothing if norm is None else norm.variance,
        }

    def _find_networks(self) -> list[FusedNetwork]:
        policy, network = self.policy, self.policy.network
        num_outputs, num_features = policy.head.num_outputs, network.trunk[0].in_features
        if network.critic_trunk is None:
            parts = [(network.trunk, [network.policy_head, network.value_head], num_outputs, True)]
        else:
            parts = [
                (network.trunk, [network.policy_head], num_outputs, False),
                (network.critic_trunk, [network.value_head], 0, True),
            ]
        found, element, bias = [], 0, 0
        for trunk, heads, outputs, has_value in parts:
            widths = tuple(len(layer.weight) for layer in trunk)
            shape = Shape(num_features, widths, outputs, has_value)
            layers = [self._layer([layer]) for layer in trunk] + [self._layer(heads)]
            found.append(FusedNetwork(shape, layers, element, bias, policy.observation_norm))
            element, bias = element + shape.num_elements, bias + shape.num_biases
        return found

    def _layer(self, linears: list[nn.Linear]) -> Layer:
        weights, biases = [], []
        for linear in linears:
            start = self.numbers[id(linear.weight)]
            weights.append(start + np.arange(linear.weight.numel()).reshape(linear.weight.shape))
            biases.append(self.numbers[id(linear.bias)] + np.arange(len(linear.bias)))
        return Layer(np.concatenate(weights), np.concatenate(biases))


def fuse(policy: Policy, backend: Backend, full_precision: bool = False) -> FusedPolicy:
    """The policy's FusedPolicy: there is one, whoever asks first."""
    if getattr(policy, "fused", None) is None:
        policy.fused = FusedPolicy(policy, backend, full_precision)
    return policy.fused


def _starts(parameters: list[nn.Parameter]) -> list[int]:
    return np.cumsum([0] + [p.numel() for p in parameters])[:-1].tolist()
