"""Several ranks train as one process with the same global batch does; one that dies ends all."""

import json
import math
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from launched_ranks import DEVICES, ranks_of
from safetensors.torch import load_file

from trainers.cli import main
from trainers.learning.distributed import World, check_gpus, join, uses_gpu
from trainers.learning.launcher import launch
from trainers.run.checkpoint import load_checkpoint
from trainers.settings.config import TrainerConfig
from warpdrive.errors import BackendError, ConfigError

pytestmark = [pytest.mark.alone, pytest.mark.timeout(1500)]

ROOT = Path(__file__).parents[3]
RANKS = str(ROOT / "tests" / "trainers_ranks.py")
NAMES = [
    "a2c", "ppo with all statistics", "ppo of continuous actions", "ppo that remembers", "mappo", "agents that leave",
]  # fmt: skip
WHOLE = [f"{name}, whole" for name in (*NAMES, "fused kernels")]
"""Runs whose updates do not depend on the order of samples."""
DOUBLE = [f"{name}, double" for name in NAMES]
"""Likewise; fused kernels never learn in double precision."""
CUT = ["ppo with all statistics", "agents that leave", "fused kernels", "offppo"]
"""Runs of several minibatches an epoch: each rank makes its own."""


@pytest.fixture(scope="module", params=DEVICES)
def folders(request, tmp_path_factory) -> list[Path]:
    """Of the runs on two ranks, and on one; see trainers_ranks.py."""
    made, device = [tmp_path_factory.mktemp(name) for name in ("two_ranks", "one_rank")], request.param
    two, one = ([RANKS, str(out), device, *WHOLE, *DOUBLE, *CUT] for out in made)
    assert launch(two, TrainerConfig(num_gpus=2, device=device)) == 0
    assert subprocess.run([sys.executable, *one]).returncode == 0
    return made


def load(folders: list[Path], run: str) -> list[dict[str, torch.Tensor]]:
    ours, theirs = (load_file(folder / f"{run}.safetensors") for folder in folders)
    assert ours.keys() == theirs.keys()
    return [ours, theirs]


@pytest.mark.parametrize("run", WHOLE + DOUBLE)
def test_two_ranks_give_the_parameters_of_one_after_20_updates(folders, run):
    """The critic's last layer and the moments of its unit among them: those are of the returns of both ranks."""
    ours, theirs = load(folders, run)
    tolerance = 1e-6 if run in DOUBLE else 1e-4
    torch.testing.assert_close(ours, theirs, rtol=tolerance, atol=tolerance)
    units = [moments.tolist() for name, moments in ours.items() if name.endswith("value_norm.moments")]
    assert units and all(mean != 0.0 and deviation > 1e-3 for mean, deviation in units)


@pytest.mark.parametrize("run", WHOLE)
def test_two_ranks_play_report_and_save_what_one_does(folders, run):
    ours, theirs = load(folders, f"{run}.env")
    for name, tensor in ours.items():
        if not tensor.is_floating_point():  # steps, flags, counts, and the actions that were drawn
            assert torch.equal(tensor, theirs[name]), name
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)
    ours, theirs = (json.loads((folder / f"{run}.json").read_text()) for folder in folders)
    unknown, same = ({name for name, one in told.items() if math.isnan(one)} for told in (ours, theirs))
    assert unknown == same and all(name.endswith("/explained_variance_of_returns") for name in unknown)
    ours, theirs = ({name: one for name, one in told.items() if name not in unknown} for told in (ours, theirs))
    assert ours == pytest.approx(theirs, rel=1e-3, abs=1e-4)


@pytest.mark.parametrize("run", CUT)
def test_several_minibatches_are_others_but_ranks_stay_equal(folders, run):
    """That they are equal bit for bit is asked where the policies are written; here, that they learned."""
    ours, theirs = load(folders, run)
    assert any(not torch.allclose(tensor, theirs[name], rtol=1e-3) for name, tensor in ours.items())
    assert all(tensor.isfinite().all() for tensor in ours.values())


