"""A policy's parameters in one piece of memory, and copies of them as the fused kernels read them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import nn

from trainers.fused.plan import NUM_FIGURES, SLICES, STEP_THREADS, Plan
from trainers.fused.seen import Seen
from trainers.fused.shape import Shape
from trainers.heads import GaussianHead
from trainers.networks.policy import Policy
from warpdrive.backends.base import Backend, LaunchShape
from warpdrive.data_manager import DataManager
from warpdrive.function_manager import Constant, FunctionManager

KERNELS = Path(__file__).resolve().parent


@dataclass
class Layer:
    """Parameters that are one layer to the kernels: rows of weights, and their biases."""

    weight: np.ndarray
    """[rows, in] numbers of the parameters."""
    bias: np.ndarray
    """[out]."""
    rows: np.ndarray
    """Of its outputs those that have weights; the others' stay 0."""


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
        parameters = list(policy.parameters())
        self.numbers = {id(p): start for p, start in zip(parameters, _starts(parameters), strict=True)}
        self.parameter = torch.cat([p.detach().flatten() for p in parameters])
        for p in parameters:
            start = self.numbers[id(p)]
            p.data = self.parameter[start : start + p.numel()].view(p.shape)
        self.networks = self._find_networks()
        num_elements = sum(shape.num_elements for shape in plan.shapes)
        device = backend.device
        self.elements = torch.zeros(num_elements * plan.element_bytes, dtype=torch.uint8, device=device)
        self.biases = torch.zeros(sum(shape.num_biases for shape in plan.shapes), device=device)
        place = np.zeros(len(self.parameter), np.int32)
        for network in self.networks:
            for layer, (weights, biases) in zip(network.layers, network.shape.places(), strict=True):
                place[layer.weight] = network.first_element + weights[layer.rows]
                place[layer.bias] = -1 - (network.first_bias + biases)
        self.weight_place = torch.as_tensor(place, device=device)
        """Where each parameter lies: an element, or -1 - a bias."""
        constants = {"NUM_GROUPS": -(-len(place) // (STEP_THREADS // SLICES)), "NUM_FIGURE_ROWS": 1}
        constants |= {"MAX_NORM": 0.0, "TARGET_KL": 0.0}
        functions = self.step_functions(constants)
        self.pack = functions.prepare(
            "pack_parameters",
            LaunchShape(-(-len(place) // 256), (256, 1)),
            weight_place=self.weight_place,
            parameter=self.parameter,
            elements=self.elements,
            biases=self.biases,
        )
        """Brings the copies up to date, after somebody else changed the parameters."""

    @property
    def precision(self) -> dict[str, Constant]:
        """What all networks of a launch share."""
        return {"FULL_PRECISION": self.plan.element_bytes == 4}

    def step_functions(self, constants: dict[str, Constant]) -> FunctionManager:
        """The kernels of fused_step.cu for these parameters; `constants` are those of an update."""
        constants = {
            "NUM_PARAMETERS": len(self.parameter),
            "STEP_THREADS": STEP_THREADS,
            "SLICES": SLICES,
            "NUM_FIGURES": NUM_FIGURES,
            **self.precision,
            **constants,
        }
        data = DataManager(self.backend.device)
        return FunctionManager(data, KERNELS / "fused_step.cu", constants, backend=self.backend)

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
        of_policy = [network.policy_head, *([head.log_std] if isinstance(head, GaussianHead) else [])]
        if network.critic_trunk is None:
            parts = [(network.trunk, [*of_policy, network.value_head])]
        else:
            parts = [(network.trunk, of_policy), (network.critic_trunk, [network.value_head])]
        found, element, bias = [], 0, 0
        for shape, (trunk, heads) in zip(self.plan.shapes, parts, strict=True):
            layers = [self._layer([layer]) for layer in trunk] + [self._layer(heads)]
            seen = self.plan.seen_by(shape)
            found.append(PackedNetwork(shape, layers, element, bias, seen, seen is self.plan.request.critic_seen))
            element, bias = element + shape.num_elements, bias + shape.num_biases
        return found

    def _layer(self, parts: list[nn.Linear | nn.Parameter]) -> Layer:
        """Of linear layers side by side; a parameter among them is outputs of its own, biases alone."""
        weights, biases, has_weights = [], [], []
        for part in parts:
            is_linear = isinstance(part, nn.Linear)
            bias = part.bias if is_linear else part
            biases.append(self.numbers[id(bias)] + np.arange(len(bias)))
            has_weights += [is_linear] * len(bias)
            if is_linear:
                start = self.numbers[id(part.weight)]
                weights.append(start + np.arange(part.weight.numel()).reshape(part.weight.shape))
        return Layer(np.concatenate(weights), np.concatenate(biases), np.flatnonzero(has_weights))


def pack(policy: Policy, plan: Plan, backend: Backend) -> PackedPolicy:
    """The policy's PackedPolicy: there is one, whoever asks first, kept as `policy.packed`."""
    if getattr(policy, "packed", None) is None:
        policy.packed = PackedPolicy(policy, plan, backend)
    return policy.packed


def _starts(parameters: list[nn.Parameter]) -> list[int]:
    return np.cumsum([0] + [p.numel() for p in parameters])[:-1].tolist()
