"""Q-learning by fused kernels where a network has no room in a block: an update is three launches (wide_q.cu and
ac_step.cu)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import torch

from trainers.fused.ac_learner import OF_CRITICS, Learned, bytes_of, compile_kernels, elements_of
from trainers.fused.ac_shape import MOST_ROWS, PADDING, ACShape, two, with_parts
from trainers.fused.limits import Limits
from trainers.fused.of_replay import Drawn, join_memory
from trainers.fused.shape import to_tiles
from warpdrive.backends.base import LaunchShape
from warpdrive.function_manager import Constant

if TYPE_CHECKING:
    from trainers.algorithms.algorithm import Clock, Figures
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
        elements = self.rows * (2 * (seen + hidden) + hidden + actions)
        return self.element_bytes * elements + 4 * (3 * self.rows * self.num_actions + self.threads // 32) + 128

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
    while found.num_blocks > limits.num_multiprocessors and found.rows < MOST_ROWS:
        larger = replace(found, rows=2 * found.rows)
        if larger.shared_bytes > limits.shared_bytes:
            break
        found = larger
    return with_parts(found, limits)


class WideQLearner:
    """Makes an algorithm's updates by the kernels.

    The network's parameters, the target network's and Adam's memory stay the algorithm's; those of the last two become
    views of one piece of memory each.

    Args:
        learner: its networks, table and optimiser are there.
        shape: of `plan_wide_q`.
    """

    path = "fused"
    shares_nothing = True

    def __init__(self, learner: DQN, shape: WideQShape) -> None:
        self.learner, self.shape = learner, shape
        config, batch, new = learner.config, learner.batch, partial(torch.zeros, device=learner.device)
        own = {"DOUBLE": config.double, "HUBER_DELTA": float(config.huber_delta or 0.0)}
        own["HAS_MASK"] = batch.next_mask is not None
        mask = new(1, dtype=torch.bool) if batch.next_mask is None else batch.next_mask
        drawn = self._drawn = Drawn(learner, shape.num_features, shape.is_plain)
        rows, steps = compile_kernels(learner, shape, "wide_q.cu", own)
        self._seen = new(1, shape.num_rows, to_tiles(shape.num_features), dtype=elements_of(shape))
        self._error, self._figures = new(shape.batch), new(len(OF_CRITICS))
        networks = {
            "elements": new(shape.num_elements * shape.element_bytes, dtype=torch.uint8),
            "biases": new(shape.num_biases),
        }
        learned = self.learned = Learned(learner.optimizer, shape.critic, self._seen, 1, shape, steps)
        target, nothing = join_memory(list(learner.target.parameters())), new(1)
        targets = {**networks, "addresses": learned.addresses, "target": target, "actor_target": nothing}
        targets["actor_addresses"] = new(1, dtype=torch.int64)
        self._follow = steps.prepare("ac_follow", learned.by_numbers(), **targets)
        self._pack = steps.prepare("ac_pack", learned.by_numbers(), **targets)
        guard, name = learner.guard, learner.group.name
        flags = {"halted": guard.flag_of(name), "first_name": guard.place_of("gradient", name)}
        steps_made = new(2)
        judge = rows.prepare(
            "wide_q_judge", LaunchShape(shape.num_blocks, (shape.threads, 1), shape.shared_bytes), **networks,
            **learned.hidden_rows(), **learned.delta_rows(), observation=drawn.observation,
            next_observation=drawn.next_observation, action=batch.action, reward=batch.reward,
            discount=batch.discount, weight=drawn.weight, next_mask=mask, adam_steps=learned.adam.steps,
            steps=steps_made, seen=bytes_of(self._seen), error=self._error, sums=learned.sums,
        )  # fmt: skip
        step = learned.prepare_step(
            "ac_step_critics", **flags, **networks, run_halted=guard.halted, steps=steps_made,
            lr=learner.scalars["lr"].view(1), target=target, figures=self._figures, follows=self._follows,
        )  # fmt: skip
        self._calls = [judge, learned.prepare_gradient(**flags), step]

    def updates(self) -> dict[str, Callable[[], Figures]]:
        """The phases that are updates, and what comes before them."""
        return {"add": self.add, "learn": self.learn, "follow": self.follow}

    def at_once(self, phases: Mapping[str, Callable[[], Figures]], clock: Clock) -> Mapping[str, Callable[[], Figures]]:
        """Where the target network follows each update, it does so within it."""
        return {**phases, "follow": dict} if self._follows else phases

    def add(self) -> Figures:
        """Keeps the rollout. Products read the networks as they are: a callback, or a resume, may have changed them."""
        self._pack()
        return self.learner.add()

    def learn(self) -> Figures:
        """One update."""
        self._drawn.draw()
        for call in self._calls:
            call()
        self.learner.keep_errors(self._error)
        return dict(zip(FIGURES, self._figures.unbind(), strict=True))

    def follow(self) -> Figures:
        self._follow()
        return {}

    @property
    def _follows(self) -> bool:
        return self.learner.config.target_update_freq == 1
