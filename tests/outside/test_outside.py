"""A package outside the project brings an env, an algorithm with an actor, a network and a callback; the commands take
them, and no file of the project knows of them."""

from __future__ import annotations

import ast
import hashlib
import json
import os
import re
import shutil
import sys
from pathlib import Path

import pytest
import torch
import yaml
from programs import ROOT, run_python
from trainers_runs import changed, reports_of

from trainers import cli
from trainers.evaluation import load_policies
from trainers.fused import plan
from trainers.report.metrics import metrics_of
from trainers.run.checkpoint import load_checkpoint
from trainers.run.identity import changes_since, identity_of
from trainers.settings.read_config import read_config
from trainers.trainer import Trainer
from warpdrive.env import load_env
from warpdrive.errors import ConfigError

HERE = Path(__file__).parent
DOCS = ROOT / "docs"
CONFIG = yaml.safe_load((HERE / "my_package" / "signs.yaml").read_text())


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory, warpdrive, device) -> Path:
    """Of 6 iterations; the callback has raised the pay after the second."""
    folder = tmp_path_factory.mktemp("runs")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(HERE)
        patch.chdir(HERE)
        words = ("--config", "my_package/signs.yaml", f"saving.basedir={folder}", f"trainer.device={device}")
        saving = ("saving.model_params_save_freq=3", "saving.best_metric=curriculum/raised")
        assert warpdrive("train", *words, "--run-name", "signs", *saving) == 0
    return folder / "signs"


# ------------------------------------------------------------------------------------------------- the commands


def test_it_learns_and_the_callback_changes_the_env_and_reports(run_folder):
    reports = reports_of(run_folder)
    returns = [one["rollout/reader/ep_rew_mean"] for one in reports]
    assert [one["curriculum/raised"] for one in reports] == [0, 1, 1, 1, 1, 1]
    assert returns[0] == pytest.approx(2, abs=0.6) and min(returns[2:]) > 3  # 4 answers by chance, of 1, then of 2
    assert all(one["train/reader/grad_norm"] > 0 for one in reports)
    manifest = json.loads((run_folder / "checkpoints" / "best" / "manifest.json").read_text())
    assert manifest["figure"] == {"metric": "curriculum/raised", "value": 1.0}


def test_resumed_run_makes_the_same_bits(run_folder, tmp_path, warpdrive):
    run = shutil.copytree(run_folder, tmp_path / "signs", symlinks=True)
    assert warpdrive("train", "--resume", run / "checkpoints" / "step_000000000768") == 0
    manifests = [json.loads((one / "checkpoints" / "last" / "manifest.json").read_text()) for one in (run_folder, run)]
    assert manifests[0]["files"] == manifests[1]["files"] and manifests[0]["progress"] == manifests[1]["progress"]
    assert manifests[0]["progress"]["callbacks"] == {"my_package.curriculum:Harder": 1}


@pytest.mark.parametrize(
    "words",
    [
        ("eval", "--device", "cpu", "--episodes", 5, "--json"),
        ("play", "--device", "cpu", "--episodes", 5, "--greedy"),
        ("render", "--device", "cpu", "--stochastic"),
        ("export", "--format", "torch"),
        ("plot",),
    ],
    ids=lambda words: words[0],
)
def test_commands_take_the_run_if_imports_are_allowed(run_folder, warpdrive, capsys, words):
    command, *options = words
    refused = cli.main([command, str(run_folder), *map(str, options)])
    if command == "plot":  # reads a config without importing what it names
        assert refused == 0
        return
    errors = capsys.readouterr().err
    assert refused == 2
    for key in ("name", "policy.reader.algorithm", "policy.reader.model.type", r"callbacks\[0\]"):
        assert re.search(rf"config.resolved.yaml:\d+: {key}: '[\w.]+:\w+' imports code from outside\. Allow it", errors)
    assert warpdrive(command, run_folder, *options) == 0


STOPS = """
from pathlib import Path
from trainers.callbacks import Callback

class Stops(Callback):
    def on_iteration(self, trainer):
        if (trainer.iteration, trainer.world.rank) == (2, 1):
            trainer.stop()
    def on_report(self, trainer, metrics):
        Path(f"report_{trainer.world.rank}").write_text(str(metrics["time/fps"]))
    def on_checkpoint(self, trainer, place):
        Path(f"saved_{trainer.world.rank}").touch()
"""


@pytest.mark.alone
def test_ranks_decide_by_the_same_metrics_and_stop_together(tmp_path):
    """The second stops after 2 of 6 iterations; the metrics are the first one's; the first alone has a checkpoint."""
    (tmp_path / "stops.py").write_text(STOPS)
    variables = {"PYTHONPATH": os.pathsep.join(map(str, (HERE, ROOT, os.environ.get("PYTHONPATH", ""))))}
    words = ["--config", HERE / "my_package" / "signs.yaml", "--allow-import", "--run-name", "a", "--device", "cpu"]
    words += ["trainer.num_gpus=2", "callbacks=[stops:Stops]"]
    done = run_python("-m", "warpdrive", "train", *words, cwd=tmp_path, variables=variables, timeout=240)
    assert done.returncode == 0, done.stderr
    assert "stopped by a callback after 512 env steps" in done.stdout
    assert len((tmp_path / "runs" / "a" / "metrics.jsonl").read_text().splitlines()) == 2
    assert (tmp_path / "report_0").read_text() == (tmp_path / "report_1").read_text()
    assert [path.name for path in tmp_path.glob("saved_*")] == ["saved_0"]


