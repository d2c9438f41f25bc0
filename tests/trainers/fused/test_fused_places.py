"""Where the parts of a gradient have what each parameter needs, against products of the same numbers in their order."""

from __future__ import annotations

import numpy as np
import pytest

from trainers.fused.shape import Shape, place_in_record, tiles_together

SHAPES = {
    "an odd number of tiles of features": Shape(71, (256, 128), 41, True),
    "an actor": Shape(20, (128, 256), 5, False),
    "a critic": Shape(20, (256, 256), 0, True),
}


def in_order_of_records(columns: np.ndarray, together: int) -> np.ndarray:
    """[samples, tiles x 16] as a record has them."""
    ordered = np.zeros_like(columns)
    ordered[:, place_in_record(np.arange(columns.shape[1]), together)] = columns
    return ordered


def padded(columns: np.ndarray) -> np.ndarray:
    """To a multiple of 16, with a number that no gradient may hold."""
    width = -(-columns.shape[1] // 16) * 16
    return np.concatenate([columns, np.full((len(columns), width - columns.shape[1]), 1e6)], axis=1)


@pytest.mark.parametrize("name", SHAPES)
def test_pieces_hold_the_gradient_of_every_parameter(name):
    """The parts are made here of random features, hidden layers and deltas, as fused_products.cuh says it does."""
    shape, rng = SHAPES[name], np.random.default_rng(5)
    inputs = [rng.normal(size=(3, given)) for _, given in shape.layers]
    deltas = [rng.normal(size=(3, out)) for out, _ in shape.layers]
    with_ones = np.concatenate([inputs[0], np.ones((3, 1))], axis=1)
    features = in_order_of_records(padded(with_ones), tiles_together(shape.tiles[0]))
    hidden1, hidden2 = (in_order_of_records(one, 2) for one in inputs[1:])
    delta1, delta2 = (in_order_of_records(one, 2) for one in deltas[:2])
    delta_out = in_order_of_records(padded(deltas[2]), 1)
    bias3 = np.full(128, 1e6)
    bias3[: delta_out.shape[1]] = delta_out.sum(0)
    products = [delta2.T @ hidden1, delta2.sum(0), delta1.T @ features, hidden2.T @ delta_out, bias3]
    part = np.concatenate([one.flatten() for one in products])
    assert len(part) == shape.part_size("pieces")
    found = shape.gradient_places("pieces")
    for (weights, biases), given, delta in zip(found, inputs, deltas, strict=True):
        np.testing.assert_allclose(part[weights], delta.T @ given, rtol=1e-9, atol=1e-9)
        np.testing.assert_allclose(part[biases], delta.sum(0), rtol=1e-9, atol=1e-9)
