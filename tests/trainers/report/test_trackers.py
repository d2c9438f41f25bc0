"""TensorBoard and Weights & Biases get what metrics.jsonl gets; what fails there is said once and ends no run."""

import builtins
import math
import sys
from pathlib import Path

import pytest
from programs import full_disk
from trainers_runs import reports_of

from trainers.report import trackers
from trainers.trainer import Trainer
from warpdrive.distribution import pip_install


def scalars(folder: Path) -> dict[str, list[tuple[int, float]]]:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    events = accumulator.EventAccumulator(str(folder)).Reload()
    return {name: [(one.step, one.value) for one in events.Scalars(name)] for name in events.Tags()["scalars"]}


def test_tensorboard_has_every_metric_over_env_steps_and_a_run_that_goes_on_replaces_what_came_later(tiny):
    pytest.importorskip("tensorboard")
    saving = {"saving__tensorboard": True, "saving__model_params_save_freq": 1}
    first = Trainer(tiny(**saving))
    first.train()
    found = scalars(first.run.path / "tb")
    for line in reports_of(first.run.path):
        for name, value in line.items():
            if value is None:  # a figure that is not known yet
                assert line["time/total_timesteps"] not in dict(found.get(name, []))
                continue
            assert dict(found[name])[line["time/total_timesteps"]] == pytest.approx(value, rel=1e-6)
    assert [step for step, _ in found["rollout/ep_rew_mean"]] == [60, 120, 180]
    Trainer(tiny(**saving), resume=first.run.checkpoints / "step_000000000060").train()
    assert [step for step, _ in scalars(first.run.path / "tb")["rollout/ep_rew_mean"]] == [60, 120, 180]


class FakeWandb:
    """What trackers.WandB uses of wandb."""

    def __init__(self) -> None:
        self.given, self.lines, self.finished = {}, [], 0

    def init(self, **given):
        self.given = given
        (given["dir"] / "wandb" / "offline-run-20250101_000000-abc123").mkdir(parents=True, exist_ok=True)
        return self

    def Settings(self, **settings):
        return settings

    def define_metric(self, *names, **how):
        self.metric = names, how

    def log(self, metrics):
        self.lines.append(metrics)

    def finish(self):
        self.finished += 1


def test_wandb_gets_name_config_and_metrics_and_stays_offline(tiny, monkeypatch, capsys):
    fake = FakeWandb()
    monkeypatch.setitem(sys.modules, "wandb", fake)
    monkeypatch.delenv("WANDB_MODE", raising=False)
    trainer = Trainer(tiny(saving__model_params_save_freq=1), track=True)
    trainer.train()
    given = fake.given
    assert (given["mode"], given["name"], given["dir"]) == ("offline", trainer.run.path.name, trainer.run.path)
    assert given["config"]["trainer"]["num_envs"] == 6 and given["id"] is None
    known = [{name: None if math.isnan(value) else value for name, value in line.items()} for line in fake.lines]
    assert known == reports_of(trainer.run.path)
    assert fake.finished == 1
    place = trainer.run.path / "wandb" / "offline-run-20250101_000000-abc123"
    assert f"Weights & Biases: offline; wandb sync {place} sends it" in capsys.readouterr().out
    monkeypatch.setenv("WANDB_MODE", "disabled")
    Trainer(tiny(), resume=trainer.run.checkpoints / "step_000000000120", track=True).train()
    assert (fake.given["mode"], fake.given["id"]) == ("disabled", "abc123"), "the run goes on under its id"
    assert "wandb sync" not in capsys.readouterr().out


def test_a_package_that_is_missing_is_said_once_with_what_brings_it(tiny, monkeypatch, capsys):
    real = builtins.__import__

    def missing(name, *arguments, **keywords):
        if name.split(".")[0] in ("tensorboard", "wandb") or name == "torch.utils.tensorboard":
            raise ModuleNotFoundError(f"No module named '{name}'", name=name)
        return real(name, *arguments, **keywords)

    monkeypatch.setattr(builtins, "__import__", missing)
    trainer = Trainer(tiny(saving__tensorboard=True), track=True)
    trainer.train()
    first, second = [line for line in capsys.readouterr().out.splitlines() if line.startswith("warning: ")]
    assert f"{pip_install('tensorboard')} brings it" in first
    assert f"{pip_install('wandb')} brings it" in second
    assert len(reports_of(trainer.run.path)) == 3


@pytest.mark.parametrize("verb", ["open", "log", "close"])
def test_whatever_fails_there_is_said_once_and_the_run_goes_on(tiny, monkeypatch, capsys, verb):
    for name in ("open", "log", "close"):
        monkeypatch.setattr(trackers.TensorBoard, name, full_disk if name == verb else lambda *arguments: None)
    trainer = Trainer(tiny(saving__tensorboard=True))
    trainer.train()
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("warning: ")]
    assert line.startswith("warning: TensorBoard failed ([Errno 28] No space left on device). The run goes on")
    assert len(reports_of(trainer.run.path)) == 3
