"""Distributions over actions: what a network's last layer means."""

from __future__ import annotations

from typing import Any

from trainers.heads.categorical import MASKED, CategoricalHeads, split_heads
from trainers.heads.gaussian import GaussianHead
from trainers.heads.squashed import SquashedGaussianHead, SquashedHead, TanhHead, has_bounds
from warpdrive.errors import EnvError

__all__ = ["MASKED", "CategoricalHeads", "GaussianHead", "Head", "SquashedGaussianHead", "SquashedHead", "TanhHead",
           "make_head", "split_heads"]  # fmt: skip

Head = CategoricalHeads | GaussianHead | SquashedHead


def make_head(space: Any, log_std_init: float = 0.0, squashes: bool = False) -> Head:
    """The head for an action space, known by its shape: Discrete has `n`, MultiDiscrete `nvec`, Box `low`.

    Raises:
        EnvError: no head acts in such a space.
    """
    if hasattr(space, "nvec") and space.nvec.ndim == 1:
        return CategoricalHeads(space.nvec)
    if hasattr(space, "n"):
        return CategoricalHeads([space.n])
    if hasattr(space, "low") and len(space.shape) == 1 and space.dtype.kind == "f":
        if squashes and not has_bounds(space):
            raise EnvError("squash_actions: a number of the action has no bound to be squashed into. Leave it out.")
        return GaussianHead(space, log_std_init, squashes)
    shape = f" of shape {list(space.shape)}" if getattr(space, "shape", None) else ""
    shape += f", {space.dtype}" if hasattr(space, "low") else ""
    raise EnvError(
        f"no policy here acts in a {type(space).__name__}{shape}. "
        "Actions are Discrete, MultiDiscrete [heads] or Box [n] of floats."
    )
