"""What algorithms share that learn from transitions that are kept: a store, who is drawn, targets that follow slowly.

Agents of one policy learn each from its own transitions and share the networks.

Source: Lin 1992, "Self-improving reactive agents", doi:10.1007/BF00992699; Schaul et al. 2016, "Prioritized experience
replay", arXiv:1511.05952.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from trainers import torch_later as torch
from trainers.algorithms.algorithm import START, Algorithm, Clock, Figures
from trainers.errors import MemoryShortError
from trainers.replay.goals import why_no_goals
from trainers.replay.tiers import TiersConfig
from trainers.settings.config import PolicyConfig
from warpdrive.config import Between, Count, Number, Positive, Size
from warpdrive.errors import ConfigError

if TYPE_CHECKING:  # a config is checked before torch is loaded
    from torch import nn

    from trainers.acting.actor import Actor
    from trainers.experience.field import Field
    from trainers.experience.group_rollout import GroupRollout
    from trainers.experience.spec import GroupSpec
    from trainers.learning.following import Following
    from trainers.learning.guard import Guard
    from trainers.learning.optimiser import SafeAdam
    from trainers.replay.batch import Batch
    from trainers.replay.selectors import Selector
    from trainers.replay.sequences import Sequences
    from trainers.replay.storage import Layout, Window
    from trainers.replay.store import ReplayStore
    from trainers.replay.windows import Transitions

MOST_UPDATES = 1_000_000
"""Of an iteration: the host makes a list of them."""


@dataclass(frozen=True)
class OffPolicyConfig(PolicyConfig):
    """What the configs of algorithms that replay have beyond it."""

    TAKES_GOALS: ClassVar[bool] = True
    """Whether what is learned from are single steps of single agents, which another goal can be given."""

    buffer_size: Count = 100_000
    """Transitions that are kept, over all envs and agents, rounded up to whole iterations, and to what an item
    takes of each env. Each of several GPUs keeps those of its envs."""
    n_step: Annotated[int, Between(1, 1_000)] = 1
    """Rewards that are added up ahead of the value of what is seen then; fewer where the episode ends."""
    prioritized: bool = False
    """Whether transitions are drawn by how wrong their Q-values last were, instead of uniformly."""
    alpha: Annotated[float, Between(0, 1)] = 0.6
    """How much errors decide who is drawn: by (error + priority_epsilon)^alpha; 0: not at all."""
    beta: Annotated[Number, Between(0, 1)] = 0.4
    """How far weights of the loss make up for that; 1: for all of it. A schedule counts env steps."""
    priority_epsilon: Annotated[float, Between(0)] = 1e-6
    """What errors are added to, so that what is right at one time is drawn again."""
    learning_starts: Size = 5_000
    """Env steps before the first update, over all envs."""
    batch_size: Count = 128
    """Transitions of an update; of several GPUs, of all together."""
    replay_ratio: Positive = 0.1
    """Updates an env step, over all envs."""
    target_update_freq: Count = 1
    """Updates from one step of the target network to the next."""
    tau: Annotated[float, Between(0, 1)] = 0.01
    """How far the target network steps towards the network: 1 copies it."""
    hindsight: Size = 0
    """For each transition with its own goal, how many are learned from with one that the same episode came to later;
    of envs with goals (see docs/write_an_env.md). 4 is usual; 0: none."""
    tiers: TiersConfig = field(default_factory=TiersConfig)
    """Where transitions are kept that the device has no room for."""

    @property
    def kept(self) -> Sequence[str]:
        """Names of the actor's fields that the store keeps, besides what is seen, done and paid."""
        return ()

    @property
    def window_keys(self) -> Sequence[str]:
        """That say how many steps are learned from together."""
        return ("n_step",)

    def updates_by(self, env_steps: int) -> int:
        """That are due after so many env steps."""
        return int(self.replay_ratio * max(0, env_steps - self.learning_starts))

    def updates_in(self, clock: Clock) -> range:
        """The numbers, from 1 on, of the updates that are due in an iteration, if anything can be drawn by then."""
        begun, ended = clock.env_steps, clock.env_steps + clock.batch
        if ended < self.learning_starts:
            return range(0)
        return range(self.updates_by(begun) + 1, self.updates_by(ended) + 1)

    @property
    def steps_needed(self) -> int:
        """Of an env, until something can be drawn."""
        window = self.window()
        return -(-window.behind // window.period) * window.period + window.ahead

    def learning_soon(self) -> OffPolicyConfig:
        """Which begins to learn as soon as a batch may have come in."""
        return dataclasses.replace(self, learning_starts=min(self.learning_starts, self.batch_size))

    def of_rank(self, num_ranks: int) -> OffPolicyConfig:
        sizes = {"buffer_size": -(-self.buffer_size // num_ranks), "batch_size": self.batch_size // num_ranks}
        return dataclasses.replace(self, **sizes)

    def problems(self) -> Iterator[tuple[str, str]]:
        yield from super().problems()
        if self.buffer_size < self.batch_size:
            message = f"{self.buffer_size} transitions are fewer than the {self.batch_size} of an update (batch_size)."
            yield "buffer_size", f"{message} Keep more, or learn from fewer."
        if self.hindsight and (self.n_step > 1 or self.tiers or not self.TAKES_GOALS):
            told = "other goals are for single steps of single agents, all of them on the device"
            yield "hindsight", f"{told}. Set n_step: 1 and leave tiers out, or take DQN, SAC or TD3."
        for key, message in self.tiers.problems():
            yield f"tiers.{key}", message
        if self.tiers.admit.startswith("priority") and not self.prioritized:
            yield "tiers.admit", "transitions have no priorities. Set prioritized: true, or admit: all or stride:4."

    def problems_with(self, spec: GroupSpec, num_steps: int, num_envs: int) -> Iterator[tuple[str, str]]:
        yield from super().problems_with(spec, num_steps, num_envs)
        num_env_steps = num_steps * num_envs
        if self.replay_ratio * num_env_steps > MOST_UPDATES:
            message = f"{self.replay_ratio:g} asks for {self.replay_ratio * num_env_steps:,.0f} updates of an iteration"
            message += f" ({num_env_steps:,} env steps), and at most {MOST_UPDATES:,} can be planned."
            yield "replay_ratio", f"{message} Lower it, or train_batch_size."

    def window(self) -> Transitions | Sequences:
        """What is learned from."""
        from trainers.replay.windows import Transitions

        return Transitions(n_step=self.n_step, gamma=self.gamma)

    def selector(self) -> Selector:
        """Who is drawn."""
        from trainers.replay.selectors import Prioritized, Uniform

        return Prioritized(self.alpha, self.beta, self.priority_epsilon) if self.prioritized else Uniform()

    def capacity(self, spec: GroupSpec, num_steps: int, num_envs: int) -> int:
        """Env steps, over all envs, that hold `buffer_size` transitions: those that are under way apart."""
        window = num_envs * num_steps
        env_steps = -(-self.buffer_size // spec.num_agents) + self.n_step * num_envs
        return -(-env_steps // window) * window


class OffPolicy(Algorithm):
    """Keeps all rollouts, and makes as many updates as are due. Derive from it:

    class DQN(OffPolicy):
        def __init__(self, ...):
            super().__init__(...)
            self.target = copy.deepcopy(self.policy)
            self.followers = [(self.target, self.policy)]

        def learn(self):            # one update
            batch = self.draw()
            counts = batch.weight.sign()
            ((losses * batch.weight).sum() / self.number_of(counts)).backward()
            self.optimizer.reduce(figures)  # gradients of all ranks, summed up
            self.optimizer.safe_step()
            self.keep_errors(error)

    Several ranks keep and draw the transitions of their own envs, as from one store: `batch_size`, `learning_starts`
    and `replay_ratio` are of all of them together; see replay/one_tree.py.

    An algorithm says of `num_bytes` what its networks and an update take, besides what is said here.
    """

    FIGURES_OF_TIERS: ClassVar[Mapping[str, str]] = {
        "device_steps": "env steps that the replay store keeps on the device; this and what follows only with tiers",
        "pinned_steps": "env steps that it keeps in pinned host memory",
        "file_steps": "env steps that it keeps in files",
        "dropped_steps": "env steps so far that were not admitted to files, or found no room there",
        "fetched": "batches so far whose items were fetched from where they lay",
        "hits": "those that the learner did not wait for",
        "stalls": "times so far that the learner waited for a batch's items, or envs for a file to be written",
        "stall_seconds": "seconds so far that they did",
        "bytes_admitted": "bytes so far that went down to files",
        "bytes_written": "bytes so far that were written for that: less, where a checkpoint had written them",
        "bytes_read": "bytes so far that batches needed of files",
    }
    config: OffPolicyConfig
    followers: Sequence[tuple[nn.Module, nn.Module]] = ()
    """Networks that targets are made by, each with the one that it follows by `tau`."""
    _following: Following | None = None

    def __init__(self, config: OffPolicyConfig, group: GroupRollout, guard: Guard, seed: int = 0) -> None:
        from trainers.replay.of_group import store_of

        super().__init__(config, group, guard, seed)
        self._taken = self.taker(config, group.actor)
        (num_steps, num_envs, _), num_ranks = group.shape, self.world.size
        self.batch_size = config.batch_size // num_ranks
        """Transitions that this rank draws for an update."""
        capacity = config.capacity(group.spec, num_steps, num_envs * num_ranks) // num_ranks
        try:
            fields = self.stored(config, group.actor, num_steps)
            self.store = store_of(group, capacity, seed, fields, config.tiers.tiers())
        except (ConfigError, MemoryShortError) as error:  # a store knows no policy by name
            told = str(error)
            raise type(error)(f"policy.{group.name}.{told}" if told.startswith("tiers") else told) from None
        selector, halted = config.selector(), guard.flag_of(group.name)
        self.table = self.store.table("transitions", selector, config.window(), halted=halted, world=self.world)
        self._add = self.store.prepare_add(self.window_of_rollout())
        self.feed = None
        if self.store.tiered is None:
            self._draw, self.batch = self.table.prepare_draw(self.batch_size)
        else:
            self.feed = self.table.feed(self.batch_size, config.tiers.ahead)
            self._draw, self.batch = self.feed.use, self.feed.batch  # `calls` has each batch made
        has_holes = self.store.tiered is not None and self.store.tiered.division.has_holes
        self._all_count = group.active is None and self.batch.valid is None and not has_holes
        """Whether all that is drawn is learned from: no agent leaves, no sequence is cut short, no tier loses any."""
        self._relabel: Callable[[], None] | None = None
        if config.hindsight:
            from trainers.replay.hindsight import Hindsight

            env = group.rollout.env
            goals = Hindsight(self.table, self.batch, env, group.spec, config.hindsight, self.generator)
            self._relabel = goals.relabel
        if config.prioritized:
            self._priority = self.batch.weight.clone()
            self._update = self.table.prepare_update(self.batch.index, self._priority)

    @classmethod
    def why_not(cls, config: OffPolicyConfig, spec: GroupSpec) -> str | None:
        return (why_no_goals(spec) if config.hindsight else None) or super().why_not(config, spec)

    @classmethod
    def stored(cls, config: OffPolicyConfig, actor: Actor, num_steps: int) -> list[Field]:
        """What its store keeps of each step of rollouts of so many."""
        from trainers.replay.of_group import fields_of

        return fields_of(actor.spec, cls.kept(config, actor, num_steps))

    @classmethod
    def kept(cls, config: OffPolicyConfig, actor: Actor, num_steps: int) -> list[Field]:
        """Of that, what is the actor's."""
        return [one for one in actor.fields(num_steps) if one.name in config.kept]

    @classmethod
    def layout(cls, config: OffPolicyConfig, actor: Actor, num_steps: int, num_envs: int) -> Layout:
        """How much its store keeps of what."""
        from trainers.replay.of_group import layout_of

        capacity = config.capacity(actor.spec, num_steps, num_envs)
        return layout_of(actor.spec, cls.stored(config, actor, num_steps), num_steps, num_envs, capacity)

    @classmethod
    def taker(cls, config: OffPolicyConfig, actor: Actor) -> Callable[[Batch], Any]:
        """What gives a draw of its table as its networks take it."""
        from trainers.replay.of_group import samples_of

        return partial(samples_of, features=actor.features, num_agents=actor.spec.num_agents)

    @classmethod
    def blank_batch(cls, config: OffPolicyConfig, actor: Actor) -> Any:
        """Of NUM_ROWS items, all of them zeros; to count bytes by."""
        from trainers.replay.of_group import blank_batch

        window = config.window()
        return cls.taker(config, actor)(blank_batch(actor.spec, window, cls.stored(config, actor, window.period)))

    def window_of_rollout(self) -> Window:
        """The rollout's part of what the store keeps, as it takes it in."""
        from trainers.replay.of_group import window_of

        return window_of(self.group, self.config.kept)

    def adam(self, module: nn.Module, lr: torch.Tensor, beside: str | None = None) -> SafeAdam:
        """Of all of a module's parameters; see SafeAdam."""
        from trainers.learning.optimiser import SafeAdam

        max_norm = self.config.max_grad_norm if self.config.clip_grad_norm else math.inf
        parameters = [{"params": list(module.parameters())}]
        return SafeAdam(module, parameters, lr, self.guard, self.group.name, max_norm, beside)

    @classmethod
    def why_idle(cls, config: OffPolicyConfig, num_env_steps: int, num_envs: int) -> str | None:
        steps, needed = num_env_steps // num_envs, config.steps_needed
        if steps < needed:
            keys = ", ".join(f"{key} {getattr(config, key)}" for key in config.window_keys)
            told = f"what it learns from ({keys}) takes {needed:,} steps of an env, and this run has {steps:,} of each."
            return f"{told} Shorten it, train longer, or by fewer envs."
        if config.updates_by(num_env_steps):
            return None
        keys = f"learning_starts: {config.learning_starts} and replay_ratio: {config.replay_ratio:g}"
        way_out = "Lower learning_starts, or train longer."
        return f"{keys} leave it no update in the {num_env_steps:,} env steps of this run. {way_out}"

    @classmethod
    def num_bytes(
        cls, config: OffPolicyConfig, actor: Actor, num_steps: int, num_envs: int, device: str
    ) -> dict[str, int]:
        from trainers.replay.feed import Feed
        from trainers.replay.storage import bytes_of
        from trainers.replay.store import division_of
        from trainers.replay.sum_tree import bytes_of_tree

        window, layout = config.window(), cls.layout(config, actor, num_steps, num_envs)
        items = layout.num_slots // window.period * num_envs * (1 if window.axis == "env" else layout.num_agents)
        found = {
            "replay": layout.num_bytes,
            "priorities": (bytes_of_tree(items) + 4 * config.batch_size) if config.prioritized else 0,
            "batch": bytes_of(window.sizes(layout, config.batch_size)),
        }
        division = division_of(layout, config.tiers.tiers())
        if division is not None:
            fetched = Feed.num_bytes(layout, window, config.batch_size, config.tiers.ahead)
            found |= {"replay": division.device_bytes, "fetched": fetched}
            if device == "cpu":  # where pinned memory is the device's, too
                found |= {"pinned": division.pinned_bytes, "read": fetched if division.chunk else 0}
        return found

    def phases(self) -> Mapping[str, Callable[[], Figures]]:
        return {"add": self.add, **self.learns_by.updates()}

    def updates(self) -> Mapping[str, Callable[[], Figures]]:
        """The phases that are updates."""
        return {"learn": self.learn, "follow": self.follow}

    def at_once(self, phases: Mapping[str, Callable[[], Figures]], clock: Clock) -> Sequence[Callable[[], Figures]]:
        """What this iteration calls, as `learns_by` makes its updates: here one after the other."""
        return super().calls(clock, phases)

    def plan(self, clock: Clock) -> Sequence[str]:
        """Every rollout is kept. Of updates, as many as are due by then; every so many, the targets follow."""
        phases = ["add"]
        for number in self.config.updates_in(clock) if self.table.num_drawable else ():
            phases.append("learn")
            if number % self.config.target_update_freq == 0:
                phases.append("follow")
        return phases

    def stores(self) -> Mapping[str, ReplayStore]:
        return {"replay": self.store}

    def restored(self) -> None:
        self.store.restored()

    def update(self, clock: Clock = START, phases: Mapping[str, Callable[[], Figures]] | None = None) -> dict[str, Any]:
        self.store.count_window()
        self.table.at(clock.env_steps)  # here, so that it is right after a resume, too
        return super().update(clock, phases)

    def calls(self, clock: Clock, phases: Mapping[str, Callable[[], Figures]]) -> Sequence[Callable[[], Figures]]:
        if self.feed is not None:
            later = Clock(clock.iteration + 1, clock.env_steps + clock.batch, clock.batch)
            due = [self.plan(one).count("learn") for one in (clock, later)]
            add, learn = self.feed.adding(phases["add"], *due), self.feed.learning(phases["learn"])
            phases = {**phases, "add": add, "learn": learn}
        return self.learns_by.at_once(phases, clock)

    def report(self) -> Figures:
        return {} if self.store.tiered is None else self.store.tiered.counters()

    def add(self) -> Figures:
        """Keeps the rollout."""
        self._add()
        norm, group = self.policy.observation_norm, self.group
        if norm is not None:
            norm.update(group.observation[:-1].flatten(0, 2), None if group.active is None else group.active.flatten())
        return {}

    def learn(self) -> Figures:
        """One update."""
        raise NotImplementedError

    def follow(self) -> Figures:
        """The networks that targets are made by make their step towards those that they follow."""
        if self._following is None:
            from trainers.learning.following import Following

            self._following = Following(self.config.tau, self.group.rollout.env.backend)
        self._following.step(self.followers)
        return {}

    def draw(self) -> Any:
        """This rank's `batch_size` items of the update, in memory that the next draw writes anew."""
        self.draw_batch()
        return self.drawn()

    def draw_batch(self) -> Batch:
        """The same as the store has it."""
        self._draw()
        if self._relabel is not None:
            self._relabel()
        return self.batch

    def drawn(self) -> Any:
        """Those that were drawn last, for another phase of the same update."""
        return self.samples(self.batch)

    def samples(self, batch: Batch) -> Any:
        """What is learned from a batch that was drawn."""
        return self._taken(batch)

    def number_of(self, counts: torch.Tensor) -> torch.Tensor | int:
        """How many losses all ranks learn from, at least 1, by `counts` [...] of this one: 0 where one does not."""
        if self.world.size > 1 and self._all_count:
            return self.world.total(counts.numel())
        return self.world.total(counts.sum()).clamp_min(1.0)

    def keep_errors(self, error: torch.Tensor) -> None:
        """What was drawn last is drawn again by these errors [N] >= 0, if it is by any; not once a NaN was met, as the
        guard's flag is up by then."""
        if self.config.prioritized:
            self._priority.copy_(error.detach())
            self._update()
