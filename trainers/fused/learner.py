"""Learning by fused kernels: gradients of A2C's, PPO's and PQN's losses, and steps of Adam."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from trainers.fused.actor import group_constants
from trainers.fused.by_layers import LayersGradient
from trainers.fused.cell import Sequences
from trainers.fused.conv_shape import ConvShape
from trainers.fused.convolution import ConvGradient
from trainers.fused.gather import Gather
from trainers.fused.gradient import NetworkGradient
from trainers.fused.launch import side_by_side
from trainers.fused.learning_plan import NUM_FIGURES, SUM_THREADS
from trainers.fused.packed import KERNELS
from trainers.fused.recurrent import RecurrentGradient
from trainers.fused.shape import STAGE_ROWS, WARPS
from trainers.fused.source import OWN, compile_fused
from trainers.fused.stepper import Stepper
from trainers.fused.told import LearnsByKernels
from trainers.heads import GaussianHead
from warpdrive.backends.base import LaunchShape
from warpdrive.function_manager import FunctionManager

if TYPE_CHECKING:
    from trainers.algorithms.on_policy import OnPolicy
    from trainers.fused.learning_plan import GradientPlan, Part
    from trainers.fused.seen import Seen
    from trainers.settings.config import PolicyConfig
    from warpdrive.backends.base import Backend


LEAST_ORDER_BITS = 6
"""Of the numbers that an order is drawn among: halves of one bit would not mix those of a few samples evenly."""


class FusedLearner(LearnsByKernels):
    """What an algorithm's `learn` does between `begin` and `end`, in a few launches a minibatch.

    Args:
        learner: of A2C, PPO or PQN, whose policy is packed (see `pack`).
    """

    def __init__(self, learner: OnPolicy) -> None:
        group, config = learner.group, learner.config
        self.learner = learner
        self.packed = group.policy.packed
        self._target_kl = float(getattr(config, "target_kl", None) or 0.0)
        num_samples, sequences = group.advantage.numel(), None
        if group.policy.memory_size:
            _, num_envs, num_agents = group.shape
            sequences = Sequences(group.sequence_length, num_agents, num_envs)
            num_samples = group.num_units * sequences.size
        steps = config.num_epochs, config.num_minibatches
        self.plan = plan = self.packed.plan.learning(num_samples, *steps, sequences)
        device = group.advantage.device
        new = self.packed.biases.new_zeros
        self._key = torch.zeros(2, dtype=torch.int64, device=device)
        self._order = torch.zeros(plan.num_ordered, dtype=torch.int32, device=device)
        self._starts = torch.zeros(plan.num_ordered if sequences else 1, dtype=torch.bool, device=device)
        self._samples = torch.zeros(plan.bytes_of_samples, dtype=torch.uint8, device=device)
        self._sums = torch.zeros(plan.num_steps, plan.num_sums, 3, dtype=torch.float64, device=device)
        self._coefficients, self._lr = new(3), new(2)
        # Of a Box what was drawn is kept beside what the env got. Its floats go to the kernels as ints.
        of_box = isinstance(group.policy.head, GaussianHead)
        self._action = (group.action if of_box else group.action_array).view(torch.int32)
        self.constants = {
            **group_constants(group),
            **({"NUM_COLUMNS": len(group.agents), "FIRST_COLUMN": 0} if of_box else {}),
            **learner.loss_of_kernels(),
            "HAS_ACTIVE": group.active is not None,
            "HAS_ORDER": plan.has_order,
            "CREDITS_TEAM": group.credits_team,
            "SAMPLE_BYTES": plan.bytes_of_sample,
        }
        sizes = [one.size_of_parts for one in plan.networks]
        self._parts = new(sum(sizes))
        self._networks = [
            gradient_of(one)(one, network, parts)
            for one, network, parts in zip(plan.networks, self.packed.networks, self._parts.split(sizes), strict=True)
        ]
        for one in self._networks:
            one.prepare(self.packed, plan, self.constants)
        self._rows = {
            seen: torch.zeros(size, dtype=torch.uint8, device=device) for seen, size in plan.rows_of_features.items()
        }
        """Of features, which are brought together once an iteration."""
        self._compile(config)
        self._figures = new(plan.num_steps, plan.num_figures, NUM_FIGURES)
        self.told = new(plan.num_steps, NUM_FIGURES + 2)
        """Of each step: sums of the figures, the gradient's length, and whether it counts."""
        self._nothing = torch.zeros(1, dtype=torch.uint32, device=device)
        self._halted = learner.guard.flag_of(group.name)
        self.stepper = Stepper(learner, self.packed, self._networks, self._parts)
        self._adam, self._steps = self.stepper.adam, new(2, 1)
        self._prepare_order()
        self._calls = self._prepare_rows()
        self._calls += [call for number in range(plan.num_steps) for call in self._prepare_step(number)]

    @property
    def shares_nothing(self) -> bool:
        """On one rank, unless torch multiplies, for want of a kernel that does."""
        ways = {one.plan.way for one in self._networks}
        return self.learner.world.size == 1 and ways.isdisjoint(("records", "layers"))

    def learn(self) -> dict[str, torch.Tensor]:
        """All steps of an iteration; returns the figures' means over them, by name."""
        learner, scalars = self.learner, self.learner.scalars
        learner.begin()
        if learner.policy.value_norm is not None:
            self.packed.pack()  # it moves the critic's last layer
        zero = self._coefficients.new_zeros(())
        names = ("entropy_coeff", "vf_loss_coeff", "clip_param")
        torch.stack([scalars.get(name, zero) for name in names], out=self._coefficients)
        torch.stack([scalars["lr"], scalars.get("critic_lr", scalars["lr"])], out=self._lr)
        self._steps[0].copy_(self._adam.steps[0])
        if self.plan.has_order:
            self._key.random_(generator=learner.generator)
            self._shuffle()
            self._bring_together()
        self._sum_advantages()
        if learner.world.size > 1:
            self._sums.copy_(learner.world.sum(self._sums)[0])
        for call in self._calls:
            call()
        self._adam.steps.copy_(self._steps[self.plan.num_steps % 2].expand_as(self._adam.steps))
        learner.end()
        if self._target_kl:
            counts = self.told[:, -1:]
            means = (counts * self.told).sum(dim=0) / counts.sum()  # the first always counts
        else:
            means = self.told.mean(dim=0)
        *names, of_norm = learner.OF_MINIBATCHES
        return {**dict(zip(names, means, strict=False)), of_norm: means[NUM_FIGURES]}

    def _compile(self, config: PolicyConfig) -> None:
        """The learn kernel, which serves all networks in one launch; and that of the products of those in pieces."""
        packed, plan = self.packed, self.plan
        shared = {
            **packed.precision,
            "NORMALISES_ADVANTAGE": config.normalize_advantage,
            "MIN_DEVIATION": config.min_advantage_std if config.normalize_return else 0.0,
            "NUM_SUMS": plan.num_sums,
        }
        parts = [self._with_own_constants(one.learn) for one in plan.networks]
        learn = compile_fused("learn", parts, shared, plan.blocks_at_once, None, packed.backend)
        self._functions, self._launch_shape = learn
        self._in_pieces = [one for one in self._networks if one.plan.products is not None]
        if self._in_pieces:
            parts = [self._with_own_constants(one.plan.products) for one in self._in_pieces]
            self._products = compile_fused("products", parts, packed.precision, 1, None, packed.backend)

    def _with_own_constants(self, part: Part) -> Part:
        return replace(part, constants={**part.constants, **self.constants})

    def _prepare_learn(
        self,
        arrays: dict[str, torch.Tensor],
        of_sequences: dict[str, torch.Tensor],
        figures: list[torch.Tensor],
        first: int,
        size: int,
    ) -> list[Callable[[], None]]:
        """Launches for `size` samples from `first` on of the epoch's order."""
        calls, chunk = [], self.plan.chunk
        if -(-size // chunk) < self.plan.num_chunks:
            calls.append(self._parts.zero_)  # of chunks that it has not
        for number in range(-(-size // chunk)):
            rows = min(chunk, size - number * chunk)
            given = {**arrays, "first_row": first + number * chunk, "num_rows": rows}
            seen = [self._seen(one.network.seen) for one in self._networks]
            before = []
            for one, own in zip(self._networks, seen, strict=True):
                before.append(one.prepare_before(rows, first + number * chunk, {**arrays, **of_sequences, **own}))
            calls += side_by_side(before, self._beside)
            for i, one in enumerate(self._networks):
                a_chunk = one.plan.learn.num_blocks * WARPS
                own = {
                    **self.packed.arrays_of(one.network),
                    **seen[i],
                    "gradient": one.part_of_chunk(number),
                    **one.arrays(),
                    "figures": figures[i][number * a_chunk : (number + 1) * a_chunk],
                }
                given |= {f"{name}_{i}": array for name, array in own.items()}
            calls.append(self._functions.prepare("learn", self._launch_shape, **given))
            if self._in_pieces:
                functions, launch_shape = self._products
                given = {"num_tiles": -(-rows // STAGE_ROWS), "goes_on": number > 0}
                for i, one in enumerate(self._in_pieces):
                    own = {**self.packed.arrays_of(one.network), "records": one.records, "parts": one.parts}
                    given |= {f"{name}_{i}": own[name] for name in OWN["products"]}
                calls.append(functions.prepare("products", launch_shape, **given))
            calls += side_by_side([one.prepare_after(number, rows) for one in self._networks], self._beside)
        return calls

    @property
    def _beside(self) -> Backend | None:
        """See side_by_side: walks through sequences fill no GPU."""
        return self.packed.backend if all(one.plan.cell is not None for one in self._networks) else None

    def _prepare_rows(self) -> list[Callable[[], None]]:
        calls, constants = {}, {**self.constants, "HAS_ORDER": False}
        arrays = {"order": self._order, "active": self._active()}
        for one in self._networks:
            seen = one.network.seen
            if seen in self._rows and seen not in calls:
                gather = Gather(self.packed, one.network, one.plan.gather, constants)
                given = {**arrays, **seen.arrays(self.learner.group.rollout.seen())}
                calls[seen] = gather.prepare(self.plan.num_samples, 0, self._rows[seen], given)
        return list(calls.values())

    def _seen(self, seen: Seen) -> dict[str, torch.Tensor]:
        """What the learn kernel is given of what a network sees."""
        return {"seen0": self._rows[seen]} if seen in self._rows else seen.arrays(self.learner.group.rollout.seen())

    def _prepare_order(self) -> None:
        group, plan, sequences = self.learner.group, self.plan, self.plan.sequences
        unit = sequences.size if sequences else 1
        of_places = ("GROUP_SIZE", "FIRST_AGENT", "ALL_AGENTS", "NUM_HEADS", "NUM_COLUMNS", "FIRST_COLUMN")
        constants = {key: self.constants[key] for key in ("HAS_ORDER", "HAS_ACTIVE", "SAMPLE_BYTES", *of_places)} | {
            "NUM_SUMS": plan.num_sums,
            "NUM_SAMPLES": plan.num_samples,
            "NUM_EPOCHS": plan.num_epochs,
            "NUM_MINIBATCHES": plan.num_steps,
            "MINIBATCH": plan.size,
            "ORDER_BITS": max(LEAST_ORDER_BITS, (plan.num_samples // unit - 1).bit_length()),
            "SUM_THREADS": SUM_THREADS,
            "SEQUENCE": sequences.length if sequences else 0,
            "STEP_ROWS": sequences.step_rows if sequences else 1,
            "CHUNK": plan.chunk,
        }  # fmt: skip
        functions = FunctionManager(None, KERNELS / "minibatches.cu", constants, backend=self.packed.backend)
        num_blocks = min(-(-len(self._order) // 256), 16 * plan.policy.limits.num_multiprocessors)
        by_rows = LaunchShape(num_blocks, (256, 1))
        shuffles, given = "shuffle_samples", {"key": self._key, "order": self._order}
        if sequences:
            rollout, active = group.rollout, self._active()
            survived = active if rollout.survived is None else rollout.survived
            shuffles, given["starts"] = "shuffle_sequences", self._starts
            given |= {"terminated": rollout.terminated, "truncated": rollout.truncated}
            given |= {"active": active, "survived": survived}
        self._shuffle = functions.prepare(shuffles, by_rows, **given)
        self._sum_advantages = functions.prepare(
            "advantage_sums",
            LaunchShape(plan.num_sums * plan.num_steps, (SUM_THREADS, 1)),
            advantage=group.advantage,
            order=self._order,
            active=self._active(),
            sums=self._sums,
        )
        self._bring_together = functions.prepare(
            "bring_samples_together", by_rows, samples=self._samples, **self._of_samples
        )

    @property
    def _of_samples(self) -> dict[str, torch.Tensor]:
        """What samples have besides features and masks."""
        group = self.learner.group
        judged = {"log_prob": group.log_prob, "value": group.value, "advantage": group.advantage}
        return {"action": self._action, **judged, "target": self.learner.target, "active": self._active()}

    def _active(self) -> torch.Tensor:
        active = self.learner.group.rollout.active
        return torch.zeros(1, dtype=torch.bool, device=self._order.device) if active is None else active

    def _prepare_step(self, number: int) -> list[Callable[[], None]]:
        learner, group, plan = self.learner, self.learner.group, self.plan
        an_epoch = plan.num_steps // plan.num_epochs
        first = number % an_epoch * plan.size
        size = min(plan.size, plan.num_samples - first)
        of_epoch = slice(number // an_epoch * plan.num_samples, None) if plan.has_order else slice(None)
        order = self._order[of_epoch]
        arrays = {
            "order": order,
            "samples": self._samples,
            **self._of_samples,
            "mask": torch.zeros(1, dtype=torch.bool, device=order.device) if group.mask is None else group.mask,
            "value_moments": group.value_moments,
            "sums": self._sums[number],
            "coefficients": self._coefficients,
            "halted": self._halted,
            "nothing": self._nothing,
            "first_loss": learner.guard.place_of("loss", group.name),
            "share_of_value": 1.0 / (size * learner.world.size),
        }
        figures = list(self._figures[number].split([one.num_figures for one in plan.networks]))
        more = {}
        if plan.sequences:
            more = {"starts": self._starts[of_epoch], "memory": group.memory}
        calls = self._prepare_learn(arrays, more, figures, first, size)
        step = self.stepper.prepare(
            self._figures[number], self.told[number], self._steps[number % 2], self._steps[(number + 1) % 2],
            self._lr[:1], self._lr[1:], self._target_kl,
        )  # fmt: skip
        return [*calls, *step]


def gradient_of(plan: GradientPlan) -> type[NetworkGradient]:
    """What makes the gradient of a network."""
    if plan.cell is not None:
        return RecurrentGradient
    if isinstance(plan.shape, ConvShape):
        return ConvGradient
    return LayersGradient if plan.way == "layers" else NetworkGradient
