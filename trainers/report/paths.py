"""Which code plays and learns for each policy."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trainers.trainer import Trainer


def path_of(trainer: Trainer) -> dict[str, dict[str, str | None]]:
    """Which code ran, in a word, by policy; None where it does not say."""
    return {
        "policy": {name: group.actor.path for name, group in trainer.rollout.groups.items()},
        "learner": {name: one.path for name, one in trainer.algorithms.items()},
    }


def told_paths(trainer: Trainer) -> list[str]:
    """A line a policy: what plays and learns for it, in which precision, and why nothing faster does."""
    return [f"policy {name}: {_told(trainer, name)}" for name in trainer.rollout.groups]


def _told(trainer: Trainer, name: str) -> str:
    actor, algorithm = trainer.rollout.groups[name].actor, trainer.algorithms.get(name)
    learns_alike = algorithm is not None and algorithm.path == actor.path
    found = actor.told(trainer.precision, learns_alike)
    if algorithm is not None and not learns_alike:
        found += f", {algorithm.told(trainer.precision)}"
    if algorithm is not None and algorithm.by_kernels is not None:
        found += f", {algorithm.by_kernels} by fused kernels"
    return found if actor.why is None else f"{found}: {actor.why}"
