"""render, play and eval: every kind of policy plays, what is drawn is what was played, and mistakes are one line."""

from __future__ import annotations

import json
import os
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from programs import call_command

from trainers import evaluation, players
from trainers.cli import BAD_CHECKPOINT, main
from trainers.errors import MemoryShortError
from trainers.evaluation import Evaluation
from trainers.report.media import check_can_be_drawn
from trainers.run import checkpoint
from trainers.settings.config import EvaluationConfig
from trainers.settings.read_config import read_config
from trainers.trainer import Trainer
from warpdrive.drawing import Drawing, circles
from warpdrive.env import load_env
from warpdrive.errors import CheckpointError, ConfigError, EnvError
from warpdrive.player import film_of

ENVS = Path(__file__).parent / "envs"
TAG = {"num_taggers": 2, "grid_length": 4, "episode_length": 12}
MOVES = np.array([[0, 0], [1, 0], [-1, 0], [0, 1], [0, -1]])


@pytest.fixture(scope="module")
def make_run(tmp_path_factory, device):
    """A function that trains a small run and gives its folder."""

    def make(name="tag_gridworld", env=TAG, policy=None, **trainer) -> Path:
        settings = {"num_envs": 6, "train_batch_size": 60, "total_timesteps": 120, "device": device, **trainer}
        config = {"name": name, "env": env, "trainer": settings, "policy": policy or {"tagger": {}, "runner": {}}}
        config["saving"] = {"basedir": str(tmp_path_factory.mktemp("runs")), "metrics_log_freq": 1}
        config["evaluation"] = {"num_episodes": 9, "greedy": False}
        made = Trainer(read_config(config, allow_import=True))
        made.train()
        return made.run.path

    return make


@pytest.fixture(scope="module")
def tag_run(make_run) -> Path:
    return make_run()


@pytest.fixture(scope="module")
def other_run(make_run) -> Path:
    """Of the same game, with one policy for all."""
    return make_run(seed=2, policy={"shared": {}})


def test_recorded_episode_is_the_one_that_was_played(device, backend):
    """Every agent goes where its action says; rewards add up to the score; the score is as without recording."""
    env = load_env("tag_gridworld", TAG)
    policies = {group: players.untrained_policy(env, group, "random").to(backend.device) for group in env.groups}
    plain = Evaluation(env, policies, 8, 3, backend, greedy=False)
    recording = Evaluation(env, policies, 8, 3, backend, greedy=False, record=[5, 2])
    for seed in (3, 4):
        plain.seed = recording.seed = seed
        score = recording.play()
        assert torch.equal(score.returns, plain.play().returns)
        assert [len(one["x"]) - 1 for one in recording.recorded] == [int(score.lengths[5]), int(score.lengths[2])]
        for index, episode in zip((5, 2), recording.recorded, strict=True):
            np.testing.assert_allclose(episode["reward"].sum(0), score.returns[index], atol=1e-5)
            assert (episode["terminated"] | episode["truncated"]).tolist() == [False] * (len(episode["x"]) - 1) + [True]
            actions = recording.rollout.action[: len(episode["x"]) - 1, index].cpu().numpy()
            for axis, name in enumerate("xy"):
                expected = (episode[name][:-1] + MOVES[actions][..., axis]).clip(0, TAG["grid_length"])
                assert episode[name][1:].tolist() == expected.tolist()


def test_recurrent_policy_is_recorded_over_several_looks(monkeypatch, device, backend, make_run):
    """A GRU in an env of no limit, whose episodes last longer than a rollout: recording changes nothing."""
    monkeypatch.syspath_prepend(ENVS)
    monkeypatch.setattr(evaluation, "NUM_STEPS", 2)
    run = make_run("recall:Recall", {"is_uneven": True}, {"agent": {"model": {"type": "gru", "memory_size": 8}}})
    found = players.players_of(run, backend, allow_import=True)
    plain = Evaluation(found.env, found.policies, 7, 3, backend, greedy=False).play()
    recording = Evaluation(found.env, found.policies, 7, 3, backend, greedy=False, record=range(7))
    score = recording.play()
    assert torch.equal(score.returns, plain.returns) and score.lengths.max() > 2
    for i, episode in enumerate(recording.recorded):
        assert episode["time_step"].tolist() == list(range(int(score.lengths[i]))) + [episode["time_step"][-1]]
    found.env.drawing = lambda frames: Drawing([circles(frames["sign"], 0.0, 1.0, group="agent")])
    film = film_of(found.env, recording.recorded[0])
    assert film.num_frames == score.lengths[0] + 1


