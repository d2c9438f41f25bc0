"""Gradients by warpgroups, out of rows of deltas and of what layers were given: ac_gradient_by_groups.cu alone."""

from dataclasses import dataclass

import pytest
import torch

from trainers.fused.ac_shape import SIDE, STAGE, STAGES, STEP_THREADS
from trainers.fused.packed import KERNELS
from trainers.fused.shape import to_tiles
from trainers.fused.source import in_clusters
from trainers.learning.guard import NOTHING_FOUND
from warpdrive.backends import choose_backend
from warpdrive.backends.base import LaunchShape
from warpdrive.function_manager import FunctionManager

OUTS, INS = 2 * SIDE, SIDE


@dataclass
class Layer:
    out: int
    given: int
    given_width: int
    """Columns of the rows it was given: a policy's have those of actions, too."""


LAYERS = [
    Layer(2, 30, 48), Layer(70, 17, 32), Layer(132, 70, 80), Layer(1, 132, 144), Layer(17, 4, 16), Layer(33, 100, 112),
    Layer(20, 3, 16), Layer(140, 14, 32),
]  # fmt: skip


def in_blocks(rows: torch.Tensor) -> torch.Tensor:
    """[row, column] as ac_rows.cuh keeps them for warpgroups: 64 rows after the other, in panels of 64 columns."""
    stages = rows.view(-1, 8, 8, rows.shape[1])  # of 8 times 8 rows
    panels = [one.reshape(len(stages), 8, 8, -1, 8).transpose(2, 3).flatten(1) for one in stages.split(64, -1)]
    return torch.cat(panels, 1).flatten()


class Gradients:
    """Launches the kernel for LAYERS, whose parameters lie one after the other."""

    def __init__(self, device: str, num_stages: int, parts: int, seed: int) -> None:
        self.backend = choose_backend(device=device)
        on, dtype = self.backend.device, torch.float32 if device == "cpu" else torch.bfloat16
        generator, num_rows = torch.Generator().manual_seed(seed), num_stages * STAGE

        def draw(width: int) -> torch.Tensor:
            return torch.randn(num_rows, width, generator=generator).to(dtype)

        self.delta, self.given = [draw(to_tiles(one.out)) for one in LAYERS], [draw(one.given_width) for one in LAYERS]
        self.kept = [[in_blocks(one).to(on) for one in side] for side in (self.delta, self.given)]
        tasks, start = [], 0
        for number, (layer, delta, given) in enumerate(zip(LAYERS, *self.kept, strict=True)):
            biases = start + layer.out * layer.given
            for first_out in range(0, layer.out, OUTS):
                for first_in in range(0, layer.given, INS):
                    sizes = layer.out, layer.given, to_tiles(layer.out), layer.given_width
                    places = delta.data_ptr(), given.data_ptr()
                    tasks.append((*places, *sizes, first_out, first_in, start, biases, 2 * number))
            start = biases + layer.out
        self.gradient = torch.full((start,), torch.nan, device=on)
        self.squares = torch.full((len(tasks), parts), torch.nan, device=on)
        self.halted, self.first_name = torch.zeros(1, device=on), torch.full((1,), NOTHING_FOUND, device=on)
        shared_bytes = STAGES * STAGE * (OUTS + INS) * dtype.itemsize + 1024
        constants = {
            "FULL_PRECISION": device == "cpu",
            "THREADS": STEP_THREADS,
            "PARTS": parts,
            "SHARED_BYTES": shared_bytes,
        }
        functions = FunctionManager(
            None, in_clusters((KERNELS / "ac_gradient_by_groups.cu").read_text(), parts), constants,
            backend=self.backend, include_folders=[KERNELS], name="<gradients>",
        )  # fmt: skip
        self.tasks = torch.tensor(tasks, device=on).flatten()
        self._launch = functions.prepare(
            "ac_gradient", LaunchShape(len(tasks) * parts, (STEP_THREADS, 1), shared_bytes), tasks=self.tasks,
            num_rows=num_rows, gradient=self.gradient, squares=self.squares, halted=self.halted,
            first_name=self.first_name,
        )  # fmt: skip

    def make(self) -> torch.Tensor:
        self._launch()
        self.backend.synchronize()
        return self.gradient.cpu()

    def expected(self) -> torch.Tensor:
        """By float64."""
        found = []
        for layer, delta, given in zip(LAYERS, self.delta, self.given, strict=True):
            delta, given = delta.double()[:, : layer.out], given.double()[:, : layer.given]
            found += [(delta.T @ given).flatten(), delta.sum(0)]
        return torch.cat(found)


@pytest.mark.parametrize(("num_stages", "parts"), [(1, 1), (6, 1), (17, 2), (40, 4), (83, 8)])
def test_gradients_are_products_of_what_is_there(num_stages, parts, device):
    """Of few rows, and of six to eleven stages a block, more than shared memory has room for. Columns that are padding
    are no parameters, whatever stands there."""
    if device == "cpu" and parts > 1:
        pytest.skip("there are no clusters on a CPU")
    if device != "cpu" and torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("no warpgroups here")
    gradients = Gradients(device, num_stages, parts, seed=num_stages)
    found, expected = gradients.make(), gradients.expected()
    torch.testing.assert_close(found.double(), expected, rtol=1e-4, atol=1e-4 * expected.abs().max().item())
    assert gradients.squares.sum().item() == pytest.approx(expected.square().sum().item(), rel=1e-4)
    assert gradients.first_name.item() == NOTHING_FOUND
    gradients.gradient.fill_(torch.nan)
    assert torch.equal(gradients.make(), found)


def test_what_is_not_finite_is_named_by_the_first_parameter(device):
    if device != "cpu" and torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("no warpgroups here")
    for layer, name in ((2, 4), (0, 0)):
        gradients = Gradients(device, 1, 1, seed=1)
        gradients.kept[1][layer][0] = torch.inf  # of what it was given: its weights, not its biases
        gradients.make()
        assert gradients.first_name.item() == name
