"""Products of the records of warpgroups, as a GPU makes them: here by a CPU, whose threads multiply for themselves."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from fused_cases import BF16

import trainers.fused.source
from trainers.fused.limits import LARGE_GPU
from trainers.fused.plan import Request, plan
from trainers.fused.shape import STAGE_ROWS, place_in_record, tiles_together, to_tiles
from trainers.fused.source import compile_fused
from warpdrive.backends.cpu import CpuBackend
from warpdrive.function_manager import FunctionManager

OF_GROUP = {"GROUP_SIZE": 1, "FIRST_AGENT": 0, "ALL_AGENTS": 1, "SEEN_COLUMNS": 1, "FIRST_SEEN": 0, "HAS_MASK": False}
EMULATED = Path(__file__).with_name("emulated_warpgroup.cuh")


def in_tiles(columns: torch.Tensor, together: int) -> torch.Tensor:
    """[samples, columns] as records have them, up to whole tiles: [block of 64 samples, column / 8, 64, 8]."""
    ordered = torch.zeros(len(columns), to_tiles(columns.shape[1]))
    ordered[:, place_in_record(np.arange(columns.shape[1]), together)] = columns
    return ordered.view(-1, STAGE_ROWS, ordered.shape[1] // 8, 8).transpose(1, 2)


@pytest.mark.parametrize(
    "request_",
    [
        Request(71, (256, 256), (21, 20)),
        Request(100, (128, 256), (5,)),
        Request(40, (256, 128), (50,)),
        Request(60, (128, 128), (100,)),
    ],
    ids=["wide, many outputs", "many features", "wide before narrow", "more outputs than a warpgroup has rows"],
)
def test_products_of_records_are_the_gradient_of_every_parameter(request_, monkeypatch):
    """Of 1,024 samples, by eight blocks, which go through more than their stages hold at once. The second launch adds
    the first 64 once more. What no launch writes is 0, all else is a NaN before."""
    limits = LARGE_GPU.within(8)
    (one,) = plan(request_, limits, BF16).learning(1024, 1, 1).networks
    shape, products = one.shape, one.products
    assert one.way == "pieces" and not products.constants["MAKES"]
    generator = torch.Generator().manual_seed(3)

    def draw(width: int) -> torch.Tensor:
        return torch.randn(1024, width, generator=generator).bfloat16().float()

    inputs, deltas = [draw(given) for _, given in shape.layers], [draw(out) for out, _ in shape.layers]
    with_ones = torch.cat([inputs[0], torch.ones(1024, 1)], dim=1)
    together = [tiles_together(shape.tiles[0]), 2, 2, 2, 2, 1]
    record = [in_tiles(*both) for both in zip((with_ones, *inputs[1:], *deltas), together, strict=True)]
    records = torch.cat(record, dim=1).bfloat16().contiguous().flatten().view(torch.uint8)

    class Emulated(FunctionManager):
        def __init__(self, data: None, text: str, *given: object, **named: object) -> None:
            lines = f"#define EMULATED_BYTES {products.shared_bytes}\n{text}"
            super().__init__(data, lines.replace('"warpgroup.cuh"', f'"{EMULATED}"'), *given, **named)

    monkeypatch.setattr(trainers.fused.source, "FunctionManager", Emulated)
    products.constants.update(OF_GROUP)
    backend = CpuBackend(num_threads=1)
    functions, launch_shape = compile_fused("products", [products], {"FULL_PRECISION": False}, 1, None, backend)
    parts, nothing = torch.full((one.num_parts, one.part_size), torch.nan), torch.zeros(16, dtype=torch.uint8)
    places = shape.gradient_places("pieces")
    for found in (*places[0], places[2][1]):  # of layer 1, and the outputs' biases
        parts[products.constants["SHARES1"] :, found] = 0.0
    counts = torch.ones(1024, 1, dtype=torch.float64)
    for num_tiles in (1024 // STAGE_ROWS, 1):
        given = {"num_tiles": num_tiles, "goes_on": num_tiles == 1, "weights_0": nothing, "biases_0": torch.zeros(1)}
        functions.prepare("products", launch_shape, **given, records_0=records, parts_0=parts)()
        if num_tiles == 1:  # tiles are counted from the end of so many: this is the first
            counts[:STAGE_ROWS] += 1
        found = parts.double().sum(0)
        for (weights, biases), x, delta in zip(places, inputs, deltas, strict=True):
            counted = delta.double() * counts
            torch.testing.assert_close(found[weights], counted.T @ x.double(), rtol=1e-4, atol=1e-3)
            torch.testing.assert_close(found[biases], counted.sum(0), rtol=1e-4, atol=1e-3)
