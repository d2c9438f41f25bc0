"""torch's linear layer, whose bias costs little on the way back where a GPU has many rows of few features."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.autograd.function import once_differentiable

MANY_ROWS = 4096
"""From so many on torch's sum over a bias's gradients, apart from all products, takes longer than they do."""


class Linear(nn.Linear):
    """torch's. On a GPU the gradients of many narrow rows' weights and bias are one product."""

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        """features [..., in_features] -> [..., out_features]."""
        if features.is_cuda and torch.is_grad_enabled() and self._is_better_by_one_product(features):
            return OneProduct.apply(features, self.weight, self.bias)
        return super().forward(features)

    def _is_better_by_one_product(self, features: torch.Tensor) -> bool:
        """Rows are copied for it, beside a one each: where they are wide, that costs what it saves."""
        is_narrow = 2 * self.in_features <= self.out_features
        is_plain = features.dtype == self.weight.dtype and not torch.is_autocast_enabled("cuda")
        many = features.dim() == 2 and len(features) >= MANY_ROWS
        return is_narrow and is_plain and many and not torch.compiler.is_compiling()


class OneProduct(torch.autograd.Function):
    """features [N, in], weight [out, in], bias [out] -> [N, out]."""

    @staticmethod
    def forward(ctx: Any, features: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(features, weight)
        return nn.functional.linear(features, weight, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, by_output: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        features, weight = ctx.saved_tensors
        by_both = by_output.t() @ nn.functional.pad(features, (0, 1), value=1.0)
        return by_output @ weight if ctx.needs_input_grad[0] else None, by_both[:, :-1], by_both[:, -1]
