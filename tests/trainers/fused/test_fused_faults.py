"""What goes wrong stops a run by fused kernels as it stops torch's."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
import torch
from fused_runs import BF16, TORCH, faulty, parameters, pictures, shove

import trainers.trainer
from trainers.errors import NonFiniteError
from trainers.trainer import Trainer
from warpdrive.backends.base import Module, Source
from warpdrive.backends.cpu import CpuBackend, CpuModule

# -------------------------------------------------------------------------------------------- what is not finite


def fail(trainer: Trainer) -> tuple[str, list[dict[str, torch.Tensor]]]:
    """Why it stops, and the parameters before each iteration and after the last."""
    states, iterate = [parameters(trainer)], trainer.iterate

    def recorded() -> dict:
        figures = iterate()
        states.append(parameters(trainer))
        return figures

    trainer.iterate = recorded
    with pytest.raises(NonFiniteError) as caught:
        trainer.train()
    assert all(torch.isfinite(tensor).all() for state in states for tensor in state.values())
    return str(caught.value), states


def fail_alike(make: Callable[..., Trainer], run: dict, prepare: Callable[[Trainer], object] = id, **arguments: int):
    """By torch and by fused kernels, which stop for the same reason: that, and what `fail` tells of each."""
    found = []
    for precision in (TORCH, BF16):
        trainer = make(run, precision, **arguments)
        prepare(trainer)
        found.append(fail(trainer))
    (message, of_torch), (same_message, of_kernels) = found
    assert message == same_message
    return message, (of_torch, of_kernels)


def changes(states: list[dict[str, torch.Tensor]], policy: str) -> list[bool]:
    """Whether each iteration changed it."""
    return [
        not all(torch.equal(one[name], other[name]) for name in one if name.startswith(policy))
        for one, other in itertools.pairwise(states)
    ]


class DebugsActing(CpuBackend):
    """Debug mode takes a compiler long: only what plays is compiled for it."""

    def compile(self, source: Source) -> Module:
        return super().compile(source) if source.path == "<fused act>" else CpuModule(self, source)


def test_debug_mode_finds_no_race_between_policies_of_one_launch(make, device, monkeypatch):
    if device != "cpu":
        pytest.skip("the CPU's debug mode finds races")
    monkeypatch.setattr(trainers.trainer, "make_backend", lambda settings: DebugsActing(debug=True))
    run = faulty()
    run["policy"] = {name: {**policy, "to_train": False} for name, policy in run["policy"].items()}  # fewer kernels
    make(run, BF16).rollout.collect()


@pytest.mark.parametrize("where", ["observation", "reward"])
def test_what_an_env_spoils_stops_the_run_as_it_stops_torchs(make, where):
    """In the third iteration; it is told after the fourth, which plays on with what is spoilt."""
    run = faulty(env={"where": where, "env": 5, "agent": 2, "step": 24})
    message, (_, states) = fail_alike(make, run, report=4, save=4)
    assert message.startswith(f"policy 'others': {where} is a NaN or an infinity at env 5, agent 2, step ")
    assert changes(states, "first") == changes(states, "others") == [True, True, False, False]


def test_a_bad_loss_stops_the_run_as_it_stops_torchs(make):
    """Row 37 of [step, env, agent], which is env 1 in step 6."""

    def spoil_the_third(trainer: Trainer) -> None:
        learner, iterate = trainer.algorithms["first"], trainer.iterate
        advantage, estimate = learner.group.advantage.view(-1), learner.estimate
        bad = torch.zeros((), device=advantage.device)

        def estimate_and_spoil() -> None:
            estimate()
            advantage[37].add_(bad)

        def iterate_and_spoil() -> dict:
            if trainer.iteration == 2:
                bad.fill_(float("nan"))
            return iterate()

        learner.estimate, trainer.iterate = estimate_and_spoil, iterate_and_spoil

    message, both = fail_alike(make, faulty(normalize_return=False), spoil_the_third, report=4, save=4)
    where = "env 1, agent 0, step 6 of iteration 3 "
    assert message.startswith(f"policy 'first': loss is a NaN or an infinity at {where}")
    for states in both:
        assert changes(states, "first") == [True, True, False, False]


@pytest.mark.parametrize(
    ("run", "policy", "parameter"),
    [
        (faulty, "others", "network.trunk.0.bias"),
        (faulty, "others", "network.policy_head.weight"),
        (faulty, "others", "network.value_head.bias"),
        (shove, "pushers", "network.policy_head.bias"),
        (shove, "pushers", "head.log_std"),
        (pictures, "others", "network.q_head.bias"),
    ],
)
def test_a_policy_that_makes_no_numbers_stops_the_run_as_it_stops_torchs(make, run, policy, parameter):
    messages = []
    for precision in (TORCH, BF16):
        trainer = make(run(), precision)
        with torch.no_grad():
            trainer.policies[policy].get_parameter(parameter).view(-1)[0] = float("nan")
        trainer.iterate()
        with pytest.raises(NonFiniteError) as caught:
            trainer.guard.raise_if_halted(trainer.iteration)
        messages.append(str(caught.value))
    assert messages[0] == messages[1]


def test_a_huge_learning_rate_stops_the_run_as_it_stops_torchs(make):
    one_trunk = {"fc_dims": [8], "activation": "relu", "shared_trunk": True}
    message, (_, states) = fail_alike(make, faulty(lr=1e30, normalize_return=False, model=one_trunk))
    assert message.startswith("policy 'first': value is a NaN or an infinity at env 0, agent 0, step 0 of iteration 2 ")
    assert changes(states, "first") == [True, False]


def test_an_infinite_gradient_stops_the_run_as_it_stops_torchs(make):
    """Of the value head alone: hidden numbers of 1e20, times a loss of 1e20."""

    def enlarge(trainer: Trainer) -> None:
        network = trainer.policies["first"].network
        with torch.no_grad():
            network.trunk[0].bias.fill_(1e20)
            network.value_head.weight.fill_(1e-21)
            network.policy_head.weight.zero_()

    one_trunk = {"normalize_return": False, "model": {"fc_dims": [8], "activation": "relu", "shared_trunk": True}}
    message, both = fail_alike(make, faulty(vf_loss_coeff=1e20, **one_trunk), enlarge)
    assert "the gradient of 'network.value_head.weight' became a NaN or an infinity in iteration 1" in message
    for states in both:
        assert not any(changes(states, "first"))
        # It learns beside the first, from the same rollout; a GPU tells of it an iteration later.
        assert changes(states, "others") == [True, False][: len(states) - 1]
