"""Several ranks train as one process with the same global batch does; one that dies ends all."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from launched_ranks import ranks_of
from safetensors.torch import load_file

from trainers.cli import main
from trainers.learning.distributed import World, check_gpus, join, launch, uses_gpu
from trainers.run.checkpoint import load_checkpoint
from trainers.settings.config import TrainerConfig
from warpdrive.errors import BackendError, ConfigError

pytestmark = pytest.mark.alone

ROOT = Path(__file__).parents[3]
RANKS = str(ROOT / "tests" / "trainers_ranks.py")
WHOLE = [
    "a2c", "ppo with all statistics, whole", "ppo of continuous actions, whole", "ppo that remembers, whole",
    "mappo, whole", "agents that leave, whole",
]  # fmt: skip
"""Runs whose updates do not depend on the order of samples."""
FUSED = ["fused kernels, whole"]
"""Likewise, but never in double precision."""
CUT = ["ppo with all statistics", "agents that leave", "fused kernels"]
"""Runs of several minibatches an epoch: each rank makes its own."""
TOLERANCE = {"fp32": 1e-4, "fp64": 1e-6}

needs_two_gpus = pytest.mark.skipif(
    torch.cuda.device_count() < 2, reason=f"needs 2 GPUs for NCCL, and there are {torch.cuda.device_count()}"
)

DEVICES = ["cpu", pytest.param("cuda", marks=needs_two_gpus)]


@pytest.fixture(scope="module", params=DEVICES)
def two_ranks_and_one(request, tmp_path_factory):
    """A function that makes runs on two ranks and on one: the two folders; see trainers_ranks.py."""
    device, made = request.param, {}

    def make(precision: str) -> list[Path]:
        if precision not in made:
            made[precision] = [tmp_path_factory.mktemp(f"{n}_ranks") for n in (2, 1)]
            runs = WHOLE + (FUSED + CUT if precision == "fp32" else [])
            for num_ranks, out in zip((2, 1), made[precision], strict=True):
                command = [RANKS, str(out), device, precision, *runs]
                if num_ranks == 1:
                    assert subprocess.run([sys.executable, *command]).returncode == 0
                else:
                    assert launch(command, TrainerConfig(num_gpus=num_ranks, device=device)) == 0
        return made[precision]

    return make


@pytest.mark.parametrize(
    ("run", "precision"), [(run, "fp32") for run in WHOLE + FUSED] + [(run, "fp64") for run in WHOLE]
)
def test_two_ranks_give_the_parameters_of_one_after_20_updates(two_ranks_and_one, run, precision):
    ours, theirs = (load_file(folder / f"{run}.safetensors") for folder in two_ranks_and_one(precision))
    assert ours.keys() == theirs.keys()
    for name, tensor in ours.items():
        torch.testing.assert_close(tensor, theirs[name], rtol=TOLERANCE[precision], atol=TOLERANCE[precision])


@pytest.mark.parametrize("run", WHOLE + FUSED)
def test_two_ranks_play_report_and_save_what_one_does(two_ranks_and_one, run):
    folders = two_ranks_and_one("fp32")
    ours, theirs = (load_file(folder / f"{run}.env.safetensors") for folder in folders)
    assert ours.keys() == theirs.keys()
    for name, tensor in ours.items():
        if not tensor.is_floating_point():  # steps, flags, counts, and the actions that were drawn
            assert torch.equal(tensor, theirs[name]), name
        torch.testing.assert_close(tensor, theirs[name], rtol=1e-4, atol=1e-4)
    ours, theirs = (json.loads((folder / f"{run}.json").read_text()) for folder in folders)
    assert ours == pytest.approx(theirs, rel=1e-3, abs=1e-4)


@pytest.mark.parametrize("run", CUT)
def test_several_minibatches_are_others_but_ranks_stay_equal(two_ranks_and_one, run):
    """That they are equal bit for bit is asked where the policies are written; here, that they learned."""
    ours, theirs = (load_file(folder / f"{run}.safetensors") for folder in two_ranks_and_one("fp32"))
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


def test_two_ranks_resume_bit_for_bit(tmp_path):
    """With minibatches, whose generators differ among the ranks."""
    config = tmp_path / "ppo.yaml"
    config.write_text(PPO)
    for name, timesteps in (("whole", 800), ("parts", 400)):
        process = train(config, "--total-timesteps", str(timesteps), f"--run-name={name}", cwd=tmp_path)
        assert process.communicate()[1] == ""
    assert "tagger, rank 1" in load_checkpoint(tmp_path / "parts" / "checkpoints" / "last").rng["minibatches"]
    command = ["--resume", str(tmp_path / "parts"), "--total-timesteps", "800"]
    process = subprocess.run([sys.executable, str(ROOT / "examples" / "train.py"), *command], capture_output=True)
    assert (process.returncode, process.stderr) == (0, b"")
    whole, parts = (
        json.loads((tmp_path / name / "checkpoints" / "step_000000000800" / "manifest.json").read_text())["files"]
        for name in ("whole", "parts")
    )
    assert whole == parts


def test_a_run_goes_on_on_as_many_ranks(tmp_path, capsys):
    process = train(TAG, "--total-timesteps", "80", "--run-name=a", cwd=tmp_path)
    assert process.communicate()[1] == ""
    assert main(["train", "--resume", str(tmp_path / "a"), "trainer.num_gpus=1"]) == 4
    assert "trainer.num_gpus was 2 in the run that was saved, and is 1 in this one." in capsys.readouterr().err


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
