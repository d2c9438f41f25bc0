"""R2D2's loss by a kernel (r2d2_loss.cu), in place of some eighty launches of torch."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import torch

from trainers.fused.packed import KERNELS
from warpdrive.backends.base import LaunchShape
from warpdrive.function_manager import FunctionManager

if TYPE_CHECKING:
    from trainers.algorithms.r2d2 import R2D2
    from trainers.replay.of_group import SampledSequences

THREADS = 256
"""Of a block."""


class SequenceLoss:
    """What a learner's networks say of sequences becomes derivatives and priorities.

    by_q, priority, figures = loss(q, target_q, batch)
    """

    FIGURES = ("loss", "q_mean", "td_error")
    """As the kernel writes them."""

    def __init__(self, learner: R2D2) -> None:
        self.learner, self.backend = learner, learner.group.rollout.env.backend
        new = partial(torch.zeros, device=learner.device)
        self._sums, self._ticket = new(learner.batch_size * len(self.FIGURES)), new(1, dtype=torch.int32)
        self._nothing, self._no_mask = new(1), new(1, dtype=torch.bool)
        self._functions: FunctionManager | None = None

    def __call__(
        self, q: torch.Tensor, target_q: torch.Tensor, batch: SampledSequences
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """
        Args:
            q, target_q: [L + n_step, N, actions] of the network and of the target network.
        Returns:
            The derivatives of this rank's part of the mean loss by `q`; [N], what sequences are drawn again by; [3],
            this rank's part of FIGURES.
        """
        learner, config, number = self.learner, self.learner.config, self._nothing
        if learner.world.size > 1:
            number = learner.number_of(learner.weight_of(batch).sign()).view(1)
        if self._functions is None:
            self._functions = self._compiled(q.shape[-1], batch.mask is not None)
        by_q, priority, figures = q.new_empty(q.shape), torch.empty_like(batch.weight), q.new_empty(len(self.FIGURES))
        self._functions.prepare(
            "r2d2_loss", LaunchShape(learner.batch_size, (THREADS, 1)), q=q.contiguous(),
            target_q=target_q.contiguous(), mask=self._no_mask if batch.mask is None else batch.mask.contiguous(),
            action=batch.action, reward=batch.reward, discount=batch.discount, bootstrap=batch.bootstrap,
            valid=batch.valid, weight=batch.weight, number_of_all=number,
            rescaling=float(config.value_rescaling or 0.0), eta=float(config.eta), by_q=by_q, error=priority,
            sums=self._sums, ticket=self._ticket, figures=figures,
        )()  # fmt: skip
        return by_q, priority, figures

    def _compiled(self, num_actions: int, has_mask: bool) -> FunctionManager:
        learner, config = self.learner, self.learner.config
        constants = {
            "NUM": learner.batch_size, "BURN_IN": config.burn_in, "LENGTH": config.length,
            "ROWS": config.length + config.n_step, "NUM_ACTIONS": num_actions, "THREADS": THREADS,
            "DOUBLE": config.double, "HAS_MASK": has_mask, "RESCALES": config.value_rescaling is not None,
            "IS_OF_RANKS": learner.world.size > 1, "HUBER_DELTA": float(config.huber_delta or 0.0),
        }  # fmt: skip
        constants["FULL_PRECISION"] = True  # nothing here is of elements
        return FunctionManager(None, KERNELS / "r2d2_loss.cu", constants, backend=self.backend)
