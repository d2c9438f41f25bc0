"""What an actor is, and how a policy finds its own."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from trainers.algorithms import find_algorithm
from trainers.experience.field import Field
from trainers.experience.spec import GroupSpec, spec_of
from trainers.networks.policy import Policy
from warpdrive.env_wrapper import EnvWrapper

if TYPE_CHECKING:
    from trainers.experience.group_rollout import GroupRollout

Call = Callable[[], None]


@dataclass(frozen=True)
class Stage:
    """What actors play on."""

    env: EnvWrapper
    precision: str = "fp32"
    """Of the networks (`trainer.precision`)."""
    greedy: Collection[str] = ()
    """Names of policies that take their best action instead of trying others."""


class Actor:
    """Plays for the agents of one policy. Derive from it and write `prepare_step`:

    actor = MyActor(policy, spec, stage)
    actor.fields(num_steps)     # what it wants kept of each step
    actor.attach(group)         # which now is allocated
    actor.prepare_step(t)       # calls that write the actions of step t, packed once

    A call reads what agents see from `group.rollout.seen(t)` and the mask from `group.mask[t]`, and writes their
    columns of `group.action_array[t]`. It launches the same work each time, on memory that stays where it is, and
    neither copies to the host nor waits for it.
    """

    path = "torch"
    """What plays, in a word."""

    def __init__(self, policy: Policy, spec: GroupSpec, stage: Stage) -> None:
        self.policy = policy
        self.spec = spec
        self.stage = stage
        self.group: GroupRollout | None = None

    @property
    def who_plays(self) -> str:
        """In words, with the reason where something faster could have."""
        return self.path

    def fields(self, num_steps: int) -> list[Field]:
        """What it writes besides actions. The mask is kept by itself."""
        return []

    def attach(self, group: GroupRollout) -> None:
        """Its tensors are there; what it needs besides can be allocated."""
        self.group = group

    def begin(self) -> None:
        """Parameters may have been restored."""

    def forget(self) -> None:
        """Every env starts a new episode."""

    def prepare_step(self, t: int) -> list[Call]:
        """What it does before the envs make step t."""
        raise NotImplementedError

    def prepare_between(self, t: int) -> list[Call]:
        """What it does after step t, before envs that ended start anew."""
        return []

    def prepare_end(self) -> list[Call]:
        """What it does after the last step, such as judging what agents see then."""
        return []

    @classmethod
    def together(cls, actors: Sequence[Actor]) -> list[Actor]:
        """Those who play, of all actors of this class: the same, or one for all of them."""
        return list(actors)


def make_actors(
    env: EnvWrapper, policies: Mapping[str, Policy], precision: str = "fp32", greedy: Collection[str] = ()
) -> dict[str, Actor]:
    """By policy, who plays for it, as its algorithm says.

    Args:
        policies: by group of the env, or one for all agents under another name.
        precision, greedy: see Stage.
    """
    stage = Stage(env, precision, greedy)
    return {
        name: find_algorithm(policy.config.algorithm)[0].actor(policy, spec_of(env.env, name), stage)
        for name, policy in policies.items()
    }


def players_of(actors: Sequence[Actor]) -> list[Actor]:
    """The actors, or those that play for several of them at once."""
    kinds = dict.fromkeys(type(actor) for actor in actors)
    return [player for kind in kinds for player in kind.together([one for one in actors if type(one) is kind])]


def value_fields() -> list[Field]:
    """What every actor with a critic keeps."""
    return [
        Field("value", extra=1, is_watched=True),
        Field("log_prob", is_watched=True),
        Field("final_value", of="truncation"),
    ]


def prepare_copy(into: torch.Tensor, values: torch.Tensor) -> Call:
    """The copy of `values` into `into`, as a call."""

    def copy() -> None:
        into.copy_(values)

    return copy
