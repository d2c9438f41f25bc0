"""R2D3: R2D2 that also learns from demonstrations, steps that somebody played before.

They lie in a store of their own, which nothing is added to. Each item of a batch is one of theirs with a probability of
`demo_ratio`, whatever the others are; both stores are drawn from by their own priorities, and both learn new ones.

Each of several ranks holds all demonstrations, and draws its part of a batch from them; new priorities go to all ranks,
so that all draw by the same.

Source: Gulcehre et al. 2019, "Making efficient use of demonstrations to solve hard exploration problems",
arXiv:1909.01387.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from trainers import torch_later as torch
from trainers.algorithms.algorithm import START, Clock, Figures, State
from trainers.algorithms.r2d2 import R2D2, R2D2Config
from trainers.settings.config import PathName
from trainers.settings.divisors import nearest_divisors
from warpdrive.config import Between
from warpdrive.errors import ConfigError, WarpDriveError

if TYPE_CHECKING:  # a config is checked before torch is loaded
    from trainers.acting.actor import Actor
    from trainers.experience.group_rollout import GroupRollout
    from trainers.experience.spec import GroupSpec
    from trainers.learning.guard import Guard
    from trainers.replay.of_group import SampledSequences
    from trainers.replay.store import ReplayStore


@dataclass(frozen=True)
class R2D3Config(R2D2Config):
    """`policy.<name>:` with `algorithm: R2D3`."""

    demonstrations: PathName | None = None
    """Folder of a dataset of this env, with what was played (see docs/replay.md). What its player remembered is
    not read: its sequences begin with an empty memory."""
    demo_ratio: Annotated[float, Between(0, 1)] = 0.25
    """Probability that an item of a batch is a demonstration."""

    def played(self) -> R2D3Config:
        return dataclasses.replace(self, demonstrations=None)

    def problems(self) -> Iterator[tuple[str, str]]:
        yield from super().problems()
        if not self.demonstrations:
            message = "R2D3 learns from a dataset, too, and none is named. Name its folder, which warpdrive export"
            yield "demonstrations", f"{message} --format dataset writes, or take R2D2."


def why_no_demonstrations(config: R2D3Config, spec: GroupSpec) -> str | None:
    """Why its dataset cannot be learned from here, as the end of a sentence with a way out; None if it can."""
    from trainers.replay.dataset import layout_of_dataset
    from trainers.replay.of_group import fields_of

    if not config.demonstrations:
        return None  # `problems` tells
    try:
        layout, num_steps = layout_of_dataset(Path(config.demonstrations))
    except WarpDriveError as error:
        return f"cannot read its demonstrations: {error}"
    told = f"cannot learn from demonstrations {config.demonstrations}:"
    ours = {one.name: (one.shape, one.dtype, one.axis) for one in fields_of(spec)}
    theirs = {one.name: (one.shape, one.dtype, one.axis) for one in layout}
    for name, one in ours.items():
        if theirs.get(name) != one:
            there = f"{list(theirs[name][0])} {theirs[name][1]}" if name in theirs else "nothing"
            return f"{told} they hold {there} as '{name}', and this env {list(one[0])} {one[1]}. Name a dataset of it."
    if layout.num_agents != spec.num_agents:
        return f"{told} they are of {layout.num_agents} agents, and it has {spec.num_agents}. Name a dataset of these."
    window = config.window()
    needed = window.behind + window.ahead
    if num_steps < needed or layout.num_slots < needed + window.period:
        keys = ", ".join(f"{key} {getattr(config, key)}" for key in config.window_keys)
        return f"{told} a sequence ({keys}, period {config.period}) takes {needed} steps of an env, and they have " + (
            f"{num_steps} in {layout.num_slots} slots. Shorten it, or record more."
        )
    for one in layout:
        if config.period % one.every or config.burn_in % one.every:
            return f"{told} '{one.name}' is there every {one.every} steps. Make period and burn_in multiples of it."
    if layout.num_slots % config.period:
        told += f" period {config.period} does not divide their {layout.num_slots} slots."
        return f"{told} The nearest that do: {nearest_divisors(layout.num_slots, config.period)}."
    return None


def why_not_learned_from(demonstrations: ReplayStore, num_actions: int) -> str | None:
    """What is in a dataset's steps that no player can have played, or no network learns from; None: nothing."""
    least, most = (int(one) for one in demonstrations.tensors["action"].aminmax())
    if least < 0 or most >= num_actions:
        return f"'action' holds {least if least < 0 else most}, and never but from 0 to {num_actions - 1}"
    for name, one in demonstrations.state().items():
        if one.is_floating_point() and not one.isfinite().all():
            return f"'{name}' holds a NaN or an infinity"
    return None


