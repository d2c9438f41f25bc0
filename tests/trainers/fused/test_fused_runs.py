"""Whole runs by fused kernels: they are torch's runs, made again and gone on with."""

from __future__ import annotations

import copy

import pytest
import torch
from fused_runs import (
    BF16,
    FULL,
    GRU,
    TORCH,
    assert_near,
    climbers,
    deep,
    faulty,
    hashes,
    iterate,
    locks,
    parameters,
    pendulum,
    pictures,
    shove,
    sights,
    spread,
    spy,
    tag,
)
from ppo_cases import mean_what_they_say

from trainers.fused import source
from trainers.run import checkpoint
from trainers.trainer import Trainer
from warpdrive.backends import ahead


@pytest.mark.parametrize("run", [tag, spread, climbers, sights, pendulum, shove, deep, pictures])
def test_two_iterations_in_full_precision_are_torchs(make, run):
    ours, torchs = make(run(), FULL), make(run(), TORCH)
    for trainer in (ours, torchs):
        mean_what_they_say(trainer)  # climbers earn nothing yet
    before = parameters(ours)
    for found, expected in zip(iterate(ours, 2), iterate(torchs, 2), strict=True):
        assert found.keys() == expected.keys()
        for policy in expected:
            assert found[policy].keys() == expected[policy].keys()
            assert found[policy] == pytest.approx(expected[policy], rel=1e-3, abs=1e-4)
    if run not in (pendulum, shove, pictures):
        last = expected[list(expected)[-1]]
        assert last["clip_fraction"] > 0.1 and last["approx_kl"] > 1e-4
    found = parameters(ours)
    assert not any(torch.equal(found[name], before[name]) for name in found)
    assert_near(found, parameters(torchs))
    for name, policy in torchs.policies.items():  # running statistics, too
        assert_near(ours.policies[name].state_dict(), policy.state_dict())


@pytest.mark.parametrize("run", [pendulum, shove])
def test_an_actor_and_a_critic_that_share_their_code_learn_the_same(make, run, device, monkeypatch):
    """As wide ones do, which these are not; choices and numbers. A CPU has the same bits."""
    found, shared, of_both = [], [], source._of_both
    for tiles in (source.ALIKE_TILES, 1):
        monkeypatch.setattr(source, "ALIKE_TILES", tiles)
        monkeypatch.setattr(source, "_of_both", lambda *parts: shared.append(of_both(*parts)) or shared[-1])
        trainer = make(run(), FULL)
        iterate(trainer, 2)
        found.append(parameters(trainer))
        assert len([one for one in shared if one is not None]) == (0 if tiles > 1 else 2)  # what plays, and what learns
    assert_near(found[1], found[0])
    assert device == "cuda" or all(torch.equal(one, found[1][name]) for name, one in found[0].items())


def test_kl_early_stop_is_torchs(make):
    """Some minibatches of an iteration are learned from, and some are not: those count in no figure."""
    steps, figures = {}, {}
    for precision in (TORCH, FULL):
        trainer = make(tag(target_kl=0.02, lr=0.02, num_epochs=5), precision)
        steps[precision], figures[precision] = [], []
        for _ in range(2):
            figures[precision] += [iterate(trainer, 1)[0]["runner"]]
            memory = trainer.algorithms["runner"].optimizer.state
            steps[precision].append({int(one["step"].item()) for one in memory.values()})
    assert steps[FULL] == steps[TORCH]
    assert 2 < max(steps[FULL][-1]) < 8  # of 10: the one after the last is counted, and those after that are not
    for found, expected in zip(figures[FULL], figures[TORCH], strict=True):
        assert found == pytest.approx(expected, rel=1e-3, abs=1e-4)


def test_a_policy_that_is_not_trained_plays_and_stays(make):
    trainer = make(faulty(to_train=False), BF16)
    before = parameters(trainer)
    iterate(trainer, 1)
    after = parameters(trainer)
    assert {name.split(".")[0] for name in before if not torch.equal(before[name], after[name])} == {"others"}
    assert trainer.rollout.groups["first"].action.unique().tolist() == [0, 1]


# --------------------------------------------------------------------------------- again, and gone on with


def layered() -> dict:
    """Layers that go through memory, with LayerNorms; and a LayerNorm before a layer that does not."""
    run = deep()
    run["policy"]["tagger"]["model"]["layer_norm"] = True
    return run