def test_masks_dict_observations_and_several_groups_play(monkeypatch, device, backend):
    monkeypatch.syspath_prepend(ENVS)
    monkeypatch.setattr(evaluation, "MAX_STEPS", 20)
    for name in ("locks:Locks", "sights:Sights", "two_signs:TwoSigns"):
        env = load_env(name)
        policies = {group: players.untrained_policy(env, group, "random").to(backend.device) for group in env.groups}
        playing = Evaluation(env, policies, 200, 3, backend, greedy=False)
        score = playing.play()
        if name == "locks:Locks":
            assert playing.rollout.reward.min() >= 0  # what is not allowed would cost 1
        else:
            assert score.returns.sum() / score.lengths.sum() / env.num_agents == pytest.approx(1 / 4 + 1 / 6, abs=0.02)


def test_untrained_policies_do_as_their_names_say(device, backend):
    env = load_env("pendulum")
    for kind, spread in (("zero", 0.0), ("random", 1.5)):
        policy = players.untrained_policy(env, "agent", kind).to(backend.device)
        evaluating = Evaluation(env, {"agent": policy}, 50, 3, backend, greedy=kind == "zero")
        evaluating.play()
        action = evaluating.rollout.data["action"]  # as the env gets it, -2 to 2
        assert action.std().item() == pytest.approx(spread, abs=0.2)
        assert action.abs().max() <= 2.0
    tag = load_env("tag_gridworld", TAG)
    policies = {group: players.untrained_policy(tag, group, "zero").to(backend.device) for group in tag.groups}
    evaluating = Evaluation(tag, policies, 3, 3, backend, record=[0])
    evaluating.play()
    assert np.ptp(evaluating.recorded[0]["x"], axis=0).tolist() == [0, 0, 0]  # 0 is to stay


def test_the_random_draw_and_the_others_do_as_they_are_told():
    env, settings = load_env("tag_gridworld", TAG), EvaluationConfig(greedy=False)
    both = {"tagger": None, "runner": None}
    nobody = players.Players(env, both, settings, None, {"tagger": "random", "runner": "zero"})
    assert nobody.greedy(None) == nobody.greedy(True) == nobody.greedy(False) == ["runner"]
    one = players.Players(env, both, settings, None, {"tagger": "random"})
    assert (one.greedy(None), one.greedy(True)) == ([], ["runner"])
    assert (one.how([]), one.how(["runner"])) == ("stochastic", "greedy")


class TestRender:
    def test_run_is_drawn_into_its_media_as_seen_from_here(self, tag_run, capsys, monkeypatch, device):
        assert call_command("render", tag_run, "--device", device) == 0
        path = tag_run / "media" / "episode_000000000120.html"
        assert re.fullmatch(rf"drawn in {path} \(\d+ KB, positions to within \S+\)\n", capsys.readouterr().out)
        assert f"tag_gridworld, {tag_run.name}, step 120" in path.read_text()
        monkeypatch.chdir(tag_run)
        assert call_command("render", tag_run, "--device", device) == 0
        assert capsys.readouterr().out.startswith("drawn in media/episode_000000000120.html (")

    def test_checkpoint_and_several_episodes(self, tag_run, tmp_path, device):
        checkpoint = tag_run / "checkpoints" / "last"
        words = ("--episodes", 3, "--env-index", 2, "--output", tmp_path / "three.html")
        assert call_command("render", checkpoint, *words, "--device", device) == 0
        shown = re.findall('id="films">(.*?)</script>', (tmp_path / "three.html").read_text())[0]
        assert len(json.loads(shown)["films"]) == 3

    def test_nobody_needs_a_run(self, tmp_path, monkeypatch, device):
        monkeypatch.chdir(tmp_path)
        words = ("--env", "tag_continuous", "--policy", "random", "--device", device)
        assert call_command("render", *words, overrides=[("env.num_runners", "3"), ("env.episode_length", "9")]) == 0
        shown = re.findall('id="films">(.*?)</script>', (tmp_path / "episode_tag_continuous.html").read_text())[0]
        film = json.loads(shown)["films"][0]
        assert film["frames"] <= 10 and film["groups"][1] == {"name": "runner", "agents": 3, "colour": "#D55E00"}

    def test_gif(self, tag_run, tmp_path, device):
        image = pytest.importorskip("PIL.Image")
        assert call_command("render", tag_run, "--output", tmp_path / "a.gif", "--device", device) == 0
        with image.open(tmp_path / "a.gif") as gif:
            assert 1 < gif.n_frames <= TAG["episode_length"] + 1

    def test_same_seed_and_env_draw_the_same(self, tag_run, tmp_path, device):
        for number, index in enumerate((1, 1, 2)):
            words = ("--seed", 5, "--env-index", index, "--output", tmp_path / f"{number}.html", "--device", device)
            call_command("render", tag_run, *words)
        first, same, other = ((tmp_path / f"{number}.html").read_text() for number in range(3))
        assert first == same != other


