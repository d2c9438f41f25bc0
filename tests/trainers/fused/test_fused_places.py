"""Where the parts of a gradient have what each parameter needs, against products of the same numbers in their order."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from fused_cases import Case, make_policy

from trainers.fused.network import fuse, group_of, place_in_record
from warpdrive.backends import choose_backend

CASES = {
    "an odd number of tiles of features": Case(71, (256, 128), (21, 20)),
    "a critic of its own": Case(20, (128, 256), (5,), critic_widths=(256, 256)),
}


def in_order_of_records(columns: np.ndarray, group: int) -> np.ndarray:
    """[samples, tiles x 16] as a record has them."""
    ordered = np.zeros_like(columns)
    ordered[:, place_in_record(np.arange(columns.shape[1]), group)] = columns
    return ordered


def padded(columns: np.ndarray) -> np.ndarray:
    """To a multiple of 16, with a number that no gradient may hold."""
    width = -(-columns.shape[1] // 16) * 16
    return np.concatenate([columns, np.full((len(columns), width - columns.shape[1]), 1e6)], axis=1)


@pytest.mark.parametrize("name", CASES)
def test_pieces_hold_the_gradient_of_every_parameter(name):
    """The parts are made here of random features, hidden layers and deltas, as fused_products.cuh says it does."""
    fused = fuse(make_policy(CASES[name]), choose_backend(device="cpu"))
    rng = np.random.default_rng(5)
    found = np.full(len(fused.parameter), np.nan)
    for network in fused.networks:
        shape = network.shape
        inputs = [rng.normal(size=(3, width)) for width in (shape.num_features, *shape.widths)]
        deltas = [rng.normal(size=(3, len(layer.bias))) for layer in network.layers]
        with_ones = np.concatenate([inputs[0], np.ones((3, 1))], axis=1)
        features = in_order_of_records(padded(with_ones), group_of(shape.tiles[0]))
        hidden1, hidden2 = (in_order_of_records(one, 32) for one in inputs[1:])
        delta1, delta2 = (in_order_of_records(one, 32) for one in deltas[:2])
        delta_out = in_order_of_records(padded(deltas[2]), 16)
        bias3 = np.full(128, 1e6)
        bias3[: delta_out.shape[1]] = delta_out.sum(0)
        products = [delta2.T @ hidden1, delta2.sum(0), delta1.T @ features, hidden2.T @ delta_out, bias3]
        part = np.concatenate([one.flatten() for one in products])
        assert len(part) == network.part_size_of_pieces()
        for numbers, places in network.gradient_places_of_pieces():
            found[numbers] = part[places]
        for layer, given, delta in zip(network.layers, inputs, deltas, strict=True):
            np.testing.assert_allclose(found[layer.weight], delta.T @ given, rtol=1e-9, atol=1e-9)
            np.testing.assert_allclose(found[layer.bias], delta.sum(0), rtol=1e-9, atol=1e-9)
    assert torch.isfinite(torch.as_tensor(found)).all()
