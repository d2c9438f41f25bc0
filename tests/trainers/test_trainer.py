import pytest
import torch
from trainers_runs import config_of, reports_of

from trainers.settings.read_config import read_config
from trainers.trainer import Trainer, total_env_steps


def test_run_folder_holds_what_the_interface_names(tiny, capsys):
    trainer = Trainer(tiny(saving__model_params_save_freq=2))
    trainer.train()
    path = trainer.run.path
    assert path.name.startswith("tag_gridworld__a2c__seed5__")
    names = ("config.yaml", "config.resolved.yaml", "command.txt", "env.json", "metrics.jsonl", "log.txt", "run.lock")
    assert [name for name in names if not (path / name).is_file()] == []
    assert not [name for name in ("tb", "wandb", "profile") if (path / name).exists()], "nobody asked for them"
    saved = ["last", "step_000000000120", "step_000000000180"]
    assert sorted(one.name for one in (path / "checkpoints").iterdir()) == saved
    assert [line["time/total_timesteps"] for line in reports_of(path)] == [60, 120, 180]
    printed = capsys.readouterr().out.splitlines()
    assert printed[0].startswith("device: ")
    assert any(line.startswith("mean return of tagger: ") for line in printed)
    assert (path / "log.txt").read_text().splitlines() == printed


@pytest.mark.parametrize("name", ["ppo of continuous actions", "agents that leave", "fused kernels"])
def test_kernels_as_users_build_them_give_the_bits_of_kernels_as_tests_do(name, tmp_path, monkeypatch):
    saved = []
    for level in ("0", "3"):
        monkeypatch.setenv("WARPDRIVE_OPT_LEVEL", level)
        # Sizes of test_resume.py, which needs those of level 0, too.
        settings = {"num_envs": 8, "train_batch_size": 80, "total_timesteps": 480, "device": "cpu"}
        trainer = Trainer(read_config(config_of(name, settings, {"basedir": str(tmp_path)})), f"level{level}")
        trainer.train()
        files = (trainer.run.checkpoints / "last").glob("*.safetensors")
        saved.append({file.name: file.read_bytes() for file in files})
    assert saved[0] == saved[1]


@pytest.mark.usefixtures("learning_curves")
@pytest.mark.parametrize("is_in_the_way", [False, True])
def test_learning_curve_is_drawn_and_one_that_cannot_be_written_does_not_end_the_run(tiny, capsys, is_in_the_way):
    trainer = Trainer(tiny())
    path = trainer.run.path / "learning_curve.png"
    if is_in_the_way:
        path.mkdir()
    trainer.train()
    *_, said, last = capsys.readouterr().out.splitlines()
    assert last.startswith("checkpoint: ")
    if is_in_the_way:
        assert said == f"warning: no learning curve: {path}: cannot be written (Is a directory). Name another place."
    else:
        assert path.read_bytes().startswith(b"\x89PNG")


def test_resolved_config_makes_the_same_run_and_a_length_in_episodes_counts_whole_ones(tiny):
    lengths = {"trainer__num_episodes": 30, "trainer__total_timesteps": None}
    trainer = Trainer(tiny(policy__tagger={"lr": [[0, 0.01], [120, 0.002]]}, **lengths))
    assert read_config(trainer.run.path / "config.resolved.yaml") == trainer.config
    assert total_env_steps(trainer.config, trainer.env.env) == 210  # 30 episodes of 7 steps
    assert trainer.num_iterations == 4  # 60 env steps each


def test_taggers_learn_to_catch_a_runner_that_stays(tiny):
    """On a 5 x 5 grid taggers start 2 + 2 steps from the runner, who never moves.

    Played at random an episode of 7 steps seldom ends in a tag; played well each does, and pays 10.
    A wrong sign anywhere in the loss, the advantage or the reward makes the mean return fall.
    """
    config = tiny(
        trainer__num_envs=64, trainer__train_batch_size=64 * 14, trainer__total_timesteps=64 * 14 * 100,
        policy={"tagger": {"gamma": 0.95}, "runner": {"to_train": False}}, saving__metrics_log_freq=4,
    )  # fmt: skip
    trainer = Trainer(config)
    with torch.no_grad():
        trainer.policies["runner"].network.policy_head.bias[0] = 100.0
    trainer.train()
    first, last = trainer.run.first_and_last_returns()["tagger"]
    assert first < 7.5
    assert last > 9.0


def test_no_critic_of_continuous_tag_believes_in_more_than_its_runners_can_earn(tmp_path, device):
    """1, where time is up, for good. Of a game that went on there it would believe in ever more, 9 by then."""
    env = {"num_taggers": 2, "num_runners": 4, "episode_length": 10, "grid_length": 5.0}
    settings = {"num_envs": 20, "train_batch_size": 200, "total_timesteps": 8_000, "device": device}
    config = {
        "name": "tag_continuous", "env": env, "trainer": settings, "saving": {"basedir": str(tmp_path)},
        "policy": {name: {"algorithm": "PPO"} for name in ("tagger", "runner")},
    }  # fmt: skip
    trainer = Trainer(read_config(config))
    trainer.train()
    assert 0.9 < reports_of(trainer.run.path)[-1]["train/runner/value_max"] < 1.5


def test_speed_is_env_steps_by_seconds_and_counts_only_what_was_done_since_a_restore(tiny, capsys):
    first = Trainer(tiny())
    first.iterate()
    first.iterate()
    first.reporter.conclude(seconds=4.0, num_iterations=2)
    assert "trained 120 env steps in 4.0 s (30 env steps/s)\n" in capsys.readouterr().out
    resumed = Trainer(tiny())
    resumed.restore(first.save())
    resumed.train()
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("trained ")]
    assert line.startswith("trained 60 env steps in ")  # 180 in all, of which 120 were made before
