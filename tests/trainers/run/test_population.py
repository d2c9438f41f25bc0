"""Runs side by side learn what each learns by itself."""

import os
import re
import shutil
import signal
from pathlib import Path

import pytest
import torch
from programs import run_python
from trainers_runs import config_of

from trainers.cli import main
from trainers.errors import NonFiniteError, RunFolderError
from trainers.population import Population, config_of_member
from trainers.report.statistics import returns_by_group
from trainers.run.checkpoint import list_checkpoints, load_tensors
from trainers.run.reading import members_in
from trainers.run.stop import Stopped
from trainers.settings.read_config import read_config
from trainers.trainer import Trainer
from warpdrive.config_file import dump_yaml
from warpdrive.errors import CheckpointError, ConfigError

SIZE = 3
LEARNED = ("policy.tagger.safetensors", "optim.tagger.safetensors", "env.safetensors")


def config(tmp_path, device, kind="dqn", iterations=8, size=SIZE, learns_both=False, **policy):
    """4 steps of 8 envs an iteration."""
    sizes = {"num_envs": 8, "train_batch_size": 32, "total_timesteps": 32 * iterations, "device": device, "seed": 5}
    given = config_of(kind, sizes, {"basedir": str(tmp_path), "metrics_log_freq": 2})
    given["policy"] = {"tagger": {**given["policy"]["tagger"], **policy}, "runner": given["policy"]["runner"]}
    given["policy"]["runner"] |= {"to_train": learns_both}
    return read_config({**given, "population": {"size": size}})


def learned(path) -> dict[str, bytes]:
    return {name: (path / "checkpoints" / "last" / name).read_bytes() for name in LEARNED}


def contents(folder) -> dict[Path, bytes]:
    """Of all files but those that say who trains here."""
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file() and path.name != "run.lock"}


def test_a_population_in_which_no_episode_ended_says_so(tmp_path):
    sizes = {"num_envs": 4, "train_batch_size": 40, "total_timesteps": 40, "device": "cpu"}
    given = {"name": "pendulum", "trainer": sizes, "saving": {"basedir": str(tmp_path)}, "population": {"size": 2}}
    said = []
    Population(read_config(given), say=said.append).train()
    assert said[-1].startswith("of each member: warning: no episode ended in 40 env steps, 10 of each env, ")


@pytest.mark.parametrize(("kind", "learns_both"), [("dqn", False), ("a2c", False), ("a2c", True)])
def test_a_member_learns_what_a_run_of_its_config_learns_bit_for_bit(tmp_path, device, kind, learns_both):
    """Where both of its policies learn, they do so at the same time as each other's and as the other members'."""
    said = []
    population = Population(config(tmp_path, device, kind, 12, learns_both=learns_both), "together", say=said.append)
    population.train()
    found = [learned(member.run.path) for member in population.members]
    assert [path.name for path in members_in(tmp_path / "together")] == ["member_0", "member_1", "member_2"]
    for number in (0, 2):
        of_member = config_of_member(config(tmp_path, device, kind, 12, learns_both=learns_both), number, tmp_path)
        alone = Trainer(of_member, "alone")
        assert alone.config.trainer.seed == 5 + number
        alone.train()
        assert found[number] == learned(alone.run.path)
    assert found[0] != found[1] != found[2]
    last = [returns_by_group(member.run.metrics[-1]) for member in population.members]
    last = [member.run.metrics[-1][names["tagger"]] for names, member in zip(last, population.members, strict=True)]
    low, high = min(range(SIZE), key=last.__getitem__), max(range(SIZE), key=last.__getitem__)
    whose = f"({last[low]:+.3f} of member {low} to {last[high]:+.3f} of member {high})"
    assert sum(line.startswith("trained 1,152 env steps in ") for line in said) == 1
    # On a GPU figures travel while it plays on: two reports may be there at once, and the newer is told.
    assert sum(line.startswith("env steps ") for line in said) in ([6] if device == "cpu" else range(1, 7))
    assert f"tagger {sum(last) / SIZE:+.3f} {whose}" in said


