"""What tests of the algorithms' details share: a small run, and looks between the parts of an update."""

import torch

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
    monkeypatch.setattr(
        learner.optimizer, "step", lambda: given.append([parameter.grad.clone() for parameter in learner.parameters])
    )
    return given


def num_steps_made(learner) -> int:
    """Of the optimiser."""
    return max((int(memory["step"].item()) for memory in learner.optimizer.state.values()), default=0)


def state_of(trainer: Trainer) -> dict[str, torch.Tensor]:
    group, _ = parts(trainer)
    return {name: tensor.clone() for name, tensor in group.policy.state_dict().items()}
