"""The search for keys that learn best: what it tries, what it stops, and what it leaves."""

import csv
import importlib.util
import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from fake_trials import FakeRun, SilentRun
from programs import is_alive, variables_of

from trainers.cli import main
from trainers.commands import tune
from trainers.settings.read_config import read_config
from trainers.tuning import process
from trainers.tuning.space import RANGES, LogRange, overrides_of, space_of
from warpdrive.distribution import pip_install

ROOT = Path(__file__).resolve().parents[3]
TINY = """
name: cartpole
env: {episode_length: 10}
trainer: {num_envs: 4, train_batch_size: 40, total_timesteps: 320, device: cpu}
policy: {agent: {algorithm: PPO, lr: [[0, 2e-3], [320, 1e-4]], gamma: 0.9, model: {fc_dims: [8]}}}
"""
RETURN = "rollout/ep_rew_mean"
ON_POLICY = {"lr", "num_minibatches", "entropy_coeff", "gamma", "gae_lambda", "normalize_observation",
             "normalize_reward", "normalize_return"}  # fmt: skip
KEYS = {
    "A2C": ON_POLICY,
    "PPO": ON_POLICY | {"num_epochs"},
    "MAPPO": ON_POLICY | {"num_epochs"},
    "DQN": {"lr", "gamma", "normalize_observation", "target_update_freq", "tau", "replay_ratio", "batch_size"},
}
KEYS["SAC"] = KEYS["DQN"]


@pytest.fixture
def tiny(tmp_path, monkeypatch) -> str:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tiny.yaml").write_text(TINY)
    return "tiny.yaml"


# ------------------------------------------------------------------------------------------------ what is tried


@pytest.mark.parametrize("algorithm", KEYS)
def test_keys_of_each_algorithm_are_searched_in_values_that_a_config_may_have(algorithm):
    trainer = {"num_envs": 4, "train_batch_size": 24, "total_timesteps": 240}
    given = {"name": "tag_gridworld", "trainer": trainer,
             "policy": {"runner": {"algorithm": algorithm}, "tagger": {"to_train": False}}}  # fmt: skip
    space = space_of(given, read_config(given), RETURN)
    assert set(space) == {f"policy.runner.{key}" for key in KEYS[algorithm]}
    assert set(RANGES) == set.union(*KEYS.values())
    for key, values in space.items():
        for value in (values.low, values.high) if isinstance(values, LogRange) else values:
            read_config(given, overrides_of({key: value}, read_config(given)))
    assert 24 % max(space.get("policy.runner.num_minibatches", (1,))) == 0


def test_what_is_typed_or_does_not_fit_is_not_searched():
    given = {"name": "cartpole", "trainer": {"total_timesteps": 1, "num_envs": 7, "train_batch_size": 7},
             "policy": {"agent": {"num_minibatches": 7, "gamma": 0.5}}}  # fmt: skip
    space = space_of(given, read_config(given), RETURN, fixed=["policy.agent.gamma"])
    assert space["policy.agent.num_minibatches"] == (1, 7)
    assert "policy.agent.gamma" not in space


def test_by_the_return_of_one_group_its_opponents_stay_as_they_are():
    given = {"name": "tag_gridworld", "trainer": {"total_timesteps": 1}, "policy": {"tagger": {}, "runner": {}}}
    for metric in ("rollout/runner/ep_rew_mean", "eval/runner/mean_reward"):
        space = space_of(given, read_config(given), metric)
        assert {key.split(".")[1] for key in space} == {"runner"}
    assert len(space_of(given, read_config(given), RETURN)) == 2 * len(space)


def test_a_schedule_is_tried_at_other_heights_and_a_number_as_a_number():
    given = {"name": "cartpole", "trainer": {"total_timesteps": 100},
             "policy": {"agent": {"lr": [[0, 2e-3], [100, 1e-4]], "entropy_coeff": 0.1}}}  # fmt: skip
    found = overrides_of({"policy.agent.lr": 0.0041234, "policy.agent.entropy_coeff": 0.03}, read_config(given))
    assert found == [("policy.agent.lr", "[[0, 0.0041], [100, 0.000205]]"), ("policy.agent.entropy_coeff", "0.03")]


# --------------------------------------------------------------------------------------------- a trial's process


@pytest.fixture
def child(tmp_path):
    """A function that makes a process of Python code, whose run folder is tmp_path."""
    made = []

    def make(code: str) -> process.TrainingProcess:
        made.append(process.TrainingProcess([sys.executable, "-c", code], tmp_path, "score", {}))
        return made[-1]

    yield make
    for one in made:
        one.kill()  # which closes what was read of it, too


