"""What a step takes, measured by the command."""

import json

import pytest

from trainers.cli import main
from trainers.fused import plan

TINY = """
name: tag_gridworld
env: {num_taggers: 2, grid_length: 4, episode_length: 7}
trainer: {num_envs: 4, train_batch_size: 20, total_timesteps: 200, device: cpu}
policy: {shared: {model: {fc_dims: [8]}}}
"""


@pytest.fixture
def tiny(tmp_path, monkeypatch) -> str:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tiny.yaml").write_text(TINY)
    return "tiny.yaml"


def test_columns_sizes_and_machine_are_told_and_written(tiny, tmp_path, capsys):
    words = ["--config", tiny, "--repeats", "1", "--num-envs", "6", "trainer.train_batch_size=30"]
    assert main(["bench", *words, "--json", "out.json"]) == 0
    printed = capsys.readouterr().out
    report = json.loads((tmp_path / "out.json").read_text())
    results = report["results"]
    assert results["config"] == "tiny.yaml"
    assert results["overrides"] == ["trainer.train_batch_size=30", "trainer.num_envs=6"]
    assert (results["num_envs"], results["num_agents"], results["num_steps"]) == (6, 3, 5)
    for column in ("env", "rollout", "train"):
        found = results[column]
        for name, steps in (("env_steps_per_s", 6e6), ("agent_steps_per_s", 18e6)):  # whole numbers
            assert found[name] == pytest.approx(steps / found["us_a_step"], rel=1e-3, abs=1)
    assert results["peak_process_mb"] > 20
    assert report["backend"] == "cpu" and "torch" in report["versions"]
    lines = printed.splitlines()
    assert "policy shared: torch plays and learns in fp32: trainer.precision=fp32" in printed
    assert "tiny.yaml: 6 envs x 3 agents, 5 steps an iteration" in lines
    (told,) = (line for line in lines if line.startswith("env + policy + learner "))
    assert told.split()[-1] == f"{results['train']['agent_steps_per_s']:,}"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out.json", "tiny.yaml"]  # no run folder


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["--repeats", "0"], "command line: --repeats must be at least 1, got 0"),
        (["--json", "no/where.json"], "command line: --json: there is no folder no. Make it first."),
        (["trainer.num_gpus=2"], "trainer.num_gpus: one process is measured: say trainer.num_gpus=1."),
    ],
)
def test_what_cannot_be_measured_is_one_line_and_code_2(tiny, words, line, capsys):
    assert main(["bench", "--config", tiny, *words]) == 2
    assert capsys.readouterr().err == f"error: {line}\n"


@pytest.mark.parametrize(
    ("runs_on_cpu", "line"),
    [
        (True, "fused kernels play and learn in bf16"),
        (False, "torch plays and learns in tf32: on a CPU torch is faster than the fused kernels"),
    ],
)
def test_it_says_what_played(tiny, capsys, monkeypatch, runs_on_cpu, line):
    monkeypatch.setattr(plan, "RUNS_ON_CPU", runs_on_cpu)
    assert main(["bench", "--config", tiny, "--repeats", "1", "trainer.precision=bf16"]) == 0
    assert f"\npolicy shared: {line}\n" in capsys.readouterr().out