def seeing() -> dict:
    """Agents who leave the game, with a memory, and their critic, which sees the state, with another."""
    run = climbers()
    run["policy"]["climber"]["model"] |= {**GRU, "layer_norm": True}
    return run


def swinging() -> dict:
    """A number, after what was seen before."""
    run = pendulum()
    run["policy"]["agent"]["model"] |= {**GRU, "shared_trunk": True}
    return run


AGAIN = {
    "choices that masks forbid": locks,
    "a memory": lambda: locks(**GRU),
    "numbers beside choices": shove,
    "a number, with a memory": swinging,
    "layers, and LayerNorms": layered,
    "central critics of several arrays": sights,
    "a central critic with a memory": seeing,
    "pictures": pictures,
}


@pytest.mark.parametrize("kind", AGAIN)
def test_a_run_made_again_and_a_run_resumed_are_the_run_bit_for_bit(make, kind):
    """Four iterations of three envs, of which a GPU replays two as graphs; of a run that goes on after two, none."""
    run = AGAIN[kind]()
    whole = make(run, BF16, num_envs=3)
    whole.train()
    end = hashes(whole)
    again = make(run, BF16, num_envs=3)
    again.train()
    assert hashes(again) == end
    resumed = make(run, BF16, num_envs=3, resume=checkpoint.list_checkpoints(whole.run.checkpoints)[-2])
    assert resumed.iteration == 2
    resumed.train()
    assert hashes(resumed) == end
    if kind in ("choices that masks forbid", "a memory"):
        assert_keeps_to_masks(whole)
    if kind == "numbers beside choices":
        assert_pushes_what_is_drawn(whole)


def assert_keeps_to_masks(whole: Trainer) -> None:
    reward, group = whole.rollout.reward, whole.rollout.groups["agent"]
    assert reward.min() == 0 and reward.max() == 1  # what is not allowed costs 1
    taken = torch.nn.functional.one_hot(group.action[..., 0].long(), 3).bool()
    assert (group.mask[..., :3][taken] | ~group.mask[..., :3].any(-1).flatten()).all()


def assert_pushes_what_is_drawn(whole: Trainer) -> None:
    pushed, drawn = whole.rollout.data["action_pushers"], whole.rollout.groups["pushers"].action
    head = whole.policies["pushers"].head
    torch.testing.assert_close(pushed, head.action_of(drawn), rtol=0, atol=1e-6)
    assert not torch.equal(head.log_std.detach(), torch.zeros_like(head.log_std))


@pytest.mark.parametrize(("precision", "model"), [(FULL, {}), (BF16, {}), (BF16, GRU)], ids=["full", "mlp", "gru"])
def test_fused_kernels_go_on_where_torch_stopped_and_torch_where_they_did(make, precision, model):
    """In full precision as torch alone would have gone on."""
    run = tag() if precision == FULL else locks(**model)
    first = make(run, TORCH, num_iterations=1)
    first.train()
    second = make(run, precision, num_iterations=2, resume=first.run.path)
    assert second.iteration == 1
    second.train()
    third = make(run, TORCH, num_iterations=3, resume=first.run.path)
    assert third.iteration == 2
    assert_near(parameters(third), parameters(second), 0.0)
    third.train()
    if precision == FULL:
        alone = make(run, TORCH, num_iterations=3)
        alone.train()
        assert_near(parameters(third), parameters(alone))


def test_nothing_waits_for_a_compiler_before_all_are_at_work(make, monkeypatch):
    begun, waited = [], []
    monkeypatch.setattr(ahead.ModuleAhead, "__init__", spy(ahead.ModuleAhead.__init__, begun))
    monkeypatch.setattr(ahead.ModuleAhead, "module", spy(ahead.ModuleAhead.module, waited))
    monkeypatch.setattr(Trainer, "_make", spy(Trainer._make, [], lambda: waited.append("all made")))
    make(shove(), BF16)
    assert waited[0] == "all made" and len(waited) > 1 and len(begun) > 10


def test_what_is_changed_between_iterations_is_what_plays_and_a_copy_is_a_policy_of_its_own(make):
    trainer = make(tag(), FULL)
    trainer.iterate()
    policy = trainer.policies["tagger"]
    twin = copy.deepcopy(policy)
    with torch.no_grad():
        policy.network.value_head.weight.zero_()
        policy.network.value_head.bias.fill_(0.75)
    assert twin.network.value_head.bias.item() != 0.75
    trainer.rollout.collect()
    assert (trainer.rollout.groups["tagger"].value == 0.75).all()