def test_reports_are_read_once_each_as_they_are_written(child, tmp_path):
    run, file = child(""), tmp_path / "metrics.jsonl"
    assert run.reports() == []  # it is not there yet
    file.write_text('{"time/total_timesteps": 4, "score": 1.5}\n{"time/total_timesteps": 8, "score": null}\n{"time/to')
    assert run.reports() == [(4, 1.5, 1), (8, None, 1)]
    with file.open("a") as more:
        more.write('tal_timesteps": 12, "score": 2}\n')
    assert (run.reports(), run.reports()) == ([(12, 2.0, 1)], [])
    file.write_text('{"time/total_timesteps": 12, "score": 2}\n{"time/total_timesteps": 16, "score": 3}\n')  # thinned
    assert run.reports() == [(16, 3.0, 1)]


@pytest.mark.parametrize(("metric", "weights"), [("rollout/ep_rew_mean", [6, 1]), ("eval/mean_reward", [1, 1])])
def test_a_figure_of_a_rollout_comes_with_how_many_episodes_it_is_of(child, tmp_path, metric, weights):
    run = child("")
    run.metric = metric
    counts = {4: 6, 8: 0}
    lines = [{"time/total_timesteps": at, "rollout/num_episodes": n, metric: 2.0} for at, n in counts.items()]
    (tmp_path / "metrics.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    assert run.reports() == [(at, 2.0, weight) for at, weight in zip(counts, weights, strict=True)]


@pytest.mark.parametrize(
    ("code", "reason", "exit_code"),
    [
        ("", None, 0),
        ("import sys; sys.exit('warning: x\\nerror: memory ran out')", "memory ran out", 1),
        ("import sys; sys.exit(3)", "ended with exit code 3", 3),
        (f"import os; os.kill(os.getpid(), {int(signal.SIGKILL)})", "ended by SIGKILL", 1),
    ],
)
def test_why_a_trial_failed_is_its_own_line(child, code, reason, exit_code):
    run = child(code)
    assert (run.why_failed(), run.exit_code) == (reason, exit_code)


@pytest.mark.parametrize(
    ("device", "num_gpus", "free", "jobs"),
    [("cpu", 1, 100, 1), ("cuda", 1, 100, 4), ("cuda", 1, 5, 2), ("cuda", 1, 1, 1), ("cuda", 2, 100, 1)],
)
def test_on_a_gpu_as_many_trials_as_fit_train_at_once(device, num_gpus, free, jobs, monkeypatch):
    """Each takes 2 GiB here, with what a process takes by itself."""
    size = (2 << 30) - process.CONTEXT
    backend = SimpleNamespace(device=SimpleNamespace(type=device))
    monkeypatch.setattr("trainers.trainer.make_backend", lambda settings: backend)
    monkeypatch.setattr("trainers.run.free_memory.free_bytes", lambda device: free << 30)
    monkeypatch.setattr("trainers.run.estimate.estimate", lambda config, device: SimpleNamespace(total=size))
    assert process.jobs_at_once(SimpleNamespace(trainer=SimpleNamespace(num_gpus=num_gpus))) == jobs


# ------------------------------------------------------------------------------------------------- the command


def test_a_search_leaves_runs_a_table_a_picture_and_a_config_that_trains(tiny, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]))
    words = ["--trials", "2", "--jobs", "2", "policy.agent.gamma=0.95", "--output", "found.yaml"]
    assert main(["tune", tiny, *words]) == 0
    printed = capsys.readouterr().out
    (folder,) = (tmp_path / "runs").iterdir()
    assert folder.name.startswith("tune-cartpole-")
    left = {path.name for path in folder.iterdir()}
    picture = {"trials.png"} if importlib.util.find_spec("matplotlib") else set()  # the extra [plot]
    assert left == {"trial-000", "trial-001", "trials.csv"} | picture
    rows = list(csv.DictReader((folder / "trials.csv").open(encoding="utf-8")))
    by_number = {row["trial"]: row for row in rows}
    assert by_number["0"]["state"] == "finished" and by_number["0"]["policy.agent.lr"] == ""
    assert by_number["1"]["policy.agent.lr"].startswith("[[0, 0.") and "policy.agent.gamma" not in rows[0]
    found, given = read_config("found.yaml"), read_config("tiny.yaml", [("policy.agent.gamma", "0.95")])
    assert found.policy["agent"].gamma == 0.95
    best = [(key, text) for key, text in rows[0].items() if key.startswith("policy.") and text]
    assert found == read_config("tiny.yaml", [("policy.agent.gamma", "0.95"), *best])
    assert (found == given) == (rows[0]["trial"] == "0")
    assert printed.endswith("written to found.yaml\nwarpdrive train --config found.yaml\n")


