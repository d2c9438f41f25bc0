"""What an actor is, and how a policy finds its own."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial, wraps
from typing import TYPE_CHECKING, Any

import torch

from trainers.algorithms import find_algorithm
from trainers.experience.field import Field
from trainers.experience.spec import GroupSpec, spec_of
from trainers.fused.plan import Limits
from trainers.networks.features import central_features
from trainers.networks.policy import Policy, features_of
from trainers.run.num_bytes import NUM_ROWS, WORK, Counted, runnable
from warpdrive.env_wrapper import EnvWrapper
from warpdrive.sampler import Sampler

if TYPE_CHECKING:
    from trainers.experience.group_rollout import GroupRollout
    from trainers.learning.compiled import Compiler

Call = Callable[[], None]


@dataclass(frozen=True)
class Stage:
    """What actors play on; the envs come with `attach`."""

    device: torch.device
    limits: Limits
    """Of fused kernels on it."""
    precision: str = "fp32"
    """Of the networks: fp32, tf32 or bf16 (`TrainerConfig.precision_on`)."""
    greedy: Collection[str] = ()
    """Names of policies that take their best action instead of trying others."""
    compiler: Compiler | None = None
    """Of what torch computes, where that is compiled."""

    def of_torch(self, function: Callable[..., Any], policy: Policy) -> Callable[..., Any]:
        """What torch computes for a policy, as it is done here: in which precision, and whether compiled."""
        if self.precision_of(policy) == "bf16":
            function = _in_bf16(function, self.device.type)
        return self.compiler(function) if self.compiles(policy) else function

    def precision_of(self, policy: Policy) -> str:
        """Of torch's products: bf16 only on a GPU, where its network `takes_bf16`."""
        takes = self.device.type == "cuda" and getattr(policy.network, "takes_bf16", False)
        return "tf32" if self.precision == "bf16" and not takes else self.precision

    def compiles(self, policy: Policy) -> bool:
        """Whether what torch computes for a policy is compiled: never what goes through steps in a row, each of which
        would be compiled by itself."""
        if self.compiler is None or policy.memory_size:
            return False
        return self.compiler.takes_all or getattr(policy.network, "compiles", False)

    def told_of_torch(self, policy: Policy) -> str:
        """The same in words."""
        return self.precision_of(policy) + (", compiled" if self.compiles(policy) else "")


def _in_bf16(function: Callable[..., Any], device: str) -> Callable[..., Any]:
    @wraps(function)
    def call(*given: Any) -> Any:
        with torch.autocast(device, torch.bfloat16):
            return function(*given)

    return call


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
    why: str | None = None
    """Why nothing faster does, where something could have."""

    def __init__(self, policy: Policy, spec: GroupSpec, stage: Stage) -> None:
        self.policy = policy
        self.spec = spec
        self.stage = stage
        self.features = features_of(spec, policy)
        self.central = central_features(spec.layout, spec.num_agents) if policy.has_central_critic else None
        self.group: GroupRollout | None = None
        self._buffers: dict[str, torch.Tensor] = {}
        self._forward: Callable[..., Any] | None = None

    def _prepare_act(self, *given: Any, **more: Any) -> Call:
        """Its policy's; see Policy.prepare_act."""
        if self._forward is None:
            self._forward = self.stage.of_torch(self.policy.forward, self.policy)
        is_other = self._forward != self.policy.forward
        return self.policy.prepare_act(*given, **more, forward=self._forward if is_other else None)

    @property
    def is_greedy(self) -> bool:
        """Whether it takes its best action."""
        return self.spec.name in self.stage.greedy

    def told(self, precision: str, learns: bool) -> str:
        """What plays, and learns, in words."""
        return f"{self.path} plays{' and learns' if learns else ''} in {self.stage.told_of_torch(self.policy)}"

    def fields(self, num_steps: int) -> list[Field]:
        """What it writes besides actions. The mask is kept by itself."""
        return []

    def attach(self, group: GroupRollout) -> None:
        """Its tensors are there; what it needs besides can be allocated."""
        self.group = group

    def num_bytes(self, num_envs: int) -> dict[str, int]:
        """What it takes besides its fields, by what holds it; under WORK what it has only while it plays. Told before
        `attach`."""
        return {}

    def forget(self) -> None:
        """Every env starts a new episode."""

    def prepare_step(self, t: int) -> list[Call]:
        """What it does before the envs make step t."""
        raise NotImplementedError

    def prepare_rollout(self, steps: Callable[[], list[Call]]) -> list[Call] | None:
        """What it and the envs do in all steps, where fewer launches make it than `steps` would prepare; else None.
        Asked for only where nobody else plays, and nothing is done between steps."""
        return None

    def prepare_between(self, t: int) -> list[Call]:
        """What it does after step t, before envs that ended start anew."""
        return []

    def prepare_end(self) -> list[Call]:
        """What it does after the last step, such as judging what agents see then."""
        return []

    def _buffer(self, name: str, example: torch.Tensor) -> torch.Tensor:
        """Memory that every step uses anew, as large as an example."""
        if name not in self._buffers:
            self._buffers[name] = torch.zeros_like(example, memory_format=torch.contiguous_format)
        return self._buffers[name]

    def _make_sampler(self) -> Any:
        """What draws its actions, from logits."""
        env, sizes, columns = self.group.rollout.env, self.policy.head.head_sizes, self.spec.acts.columns
        given = (env.data, env.num_envs, self.spec.agents, self.group.action_array.shape[2], sizes, env.backend)
        return Sampler(*given, first_column=columns.start)

    @classmethod
    def together(cls, actors: Sequence[Actor]) -> list[Actor]:
        """Those who play, of all actors of this class: the same, or one for all of them."""
        return list(actors)


