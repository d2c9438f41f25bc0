"""A run that goes on says what has changed since: what alters its meaning is refused, unless it is allowed."""

import hashlib
import json
import os
import shutil
from pathlib import Path

import pytest
import torch

from trainers.cli import main
from trainers.run.checkpoint import list_checkpoints, load_checkpoint
from trainers.run.identity import changes_since, digests_of_sources, identity_of, progress_of
from trainers.settings.read_config import read_config
from warpdrive.env import load_env

YAML = """\
name: cartpole
trainer: {num_envs: 4, train_batch_size: 8, total_timesteps: 16, device: cpu}
policy: {shared: {lr: 1e-3, num_minibatches: 1, model: {fc_dims: [8]}}}
saving: {metrics_log_freq: 1}
"""


def test_an_envs_sources_are_its_classes_its_kernels_and_what_these_include():
    env = load_env("simple_tag")
    found = digests_of_sources(env)
    own = [f"simple_tag/simple_tag.{ending}" for ending in ("cu", "cuh", "py")]
    assert list(found) == ["mpe/mpe.cuh", "mpe/mpe.py", *own]
    assert found["simple_tag/simple_tag.cu"] == hashlib.sha256(env.source.read_bytes()).hexdigest()


def test_two_sources_whose_names_and_folders_are_alike_both_count(tmp_path, monkeypatch):
    files = [tmp_path / place / "pong" / "pong.py" for place in ("a", "b")]
    for number, file in enumerate(files):
        file.parent.mkdir(parents=True)
        file.write_text(str(number))
    env, places = load_env("cartpole"), iter(files)
    monkeypatch.setattr("trainers.run.identity._file_of", lambda kind: next(places, None))
    found = digests_of_sources(env)
    assert [found[name] for name in ("pong/pong.py", "b/pong/pong.py")] == [
        hashlib.sha256(text).hexdigest() for text in (b"0", b"1")
    ]


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Path:
    """A folder with a config and the run `a` of it, of two iterations."""
    folder = tmp_path_factory.mktemp("trained")
    (folder / "pole.yaml").write_text(YAML)
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)  # as the tests have it
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert main(["train", "--config", "pole.yaml", "--run-name=a"]) == 0
    torch.set_num_threads(num_threads)
    return folder


