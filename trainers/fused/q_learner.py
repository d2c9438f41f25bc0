"""Q-learning from a replay store by fused kernels: as many updates as are due in one launch, by one block (q_alone.cu)
or several (q_learn.cu)."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import torch

from trainers.fused.limits import Limits
from trainers.fused.of_replay import AdamMemory, find_learner, join_memory, why_no_kernel, why_not_plain
from trainers.fused.packed import KERNELS
from trainers.fused.shape import to_tiles
from trainers.fused.wide_q import WideQLearner, WideQShape, plan_wide_q
from trainers.networks.policy import inputs_of
from trainers.replay.kernel_text import HERE as REPLAY
from trainers.replay.selectors import Prioritized
from warpdrive.backends.base import LaunchShape
from warpdrive.function_manager import Constant, FunctionManager
from warpdrive.signature import CTYPES

if TYPE_CHECKING:
    from trainers.algorithms.algorithm import Clock, Figures
    from trainers.algorithms.dqn import DQN, DQNConfig
    from trainers.experience.spec import GroupSpec
    from warpdrive.backends.base import Backend

FIGURES = ("loss", "q_mean", "td_error", "grad_norm")
"""Of the last update, as the kernel writes them."""
KERNEL = "Q-learning"
"""As which it is told of."""
PADDING = 8
"""Elements that a row in shared memory is longer than whole tiles."""
THREADS = 512
"""Of a block."""
MOST_ROWS = 128
"""Of a batch, which a block has."""
CLUSTER = 8
"""Blocks that may be one cluster."""
THREADS_ALONE = 256
"""Of a block that has the whole batch: fewer, which multiply more at once each."""
MOST_SLOTS = 16
"""Quads of parameters that a thread has there with Adam's memory of them in its registers."""


