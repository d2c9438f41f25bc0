"""What a cnn takes for an image, and what its convolutions make of the size of one. Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping

from gymnasium import spaces

CONVOLUTIONS = {
    "minatar": (((16, 3, 1),), 128),
    "nature": (((32, 8, 4), (64, 4, 2), (64, 3, 1)), 512),
}
"""By `model.conv`: channels, kernel and stride of each convolution, and the width of the layer behind them.

Source: Young and Tian 2019, "MinAtar", arXiv:1903.03176; Mnih et al. 2015, "Human-level control through deep
reinforcement learning", doi:10.1038/nature14236.
"""
MOST_CHANNELS = 16
"""Of an image only three or four rows high: one with more was written channels first."""


def images_of(seen: Mapping[str, spaces.Box]) -> dict[str, tuple[int, ...]]:
    """Of the parts of an observation, the shapes of images: [height, width] or [height, width, channels]."""
    return {key: space.shape for key, space in seen.items() if len(space.shape) in (2, 3)}


def size_behind(size: int, kernel: int, stride: int) -> int:
    """Height or width of what a convolution makes of that of an image."""
    return (size - kernel) // stride + 1


def problem_of_images(conv: str, seen: Mapping[str, spaces.Box]) -> tuple[str, str] | None:
    """The key of `model:` that does not fit these parts of an observation, with what is wrong; None if a cnn can see
    them."""
    images = images_of(seen)
    if not images:
        shapes = " and ".join(str(list(space.shape)) for space in seen.values())
        return "type", (
            f"a cnn needs an image, [height, width] or [height, width, channels], and these agents observe {shapes}. "
            "Take mlp, gru or lstm."
        )
    for shape in images.values():
        height, width, *channels = shape
        if height in (1, 3, 4) and channels and min(width, *channels) > MOST_CHANNELS:
            return "type", (
                f"an image is [height, width, channels], and {list(shape)} looks as if channels came first. Observe "
                f"{[width, *channels, height]}, or take a network of your own."
            )
        for _, kernel, stride in CONVOLUTIONS[conv][0]:
            if min(height, width) < kernel:
                return "conv", (
                    f"an image {list(shape)} is too small for its convolutions: one of {kernel} x {kernel} meets "
                    f"{height} x {width}. Take model.conv: minatar, or a network of your own."
                )
            height, width = (size_behind(size, kernel, stride) for size in (height, width))
    return None
