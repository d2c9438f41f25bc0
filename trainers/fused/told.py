"""How those who play or learn by fused kernels say so."""

from __future__ import annotations

from trainers.acting.actor import Actor


class PlaysByKernels(Actor):
    """One that says so where kernels play for it."""

    def told(self, precision: str, learns: bool) -> str:
        if self.path != "fused":
            return super().told(precision, learns)
        return f"fused kernels play{' and learn' if learns else ''} in {precision}"


class LearnsByKernels:
    """Makes an algorithm's updates in its stead."""

    path = "fused"

    def told(self, precision: str) -> str:
        return f"fused kernels learn in {precision}"