def test_a_best_metric_that_no_callback_reports_is_told(tmp_path, capsys):
    saving = {"basedir": str(tmp_path), "best_metric": "curriculum/rised"}
    Trainer(read_config(changed(CONFIG, saving=saving, trainer__total_timesteps=256), allow_import=True)).train()
    assert "warning: saving.best_metric: 'curriculum/rised' was in no report, so no" in capsys.readouterr().out


def test_an_algorithms_own_figures_are_explained():
    found = metrics_of(read_config(CONFIG, allow_import=True), ["reader"])
    assert found["train/reader/policy_loss"] == "mean of -log_prob * return"


def test_config_check_and_show_take_it_too(warpdrive, capsys, monkeypatch):
    monkeypatch.chdir(HERE)
    assert warpdrive("config", "check", "my_package/signs.yaml") == 0
    assert warpdrive("config", "show", "my_package/signs.yaml") == 0
    shown = yaml.safe_load(capsys.readouterr().out.partition("ok\n")[2])
    assert shown["callbacks"] == CONFIG["callbacks"]
    assert shown["policy"]["reader"]["model"]["channels"] == 3 and shown["policy"]["reader"]["baseline"] is True


def test_policies_that_play_in_another_env_than_they_learned_in_are_told(run_folder, warpdrive, capsys, monkeypatch):
    monkeypatch.setattr("trainers.run.identity.sha256", lambda content: hashlib.sha256(content[1:]).hexdigest())
    assert warpdrive("eval", run_folder, "--episodes", 5) == 0
    told = [line for line in capsys.readouterr().err.splitlines() if line.startswith("warning: ")]
    files = [line.split(": ")[2].split()[1].removeprefix("my_package/") for line in told]
    assert sorted(files) == ["nets.py", "reinforce.py", "signs.cu", "signs.py"]
    assert all(line.endswith("... since its policies learned") for line in told)
    monkeypatch.undo()
    monkeypatch.syspath_prepend(HERE)
    assert warpdrive("eval", run_folder, "--episodes", 5) == 0
    assert "since its policies learned" not in capsys.readouterr().err


def test_another_algorithm_or_network_of_ones_own_than_a_run_had_is_refused_unless_allowed(run_folder):
    config = read_config(run_folder / "config.resolved.yaml", allow_import=True)
    progress, env = load_checkpoint(run_folder / "checkpoints" / "last").progress, load_env(config.name, config.env)
    identity = identity_of(config, env, progress["run"]["trainer.device"], 1)
    code = {key for key in progress["run"] if key.startswith("code.")}
    assert code == {"code.my_package/nets.py", "code.my_package/reinforce.py"}
    given = (config, identity, run_folder)
    assert not changes_since(progress, *given, allow=False).refused
    progress["run"]["code.my_package/nets.py"] = "0" * 64
    (told,) = changes_since(progress, *given, allow=False).refused
    assert told.startswith(f"{run_folder}: the run's source my_package/nets.py was SHA-256 {'0' * 12}..., is SHA-256 ")
    assert told.endswith("... Leave it as it was, or say --allow-changed to go on so.")
    assert any("nets.py" in line for line in changes_since(progress, *given, allow=True).lines())
    for key in code:  # a run of before they were kept
        del progress["run"][key]
    assert not changes_since(progress, *given, allow=False).refused


def test_policies_are_loaded_in_python_as_they_were_saved_and_the_page_on_runs_scores_them(run_folder, device):
    with pytest.raises(ConfigError, match=r"in Python, allow_import=True"):
        load_policies(run_folder)
    env, policies = load_policies(run_folder, allow_import=True)
    assert env.name == "signs" and type(policies["reader"].network).__name__ == "Cnn"

    blocks = re.findall(r"^```python\n(.*?)^```", (DOCS / "runs.md").read_text(), re.DOTALL | re.MULTILINE)
    exec(next(block for block in blocks if "def score_of" in block), program := {})
    assert program["score_of"](run_folder, num_episodes=20).mean_of("reader") > 2  # the callback's pay is not here


@pytest.mark.parametrize(
    ("page", "file"),
    [("own_algorithm", "reinforce"), ("own_network", "nets"), ("own_network", "memory"), ("callbacks", "curriculum")],
)
def test_pages_show_the_package_as_it_is(page, file):
    assert (
        f"```python\n{(HERE / 'my_package' / file).with_suffix('.py').read_text()}```"
        in (DOCS / f"{page}.md").read_text()
    )


def test_the_package_imports_nothing_private():
    for file in (HERE / "my_package").glob("*.py"):
        imports = [one for one in ast.walk(ast.parse(file.read_text())) if isinstance(one, ast.ImportFrom)]
        words = [word for one in imports for word in [*one.module.split("."), *(alias.name for alias in one.names)]]
        assert not [word for word in words if word.startswith("_")]


