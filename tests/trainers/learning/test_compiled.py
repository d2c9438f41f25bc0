"""Pieces compiled by torch.compile: they compute what torch does, whatever fails goes on, and all of it is told."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import yaml
from gymnasium import spaces
from programs import run_python
from trainers_runs import tiny_config

from trainers.acting.actor import Stage
from trainers.fused.plan import Limits
from trainers.learning.compiled import Compiler
from trainers.networks.cnn import CNN
from trainers.networks.features import Inputs
from trainers.report.paths import told_paths
from trainers.settings.config import ModelConfig
from trainers.trainer import Trainer

IMAGES = {"type": "cnn", "dense_dim": 8}
"""A network that is compiled where nothing else is said."""


def images(folder: Path, device: str, algorithm: str, **trainer: object) -> Trainer:
    policy = {"algorithm": algorithm, "model": IMAGES}
    policy |= {"num_minibatches": 2} if algorithm == "PPO" else {"learning_starts": 16, "batch_size": 16}
    changes = {f"trainer__{key}": one for key, one in trainer.items()}
    sizes = {"trainer__num_envs": 8, "trainer__train_batch_size": 64, "trainer__total_timesteps": 640}
    config = tiny_config(folder, device, name="minatar_breakout", env={}, policy={"agent": policy}, **sizes, **changes)
    return Trainer(config)


def parameters_after(trainer: Trainer, iterations: int) -> list[torch.Tensor]:
    for _ in range(iterations):
        trainer.iterate()
    return [one.detach().clone() for one in trainer.policies["agent"].parameters()]


@pytest.mark.parametrize("algorithm", ["PPO", "DQN"])
def test_what_is_compiled_plays_and_learns_as_what_is_not(tmp_path, device, algorithm):
    compiled, plain = (images(tmp_path, device, algorithm, compile=one) for one in (True, False))
    found, expected = (parameters_after(one, 4) for one in (compiled, plain))
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    assert torch.equal(compiled.rollout.data["observation"], plain.rollout.data["observation"])
    (line,) = (one for one in (compiled.run.path / "log.txt").read_text().splitlines() if "torch.compile" in one)
    pieces = {"PPO": "Policy.forward, OnPolicy._loss_of", "DQN": "Policy.forward, DQN.losses_of_update"}[algorithm]
    assert line.startswith(f"torch.compile made kernels of {pieces} in ") and line.endswith("finds most of them")
    assert "torch.compile" not in (plain.run.path / "log.txt").read_text()


def test_it_is_the_same_bits_each_time_and_after_a_resume(tmp_path, device):
    first, second = (images(tmp_path / name, device, "PPO", compile=True) for name in "ab")
    expected = parameters_after(first, 4)
    parameters_after(second, 2)
    second.save()
    resumed = Trainer(second.config, resume=second.run.path)
    assert all(map(torch.equal, parameters_after(resumed, 2), expected))


def test_more_runs_are_compiled_than_torch_compiles_one_function_for():
    said: list[str] = []
    compiler = Compiler(said.append)
    for width in range(2, 12):  # nine would be one too many
        layer = torch.nn.Linear(width, 1)
        given = torch.ones(3, width)

        def loss_of(rows: torch.Tensor, layer: torch.nn.Module = layer) -> torch.Tensor:
            return layer(rows).square().mean()

        piece = compiler(loss_of)
        torch.testing.assert_close(piece(given), loss_of(given))
    assert not said and len(compiler.names) == 10


def test_what_cannot_be_compiled_goes_on_as_it_is_and_is_told():
    said: list[str] = []
    calls: list[float] = []

    def asks_the_host(rows: torch.Tensor) -> torch.Tensor:
        calls.append(float(rows.sum()))
        return rows * 2 if calls[-1] > 0 else rows

    compiler = Compiler(said.append)
    piece = compiler(asks_the_host)
    assert [piece(torch.full((2,), one)).tolist() for one in (1.0, -1.0)] == [[2.0, 2.0], [-1.0, -1.0]]
    assert calls == [2.0, -2.0]  # once each
    compiler.tell()
    (line,) = said
    assert line.startswith("torch.compile could not take ") and line.endswith("it goes on as it is, more slowly")


@pytest.mark.parametrize(
    ("device", "compiler", "compiles", "takes_bf16", "precision", "told"),
    [
        ("cuda", Compiler(takes_all=False), True, True, "bf16", "bf16, compiled"),
        ("cuda", Compiler(takes_all=False), False, False, "bf16", "tf32"),
        ("cuda", Compiler(takes_all=True), False, False, "bf16", "tf32, compiled"),
        ("cuda", Compiler(takes_all=False), True, True, "tf32", "tf32, compiled"),
        ("cuda", None, True, True, "bf16", "bf16"),
        ("cpu", None, True, True, "bf16", "tf32"),
        ("cpu", Compiler(takes_all=True), True, True, "fp32", "fp32, compiled"),
    ],
)
def test_a_network_says_what_it_gains_by(device, compiler, compiles, takes_bf16, precision, told):
    class Net:
        memory_size = 0
        network = type("Network", (), {"compiles": compiles, "takes_bf16": takes_bf16})

    stage = Stage(torch.device(device), Limits.of_device(device), precision, compiler=compiler)
    assert stage.told_of_torch(Net) == told
    Net.memory_size = 4  # of steps in a row each would be compiled
    assert not stage.told_of_torch(Net).endswith("compiled")


def test_products_are_in_bf16_and_what_heads_say_is_not():
    seen_by = Inputs(0, None, {"": spaces.Box(0, 1, (4, 4), bool)})
    network = CNN(ModelConfig(type="cnn"), seen_by, {"policy": 3, "value": 1}, torch.Generator())
    policy = type("Policy", (), {"network": network, "memory_size": 0})
    seen: list[torch.dtype] = []
    network.encoder.dense.register_forward_hook(lambda _, given, out: seen.append(out.dtype))
    stage = Stage(torch.device("cpu"), Limits.of_device("cpu"), "bf16")
    with torch.autocast("cpu", torch.bfloat16):
        found = network({"": torch.ones(2, 4, 4, dtype=torch.bool)})
    assert seen == [torch.bfloat16] and {one.dtype for one in found.values()} == {torch.float32}
    assert stage.of_torch(network.forward, policy) == network.forward  # a CPU has no use for it


def test_what_torch_keeps_is_kept_where_others_cannot_write(tmp_path, monkeypatch):
    text = """
import os, torch
from trainers.learning.compiled import Compiler
Compiler()(lambda rows: (rows + 1).sum())(torch.ones(3))
print(os.environ["TORCHINDUCTOR_CACHE_DIR"])
"""
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR", raising=False)
    found = run_python("-c", text, variables={"WARPDRIVE_CACHE": str(tmp_path / "cache")})
    folder = Path(found.stdout.splitlines()[-1])
    assert folder == tmp_path / "cache" / "torch" and any(folder.rglob("*.so"))
    assert (tmp_path / "cache").stat().st_mode & 0o077 == 0


def test_a_run_says_that_it_is_compiled(tmp_path, device):
    trainer = images(tmp_path, device, "DQN", compile=True)
    assert told_paths(trainer)[0].startswith("policy agent: torch plays and learns in fp32, compiled")
    assert yaml.safe_load((trainer.run.path / "config.resolved.yaml").read_text())["trainer"]["compile"] is True