def test_members_whose_targets_follow_within_an_update_learn_at_the_same_time(tmp_path, device):
    sizes = {"num_envs": 8, "train_batch_size": 32, "total_timesteps": 32 * 12, "device": device, "seed": 5}
    own = {"algorithm": "SAC", "batch_size": 16, "buffer_size": 256, "learning_starts": 64, "replay_ratio": 0.0625}
    given = {"name": "pendulum", "trainer": sizes, "saving": {"basedir": str(tmp_path)}, "population": {"size": SIZE}}
    whole = read_config({**given, "policy": {"agent": {**own, "model": {"fc_dims": [32, 32]}}}})
    population = Population(whole, "together", say=lambda line: None)
    population.train()
    assert population.side_by_side.is_at_once is (device == "cuda")
    for number, member in enumerate(population.members):
        alone = Trainer(config_of_member(whole, number, tmp_path), f"alone_{number}")
        alone.train()
        ours, theirs = (one.policies["agent"].state_dict() for one in (member, alone))
        assert all(torch.equal(ours[name], theirs[name]) for name in theirs) and len(theirs) > 4


def test_it_stops_by_a_signal_with_every_member_saved_and_goes_on_to_the_same_bits(tmp_path, device):
    whole = Population(config(tmp_path, device), "whole", say=lambda line: None)
    whole.train()

    def stop(line):
        if line.startswith("env steps "):
            os.kill(os.getpid(), signal.SIGTERM)

    stopped = Population(config(tmp_path, device), "stopped", say=stop)
    with pytest.raises(Stopped):
        stopped.train()
    (env_steps,) = {member.env_steps for member in stopped.members}
    assert 64 <= env_steps < 256 and (env_steps == 64 or device == "cuda")
    resumed = Population(config(tmp_path, device), resume=tmp_path / "stopped", say=lambda line: None)
    resumed.train()
    for one, other in zip(resumed.members, whole.members, strict=True):
        assert one.env_steps == 256 and learned(one.run.path) == learned(other.run.path)


def test_a_member_that_meets_a_nan_ends_and_the_others_go_on(tmp_path, device):
    whole = Population(config(tmp_path, device), "whole", say=lambda line: None)
    whole.train()
    said = []
    harmed = Population(config(tmp_path, device), "harmed", say=said.append)
    with torch.no_grad():
        next(harmed.members[1].policies["tagger"].parameters()).fill_(torch.nan)
    with pytest.raises(NonFiniteError, match=r"^member 1: "):
        harmed.train()
    crash = load_tensors(harmed.members[1].run.path / "crash" / "rollout.safetensors")
    assert crash["q_value.tagger"].isnan().any()
    assert list(harmed.failed) == [1] and sum(line.startswith("member 1 ends here: ") for line in said) == 1
    for number in (0, 2):
        assert learned(harmed.members[number].run.path) == learned(whole.members[number].run.path)


def test_a_resumed_member_says_how_much_it_trained_since(tmp_path):
    Population(config(tmp_path, "cpu", iterations=2), "a", say=lambda line: None).train()
    Population(config(tmp_path, "cpu", iterations=5), resume=tmp_path / "a", say=lambda line: None).train()
    for member in members_in(tmp_path / "a"):
        trained = [line for line in (member / "log.txt").read_text().splitlines() if " trained " in f" {line}"]
        assert [re.search(r"trained (\d+) env steps", line)[1] for line in trained] == ["64", "96"]


def test_a_line_says_from_where_to_where_members_are(tmp_path):
    """Also once one has stopped, and the others have gone ahead."""
    said = []
    population = Population(config(tmp_path, "cpu"), "a", say=said.append)
    population.members[0].num_iterations = 3  # as where a callback stops it
    population.train()
    assert [member.env_steps for member in population.members] == [96, 256, 256]
    told = [line.split("  tagger")[0].split(maxsplit=2)[2] for line in said if line.startswith("env steps ")]
    assert told == ["64 of each", "96 to 128", "96 to 192", "96 to 256"]


def test_each_member_counts_by_its_last_report_that_has_a_figure(tmp_path):
    population = Population(config(tmp_path, "cpu"), "a", say=lambda line: None)
    reports = {0: [2.0, None], 1: [1.0, 4.0], 2: [None, None]}
    for number, figures in reports.items():
        for place, figure in enumerate(figures):
            found = {} if figure is None else {"rollout/tagger/ep_rew_mean": figure}
            population.members[number].run.log({"time/total_timesteps": 32 * place, **found})
    whose = "(+2.000 of member 0 to +4.000 of member 1"
    assert population._lines() == [f"tagger +3.000 {whose}, 2 of 3 members)"]
    population.failed[2] = NonFiniteError("a NaN")
    assert population._lines() == [f"tagger +3.000 {whose})"]


