"""What a policy group keeps of its rollouts to learn from as a team: an item is an env with all of the group's agents.

What the team is paid in a step is the mean of what its agents in the game are paid. So an env that pays every agent the
same, as cooperative ones do, pays the team just that, however many are left; and the reward's size does not depend on
the number of agents. Agents that left take no part in it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from trainers.experience.field import Field
from trainers.experience.spec import GroupSpec
from trainers.networks.features import Features, Observation, central_features, torch_dtype
from trainers.replay.adding import LAST
from trainers.replay.batch import Batch
from trainers.replay.of_group import OF_TRANSITIONS, SampledSequences, Samples, fields_of, window_of
from trainers.replay.sequences import Sequences
from trainers.replay.storage import ACTIVE, REWARD, SURVIVED, Window
from trainers.replay.windows import Transitions
from warpdrive.layout import FINAL

if TYPE_CHECKING:
    from trainers.experience.group_rollout import GroupRollout

IN_GAME = "in_game"


@dataclass(frozen=True)
class TeamSamples(Samples):
    """N transitions of whole teams of A agents, as networks take them: what is seen [N A, ...], of one agent after the
    other; what is done [N, A], and what may be [N, A, actions]. Nothing comes after steps where nobody is left;
    `weight` is 0 where nobody was in the game."""

    in_game: torch.Tensor | None
    """[N, A] float32: 0 where an agent was not in the game; None: all were."""
    state: torch.Tensor | None
    """[N, state]: of the whole env, if it is kept."""
    next_in_game: torch.Tensor | None
    next_state: torch.Tensor | None


@dataclass(frozen=True)
class TeamSequences(SampledSequences):
    """N sequences of the steps of whole teams of A agents: what is seen, begins and is remembered of N A agents, one
    after the other; what is done [R - n_step, N, A], and what may be [R, N, A, actions]. An agent also begins anew
    where it is out of the game or was; nothing comes after steps where nobody is left."""

    in_game: torch.Tensor | None
    """[R, N, A] float32: 0 where an agent was not in the game; None: all were."""
    state: torch.Tensor | None
    """[R, N, state]: of the whole env, if it is kept."""


class Team:
    """A policy's agents as one, and how a store keeps what they do.

    Args:
        spec: of the policy's agents.
        reads_state: whether the state of the whole env is kept: its global_state or else all observations side by side,
            as a central critic sees it (see CentralFeatures).
    """

    def __init__(self, spec: GroupSpec, reads_state: bool) -> None:
        self.spec = spec
        self.state_arrays = central_features(spec.layout, spec.num_agents).arrays if reads_state else ()
        self._fields_of_state = [self._field_of_state(i, name) for i, name in enumerate(self.state_arrays)]

    @property
    def num_state(self) -> int:
        """Numbers of the state."""
        return sum(math.prod(self.spec.layout.kept[name][0]) for name in self.state_arrays)

    def of_rollout(self) -> list[Field]:
        """What a rollout has room for besides; `take_in` writes it."""
        found = [Field("reward_of_team", axis="env")]
        if self.spec.may_leave:
            found.append(Field("final_in_game", dtype=torch.bool, of="truncation"))
        return found

    def stored(self, kept: Sequence[Field]) -> list[Field]:
        """What a store keeps of each step, with fields of the actor that are `kept` besides."""
        found = [one for one in fields_of(self.spec, kept) if one.name not in (REWARD, ACTIVE, SURVIVED)]
        found.append(Field(REWARD, axis="env"))
        if self.spec.may_leave:
            found.append(Field(IN_GAME, dtype=torch.bool, extra=1))
        for name, field in zip(self.state_arrays, self._fields_of_state, strict=True):
            if field.startswith("state"):
                shape, dtype = self.spec.layout.kept[name]
                found.append(Field(field, tuple(shape), torch_dtype(dtype), axis="env", extra=1))
        return found

    def window(self, group: GroupRollout, kept: Sequence[str]) -> Window:
        """Where a rollout holds that: views."""
        rollout, agents = group.rollout, slice(group.agents.start, group.agents.stop)
        found = {**window_of(group, kept), REWARD: group.reward_of_team}
        if self.spec.may_leave:
            del found[ACTIVE], found[SURVIVED]
            found |= {IN_GAME: rollout.active[:, :, agents], LAST + IN_GAME: group.final_in_game}
        for name, field in zip(self.state_arrays, self._fields_of_state, strict=True):
            if field.startswith("state"):
                found |= {field: rollout.data[name], LAST + field: rollout.env.data[FINAL + name]}
        return found

    def take_in(self, group: GroupRollout) -> None:
        """Says of a rollout what the team was paid, and who was in the game before each truncation."""
        rollout, agents = group.rollout, slice(group.agents.start, group.agents.stop)
        reward = rollout.reward[:, :, agents]
        if group.active is None:
            torch.mean(reward, -1, out=group.reward_of_team)
            return
        paid = torch.where(group.active, reward, 0.0).sum(-1)
        group.reward_of_team.copy_(paid / group.active.sum(-1).clamp_min(1))
        for k, final in enumerate(group.final_in_game):
            final.copy_(rollout.active_at_truncation(k, group.agents))

    def learned_from(
        self, batch: Batch, features: Features, window: Transitions | Sequences
    ) -> TeamSamples | TeamSequences:
        """A batch of such items, as the group's networks take them."""
        if isinstance(window, Sequences):
            return self.sequences(batch, features, window.burn_in)
        return self.samples(batch, features)

    def samples(self, batch: Batch, features: Features) -> TeamSamples:
        """A batch of envs, as the group's networks take them."""
        discount, weight, in_game, next_in_game = batch.discount, batch.weight, None, None
        if self.spec.may_leave:
            in_game, next_in_game = (one[IN_GAME].float() for one in (batch.observation, batch.next_observation))
            discount, weight = discount * next_in_game.amax(-1), weight * in_game.amax(-1)
        return TeamSamples(
            observation=self._seen(features, batch.observation),
            in_game=in_game,
            state=self._state(batch.observation),
            discount=discount,
            next_observation=self._seen(features, batch.next_observation),
            next_in_game=next_in_game,
            next_state=self._state(batch.next_observation),
            weight=weight,
            **{name: getattr(batch, name) for name in OF_TRANSITIONS},
        )

    def sequences(self, batch: Batch, features: Features, burn_in: int) -> TeamSequences:
        """A batch of sequences of envs, as the group's networks take them."""
        num_agents, parts = self.spec.num_agents, batch.observation
        starts = batch.starts.unsqueeze(-1).expand(-1, -1, num_agents)
        discount, valid, in_game, memory = batch.discount, batch.valid, None, batch.fields.get("memory")
        if self.spec.may_leave:
            here, in_game = parts[IN_GAME], parts[IN_GAME].float()
            starts = starts.clone()
            starts[1:] |= ~(here[:-1] & here[1:])
            anybody = in_game.amax(-1)
            discount = discount * anybody.gather(0, batch.bootstrap)
            valid = valid * anybody[burn_in : burn_in + len(valid)]
        if memory is not None:  # one that is kept at each step is given of each row
            memory = (memory[0] if memory.dim() > 3 else memory).flatten(0, 1)
        return TeamSequences(
            observation=self._seen(features, parts, agents=2),
            mask=batch.mask,
            starts=starts.flatten(1),
            memory=memory,
            action=batch.action,
            in_game=in_game,
            state=self._state(parts, agents=2),
            reward=batch.reward,
            discount=discount,
            bootstrap=batch.bootstrap,
            valid=valid,
            weight=batch.weight,
        )

    def _seen(self, features: Features, arrays: dict[str, torch.Tensor], agents: int = 1) -> Observation:
        """Of one agent after the other, of [N, A, ...] or [R, N, A, ...]; `agents` is the number of their axis."""
        parts = [arrays[f"observation_{i}"].flatten(agents - 1, agents) for i in range(len(features.places))]
        ids = None
        if features.num_ids:
            ids = torch.eye(self.spec.num_agents, device=parts[0].device)
            ids = ids.repeat(*parts[0].shape[: agents - 1], parts[0].shape[agents - 1] // self.spec.num_agents, 1)
        return features.of_parts(parts, ids)

    def _state(self, arrays: dict[str, torch.Tensor], agents: int = 1) -> torch.Tensor | None:
        """[N, state] or [R, N, state], likewise."""
        found = [_scaled(arrays[name]).flatten(agents) for name in self._fields_of_state]
        return torch.cat(found, dim=-1) if found else None

    def _field_of_state(self, number: int, array: str) -> str:
        """The field that holds an array of the state: what the agents see, where they are all that see it."""
        observations = self.spec.layout.observations
        for i, place in enumerate(self.spec.seen):
            if place.array == array and observations[array].num_agents == self.spec.num_agents:
                return f"observation_{i}"
        return f"state_{number}"


def _scaled(array: torch.Tensor) -> torch.Tensor:
    """As float32; images of 8 bits from 0 to 1."""
    return array.float() / 255.0 if array.dtype == torch.uint8 else array.float()