class TestPlay:
    def test_table_says_what_the_evaluation_found(self, tag_run, capsys, device, backend):
        assert call_command("play", tag_run, "--episodes", 20, "--seed", 4, "--device", device) == 0
        head, names, *rows = capsys.readouterr().out.splitlines()
        assert head.startswith(f"tag_gridworld, {tag_run.name}, step 120: 20 episodes, seed 4, stochastic, on ")
        assert re.split("  +", names) == ["agents", "mean return", "standard error", "episode length"]
        _, policies = evaluation.load_policies(tag_run, backend)
        score = Evaluation(load_env("tag_gridworld", TAG), policies, 20, 4, backend, greedy=False).play()
        for row, group in zip(rows, ("tagger", "runner"), strict=True):
            expected = [score.mean_of(group), score.standard_error_of(group), score.mean_ep_length]
            assert row.split()[0] == group
            assert [float(word) for word in row.split()[1:]] == pytest.approx(expected, abs=0.06)

    def test_one_group_may_have_learned_nothing(self, tag_run, capsys, device):
        assert call_command("play", tag_run, "--policy", "runner=zero", "--device", device) == 0
        assert f"{tag_run.name}, step 120, zero runner: 9 episodes" in capsys.readouterr().out

    def test_draws_only_if_asked(self, make_run, device):
        run = make_run(policy={"shared": {"to_train": False}})  # a frozen policy plays, too
        call_command("play", run, "--device", device)
        assert not (run / "media").exists()
        call_command("play", run, "--html", "--greedy", "--device", device)
        assert [path.name for path in (run / "media").iterdir()] == ["episode_000000000120.html"]


def test_players_are_named_by_the_checkpoint_that_they_are_of(tag_run, tmp_path, backend, saves_while_one_is_loaded):
    run = shutil.copytree(tag_run, tmp_path / "run", symlinks=True)
    saves_while_one_is_loaded(run, "step_000000000180")
    assert players.players_of(run, backend).checkpoint.name == "step_000000000120"


@pytest.mark.parametrize("command", ["eval", "play", "render", "export"])
def test_a_policy_with_a_nan_is_refused_in_one_line(tag_run, tmp_path, capsys, device, command):
    """No run saves such a checkpoint; older versions and other programs might."""
    run = shutil.copytree(tag_run, tmp_path / "run", symlinks=True)
    saved = checkpoint.load_checkpoint(run / "checkpoints" / "last")
    saved.tensors["policy.runner"]["network.policy_head.bias"][1] = torch.nan
    place = checkpoint.begin_checkpoint(saved.path.parent, 120, saved.tensors, saved.rng, saved.progress)()
    before = sorted(run.rglob("*"))
    assert main([command, str(run), *(() if command == "export" else ("--device", device))]) == BAD_CHECKPOINT
    out, err = capsys.readouterr()
    assert err == (
        f"error: {place}/policy.runner.safetensors: 'network.policy_head.bias' holds a NaN or an infinity. "
        "Such a policy plays nothing that means anything: name an older checkpoint of the run, or train anew.\n"
    )
    assert sorted(run.rglob("*")) == before and out == ""