TRAIN = "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler); "
TRAIN += "from trainers.cli import main; sys.exit(main())"
SMALL = ["--device", "cpu", "trainer.num_gpus=2", "trainer.num_envs=8", "trainer.train_batch_size=80"]


def train(config: Path | str, *words: str, cwd: Path, **popen: object) -> subprocess.Popen[str]:
    """`warpdrive train` on two ranks."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    command = [sys.executable, "-c", TRAIN, "train", "--config", str(config), *SMALL, f"saving.basedir={cwd}", *words]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(command, cwd=cwd, env=environment, **{**pipes, **popen})


TAG = ROOT / "examples" / "tag.yaml"
ENDLESS = ["--total-timesteps", str(10**9), "saving.metrics_log_freq=1"]


def test_a_plain_command_trains_on_two_ranks_and_one_of_them_writes(tmp_path):
    words = ["--total-timesteps", "400", "--run-name=a", "evaluation.eval_freq=2", "saving.metrics_log_freq=1"]
    process = train(TAG, *words, cwd=tmp_path)
    printed, errors = process.communicate()
    assert (process.returncode, errors) == (0, "")
    assert [path.name for path in tmp_path.iterdir()] == ["a"]
    lines = printed.splitlines()
    assert "2 ranks, each with 4 of the envs" in lines
    assert sum(line.startswith("env steps ") for line in lines) == 5
    assert sum("  eval " in line for line in lines) == 3
    assert (tmp_path / "a" / "log.txt").read_text().splitlines() == lines
    assert (tmp_path / "a" / "command.txt").read_text().count("trainer.num_gpus=2") == 1
    saved = load_checkpoint(tmp_path / "a" / "checkpoints" / "last")
    assert saved.progress["run"]["trainer.num_gpus"] == 2
    assert saved.tensors["env"]["env_step"].shape == (8,)
    assert saved.tensors["env"]["seed"].tolist() == [1, 0]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("victim", [0, 1])
def test_a_rank_that_is_killed_ends_all(tmp_path, device, victim):
    process = train(TAG, *ENDLESS, "--device", device, cwd=tmp_path)
    try:
        assert any(line.startswith("env steps ") for line in process.stdout)  # it is training
        ranks = ranks_of(process)
        assert sorted(ranks) == [0, 1]
        os.kill(ranks[victim], signal.SIGKILL)
        _, errors = process.communicate(timeout=200)
    finally:
        process.kill()
    assert process.returncode == 1
    assert not any(Path(f"/proc/{pid}").exists() for pid in ranks.values())
    *others, last = [line for line in errors.splitlines() if line.startswith("error: ")]
    assert last == f"error: rank {victim} (process {ranks[victim]}) was ended by SIGKILL: so is the run."
    assert others in ([], [f"error: rank {victim} of 2 has ended: so do the others."])


@pytest.mark.parametrize(
    ("to", "number", "name", "code"),
    [("launcher", signal.SIGINT, "Ctrl-C", 130), ("launcher", signal.SIGTERM, "SIGTERM", 143), (1, 15, "SIGTERM", 143)],
)
def test_a_signal_stops_all_ranks_after_the_same_iteration_with_a_checkpoint(tmp_path, to, number, name, code):
    process = train(TAG, *ENDLESS, cwd=tmp_path)
    try:
        assert any(line.startswith("env steps ") for line in process.stdout)
        os.kill(process.pid if to == "launcher" else ranks_of(process)[to], number)
        printed, errors = process.communicate(timeout=60)
    finally:
        process.kill()
    assert (process.returncode, errors) == (code, "")
    last = printed.splitlines()[-1]
    assert last.startswith(f"stopped by {name} after ")
    saved = load_checkpoint(Path(last.rpartition("checkpoint: ")[2]))
    num_steps = 10 * saved.progress["iteration"] + 1  # the reset of the start counts as one
    assert saved.tensors["env"]["env_step"].tolist() == [num_steps] * 8


PPO = """\
name: tag_continuous
env: {num_taggers: 2, num_runners: 3, episode_length: 17, tagging_distance: 0.2}
trainer: {seed: 3}
policy: {tagger: {algorithm: PPO, normalize_observation: true, normalize_reward: true}, runner: {}}
saving: {model_params_save_freq: 5}
"""


def test_two_ranks_resume_bit_for_bit_and_one_goes_on_with_what_they_saved(tmp_path, capsys):
    """With minibatches, whose generators differ among the ranks."""
    config = tmp_path / "ppo.yaml"
    config.write_text(PPO)
    process = train(config, "--total-timesteps", "800", "--run-name=a", cwd=tmp_path)
    assert process.communicate()[1] == ""
    halfway, end = (tmp_path / "a" / "checkpoints" / f"step_000000000{number}" for number in (400, 800))
    assert "tagger, rank 1" in load_checkpoint(halfway).rng["minibatches"]
    alone = shutil.copytree(tmp_path / "a", tmp_path / "alone", symlinks=True) / "checkpoints" / halfway.name
    assert main(["train", "--resume", str(alone), "trainer.num_gpus=1"]) == 0
    said = capsys.readouterr().out
    assert "changed since then: trainer.num_gpus was 2, is 1: the envs are shared out anew\n" in said
    whole = json.loads((end / "manifest.json").read_text())["files"]
    end.rename(tmp_path / "end")
    command = [sys.executable, str(ROOT / "examples" / "train.py"), "--resume", str(halfway)]
    process = subprocess.run(command, capture_output=True)
    assert (process.returncode, process.stderr) == (0, b"")
    assert json.loads((end / "manifest.json").read_text())["files"] == whole


def test_other_ranks_go_on_with_what_some_saved_as_one_would(tmp_path):
    """One, then four with an env each, then two."""
    config, runs = tmp_path / "ppo.yaml", tmp_path / "runs"
    config.write_text(PPO)
    words = [f"policy.{name}.{key}" for name in ("tagger", "runner") for key in ("num_minibatches=1", "lr=0.001")]
    words += ["trainer.num_envs=4", "trainer.train_batch_size=40", "--device=cpu", "trainer.rank_timeout=300"]
    train = [sys.executable, str(ROOT / "examples" / "train.py")]
    begin = [*train, "--config", str(config), *words, f"saving.basedir={runs}", "trainer.num_gpus=1"]

    def told(*command):
        process = subprocess.run(command, capture_output=True, text=True)
        assert (process.returncode, process.stderr) == (0, "")
        return process.stdout

    told(*begin, "--total-timesteps", "600", "--run-name=one")
    told(*begin, "--total-timesteps", "200", "--run-name=several")
    for before, now, env_steps in ((1, 4, 400), (4, 2, 600)):
        resume = [*train, "--resume", str(runs / "several"), "--total-timesteps", str(env_steps)]
        said = told(*resume, f"trainer.num_gpus={now}")
        assert f"changed since then: trainer.num_gpus was {before}, is {now}: the envs are shared out anew" in said
    end = Path("checkpoints", "step_000000000600")
    ours, theirs = (load_checkpoint(runs / run / end).tensors for run in ("several", "one"))
    for file in ("policy.tagger", "policy.runner", "optim.tagger", "env"):
        torch.testing.assert_close(ours[file], theirs[file], rtol=1e-4, atol=1e-4, msg=file)


def test_a_rank_that_is_stopped_is_ended_and_all_start_again_from_the_newest_checkpoint(tmp_path):
    words = ["--run-name=a", "--max-restarts=1", "trainer.rank_timeout=10", "saving.model_params_save_freq=1"]
    process = train(TAG, *ENDLESS, *words, cwd=tmp_path)
    try:
        reports = (line for line in process.stdout if line.startswith("env steps "))
        assert all(next(reports) for _ in range(2))  # the first iteration is saved
        os.kill(ranks_of(process)[1], signal.SIGSTOP)
        lines = []
        for line in process.stdout:
            lines.append(line)
            if "run folder: " in "".join(lines) and line.startswith("env steps "):
                break
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 130
    (line,) = errors.splitlines()
    assert line.startswith("error: rank 1 of 2 hangs: ")
    run = tmp_path / "a"
    assert f"exit code 1: restart 1 of 1, from what {run} holds\n" in lines
    assert any(line.startswith(f"resumed from {run}/checkpoints/step_") for line in lines)
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


@pytest.mark.parametrize(
    ("policy", "name"),
    [("{first: {}, others: {}}", "others"), ("{shared: {}}", "shared"), ("{shared: {to_train: false}}", "shared")],
    ids=["halted by another policy's update", "halted by its update", "found at the report"],
)  # fmt: skip
def test_what_one_rank_meets_stops_all_and_is_told_once(tmp_path, monkeypatch, policy, name):
    """Env 5 of 8 is the second of rank 1. The second iteration meets it; the report comes after the third."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "tests" / "trainers" / "envs"))
    config = tmp_path / "faulty.yaml"
    env = "{where: reward, env: 5, agent: 2, step: 14}"
    config.write_text(f"name: faulty:Faulty\nenv: {env}\npolicy: {policy}\n")
    words = ["--allow-import", "--total-timesteps", "800", "saving.metrics_log_freq=3", "--run-name=a"]
    _, errors = train(config, *words, cwd=tmp_path).communicate(timeout=120)
    (line,) = errors.splitlines()
    place = "env 5, agent 2, step 4 of iteration 2 (step 14 of the run)"
    assert line.startswith(f"error: policy '{name}': reward is a NaN or an infinity at {place}. ")
    assert not (tmp_path / "a" / "checkpoints").exists()


