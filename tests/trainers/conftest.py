"""What the trainer's tests share."""

import shutil
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path

import pytest
import torch
from trainers_runs import tiny_config

from trainers.fused import plan
from trainers.run import checkpoint
from trainers.run.run_folder import RunFolder
from trainers.settings.config import Config
from trainers.settings.read_config import read_config
from trainers.trainer import Trainer
from trainers.tuning import search

HERE = Path(__file__).parent
DRAW_LEARNING_CURVE = RunFolder.draw_learning_curve


@pytest.fixture(autouse=True)
def one_torch_thread() -> Iterator[None]:
    """Tests share their cores with others; tiny matrices gain nothing from a second thread."""
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(num_threads)


@pytest.fixture(autouse=True)
def fused_kernels_on_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """`precision: bf16` runs the fused kernels on a CPU, too."""
    monkeypatch.setattr(plan, "RUNS_ON_CPU", True)


@pytest.fixture(autouse=True)
def products_in_full_float() -> None:
    """Whatever the runs of other tests asked torch for."""
    torch.set_float32_matmul_precision("highest")


@pytest.fixture(autouse=True, scope="module")
def no_learning_curves() -> Iterator[None]:
    """To draw one takes longer than a small run; tests that look at them ask for `learning_curves`."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RunFolder, "draw_learning_curve", lambda self: None)
        yield


@pytest.fixture
def learning_curves(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("matplotlib")
    monkeypatch.setattr(RunFolder, "draw_learning_curve", DRAW_LEARNING_CURVE)


@pytest.fixture
def tiny(tmp_path: Path, device: str) -> Callable[..., Config]:
    """A function that makes the Config of a small run of grid-world Tag, in a folder of its own."""

    return partial(tiny_config, tmp_path, device)


def by_hand(algorithm: str) -> dict[str, object]:
    """Keys of a policy whose update is worked out by hand, in rewards, with one learning rate."""
    number = {"A2C": 1, "PPO": 4, "MAPPO": 1}[algorithm]
    return {"algorithm": algorithm, "lr": 1e-3, "normalize_return": False, "num_minibatches": number}


@pytest.fixture
def tag(tiny):
    """A function that makes a Trainer of grid-world Tag: 3 agents in each of 6 envs, who make 10 steps an iteration."""

    def make(algorithm: str = "PPO", **policy: object) -> Trainer:
        # Tests put themselves between the parts of an update, which a graph would not replay.
        return Trainer(tiny(policy={"shared": {**by_hand(algorithm), **policy}}, trainer__cuda_graphs=False))

    return make


@pytest.fixture
def pendulum(tiny):
    """The same of Pendulum, of one agent."""

    def make(algorithm: str = "PPO", **policy: object) -> Trainer:
        policies = {"agent": {**by_hand(algorithm), **policy}}
        return Trainer(tiny(name="pendulum", env={}, policy=policies, trainer__cuda_graphs=False))

    return make


@pytest.fixture
def make_trainer(tmp_path: Path, device: str, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Trainer]:
    """A function that makes a Trainer of any env, those of the tests among them, by torch in full float; other keywords
    are the env's."""
    for folder in (HERE / "envs", HERE.parent / "warpdrive" / "envs"):
        monkeypatch.syspath_prepend(folder)

    def make(name, policy, num_envs=24, num_steps=20, iterations=10, seed=None, log_freq=1000, **env) -> Trainer:
        size = num_envs * num_steps
        trainer = {"num_envs": num_envs, "train_batch_size": size, "total_timesteps": iterations * size}
        trainer |= {"device": device, "precision": "fp32", **({} if seed is None else {"seed": seed})}
        saving = {"basedir": str(tmp_path), "metrics_log_freq": log_freq}
        return Trainer(
            read_config(
                {"name": name, "env": env, "trainer": trainer, "policy": policy, "saving": saving}, allow_import=True
            )
        )

    return make


@pytest.fixture
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Searches look at their trials without a pause."""
    monkeypatch.setattr(search, "LOOK_EVERY", 0)


@pytest.fixture
def saves_while_one_is_loaded(monkeypatch: pytest.MonkeyPatch) -> Callable[[Path, str], None]:
    """A function: from now on, whoever loads a checkpoint finds that the run has saved one of that name meanwhile."""
    load = checkpoint.load_checkpoint

    def prepare(run: Path, name: str) -> None:
        def load_while_it_trains(path: Path, *more: Mapping[str, int]) -> checkpoint.Checkpoint:
            found = load(path, *more)
            shutil.copytree(path, run / "checkpoints" / name)
            return found

        monkeypatch.setattr(checkpoint, "load_checkpoint", load_while_it_trains)

    return prepare
