"""Convolutions of bits: what the kernels make of images, and their gradients, against torch's in float64."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import torch
from fused_cases import BF16, FULL
from gymnasium import spaces

import trainers.fused.conv_shape
from trainers.fused.convolution import ConvGradient
from trainers.fused.launch import side_by_side
from trainers.fused.packed import pack
from trainers.fused.plan import Limits, Request, plan
from trainers.fused.seen import Seen, Source
from trainers.heads import CategoricalHeads
from trainers.networks.cnn import CNN
from trainers.networks.features import Inputs
from trainers.networks.policy import Policy
from trainers.settings.config import ModelConfig, PolicyConfig
from warpdrive.backends.base import Backend


@dataclass(frozen=True)
class Case:
    """A network, the agents of an env that see by it, and the samples that it learns from at once."""

    image: tuple[int, ...]
    dense: int
    outputs: int
    num_rows: int
    activation: str = "relu"
    num_agents: int = 1
    norms: bool = False
    """Whether a LayerNorm stands before each activation."""
    num_multiprocessors: int = 1
    """So few that a block has two tiles of rows; so many that several share the samples."""


CASES = {
    "a word a row, two shares": Case((4, 4, 3), 24, 3, 37, norms=True, num_multiprocessors=8),
    "tanh, odd bits, an agent of three": Case((5, 3, 3), 24, 17, 21, "tanh", num_agents=3, norms=True),
    "one channel": Case((3, 5), 40, 2, 16),
    "many channels": Case((3, 4, 10), 16, 5, 50),
}
OF_GPUS = {
    "minatar": Case((10, 10, 4), 128, 6, 3000, num_multiprocessors=132),
    "seaquest": Case((10, 10, 10), 128, 6, 99, norms=True),
    "clusters of four": Case((10, 10, 4), 128, 3, 99, norms=True, num_multiprocessors=132),
    "clusters of two": Case((10, 10, 4), 120, 3, 99, "tanh", num_multiprocessors=14),
}
CLUSTERS = {"clusters of four": 4, "clusters of two": 2, "a word a row, two shares": 2}
"""Blocks that share the places of the same images, on a GPU that has clusters."""


def make_policy(case: Case) -> Policy:
    """On the CPU; biases are not 0."""
    generator = torch.Generator().manual_seed(3)
    norms = "hidden" if case.norms else False
    model = ModelConfig(
        type="cnn", dense_dim=case.dense, activation=case.activation, shared_trunk=True, layer_norm=norms
    )
    seen = {"": spaces.Box(0, 1, case.image, bool)}
    head = CategoricalHeads((case.outputs,))
    network = CNN(model, Inputs(0, None, seen), {"policy": case.outputs, "value": 1}, generator)
    with torch.no_grad():
        for name, parameter in network.named_parameters():
            if name.endswith("bias") or "head" in name or parameter.dim() == 1:
                parameter += torch.empty_like(parameter).normal_(0.0, 0.3, generator=generator)
    return Policy(network, head, PolicyConfig(model=model), 0, None)


class Learned:
    """What the kernels make of random images and of random derivatives by the outputs, and what torch does."""

    def __init__(self, case: Case, backend: Backend, precision: str) -> None:
        policy, device = make_policy(case), backend.device
        exact = make_policy(case).double()
        size = torch.zeros(case.image).numel()
        source = Source("observation", torch.bool, size, case.num_agents * size, size, size * (case.num_agents - 1))
        source = replace(source, stride=0)  # each env's last agent
        request = Request(
            size, (case.dense,), (case.outputs,), network=CNN, activation=case.activation, seen=Seen((source,)),
            shapes_seen=(case.image,), norms_hidden=case.norms,
        )  # fmt: skip
        limits = replace(Limits.of(backend), num_multiprocessors=case.num_multiprocessors)
        found = plan(request, limits, precision)
        packed = pack(policy.to(device), found, backend)
        packed.pack()
        learning = found.learning(case.num_rows, 2, 1)
        (of_network,), (network,) = learning.networks, packed.networks
        self.num_splits = of_network.num_parts
        parts = torch.full((of_network.size_of_parts,), float("nan"), device=device)
        gradient = ConvGradient(of_network, network, parts)
        gradient.prepare(packed, learning, {"GROUP_SIZE": 1, "HAS_ORDER": True})
        self.cluster = gradient._made.how.cluster
        generator = torch.Generator().manual_seed(5)
        images = torch.rand(case.num_rows + 3, case.num_agents, *case.image, generator=generator) < 0.3
        order = torch.randperm(case.num_rows + 3, generator=generator)  # of which all but the first are learned
        arrays = {"seen0": images.to(device), "order": order.int().to(device)}
        (forward,) = side_by_side([gradient.prepare_before(case.num_rows, 1, arrays)])
        forward()
        self.outputs = self.in_order(gradient._made.outputs[: case.num_rows].cpu().double(), case) + torch.cat(
            [exact.network.policy_head.bias, exact.network.value_head.bias]
        ).detach()
        delta = torch.randn(case.num_rows, case.outputs + 1, generator=generator).bfloat16()
        width = gradient._made.outputs.shape[1]
        columns = torch.as_tensor(place_of_outputs(case))
        given = torch.zeros(of_network.record_rows, width)
        given[: case.num_rows, columns] = delta.float()
        given[case.num_rows :] = float("nan")  # of rows that are none
        made = given.to(device, torch.float32 if precision == FULL else torch.bfloat16)
        gradient._made.delta.copy_(made.view(-1).view(torch.uint8))
        for backward in gradient.prepare_after(0, case.num_rows):
            backward()
        self.gradient = torch.full((len(packed.parameter),), float("nan"), dtype=torch.float64)
        whole = parts.cpu().double()
        for one in gradient.places():
            places = torch.as_tensor(one.places).flatten()
            every = places + one.stride * torch.arange(one.num_parts).unsqueeze(1)
            self.gradient[torch.as_tensor(one.parameters).flatten()] = whole[every].sum(0)
        rows = images[order[1 : case.num_rows + 1], case.num_agents - 1]
        self.expected_outputs, self.expected = outputs_and_gradient(exact, rows, delta)
        with torch.autocast("cpu", torch.bfloat16):
            _, by_torch = outputs_and_gradient(make_policy(case), rows, delta)
        self.away = {name: away(by_torch[name].double(), exact) for name, exact in self.expected.items()}
        """How far torch's bf16 is from float64."""

    @staticmethod
    def in_order(outputs: torch.Tensor, case: Case) -> torch.Tensor:
        return outputs[:, torch.as_tensor(place_of_outputs(case))]


