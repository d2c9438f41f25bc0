"""Every algorithm does what PPO does: a table of algorithms and features, each cell of which is a test or a reason."""

import functools
import json
import shutil
import tempfile
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from trainers_runs import reports_of

from trainers.algorithms import ALGORITHMS, find_algorithm
from trainers.algorithms.off_policy import OffPolicy
from trainers.cli import main
from trainers.errors import NonFiniteError
from trainers.learning.launcher import launch
from trainers.replay.dataset import write_dataset
from trainers.run import checkpoint
from trainers.settings.config import TrainerConfig
from trainers.settings.read_config import read_config
from trainers.trainer import Trainer
from warpdrive.errors import ConfigError

SMALL = {"lr": 1e-3, "model": {"fc_dims": [8]}}
REPLAY = {"learning_starts": 80, "buffer_size": 400, "batch_size": 16, "replay_ratio": 0.05} | SMALL
SEQUENCES = {"burn_in": 2, "length": 4, "period": 2, "n_step": 1, "model": {"type": "gru", "memory_size": 8}}
LSTM = {"model": {"type": "lstm", "memory_size": 8, "fc_dims": [8]}}
POLICIES = {
    **{name: SMALL for name in ("A2C", "IMPALA", "OFFPPO", "PPO", "PQN")},
    "MAPPO": SMALL | LSTM,
    **{name: REPLAY for name in ("DDPG", "DQN", "IQN", "MASAC", "QMIX", "QRDQN", "SAC", "TD3")},
    "VDN": REPLAY | SEQUENCES | LSTM,
    "C51": REPLAY | {"noisy": True},
    "R2D2": REPLAY | SEQUENCES,
    "R2D3": REPLAY | SEQUENCES | LSTM,
    **{
        name: REPLAY | SEQUENCES | {"num_arms": 3, "episodic_capacity": 5, "num_neighbours": 2}
        for name in ("AGENT57", "NGU")
    },
}
"""A new algorithm needs its row: what its policy says beside its name."""
OF_BOXES = ("DDPG", "TD3")
WHO_REPLAYS = [name for name in ALGORITHMS if issubclass(find_algorithm(name)[0], OffPolicy) and name != "IQN"]
"""But for IQN, which draws fractions of its own on each rank."""
OF_TEAMS = ("MASAC", "QMIX", "VDN")
NO_NOISE = {"C51": {"noisy": False}, "R2D3": {"demo_ratio": 0.0}, "TD3": {"target_noise": 0.0}}
"""What makes an update a function of its batch."""
NUM_ENVS, NUM_STEPS, NUM_ITERATIONS = 8, 10, 4


@functools.cache
def demonstrations():
    """A folder with what taggers of DQN did in two iterations of this run."""
    folder = tempfile.TemporaryDirectory()
    trainer = Trainer(read_config(config_of("DQN", Path(folder.name))))
    for _ in range(2):
        trainer.iterate()
    write_dataset(trainer.stores["replay.tagger"], Path(folder.name) / "dataset")
    return folder  # which is there as long as somebody has it


