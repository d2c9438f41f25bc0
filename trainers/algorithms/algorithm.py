"""What an algorithm is: how a policy acts, what is kept of each step, and how it learns from that."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from trainers import torch_later as torch
from trainers.settings.config import PolicyConfig
from warpdrive.config import value_at

if TYPE_CHECKING:  # a config is checked before torch is loaded
    from torch import nn

    from trainers.acting.actor import Actor, Stage
    from trainers.experience.field import Field
    from trainers.experience.group_rollout import GroupRollout
    from trainers.experience.spec import GroupSpec
    from trainers.heads import Head
    from trainers.learning.guard import Guard
    from trainers.networks.policy import Policy
    from trainers.replay.store import ReplayStore

Figures = Mapping[str, "torch.Tensor | float"]
"""By metric: what is reported as train/<policy>/<metric>; reading a tensor waits for the update."""
State = Mapping[str, Mapping[str, "torch.Tensor"]]
"""By file of a checkpoint and name: live tensors."""
LEARNS_FROM_STEPS = "learns from single steps, which a memory cannot. Take model.type: mlp, or {}."
"""Why an algorithm takes no network that remembers; with the name of one that does."""


@dataclass(frozen=True)
class Clock:
    """When it is: what the host knows without asking the device."""

    iteration: int
    """Made before this one."""
    env_steps: int
    """Made before this iteration, over all envs."""
    batch: int
    """Env steps of one iteration, over all envs."""


START = Clock(0, 0, 0)


class Algorithm:
    """One policy that learns. Derive from it, in a file of its own:

    class Reinforce(Algorithm):
        FIGURES = {"policy_loss": "mean of -log_prob * return"}

        @classmethod
        def heads(cls, config, num_outputs): return {"policy": num_outputs}
        @classmethod
        def actor(cls, policy, spec, stage): return MyActor(policy, spec, stage)
        def phases(self): return {"learn": self.learn}

    and a config beside it, `ReinforceConfig(PolicyConfig)`. A phase does the same launches each time, on memory that
    stays where it is, so that a GPU can replay it as one CUDA graph: numbers that change are tensors on the device
    (`self.scalars`), and nothing asks the host. Which phases an iteration runs is `plan`'s to say, by the clock alone.

    Args:
        config: of its algorithm.
        group: what the policy's agents saw, did and got; also holds the policy.
        guard: watches losses and gradients.
        seed: of what it draws, such as the minibatches' order.
    """

    FIGURES: ClassVar[Mapping[str, str]] = {}
    """What its phases report: metric -> what it says."""
    FIGURES_OF_TIERS: ClassVar[Mapping[str, str]] = {}
    """What is reported besides where what was kept lies in several tiers."""
    SCHEDULED: ClassVar[Sequence[str]] = ("lr",)
    """Keys of its config that may be schedules, in env steps."""
    path: str = "torch"
    """What does the work, in a word."""
    by_kernels: str | None = None
    """What fused kernels do of it where it is torch's, in words."""
    learns_by: Any
    """Who makes updates: itself, by torch, or in its stead kernels, where they can."""
    shares_nothing: bool = False
    """Whether other policies may learn at the same time: torch's products share memory of the matrix library, and ranks
    must agree on who sums first."""

    def __init__(self, config: PolicyConfig, group: GroupRollout, guard: Guard, seed: int = 0) -> None:
        from trainers.learning.distributed import world

        self.world = world()
        self.config = config
        self.group = group
        self.policy = group.policy
        self.guard = guard
        self.device = next(self.policy.parameters()).device
        self.generator = torch.Generator(self.device).manual_seed(seed)
        """What its phases draw from; a checkpoint holds its state."""
        self.scalars = {
            name: torch.zeros((), device=self.device)
            for name in self.SCHEDULED
            if getattr(config, name, None) is not None
        }
        """This iteration's numbers, by the config's key."""
        self._filled: dict[str, float] = {}
        self._of_torch: dict[Callable, Callable] = {}
        self.learns_by = self

    def learn_by(self, learner: Any) -> None:
        """Says who makes updates from here on; see `learns_by`."""
        self.learns_by, self.path, self.shares_nothing = learner, learner.path, learner.shares_nothing

    def told(self, precision: str) -> str:
        """What learns, in words."""
        if self.learns_by is not self:
            return self.learns_by.told(precision)
        actor = self.group.actor
        return f"{self.path} learns in {actor.stage.told_of_torch(actor.policy)}"

    @classmethod
    def heads(cls, config: PolicyConfig, num_outputs: int) -> dict[str, int]:
        """What the network ends in: name -> numbers. `num_outputs` say the distribution of an action."""
        return {"policy": num_outputs, "value": 1}

    @classmethod
    def finish(cls, config: PolicyConfig, network: nn.Module, generator: torch.Generator | None) -> None:
        """Changes what a new network ends in, where linear layers are not enough; weights are drawn by `generator`, or
        none."""

    @classmethod
    def outputs(cls, policy: Policy, found: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """What says the distribution of an action, [..., num_outputs], of what the heads gave: the first of them."""
        return found[policy.acts_by]

    @classmethod
    def head(cls, config: PolicyConfig, space: Any) -> Head:
        """What these numbers say of an action in its space.

        Raises:
            EnvError: it acts in none such.
        """
        from trainers.heads import make_head

        return make_head(space, config.model.log_std_init, config.model.squash_actions)

    @classmethod
    def fields(cls, config: PolicyConfig, spec: GroupSpec) -> list[Field]:
        """What it keeps of each step, besides what its actor does."""
        return []

    @classmethod
    def actor(cls, policy: Policy, spec: GroupSpec, stage: Stage) -> Actor:
        """Who plays for a policy of this algorithm, in training and after it."""
        raise NotImplementedError

    @classmethod
    def why_not(cls, config: PolicyConfig, spec: GroupSpec) -> str | None:
        """Why it cannot learn here, as the end of a sentence with a way out; None if it can."""
        return None

    @classmethod
    def why_no_memory(cls, config: PolicyConfig) -> str | None:
        """Why not with a network that remembers, likewise."""
        return None

    @classmethod
    def why_idle(cls, config: PolicyConfig, num_env_steps: int, num_envs: int) -> str | None:
        """Why a run of so many env steps, over all envs, ends before its first update, in a sentence with a way out;
        None if it does not."""
        return None

    @classmethod
    def num_bytes(
        cls, config: PolicyConfig, actor: Actor, num_steps: int, num_envs: int, device: str
    ) -> dict[str, int]:
        """What it takes besides its fields, by what holds it; under WORK what it has only while it learns.

        Args:
            actor: who plays, not attached; with a policy on torch's device "meta".
            device: "cpu" or "cuda".
        """
        return {}

    def phases(self) -> Mapping[str, Callable[[], Figures]]:
        """By name, what an iteration may consist of after the rollout."""
        raise NotImplementedError

    def plan(self, clock: Clock) -> Sequence[str]:
        """The phases of this iteration, in order."""
        return list(self.phases())

    def calls(self, clock: Clock, phases: Mapping[str, Callable[[], Figures]]) -> Sequence[Callable[[], Figures]]:
        """What this iteration calls of them, in order."""
        return [phases[name] for name in self.plan(clock)]

    def state(self) -> State:
        """All that going on exactly from here takes, besides the policy: optimisers, targets, what was kept. By file, a
        word each, and by name; `restore` writes into these very tensors."""
        return {}

    def stores(self) -> Mapping[str, ReplayStore]:
        """By a word each, what was kept that is too large for `state`: of it a checkpoint writes what is new."""
        return {}

    def restored(self) -> None:
        """What `state` gave has been written to."""

    def bounds(self) -> Mapping[str, tuple[float, float]]:
        """Of arrays that it added to the envs': the least and the largest number that may be in each."""
        return {}

    def report(self) -> Figures:
        """What is only looked at when a report is due, besides what the phases gave."""
        return {}

    def of_torch(self, function: Callable) -> Callable:
        """What torch computes for an update, as Stage.of_torch has it; made once."""
        if function not in self._of_torch:
            self._of_torch[function] = self.group.actor.stage.of_torch(function, self.policy)
        return self._of_torch[function]

    def is_news(self, name: str, now: float) -> bool:
        """Whether the device has to be told a number of that name, as it is another than before; it then was told."""
        before, self._filled[name] = self._filled.get(name), now
        return before != now

    def forget_news(self) -> None:
        """The device may hold other numbers than it was told: a checkpoint's."""
        self._filled.clear()

    def set_scalars(self, clock: Clock) -> dict[str, float]:
        """Brings `scalars` up to date; returns them."""
        now = {name: float(value_at(getattr(self.config, name), clock.env_steps)) for name in self.scalars}
        for name, number in now.items():
            if self.is_news(f"scalars.{name}", number):
                self.scalars[name].fill_(number)
        return now

    def update(self, clock: Clock = START, phases: Mapping[str, Callable[[], Figures]] | None = None) -> dict[str, Any]:
        """Runs the phases of an iteration.

        Args:
            phases: what replays them, by name; themselves if not given.
        Returns:
            Figures by metric name, on the device: reading them waits for the update.
        """
        now, found = self.set_scalars(clock), {}
        phases = self.phases() if phases is None else phases
        for call in self.calls(clock, phases):
            found |= call()
        return {**found, "learning_rate": now["lr"]}
