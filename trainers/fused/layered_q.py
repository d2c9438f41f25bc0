"""Q-learning by fused kernels where a network's layers go through memory one after the other: images, LayerNorms, more
layers than two, or such as no block has room for."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import torch

from trainers.acting.actor import Call
from trainers.fused import plan as fused
from trainers.fused.actor import group_constants, network_of_rows
from trainers.fused.conv_shape import ConvShape
from trainers.fused.launch import side_by_side
from trainers.fused.layers_shape import LayersShape
from trainers.fused.learner import gradient_of
from trainers.fused.learning_plan import NUM_FIGURES, LearningPlan
from trainers.fused.limits import Limits
from trainers.fused.of_replay import ByKernels
from trainers.fused.packed import KERNELS, PackedNetwork, PackedPolicy, pack
from trainers.fused.plan import why_not_here
from trainers.fused.stepper import Stepper
from warpdrive.backends.base import LaunchShape
from warpdrive.function_manager import Constant, FunctionManager

if TYPE_CHECKING:
    from trainers.algorithms.algorithm import Figures
    from trainers.algorithms.dqn import DQN, DQNConfig
    from trainers.experience.spec import GroupSpec

FIGURES = ("loss", "q_mean", "td_error")
"""Of an update, as q_loss.cu writes them; the norm of the gradient follows."""
THREADS = 128
"""Of a block there."""
ALONE = {"GROUP_SIZE": 1, "FIRST_AGENT": 0, "ALL_AGENTS": 1, "SEEN_COLUMNS": 1, "FIRST_SEEN": 0, "HAS_ORDER": False}
"""Constants of rows that are items of a batch: as of envs with one agent."""


@dataclass(frozen=True)
class LayeredQ:
    """How the kernels make a learner's updates."""

    policy: fused.Plan
    learning: LearningPlan
    double: bool
    packs: bool
    """Whether the policy is packed for them alone, as torch plays."""

    @property
    def num_bytes(self) -> int:
        """Of the device's memory that a learner takes besides what is the algorithm's, and what its actor has."""
        plan, batch, (shape,) = self.policy, self.learning.size, self.policy.shapes
        packed = (1 + self.packs) * plan.bytes_of_playing(batch)["packed parameters"]
        outputs = (2 if self.double else 1) * plan.bytes_of_rows(shape, batch)
        parts = self.learning.num_bytes
        made = sum(parts[name] for name in ("records", "parts of the gradient", "gradient"))
        return packed + outputs + made + 8 * batch + 4 * len(FIGURES) * self.num_blocks

    @property
    def num_blocks(self) -> int:
        """Of q_loss.cu."""
        return -(-self.learning.size // THREADS)


def why_no_player(config: DQNConfig, limits: Limits, precision: str) -> str | None:
    """Why fused kernels do not play for a Q-network, whatever it sees and is; None if they may."""
    if config.epsilon_per_env:
        return "the kernels that play for such a network know no epsilon_per_env"
    return _why_not(config, limits, precision)


def _why_not(config: DQNConfig, limits: Limits, precision: str) -> str | None:
    if why := why_not_here(limits, precision):
        return why
    for key in ("dueling", "noisy"):
        if getattr(config, key):
            return f"the kernel of Q-learning knows no {key}"
    return None


def plan_layered_q(
    config: DQNConfig, spec: GroupSpec, limits: Limits, precision: str, num_ranks: int
) -> LayeredQ | str | None:
    """How the kernels make a learner's updates; or in words why they cannot; None if its layers stay on the chip."""
    found = _why_not(config, limits, precision) or fused.plan(fused.Request.of(config, spec), limits, precision)
    if isinstance(found, str):
        return found
    (shape,) = found.shapes
    if not isinstance(shape, LayersShape):
        return None
    if config.agent_id:
        return "the kernel of Q-learning knows no agent_id"
    learning = found.learning(config.batch_size // num_ranks, 1, 1)
    if learning.num_chunks > 1:
        return f"a batch of {learning.size:,} is more than the {learning.chunk:,} that go through it at once"
    return LayeredQ(found, learning, config.double, packs=config.epsilon_per_env)


class LayeredQLearner(ByKernels):
    """Updates of a Q-network: what was drawn goes through it and the target network, and the gradient back. Parameters
    of both, and Adam's memory, become views of one piece of memory each. Of several ranks each has its part of a batch,
    and all sum up the gradient."""

    learner: DQN

    def __init__(self, learner: DQN, found: LayeredQ) -> None:
        self.learner, self._plan = learner, found
        (shape,), (gradient_plan,) = found.policy.shapes, found.learning.networks
        self.shares_nothing = isinstance(shape, ConvShape) and learner.world.size == 1  # else torch multiplies
        group, config, batch = learner.group, learner.config, learner.batch
        backend, new = group.rollout.env.backend, partial(torch.zeros, device=learner.device)
        self._packed = pack(learner.policy, found.policy, backend)
        self._target = PackedPolicy(learner.target, found.policy, backend)
        constants = {**group_constants(group), **ALONE}
        parts = new(gradient_plan.size_of_parts)
        gradient = gradient_of(gradient_plan)(gradient_plan, self._network(self._packed), parts)
        gradient.prepare(self._packed, found.learning, constants)
        self.stepper = stepper = Stepper(learner, self._packed, [gradient], parts)
        self._adam, self._step_before = stepper.adam, new(1)
        self._weight = batch.weight if batch.active is None else torch.zeros_like(batch.weight)
        rows, seen = learner.batch_size, self._seen(batch.observation)
        self._error, self._number = new(rows), new(1)
        self._figures, self._told = new(len(FIGURES)), new(NUM_FIGURES + 2)
        forward, outputs = [gradient.prepare_before(rows, 0, seen)], [gradient.arrays()]
        for packed in (self._target, *([self._packed] if config.double else [])):
            network = network_of_rows(packed, self._network(packed), rows, constants)
            forward.append(network.prepare_all(self._seen(batch.next_observation)))
            outputs.append(network.arrays())
        lr = learner.scalars["lr"].view(1)
        steps = stepper.prepare(
            new(0, NUM_FIGURES), self._told, self._step_before, self._adam.steps, lr, lr,
            target=self._target if self.follows_within else None, tau=float(config.tau), also=[self._figures],
        )  # fmt: skip
        self._calls = [
            *side_by_side(forward),
            self._prepare_loss(shape.padded[-1][0], outputs[0], outputs[1], outputs[-1]),
            *side_by_side([gradient.prepare_after(0, rows)]),
            *steps,
        ]
        self._follow = self._prepare_follow()

    def _network(self, packed: PackedPolicy) -> PackedNetwork:
        """As it sees a batch."""
        (network,) = packed.networks
        return replace(network, seen=network.seen.of_items())

    def _seen(self, observation: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """What a network is given of a batch's items."""
        nothing = torch.zeros(1, dtype=torch.int32, device=self.learner.device)
        arrays = self._network(self._packed).seen.arrays(observation)
        return {**arrays, "order": nothing, "active": nothing.bool()}

    def _prepare_loss(self, columns: int, ours: dict, theirs: dict, chooses: dict) -> Call:
        """The launch of q_loss.cu.

        Args:
            ours, theirs, chooses: what was made of what was seen; of what came after it by the target network; and by
                whoever chooses there.
        """
        learner, plan, config, batch = self.learner, self._plan, self.learner.config, self.learner.batch
        new, mask = partial(torch.zeros, device=learner.device), batch.next_mask
        constants: dict[str, Constant] = {
            **self._packed.precision, "BATCH": learner.batch_size, "NUM_ACTIONS": plan.policy.request.num_outputs,
            "IS_OF_RANKS": learner.world.size > 1,
            "COLUMNS": columns, "THREADS": THREADS, "DOUBLE": config.double, "HAS_MASK": mask is not None,
            "HUBER_DELTA": float(config.huber_delta or 0.0),
        }  # fmt: skip
        functions = FunctionManager(None, KERNELS / "q_loss.cu", constants, backend=self._packed.backend)
        values = {
            "outputs": ours["weights"], "next_outputs": chooses["weights"], "target_outputs": theirs["weights"],
        }  # fmt: skip
        return functions.prepare(
            "q_loss", LaunchShape(plan.num_blocks, (THREADS, 1)), biases=ours["biases"],
            target_biases=theirs["biases"], action=batch.action, reward=batch.reward, discount=batch.discount,
            weight=self._weight, number_of_all=self._number, adam_steps=self._adam.steps, step_before=self._step_before,
            next_mask=new(1, dtype=torch.bool) if mask is None else mask, delta=ours["records"], error=self._error,
            sums=new(plan.num_blocks * len(FIGURES)), ticket=new(1, dtype=torch.int32),
            figures=self._figures, **{name: one.view(torch.float32) for name, one in values.items()},
        )  # fmt: skip

    def _prepare_follow(self) -> Call:
        ours, theirs = self._packed, self._target
        size = len(ours.parameter)
        follow = theirs.step_functions.prepare(
            "follow_parameters", LaunchShape(-(-size // 256), (256, 1)), weight_place=theirs.weight_place,
            parameter=ours.parameter, target=theirs.parameter, elements=theirs.elements, biases=theirs.biases,
            tau=float(self.learner.config.tau), num_parameters=size,
        )  # fmt: skip
        return theirs.then_fold(follow)

    def pack(self) -> None:
        self._packed.pack()
        self._target.pack()

    def learn(self) -> Figures:
        batch = self.learner.draw_batch()
        if batch.active is not None:
            torch.mul(batch.weight, batch.active, out=self._weight)
        if self.learner.world.size > 1:
            self._number.fill_(self.learner.number_of(self._weight.sign()))
        for call in self._calls:
            call()
        self.learner.keep_errors(self._error)
        return {**dict(zip(FIGURES, self._figures.unbind(), strict=True)), "grad_norm": self._told[NUM_FIGURES]}

    def follow(self) -> Figures:
        self._follow()
        return {}