def outputs_and_gradient(
    policy: Policy, rows: torch.Tensor, delta: torch.Tensor
) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    found = policy.network({"": rows})
    outputs = torch.cat([found["policy"], found["value"]], dim=1)
    names, parameters = zip(*policy.named_parameters(), strict=True)
    gradient = torch.autograd.grad((outputs * delta.to(parameters[0].dtype)).sum(), parameters)
    return outputs, {name: one.flatten() for name, one in zip(names, gradient, strict=True)}


def away(one: torch.Tensor, exact: torch.Tensor) -> float:
    return ((one - exact).norm() / exact.norm()).item()


def place_of_outputs(case: Case) -> list[int]:
    """Column 8 j + 2 t + i of 16 stands at 4 t + 2 j + i."""
    return [n - n % 16 + n % 8 // 2 * 4 + n % 16 // 8 * 2 + n % 2 for n in range(case.outputs + 1)]


@pytest.mark.parametrize("precision", [FULL, BF16])
@pytest.mark.parametrize("name", [*CASES, *OF_GPUS])
def test_outputs_and_gradient_are_torchs(name, precision, backend, monkeypatch):
    case = {**CASES, **OF_GPUS}[name]
    if backend.name == "cpu" and (name in OF_GPUS or (precision == BF16 and case.num_agents == 1)):
        pytest.skip("a CPU, where lanes exchange what tensor cores multiply, takes long")
    monkeypatch.setattr(trainers.fused.conv_shape, "BACK_TILES", (4,) if name in OF_GPUS else (2,))
    found = Learned(case, backend, precision)
    num_splits = {"a word a row, two shares": 2, "minatar": 16, "clusters of four": 2}
    assert found.num_splits == num_splits.get(name, 1)
    has_clusters = backend.name == "cuda" and torch.cuda.get_device_capability() >= (9, 0)
    assert found.cluster == (CLUSTERS.get(name, 1) if has_clusters else 1)
    tolerance = 1e-5 if precision == FULL else 2e-2
    scale = found.expected_outputs.abs().max().item()
    torch.testing.assert_close(found.outputs, found.expected_outputs.detach(), rtol=0, atol=tolerance * scale)
    start = 0
    for key, expected in found.expected.items():
        mine = found.gradient[start : start + len(expected)]
        start += len(expected)
        # in bf16 a sum of a few thousandths that rounds to the other side of 0 has another slope, for torch as well
        most = 1e-5 if precision == FULL else 2 * found.away[key] + 0.01
        assert away(mine, expected) <= most, key
    assert start == len(found.gradient)