def test_alone_nothing_is_summed_and_nobody_is_asked():
    world, tensor = World(), torch.ones(3)
    assert world.sum(tensor)[0] is tensor
    assert world.total(5) == 5
    assert world.moments(3, tensor, tensor) == (3, tensor, tensor)
    assert world.first(lambda: 7) == 7
    assert world.gather(7) == [7]
    gathered = torch.zeros(1, 3)
    world.gather_into(gathered, tensor)
    assert gathered.tolist() == [[1.0, 1.0, 1.0]]
    assert world.agree_on(15) == 15
    with world.watched():
        pass
    assert world.end(3) == 3


def test_more_gpus_than_there_are_is_one_line(tmp_path, capsys):
    num_gpus = torch.cuda.device_count() + 1
    with pytest.raises(BackendError, match=rf"^trainer.num_gpus: {num_gpus} GPUs .* which has {num_gpus - 1} "):
        check_gpus(num_gpus)
    words = ["--config", str(TAG), "trainer.num_gpus=500", "trainer.num_envs=500", f"saving.basedir={tmp_path}"]
    assert main(["train", *words]) == 3
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: trainer.num_gpus: 500 GPUs are asked for on this machine, which has ")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("variables", "line"),
    [
        ({}, r"num_gpus is 2, but there is 1 of this process\. .*--nproc-per-node 2\."),
        ({"RANK": "0", "WORLD_SIZE": "4"}, r"num_gpus is 2, but there are 4 of this process\."),
    ],
)
def test_a_config_for_several_ranks_needs_that_many(monkeypatch, variables, line):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError, match=line):
        join(TrainerConfig(num_gpus=2, device="cpu"))


@pytest.mark.parametrize(
    ("changes", "is_gpu"),
    [
        ({"device": "cpu"}, False),
        ({"env_backend": "cpu"}, False),
        ({"device": "cuda"}, True),
        ({"env_backend": "bindings"}, True),
        ({}, torch.cuda.is_available()),
    ],
)
def test_what_is_trained_on_follows_from_the_config(changes, is_gpu):
    assert uses_gpu(TrainerConfig(**changes)) == is_gpu
