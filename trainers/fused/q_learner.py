"""Q-learning from a replay store by fused kernels: as many updates as are due in one launch, by one block (q_alone.cu)
or several (q_learn.cu)."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn

import torch

from trainers.acting.epsilon_greedy import NEVER
from trainers.algorithms.algorithm import START, Clock
from trainers.fused.actor import place_constants
from trainers.fused.layered_q import LayeredQ, LayeredQLearner, plan_layered_q
from trainers.fused.limits import Limits
from trainers.fused.of_replay import ByKernels, find_learner, join_memory, why_no_kernel, why_not_plain
from trainers.fused.packed import KERNELS
from trainers.fused.q_shape import QAloneShape, QShape, fit_alone, fit_q
from trainers.fused.shape import to_tiles
from trainers.fused.source import in_clusters
from trainers.fused.told import LearnsByKernels
from trainers.fused.wide_q import WideQLearner, WideQShape, plan_wide_q
from trainers.fused.with_envs import compile_with_envs, envs_of_block
from trainers.learning.adam_kernels import AdamMemory
from trainers.networks.policy import inputs_of
from trainers.replay.kernel_text import HERE as REPLAY
from trainers.replay.records import in_one_run
from trainers.replay.selectors import Prioritized
from warpdrive.backends.base import LaunchShape
from warpdrive.errors import ConfigError
from warpdrive.function_manager import Constant, FunctionManager
from warpdrive.layout import FINAL
from warpdrive.signature import CTYPES

if TYPE_CHECKING:
    from trainers.algorithms.algorithm import Figures
    from trainers.algorithms.dqn import DQN, DQNConfig
    from trainers.experience.spec import GroupSpec

FIGURES = ("loss", "q_mean", "td_error", "grad_norm")
"""Of the last update, as the kernel writes them."""
KERNEL = "Q-learning"
"""As which it is told of."""
_RINGS = {"DONE": "done", "ACTION": "action", "REWARD": "reward", "SEEN": "observation_0"}


def plan_q(
    config: DQNConfig, spec: GroupSpec, limits: Limits, precision: str, num_ranks: int = 1
) -> QShape | WideQShape | LayeredQ | str:
    """How a kernel makes a learner's updates; or several, where the network has no room in a block, or what is drawn is
    not in the store as it is; or in words why none can."""
    found = _plan_small(config, spec, limits, precision, num_ranks)
    if not isinstance(found, str) or config.updates_in_rollouts:
        return found
    return plan_layered_q(config, spec, limits, precision, num_ranks) or found


def _plan_small(
    config: DQNConfig, spec: GroupSpec, limits: Limits, precision: str, num_ranks: int
) -> QShape | WideQShape | str:
    """Of networks whose layers stay on the chip."""
    if why := why_not(config, spec, limits, precision):
        return why
    if num_ranks > 1:
        return "the kernel of Q-learning is of one GPU"
    sizes = widths_of(config, spec), config.batch_size, limits, 2 if precision == "bf16" else 4
    why = why_not_plain(config, spec, KERNEL)
    is_plain = why is None
    if config.updates_in_rollouts:
        return why or fit_alone(*sizes)
    is_drawn_evenly = is_plain and not (config.tiers or config.hindsight or config.prioritized)
    if is_drawn_evenly and limits.capability is not None and limits.num_multiprocessors == 1:
        alone = fit_alone(*sizes)
        if not isinstance(alone, str):
            return alone
    found = fit_q(*sizes) if is_plain and not (config.tiers or config.hindsight) else "it is not there as it is seen"
    return plan_wide_q(*sizes, is_plain) if isinstance(found, str) else found


def find_q_learner(learner: DQN) -> DQN | FusedQLearner | ByKernels:
    """Who makes its updates: a kernel, or itself.

    Raises:
        ConfigError: they are to be made in rollouts, and no kernel can.
    """
    kinds = {QAloneShape: FusedQLearner, QShape: FusedQLearner, WideQShape: WideQLearner, LayeredQ: LayeredQLearner}
    found = find_learner(learner, plan_q, lambda shape: kinds[type(shape)])
    if learner.config.updates_in_rollouts and not isinstance(found, FusedQLearner):
        refuse_in_rollouts(learner, learner.group.actor.why)
    return found


def refuse_in_rollouts(learner: DQN, why: str) -> NoReturn:
    """Raises ConfigError: no kernel makes its updates between the steps of a rollout."""
    num_envs = learner.group.rollout.num_envs
    raise ConfigError(
        f"policy.{learner.group.name}.updates_in_rollouts: {why}. Leave it out and set trainer.train_batch_size: "
        f"{num_envs}, a step an iteration, which does the same."
    )


def why_not(config: DQNConfig, spec: GroupSpec, limits: Limits, precision: str) -> str | None:
    """Why no kernel knows a policy's network, in words; None if some do."""
    unknown = {"dueling": config.dueling, "noisy": config.noisy}
    return why_no_kernel(config, spec, limits, precision, KERNEL, unknown)


