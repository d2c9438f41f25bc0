"""A policy's parameters in one piece of memory, and copies of them as the fused kernels read them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import nn

from trainers.fused.cell import CellPlan
from trainers.fused.learning_plan import NUM_FIGURES, STEP_THREADS
from trainers.fused.of_replay import join_memory
from trainers.fused.plan import Plan
from trainers.fused.seen import Seen
from trainers.fused.shape import Shape, to_tiles
from trainers.heads import GaussianHead
from trainers.networks.cnn import CNN
from trainers.networks.policy import Policy
from warpdrive.backends.base import Backend, LaunchShape
from warpdrive.function_manager import Constant, FunctionManager, all_of

KERNELS = Path(__file__).resolve().parent
NORM_THREADS = 128
"""Of a block of the kernels of layer_norm.cu."""


@dataclass
class Layer:
    """Parameters that are one layer to the kernels: rows of weights, and their biases."""

    weight: np.ndarray
    """[rows, in] numbers of the parameters."""
    bias: np.ndarray
    """[out]."""
    rows: np.ndarray
    """Of its outputs those that have weights; the others' stay 0."""
    norm: tuple[np.ndarray, np.ndarray] | None = None
    """Gain and shift of a LayerNorm behind it."""


class PackedCell:
    """The weights of a recurrent unit, in the two orders in which gru.cu reads them, and their packing.

    Args:
        plan: of it, for any number of rows.
        cell: on the backend's device.
        turns: whether `turned` [3 units, inputs] elements and `turned_bias` [3 units] are those of the input, too, of
            gates n, r, z.
    """

    def __init__(self, plan: CellPlan, cell: nn.GRUCell, backend: Backend, turns: bool = False) -> None:
        weight, input_weight = cell.weight_hh.detach(), cell.weight_ih.detach()
        size = plan.element_bytes
        constants = {"UNITS": plan.units, "IN_TILES": plan.in_width // 16, "INPUTS": input_weight.shape[1]}
        constants |= {"FULL_PRECISION": size == 4, "TURNS": turns}
        functions = FunctionManager(None, KERNELS / "gru_pack.cu", constants, backend=backend)
        new = partial(torch.zeros, dtype=torch.uint8, device=weight.device)
        self.forwards, self.backwards = new(2, size * weight.numel())
        self.input_forwards, self.input_backwards = new(2, size * max(plan.input_elements, 1))
        self.turned = torch.zeros_like(input_weight if turns else input_weight[:1], dtype=elements_of(size))
        self.turned_bias = torch.zeros_like(cell.bias_ih.detach())
        self.pack = functions.prepare(
            "gru_pack",
            LaunchShape(-(-(weight.numel() + plan.input_elements) // 256), (256, 1)),
            weight=weight,
            input_weight=input_weight,
            bias=cell.bias_ih.detach(),
            forwards=self.forwards,
            backwards=self.backwards,
            input_forwards=self.input_forwards,
            input_backwards=self.input_backwards,
            turned=bytes_of(self.turned),
            turned_bias=self.turned_bias,
        )


@dataclass
class PackedNetwork:
    """One network: its shape, and which parameters its layers are made of."""

    shape: Shape
    layers: list[Layer]
    first_element: int
    first_bias: int
    seen: Seen
    is_central: bool
    """Whether it is a critic that sees the whole env, with statistics of its own."""
    norm: nn.LayerNorm | None = None
    """Of its input."""
    cell: PackedCell | None = None
    """What a recurrent unit's weights are packed for besides."""


class PackedPolicy:
    """A policy whose parameters the kernels can read: `policy`'s become views of one piece of memory.

    Its networks: one that gives outputs and value, or an actor and a critic.

    Args:
        policy: on the backend's device.
        plan: of it.
    """

    def __init__(self, policy: Policy, plan: Plan, backend: Backend) -> None:
        self.policy = policy
        self.plan = plan
        self.backend = backend
        self.compiled: dict[Path, FunctionManager] = {}
        """Kernels that several of its networks use, by their file."""
        self.parameter = join_memory(list(policy.parameters()))
        self.numbers = {id(p): p.storage_offset() for p in policy.parameters()}
        self.networks = self._find_networks()
        num_elements = sum(shape.num_elements for shape in plan.shapes)
        device = backend.device
        self.elements = torch.zeros(num_elements * plan.element_bytes, dtype=torch.uint8, device=device)
        num_biases = sum(shape.num_biases for shape in plan.shapes)
        self.biases = torch.zeros(num_biases + plan.request.norms_input, device=device)
        place = np.zeros(len(self.parameter), np.int32)
        for network in self.networks:
            for layer, (weights, biases) in zip(network.layers, network.shape.places(), strict=True):
                place[layer.weight] = network.first_element + weights[layer.rows]
                place[layer.bias] = -1 - (network.first_bias + biases)
                for number, parameters in enumerate(layer.norm or (), 1):
                    place[parameters] = place[layer.bias] - number * to_tiles(len(layer.bias))
        self.norms = InputNorms(self, place) if plan.request.norms_input else None
        self.weight_place = torch.as_tensor(place, device=device)
        """Where each parameter lies: an element, or -1 - a bias."""
        constants = {"STEP_THREADS": STEP_THREADS, "NUM_FIGURES": NUM_FIGURES, **self.precision}
        self.step_functions = FunctionManager(None, KERNELS / "fused_step.cu", constants, backend=backend)
        pack = self.step_functions.prepare(
            "pack_parameters",
            LaunchShape(-(-len(place) // 256), (256, 1)),
            weight_place=self.weight_place,
            parameter=self.parameter,
            elements=self.elements,
            biases=self.biases,
            num_parameters=len(place),
        )
        self.pack = self.then_fold(pack)
        """Brings the copies up to date, after somebody else changed the parameters."""

    def then_fold(self, call: Callable[[], None]) -> Callable[[], None]:
        """A call that writes copies, then those of `folds`."""
        return all_of([call, *self.folds])

    @property
    def folds(self) -> list[Callable[[], None]]:
        """What writes the copies of recurrent units, and those that LayerNorms are folded into."""
        found = [network.cell.pack for network in self.networks if network.cell is not None]
        return found if self.norms is None else [*found, self.norms.fold]

    @property
    def dtype(self) -> torch.dtype:
        """Of elements."""
        return elements_of(self.plan.element_bytes)

    @property
    def precision(self) -> dict[str, Constant]:
        """What all networks of a launch share."""
        return {"FULL_PRECISION": self.plan.element_bytes == 4}

    def arrays_of(self, network: PackedNetwork) -> dict[str, torch.Tensor]:
        """What every kernel of a network takes: its weights, and what features are normalised by."""
        first = network.first_element * self.plan.element_bytes
        policy, nothing = self.policy, self.biases[:1]
        norm = policy.critic_norm if network.is_central else policy.observation_norm
        return {
            "weights": self.elements[first : first + network.shape.num_elements * self.plan.element_bytes],
            "biases": self.biases[network.first_bias : network.first_bias + network.shape.num_biases],
            "mean": nothing if norm is None else norm.mean,
            "variance": nothing if norm is None else norm.variance,
        }

    def _find_networks(self) -> list[PackedNetwork]:
        network, head = self.policy.network, self.policy.head
        acts, judges = getattr(network, f"{self.policy.acts_by}_head"), getattr(network, "value_head", None)
        of_policy = [acts, *([head.log_std] if isinstance(head, GaussianHead) else [])]
        cell, critic_cell = (getattr(network, name, None) for name in ("cell", "critic_cell"))
        trunk, critic_trunk = _trunks(network)
        if critic_trunk is None:
            parts = [(trunk, cell, of_policy if judges is None else [*of_policy, judges])]
        else:
            parts = [(trunk, cell, of_policy), (critic_trunk, critic_cell, [judges])]
        found, element, bias = [], 0, 0
        for shape, (trunk, cell, heads) in zip(self.plan.shapes, parts, strict=True):
            layers, norm, packed_cell = [], None, None
            for layer in trunk:
                if isinstance(layer, (nn.Linear, nn.Conv2d)):
                    layers.append(self._layer([layer]))
                elif layers:
                    layers[-1].norm = self._numbers(layer.weight), self._numbers(layer.bias)
                else:
                    norm = layer
            if cell is not None:
                layers += [self._layer_of_cell(cell.weight_ih, cell.bias_ih, turns=True)]
                layers += [self._layer_of_cell(cell.weight_hh, cell.bias_hh, turns=False)]
                packed_cell = PackedCell(self.plan.cell(len(found), 1), cell, self.backend)
            seen = self.plan.seen_by(shape)
            is_central = seen is self.plan.request.critic_seen
            layers.append(self._layer(heads))
            found.append(PackedNetwork(shape, layers, element, bias, seen, is_central, norm, packed_cell))
            element, bias = element + shape.num_elements, bias + shape.num_biases
        return found

    def _layer_of_cell(self, weight: nn.Parameter, bias: nn.Parameter, turns: bool) -> Layer:
        """Gates r, z, n of torch's cell; as n, r, z if it `turns`."""
        rows = np.arange(len(weight))
        if turns:
            rows = np.roll(rows, len(rows) // 3)
        return Layer(self._numbers(weight)[rows], self._numbers(bias)[rows], np.arange(len(rows)))

    def _numbers(self, parameter: nn.Parameter) -> np.ndarray:
        return self.numbers[id(parameter)] + np.arange(parameter.numel()).reshape(parameter.shape)

    def _layer(self, parts: list[nn.Linear | nn.Conv2d | nn.Parameter]) -> Layer:
        """Of linear layers side by side; a parameter among them is outputs of its own, biases alone."""
        weights, biases, has_weights = [], [], []
        for part in parts:
            has_weight = not isinstance(part, nn.Parameter)
            biases.append(self._numbers(part.bias if has_weight else part))
            has_weights += [has_weight] * len(biases[-1])
            if has_weight:
                weights.append(self._numbers(part.weight).reshape(len(part.weight), -1))
        return Layer(np.concatenate(weights), np.concatenate(biases), np.flatnonzero(has_weights))


class InputNorms:
    """The LayerNorms before the first layers, which are folded into these; see layer_norm.cu.

    Args:
        packed: its networks are known.
        place: of each parameter. From now on those that are folded have a place that nobody reads.
    """

    def __init__(self, packed: PackedPolicy, place: np.ndarray) -> None:
        device, norms, places = packed.parameter.device, [], []
        self.num_rows = self.num_columns = at = 0
        for network in packed.networks:
            first, numbers = network.layers[0], packed.numbers
            gain, shift = numbers[id(network.norm.weight)], numbers[id(network.norm.bias)]
            (num_out, num_in), size = first.weight.shape, network.shape.num_features
            starts = (first.weight.flat[0], first.bias[0], gain, shift)
            norms.append((*starts, num_out, num_in, at, self.num_rows, self.num_columns))
            places += [place[first.weight].flatten(), -1 - place[first.bias]]
            place[first.weight] = place[first.bias] = -len(packed.biases)
            place[gain : gain + size] = place[shift : shift + size] = -len(packed.biases)
            at, self.num_rows = at + num_out * (num_in + 1), self.num_rows + num_out
            self.num_columns += num_in
        self.norms = torch.tensor(norms, dtype=torch.int32, device=device)
        self.place = torch.as_tensor(np.concatenate(places), device=device)
        constants = {"NUM_NORMS": len(norms), "THREADS": NORM_THREADS, **packed.precision}
        self._parameter = packed.parameter
        self._functions = FunctionManager(None, KERNELS / "layer_norm.cu", constants, backend=packed.backend)
        self.fold = self._functions.prepare(
            "fold_norms",
            LaunchShape(-(-self.num_rows // (NORM_THREADS // 32)), (NORM_THREADS, 1)),
            norms=self.norms,
            place=self.place,
            parameter=packed.parameter,
            elements=packed.elements,
            biases=packed.biases,
            num_rows=self.num_rows,
        )

    def prepare_unfold(self, gradient: torch.Tensor) -> Callable[[], None]:
        """Makes the gradient of what is folded that of all parameters."""
        launch_shape = LaunchShape(self.num_columns, (NORM_THREADS, 1))
        given = {"norms": self.norms, "parameter": self._parameter, "gradient": gradient}
        return self._functions.prepare("unfold_gradient", launch_shape, **given)


def pack(policy: Policy, plan: Plan, backend: Backend) -> PackedPolicy:
    """The policy's PackedPolicy: there is one, whoever asks first, kept as `policy.packed`."""
    if getattr(policy, "packed", None) is None:
        policy.packed = PackedPolicy(policy, plan, backend)
    return policy.packed


def _trunks(network: nn.Module) -> list[Iterable[nn.Module] | None]:
    """The layers before the last, of the actor and of a critic that has its own."""
    if not isinstance(network, CNN):
        return [network.trunk, network.critic_trunk]
    encoders = network.encoder, network.critic_encoder
    return [one and one.layers_of(0) for one in encoders]


def elements_of(element_bytes: int) -> torch.dtype:
    """The dtype of elements of so many bytes."""
    return torch.float32 if element_bytes == 4 else torch.bfloat16


def bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    """Its elements as kernels take them."""
    return tensor.reshape(-1).view(torch.uint8)
