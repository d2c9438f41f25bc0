"""DQN that acts, steps its envs and learns in one launch: in full float what iterations of one step make by torch."""

from dataclasses import replace
from functools import partial

import pytest
import torch
from q_cases import algorithm_of, make_config, make_trainer

from trainers.errors import NonFiniteError
from trainers.fused import plan
from trainers.fused.q_shape import QAloneShape
from trainers.population import Population, config_of_member
from trainers.replay.storage import Layout
from trainers.settings.config import PopulationConfig, TrainerConfig
from trainers.trainer import Trainer
from warpdrive.config import Schedule
from warpdrive.env_wrapper import EnvWrapper
from warpdrive.errors import ConfigError


def let_kernels_play(monkeypatch, precision: str = plan.FULL_PRECISION) -> None:
    """On a CPU, too."""
    monkeypatch.setattr(TrainerConfig, "precision_on", lambda *_: precision)
    monkeypatch.setattr(plan, "RUNS_ON_CPU", True)
    monkeypatch.setattr("trainers.trainer.EnvWrapper", partial(EnvWrapper, folds=True))


@pytest.mark.parametrize(
    "switches",
    [
        {"target_update_freq": 3, "tau": 1.0},
        {"replay_ratio": 0.3, "n_step": 2, "buffer_size": 44, "fc_dims": (20,), "epsilon_per_env": True},
        {"replay_ratio": 1.0, "double": False, "huber_delta": None, "clip_grad_norm": False},
        {"replay_ratio": 1.0, "loses_futures": True},
        {"replay_ratio": 1.0, "loses_futures": True, "n_step": 3, "buffer_size": 42},
    ],
)
def test_a_rollout_that_learns_is_as_many_iterations_of_one_step(switches, tmp_path, device, monkeypatch):
    """8 iterations of 4 steps are 32 by torch of one: what is kept, in a ring of 24, learned and done is the same.

    Or the store has room for what 3 of the 8 episodes in the ring saw last: steps lose their futures, among them such
    as were drawn before.
    """
    switches = {"epsilon": 0.3, "buffer_size": 46, **switches}
    loses_futures = switches.pop("loses_futures", False)
    if loses_futures:
        of = Layout.of
        monkeypatch.setattr(Layout, "of", lambda *sizes: of(*sizes[:-1], 8))
    by_torch = make_trainer(tmp_path / "torch", device, num_steps=1, **switches)
    let_kernels_play(monkeypatch)
    at_once = make_trainer(tmp_path / "kernel", device, updates_in_rollouts=True, **switches)
    ours, theirs = at_once.algorithms["agent"], by_torch.algorithms["agent"]
    assert isinstance(ours.learns_by.shape, QAloneShape) and ours.learns_by.in_rollouts and theirs.path == "torch"
    for _ in range(8):
        found = at_once.iterate()["agent"]
        expected = [by_torch.iterate()["agent"] for _ in range(4)][-1]
    assert ours.store.num_steps_added == theirs.store.num_steps_added == 32 and ours.store.layout.num_slots == 24
    for name, tensor in theirs.store.tensors.items():
        torch.testing.assert_close(ours.store.tensors[name], tensor, rtol=1e-6, atol=1e-6, msg=name)
    for name, tensor in theirs.store.small.items():
        torch.testing.assert_close(ours.store.small[name], tensor, rtol=1e-6, atol=1e-6, msg=name)
    assert theirs.store.small["num_truncated"].sum() > 8
    assert (theirs.store.num_dropped > 0) == loses_futures
    assert torch.equal(ours.table.draws, theirs.table.draws) and int(ours.table.draws[0]) >> 32 > 3
    for name in ("loss", "q_mean", "td_error", "grad_norm"):
        assert float(found[name]) == pytest.approx(float(expected[name]), rel=1e-5, abs=1e-5), name
    for state in ("optim", "target"):
        for name, tensor in theirs.state()[state].items():
            torch.testing.assert_close(ours.state()[state][name], tensor, rtol=1e-5, atol=1e-5, msg=name)


