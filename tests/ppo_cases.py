"""What tests of the algorithms share: looks between the parts of an update, and an update in plain torch."""

import torch
from torch.nn.functional import huber_loss

from trainers.algorithms.on_policy import OnPolicy
from trainers.algorithms.ppo import PPOConfig
from trainers.networks.policy import Policy
from trainers.trainer import Trainer

NUM_ACTIONS = 5
"""Of grid-world Tag."""


def parts(trainer: Trainer):
    """The policy's rollout and what learns from it."""
    ((name, group),) = trainer.rollout.groups.items()
    return group, trainer.algorithms[name]


def know_nothing(trainer: Trainer) -> None:
    """Every action is as likely as every other, and every value is 0, whatever is seen."""
    group, _ = parts(trainer)
    with torch.no_grad():
        group.policy.network.policy_head.weight.zero_()
        group.policy.network.value_head.weight.zero_()


def mean_what_they_say(trainer: Trainer) -> None:
    """New critics' values are of rewards as they are, from the first; else they stand for nothing until then."""
    for policy in trainer.policies.values():
        if policy.value_norm is not None:
            policy.value_norm.moments.copy_(torch.tensor([0.0, 1.0]))


def end_nothing(trainer: Trainer) -> None:
    """The rollout becomes one in which no episode ends."""
    trainer.rollout.terminated.zero_()
    trainer.rollout.truncated.zero_()
    trainer.env.data["num_truncated"].zero_()


def expect(learner, advantage: torch.Tensor) -> None:
    """These advantages stand in for the estimated ones."""
    learner.estimate = lambda: learner.group.advantage.copy_(advantage.view_as(learner.group.advantage))


def watch_minibatches(group, monkeypatch) -> list[torch.Tensor]:
    """The rows of [T, E, A] of each minibatch, as they are taken from now on."""
    taken, samples = [], group.samples

    def watched(units):
        found = samples(units)
        taken.append(found.index.clone())
        return found

    monkeypatch.setattr(group, "samples", watched)
    return taken


def watch_gradients(learner, monkeypatch) -> list[list[torch.Tensor]]:
    """The gradients of all parameters, as the optimiser gets them from now on; it makes no step."""
    given = []

    def take() -> torch.Tensor:
        given.append([parameter.grad.clone() for parameter in learner.parameters])
        learner.optimizer.zero_grad(set_to_none=True)
        return torch.zeros((), device=learner.parameters[0].device)

    monkeypatch.setattr(learner.optimizer, "safe_step", take)
    return given


def step_along(learner, gradient: float) -> dict[str, torch.Tensor]:
    """How much less each parameter is after a step of the optimiser along this gradient of all numbers."""
    parameters = dict(learner.policy.named_parameters())
    before = {name: parameter.detach().clone() for name, parameter in parameters.items()}
    for parameter in parameters.values():
        parameter.grad = torch.full_like(parameter, gradient)
    learner.step()
    return {name: old - parameters[name].detach() for name, old in before.items()}


def num_steps_made(learner) -> int:
    """Of the optimiser."""
    return max((int(memory["step"].item()) for memory in learner.optimizer.state.values()), default=0)


def all_samples(group):
    return group.samples(torch.arange(group.num_units, device=group.advantage.device))


def state_of(trainer: Trainer) -> dict[str, torch.Tensor]:
    group, _ = parts(trainer)
    return {name: tensor.clone() for name, tensor in group.policy.state_dict().items()}


# ------------------------------------------------------------------------------------------ in plain torch


def evaluate(policy: Policy, group, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """log_prob, entropy and value [N] of these rows of [T, E, A]."""
    samples, action = group.samples(rows), group.action.flatten(0, 2).view(len(group.advantage.view(-1)), -1)[rows]
    outputs, value = policy(group.observation[:-1].flatten(0, 2)[rows], samples.critic_input)
    if samples.mask is not None:
        outputs = outputs.masked_fill(~samples.mask, -torch.inf)
    choices = [
        torch.distributions.Categorical(logits=logits) for logits in outputs.split(list(policy.head.head_sizes), -1)
    ]
    log_prob = sum(choice.log_prob(action[:, head]) for head, choice in enumerate(choices))
    return log_prob, sum(choice.entropy() for choice in choices), value


def update_plainly(learner: OnPolicy, policy: Policy, minibatches: list[torch.Tensor]) -> list[dict[str, torch.Tensor]]:
    """Steps of torch's Adam along A2C's or PPO's loss, each of samples of agents in the game and of no others; unless
    their team is the credit of those who left: then the critic learns from all.

    Without a memory the others are not even looked at.

    Args:
        learner: has made its own update by now.
        policy: a copy from before that; it changes.
        minibatches: the units of each step.
    Returns:
        Figures of each step; `moved` is how far the probability of any action had moved, as a part of it.
    """
    config, group = learner.config, learner.group
    advantage, old_value, old_log_prob = (x.flatten() for x in (group.advantage, group.value[:-1], group.log_prob))
    active = torch.ones_like(advantage).bool() if group.active is None else group.active.flatten()
    judged = active | group.credits_team
    target, least = advantage + old_value, 1e-8
    if config.normalize_return:  # the first mean and deviation, debiased, are plain ones
        deviation = target[judged].std(correction=0).clamp_min(0.01)
        target = (target - target[judged].mean()) / deviation
        least = max(least, config.min_advantage_std * deviation)
    huber_delta = getattr(config, "huber_delta", None) or torch.inf
    optimizer = torch.optim.Adam(policy.parameters(), lr=config.lr, eps=1e-5)
    steps = []
    for units in minibatches:
        index = group.index_of(units).flatten()
        rows, of_value = index[active[index]], index[judged[index]]
        if policy.memory_size:
            *found, value = policy.evaluate(group.samples(units))
            log_prob, entropy, value = (*(one[active[index]] for one in found), value[judged[index]])
        else:
            log_prob, entropy, value = evaluate(policy, group, rows)
            value = evaluate(policy, group, of_value)[2] if group.credits_team else value
        aim, old, gain = target[of_value], old_value[of_value], advantage[rows]
        if config.normalize_advantage:
            gain = (gain - gain.mean()) / gain.std(correction=0).clamp_min(least)
        ratio = (log_prob - old_log_prob[rows]).exp()
        if isinstance(config, PPOConfig):
            loss = -torch.minimum(ratio * gain, ratio.clamp(0.8, 1.2) * gain)
            near = old + (value - old).clamp(-0.2, 0.2)
            error, of_near = (huber_loss(one, aim, reduction="none", delta=huber_delta) for one in (value, near))
            error = torch.maximum(error, of_near) if config.clip_value else error
        else:
            weight = ratio.detach().clamp_max(1.0) if len(minibatches) > 1 else 1.0
            loss, error = -log_prob * gain * weight, (value - aim).square()
        found = {"policy_loss": loss.mean(), "value_loss": error.mean(), "entropy": entropy.mean()}
        optimizer.zero_grad()
        total = found["policy_loss"] + config.vf_loss_coeff * found["value_loss"]
        (total - config.entropy_coeff * found["entropy"]).backward()
        found["grad_norm"] = torch.nn.utils.clip_grad_norm_(policy.parameters(), config.max_grad_norm)
        optimizer.step()
        steps.append({name: one.detach() for name, one in {**found, "moved": (ratio - 1).abs().max()}.items()})
    return steps