class TestEval:
    def test_runs_are_scored_one_below_the_other_and_one_episode_has_no_spread(
        self, tag_run, other_run, capsys, device
    ):
        capsys.readouterr()
        assert call_command("eval", tag_run, other_run, "--json", "--greedy", "--device", device) == 0
        first, second = json.loads(capsys.readouterr().out)
        assert (first["run"], second["run"]) == (str(tag_run), str(other_run))
        assert first["greedy"] is True and first["episodes"] == 9 and first["seed"] == 1_000_003
        assert first["groups"]["tagger"] != second["groups"]["tagger"]
        assert call_command("eval", tag_run, other_run, "--device", device) == 0
        out = capsys.readouterr().out.splitlines()
        assert len(out) == 1 + 4 + 1 and out[-1].startswith("9 episodes each, seed 1000003, stochastic")
        newest = int(first["checkpoint"].removeprefix("step_"))
        assert out[0].split()[:3] == ["run", "saved", "at"] and f"{tag_run.name}  step {newest}  " in out[1]
        assert call_command("eval", tag_run, "--json", "--episodes", 1, "--device", device) == 0
        assert json.loads(capsys.readouterr().out)[0]["groups"]["runner"]["standard_error"] is None

    def test_what_an_env_tells_of_episodes_is_a_column(self, tag_run, tmp_path, capsys, device):
        """Tag tells nothing, bit_flip whether the goal was reached; the mean is that of the JSON."""
        trainer = {"num_envs": 8, "train_batch_size": 64, "total_timesteps": 64, "device": device}
        saving, env = {"basedir": str(tmp_path)}, {"num_bits": 2}
        run = Trainer(read_config({"name": "bit_flip", "env": env, "trainer": trainer, "saving": saving}), "flips")
        run.train()
        capsys.readouterr()
        words = (tmp_path / "flips", tag_run, "--stochastic", "--episodes", 9, "--device", device)
        assert call_command("eval", *words, "--json") == 0
        solved = json.loads(capsys.readouterr().out)[0]["figures"]["solved"]
        assert call_command("eval", *words) == 0
        head, flips, *of_tag, meaning, _ = capsys.readouterr().out.splitlines()
        assert 0 < solved < 1 and head.endswith("episode length  solved") and flips.endswith(f"  {solved:.3f}")
        assert [line.split()[-1] for line in of_tag] == ["-", "-"]
        assert meaning == "solved: part of the episodes that reached their goal"

    def test_runs_that_say_other_seeds_are_told_with_each(self, tag_run, tmp_path, capsys, device):
        copied = shutil.copytree(tag_run, tmp_path / "copied", symlinks=True)
        config = copied / "config.resolved.yaml"
        config.write_text(config.read_text().replace("seed: 1000003", "seed: 5"))
        assert call_command("eval", tag_run, copied, "--device", device) == 0
        assert "9 episodes each, seed 1000003 and 5, stochastic" in capsys.readouterr().out

    def test_sides_of_two_runs_cross(self, tag_run, other_run, capsys, device, backend):
        capsys.readouterr()
        assert call_command("eval", tag_run, "--against", other_run, "--json", "--device", device) == 0
        pairings = json.loads(capsys.readouterr().out)
        assert len(pairings) == 4
        assert sorted(len(set(pairing["policies"].values())) for pairing in pairings) == [1, 1, 2, 2]
        (alone,) = [pairing for pairing in pairings if set(pairing["policies"].values()) == {tag_run.name}]
        _, policies = evaluation.load_policies(tag_run, backend)
        score = Evaluation(load_env("tag_gridworld", TAG), policies, 9, 1_000_003, backend, greedy=False).play()
        assert alone["groups"]["tagger"]["mean_reward"] == pytest.approx(score.mean_of("tagger"), abs=1e-6)