# ------------------------------------------------------------------------------------------------- what it computes


def test_returns_end_with_episodes_and_the_loss_weighs_log_probabilities_by_them():
    """Rewards 1, 2 | 4, the bar being an episode's end, half of what comes next: 1 + 2 / 2, 2 and 4."""
    from my_package.reinforce import reinforce_loss, returns_to_go

    reward, ended = torch.tensor([1.0, 2.0, 4.0]).view(3, 1, 1), torch.tensor([False, True, False]).view(3, 1)
    returns_to_go(reward, ended, 0.5, into := torch.zeros(3, 1, 1))
    assert into.flatten().tolist() == [2.0, 2.0, 4.0]
    assert reinforce_loss(torch.tensor([-0.5, -1.0, 0.0]), into.flatten()).tolist() == [1.0, 2.0, 0.0]


def test_two_armed_bandit_is_learned(tmp_path, device):
    """With gamma 0 each step is a bandit of two arms, and the picture says which of them pays."""
    saving = {"basedir": str(tmp_path), "metrics_log_freq": 40}
    changes = {"trainer__device": device, "trainer__total_timesteps": 10_240, "callbacks": [], "saving": saving}
    trainer = Trainer(read_config(changed(CONFIG, **changes), allow_import=True))
    trainer.train()
    assert trainer.run.metrics[-1]["rollout/ep_rew_mean"] > 3  # over the whole run; 2 by chance, 4 at most
    assert trainer.rollout.reward.mean().item() > 0.95


OF_SEQUENCES = {"burn_in": 2, "length": 4, "period": 4, "learning_starts": 32, "batch_size": 4}


@pytest.mark.parametrize("algorithm", ["PPO", "MAPPO", "R2D2"])
def test_a_recurrent_network_that_sees_arrays_plays_learns_and_is_exported(algorithm, tmp_path, device, warpdrive):
    reader = {"algorithm": algorithm, "model": {"type": "my_package.memory:Recurrent"}}
    reader |= OF_SEQUENCES if algorithm == "R2D2" else {"num_epochs": 1, "num_minibatches": 1}
    sizes = {"num_envs": 8, "train_batch_size": 64, "total_timesteps": 128, "device": device, "precision": "fp32"}
    saving = {"basedir": str(tmp_path), "name": "remembers", "metrics_log_freq": 1}
    trainer = Trainer(read_config({**CONFIG, "trainer": sizes, "policy": {"reader": reader}, "saving": saving,
                                   "callbacks": []}, allow_import=True))  # fmt: skip
    before = trainer.policies["reader"].network.cell.weight_hh.clone()
    trainer.train()
    assert not torch.equal(before, trainer.policies["reader"].network.cell.weight_hh)
    if algorithm != "R2D2":  # what it says of whole sequences is what it said step by step
        assert abs(trainer.run.metrics[0]["train/reader/approx_kl"]) < 1e-6
    assert warpdrive("eval", trainer.run.path, "--episodes", 8) == 0
    assert warpdrive("export", trainer.run.path, "--format", "torch") == 0


VARIANTS = """
from trainers.algorithms.ppo import PPO

class Variant(PPO):
    def learn(self):
        return {**super().learn(), "is_variant": 1.0}

class SameLoss(PPO):
    loss_of_kernels = PPO.loss_of_kernels
"""


@pytest.mark.parametrize(("name", "path"), [("Variant", "torch"), ("SameLoss", "fused")])
def test_fused_kernels_do_not_stand_in_for_a_variant_that_does_not_ask_for_them(tmp_path, monkeypatch, name, path):
    monkeypatch.setattr(plan, "RUNS_ON_CPU", True)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "variants.py").write_text(VARIANTS)
    policy = {"shared": {"algorithm": f"variants:{name}", "num_epochs": 1}}
    sizes = {"num_envs": 8, "train_batch_size": 80, "total_timesteps": 80, "device": "cpu", "precision": "bf16"}
    saving = {"basedir": str(tmp_path)}
    trainer = Trainer(
        read_config({"name": "cartpole", "trainer": sizes, "policy": policy, "saving": saving}, allow_import=True)
    )
    group, algorithm = trainer.rollout.groups["shared"], trainer.algorithms["shared"]
    assert (group.actor.path, algorithm.path) == (path, path)
    assert ("is_variant" in trainer.iterate()["shared"]) == (name == "Variant")
    sys.modules.pop("variants")


def test_weights_are_the_same_for_the_same_seed_and_others_for_another(tmp_path):
    def weights(seed: int) -> torch.Tensor:
        config = changed(CONFIG, saving={"basedir": str(tmp_path)}, trainer__seed=seed, callbacks=[])
        return Trainer(read_config(config, allow_import=True)).policies["reader"].network.body[0].weight

    torch.rand(1)  # whoever has drawn before
    first, same, other = weights(1), weights(1), weights(2)
    assert torch.equal(first, same) and not torch.equal(first, other)
