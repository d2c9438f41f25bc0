"""Q-learning by fused kernels where a network has no room in a block: an update is three launches (wide_q.cu,
ac_gradient.cu and ac_step.cu)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from trainers.fused.ac_learner import OF_CRITICS, ByRows, Learned
from trainers.fused.ac_shape import PADDING, ACShape, shared_out, two
from trainers.fused.limits import Limits
from trainers.fused.of_replay import join_memory
from trainers.fused.packed import bytes_of
from trainers.fused.shape import to_tiles
from warpdrive.function_manager import Constant

if TYPE_CHECKING:
    from trainers.algorithms.algorithm import Figures
    from trainers.algorithms.dqn import DQN

FIGURES = ("loss", "q_mean", "td_error", "grad_norm")
"""Of an update, as the step writes them."""


@dataclass(frozen=True)
class WideQShape(ACShape):
    """A Q-network, which to the kernels is one critic without a policy."""

    num_actions: int = 0

    @property
    def critic(self) -> list[tuple[int, int]]:
        widths = (self.num_features, *self.critic_widths, self.num_actions)
        return list(zip(widths[1:], widths[:-1], strict=True))

    @property
    def actor(self) -> list[tuple[int, int]]:
        return []

    @property
    def shared_bytes(self) -> int:
        """Of a block of wide_q.cu: at least what it asks for."""
        seen, actions = (to_tiles(width) + PADDING for width in (self.num_features, self.num_actions))
        hidden = sum(to_tiles(width) + PADDING for width in two(self.critic_widths))
        elements = self.rows * (2 * (seen + hidden) + actions)
        return self.element_bytes * elements + 4 * 3 * (self.rows * self.num_actions + self.threads // 32) + 128

    def constants(self) -> dict[str, Constant]:
        nobody = {"HAS_POLICY": False, "ACTOR_WIDTH1": 1, "ACTOR_WIDTH2": 0}
        return {**super().constants(), **nobody, "CRITIC_OUTPUTS": self.num_actions}


def plan_wide_q(
    widths: Sequence[int], batch: int, limits: Limits, element_bytes: int, is_plain: bool
) -> WideQShape | str:
    """How the kernels make a learner's updates; or in words why they cannot.

    Args:
        widths: of the features, the hidden layers and the actions.
        is_plain: whether what was drawn is read where it lies; see Drawn.
    """
    num_features, *hidden, num_actions = widths
    sizes = 1, batch, 16, 1, element_bytes, is_plain
    found = WideQShape(num_features, 0, (), tuple(hidden), *sizes, num_actions=num_actions)
    if max(found.shared_bytes, found.step_shared_bytes) > limits.shared_bytes:
        return "the network's layers do not fit the shared memory of a block"
    return shared_out(found, limits)


class WideQLearner(ByRows):
    """Updates of a Q-network."""

    def __init__(self, learner: DQN, shape: WideQShape) -> None:
        config, batch = learner.config, learner.batch
        own = {"DOUBLE": config.double, "HUBER_DELTA": float(config.huber_delta or 0.0)}
        own["HAS_MASK"] = batch.next_mask is not None
        super().__init__(learner, shape, "wide_q.cu", own)
        new, drawn, stepped = self._new, self._drawn, self._stepped
        mask = new(1, dtype=torch.bool) if batch.next_mask is None else batch.next_mask
        self._figures = new(len(OF_CRITICS))
        compiled = shape, self._gradients, self._step
        learned = self.learned = Learned(learner.optimizer, shape.critic, self._seen, 1, *compiled)
        target = join_memory(list(learner.target.parameters()))
        nobody = {"actor_target": self._nothing, "actor_addresses": new(1, dtype=torch.int64)}
        self.prepare_targets(learned, target=target, **nobody)
        judge = self._rows.prepare(
            "wide_q_judge", self._by_rows, **self._networks, **learned.hidden_rows(), **learned.delta_rows(),
            observation=drawn.observation, next_observation=drawn.next_observation, action=batch.action,
            reward=batch.reward, discount=batch.discount, weight=drawn.weight, next_mask=mask,
            adam_steps=learned.adam.steps, steps=stepped["steps"], seen=bytes_of(self._seen), error=self._error,
            sums=learned.sums,
        )  # fmt: skip
        step = learned.prepare_step(
            "ac_step_critics", **stepped, lr=learner.scalars["lr"].view(1), target=target, figures=self._figures,
            follows=self.follows_within,
        )  # fmt: skip
        self._calls = [judge, learned.prepare_gradient(**self._flags), step]

    def learn(self) -> Figures:
        self._drawn.draw()
        for call in self._calls:
            call()
        self.learner.keep_errors(self._error)
        return dict(zip(FIGURES, self._figures.unbind(), strict=True))