@dataclass(frozen=True)
class QShape:
    """A Q-network of one or two hidden layers, and how many of a batch's rows a block has."""

    widths: tuple[int, ...]
    """Of the features, the hidden layers and the actions."""
    batch: int
    rows: int
    team: int
    """Blocks."""
    in_cluster: bool
    element_bytes: int
    threads: int = THREADS
    kernel: ClassVar[str] = "q_learn"

    @property
    def layers(self) -> list[tuple[int, int]]:
        """(outputs, inputs) of each."""
        return list(zip(self.widths[1:], self.widths[:-1], strict=True))

    @property
    def num_parameters(self) -> int:
        return sum(out * (given + 1) for out, given in self.layers)

    @property
    def num_elements(self) -> int:
        """Of the weights of one network, as products read them."""
        return sum(to_tiles(out) * (to_tiles(given) + PADDING) for out, given in self.layers)

    @property
    def num_biases(self) -> int:
        return sum(to_tiles(out) for out, _ in self.layers)

    @property
    def num_quads(self) -> int:
        """Of parameters, as lanes hold sums of 16 by 8: what the parts of a gradient are made of."""
        fragments = sum(to_tiles(out) // 16 * -(-given // 8) for out, given in self.layers)
        return 32 * fragments + self.num_biases // 4

    @property
    def slices(self) -> int:
        """Threads that add up the parts of four parameters' gradient: more, where a block has few of them."""
        share = -(-self.num_quads // self.team)
        slices = 1
        while slices < min(32, self.team) and 2 * slices * share <= self.threads:
            slices *= 2
        return slices

    @property
    def shared_bytes(self) -> int:
        """Of a block: at least what q_learn.cu asks for."""
        features, *hidden, actions = (to_tiles(width) + PADDING for width in self.widths)
        if len(hidden) == 1:
            hidden.append(PADDING)
        elements = 2 * self.num_elements + self.rows * (2 * features + 3 * sum(hidden) + actions)
        floats = 2 * self.num_biases + self.rows * (3 * (actions - PADDING + 1) + 15) + 2 * 256 + self.threads // 32 + 4
        return -(-(self.element_bytes * elements + 4 * floats) // 16) * 16 + 64

    @property
    def launch_bytes(self) -> int:
        """Of shared memory, with which it is launched."""
        return self.shared_bytes

    @property
    def act_shared_bytes(self) -> int:
        """Of a block of q_act.cu, likewise: it has one network, and one set of rows."""
        *seen, actions = (to_tiles(width) + PADDING for width in self.widths)
        if len(seen) == 2:
            seen.append(PADDING)
        elements = self.num_elements + self.rows * sum(seen)
        return -(-(self.element_bytes * elements + 4 * (self.num_biases + self.rows * actions)) // 16) * 16 + 64

    @property
    def num_bytes(self) -> int:
        """Of the device's memory that a learner takes besides what is the algorithm's."""
        parts, sums = 16 * self.team * self.num_quads, 16 * self.team
        return parts + sums + 2 * self.num_elements * self.element_bytes + 8 * self.num_biases + 8 * self.batch

    def constants(self) -> dict[str, Constant]:
        """Of q_learn.cu and q_act.cu."""
        first, second = (*self.widths[1:-1], 0)[:2]
        return {
            "NUM_FEATURES": self.widths[0], "WIDTH1": first, "WIDTH2": second, "NUM_ACTIONS": self.widths[-1],
            "BATCH": self.batch, "ROWS": self.rows, "TEAM": self.team, "IN_CLUSTER": self.in_cluster,
            "THREADS": self.threads, "SLICES": self.slices, "SHARED_BYTES": self.shared_bytes,
            "FULL_PRECISION": self.element_bytes == 4,
        }  # fmt: skip


@dataclass(frozen=True)
class QAloneShape(QShape):
    """A Q-network of which one block makes all updates (q_alone.cu), so that as many learn side by side as there are
    multiprocessors."""

    kernel: ClassVar[str] = "q_alone"
    room: int = 0
    """Bytes of shared memory that the block has: beyond what it needs, gradients wait there."""

    @property
    def slots(self) -> int:
        """Quads of parameters of a thread."""
        return sum(self._slots(*(to_tiles(size) // 16 for size in one), one[1]) for one in self.layers)

    def _slots(self, down: int, across: int, columns: int) -> int:
        """Of a layer of so many tiles; see best_block of q_block.cuh."""
        warps = self.threads // 32
        blocks = [(i, j) for i in range(1, min(4, down) + 1) for j in range(1, min(3, across) + 1)]
        rounds = {(i, j): -(-(-(-down // i) * -(-across // j)) // warps) for i, j in blocks}
        i, j = min(blocks, key=lambda one: rounds[one] * (3 * one[0] * one[1] + sum(one)))
        return rounds[i, j] * i * (1 if columns <= 8 else 2 * j)

    @property
    def shared_bytes(self) -> int:
        """Of a block: at least what q_alone.cu asks for."""
        features, *hidden, actions = (to_tiles(width) + PADDING for width in self.widths)
        if len(hidden) == 1:
            hidden.append(PADDING)
        elements = 2 * self.num_elements + self.rows * (2 * features + sum(hidden) + actions)
        rest = 8 * self.threads * (self.slots if self.element_bytes == 2 else 1)
        floats = 3 * self.num_biases + self.rows * (3 * (self.widths[-1] | 1) + 15) + self.threads // 32 + 4
        return -(-(self.element_bytes * elements + rest + 4 * floats) // 16) * 16 + 64

    @property
    def launch_bytes(self) -> int:
        return self.room

    @property
    def num_bytes(self) -> int:
        return 3 * 16 * self.slots * self.threads

    def constants(self) -> dict[str, Constant]:
        """Of q_alone.cu."""
        return {name: one for name, one in super().constants().items() if name not in TEAM} | {"SHARED_BYTES": self.room}


TEAM = ("TEAM", "IN_CLUSTER", "SLICES")
"""Constants that a block alone has no use for."""


def plan_q(
    config: DQNConfig, spec: GroupSpec, limits: Limits, precision: str, num_ranks: int = 1
) -> QShape | WideQShape | str:
    """How a kernel makes a learner's updates; or several, where the network has no room in a block, or what is drawn is
    not in the store as it is; or in words why none can."""
    if why := why_not(config, spec, limits, precision):
        return why
    if num_ranks > 1:
        return "the kernel of Q-learning is of one GPU"
    sizes = widths_of(config, spec), config.batch_size, limits, 2 if precision == "bf16" else 4
    is_plain = why_not_plain(config, spec, KERNEL) is None
    found = fit_q(*sizes) if is_plain and not (config.tiers or config.hindsight) else "it is not there as it is seen"
    return plan_wide_q(*sizes, is_plain) if isinstance(found, str) else found


def find_q_learner(learner: DQN) -> DQN | FusedQLearner | WideQLearner:
    """Who makes its updates: a kernel, or itself."""
    return find_learner(learner, plan_q, lambda found: WideQLearner if isinstance(found, WideQShape) else FusedQLearner)


def why_not(config: DQNConfig, spec: GroupSpec, limits: Limits, precision: str) -> str | None:
    """Why no kernel knows a policy's network, in words; None if some do."""
    unknown = {"dueling": config.dueling, "noisy": config.noisy}
    return why_no_kernel(config, spec, limits, precision, KERNEL, unknown)


def widths_of(config: DQNConfig, spec: GroupSpec) -> tuple[int, ...]:
    """Of the features, the hidden layers and the actions."""
    return inputs_of(spec, config).num_features, *config.model.fc_dims, int(spec.action_space.n)


def fit_q(widths: Sequence[int], batch: int, limits: Limits, element_bytes: int) -> QShape | str:
    """The fewest rows a block for which there are blocks enough, of those that fit."""
    is_gpu = limits.capability is not None
    found = "the network does not fit the shared memory of a block"
    rows = 16
    while rows <= MOST_ROWS:
        team = -(-batch // rows)
        in_cluster = is_gpu and limits.capability >= (9, 0) and 1 < team <= CLUSTER
        shape = QShape(tuple(widths), batch, rows, team, in_cluster, element_bytes)
        if shape.shared_bytes > limits.shared_bytes:
            return found
        if team <= (limits.num_multiprocessors if is_gpu else 1):
            return shape
        found = f"a batch of {batch:,} does not fit the blocks of the GPU"
        rows *= 2
    return found


def layers_of(parameters: Sequence[torch.nn.Parameter]) -> dict[str, torch.Tensor]:
    """A network's parameters by what the kernels call them; of layers that are not there, a number that is not read."""
    names = [f"{kind}{layer}" for layer in range(3) for kind in ("weight", "bias")]
    given = [one.detach() for one in parameters]
    return dict(itertools.zip_longest(names, given, fillvalue=given[-1]))


class FusedQLearner:
    """Makes an algorithm's updates by the kernel.

    The network's parameters, the target network's and Adam's memory stay the algorithm's; those of the last two become
    views of one piece of memory each, in the same order.

    Args:
        learner: its networks, table and optimiser are there.
        shape: of `plan_q`.
    """

    path = "fused"

    def __init__(self, learner: DQN, shape: QShape) -> None:
        self.learner, self.shape = learner, shape
        # Else blocks wait for each other that nothing but room brings onto the GPU at once.
        self.shares_nothing = shape.team == 1 or shape.in_cluster
        device, backend = learner.device, learner.group.rollout.env.backend
        numbers = partial(torch.zeros, device=device)
        self.parameters = list(learner.policy.parameters())
        schedule = numbers(2, dtype=torch.int64)
        self._schedule = schedule.unbind()
        """Updates made, and updates that are due: what the kernel has of both."""
        self._told: tuple[int | None, int | None] = (None, None)
        self._figures = numbers(len(FIGURES))
        self._target = join_memory(list(learner.target.parameters()))
        self._adam = AdamMemory(learner.optimizer)
        self.launch = self._prepare(backend, schedule)

    def updates(self) -> dict[str, Callable[[], Figures]]:
        """One graph an iteration: the rollout is kept, and all updates that are due are made."""
        return {"add": self.add_and_learn}

    def at_once(self, phases: Mapping[str, Callable[[], Figures]], clock: Clock) -> Sequence[Callable[[], Figures]]:
        """What an iteration calls: "add", which makes all updates, and steps the target network."""
        config, add = self.learner.config, phases["add"]
        due = config.updates_in(clock) if self.learner.table.num_drawable else range(0)
        self.due(config.updates_by(clock.env_steps), len(due))

        def without_figures() -> Figures:  # those of the last updates are still there
            add()
            return {}

        return [add if due else without_figures]

    def due(self, num_made: int, number: int) -> None:
        """Says how many updates the next `learn` makes, after so many in all."""
        for place, now, told in zip(self._schedule, (num_made, number), self._told, strict=True):
            if now != told:  # a launch that most iterations do not need
                place.fill_(now)
        self._told = (num_made + number, number)

    def add_and_learn(self) -> Figures:
        return {**self.learner.add(), **self.learn()}

    def learn(self) -> Figures:
        """The updates that are due."""
        self.launch()
        return dict(zip(FIGURES, self._figures.unbind(), strict=True))

    def _prepare(self, backend: Backend, schedule: torch.Tensor) -> Callable[[], None]:
        learner, shape, config = self.learner, self.shape, self.learner.config
        table, guard, name, store = learner.table, learner.guard, learner.group.name, learner.table.store
        arrays = {"observation": store.tensors["observation_0"], "side": store.small["side_observation_0"]}
        arrays |= {name: store.tensors[name] for name in ("reward", "action", "done")}
        lanes, kernel = shape.threads // shape.rows, shape.kernel
        constants = {
            **table.constants(lanes),
            **shape.constants(),
            "IS_TANH": config.model.activates == "tanh",
            "DOUBLE": config.double,
            "HUBER_DELTA": float(config.huber_delta or 0.0),
            "TARGET_FREQ": config.target_update_freq,
            "TAU": float(config.tau),
            "CLIPS": config.clip_grad_norm,
        }
        if not isinstance(shape, QAloneShape):
            constants["PRIORITIZED"] = config.prioritized
        text = (KERNELS / f"{kernel}.cu").read_text()
        for word in ("done", "action"):  # in the signature, which is read here, and in what it includes
            code, kind = f"{word.capitalize()}Code", CTYPES[arrays[word].dtype]
            text = f"typedef {kind} {code};\n" + text.replace(code, kind)
        if shape.in_cluster:
            text = text.replace(" __launch_bounds__", f" __cluster_dims__({shape.team}, 1, 1) __launch_bounds__")
        functions = FunctionManager(
            None, text, constants, store.layout.num_envs, backend=backend,
            include_folders=[KERNELS, REPLAY], name=f"<fused {kernel}>",
        )  # fmt: skip
        own = self._arrays_of_block() if isinstance(shape, QAloneShape) else self._arrays_of_team()
        return functions.prepare(
            kernel,
            LaunchShape(shape.team, (shape.threads, 1), shape.launch_bytes),
            schedule=schedule,
            **arrays,
            **own,
            **layers_of(self.parameters),
            head=store.small["head"],
            seed=store.seed,
            draws=table.draws,
            target=self._target,
            average=self._adam.average,
            square=self._adam.square,
            adam_steps=self._adam.steps,
            lr=learner.scalars["lr"].view(1),
            halted=guard.flag_of(name),
            run_halted=guard.halted,
            first_name=guard.place_of("gradient", name),
            figures=self._figures,
            stratum=min((1 << 64) // shape.batch, (1 << 64) - 1),
            max_norm=float(config.max_grad_norm),
        )

    def _arrays_of_block(self) -> dict[str, Any]:
        """What is q_alone.cu's."""
        shape = self.shape
        return {"threads": torch.zeros(12 * shape.slots * shape.threads, device=self.learner.device)}

    def _arrays_of_team(self) -> dict[str, Any]:
        """What is q_learn.cu's."""
        shape, table = self.shape, self.learner.table
        numbers = partial(torch.zeros, device=self.learner.device)
        tree = table.selector.tree
        if tree is None:
            of_tree = {name: numbers(1, dtype=torch.int32) for name in ("leaves", "maximum")}
            of_tree |= {name: numbers(1, dtype=torch.int64) for name in ("nodes", "range", "refused")}
            of_tree["beta"] = numbers(1)
        else:
            of_tree = {one: getattr(tree, one) for one in ("leaves", "nodes", "range", "beta", "maximum", "refused")}
        selector = table.selector if isinstance(table.selector, Prioritized) else None
        return {
            **of_tree,
            "index": numbers(shape.batch, dtype=torch.int64),
            "lowest": numbers(shape.team, dtype=torch.int32),
            "priority_alpha": float(selector.alpha if selector else 0.0),
            "priority_epsilon": float(selector.epsilon if selector else 0.0),
            "parts": numbers(shape.team * shape.num_quads * 4),
            "sums": numbers(4 * shape.team),
            "elements": numbers(2 * shape.num_elements * shape.element_bytes, dtype=torch.uint8),
            "biases": numbers(2 * shape.num_biases),
            "arrivals": numbers(1, dtype=torch.uint64),
        }
