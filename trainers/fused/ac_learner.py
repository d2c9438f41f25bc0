"""Updates of SAC, TD3 and DDPG by fused kernels: rows through all networks (ac_learn.cu), gradients (ac_gradient.cu,
ac_gradient_by_groups.cu) and steps (ac_step.cu)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

import torch

from trainers.acting.actor import Call
from trainers.fused.ac_shape import ACShape, plan_ac
from trainers.fused.of_replay import ByKernels, Drawn, find_learner, join_memory
from trainers.fused.packed import KERNELS, bytes_of, elements_of
from trainers.fused.shape import to_tiles
from trainers.fused.source import in_clusters
from trainers.learning.adam_kernels import AdamMemory
from warpdrive.backends.base import LaunchShape
from warpdrive.function_manager import Constant, FunctionManager

if TYPE_CHECKING:
    from trainers.algorithms.actor_critic import ActorAndCritics
    from trainers.algorithms.algorithm import Figures
    from trainers.algorithms.off_policy import OffPolicy
    from trainers.algorithms.sac import SAC
    from trainers.algorithms.td3 import TD3
    from trainers.learning.optimiser import SafeAdam

OF_CRITICS = ("critic_loss", "q_mean", "td_error", "critic_grad_norm")
OF_POLICY = ("actor_loss", "entropy", "grad_norm", "alpha")
"""Figures, as a step writes them."""
NUM_SUMS = 4
"""Figures of a block of ac_learn.cu."""


def find_ac_learner(learner: ActorAndCritics) -> ActorAndCritics | FusedACLearner:
    """Who makes its updates: the kernels, or itself."""
    return find_learner(learner, plan_ac, lambda found: FusedSAC if found.samples else FusedTD3)


def compile_kernels(
    learner: OffPolicy, shape: ACShape, file: str, constants: Mapping[str, Constant]
) -> tuple[FunctionManager, FunctionManager, FunctionManager]:
    """Those that go by rows, of a file with `constants` of its own; who makes gradients; those of ac_step.cu."""
    config = learner.config
    shared = {**shape.constants(), "IS_TANH": config.model.activates == "tanh"}
    by_rows = {
        "THREADS": shape.threads, "SHARED_BYTES": shape.shared_bytes, "ROWS": shape.rows, "BATCH": shape.batch,
        "SPLIT": shape.split, "IN_BLOCKS": shape.by_groups,
    }  # fmt: skip
    of_gradient = {
        "FULL_PRECISION": shape.element_bytes == 4, "THREADS": shape.step_threads, "PARTS": shape.parts,
        "SHARED_BYTES": shape.step_shared_bytes,
    }  # fmt: skip
    of_step = {
        "THREADS": shape.step_threads, "TAU": float(config.tau),
        "MAX_NORM": float(config.max_grad_norm) if config.clip_grad_norm else 0.0,
    }  # fmt: skip
    backend = learner.group.rollout.env.backend
    gradients, clusters = ("ac_gradient_by_groups.cu", shape.parts) if shape.by_groups else ("ac_gradient.cu", 1)

    def compiled(file: str, constants: Mapping[str, Constant], clusters: int = 1) -> FunctionManager:
        text, named = in_clusters((KERNELS / file).read_text(), clusters), f"<fused {file}>"
        return FunctionManager(None, text, constants, backend=backend, include_folders=[KERNELS], name=named)

    return (
        compiled(file, {**shared, **by_rows, **constants}, shape.split),
        compiled(gradients, of_gradient, clusters),
        compiled("ac_step.cu", {**shared, **of_step}),
    )


class Learned:
    """Networks of one shape that learn together, the policy or all critics: their rows, and what is made of them.

    Args:
        optimizer: of all their parameters.
        layers: (outputs, inputs) of each network's.
        seen: [rows, width] elements, what the first layers are given.
        number: of the networks.
        gradients: a FunctionManager of who makes them.
        steps: one of ac_step.cu.
    """

    def __init__(
        self, optimizer: SafeAdam, layers: Sequence[tuple[int, int]], seen: torch.Tensor, number: int, shape: ACShape,
        gradients: FunctionManager, steps: FunctionManager,
    ) -> None:  # fmt: skip
        self.optimizer, self.layers, self.shape = optimizer, layers, shape
        self._gradients, self._steps = gradients, steps
        self._new = partial(torch.zeros, device=seen.device)

        def rows(width: int) -> torch.Tensor:
            return self._new(number, shape.num_rows, to_tiles(width), dtype=seen.dtype)

        self.given = [seen.expand(number, -1, -1), *(rows(out) for out, _ in layers[:-1])]
        """[networks, rows, width] elements: what each layer is given."""
        self.delta = [rows(out) for out, _ in layers]
        """The same of what the loss depends on each layer's sums."""
        self.adam = AdamMemory(optimizer)
        self.addresses = torch.tensor([one.data_ptr() for one in optimizer.parameters], device=seen.device)
        self.sums = self._new(shape.num_blocks, NUM_SUMS)
        """Figures of ac_learn.cu's blocks."""
        self._gradient, self._tasks = torch.zeros_like(self.adam.average), torch.tensor(list(self._tiles()))
        self._squares = self._new(len(self._tasks), shape.parts if shape.by_groups else 1)

    def hidden_rows(self) -> dict[str, torch.Tensor]:
        """Bytes of what hidden layers give; of one that is not there, of another's."""
        return dict(zip(("hidden1", "hidden2"), map(bytes_of, (*self.given[1:], self.given[1])), strict=False))

    def delta_rows(self) -> dict[str, torch.Tensor]:
        """Bytes of deltas, likewise."""
        hidden = dict(zip(("delta1", "delta2"), map(bytes_of, (*self.delta[:-1], self.delta[0])), strict=False))
        return {**hidden, "delta_out": bytes_of(self.delta[-1])}

    def prepare_gradient(self, halted: torch.Tensor, first_name: torch.Tensor) -> Call:
        shape, number = self.shape, len(self._tasks)
        launched = LaunchShape(number * shape.parts, (shape.step_threads, 1), shape.step_shared_bytes)
        sums = {}
        if not shape.by_groups:
            sums["parts"] = self._new(number * shape.parts * shape.sums_of_block if shape.parts > 1 else 1)
            sums["arrivals"] = self._new(number, dtype=torch.uint32)
        call = self._gradients.prepare(
            "ac_gradient", launched, tasks=self._tasks.flatten().to(self.addresses.device), num_rows=shape.num_rows,
            gradient=self._gradient, squares=self._squares, halted=halted, first_name=first_name, **sums,
        )  # fmt: skip

        def launch(_: Learned = self) -> None:  # keeps the memory whose addresses are in the tasks
            call()

        return launch

    def prepare_step(self, kernel: str, **given: object) -> Call:
        return self._steps.prepare(
            kernel, self.by_numbers(), addresses=self.addresses, gradient=self._gradient, squares=self._squares,
            num_tiles=self._squares.numel(), average=self.adam.average, square=self.adam.square,
            adam_steps=self.adam.steps, num_tensors=len(self.adam.steps), default_name=self.optimizer.first,
            sums=self.sums, num_blocks=self.shape.num_blocks, **given,
        )  # fmt: skip

    def by_numbers(self) -> LaunchShape:
        """A parameter a thread."""
        threads = self.shape.step_threads
        return LaunchShape(-(-len(self.adam.average) // threads), (threads, 1))

    def _tiles(self) -> Iterator[tuple[int, ...]]:
        """Tasks of `ac_gradient`."""
        weights, name = 0, self.optimizer.first
        for network in range(len(self.delta[0])):
            for given, delta, (out, in_) in zip(self.given, self.delta, self.layers, strict=True):
                biases = weights + out * in_
                outs, ins = self.shape.tile
                for first_out in range(0, out, outs):
                    for first_in in range(0, in_, ins):
                        places = delta[network].data_ptr(), given[network].data_ptr()
                        sizes = out, in_, delta.shape[2], given.shape[2]
                        yield (*places, *sizes, first_out, first_in, weights, biases, name)
                weights, name = biases + out, name + 2


class ByRows(ByKernels):
    """Makes an algorithm's updates by kernels that go by rows, and by those that learn from what they kept of them. The
    optimisers' memory and target networks become views of one piece of memory each.

    Args:
        learner: its networks, table and optimisers are there.
        shape: of `plan_ac` or `plan_wide_q`.
        file: with the former kernels, and `constants` of its own.
    """

    def __init__(self, learner: OffPolicy, shape: ACShape, file: str, constants: Mapping[str, Constant]) -> None:
        self.learner, self.shape = learner, shape
        self._new = new = partial(torch.zeros, device=learner.device)
        self._rows, self._gradients, self._step = compile_kernels(learner, shape, file, constants)
        self._drawn = Drawn(learner, shape.num_features, shape.is_plain)
        self._seen = new(1, shape.num_rows, to_tiles(shape.critic[0][1]), dtype=elements_of(shape.element_bytes))
        self._error, self._nothing = new(shape.batch), new(1)
        self._networks = {
            "elements": new(shape.num_elements * shape.element_bytes, dtype=torch.uint8),
            "biases": new(shape.num_biases),
        }
        guard, name = learner.guard, learner.group.name
        self._flags = {"halted": guard.flag_of(name), "first_name": guard.place_of("gradient", name)}
        self._stepped = {**self._flags, **self._networks, "run_halted": guard.halted, "steps": new(2)}
        self._by_rows = LaunchShape(shape.num_blocks * shape.split, (shape.threads, 1), shape.shared_bytes)

    def prepare_targets(self, learned: Learned, **targets: torch.Tensor) -> None:
        """What copies networks to where products read them, and lets targets follow."""
        given = {**self._networks, "addresses": learned.addresses, **targets}
        self._follow = self._step.prepare("ac_follow", learned.by_numbers(), **given)
        self._pack = self._step.prepare("ac_pack", learned.by_numbers(), **given)

    def pack(self) -> None:
        self._pack()

    def follow(self) -> Figures:
        self._follow()
        return {}


class FusedACLearner(ByRows):
    """Updates of a policy and its critics. In `learn` the policy's may be left to a phase of its own."""

    learner: ActorAndCritics

    def __init__(self, learner: ActorAndCritics, shape: ACShape) -> None:
        noise = {"TARGET_NOISE": "target_noise", "NOISE_CLIP": "target_noise_clip"}  # SAC has none
        constants = {name: getattr(learner.config, key, 0.0) for name, key in noise.items()}
        constants["LOG_STD_INIT"] = learner.config.model.log_std_init
        super().__init__(learner, shape, "ac_learn.cu", constants)
        self._of_critics, self._of_policy = self._new(len(OF_CRITICS)), self._new(len(OF_POLICY))
        compiled = shape, self._gradients, self._step
        self.actor = Learned(learner.optimizer, shape.actor, self._seen, 1, *compiled)
        self.critics = Learned(learner.critic_optimizer, shape.critic, self._seen, shape.num_critics, *compiled)
        self._target = join_memory(list(learner.target_critics.parameters()))
        followed = self._nothing if shape.samples else join_memory(list(learner.target.parameters()))
        more = {"actor_addresses": self.actor.addresses, "actor_target": followed}
        self.prepare_targets(self.critics, target=self._target, **more)
        self._prepare()

    def _learn_critics(self) -> Figures:
        self._drawn.draw()
        for call in self._learns_critics:
            call()
        self.learner.keep_errors(self._error)
        return dict(zip(OF_CRITICS, self._of_critics.unbind(), strict=True))

    def _learn_policy(self) -> Figures:
        for call in self._learns_policy:
            call()
        return dict(zip(OF_POLICY, self._of_policy.unbind(), strict=True))

    def _temperature(self) -> dict[str, object]:
        """What the policy's step is told of it."""
        nothing = dict.fromkeys(("log_alpha", "alpha_average", "alpha_square", "alpha_steps"), self._nothing)
        return {**nothing, "learns_alpha": False, "target_entropy": 0.0, "alpha_name": 0}

    def _prepare(self) -> None:
        """An update's launches, from what was drawn."""
        learner, shape, actor, critics = self.learner, self.shape, self.actor, self.critics
        batch, scalars, head, drawn = learner.batch, learner.scalars, learner.policy.head, self._drawn
        temperature, stepped = self._temperature(), self._stepped
        given = {
            **self._networks, "observation": drawn.observation, "weight": drawn.weight,
            "seed": learner.table.store.seed, "draws": learner.table.draws,
            "log_alpha": temperature["log_alpha"],
            "outputs": self._new(shape.batch, shape.num_outputs) if shape.samples else self._nothing,
            **{f"actor_{rows}": tensor for rows, tensor in actor.hidden_rows().items()},
        }  # fmt: skip
        judge = self._rows.prepare(
            "ac_judge", self._by_rows, **given, **critics.hidden_rows(), **critics.delta_rows(),
            next_observation=drawn.next_observation, action=batch.action, centre=head.centre,
            scale=head.scale, reward=batch.reward, discount=batch.discount, critic_steps=critics.adam.steps,
            actor_steps=actor.adam.steps, steps=stepped["steps"], seen=bytes_of(self._seen), error=self._error,
            sums=critics.sums,
        )  # fmt: skip
        step_critics = critics.prepare_step(
            "ac_step_critics", **stepped, lr=scalars.get("critic_lr", scalars["lr"]).view(1), target=self._target,
            figures=self._of_critics, follows=self.follows_within,
        )  # fmt: skip
        improve = self._rows.prepare("ac_improve", self._by_rows, **given, **actor.delta_rows(), sums=actor.sums)
        step_actor = actor.prepare_step(
            "ac_step_actor", **stepped, lr=scalars["lr"].view(1), figures=self._of_policy, **temperature
        )
        self._learns_critics = [judge, critics.prepare_gradient(**self._flags), step_critics]
        self._learns_policy = [improve, actor.prepare_gradient(**self._flags), step_actor]


class FusedSAC(FusedACLearner):
    """Critics, policy and temperature in one phase."""

    learner: SAC

    def learn(self) -> Figures:
        return {**self._learn_critics(), **self._learn_policy()}

    def _temperature(self) -> dict[str, object]:
        learner, optimizer = self.learner, self.learner.temperature_optimizer
        found = super()._temperature() | {"log_alpha": learner.temperature["log"].detach().view(1)}
        if optimizer is None:
            return found
        memory = AdamMemory(optimizer)
        found |= {"alpha_average": memory.average, "alpha_square": memory.square, "alpha_steps": memory.steps}
        target = {"target_entropy": float(learner.target_entropy), "alpha_name": optimizer.first}
        return {**found, **target, "learns_alpha": True}


class FusedTD3(FusedACLearner):
    """The policy's update is a phase of its own, and so is following."""

    learner: TD3
    follows_within = False

    def updates(self) -> Mapping[str, Callable[[], Figures]]:
        return {**super().updates(), "improve": self.improve}

    def learn(self) -> Figures:
        return {**self._learn_critics(), "outermost": 0.0}

    def improve(self) -> Figures:
        found = self._learn_policy()
        return {name: found[name] for name in ("actor_loss", "grad_norm")}
