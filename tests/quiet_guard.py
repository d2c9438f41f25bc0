"""A guard for learners that stand alone: it searches nothing itself."""

from __future__ import annotations

import torch

from trainers.learning.guard import NOTHING_FOUND, GradientCheck


class QuietGuard:
    """Takes what kernels find. A gradient is shortened and a stopped iteration stands still as under the real one."""

    def __init__(self, device: torch.device, dtype: torch.dtype = torch.float32) -> None:
        self.dtype = dtype
        self.halted, self._flag = torch.zeros(2, 1, device=device)
        self.found = {
            tensor: torch.full((1,), NOTHING_FOUND, dtype=torch.int64, device=device) for tensor in ("loss", "gradient")
        }

    def flag_of(self, policy: str) -> torch.Tensor:
        return self._flag

    def place_of(self, tensor: str, policy: str) -> torch.Tensor:
        return self.found[tensor]

    def check_loss(self, policy: str, losses: torch.Tensor, index: torch.Tensor) -> None:
        pass

    def check_statistics(self, policy: str) -> None:
        pass

    def prepare_gradient(
        self, policy: str, num_parameters: int, stopped: torch.Tensor, max_norm: float, first: int = 0
    ) -> GradientCheck:
        """The real one's, by torch."""
        norms, norm, scale = (self.halted.new_zeros(number, dtype=self.dtype) for number in (num_parameters, 1, 1))
        skip = torch.zeros_like(stopped)

        def look() -> None:
            norm.copy_(norms.norm())
            scale.copy_((max_norm / (norm + 1e-6)).clamp(max=1.0))
            torch.maximum(stopped, self._flag, out=skip)

        return GradientCheck(norms, norm[0], scale[0], skip[0], look)
