"""DQN: Q-learning from transitions that are kept, with a network that targets are made by and that follows slowly.

Agents of one policy learn each from its own transitions and share the network. Double Q-learning is on by default;
prioritized replay is not.

Source: Mnih et al. 2015, "Human-level control through deep reinforcement learning", doi:10.1038/nature14236; van
Hasselt et al. 2016, "Deep reinforcement learning with double Q-learning", arXiv:1509.06461; Schaul et al. 2016,
"Prioritized experience replay", arXiv:1511.05952.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

from trainers.algorithms.algorithm import START, Algorithm, Clock, Figures, State
from trainers.algorithms.q_learning import set_epsilon, why_no_q_values
from trainers.settings.config import PolicyConfig
from warpdrive.config import Between, Count, Number, Positive, Schedule, Size, value_at
from warpdrive.errors import ConfigError

if TYPE_CHECKING:  # a config is checked before torch is loaded
    import torch

    from trainers.acting.actor import Actor, Stage
    from trainers.experience.group_rollout import GroupRollout
    from trainers.experience.spec import GroupSpec
    from trainers.learning.guard import Guard
    from trainers.networks.policy import Policy
    from trainers.replay.of_group import Samples
    from trainers.replay.selectors import Selector
    from trainers.replay.store import ReplayStore
    from trainers.replay.windows import Transitions


FALLING = Schedule(((0, 1.0), (50_000, 0.05)))


@dataclass(frozen=True)
class DQNConfig(PolicyConfig):
    """`policy.<name>:` with `algorithm: DQN`."""

    epsilon: Annotated[Number, Between(0, 1)] = FALLING
    """Probability of an action drawn from all. A schedule counts env steps; evaluations that are not greedy take its
    last value."""
    buffer_size: Count = 100_000
    """Transitions that are kept, over all envs and agents, rounded up to whole iterations."""
    n_step: Count = 1
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
    """Transitions of an update."""
    replay_ratio: Positive = 0.1
    """Updates an env step, over all envs."""
    target_update_freq: Count = 1
    """Updates from one step of the target network to the next."""
    tau: Annotated[float, Between(0, 1)] = 0.01
    """How far the target network steps towards the network: 1 copies it."""
    double: bool = True
    """Whether the network chooses the action whose value the target network gives."""
    huber_delta: Positive | None = 1.0
    """Errors above this count linearly instead of squared; None: all squared."""
    max_grad_norm: Positive = 10.0
    """How long the gradient of all the policy's parameters together may be."""

    def updates_by(self, env_steps: int) -> int:
        """That are due after so many env steps."""
        return int(self.replay_ratio * max(0, env_steps - self.learning_starts))

    def problems(self) -> Iterator[tuple[str, str]]:
        yield from super().problems()
        if self.buffer_size < self.batch_size:
            message = f"{self.buffer_size} transitions are fewer than the {self.batch_size} of an update (batch_size)."
            yield "buffer_size", f"{message} Keep more, or learn from fewer."

    def window(self) -> Transitions:
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


def dqn_target(
    reward: torch.Tensor,
    discount: torch.Tensor,
    next_q: torch.Tensor,
    next_q_of_target: torch.Tensor,
    next_mask: torch.Tensor | None,
    double: bool,
) -> torch.Tensor:
    """What Q-values should have been, [N].

    Args:
        reward: [N], of the steps that count, added up.
        discount: [N], of what comes after them; 0 where nothing does.
        next_q: [N, actions] of the network, after these steps.
        next_q_of_target: [N, actions] of the target network, likewise.
        next_mask: [N, actions] bool, what may be taken then; None: everything.
        double: whether `next_q` chooses; else the target network does.
    """
    chooses = next_q if double else next_q_of_target
    if next_mask is not None:
        chooses = chooses.masked_fill(~next_mask, -math.inf)
    best = chooses.argmax(-1, keepdim=True)
    return reward + discount * next_q_of_target.gather(-1, best).squeeze(-1)


