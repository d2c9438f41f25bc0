"""REINFORCE: actions that were followed by much reward get likelier. No critic, one step of Adam a rollout.

Source: Williams 1992, "Simple statistical gradient-following algorithms for connectionist reinforcement learning".
"""

import math
from dataclasses import dataclass

import torch

from trainers.acting.actor import Actor
from trainers.algorithms.algorithm import Algorithm
from trainers.experience.field import Field
from trainers.learning.optimiser import SafeAdam
from trainers.settings.config import PolicyConfig
from warpdrive.sampler import Sampler


@dataclass(frozen=True)
class ReinforceConfig(PolicyConfig):
    baseline: bool = True
    """Whether the mean return is taken from each return."""


def returns_to_go(reward, ended, discount, into):
    """What followed each step until its episode or the rollout ended.

    Args:
        reward: [T, E, A]. ended: [T, E]. into: [T, E, A], written.
    """
    into.copy_(reward)
    for t in reversed(range(len(reward) - 1)):
        into[t] += discount * into[t + 1] * ~ended[t].unsqueeze(-1)


def reinforce_loss(log_prob, returns):
    """For each sample: its gradient raises the probability of what was followed by a positive return."""
    return -log_prob * returns


class ReinforceActor(Actor):
    """Draws actions from logits, and keeps nothing but them."""

    def attach(self, group):
        super().attach(group)
        self.shape = (group.rollout.num_envs, self.spec.num_agents)
        self.logits = group.rollout.reward.new_zeros(*self.shape, self.policy.head.num_outputs)
        self.unused = self.logits.new_zeros(2, *self.shape)  # log-probability and entropy
        env, columns = group.rollout.env, group.action_array.shape[2]
        sizes, first = self.policy.head.head_sizes, self.spec.acts.columns.start
        self.sampler = Sampler(
            env.data, self.shape[0], self.spec.agents, columns, sizes, env.backend, first_column=first
        )

    def prepare_step(self, t):
        group, greedy = self.group, self.spec.name in self.stage.greedy
        mask = None if group.mask is None else group.mask[t]
        seen, calls = group.features.prepare_step(group.rollout.seen(t), lambda name, example: example.clone())

        def think():
            self.logits.copy_(self.policy.heads(seen)["policy"].view_as(self.logits))

        draw = self.sampler.prepare(self.logits, group.action_array[t], *self.unused, mask, greedy=greedy)
        return [*calls, think, draw]


class Reinforce(Algorithm):
    FIGURES = {"policy_loss": "mean of -log_prob * return", "grad_norm": "length of the gradient"}

    def __init__(self, config, group, guard, seed=0):
        super().__init__(config, group, guard, seed)
        max_norm = config.max_grad_norm if config.clip_grad_norm else math.inf
        parameters = [{"params": list(self.policy.parameters())}]
        self.optimizer = SafeAdam(self.policy, parameters, self.scalars["lr"], guard, group.name, max_norm)

    @classmethod
    def heads(cls, config, num_outputs):
        return {"policy": num_outputs}

    @classmethod
    def fields(cls, config, spec):
        return [Field("returns")]

    @classmethod
    def actor(cls, policy, spec, stage):
        return ReinforceActor(policy, spec, stage)

    def phases(self):
        return {"learn": self.learn}

    def learn(self):
        group, rollout = self.group, self.group.rollout
        agents = slice(group.agents.start, group.agents.stop)
        returns_to_go(
            rollout.reward[:, :, agents], rollout.terminated | rollout.truncated, self.config.gamma, group.returns
        )
        returns = group.returns.flatten()
        if self.config.baseline:
            returns = returns - returns.mean()
        index = torch.arange(len(returns), device=self.device)
        seen = group.features.take(rollout.seen(), index)
        mask = None if group.mask is None else group.mask.flatten(0, 2)
        logits = self.policy.heads(seen)["policy"]
        log_prob, _ = self.policy.head.log_prob_and_entropy(logits, group.action.flatten(0, 2), mask)
        losses = reinforce_loss(log_prob, returns)
        self.optimizer.begin()
        loss = losses.mean() / self.world.size
        loss.backward()
        self.guard.check_loss(group.name, losses, index)
        (loss,) = self.optimizer.reduce(loss.detach().view(1))  # gradients and figures of all ranks are summed
        return {"policy_loss": loss, "grad_norm": self.optimizer.safe_step()}

    def state(self):
        return {"optim": self.optimizer.tensors()}
