"""What kernels that learn from a replay store share: which policies they know, and memory in one piece."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from trainers.fused.limits import Limits
from trainers.fused.plan import why_not_here
from trainers.fused.told import LearnsByKernels
from trainers.networks import find_network
from trainers.networks.mlp import MLP

if TYPE_CHECKING:
    from trainers.acting.actor import Actor
    from trainers.algorithms.algorithm import Clock, Figures
    from trainers.algorithms.off_policy import OffPolicy, OffPolicyConfig
    from trainers.experience.spec import GroupSpec


def why_no_kernel(
    config: OffPolicyConfig, spec: GroupSpec, limits: Limits, precision: str, kernel: str, unknown: Mapping[str, object]
) -> str | None:
    """Why no kernel knows a policy's network, in words; None if some do.

    Args:
        kernel: what it is of, such as "Q-learning".
        unknown: values of keys that it knows only where they are off, by key.
    """
    in_tf32 = "in bf16 it learns less surely, and the fused kernels are in bf16; trainer.precision=bf16 asks for them"
    if config.needs_tf32 and precision == "tf32" and limits.capability is not None:
        return in_tf32
    if why := why_not_here(limits, precision):
        return why
    model = config.model
    if find_network(model.type) is not MLP:
        return f"the kernel of {kernel} has no network of type {model.type}"
    for fc_dims in (model.fc_dims, model.critic_fc_dims or model.fc_dims):
        if not 1 <= len(fc_dims) <= 2:
            return f"the kernel of {kernel} has one or two hidden layers"
    told = {"model.layer_norm": model.layer_norm, **unknown, "central_critic": config.central_critic}
    for key, value in told.items():
        if value:
            return f"the kernel of {kernel} knows no {key}"
    return None


def why_not_plain(config: OffPolicyConfig, spec: GroupSpec, kernel: str) -> str | None:
    """Why what agents see cannot be read where it lies, or who learns is not always the same; None if it can and is."""
    for key in ("normalize_observation", "agent_id"):
        if getattr(config, key):
            return f"the kernel of {kernel} knows no {key}"
    if spec.mask is not None or spec.may_leave:
        return f"the kernel of {kernel} knows no masks and no agents that leave"
    arrays = [spec.layout.observations[place.array] for place in spec.seen]
    if len(arrays) > 1 or arrays[0].dtype != "float32":
        return f"the kernel of {kernel} sees one array of float32"
    return None


def find_learner(learner: OffPolicy, plan: Callable[..., Any], kind_of: Callable[[Any], type]) -> Any:
    """Who makes a learner's updates: kernels, as `plan` finds them, or itself, and then its actor says why."""
    actor = learner.group.actor
    stage = actor.stage
    found = plan(learner.config, actor.spec, stage.limits, stage.precision, learner.world.size)
    if isinstance(found, str):
        # What plays by kernels says what it might do faster; that nothing learns by them is more.
        actor.why = found if actor.path == "fused" else actor.why or found
        return learner
    return kind_of(found)(learner, found)


def bytes_of_learner(plan: Callable[..., Any], config: OffPolicyConfig, actor: Actor) -> int | None:
    """What the learner of `find_learner` takes besides; None where the algorithm learns by itself."""
    found = plan(config, actor.spec, actor.stage.limits, actor.stage.precision)
    return None if isinstance(found, str) else found.num_bytes


class ByKernels(LearnsByKernels):
    """Makes an algorithm's updates by kernels, each in a phase. Derive from it: say `learn`, and what `pack` and
    `follow` launch.

    Networks, targets and optimisers' memory stay the algorithm's.
    """

    shares_nothing = True
    learner: OffPolicy

    def updates(self) -> Mapping[str, Callable[[], Figures]]:
        """The phases that are updates, and what comes before them: each is called, or runs would wait for its graph to
        learn at the same time."""
        found = {"add": self.add, "learn": self.learn}
        return found if self.follows_within else {**found, "follow": self.follow}

    def at_once(self, phases: Mapping[str, Callable[[], Figures]], clock: Clock) -> Sequence[Callable[[], Figures]]:
        """What an iteration calls. Where target networks follow each update, they may do so within it."""
        return self.learner.at_once({**phases, "follow": dict} if self.follows_within else phases, clock)

    @property
    def follows_within(self) -> bool:
        """Whether target networks follow within an update."""
        return self.learner.config.target_update_freq == 1

    def add(self) -> Figures:
        """Keeps the rollout. Products read the networks as they are: a callback, or a resume, may have changed them."""
        self.pack()
        return self.learner.add()

    def pack(self) -> None:
        """Brings networks to where products read them."""
        raise NotImplementedError

    def learn(self) -> Figures:
        """One update."""
        raise NotImplementedError

    def follow(self) -> Figures:
        """Target networks make their step."""
        raise NotImplementedError


class Drawn:
    """What an update learns from, as kernels read it: where it was drawn; or, where networks see it changed or agents
    leave, in memory of its own.

    Args:
        is_plain: whether it is the former.
    """

    def __init__(self, learner: OffPolicy, num_features: int, is_plain: bool) -> None:
        self.learner, self._is_plain = learner, is_plain
        batch = learner.batch
        self.weight = batch.weight
        """[N] float32."""
        if is_plain:
            self.observation, self.next_observation = (
                one["observation_0"] for one in (batch.observation, batch.next_observation)
            )
        else:
            self.weight = torch.zeros_like(batch.weight)
            self.observation, self.next_observation = batch.weight.new_zeros(2, len(batch.weight), num_features)
        """[N, features] float32."""

    def draw(self) -> None:
        samples = self.learner.draw()
        if self._is_plain:
            return
        policy = self.learner.policy
        self.observation.copy_(policy.normalised(samples.observation))
        self.next_observation.copy_(policy.normalised(samples.next_observation))
        self.weight.copy_(samples.weight)


def join_memory(parameters: Sequence[torch.nn.Parameter]) -> torch.Tensor:
    """[numbers] of all parameters, one after the other, which become views of it."""
    whole, start = torch.cat([one.detach().flatten() for one in parameters]), 0
    for parameter in parameters:
        here = slice(start, start + parameter.numel())
        start = here.stop
        parameter.data = whole[here].view_as(parameter)
    return whole