def widths_of(config: DQNConfig, spec: GroupSpec) -> tuple[int, ...]:
    """Of the features, the hidden layers and the actions."""
    return inputs_of(spec, config).num_features, *config.model.fc_dims, int(spec.action_space.n)


def layers_of(parameters: Sequence[torch.nn.Parameter]) -> dict[str, torch.Tensor]:
    """A network's parameters by what the kernels call them; of layers that are not there, a number that is not read."""
    names = [f"{kind}{layer}" for layer in range(3) for kind in ("weight", "bias")]
    given = [one.detach() for one in parameters]
    return dict(itertools.zip_longest(names, given, fillvalue=given[-1]))


class FusedQLearner(LearnsByKernels):
    """Makes an algorithm's updates by the kernel.

    The network's parameters, the target network's and Adam's memory stay the algorithm's; those of the last two become
    views of one piece of memory each, in the same order.

    Args:
        learner: its networks, table and optimiser are there.
        shape: of `plan_q`.
    """

    def __init__(self, learner: DQN, shape: QShape) -> None:
        self.learner, self.shape = learner, shape
        self.in_rollouts = learner.config.updates_in_rollouts
        # Else blocks wait for each other that nothing but room brings onto the GPU at once.
        self.shares_nothing = shape.team == 1 or shape.in_cluster
        numbers = partial(torch.zeros, device=learner.device)
        self.parameters = list(learner.policy.parameters())
        self._schedule = numbers(2, dtype=torch.int64)
        """Updates made, and updates that are due: what the kernel has of both."""
        self._told: tuple[int | None, int | None] = (None, None)
        self._figures = numbers(len(FIGURES))
        self._target = join_memory(list(learner.target.parameters()))
        self._adam = AdamMemory(learner.optimizer)
        self.launch = self._prepare()
        if self.in_rollouts:  # in place of what only plays
            learner.group.rollout.calls[0] = self.launch
            learner.set_scalars(START)

    def updates(self) -> dict[str, Callable[[], Figures]]:
        """One graph an iteration: the rollout is kept, and all updates that are due are made; unless it was made of
        both."""
        return {} if self.in_rollouts else {"add": self.add_and_learn}

    def at_once(self, phases: Mapping[str, Callable[[], Figures]], clock: Clock) -> Sequence[Callable[[], Figures]]:
        """What an iteration calls: "add", which makes all updates, and steps the target network."""
        if self.in_rollouts:
            # What is scheduled is set for the next rollout, which is made of its updates, too.
            self.learner.set_scalars(Clock(clock.iteration + 1, clock.env_steps + clock.batch, clock.batch))
            return [self.figures]
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

    def state(self) -> dict[str, torch.Tensor]:
        """What a rollout that learns begins with: the env steps before it."""
        return {"env_steps": self._schedule[1].view(1)} if self.in_rollouts else {}

    def restored(self) -> None:
        if self.in_rollouts:
            self.learner.set_scalars(Clock(0, int(self._schedule[1]), 0))

    def figures(self) -> Figures:
        """Of the last update."""
        return dict(zip(FIGURES, self._figures.unbind(), strict=True))

    def add_and_learn(self) -> Figures:
        return {**self.learner.add(), **self.learn()}

    def learn(self) -> Figures:
        """The updates that are due."""
        self.launch()
        return self.figures()

    def _prepare(self) -> Callable[[], None]:
        shape = self.shape
        self.arrays = self._arrays()
        """What the kernel is given, by parameter."""
        functions = self.compile()
        self.signature = functions.signature(shape.kernel)
        launch = LaunchShape(shape.team, (shape.threads, 1), shape.launch_bytes)
        return functions.prepare(shape.kernel, launch, **self.arrays)

    def compile(self, change: Callable[[str], str] | None = None) -> FunctionManager:
        """The kernel; where it plays, with the text that `change` makes of its own: see `compile_with_envs`."""
        learner, shape, config, store = self.learner, self.shape, self.learner.config, self.learner.store
        constants = {
            **learner.table.constants(shape.threads // shape.rows),
            **shape.constants(),
            "IS_TANH": config.model.activates == "tanh",
            "DOUBLE": config.double,
            "HUBER_DELTA": float(config.huber_delta or 0.0),
            "TARGET_FREQ": config.target_update_freq,
            "TAU": float(config.tau),
            "CLIPS": config.clip_grad_norm,
            **{f"{name}_SLOT": store.tensors[one].stride(0) for name, one in _RINGS.items()},
            **{f"{name}_ENV": store.tensors[one].stride(1) for name, one in _RINGS.items()},
        }
        if not isinstance(shape, QAloneShape):
            constants["PRIORITIZED"] = config.prioritized
        text = (KERNELS / f"{shape.kernel}.cu").read_text()
        for word in ("done", "action"):  # in the signature, which is read here, and in what it includes
            code, kind = f"{word.capitalize()}Code", CTYPES[store.tensors[word].dtype]
            text = f"typedef {kind} {code};\n" + text.replace(code, kind)
        text = in_clusters(text, shape.team if shape.in_cluster else 1)
        if self.in_rollouts:
            return self._with_envs(text, constants, change)
        return FunctionManager(
            None, text, constants, store.layout.num_envs, backend=learner.group.rollout.env.backend,
            include_folders=[KERNELS, REPLAY], name=f"<fused {shape.kernel}>",
        )  # fmt: skip

    def _arrays(self) -> dict[str, Any]:
        learner, store = self.learner, self.learner.store
        guard, name = learner.guard, learner.group.name
        return {
            "schedule": self._schedule,
            "observation": in_one_run(store.tensors["observation_0"]),
            "side": store.small["side_observation_0"],
            **{one: in_one_run(store.tensors[one]) for one in ("reward", "action", "done")},
            **layers_of(self.parameters),
            "head": store.small["head"],
            "seed": store.seed,
            "draws": learner.table.draws,
            "target": self._target,
            "average": self._adam.average,
            "square": self._adam.square,
            "adam_steps": self._adam.steps,
            "lr": learner.scalars["lr"].view(1),
            "halted": guard.flag_of(name),
            "run_halted": guard.halted,
            "first_name": guard.place_of("gradient", name),
            "figures": self._figures,
            "stratum": min((1 << 64) // self.shape.batch, (1 << 64) - 1),
            "max_norm": float(learner.config.max_grad_norm),
            **(self._arrays_of_block() if isinstance(self.shape, QAloneShape) else self._arrays_of_team()),
        }

    def _with_envs(
        self, text: str, constants: Mapping[str, Constant], change: Callable[[str], str] | None
    ) -> FunctionManager:
        """The kernel that steps the envs, too; what it takes of them is added to `arrays`."""
        learner, shape, group = self.learner, self.shape, self.learner.group
        rollout, env, actor, num_agents = group.rollout, group.rollout.env, group.actor, len(group.agents)
        step, rows = env.step_function(), to_tiles(env.num_envs * num_agents)
        if not rollout.is_whole or step is None:
            refuse_in_rollouts(learner, "something but the policy and the envs has a part in each step")
        if 2 * rows > shape.rows:
            most = shape.rows // 32 * 16 // num_agents
            told = f"a block steps {most} envs beside updates of {shape.batch} samples, and there are {env.num_envs:,}"
            refuse_in_rollouts(learner, told)
        if envs_of_block(step, num_agents, rows, shape.threads) < env.num_envs:
            told = f"{env.num_envs} envs with {step.threads_per_env} threads each do not fit a block that learns"
            refuse_in_rollouts(learner, told)
        if shape.bytes_to_play(rows) > shape.room:
            refuse_in_rollouts(learner, "a block has no room for what its envs' agents see, beside the network")
        played = {
            **place_constants(group),
            "BLOCK_ROWS": env.num_envs * num_agents,
            "PLAYED_ROWS": rows,
            "ALL_AGENTS": env.num_agents,
            "NUM_SIDES": learner.store.layout.num_sides,
            "MAX_TRUNCATIONS": rollout.max_truncations,
            "GREEDY": False,
            "HAS_EXPONENTS": actor.exponents is not None,
            "NEVER": NEVER,
        }
        functions, of_envs = compile_with_envs(
            text, shape.kernel, {**constants, **played}, step, rollout, env.num_envs, [REPLAY], change, is_long=True
        )
        self.arrays |= {**of_envs, "num_steps": rollout.num_steps}
        return functions

    def _arrays_of_block(self) -> dict[str, Any]:
        """What is q_alone.cu's. Where it does not play, it reads nothing of what is played by."""
        learner, shape, group = self.learner, self.shape, self.learner.group
        rollout, small, actor, data = group.rollout, learner.store.small, group.actor, group.rollout.env.data
        found = {
            "threads": torch.zeros(12 * shape.slots * shape.threads, device=learner.device),
            "env_seed": data["seed"],
            "env_step": data["env_step"],
            "epsilon": actor.epsilon,
            "exponents": actor.epsilon if actor.exponents is None else actor.exponents.flatten(),
            "seen": group.seen_array,
            "acted": group.action_array,
            "q_value": group.q_value,
            "paid": rollout.reward,
            "terminated": rollout.terminated,
            "truncated": rollout.truncated,
            "last": data[FINAL + group.spec.seen[0].array],
            "truncations": data["num_truncated"],
            "learning_starts": learner.config.learning_starts,
            "replay_ratio": torch.tensor([learner.config.replay_ratio], dtype=torch.float64, device=learner.device),
            "num_steps": 0,
        }
        return {**found, **{name: small[name] for name in ("side_step", "num_truncated", "num_dropped")}}

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