class TestErrors:
    @pytest.mark.parametrize(
        ("words", "line"),
        [
            ("", "who plays? Give one of RUN, --config FILE and --env NAME"),
            ("a --env cartpole", "who plays? Give one of"),
            ("--env cartpole", "who plays agent? Give --policy random or zero, or a run"),
            ("--env cartpole --policy best", "--policy: expected random or zero, got 'best'"),
            ("--env tag_gridworld --policy taggers=zero", "Did you mean 'tagger'?"),
            ("--env cartpol --policy zero", "Did you mean 'cartpole'?"),
            ("--env a.b:C --policy zero", "--env: 'a.b:C' imports code from outside. Allow it"),
            ("--env cartpole --policy zero --env-index -1", "--env-index: expected"),
            ("--env cartpole --policy zero --episodes 0", "at least 1, got 0"),
            (f"--env cartpole --policy zero --seed {2**63}",
             "--seed: expected a whole number from 0 to 9223372036854775807, got 9223372036854775808."),
        ],
    )  # fmt: skip
    def test_of_who_plays(self, words, line):
        with pytest.raises(ConfigError, match=re.escape(line)):
            call_command("play", *words.split(), "--device", "cpu")

    def test_run_that_is_not_there_or_without_checkpoints(self, tag_run, tmp_path):
        with pytest.raises(CheckpointError, match=f"no such run. Did you mean '{tag_run.name}'?"):
            call_command("render", f"{tag_run}x", "--device", "cpu")
        (tmp_path / "config.resolved.yaml").write_text((tag_run / "config.resolved.yaml").read_text())
        with pytest.raises(CheckpointError, match="holds no checkpoint, so there are no policies to play"):
            call_command("render", tmp_path, "--device", "cpu")

    def test_run_whose_folder_has_a_longer_name_is_told_with_the_newest_that_begins_so(self, tmp_path):
        """The older one is newer by its name, and the plot of a run says the same."""
        for time, name in ((2, "pong__ppo__seed1__20260102-0900"), (1, "pong__ppo__seed1__20260103-0900")):
            (tmp_path / name).mkdir()
            os.utime(tmp_path / name, (time, time))
        newest = tmp_path / "pong__ppo__seed1__20260102-0900"
        line = f"{tmp_path}/pong: no such run. The newest whose name begins so is {newest}."
        for command, kind in (("render", CheckpointError), ("plot", ConfigError)):
            with pytest.raises(kind, match=re.escape(line)):
                call_command(command, tmp_path / "pong")
        with pytest.raises(CheckpointError, match=r"chess: no such run. `train --run-name chess` makes one of that"):
            call_command("eval", tmp_path / "chess")

    def test_env_that_has_nothing_to_draw_says_so_before_it_plays(self, monkeypatch):
        monkeypatch.syspath_prepend(ENVS)
        monkeypatch.setattr(Evaluation, "play", lambda self: pytest.fail("it played"))
        words = ("--env", "sights:Sights", "--allow-import", "--policy", "random", "--device", "cpu")
        with pytest.raises(EnvError, match=r"'sights' has nothing to draw.*Write the method drawing\(self, episode\)"):
            call_command("render", *words)

    def test_env_of_observations_alone_has_nothing_to_draw_nor_may_it_draw_what_agents_see(self):
        env = load_env("cartpole")
        seen, drawing = {"observation": np.zeros((1, 4), np.float32)}, super(type(env), env).drawing
        for env.arrays, env.drawing, line in (
            (dict, drawing, "'cartpole' has nothing to draw"),
            (lambda: seen, drawing, "'cartpole' has nothing to draw"),
            (lambda: seen, lambda episode: Drawing([circles(episode["observation"][:, 0], 0.0, 1.0)]),
             "asks for 'observation', but what it gets is: nothing"),
        ):  # fmt: skip
            with pytest.raises(EnvError, match=line):
                check_can_be_drawn(players.Players(env, {}, EvaluationConfig()))

    def test_of_more_episodes_than_memory_holds(self, tag_run):
        """The kernel would end the process that takes it."""
        many = 100_000_000_000
        for words in (("play", tag_run, "--episodes", many), ("render", tag_run, "--env-index", many)):
            with pytest.raises(MemoryShortError, match=r"100,000,000,00\d episodes of 'tag_gridworld' at once need"):
                call_command(*words, "--device", "cpu")
        with pytest.raises(MemoryShortError, match=r"Play fewer, such as \d+\.$"):
            call_command("eval", tag_run, "--episodes", many, "--device", "cpu")

    @pytest.mark.parametrize("name", ["play", "eval"])
    def test_of_memory_that_runs_out_all_the_same(self, tag_run, monkeypatch, name):
        def fail(self):
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 9 GiB")

        monkeypatch.setattr(Evaluation, "play", fail)
        line = r"^memory ran out: 8 episodes of 'tag_gridworld' at once .* Play fewer, such as --episodes 4\.$"
        with pytest.raises(MemoryShortError, match=line):
            call_command(name, tag_run, "--episodes", 8, "--device", "cpu")

    def test_of_the_output_and_overrides(self, tag_run, tmp_path):
        with pytest.raises(ConfigError, match="there is no folder .*nowhere. Make it first"):
            call_command("render", tag_run, "--output", tmp_path / "nowhere" / "a.html", "--device", "cpu")
        with pytest.raises(ConfigError, match=r"expected a file that ends in .html or .gif"):
            call_command("render", tag_run, "--output", tmp_path / "a.mp4", "--device", "cpu")
        with pytest.raises(ConfigError, match="env.num_taggers: a run plays in the env that it was made with"):
            call_command("play", tag_run, "--device", "cpu", overrides=[("env.num_taggers", "3")])
        with pytest.raises(ConfigError, match="trainer.seed: with --env, only env.<key>=value"):
            call_command("play", "--env", "cartpole", overrides=[("trainer.seed", "3")])

    def test_of_cross_play(self, tag_run, make_run):
        with pytest.raises(ConfigError, match="is the very same checkpoint"):
            call_command("eval", tag_run, "--against", tag_run, "--device", "cpu")
        bigger = make_run(env={**TAG, "num_taggers": 3})
        with pytest.raises(ConfigError, match="has other agents, or they see or act otherwise, than"):
            call_command("eval", tag_run, "--against", bigger, "--device", "cpu")
        shared = make_run(policy={"shared": {"agent_id": True}})
        with pytest.raises(ConfigError, match=r"cannot play for one of tagger, runner alone"):
            call_command("eval", tag_run, "--against", shared, "--device", "cpu")
