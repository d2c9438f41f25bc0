"""R2D3: how demonstrations are mixed in, that nothing overwrites them, what they are drawn by, what is refused."""

import json
import math
import runpy
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from trainers.algorithms.r2d3 import mixed
from trainers.evaluation import load_policies
from trainers.replay import dataset as dataset_module
from trainers.replay.of_group import SampledSequences
from trainers.run import checkpoint
from trainers.run.manifest import sha256, to_json
from trainers.settings.read_config import read_config
from trainers.trainer import Trainer
from warpdrive.errors import CheckpointError, ConfigError

ROOT = Path(__file__).parents[3]
SIZE, NUM_EPISODES, RATIO = 6, 5, 0.25


@pytest.fixture(scope="module")
def dataset(tmp_path_factory) -> Path:
    """Five episodes of who knows the way: 6 steps each, and the last pays 1 - 0.01 / 6."""
    folder = tmp_path_factory.mktemp("demonstrations") / "deep_sea"
    record = runpy.run_path(str(ROOT / "examples" / "deep_sea" / "demonstrations.py"))["record"]
    assert record(folder, SIZE, NUM_EPISODES) == pytest.approx(1.0 - 0.01)
    return folder


@pytest.fixture
def make(tmp_path, device, dataset):
    """A function that makes a run of 4 envs, an episode an iteration; an item is an episode."""

    def make(resume: Path | None = None, num_iterations: int = 4, env: dict | None = None, **policy: object) -> Trainer:
        small = {"burn_in": 0, "length": SIZE, "period": SIZE, "n_step": 1, "batch_size": 64, "buffer_size": 384}
        small |= {"learning_starts": 0, "replay_ratio": 0.1, "model": {"fc_dims": [8], "memory_size": 6}}
        small |= {"demonstrations": str(dataset), "demo_ratio": RATIO}
        size = 4 * SIZE
        config = {
            "name": "deep_sea",
            "env": {"size": SIZE, **(env or {})},
            "trainer": {"num_envs": 4, "train_batch_size": size, "total_timesteps": num_iterations * size,
                        "device": device, "precision": "fp32"},
            "policy": {"agent": {"algorithm": "R2D3", **small, **policy}},
            "saving": {"basedir": str(tmp_path), "metrics_log_freq": 1, "model_params_save_freq": 2},
        }  # fmt: skip
        return Trainer(read_config(config), resume=resume)

    return make


def test_a_mixed_batch_by_hand():
    """Item 1 of three is a demonstration, and begins with nothing remembered."""
    ones = torch.ones(2, 3)
    played = SampledSequences(
        observation={"image": torch.ones(3, 3, 4)}, mask=None, starts=ones.bool(), memory=torch.ones(3, 5),
        action=ones.long(), reward=ones, discount=ones, bootstrap=ones.long(), valid=ones, weight=torch.ones(3),
    )  # fmt: skip
    names = ("action", "reward", "discount", "bootstrap", "valid", "weight")
    twice = {name: 2 * getattr(played, name) for name in names}
    twice["observation"] = {"image": torch.full((3, 3, 4), 2.0)}
    demos = replace(played, memory=None, starts=~played.starts, **twice)
    found = mixed(torch.tensor([False, True, False]), demos, played)
    assert found.reward.tolist() == [[1, 2, 1], [1, 2, 1]] and found.weight.tolist() == [1, 2, 1]
    assert found.observation["image"][:, :, 0].tolist() == [[1, 2, 1]] * 3 and found.mask is None
    assert found.memory[:, 0].tolist() == [1, 0, 1] and found.starts[0].tolist() == [True, False, True]
    assert all(getattr(found, name)[0].tolist() == [1, 2, 1] for name in ("action", "discount", "bootstrap", "valid"))


def test_the_share_of_demonstrations_is_their_ratio_and_each_is_a_way_to_the_treasure(make):
    """Of 64 * 100 items a quarter, within 4 standard deviations of a binomial's; only they are paid 1 - 0.01 / 6."""
    trainer = make(epsilon=0.0)
    trainer.iterate()
    algorithm, number, paid = trainer.algorithms["agent"], 0, 0
    for _ in range(100):
        batch = algorithm.draw()
        is_demo = algorithm._is_demo
        number += int(is_demo.sum())
        paid += int((batch.reward[-1] > 0.9)[is_demo].sum())
        assert torch.equal(batch.memory[is_demo], torch.zeros_like(batch.memory[is_demo]))
    assert abs(number - 6400 * RATIO) < 4 * math.sqrt(6400 * RATIO * (1 - RATIO))
    assert paid == number


@pytest.mark.parametrize(("ratio", "prioritized"), [(0.0, True), (1.0, True), (1.0, False)])
def test_the_ends_of_the_ratio_are_none_and_all(make, ratio, prioritized):
    trainer = make(demo_ratio=ratio, prioritized=prioritized)
    trainer.iterate()
    trainer.algorithms["agent"].draw()
    assert trainer.algorithms["agent"]._is_demo.float().mean().item() == ratio


