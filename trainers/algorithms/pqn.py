"""PQN: Q-learning from each rollout alone, by Q(lambda), with LayerNorm in place of replay and a target network.

Agents of one policy learn each from its own steps and share the network.

Source: Gallici et al. 2024, "Simplifying Deep Temporal Difference Learning", arXiv:2407.04811; Peng and Williams 1996,
"Incremental multi-step Q-learning", doi:10.1023/A:1018076709321.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from trainers import torch_later as torch
from trainers.algorithms.algorithm import START, Clock, Figures
from trainers.algorithms.on_policy import OnPolicy
from trainers.algorithms.q_learning import begin_epsilon, set_epsilon, why_no_q_values
from trainers.settings.config import ModelConfig, PolicyConfig
from warpdrive.config import Between, Count, Fraction, Number, Positive, Schedule

if TYPE_CHECKING:  # a config is checked before torch is loaded
    from trainers.acting.actor import Actor, Stage
    from trainers.algorithms.on_policy import Moments, Weights
    from trainers.experience.group_rollout import GroupRollout
    from trainers.experience.samples import Samples
    from trainers.experience.spec import GroupSpec
    from trainers.learning.guard import Guard
    from trainers.networks.policy import Policy
    from warpdrive.function_manager import Constant


FALLING = Schedule(((0, 1.0), (100_000, 0.05)))


@dataclass(frozen=True)
class PQNModelConfig(ModelConfig):
    """A network whose hidden layers are normalised: without it, nothing keeps Q-values from running away."""

    layer_norm: Literal[False, True, "hidden", "all"] = "hidden"
    """As of other networks; PQN's default is each hidden layer."""


@dataclass(frozen=True)
class PQNConfig(PolicyConfig):
    """`policy.<name>:` with `algorithm: PQN`."""

    MIN_STEPS: ClassVar[int] = 32
    MIN_BATCH: ClassVar[int] = 2_000
    MINIBATCH: ClassVar[int] = 128
    MAX_MINIBATCHES: ClassVar[int] = 32
    FALLS: ClassVar[tuple[float, float]] = (1e-3, 1e-5)
    normalize_advantage: ClassVar[bool] = False

    lr: Annotated[Number, Between(0)] | None = None
    """Adam's step size. A schedule counts env steps. If not given, it falls from 1e-3 to 1e-5 in a straight line over
    the run."""
    max_grad_norm: Positive = 10.0
    """How long the gradient of all the policy's parameters together may be."""
    epsilon: Annotated[Number, Between(0, 1)] = FALLING
    """Probability of an action drawn from all. A schedule counts env steps; evaluations that are not greedy take its
    last value."""
    q_lambda: Fraction = 0.65
    """Weight of longer sums in the targets: 0 looks one step ahead, 1 to the end of the rollout or episode."""
    num_epochs: Count = 2
    """Passes over each rollout."""
    num_minibatches: Count | None = None
    """Steps of the optimiser a pass over the rollout: every sample is in one of them. If not given, as many as make
    minibatches of 128 samples, 32 at most."""
    normalize_reward: bool = True
    """Whether rewards are divided by the standard deviation of the discounted return so far, and clipped to
    +-reward_clip. Q-values then have the size that a normalised layer can give."""
    reward_clip: Positive = 10.0
    """Bound of rewards after they are scaled by normalize_reward."""
    model: PQNModelConfig = field(default_factory=PQNModelConfig)


class PQN(OnPolicy):
    """Updates one policy from its part of each rollout.

    Of a network that remembers, a minibatch is of whole sequences, each from what its player remembered then.

    A target is r + gamma ((1 - lambda) max Q + lambda target), of the step after: what GAE's advantage and the value
    add up to where the value is the largest Q-value. Those are of the network that played.
    """

    FIGURES = {
        "loss": "half the squared error of the Q-values in the last update, mean over its minibatches",
        "q_mean": "mean Q-value of the actions that were taken, likewise",
        "td_error": "mean distance of Q-values from their targets, likewise",
        "epsilon": "probability of an action drawn from all, in the next rollout",
        **{
            name: OnPolicy.FIGURES[name]
            for name in ("explained_variance", "explained_variance_of_returns", "value_mean", "value_std", "value_max")
        },
        "learning_rate": OnPolicy.FIGURES["learning_rate"],
        "grad_norm": OnPolicy.FIGURES["grad_norm"],
    }
    OF_MINIBATCHES = ("loss", "q_mean", "td_error", "grad_norm")
    SCHEDULED = ("lr",)
    config: PQNConfig

    def __init__(self, config: PQNConfig, group: GroupRollout, guard: Guard, seed: int = 0) -> None:
        from trainers.targets.gae import prepare_gae

        estimate = prepare_gae(group, config.gamma, config.q_lambda, config.reward_clip)
        super().__init__(config, group, guard, seed, estimate)
        self.epsilon = begin_epsilon(self)

    @classmethod
    def heads(cls, config: PQNConfig, num_outputs: int) -> dict[str, int]:
        return {"q": num_outputs}

    @classmethod
    def actor(cls, policy: Policy, spec: GroupSpec, stage: Stage) -> Actor:
        from trainers.acting.epsilon_greedy import BootstrappedEpsilonGreedyActor
        from trainers.fused.player import find_player

        return find_player(policy, spec, stage, BootstrappedEpsilonGreedyActor)

    @classmethod
    def why_not(cls, config: PQNConfig, spec: GroupSpec) -> str | None:
        return why_no_q_values(spec)

    def loss_of_kernels(self) -> dict[str, Constant]:
        return {"IS_PPO": False, "MAX_LOG_RATIO": 0.0, "CLIPS_VALUE": False, "HUBER_DELTA": 0.0}

    def state(self) -> Mapping[str, Mapping[str, torch.Tensor]]:
        return {**super().state(), "acting": {"epsilon": self.epsilon}}

    def update(self, clock: Clock = START, phases: Mapping[str, Callable[[], Figures]] | None = None) -> dict[str, Any]:
        found = super().update(clock, phases)
        return {**found, "epsilon": set_epsilon(self, clock)}

    def _loss_of(
        self, samples: Samples, moments: Moments, weights: Weights
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        (number, _, _), (weight, _) = moments, weights
        q, _ = self.policy.outputs_and_value(samples)
        q = q.gather(-1, samples.action.long().unsqueeze(-1)).squeeze(-1)
        error = q - self.target.view(-1).index_select(0, samples.index)
        losses = 0.5 * error.square() * weight
        with torch.no_grad():
            figures = torch.stack([losses, q * weight, error.abs() * weight]).sum(-1) / number
        return losses.sum() / number, losses.detach(), figures
