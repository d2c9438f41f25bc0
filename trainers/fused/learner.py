"""Learning by fused kernels: gradients of A2C's and PPO's losses, and steps of Adam."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch

from trainers.fused.gradient import ROWS_OF_STAGE, NetworkGradient
from trainers.fused.network import KERNELS, NUM_FIGURES, WARPS
from trainers.fused.source import Part, compile_fused, split_blocks
from warpdrive.backends.base import LaunchShape
from warpdrive.data_manager import DataManager
from warpdrive.function_manager import Constant, FunctionManager

if TYPE_CHECKING:
    from trainers.algorithms.on_policy import OnPolicy

SUM_THREADS = 256
"""Of the blocks that sum up advantages."""
STEP_THREADS, SLICES = 256, 4
"""Of a block that steps parameters; threads that share the adding up of one parameter's gradient."""
MAX_RECORDS = 1 << 20
"""Samples whose records are in memory at once."""


class FusedLearner:
    """What an algorithm's `learn` does between `begin` and `end`, in a few launches a minibatch.

    Args:
        learner: of A2C or PPO, whose policy the fused kernels can play for.
        num_epochs, num_minibatches: passes over the rollout, and steps of each.
        constants: of the loss: IS_PPO, CLIPS_VALUE, HUBER_DELTA.
        target_kl: stops the iteration; 0: never.
    """

    def __init__(
        self,
        learner: OnPolicy,
        num_epochs: int,
        num_minibatches: int,
        constants: dict[str, Constant],
        target_kl: float = 0.0,
    ) -> None:
        group, config = learner.group, learner.config
        self.learner = learner
        self.fused = group.fused
        self.num_samples = group.num_units
        self.size = -(-self.num_samples // num_minibatches)
        self.num_steps = num_epochs * num_minibatches
        self.has_order = num_epochs * num_minibatches > 1
        device = group.advantage.device
        new = self.fused.biases.new_zeros
        self._key = torch.zeros(2, dtype=torch.int64, device=device)
        num_ordered = self.num_samples * num_epochs if self.has_order else 1
        self._order = torch.zeros(num_ordered, dtype=torch.int32, device=device)
        # Blocks that sum up the advantages of a minibatch: all together keep the device busy.
        self._num_sums = max(1, min(8 * self.fused.num_multiprocessors // self.num_steps, -(-self.size // SUM_THREADS)))
        self._sums = torch.zeros(self.num_steps, self._num_sums, 3, dtype=torch.float64, device=device)
        self._coefficients, self._lr = new(3), new(2)
        self._num_epochs = num_epochs
        self.constants = {
            **group.fused_constants,
            **constants,
            "HAS_MASK": group.mask is not None,
            "HAS_ACTIVE": group.active is not None,
            "HAS_ORDER": self.has_order,
        }
        self._networks = [NetworkGradient(self.fused, self.constants, network) for network in self.fused.networks]
        self._compile(config.normalize_advantage)
        self._figures = torch.cat([new(self.num_steps, one.num_figures, NUM_FIGURES) for one in self._networks], dim=1)
        self._norms = new(self.num_steps)
        self._nothing = torch.zeros(1, dtype=torch.uint32, device=device)
        self._halted = learner.guard.flag_of(group.name)
        self._prepare_optimizer(target_kl)
        self._prepare_order()
        self._calls = [call for number in range(self.num_steps) for call in self._prepare_step(number)]

    @property
    def uses_matrix_library(self) -> bool:
        """Whether torch multiplies records, for want of a kernel that does."""
        return any(one.writes_records for one in self._networks)

    def learn(self) -> dict[str, torch.Tensor]:
        """All steps of an iteration; returns the figures' means over them, by name."""
        learner, scalars = self.learner, self.learner.scalars
        self._adopt()
        learner.begin()
        zero = self._coefficients.new_zeros(())
        names = ("entropy_coeff", "vf_loss_coeff", "clip_param")
        torch.stack([scalars.get(name, zero) for name in names], out=self._coefficients)
        torch.stack([scalars["lr"], scalars.get("critic_lr", scalars["lr"])], out=self._lr)
        self._steps[0].copy_(self._num_adam_steps[0])
        if self.has_order:
            self._key.random_(generator=learner.generator)
            self._shuffle()
        self._sum_advantages()
        if learner.world.size > 1:
            self._sums.copy_(learner.world.sum(self._sums)[0])
        for call in self._calls:
            call()
        self._num_adam_steps.copy_(self._steps[self.num_steps % 2].expand_as(self._num_adam_steps))
        learner.end()
        means = self._figures.sum(dim=(0, 1)) / self.num_steps
        return {
            "policy_loss": means[0],
            "value_loss": means[1],
            "entropy": means[2],
            "approx_kl": means[3],
            "clip_fraction": means[4],
            "grad_norm": self._norms.mean(),
            "explained_variance": learner.explained_variance(),
        }

    def _compile(self, normalises: bool) -> None:
        """The learn kernel, which serves all networks in one launch, and memory for what it writes."""
        networks, fused = self._networks, self.fused
        self.chunk = self.size
        if not all(one.accumulates for one in networks):
            self.chunk = min(self.size, MAX_RECORDS)
        num_chunks = -(-self.size // self.chunk)
        at_once = fused.blocks_at_once(max(one.shared_bytes for one in networks))
        blocks = split_blocks(at_once * fused.num_multiprocessors, [one.network.shape.num_elements for one in networks])
        device = fused.biases.device
        for one, count in zip(networks, blocks, strict=True):
            one.set_blocks(min(count, -(-self.chunk // one.rows_a_block)), num_chunks)
            rows = 0 if one.accumulates else -(-self.chunk // one.rows_a_block) * one.rows_a_block
            num_bytes = max(rows * one.record * fused.element_bytes, 16)
            one.records = torch.zeros(num_bytes, dtype=torch.uint8, device=device)
        precision = {"FULL_PRECISION": fused.element_bytes == 4}
        shared = {**precision, "NORMALISES_ADVANTAGE": normalises, "NUM_SUMS": self._num_sums}
        heads, data = fused.policy.head.head_sizes, DataManager(device)
        parts = [Part(one.constants, heads, one.num_blocks, one.shared_bytes) for one in networks]
        self._functions, self._launch_shape = compile_fused("learn", parts, shared, at_once, data, fused.backend)
        self._in_pieces = [one for one in networks if one.is_in_pieces]
        if self._in_pieces:
            work = [one.record for one in self._in_pieces]
            for one, count in zip(self._in_pieces, split_blocks(fused.num_multiprocessors, work), strict=True):
                one.set_shares(count, self.chunk)
            parts = [one.part_of_products(heads) for one in self._in_pieces]
            self._products = compile_fused("products", parts, precision, 1, data, fused.backend)

    def _prepare_learn(
        self, arrays: dict[str, torch.Tensor], figures: list[torch.Tensor], first: int, size: int
    ) -> list[Callable[[], None]]:
        """Launches for `size` samples from `first` on of the epoch's order."""
        calls = []
        if -(-size // self.chunk) < -(-self.size // self.chunk):
            calls.append(self._parts.zero_)  # of chunks that it has not
        for number in range(-(-size // self.chunk)):
            rows = min(self.chunk, size - number * self.chunk)
            given = {**arrays, "first_row": first + number * self.chunk, "num_rows": rows}
            for i, one in enumerate(self._networks):
                a_chunk = one.num_blocks * WARPS
                own = {
                    **self.fused.arrays_of(one.network),
                    "gradient": one.parts[number * one.num_blocks * one.part_size if one.accumulates else 0 :],
                    "records": one.records,
                    "figures": figures[i][number * a_chunk : (number + 1) * a_chunk],
                }
                given |= {f"{name}_{i}": array for name, array in own.items()}
            calls.append(self._functions.prepare("learn", self._launch_shape, **given))
            if self._in_pieces:
                functions, launch_shape = self._products
                given = {"num_tiles": -(-rows // ROWS_OF_STAGE), "goes_on": number > 0}
                for i, one in enumerate(self._in_pieces):
                    given |= {f"records_{i}": one.records, f"parts_{i}": one.parts}
                calls.append(functions.prepare("products", launch_shape, **given))
            for one in self._networks:
                if one.writes_records:
                    calls += one.prepare_products(number, rows)
        return calls

    def _adopt(self) -> None:
        """Makes the optimiser's memory a view of ours, after a checkpoint put other tensors there."""
        optimizer, start = self.learner.optimizer, 0
        for number, parameter in enumerate(self.learner.parameters):
            mine = {
                "step": self._num_adam_steps[number],
                "exp_avg": self._average[start : start + parameter.numel()].view(parameter.shape),
                "exp_avg_sq": self._square[start : start + parameter.numel()].view(parameter.shape),
            }
            start += parameter.numel()
            state = optimizer.state[parameter]
            for name, tensor in mine.items():
                if name not in state:  # before the first step, or of a checkpoint that was
                    state[name] = tensor.zero_()
                elif state[name].data_ptr() != tensor.data_ptr():
                    tensor.copy_(state[name])
                    state[name] = tensor

    def _prepare_optimizer(self, target_kl: float) -> None:
        learner, fused = self.learner, self.fused
        size, device = len(fused.parameter), fused.parameter.device
        new = fused.parameter.new_zeros
        self._average, self._square, self._gradient = new(size), new(size), new(size)
        self._steps, self._num_adam_steps = new(2, 1), new(len(learner.parameters))
        self._num_groups = -(-size // (STEP_THREADS // SLICES))
        self._squares = new(self._num_groups)
        place = torch.zeros(size, dtype=torch.int64)
        stride, num_parts, name = (torch.zeros(size, dtype=torch.int32) for _ in range(3))
        is_critic = torch.zeros(size, dtype=torch.bool)
        sizes = [one.num_parts * one.part_size for one in self._networks]
        self._parts, parts_at = new(sum(sizes)), 0
        for one, parts in zip(self._networks, self._parts.split(sizes), strict=True):
            one.parts = parts
            for numbers, places in one.gradient_places():
                numbers = torch.as_tensor(numbers).flatten()
                place[numbers] = parts_at + torch.as_tensor(places, dtype=torch.int64).flatten()
                stride[numbers] = one.part_size
                num_parts[numbers] = one.num_parts
            parts_at += len(parts)
        of_critic = {id(p) for p in learner.optimizer.param_groups[1]["params"]} if _has_two(learner) else set()
        for number, parameter in enumerate(learner.parameters):
            start = fused.numbers[id(parameter)]
            name[start : start + parameter.numel()] = number
            is_critic[start : start + parameter.numel()] = id(parameter) in of_critic
        config = learner.config
        constants = {
            **fused.step_constants,
            "NUM_GROUPS": self._num_groups,
            "STEP_THREADS": STEP_THREADS,
            "SLICES": SLICES,
            "NUM_FIGURE_ROWS": self._figures.shape[1],
            "MAX_NORM": float(config.max_grad_norm) if config.clip_grad_norm else 0.0,
            "TARGET_KL": float(target_kl),
        }
        self._step_functions = FunctionManager(
            DataManager(device), KERNELS / "fused_step.cu", constants, backend=fused.backend
        )
        tables = {"place": place, "stride": stride, "num_parts": num_parts, "name": name}
        self._tables = {key: table.to(device) for key, table in tables.items()}
        self._is_critic = is_critic.to(device)

    def _prepare_order(self) -> None:
        group = self.learner.group
        device = self._order.device
        half_bits = max(1, -(-(self.num_samples - 1).bit_length() // 2))
        constants = {
            key: self.constants[key]
            for key in ("HAS_ORDER", "HAS_ACTIVE", "GROUP_SIZE", "FIRST_AGENT", "ALL_AGENTS")
        } | {
            "NUM_SUMS": self._num_sums,
            "NUM_SAMPLES": self.num_samples,
            "NUM_EPOCHS": self._num_epochs,
            "NUM_MINIBATCHES": self.num_steps,
            "MINIBATCH": self.size,
            "HALF_BITS": half_bits,
            "SUM_THREADS": SUM_THREADS,
        }  # fmt: skip
        functions = FunctionManager(
            DataManager(device), KERNELS / "minibatches.cu", constants, backend=self.fused.backend
        )
        num_blocks = min(-(-len(self._order) // 256), 16 * self.fused.num_multiprocessors)
        self._shuffle = functions.prepare(
            "shuffle_samples", LaunchShape(num_blocks, (256, 1)), key=self._key, order=self._order
        )
        self._sum_advantages = functions.prepare(
            "advantage_sums",
            LaunchShape(self._num_sums * self.num_steps, (SUM_THREADS, 1)),
            advantage=group.advantage,
            order=self._order,
            active=self._active(),
            sums=self._sums,
        )

    def _active(self) -> torch.Tensor:
        active = self.learner.group.rollout.active
        return torch.zeros(1, dtype=torch.bool, device=self._order.device) if active is None else active

    def _prepare_step(self, number: int) -> list[Callable[[], None]]:
        learner, group = self.learner, self.learner.group
        guard = learner.guard
        an_epoch = self.num_steps // self._num_epochs
        first = number % an_epoch * self.size
        size = min(self.size, self.num_samples - first)
        order = self._order[number // an_epoch * self.num_samples :] if self.has_order else self._order
        arrays = {
            "observation": group.seen_array,
            "order": order,
            "action": group.action_array,
            "log_prob": group.log_prob,
            "value": group.value,
            "advantage": group.advantage,
            "target": learner.target,
            "mask": torch.zeros(1, dtype=torch.bool, device=order.device) if group.mask is None else group.mask,
            "active": self._active(),
            "value_moments": group.value_moments,
            "sums": self._sums[number],
            "coefficients": self._coefficients,
            "halted": self._halted,
            "nothing": self._nothing,
            "first_loss": guard.place_of("loss", group.name),
        }
        figures = list(self._figures[number].split([one.num_figures for one in self._networks]))
        calls = self._prepare_learn(arrays, figures, first, size)
        adds = LaunchShape(self._num_groups, (STEP_THREADS, 1))
        steps = LaunchShape(-(-len(self.fused.parameter) // STEP_THREADS), (STEP_THREADS, 1))
        first_name = guard.place_of("gradient", group.name)
        found = {"halted": self._halted, "first_loss": arrays["first_loss"], "first_name": first_name}
        into = {"gradient": self._gradient, "squares": self._squares}
        calls.append(
            self._step_functions.prepare("add_up_gradient", adds, parts=self._parts, **self._tables, **found, **into)
        )
        if learner.world.size > 1:
            tables = {**self._tables, **_tables_of_one_part(self._gradient)}
            calls.append(lambda: self._reduce(self._figures[number]))
            calls.append(
                self._step_functions.prepare("add_up_gradient", adds, parts=self._gradient, **tables, **found, **into)
            )
        calls.append(
            self._step_functions.prepare(
                "adam_step",
                steps,
                **into,
                **found,
                run_halted=guard.halted,
                figures=self._figures[number],
                stopped=learner.stopped,
                step_before=self._steps[number % 2],
                step_after=self._steps[(number + 1) % 2],
                lr=self._lr,
                is_critic=self._is_critic,
                weight_place=self.fused.weight_place,
                parameter=self.fused.parameter,
                average=self._average,
                square=self._square,
                elements=self.fused.elements,
                biases=self.fused.biases,
                norm=self._norms[number : number + 1],
            )
        )
        return calls

    def _reduce(self, figures: torch.Tensor) -> None:
        """Sums the gradient and a minibatch's figures over all ranks; all halt where one has to (SafeAdam.reduce)."""
        guard = self.learner.guard
        gradient, figures_of_all, halted = self.learner.world.sum(self._gradient, figures, guard.has_found())
        self._gradient.copy_(gradient)
        figures.copy_(figures_of_all)
        guard.take_over(halted)


def _tables_of_one_part(gradient: torch.Tensor) -> dict[str, torch.Tensor]:
    """What makes add_up_gradient look at a gradient that is added up already, and sum its squares."""
    place = torch.arange(len(gradient), device=gradient.device)
    zeros = torch.zeros(len(gradient), dtype=torch.int32, device=gradient.device)
    return {"place": place, "stride": zeros, "num_parts": zeros + 1}


def _has_two(learner: OnPolicy) -> bool:
    return len(learner.optimizer.param_groups) > 1