@pytest.mark.parametrize("is_stopped", [False, True], ids=["at the end", "by a signal"])
def test_a_member_whose_folder_is_replaced_ends_and_the_others_are_saved(tmp_path, device, is_stopped):
    said = []

    def replace(line):
        said.append(line)
        if line.startswith("env steps ") and not (tmp_path / "moved").exists():
            place = harmed.members[1].run.path
            place.rename(tmp_path / "moved")
            place.mkdir()
            if is_stopped:
                os.kill(os.getpid(), signal.SIGTERM)

    harmed = Population(config(tmp_path, device), "harmed", say=replace)
    with pytest.raises(Stopped if is_stopped else RunFolderError):
        harmed.train()
    assert list(harmed.failed) == [1] and sum(line.startswith("member 1 ends here: ") for line in said) == 1
    assert not list(harmed.members[1].run.path.iterdir())
    for number in (0, 2):
        (*_, last) = list_checkpoints(harmed.members[number].run.checkpoints)
        assert last.name == f"step_{harmed.members[number].env_steps:012d}"


@pytest.mark.parametrize("harm", ["other envs", "damaged member"])
def test_a_population_that_is_refused_is_left_as_it_was(tmp_path, capsys, harm):
    """Whole: members before the one that is damaged, too."""
    Population(config(tmp_path, "cpu", iterations=2), "a", say=lambda line: None).train()
    if harm == "damaged member":
        for manifest in (tmp_path / "a" / "member_1").glob("checkpoints/*/manifest.json"):
            manifest.write_text("{}")
    before = contents(tmp_path / "a")
    changed = ["trainer.num_envs=16", "trainer.train_batch_size=64"] if harm == "other envs" else []
    words = ["train", "--resume", str(tmp_path / "a"), "--total-timesteps", "128"]
    assert main([*words, *changed]) == 4
    assert contents(tmp_path / "a") == before
    if not changed:
        shutil.rmtree(tmp_path / "a" / "member_1")
    assert main(words) == 0
    told = "these have no checkpoint, and begin anew: member 1\n"
    assert (told in capsys.readouterr().out) == (not changed)


@pytest.mark.parametrize("reader", ["gone", "full disk"])
def test_nobody_has_to_read_what_it_says(tmp_path, reader):
    """Nor is anything lost where a file behind stdout takes no more."""
    given = config(tmp_path, "cpu")
    (tmp_path / "a.yaml").write_text(dump_yaml(given))
    if reader == "gone":
        read, stdout = os.pipe()
        os.close(read)
    else:
        stdout = os.open("/dev/full", os.O_WRONLY)
    words = ("-m", "warpdrive", "train", "--config", tmp_path / "a.yaml", "--run-name", "b")
    done = run_python(*words, stdout=stdout, variables={"PYTHONUNBUFFERED": "1"})
    os.close(stdout)
    assert (done.returncode, done.stderr) == (0, "")
    for member in members_in(tmp_path / "b"):
        assert list_checkpoints(member / "checkpoints")[-1].name == "step_000000000256"


def test_what_is_no_population_or_one_run_is_told_in_a_line(tmp_path):
    given = config(tmp_path, "cpu", iterations=1)
    with pytest.raises(ConfigError, match=r"^population\.size: 3: a Trainer is one run\. Make a trainers\.population"):
        Trainer(given)
    Population(given, "three", say=lambda line: None).train()
    with pytest.raises(ConfigError, match=r"^population\.size: 2 members were asked for, and .*three holds 3\."):
        Population(config(tmp_path, "cpu", size=2), resume=tmp_path / "three")
    (tmp_path / "none").mkdir()
    shutil.rmtree(tmp_path / "three" / "member_0" / "checkpoints")
    shutil.rmtree(tmp_path / "three" / "member_2")
    again = Population(config(tmp_path, "cpu", iterations=2, size=4), resume=tmp_path / "three", say=lambda line: None)
    assert [member.env_steps for member in again.members] == [0, 32, 0, 0]  # who has no checkpoint begins anew
    assert (tmp_path / "three" / "ended_member_0" / "metrics.jsonl").is_file()
    again.train()
    assert [member.env_steps for member in again.members] == [64] * 4
    for member in again.members:
        shutil.rmtree(member.run.checkpoints)
    with pytest.raises(CheckpointError, match=r"three: no member has a checkpoint\. Train anew\.$"):
        Population(given, resume=tmp_path / "three")
    with pytest.raises(CheckpointError, match=r"none: holds no population\. Give its folder, or that of a run\.$"):
        Population(given, resume=tmp_path / "none")
    several = {"num_gpus": 2, "num_envs": 4, "train_batch_size": 8, "total_timesteps": 8}
    with pytest.raises(ConfigError, match=r"population\.size: runs side by side are on one GPU\. Set trainer\."):
        read_config({"name": "cartpole", "trainer": several, "population": {"size": 2}})


