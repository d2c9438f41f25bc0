"""Bytes that the fused kernels' arrays take, before there are any; see network.py and learner.py, which make them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from trainers.experience.spec import GroupSpec
from trainers.fused import network
from trainers.fused.gradient import MAX_BLOCKS_A_WARP, MAX_WIDTH_OF_TWO_TILES
from trainers.fused.learner import MAX_RECORDS
from trainers.heads import CategoricalHeads, Head
from trainers.settings.config import Config, PolicyConfig
from warpdrive.layout import Layout

NUM_MULTIPROCESSORS = 132
"""Of a large GPU: every one has some blocks, each with a part of the gradient."""
BYTES_OF_PARAMETER = 4 + 21 + 4
"""Gradient, where its parts are, and Adam's norm."""


def is_fused(config: Config, policy: PolicyConfig, layout: Layout, places: GroupSpec, head: Head, device: str) -> bool:
    """Whether fused kernels will play and learn for a policy: `network.why_not`, before there is one."""
    model = policy.model
    trunks = [model.fc_dims] if model.shared_trunk else [model.fc_dims, model.critic_fc_dims or model.fc_dims]
    return (
        config.trainer.precision == "bf16"
        and (device == "cuda" or network.RUNS_ON_CPU)
        and model.type == "mlp"
        and not model.layer_norm
        and all(1 <= len(widths) <= 2 and max(widths) <= network.MAX_WIDTH for widths in trunks)
        and isinstance(head, CategoricalHeads)
        and network.outputs_fit(head.num_outputs, network.CPU_SHARED_BYTES)  # those of a large GPU
        and not policy.central_critic
        and not policy.agent_id
        and len(places.seen) == 1
        and layout.observations[places.seen[0].array].dtype == np.float32
    )


def shapes_of(
    num_features: int, widths: Sequence[int], critic_widths: Sequence[int], head: Head
) -> list[network.Shape]:
    """Of a policy's one network; or, with `critic_widths`, of its actor and its critic."""
    if not critic_widths:
        return [network.Shape(num_features, tuple(widths), head.num_outputs, True)]
    actor = network.Shape(num_features, tuple(widths), head.num_outputs, False)
    return [actor, network.Shape(num_features, tuple(critic_widths), 0, True)]


def learner_bytes(
    shapes: Sequence[network.Shape], num_samples: int, num_epochs: int, num_minibatches: int, num_parameters: int
) -> dict[str, int]:
    """By what holds them: the order of the samples, records, parts of the gradient and the rest."""
    minibatch = -(-num_samples // num_minibatches)
    fits = [_accumulates(shape) for shape in shapes]
    chunk = minibatch if all(fits) else min(minibatch, MAX_RECORDS)
    num_chunks = -(-minibatch // chunk)
    records = parts = 0
    for shape, accumulates in zip(shapes, fits, strict=True):
        features, first, second, outputs = shape.tiles
        if accumulates:
            blocks = min(2 * NUM_MULTIPROCESSORS // len(shapes), -(-chunk // (16 * network.WARPS)))
            parts += 4 * 256 * shape.num_blocks * blocks * num_chunks
        else:
            records += 2 * chunk * sum(shape.widths_of_record)
            sums = (first + second + outputs) * features + second * first + outputs * (second or first)
            parts += 4 * 256 * sums * num_chunks
    has_order = num_epochs * num_minibatches > 1
    return {
        "order of samples": 4 * num_samples * num_epochs if has_order else 4,
        "records": records,
        "parts of the gradient": parts,
        "gradient": BYTES_OF_PARAMETER * num_parameters,
    }


def _accumulates(shape: network.Shape) -> bool:
    """Whether blocks sum the gradient up in registers; see gradient.NetworkGradient."""
    row_tiles = 2 if max(shape.widths) <= MAX_WIDTH_OF_TWO_TILES else 1
    tile_bytes = 16 * network.WARPS * row_tiles * 2 * shape.shared_pitch(2)
    fits = shape.stage_bytes(row_tiles) + tile_bytes + 2 * shape.num_elements <= network.CPU_SHARED_BYTES
    return fits and -(-shape.num_blocks // network.WARPS) <= MAX_BLOCKS_A_WARP