def test_demonstrations_are_never_overwritten(make):
    """The own store of 24 steps an env is full after four iterations; eight go by."""
    trainer = make(num_iterations=8)
    store = trainer.algorithms["agent"].demonstrations
    before = {name: one.clone() for name, one in {**store.tensors, **store.small}.items()}
    trainer.train()
    assert all(torch.equal(one, before[name]) for name, one in {**store.tensors, **store.small}.items())
    assert int(store.small["head"][0]) == NUM_EPISODES * SIZE


def test_an_error_becomes_the_priority_of_who_was_drawn_in_the_store_it_came_from(make):
    """(7 + 0)^1 in units of 2^-20 for demonstrations and what was played; those that were not drawn keep theirs."""
    trainer = make(alpha=1.0, priority_epsilon=0.0, batch_size=5)
    trainer.iterate()
    algorithm = trainer.algorithms["agent"]
    algorithm.draw()
    algorithm._is_demo.copy_(torch.tensor([True, False, False, True, False]))
    tables = {True: (algorithm.demo_table, algorithm._demos), False: (algorithm.table, algorithm.batch)}
    before = {which: table.selector.tree.leaves.clone() for which, (table, _) in tables.items()}
    algorithm.keep_errors(torch.full((5,), 7.0, device=before[True].device))
    for which, (table, batch) in tables.items():
        expected = before[which].clone()
        expected[batch.index[algorithm._is_demo == which]] = 7 << 20
        assert torch.equal(table.selector.tree.leaves, expected)
        table.raise_if_refused()


def test_a_run_that_goes_on_draws_the_same_demonstrations(make):
    trainer = make()
    trainer.train()
    halfway, _ = checkpoint.list_checkpoints(trainer.run.path / "checkpoints")[-2:]
    resumed = make(resume=halfway)
    resumed.train()
    ours, theirs = (one.algorithms["agent"] for one in (trainer, resumed))
    for name, one in ours.demo_table.tensors().items():
        assert torch.equal(one, theirs.demo_table.tensors()[name]), name
    for one, other in zip(ours.policy.parameters(), theirs.policy.parameters(), strict=True):
        assert torch.equal(one, other)


def test_who_only_plays_needs_no_demonstrations_any_more(make, dataset, tmp_path):
    """To learn on they are needed."""
    moved = shutil.copytree(dataset, tmp_path / "for_now")
    trainer = make(demonstrations=str(moved))
    trainer.train()
    shutil.rmtree(moved)
    _, policies = load_policies(trainer.run.path)
    for one, other in zip(policies["agent"].parameters(), trainer.policies["agent"].parameters(), strict=True):
        assert torch.equal(one, other.cpu())
    with pytest.raises(ConfigError, match="cannot read its demonstrations"):
        read_config(trainer.run.path / "config.resolved.yaml")


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"demonstrations": None}, r"demonstrations: R2D3 learns from a dataset, too, and none is named"),
        ({"demonstrations": "/nowhere"}, r"cannot read its demonstrations: .*nowhere"),
        ({"env": {"size": 7}}, r"hold \[6, 6\] torch.uint8 as 'observation_0', and this env \[7, 7\]"),
        ({"length": 36, "buffer_size": 400}, r"takes 36 steps of an env, and they have 30"),
        ({"period": 5, "buffer_size": 400}, r"period 5 does not divide their 36 slots. The nearest that do: 4 and 6."),
    ],
)
def test_what_cannot_be_learned_from_is_a_line(make, changes, told):
    with pytest.raises(ConfigError, match=told):
        make(**changes)


def test_a_run_does_not_go_on_with_other_demonstrations_unless_it_is_told_to(make, dataset, tmp_path):
    """Of as many steps: their priorities would be taken for those of what was there before."""
    folder = shutil.copytree(dataset, tmp_path / "demonstrations")
    trainer = make(num_iterations=2, demonstrations=str(folder))
    trainer.train()
    make(trainer.run.path, demonstrations=str(dataset))  # the same, in another place
    told = json.loads((folder / "dataset.json").read_text())
    told["exported"] = "another day"
    del told["sha256"]
    (folder / "dataset.json").write_bytes(to_json({**told, "sha256": sha256(to_json(told))}))
    with pytest.raises(CheckpointError, match=r"dataset\.agent was '[0-9a-f]+\.*'? in the run that was saved, and is"):
        make(trainer.run.path, demonstrations=str(folder))


@pytest.mark.parametrize(
    ("name", "number", "told"),
    [
        ("action", -1, "'action' holds -1, and never but from 0 to 1"),
        ("action", 2, "'action' holds 2, and never but from 0 to 1"),
        ("reward", float("nan"), "'reward' holds a NaN or an infinity"),
        ("reward", float("-inf"), "'reward' holds a NaN or an infinity"),
    ],
)
def test_a_demonstration_of_what_cannot_be_learned_from_is_refused(make, monkeypatch, name, number, told):
    read = dataset_module.read_dataset

    def forged(*how):
        store = read(*how)
        store.state()[name][3] = number
        return store

    monkeypatch.setattr(dataset_module, "read_dataset", forged)
    with pytest.raises(ConfigError, match=rf"policy\.agent\.demonstrations: .*{told}. Record it anew"):
        make()