@pytest.mark.parametrize(
    ("name", "make", "told"),
    [
        ("member_1", lambda path: path.symlink_to("../other"), "is a link, and what lies elsewhere is not this run's"),
        ("member_1", os.mkfifo, "is neither a plain file nor a folder"),
        ("member_1", Path.touch, "is no folder. Move it away."),
        ("member_2", lambda path: path.symlink_to("../other"), "is a link"),
        ("config.resolved.yaml", lambda path: path.symlink_to("../victim"), "is a link"),
        (".tmp-config.resolved.yaml-7", lambda path: path.symlink_to("../victim"), "is a link"),
    ],
)
def test_nothing_outside_of_its_folder_is_gone_on_with(tmp_path, name, make, told):
    given = config(tmp_path, "cpu", iterations=1, size=2)
    Population(given, "two", say=lambda line: None).train()
    shutil.copytree(tmp_path / "two" / "member_1", tmp_path / "other")
    shutil.copy(tmp_path / "two" / "config.resolved.yaml", tmp_path / "victim")
    place = tmp_path / "two" / name
    if place.is_dir():
        shutil.rmtree(place)
    place.unlink(missing_ok=True)
    make(place)
    outside = [tmp_path / "victim", *(path for path in (tmp_path / "other").rglob("*") if path.is_file())]
    before = [path.read_bytes() for path in outside]
    with pytest.raises(CheckpointError, match=rf"{name}: {told}"):
        Population(config(tmp_path, "cpu", iterations=2, size=3), resume=tmp_path / "two")
    assert [path.read_bytes() for path in outside] == before


def test_commands_take_a_member_and_training_the_whole(tmp_path, capsys):
    given = ["trainer.device=cpu", "trainer.num_envs=4", "trainer.train_batch_size=16", "population.size=2"]
    given += [f"saving.basedir={tmp_path}", "policy.agent.num_minibatches=1", "policy.agent.lr=1e-3"]
    given += ["trainer.total_timesteps=32"]
    path = tmp_path / "pole.yaml"
    path.write_text("name: cartpole\npolicy: {agent: {algorithm: PPO}}\n")
    train = ["train", "--config", str(path)]
    assert main([*train, "--run-name", "two", *given]) == 0
    two = tmp_path / "two"
    assert (two / "config.yaml").read_text() == path.read_text()
    assert main(["train", "--resume", str(two), "--total-timesteps", "48"]) == 0
    assert capsys.readouterr().out.count("trained 32 env steps") == 1  # 16 of each
    assert main([*train, "--resume", "auto", "--total-timesteps", "48", *given]) == 0  # it is the newest: none is made
    assert [path.name for path in tmp_path.iterdir() if path.is_dir()] == ["two"]
    assert main(["train", "--resume", str(two / "member_1"), "--total-timesteps", "64"]) == 0
    assert main(["eval", str(two / "member_1"), "--episodes", "2"]) == 0
    assert main(["plot", str(two)]) == 0 and (two / "learning_curve.png").is_file()
    capsys.readouterr()
    for command, words in (
        (["eval", str(two)], f"{two}: holds a population. Name one of its runs, such as {two}/member_0."),
        ([*train, *given, "--profile"], "command line: --profile: traces one run. Set population.size=1."),
    ):
        assert main(command) != 0
        assert capsys.readouterr().err.startswith(f"error: {words}")