def mixed(is_demo: torch.Tensor, demos: SampledSequences, played: SampledSequences) -> SampledSequences:
    """A batch whose item i is demonstration i where `is_demo` [N] says so, else i of what was played. Demonstrations
    begin with an empty memory."""
    from trainers.replay.of_group import OF_STEPS, SampledSequences

    def choose(theirs: torch.Tensor | None, ours: torch.Tensor | None, axis: int = 1) -> torch.Tensor | None:
        if ours is None:
            return None
        chosen = is_demo.view(*(1,) * axis, -1, *(1,) * (ours.dim() - axis - 1))
        return torch.where(chosen, torch.zeros_like(ours) if theirs is None else theirs, ours)

    theirs, ours = demos.observation, played.observation
    is_of_parts = isinstance(ours, dict)
    return SampledSequences(
        observation={k: choose(theirs[k], one) for k, one in ours.items()} if is_of_parts else choose(theirs, ours),
        mask=choose(demos.mask, played.mask),
        memory=choose(None, played.memory, axis=0),
        weight=choose(demos.weight, played.weight, axis=0),
        **{name: choose(getattr(demos, name), getattr(played, name)) for name in OF_STEPS},
    )


class R2D3(R2D2):
    """R2D2 whose batches mix what it played with demonstrations."""

    FIGURES: ClassVar[Mapping[str, str]] = {
        **R2D2.FIGURES,
        "demo_share": "share of demonstrations among the sequences of the last update",
    }
    config: R2D3Config

    def __init__(self, config: R2D3Config, group: GroupRollout, guard: Guard, seed: int = 0) -> None:
        from trainers.replay.dataset import read_dataset

        super().__init__(config, group, guard, seed)
        backend = group.rollout.env.backend
        self.demonstrations = read_dataset(Path(config.demonstrations), backend, seed)
        if (why := why_not_learned_from(self.demonstrations, int(group.spec.action_space.n))) is not None:
            raise ConfigError(f"policy.{group.name}.demonstrations: {config.demonstrations}: {why}. Record it anew.")
        how = {"halted": guard.flag_of(group.name), "world": self.world}
        self.demo_table = self.demonstrations.table("demonstrations", config.selector(), config.window(), **how)
        for call in self.demo_table.added:  # all of them came in before there was a table
            call()
        self._draw_demos, self._demos = self.demo_table.prepare_draw(self.batch_size)
        self._is_demo = torch.zeros(self.batch_size, dtype=torch.bool, device=self.device)
        if config.prioritized:
            # Not in order: of equal items the last that has a new priority counts, and not the last alone.
            self._update = self.table.prepare_update(self.batch.index, self._priority, in_order=False)
            self._demo_index = self._demos.index.repeat(self.world.size, 1)
            self._demo_priority = self._priority.repeat(self.world.size, 1)
            given = self._demo_index.view(-1), self._demo_priority.view(-1)
            self._update_demos = self.demo_table.prepare_update(*given, in_order=False)

    @classmethod
    def why_not(cls, config: R2D3Config, spec: GroupSpec) -> str | None:
        return super().why_not(config, spec) or why_no_demonstrations(config, spec)

    @classmethod
    def num_bytes(cls, config: R2D3Config, actor: Actor, num_steps: int, num_envs: int, device: str) -> dict[str, int]:
        from trainers.replay.dataset import layout_of_dataset
        from trainers.replay.storage import bytes_of
        from trainers.replay.sum_tree import bytes_of_tree

        window, (layout, _) = config.window(), layout_of_dataset(Path(config.demonstrations))
        items = layout.num_slots // window.period * layout.num_envs * layout.num_agents
        of_tree = bytes_of_tree(items) + 12 * config.batch_size if config.prioritized else 0
        of_batch = bytes_of(window.sizes(layout, config.batch_size)) + config.batch_size
        found = super().num_bytes(config, actor, num_steps, num_envs, device)
        return {**found, "demonstrations": layout.num_bytes + of_tree + of_batch}

    def update(self, clock: Clock = START, phases: Mapping[str, Callable[[], Figures]] | None = None) -> dict[str, Any]:
        self.demo_table.at(clock.env_steps)
        return super().update(clock, phases)

    def draw(self) -> SampledSequences:
        """The sequences of this update, mixed."""
        played = super().draw()
        self._draw_demos()
        demos = self.samples(self._demos)
        chance = torch.rand(self.batch_size, generator=self.generator, device=self.device)
        torch.lt(chance, self.config.demo_ratio, out=self._is_demo)
        return mixed(self._is_demo, demos, played)

    def learn(self) -> Figures:
        found, share = super().learn(), self._is_demo.float().mean()
        return {**found, "demo_share": self.world.average(self.batch_size, share)[1]}

    def keep_errors(self, error: torch.Tensor) -> None:
        if not self.config.prioritized:
            return
        from trainers.replay.rated import KEPT

        error = error.detach()
        self._priority.copy_(error.masked_fill(self._is_demo, KEPT))
        self.world.gather_into(self._demo_index, self._demos.index)
        self.world.gather_into(self._demo_priority, error.masked_fill(~self._is_demo, KEPT))
        for update, table in ((self._update, self.table), (self._update_demos, self.demo_table)):
            update()
            table.selector.tree.refuse_nothing()  # those that keep theirs are no mistake

    def state(self) -> State:
        """With how demonstrations are drawn; they themselves are in their dataset."""
        return {**super().state(), "demos": self.demo_table.tensors()}

    def restored(self) -> None:
        super().restored()
        self.demonstrations.restored()