def config_of(name, folder, shown_in=None):
    """It beside PPO in one run: two taggers, or adversaries, and who runs from them; `shown_in` holds a dataset."""
    is_of_box = name in OF_BOXES
    first, second = ("adversary", "agent") if is_of_box else ("tagger", "runner")
    size = NUM_ENVS * NUM_STEPS
    shown = {"demonstrations": f"{shown_in or demonstrations().name}/dataset"} if name == "R2D3" else {}
    env = {"continuous_actions": True} if is_of_box else {"num_taggers": 2}
    return {
        "name": "simple_tag" if is_of_box else "tag_gridworld",
        "env": {**env, "episode_length": 7},
        "trainer": {"num_envs": NUM_ENVS, "train_batch_size": size, "total_timesteps": NUM_ITERATIONS * size, "seed": 3,
                    "device": "cpu"},
        "policy": {first: {"algorithm": name, **POLICIES[name], **shown}, second: {"algorithm": "PPO", **SMALL}},
        "saving": {"basedir": str(folder), "metrics_log_freq": 2, "model_params_save_freq": 2},
    }  # fmt: skip


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A function that trains an algorithm once for all tests, and copies its run."""
    made = {}

    def copy(name, folder):
        if name not in made:
            trainer = Trainer(read_config(config_of(name, tmp_path_factory.mktemp(name))))
            trainer.train()
            made[name] = trainer.run.path
        return shutil.copytree(made[name], folder / made[name].name, symlinks=True)

    return copy


def hashes(place):
    manifest = json.loads((place / checkpoint.MANIFEST).read_text())
    return {name: file["sha256"] for name, file in manifest["files"].items()}


def test_every_algorithm_has_a_row():
    assert sorted(POLICIES) == ALGORITHMS


@pytest.mark.parametrize("name", ALGORITHMS)
def test_it_learns_beside_ppo(name, runs, tmp_path):
    run = runs(name, tmp_path)
    policies = list(config_of(name, tmp_path)["policy"])
    learned = find_algorithm(name)[0].FIGURES
    last = reports_of(run)[-1]
    assert all(f"train/{policies[0]}/{figure}" in last for figure in learned), [*last]
    first, end = checkpoint.list_checkpoints(run / "checkpoints")[-2:]
    for policy in policies:
        before, after = (checkpoint.load_tensors(one / f"policy.{policy}.safetensors") for one in (first, end))
        assert any(not torch.equal(one, after[word]) for word, one in before.items()), policy


@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_run_that_goes_on_is_the_run_bit_for_bit(name, runs, tmp_path):
    run = runs(name, tmp_path)
    halfway, end = checkpoint.list_checkpoints(run / "checkpoints")[-2:]
    expected = hashes(end)
    Trainer(read_config(config_of(name, tmp_path)), resume=halfway).train()
    assert hashes(end) == expected


@pytest.mark.parametrize("name", ALGORITHMS)
def test_it_is_scored_shown_and_exported(name, runs, tmp_path, capsys):
    run = runs(name, tmp_path)
    policy = next(iter(config_of(name, tmp_path)["policy"]))
    assert main(["eval", str(run), "--episodes", "5", "--device", "cpu"]) == 0
    assert main(["render", str(run), "--device", "cpu", "--output", str(tmp_path / "a.html")]) == 0
    file = tmp_path / "a.pt2"
    assert main(["export", str(run), "--policy", policy, "--format", "torch", "--output", str(file)]) == 0
    assert capsys.readouterr().err == ""
    assert file.stat().st_size and (tmp_path / "a.html").stat().st_size


@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_nan_stops_it_and_is_told_of_its_policy(name, tmp_path):
    trainer = Trainer(read_config(config_of(name, tmp_path)))
    policy = next(iter(trainer.policies))
    for _ in range(2):
        trainer.iterate()
    next(trainer.policies[policy].parameters()).data.view(-1)[0] = float("nan")
    before = {word: one.detach().clone() for word, one in trainer.policies[policy].named_parameters()}
    with pytest.raises(NonFiniteError, match=policy):
        for _ in range(2):
            trainer.iterate()
            trainer.guard.raise_if_halted(trainer.iteration)
    after = dict(trainer.policies[policy].named_parameters())
    assert all(torch.equal(one.nan_to_num(), after[word].nan_to_num()) for word, one in before.items())


@pytest.mark.parametrize("name", [name for name in ALGORITHMS if name != "R2D3"])
def test_a_space_it_cannot_act_in_is_a_line_of_its_config(name, tmp_path, monkeypatch):
    """R2D3, which is R2D2 in this, would say that its demonstrations are of another env."""
    monkeypatch.syspath_prepend(Path(__file__).parent / "envs")
    config, acts = config_of(name, tmp_path), []
    for env, space in (("cartpole", "Discrete"), ("pendulum", "Box"), ("two_signs:TwoSigns", "MultiDiscrete")):
        policy = next(iter(config["policy"].values()))
        try:
            read_config({**config, "name": env, "env": {}, "policy": {"shared": policy}}, allow_import=True)
            acts.append(space)
        except ConfigError as error:
            last = str(error).splitlines()[-1]
            assert last.startswith(f"policy.shared.algorithm: {name} ") and last.endswith("PPO."), last
            assert f"these agents act in a {space}. Take " in last
    of_all = ["Discrete", "Box", "MultiDiscrete"]
    of_few = {"SAC": of_all[:2], **dict.fromkeys(OF_BOXES, of_all[1:2])}
    assert acts == (of_all if name in ("A2C", "IMPALA") or name.endswith("PPO") else of_few.get(name, of_all[:1]))


@pytest.mark.parametrize("name", ALGORITHMS)
def test_it_is_planned_without_being_run(name, tmp_path, capsys):
    config = tmp_path / "config.yaml"
    config.write_text(json.dumps(config_of(name, tmp_path / "runs")))
    assert main(["train", "--config", str(config), "--dry-run"]) == 0
    assert "MiB" in capsys.readouterr().out
    assert not (tmp_path / "runs").exists()


def learned_from_all(name, num_ranks, folder, shown_in):
    """A policy after updates from all that may be drawn: each rank draws each of its items once. 10 slots of 8 envs
    hold 9 steps that begin a transition, or 2 that begin a sequence; of agents who leave, where their env lets them."""
    config = config_of(name, folder, shown_in)
    first, second = config["policy"]
    num_agents = 1 if name in OF_TEAMS else 2 if name == "R2D3" else 3
    if name != "R2D3" and name not in OF_BOXES:
        config |= {"name": "many_spaces.many_spaces:ManySpaces", "env": {"episode_length": 7}}
        config["policy"], first, second = {"scout": config["policy"][first]}, "scout", "worker"
    num_items = 8 * (2 if "burn_in" in POLICIES[name] else 9) * num_agents
    sizes = {"batch_size": num_items, "buffer_size": num_items, "learning_starts": 80, "prioritized": False}
    config["policy"][first] |= sizes | NO_NOISE.get(name, {})
    config["policy"][second] = {"to_train": False}
    config["trainer"] |= {"train_batch_size": 40, "total_timesteps": 240, "num_gpus": num_ranks}
    trainer = Trainer(read_config(config, allow_import=True))
    learner, policy = trainer.algorithms[first], trainer.policies[first]
    learner._noise = lambda batch: torch.ones(*batch.action.shape, learner.critics.num_actions)  # MASAC's
    before = [one.detach().clone() for one in policy.parameters()]
    for _ in range(6):
        trainer.iterate()
    assert learner.table.num_drawable * num_ranks == num_items
    assert not all(torch.equal(*pair) for pair in zip(before, policy.parameters(), strict=True))
    return {word: one.detach().clone() for word, one in policy.named_parameters()}


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    """A folder with what algorithm_ranks.py writes of two ranks."""
    folder = tmp_path_factory.mktemp("ranks")
    words = [str(Path(__file__).parents[1] / "algorithm_ranks.py"), str(folder), demonstrations().name]
    assert launch([*words, *ALGORITHMS], TrainerConfig(num_gpus=2, device="cpu")) == 0
    return folder


@pytest.mark.alone
@pytest.mark.timeout(1500)
@pytest.mark.parametrize("name", ALGORITHMS)
def test_two_ranks_share_its_updates_and_go_on_bit_for_bit(name, ranks):
    """What is not the same on all ranks is not saved."""
    expected, found = json.loads((ranks / f"{name}.json").read_text())
    assert found == expected
    stores = {file for file in found if file.startswith("replay.") and ".rank_1." not in file}
    assert {file.replace(".safetensors", ".rank_1.safetensors") for file in stores} <= found.keys()
    assert stores or not issubclass(find_algorithm(name)[0], OffPolicy)


@pytest.mark.alone
@pytest.mark.timeout(1500)
@pytest.mark.parametrize("name", ALGORITHMS)
def test_one_rank_goes_on_with_what_two_kept(name, ranks, tmp_path):
    run = shutil.copytree(ranks / "runs" / name, tmp_path / name, symlinks=True)
    halfway, end = checkpoint.list_checkpoints(run / "checkpoints")[-2:]
    trainer = Trainer(read_config(config_of(name, tmp_path)), resume=halfway)
    kept, held = checkpoint.load_checkpoint(halfway).tensors, trainer.learned()
    for file, tensors in kept.items():
        if file in held and not file.startswith("replay."):
            assert all(torch.equal(one, held[file][word].cpu()) for word, one in tensors.items()), file
    trainer.train()
    assert hashes(end) != json.loads((ranks / f"{name}.json").read_text())[0]  # it draws other items than two would
    assert checkpoint.load_checkpoint(end).tensors.keys() <= kept.keys()


@pytest.mark.alone
@pytest.mark.timeout(1500)
@pytest.mark.parametrize("name", WHO_REPLAYS)
def test_two_ranks_learn_what_one_does_where_a_batch_is_all_there_is(name, ranks, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(Path(__file__).parents[1] / "warpdrive" / "envs")
    first, second = (load_file(ranks / f"{name}.{rank}.safetensors") for rank in range(2))
    alone = learned_from_all(name, 1, tmp_path, demonstrations().name)
    for word, one in alone.items():
        assert torch.equal(first[word], second[word]), word
        torch.testing.assert_close(first[word], one, rtol=1e-4, atol=1e-6, msg=word)