@pytest.fixture
def run(trained, tmp_path, monkeypatch) -> Path:
    shutil.copytree(trained, tmp_path, symlinks=True, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path / "runs" / "a"


def go_on(run: Path, *words: str) -> int:
    return main(["train", "--resume", str(run), *words])


def history_of(run: Path) -> list[dict]:
    return [json.loads(line) for line in (run / "history.jsonl").read_text().splitlines()]


def test_another_source_or_network_is_refused_unless_allowed_and_changes_are_told_and_kept(run, monkeypatch, capsys):
    manifest = list_checkpoints(run / "checkpoints")[-1] / "manifest.json"
    sources = {"cartpole/cartpole.cu": "0" * 64}
    monkeypatch.setattr("trainers.run.identity.digests_of_sources", lambda env: {**digests_of_sources(env), **sources})
    activation = "policy.shared.model.activation=relu"
    assert go_on(run, activation, "--total-timesteps", "24") == 4
    first, second = capsys.readouterr().err.splitlines()
    assert first.startswith(f"error: {manifest}: the env's source cartpole/cartpole.cu was SHA-256 ")
    assert second == (
        f"error: {manifest}: policy.shared.model.activation was nothing in the run that was saved, and is 'relu' in "
        "this one. Leave it as it was, or say --allow-changed to go on so."
    )
    assert len(history_of(run)) == 1
    assert go_on(run, "--allow-changed", activation, "--total-timesteps", "24", "policy.shared.lr=0.01") == 0
    told = [line for line in capsys.readouterr().out.splitlines() if line.startswith("changed since then: ")]
    assert [line.split()[3] for line in told] == [
        "source", "policy.shared.lr", "policy.shared.model.activation", "trainer.total_timesteps",
    ]  # fmt: skip
    assert told[1] == "changed since then: policy.shared.lr was 0.001, is 0.01"
    started, resumed = history_of(run)
    assert (started["env_steps"], started["checkpoint"], started["changed"]) == (0, None, {})
    assert (resumed["env_steps"], resumed["checkpoint"]) == (16, manifest.parent.name)
    assert resumed["changed"]["trainer.total_timesteps"] == {"was": 16, "is": 24}


@pytest.mark.parametrize(
    ("word", "told"),
    [
        ("policy.shared.normalize_return=false", "holds value_norm"),
        ("policy.shared.normalize_observation=true", "lacks observation_norm"),
        ("policy.shared.model.fc_dims=[8, 8]", "lacks network.trunk."),
    ],
)
def test_other_tensors_of_a_policy_are_refused_by_key_and_where_allowed_with_a_way_out(run, capsys, word, told):
    key = word.partition("=")[0]
    assert go_on(run, word) == 4
    assert f"{key} was " in (error := capsys.readouterr().err)
    assert error.endswith("Leave it as it was, or say --allow-changed to go on so.\n")
    assert go_on(run, word, "--allow-changed") == 4
    assert told in (error := capsys.readouterr().err)
    assert error.endswith(" Take the config that it was saved with.\n") and error.count("\n") == 1


def test_an_algorithm_is_changed_by_a_config_and_one_line_says_so_where_it_is_typed(run, capsys):
    words = ("policy.shared.algorithm=DQN", "policy.shared.gae_lambda=0.9", "--allow-changed")
    assert go_on(run, *words) == 2
    own, line = capsys.readouterr().err.splitlines()
    assert own.startswith("error: command line: policy.shared.gae_lambda: unknown key: it is A2C's")
    assert line.startswith("error: command line: policy.shared.algorithm=DQN: the run's config holds ")
    assert "Give a config with --config and --allow-changed; " in line
    Path("ppo.yaml").write_text(YAML.replace("lr: 1e-3", "algorithm: PPO, lr: 1e-3"))
    assert go_on(run, "--config=ppo.yaml", "--allow-changed", "--total-timesteps=24") == 0
    assert "changed since then: policy.shared.algorithm was 'A2C', is 'PPO'\n" in capsys.readouterr().out


def test_nothing_is_said_of_what_is_as_it_was_and_an_older_version_is_told(run, monkeypatch, capsys):
    assert go_on(run) == 0
    assert "changed" not in capsys.readouterr().out
    monkeypatch.setattr("trainers.run.identity.__version__", "99.0")
    assert go_on(run) == 0
    was = load_checkpoint(run / "checkpoints" / "last").progress["version"]
    assert f"changed since then: version was '{was}', is '99.0'\n" in capsys.readouterr().out


def test_a_run_of_before_there_was_a_key_is_told_what_it_learned_by_then(run):
    config = read_config(run / "config.resolved.yaml")
    identity = identity_of(config, load_env("cartpole"), "cpu", 1)
    progress = progress_of(config, identity)
    assert not changes_since(progress, config, identity, run, allow=False).lines()
    del progress["config"]["policy"]["shared"]["min_advantage_std"]
    told = changes_since(progress, config, identity, run, allow=False).lines()
    assert told == ["policy.shared.min_advantage_std was 0.0, is 0.5"]


def test_another_number_of_torchs_threads_on_a_cpu_is_told_and_kept(run, capsys):
    torch.set_num_threads(3)
    assert go_on(run, "--total-timesteps", "24") == 0
    out = capsys.readouterr().out
    assert out.count("changed since then: torch_threads") == 1
    assert (
        "changed since then: torch_threads was 1, is 3: sums may be rounded otherwise than without a stop; "
        "OMP_NUM_THREADS=1 has them as they were\n"
    ) in out
    assert history_of(run)[-1]["changed"]["torch_threads"] == {"was": 1, "is": 3}
    assert go_on(run, "--total-timesteps", "32") == 0
    assert "torch_threads" not in capsys.readouterr().out  # they are now as many as in the run that was saved last


@pytest.mark.parametrize(
    ("device", "kept", "is_told"),
    [("cpu", {"torch_threads": 5}, True), ("cpu", {}, False), ("cpu", {"torch_threads": "5"}, False),
     ("cuda", {"torch_threads": 5}, False)],
    ids=["a CPU", "an older checkpoint", "no number", "a GPU"],
)  # fmt: skip
def test_threads_are_told_of_a_cpu_whose_number_was_kept(device, kept, is_told):
    config = read_config({"name": "cartpole", "trainer": {"total_timesteps": 8}})
    identity = identity_of(config, load_env("cartpole"), device, 1)
    progress = progress_of(config, identity)
    assert progress.pop("torch_threads", None) == (1 if device == "cpu" else None)
    changes = changes_since(progress | kept, config, identity, Path("manifest.json"), allow=False)
    assert changes.refused == [] and changes.allowed == ({"torch_threads": (5, 1)} if is_told else {})


def test_envs_and_seeds_that_do_not_fit_are_refused_whatever_is_allowed(run, capsys):
    for word in ("trainer.seed=2", "trainer.num_envs=2"):
        assert go_on(run, "--allow-changed", word) == 4
        assert capsys.readouterr().err.endswith("in this one. Leave it as it was.\n")


@pytest.mark.parametrize("place", [".", "checkpoints"])
def test_a_run_that_could_save_nothing_is_told_before_anything_is_written(run, monkeypatch, capsys, place):
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    may = os.access

    def access(path: Path, mode: int) -> bool:
        return may(path, mode) and (path != run / place or not mode & os.W_OK)

    monkeypatch.setattr(os, "access", access)
    assert go_on(run, "--total-timesteps", "24") == 3
    told = f"{run / place}: cannot be written. Copy the run to where you may write, and resume it there."
    assert capsys.readouterr().err == f"error: {told}\n"
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before


def auto(*words: str) -> int:
    return main(["train", "--config", "pole.yaml", "--resume", "auto", *words])


def test_auto_goes_on_with_the_newest_run_of_a_config_or_starts_one(run, capsys):
    runs = run.parent
    (runs / "strange").mkdir()
    (runs / "strange" / "config.resolved.yaml").write_text("name: [")
    assert auto("--total-timesteps", "24") == 0
    assert "resumed from" in capsys.readouterr().out
    assert auto("--total-timesteps", "24") == 0
    assert "nothing left to train: the run has made 24 env steps already" in capsys.readouterr().out
    assert {path.name for path in runs.iterdir()} == {"a", "strange"}
    assert auto("policy.shared.lr=0.01", "--run-name=b") == 0
    out = capsys.readouterr().out
    assert "--resume auto: runs has no run of this config to go on with: a new one begins" in out
    shutil.rmtree(runs / "b" / "checkpoints")
    (runs / "b" / ".tmp-reserved-99").touch()
    assert auto("policy.shared.lr=0.01", "--run-name=b") == 0  # killed before its first checkpoint
    assert {path.name for path in runs.iterdir()} == {"a", "b", "b-2", "strange"}
    assert not list(runs.glob("*/.tmp-*"))
    assert auto("--run-name=a", "--total-timesteps", "32") == 0
    assert "resumed from" in capsys.readouterr().out


def test_auto_says_how_a_new_run_begins_where_no_checkpoint_of_the_newest_is_whole(run, capsys):
    for manifest in run.glob("checkpoints/step_*/manifest.json"):
        manifest.write_bytes(b"")
    assert auto("--total-timesteps", "24") == 4
    way_out = "Train anew. Move runs/a out of saving.basedir, and --resume auto begins a new run.\n"
    assert capsys.readouterr().err.endswith(f"No checkpoint of this run is whole. {way_out}")
    run.rename(run.parent.parent / "away")
    assert auto("--total-timesteps", "24") == 0
    assert "a new one begins" in capsys.readouterr().out


def test_auto_takes_a_longer_run_whose_step_size_falls_over_it_for_the_same(run, capsys):
    """A step size that is not given is a schedule as long as the run."""
    Path("pole.yaml").write_text(YAML.replace("lr: 1e-3, ", ""))
    assert auto() == 0
    assert "a new one begins" in capsys.readouterr().out
    for length in ("24", "32"):
        assert auto("--total-timesteps", length) == 0
        out = capsys.readouterr().out
        assert "resumed from" in out and f"is [[0, 0.002], [{length}, 1e-05]]" in out
    assert auto("policy.shared.lr=[[0, 0.002], [32, 0.0]]") == 0
    assert "a new one begins" in capsys.readouterr().out


def test_auto_leaves_a_copy_of_a_run_as_it_is_and_says_so(run, capsys):
    copy = run.with_name("a-backup")
    shutil.copytree(run, copy, symlinks=True)
    assert go_on(run, "--total-timesteps", "24") == 0
    (copy / "config.resolved.yaml").touch()  # as if it had been copied just now
    capsys.readouterr()
    assert auto("--total-timesteps", "32") == 0
    assert [one.name for one in list_checkpoints(copy / "checkpoints")] == ["step_000000000016"]
    told = "--resume auto: runs/a goes on; runs/a-backup began with it, and is left as it is\n"
    assert told in capsys.readouterr().out


def test_auto_takes_the_copy_that_came_farther_where_neither_was_resumed(run, capsys):
    behind = run.with_name("0-behind")
    shutil.copytree(run, behind, symlinks=True)
    (last,) = list_checkpoints(behind / "checkpoints")
    last.rename(last.with_name("step_000000000008"))
    assert auto("--total-timesteps", "24") == 0
    assert "--resume auto: runs/a goes on; runs/0-behind began with it" in capsys.readouterr().out


def test_a_run_that_is_named_as_a_checkpoint_is_a_run_all_the_same(run, capsys):
    other = run.rename(run.with_name("step_5"))
    assert go_on(other, "--total-timesteps", "24") == 0
    assert auto("--run-name=step_5", "--total-timesteps", "32") == 0
    assert capsys.readouterr().out.count("resumed from") == 2
    assert main(["eval", str(other), "--episodes", "2"]) == 0


def test_auto_does_not_begin_beside_a_run_that_trains(run, capsys):
    import fcntl

    shutil.rmtree(run / "checkpoints")
    with (run / "run.lock").open("r+") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        lock.write('{"pid": 7, "host": "there", "started": "today"}\n')
        lock.flush()
        assert auto() == 3
    assert "process 7 on there, started today, is training here." in capsys.readouterr().err
    assert [path.name for path in run.parent.iterdir()] == ["a"]