@pytest.mark.parametrize("fc_dims", [(16, 16), (16, 40), (40, 16), (16,)])
def test_a_rollout_that_learns_plays_the_largest_q_value_of_narrow_networks_too(fc_dims, tmp_path, device, monkeypatch):
    """In bf16, as many agents as a block acts for: what is drawn lies where no layer writes."""
    let_kernels_play(monkeypatch, "bf16")
    sizes = {"num_envs": 16, "batch_size": 32, "buffer_size": 512, "lr": 0.0, "epsilon": 0.0}
    trainer = make_trainer(tmp_path, device, updates_in_rollouts=True, fc_dims=fc_dims, **sizes)
    learner = algorithm_of(trainer)
    assert isinstance(learner.learns_by.shape, QAloneShape)
    for _ in range(3):
        trainer.iterate()
    seen = learner.group.observation[:-1].reshape(-1, 6)
    q = learner.policy(seen)[0].detach()
    lost = (q.max(-1).values - q.gather(-1, learner.group.action.reshape(-1, 1).long()).squeeze(-1)).abs()
    assert lost.max() < 0.02 * q.abs().max()  # of two that are nearly equal, either


def test_rollouts_that_learn_resume_bit_for_bit(tmp_path, device, monkeypatch):
    let_kernels_play(monkeypatch)
    lr = Schedule(((0, 1e-3), (96, 1e-4)))
    config = make_config(tmp_path, device, updates_in_rollouts=True, buffer_size=46, epsilon=0.3, lr=lr)
    whole = Trainer(config)
    for _ in range(5):
        whole.iterate()
    whole.save()
    again = Trainer(config, resume=whole.run.path)
    found = [(one.iterate(), one.iterate())[1]["agent"] for one in (whole, again)]
    assert {name: float(one) for name, one in found[0].items()} == {name: float(one) for name, one in found[1].items()}
    ours, theirs = ({**one.state()["optim"], **one.policy.state_dict()} for one in map(algorithm_of, (whole, again)))
    assert all(torch.equal(ours[name], theirs[name]) for name in ours) and len(ours) > 20


def test_a_population_whose_rollouts_learn_is_one_launch_and_each_member_a_run_by_itself(tmp_path, device, monkeypatch):
    """The second ends early: the others go on, and it stays as it is."""
    let_kernels_play(monkeypatch)
    config = make_config(tmp_path, device, updates_in_rollouts=True, buffer_size=46, epsilon=0.3)
    config = replace(config, population=PopulationConfig(size=3))
    population = Population(config)
    assert population.joint is not None
    for iteration in range(6):
        if iteration == 4:
            population.failed[1] = NonFiniteError("it met one")
        figures = population.iterate()
    assert list(figures) == [0, 2]
    for number, member in enumerate(population.members):
        alone = Trainer(config_of_member(config, number, tmp_path / "alone"))
        for _ in range(4 if number == 1 else 6):
            expected = alone.iterate()["agent"]
        ours, theirs = (
            {**one.state()["optim"], **one.state()["target"], **one.policy.state_dict(), **one.store.tensors}
            for one in map(algorithm_of, (member, alone))
        )
        assert all(torch.equal(ours[name], theirs[name]) for name in theirs) and len(theirs) > 20
        if number != 1:
            assert float(figures[number]["agent"]["loss"]) == float(expected["loss"]) != 0.0
    assert len({float(one["agent"]["loss"]) for one in figures.values()}) == 2
    population.failed |= dict.fromkeys((0, 2), NonFiniteError("they met one, too"))
    assert population.iterate() == {}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"prioritized": True}, "the kernel that makes them knows no prioritized"),
        ({"algorithm": "C51", "v_min": 0.0, "v_max": 1.0}, "the kernel that makes them knows DQN, and no C51"),
        ({"batch_size": 200, "buffer_size": 300}, "a batch of 200 is more than the 128 that a block alone learns from"),
        ({"fc_dims": (160, 160)}, "the network does not fit a block that learns alone"),
        ({"normalize_observation": True}, "the kernel of Q-learning knows no normalize_observation"),
        ({"num_envs": 64}, "a block steps 32 envs beside updates of 40 samples, and there are 64"),
        ({"batch_size": 8}, "a block steps 0 envs beside updates of 8 samples, and there are 2"),
        (
            {"num_envs": 64, "batch_size": 128, "buffer_size": 1280, "fc_dims": (36, 100)},
            "a block has no room for what its envs' agents see, beside the network",
        ),
    ],
)
def test_where_rollouts_cannot_learn_is_told_with_the_way_out(changes, words, tmp_path, device, monkeypatch):
    let_kernels_play(monkeypatch)
    with pytest.raises(ConfigError) as error:
        make_trainer(tmp_path, device, updates_in_rollouts=True, **changes)
    told = str(error.value)
    assert "policy.agent.updates_in_rollouts: " + words in told
    assert "Leave one of them out" in told or "set trainer.train_batch_size: " in told
