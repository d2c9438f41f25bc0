"""Benchmarks are scripts beside each other: their folder must be on the path to import one."""

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))


@pytest.fixture(autouse=True)
def one_torch_thread() -> Iterator[None]:
    """More of them wait for each other where cores are shared."""
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(num_threads)


@pytest.fixture
def run(monkeypatch, tmp_path) -> Callable[..., tuple[int, Any]]:
    """Runs a script's main() with some words: its exit code, and the results that it wrote into tmp_path/out."""

    def call(script: ModuleType, *words: object) -> tuple[int, Any]:
        name, folder = Path(script.__file__).name, tmp_path / "out"
        monkeypatch.setattr(sys, "argv", [name, "--out", str(folder), *map(str, words)])
        code = script.main()
        (report,) = folder.glob("*.json")
        return code or 0, json.loads(report.read_text())["results"]

    return call


TINY = """
name: tag_gridworld
env: {num_taggers: 2, grid_length: 4, episode_length: 7}
trainer: {num_envs: 6, train_batch_size: 30, total_timesteps: 60}
saving: {metrics_log_freq: 1}
"""


@pytest.fixture
def tiny(tmp_path) -> Path:
    """A config of 6 envs x 3 agents, 13 features, 5 actions, 8 hidden units, 5 steps an iteration, 2 iterations."""
    path = tmp_path / "tiny.yaml"
    path.write_text(f"{TINY}policy: {{shared: {{model: {{fc_dims: [8]}}}}}}\n")
    return path


@pytest.fixture
def tiny_of_two(tmp_path) -> Path:
    """The same with a policy for each side."""
    path = tmp_path / "small.yaml"
    path.write_text(f"{TINY}policy: {{tagger: {{algorithm: PPO}}, runner: {{}}}}\n")
    return path