def test_a_trial_does_not_outlive_a_search_that_is_killed(tiny, tmp_path):
    """It stops as by a SIGTERM, and leaves what it has learned."""
    command = [sys.executable, "-m", "warpdrive", "train", "--config", str(tmp_path / tiny)]
    command += ["--run-name", "trial", "--total-timesteps", "1_000_000_000"]
    search = f"""
        import signal, sys, time
        from pathlib import Path
        from trainers.tuning.process import TrainingProcess
        one = TrainingProcess({command!r}, Path("runs/trial"), "time/fps", {{}})
        print(one._process.pid, flush=True)
        time.sleep(600)
    """
    with subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(search)], stdout=subprocess.PIPE, env=variables_of(), text=True
    ) as found:
        trial = int(found.stdout.readline())
        deadline = time.monotonic() + 200
        while not (tmp_path / "runs" / "trial" / "metrics.jsonl").exists():
            assert time.monotonic() < deadline
            time.sleep(0.1)
        found.kill()
    while is_alive(trial):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    assert (tmp_path / "runs" / "trial" / "checkpoints" / "last").exists()


@pytest.mark.usefixtures("hurried")
def test_a_signal_ends_a_search_with_what_was_found_so_far(tiny, tmp_path, monkeypatch, capsys):
    def start(command: list[str], run: Path, metric: str, environment: dict) -> FakeRun:
        if run.name == stopped_at:
            os.kill(os.getpid(), signal.SIGTERM)
            return SilentRun(1.0)
        return FakeRun(1.0)

    stopped_at = "trial-000"
    monkeypatch.setattr(process, "TrainingProcess", start)
    assert main(["tune", tiny]) == 143
    assert not list((tmp_path / "runs").glob("*/best.yaml")) and capsys.readouterr().err == ""
    stopped_at = "trial-001"
    assert main(["tune", tiny]) == 143
    printed = capsys.readouterr().out  # 75 is the mean of 70 and 80, the last quarter of what was reported
    assert "trial 0 finished after 80 env steps, +75.000: as given\ntrial 1 stopped after " in printed
    assert "stopped by SIGTERM after 2 trials, in runs/tune-cartpole-" in printed
    assert "best: trial 0 of 2, rollout/ep_rew_mean +75.000: none was better than the config as given\n" in printed
    assert read_config(next((tmp_path / "runs").glob("*/best.yaml"))) == read_config("tiny.yaml")


@pytest.mark.usefixtures("hurried")
def test_after_so_many_seconds_a_search_ends_and_judges_what_is_under_way(tiny, monkeypatch, capsys):
    class Slow(FakeRun):
        """Would go on for half a minute."""

        ends = time.monotonic() + 30

        def has_ended(self) -> bool:
            return self.is_stopped or time.monotonic() > self.ends

        def reports(self) -> list[tuple[int, float, float]]:
            told, self.steps = self.steps, 280
            return [] if told else [(280, 1.0, 1)]

    monkeypatch.setattr(process, "TrainingProcess", lambda *_: Slow(1.0))
    assert main(["tune", tiny, "--trials", "5", "--jobs", "1", "--seconds", "0.2"]) == 0
    printed = capsys.readouterr().out
    assert "trial 0 stopped after 280 env steps, +1.000: as given\n" in printed
    assert "best: trial 0 of 1, rollout/ep_rew_mean +1.000" in printed