class DrawingActor(Actor):
    """Draws from the distribution that a network's outputs say. Derive from it and write what fills `_outputs`."""

    def num_bytes(self, num_envs: int) -> dict[str, int]:
        rows = num_envs * self.spec.num_agents
        return {"outputs": 4 * rows * (self.policy.head.num_outputs + 1)} | bytes_of_pass(self, num_envs)

    def attach(self, group: GroupRollout) -> None:
        super().attach(group)
        rows = (group.rollout.num_envs, self.spec.num_agents)
        new = group.rollout.reward.new_zeros
        # One slot for all steps: the sampler reads the outputs at once, and nobody reads the entropy.
        self._outputs, self._entropy = new(*rows, self.policy.head.num_outputs), new(rows)
        self._sampler = self._make_sampler()

    def _prepare_draw(self, t: int) -> list[Call]:
        """From `_outputs`, the actions of step t."""
        group = self.group
        mask = None if group.mask is None else group.mask[t]
        outputs = (group.action_array[t], group.log_prob[t], self._entropy)
        return [self._sampler.prepare(self._outputs, *outputs, mask, greedy=self.is_greedy)]


def make_actors(
    env: EnvWrapper,
    policies: Mapping[str, Policy],
    precision: str = "fp32",
    greedy: Collection[str] = (),
    compiler: Compiler | None = None,
    multiprocessors: int | None = None,
) -> dict[str, Actor]:
    """By policy, who plays for it, as its algorithm says.

    Args:
        policies: by group of the env, or one for all agents under another name.
        precision, greedy, compiler: see Stage.
        multiprocessors: for which kernels are planned; all of the GPU's if not given.
    """
    stage = Stage(env.device, Limits.of(env.backend).within(multiprocessors), precision, greedy, compiler)
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


def bytes_of_pass(actor: Actor, num_envs: int, judges: bool = False) -> dict[str, int]:
    """What `Policy.prepare_act` and what it reads take in a step; see Actor.num_bytes.

    Args:
        judges: whether values alone are wanted.
    """
    policy, rows = runnable(actor.policy), num_envs * actor.spec.num_agents
    num_features = 0 if actor.central is None else actor.central.num_features
    observation, outputs = actor.features.zeros(NUM_ROWS), None
    if not judges:
        outputs = torch.empty(NUM_ROWS, policy.head.num_outputs)
    critic_input = torch.zeros(NUM_ROWS, num_features) if num_features else None
    value = torch.empty(NUM_ROWS) if "value" in policy.network.heads else None
    memory = torch.zeros(NUM_ROWS, policy.memory_size) if policy.memory_size else None
    with torch.no_grad(), Counted() as counted:
        act = policy.prepare_act(observation, critic_input, outputs, value, memory)
        hidden = counted.now
        act()
    return {
        "rows": num_envs * actor.features.bytes_of_copies(),
        "critic_rows": 4 * rows * num_features,
        "hidden layers": rows * hidden,
        WORK: rows * (counted.most - hidden),
    }


def prepare_copy(into: torch.Tensor, values: torch.Tensor) -> Call:
    """The copy of `values` into `into`, as a call."""
    return partial(into.copy_, values)