def dqn_loss(q: torch.Tensor, target: torch.Tensor, huber_delta: float | None) -> torch.Tensor:
    """[N]: half the squared error, or Huber's: beyond `huber_delta` it grows linearly."""
    error = q - target
    if huber_delta is None:
        return 0.5 * error.square()
    near = error.abs().clamp_max(huber_delta)
    return 0.5 * near.square() + huber_delta * (error.abs() - near)


def losses_of(
    policy: Policy, target_policy: Policy, batch: Samples, config: DQNConfig
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Of a batch: losses, Q-values of what was done, what they should have been; [N] each."""
    import torch

    q = policy.heads(batch.observation)["q"].gather(-1, batch.action.unsqueeze(-1)).squeeze(-1)
    with torch.no_grad():
        next_q_of_target = target_policy.heads(batch.next_observation)["q"]
        next_q = policy.heads(batch.next_observation)["q"] if config.double else next_q_of_target
        target = dqn_target(batch.reward, batch.discount, next_q, next_q_of_target, batch.next_mask, config.double)
    return dqn_loss(q, target, config.huber_delta), q, target


class DQN(Algorithm):
    """Updates one policy from what it kept of all rollouts."""

    FIGURES = {
        "loss": "loss of the last update, mean over its transitions",
        "q_mean": "mean Q-value of the actions that were taken, in the last update",
        "td_error": "mean distance of Q-values from their targets, in the last update",
        "epsilon": "probability of an action drawn from all, in the next rollout",
        "learning_rate": "the optimiser's step size in that update",
        "grad_norm": "length of the gradient, before it was shortened",
    }
    config: DQNConfig

    def __init__(self, config: DQNConfig, group: GroupRollout, guard: Guard, seed: int = 0) -> None:
        import copy

        from trainers.learning.optimiser import SafeAdam
        from trainers.replay.of_group import store_of, window_of

        super().__init__(config, group, guard, seed)
        if self.world.size > 1:
            raise ConfigError(f"policy.{group.name}.algorithm: DQN learns on one GPU alone. Set trainer.num_gpus: 1.")
        self.target = copy.deepcopy(self.policy).requires_grad_(False)
        max_norm = config.max_grad_norm if config.clip_grad_norm else math.inf
        parameters = [{"params": list(self.policy.parameters())}]
        self.optimizer = SafeAdam(self.policy, parameters, self.scalars["lr"], guard, group.name, max_norm)
        num_steps, num_envs, _ = group.shape
        self.store = store_of(group, config.capacity(group.spec, num_steps, num_envs), seed)
        selector, halted = config.selector(), guard.flag_of(group.name)
        self.table = self.store.table("transitions", selector, config.window(), halted=halted)
        self._add = self.store.prepare_add(window_of(group))
        self._draw, self._batch = self.table.prepare_draw(config.batch_size)
        if config.prioritized:
            self._priority = self._batch.weight.clone()
            self._update = self.table.prepare_update(self._batch.index, self._priority)
        self.epsilon = group.actor.epsilon
        self.epsilon.fill_(float(value_at(config.epsilon, 0)))

    @classmethod
    def heads(cls, config: DQNConfig, num_outputs: int) -> dict[str, int]:
        return {"q": num_outputs}

    @classmethod
    def actor(cls, policy: Policy, spec: GroupSpec, stage: Stage) -> Actor:
        from trainers.acting.epsilon_greedy import EpsilonGreedyActor

        return EpsilonGreedyActor(policy, spec, stage)

    @classmethod
    def why_not(cls, config: DQNConfig, spec: GroupSpec) -> str | None:
        return why_no_q_values(config, spec)

    @classmethod
    def why_idle(cls, config: DQNConfig, num_env_steps: int) -> str | None:
        if config.updates_by(num_env_steps):
            return None
        keys = f"learning_starts: {config.learning_starts} and replay_ratio: {config.replay_ratio:g}"
        way_out = "Lower learning_starts, or train longer."
        return f"{keys} leave it no update in the {num_env_steps:,} env steps of this run. {way_out}"

    @classmethod
    def num_bytes(
        cls, config: DQNConfig, actor: Actor, num_steps: int, num_envs: int, device: str
    ) -> dict[str, int]:
        from trainers.replay.of_group import blank_batch, layout_of, samples_of
        from trainers.replay.storage import bytes_of as bytes_of_sizes
        from trainers.replay.sum_tree import bytes_of_tree
        from trainers.run.num_bytes import WORK, Counted, bytes_of, runnable

        spec, policy, window = actor.spec, actor.policy, config.window()
        layout = layout_of(spec, num_steps, num_envs, config.capacity(spec, num_steps, num_envs))
        network, target, batch = runnable(policy), runnable(policy), blank_batch(spec, window)
        with Counted() as counted:
            losses, *_ = losses_of(network, target, samples_of(batch, actor.features, spec.num_agents), config)
            counted.backward(losses.sum())
        items = layout.num_slots * num_envs * spec.num_agents
        return {
            "replay": layout.num_bytes,
            "priorities": (bytes_of_tree(items) + 4 * config.batch_size) if config.prioritized else 0,
            "batch": bytes_of_sizes(window.sizes(layout, config.batch_size)),
            "target": bytes_of(policy),
            "optimiser": 2 * bytes_of(policy, buffers=False),
            WORK: counted.most_of(config.batch_size),
        }

    def phases(self) -> Mapping[str, Callable[[], Figures]]:
        return {"add": self.add, "learn": self.learn, "follow": self.follow}

    def plan(self, clock: Clock) -> Sequence[str]:
        """Every rollout is kept. Of updates, as many as are due by then; every so many, the target network follows."""
        phases, config = ["add"], self.config
        begun, ended = clock.env_steps, clock.env_steps + clock.batch
        if ended < config.learning_starts or not self.table.num_drawable:
            return phases
        done, due = (config.updates_by(env_steps) for env_steps in (begun, ended))
        for number in range(done + 1, due + 1):
            phases.append("learn")
            if number % config.target_update_freq == 0:
                phases.append("follow")
        return phases

    def state(self) -> State:
        return {
            "optim": self.optimizer.tensors(),
            "target": self.target.state_dict(),
            "acting": {"epsilon": self.epsilon},
        }

    def stores(self) -> Mapping[str, ReplayStore]:
        return {"replay": self.store}

    def restored(self) -> None:
        self.store.restored()

    def update(self, clock: Clock = START, phases: Mapping[str, Callable[[], Figures]] | None = None) -> dict[str, Any]:
        self.store.count_window()
        found = super().update(clock, phases)
        self.table.at(clock.env_steps + clock.batch)
        return {**found, "epsilon": set_epsilon(self, clock)}

    def add(self) -> Figures:
        """Keeps the rollout."""
        self._add()
        norm, group = self.policy.observation_norm, self.group
        if norm is not None:
            weight = None if group.active is None else group.active.flatten()
            norm.update(group.observation[:-1].flatten(0, 2), weight)
            self.target.observation_norm.load_state_dict(norm.state_dict())
        return {}

    def learn(self) -> Figures:
        """One update."""
        import torch

        from trainers.replay.of_group import samples_of

        config = self.config
        self.optimizer.begin()
        self._draw()
        batch = samples_of(self._batch, self.group.features, self.group.spec.num_agents)
        losses, q, target = losses_of(self.policy, self.target, batch, config)
        counts = batch.weight.sign()  # weights that make up for priorities are no parts of a mean
        number = counts.sum().clamp_min(1.0)
        loss = (losses * batch.weight).sum() / number
        loss.backward()
        grad_norm = self.optimizer.safe_step()
        with torch.no_grad():
            error = (q - target).abs() * counts
            q_mean, td_error = ((one * counts).sum() / number for one in (q, error))
            if config.prioritized:
                self._priority.copy_(error)
                self._update()  # not once a NaN was met: the guard's flag is up by then
        return {"loss": loss.detach(), "q_mean": q_mean, "td_error": td_error, "grad_norm": grad_norm}

    def follow(self) -> Figures:
        """The target network makes its step towards the network."""
        import torch

        with torch.no_grad():
            for ours, theirs in zip(self.target.parameters(), self.policy.parameters(), strict=True):
                ours.lerp_(theirs, self.config.tau)
        return {}