@pytest.mark.parametrize("is_there", [True, False])
def test_a_config_that_cannot_begin_ends_a_search_as_it_ends_a_run(tiny, tmp_path, monkeypatch, capsys, is_there):
    """By its line and its exit code, after one trial."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]))
    words = [tiny, "--jobs", "1", "policy.agent.model.model_ckpt_filepath=gone.safetensors"]
    if is_there:
        (tmp_path / "gone.safetensors").write_text("damaged")
    assert main(["tune", *words]) == 4
    printed, errors = capsys.readouterr()
    assert printed.count("trial 0 failed after 0 env steps: ") == 1 and "trial 1" not in printed
    (line,) = errors.splitlines()
    assert line.startswith("error: trial 0, the config as given, failed: gone.safetensors: ")


@pytest.mark.usefixtures("hurried")
def test_a_search_in_which_no_trial_came_far_enough_says_so(tiny, tmp_path, monkeypatch, capsys):
    class Slow(FakeRun):
        def has_ended(self) -> bool:
            return self.is_stopped

        def reports(self) -> list[tuple[int, float, float]]:
            told, self.steps = self.steps, 40
            return [] if told else [(40, 9.0, 1)]

    monkeypatch.setattr(process, "TrainingProcess", lambda *_: Slow(1.0))
    assert main(["tune", tiny, "--jobs", "1", "--seconds", "0.5"]) == 1
    printed, errors = capsys.readouterr()
    assert "trial 0 stopped after 40 env steps, +9.000: it was stopped before 80 env steps, where " in printed
    assert errors.startswith(f"error: no trial came so far that its {RETURN} tells anything. Give it more: --seconds")
    assert not list((tmp_path / "runs").glob("*/best.yaml"))


@pytest.mark.usefixtures("hurried")
def test_steps_are_told_as_they_are_trained_in_whole_iterations(tiny, monkeypatch, capsys):
    monkeypatch.setattr(process, "TrainingProcess", lambda *_: FakeRun(1.0))
    assert main(["tune", tiny, "--trials", "1", "--total-timesteps", "41"]) == 0
    assert capsys.readouterr().out.startswith("tiny.yaml: 1 trials of 80 env steps, the best by rollout/ep_rew_mean\n")


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["tiny.yaml", "population.size=3"],
         "population.size: many are no trial of a search, as each reports apart. Leave it out."),
        (["tiny.yaml", "--output", "/proc/x.yaml"],
         "command line: --output '/proc/x.yaml': No such file or directory. Name another file."),
        (["tiny.yaml", "--trials", "0"], "command line: --trials: expected a whole number of at least 1, got 0."),
        (["tiny.yaml", "--jobs", "-1"], "command line: --jobs: expected a whole number of at least 1, got -1."),
        (["tiny.yaml", "--seconds", "0"], "command line: --seconds: expected a number above 0, got 0."),
        (["tiny.yaml", "--config", "tiny.yaml"], "command line: one config is tuned at a time, got 2."),
        (["tiny.yaml", "--output", "no.txt"],
         "command line: --output 'no.txt': expected a file that ends in .yaml or .yml."),
        (["tiny.yaml", "policy.agent.to_train=false"],
         "command line: nothing is left to search: no policy trains, or all its keys are typed."),
        (["tiny.yaml", "--metric", "rollout/ep_rew"],
         "command line: saving.best_metric: 'rollout/ep_rew' is no metric that tells the best checkpoint. "
         "Did you mean 'rollout/ep_rew_mean'? (rollout/ep_rew_mean, rollout/agent/ep_rew_mean, rollout/ep_len_mean)"),
        ([str(ROOT / "examples" / "tag.yaml")],
         "command line: 'tagger' and 'runner' earn apart. Say by --metric which figure tells the best: "
         "rollout/tagger/ep_rew_mean, rollout/runner/ep_rew_mean, rollout/ep_len_mean."),
        ([str(ROOT / "examples" / "tag.yaml"), "--metric", RETURN],
         "command line: saving.best_metric: 'rollout/ep_rew_mean' is a mean over tagger and runner: what one wins "
         "another may lose. Take one of rollout/tagger/ep_rew_mean, rollout/runner/ep_rew_mean, rollout/ep_len_mean."),
        (["tiny.yaml", "--output", "tiny.yaml"],
         "command line: --output 'tiny.yaml': is the config that is tuned. Name another file."),
        (["tiny.yaml", "--output", "linked.yaml"],
         "command line: --output 'linked.yaml': is the config that is tuned. Name another file."),
    ],
)  # fmt: skip
def test_what_cannot_be_searched_is_one_line_and_code_2(tiny, tmp_path, words, line, capsys):
    (tmp_path / "linked.yaml").symlink_to("tiny.yaml")
    assert main(["tune", *words]) == 2
    assert capsys.readouterr().err == f"error: {line}\n"
    assert not (tmp_path / "runs").exists() and (tmp_path / "tiny.yaml").read_text() == TINY


def test_where_the_best_goes_is_tried_only_if_it_is_said(tiny, monkeypatch):
    """Else it goes into the search's own folder, wherever the program is called from."""
    tried = []
    monkeypatch.setattr(tune.disk, "try_folder", tried.append)
    for output in (None, Path("found.yaml")):
        tune._check_output(output, Path(tiny))
    assert tried == [Path(".")]


def test_without_optuna_one_line_says_what_brings_it(tiny, tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "optuna", None)
    assert main(["tune", tiny]) == 3
    (line,) = capsys.readouterr().err.splitlines()
    assert line == f"error: the search is Optuna's, which is missing. {pip_install('tune')}."
    assert not (tmp_path / "runs").exists()
