"""An exported file does what its policy did in the game: the same actions, log-probabilities and values, every step."""

import contextlib
import io
import json
import os
import re
import shutil
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from programs import call_command, run_python
from trainers_runs import tiny_config

from trainers.acting.actor import make_actors
from trainers.experience.rollout import Rollout
from trainers.experience.spec import spec_of
from trainers.export import exporter as export
from trainers.export.portable import PortablePolicy, random_inputs, real_inputs
from trainers.heads import GaussianHead
from trainers.networks.policy import make_policy
from trainers.settings.config import SHARED
from trainers.settings.read_config import read_config
from trainers.trainer import Trainer
from warpdrive.backends.base import Backend
from warpdrive.config_file import load_yaml
from warpdrive.distribution import pip_install
from warpdrive.env import load_env
from warpdrive.env_wrapper import EnvWrapper
from warpdrive.errors import BackendError, CheckpointError, ConfigError

HERE = Path(__file__).parents[1]
EXAMPLES = HERE.parents[1] / "examples"
SHIPPED = [path for path in EXAMPLES.rglob("*.yaml") if not path.with_name("demonstrations.py").exists()]
SHIPPED = sorted(path.relative_to(EXAMPLES).as_posix() for path in SHIPPED)  # what learns from a dataset needs one

GRU = {"type": "gru", "memory_size": 6, "fc_dims": [8]}
KINDS: dict[str, dict[str, Any]] = {
    "GRU": {"name": "recall:Recall", "policy": {"agent": {"model": GRU}}},
    "GRU, critic apart": {"name": "recall:Recall", "policy": {"agent": {"model": {**GRU, "shared_trunk": False}}}},
    "LSTM, critic apart": {
        "name": "recall:Recall", "policy": {"agent": {"model": {**GRU, "type": "lstm", "shared_trunk": False}}},
    },
    "GRU, central critic": {"name": "recall:Recall", "policy": {"agent": {"central_critic": True, "model": GRU}}},
    "GRU, masks, critic apart": {
        "name": "locks:Locks",
        "policy": {"agent": {"normalize_return": True, "model": {**GRU, "shared_trunk": False, "layer_norm": True}}},
    },
    "LayerNorm": {"name": "cartpole", "policy": {"agent": {"model": {"layer_norm": True, "activation": "tanh"}}}},
    "multi-discrete": {"name": "two_signs:TwoSigns", "policy": {SHARED: {}}},
    "masks": {"name": "locks:Locks", "policy": {"agent": {"normalize_return": True}}},
    "agent ids": {"name": "two_signs:TwoSigns", "policy": {"first": {}, "others": {"agent_id": True}}},
    "Dict": {"name": "sights:Sights", "policy": {"first": {}, "others": {"normalize_observation": True}}},
    "Dict, ids, central critic": {
        "name": "sights:Sights",
        "policy": {SHARED: {"agent_id": True, "central_critic": True, "normalize_observation": True}},
    },
    "bytes": {"name": "lights:Lights", "policy": {"all": {"model": {"fc_dims": []}}}},
    "agents that leave, central critic": {
        "name": "tag_continuous",
        "env": {"num_taggers": 2, "num_runners": 3, "grid_length": 1.0, "tagging_distance": 0.3},
        "policy": {"tagger": {"algorithm": "MAPPO"}, "runner": {"algorithm": "MAPPO"}},
    },
    "other agents see otherwise, central critic": {
        "name": "simple_tag",
        "env": {"continuous_actions": True},
        "policy": {"adversary": {"central_critic": True}, "agent": {"normalize_observation": True}},
    },
}
KINDS |= {
    f"what {algorithm} learned": {"name": env, "policy": {"agent": {"algorithm": algorithm, **model}}}
    for algorithm, env, model in (
        ("DQN", "cartpole", {"dueling": True}), ("C51", "cartpole", {}), ("R2D2", "cartpole", {"model": GRU}),
        ("SAC", "pendulum", {}), ("SAC", "cartpole", {}), ("TD3", "pendulum", {}),
    )
}  # fmt: skip
SHORT = ("GRU, masks, critic apart", "Dict, ids, central critic", "other agents see otherwise, central critic")
NUM_ENVS, NUM_STEPS = 4, 8

IS_LONG = bool(os.environ.get("WARPDRIVE_LONG_TESTS"))
long = pytest.mark.skipif(not IS_LONG, reason="takes minutes: set WARPDRIVE_LONG_TESTS=1")
"""One of each kind of part is enough for every change; all of them, with and without the value, for a new torch."""


@dataclass
class Played:
    """What policies did in a game, greedily."""

    env: EnvWrapper
    rollout: Rollout

    def inputs(self, name: str, t: int) -> dict[str, torch.Tensor]:
        rollout, group = self.rollout, self.rollout.groups[name]
        arrays = {array: values.cpu() for array, values in rollout.seen(t).items()}
        inputs = real_inputs(self.env.env, name, arrays)
        if group.mask is not None:
            inputs["action_mask"] = group.mask[t].flatten(0, 1).cpu()
        if group.active is not None:
            is_out = ~group.active[t].flatten().cpu()
            for word in inputs:
                if word.startswith("critic_"):
                    inputs[word][is_out] = 0
        return inputs


@pytest.fixture
def play(backend: Backend, monkeypatch: pytest.MonkeyPatch) -> Callable[[Mapping[str, Any]], Played]:
    """Policies with drawn parameters and statistics, in a game of a few steps."""
    for folder in (HERE / "envs", EXAMPLES):
        monkeypatch.syspath_prepend(folder)

    def make(mapping: Mapping[str, Any]) -> Played:
        trainer = {**mapping.get("trainer", {}), "total_timesteps": 1, "num_episodes": None}
        config = read_config({**mapping, "trainer": trainer}, allow_import=True)
        env = load_env(config.name, config.env)
        generator, policies = torch.Generator().manual_seed(0), {}
        for name, one in config.policy.items():
            policy = make_policy(env, name, one, generator)
            draw_parameters(policy, generator)
            policies[name] = policy.to(backend.device)
        wrapper = EnvWrapper(env, NUM_ENVS, seed=3, backend=backend, final_observations=NUM_STEPS)
        rollout = Rollout(wrapper, make_actors(wrapper, policies, greedy=list(policies)), NUM_STEPS)
        wrapper.reset()
        rollout.begin()
        rollout.collect()
        return Played(wrapper, rollout)

    return make


@torch.no_grad()
def draw_parameters(policy: torch.nn.Module, generator: torch.Generator) -> None:
    """Nothing is 0 or 1 that could be left out unseen."""
    for parameter in policy.parameters():
        parameter += 0.2 * torch.randn(parameter.shape, generator=generator)
    for name, buffer in policy.named_buffers():
        if name.endswith(("mean", "variance", "moments")):
            buffer.copy_(0.5 + torch.rand(buffer.shape, generator=generator))


def runner_of(path: Path) -> Callable[[Mapping[str, torch.Tensor]], dict[str, np.ndarray]]:
    """The file, run by nothing but what it is made for."""
    if path.suffix == ".onnx":
        session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
        wanted, given = [one.name for one in session.get_inputs()], [one.name for one in session.get_outputs()]
        return lambda inputs: dict(
            zip(given, session.run(given, {name: inputs[name].numpy() for name in wanted}), strict=True)
        )
    module = torch.export.load(path).module()
    wanted = [one["name"] for one in json.loads(zipfile.ZipFile(path).read("archive/extra/warpdrive.json"))["inputs"]]
    return lambda inputs: {name: one.numpy() for name, one in module({name: inputs[name] for name in wanted}).items()}


def check_plays_alike(played: Played, name: str, run: Callable, actor: PortablePolicy) -> None:
    rollout, group = played.rollout, played.rollout.groups[name]
    head, num_agents = group.policy.head, len(group.agents)
    memory = torch.zeros(NUM_ENVS * num_agents, actor.memory_size)
    for t in range(NUM_STEPS):
        inputs = played.inputs(name, t)
        outputs = run({**inputs, "memory": memory})

        def close(found: np.ndarray, expected: torch.Tensor) -> None:
            np.testing.assert_allclose(found, expected.cpu().numpy(), rtol=1e-5, atol=1e-5)

        log_prob = None
        if group.policy.acts_by == "q":
            action = group.action[t].flatten(0, 1).cpu().numpy()
            assert np.array_equal(outputs["action"], action)
            assert np.array_equal(outputs["q_values"].argmax(-1), action.reshape(-1))
            if "q_value" in group.fields:
                close(outputs["q_values"].max(-1), group.tensors["q_value"][t].flatten())
        elif group.action.is_floating_point() and not isinstance(head, GaussianHead):
            close(outputs["action"], group.action[t].flatten(0, 1))  # of SAC, TD3 and DDPG
        elif isinstance(head, GaussianHead):
            meant = head.action_of(group.action[t].flatten(0, 1))
            close(outputs["mean"], meant)
            clipped = rollout.data[spec_of(played.env.env, name).acts.array][t]
            columns = spec_of(played.env.env, name).acts.columns
            close(outputs["action"], clipped[:, columns].flatten(0, 1))
            deviate = (meant.cpu().numpy() - outputs["mean"]) / outputs["std"]
            log_prob = (-0.5 * deviate**2 - np.log(outputs["std"]) - 0.5 * np.log(2 * np.pi)).sum(-1)
        else:
            assert np.array_equal(outputs["action"], group.action[t].flatten(0, 1).cpu().numpy())
            heads = [outputs[word] for word in outputs if word.startswith("logits")]
            assert [logits.shape[1] for logits in heads] == list(head.head_sizes)
            log_prob = sum(log_prob_of_best(logits) for logits in heads)
        if log_prob is not None and "log_prob" in group.fields:
            close(log_prob, group.log_prob[t].flatten())
        if actor.with_value and "value" in group.fields:
            norm = group.policy.value_norm
            value = group.value[t].flatten()
            close(outputs["value"], value if norm is None else norm.denormalise(value))
        if group.policy.memory_size:
            ended = (rollout.terminated[t] | rollout.truncated[t]).cpu().repeat_interleave(num_agents)
            memory = torch.from_numpy(outputs["next_memory"]).masked_fill(ended.unsqueeze(-1), 0.0)


def log_prob_of_best(logits: np.ndarray) -> np.ndarray:
    """[N]; 0 where no action may be taken."""
    logits = logits.astype(np.float64)
    best = logits.max(-1)
    return np.where(best == -1e9, 0.0, -np.log(np.exp(logits - best[:, None]).sum(-1)))


def check_exports(played: Played, folder: Path) -> None:
    for name, group in played.rollout.groups.items():
        for with_value in (False, True) if IS_LONG else (True,):
            actor = PortablePolicy(group.policy, played.env.env, name, with_value)
            for format in export.FORMATS:
                path = folder / f"{name}{export.FORMATS[format]}"
                written = export.export_policy(actor, path, format, export.describe_env(played.env.env, name))
                assert set(written.differences) == {slot.name for slot in actor.outputs}
                run = runner_of(path)
                check_plays_alike(played, name, run, actor)
                for rows in (1, 2, 1000):
                    inputs = random_inputs(actor, rows, torch.Generator().manual_seed(rows))
                    expected, found = actor(inputs), run(inputs)
                    for slot in actor.outputs:
                        assert found[slot.name].shape == (rows, *slot.shape)
                        assert found[slot.name].dtype == np.dtype(slot.dtype)
                        if slot.name != "action":
                            np.testing.assert_allclose(found[slot.name], expected[slot.name], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", [kind if kind in SHORT else pytest.param(kind, marks=long) for kind in KINDS])
def test_every_kind_of_policy_plays_on_in_both_formats(kind, play, tmp_path):
    check_exports(play(KINDS[kind]), tmp_path)


@long
@pytest.mark.parametrize("example", SHIPPED)
def test_every_shipped_config_plays_on_in_both_formats(example, play, tmp_path):
    check_exports(play(load_yaml(EXAMPLES / example)), tmp_path)


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory) -> Path:
    """A run of tiny Tag, with a policy for each side."""
    policies = {"tagger": {"model": {"fc_dims": [8]}}, "runner": {"normalize_observation": True}}
    config = tiny_config(tmp_path_factory.mktemp("runs"), "cpu", trainer__total_timesteps=60, policy=policies)
    trainer = Trainer(config, "tag")
    trainer.train()
    return trainer.run.path


call = partial(call_command, "export")


@pytest.fixture(scope="module")
def lines(run_folder) -> list[str]:
    """What the command says when it writes the run's policies."""
    with contextlib.redirect_stdout(io.StringIO()) as said:
        assert call(run_folder) == 0
    return said.getvalue().splitlines()


def test_the_command_writes_a_file_for_each_policy_and_says_how_near_it_is(run_folder, lines):
    assert lines[0].startswith(str(run_folder / "policy.tagger.onnx") + ": ")
    assert lines[1:3] == ["  takes observation [N, 13] float32", "  gives logits [N, 5] float32, action [N] int32"]
    assert lines[3].startswith("  largest difference from the policy: ") and lines[3].endswith(" rows")
    assert lines[4].startswith(str(run_folder / "policy.runner.onnx"))
    content = (run_folder / "policy.runner.onnx").read_bytes()
    assert b".py" not in content  # no file of the machine that it was written on
    model = onnx.load_from_string(content)
    onnx.checker.check_model(model, full_check=True)
    said = {one.key: one.value for one in model.metadata_props}
    assert (said["env"], said["policy"], said["run"], said["checkpoint"]) == (
        "tag_gridworld", "runner", "tag", "step_000000000060",
    )  # fmt: skip
    assert json.loads(said["groups"]) == {"runner": [2, 3]}
    assert json.loads(said["env_config"])["num_taggers"] == 2
    assert json.loads(said["action_space"]) == {"type": "Discrete", "n": 5}
    assert said["how_to_act"].startswith("greedy: action. To draw: ")
    assert model.graph.input[0].type.tensor_type.shape.dim[0].dim_param == "batch"
    call(run_folder / "checkpoints" / "last", "--policy", "runner")
    assert (run_folder / "policy.runner.onnx").read_bytes() == content  # the same, whenever it is written


def test_the_file_names_the_checkpoint_that_it_is_of(run_folder, tmp_path, monkeypatch, saves_while_one_is_loaded):
    run = shutil.copytree(run_folder, tmp_path / "tag", symlinks=True)

    def name_the_checkpoint(actor, path, format, metadata, real) -> None:
        raise CheckpointError(metadata["checkpoint"])

    saves_while_one_is_loaded(run, "step_000000000120")
    monkeypatch.setattr(export, "export_policy", name_the_checkpoint)
    with pytest.raises(CheckpointError, match="^step_000000000060$"):
        call(run, "--policy", "runner")


def test_a_pt2_holds_no_pickle(run_folder, tmp_path):
    path = tmp_path / "tagger.pt2"
    call(run_folder, "--policy", "tagger", "--format", "torch", "--value", "--output", path)
    with zipfile.ZipFile(path) as archive:
        contents = {name: archive.read(name) for name in archive.namelist()}
    assert not [name for name, content in contents.items() if content[:2] in (b"PK", b"\x80\x02", b"\x80\x04")]
    assert all(b'"use_pickle": true' not in content and b".py" not in content for content in contents.values())
    assert json.loads(contents["archive/extra/warpdrive.json"])["policy"] == "tagger"


@pytest.mark.usefixtures("lines")
def test_the_example_in_the_docs_runs_without_torch(run_folder):
    text = (EXAMPLES.parent / "docs" / "export.md").read_text()
    code = text.split("```python\n")[1].split("```")[0]
    code += "\nimport sys; assert 'torch' not in sys.modules and 'trainers' not in sys.modules"
    done = run_python("-c", code, cwd=run_folder)
    assert done.returncode == 0, done.stderr
    assert "tag_gridworld" in done.stdout


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--policy", "taggers"), "--policy: the run has no policy 'taggers'. It has: tagger, runner."),
        (("--output", "a.onnx"), "--output: one file, but the run has 2 policies: name one of them by --policy."),
        (("--output", "a.txt"), "command line: --output 'a.txt': expected a file that ends in .onnx."),
        (("--format", "torch", "--output", "a.onnx"),
         "command line: --output 'a.onnx': expected a file that ends in .pt2."),
        (("--output", "nowhere/a.onnx"),
         "command line: --output 'nowhere/a.onnx': there is no folder nowhere. Make it first."),
    ],
)  # fmt: skip
def test_what_cannot_be_meant_and_config_keys_are_refused(words, message, run_folder):
    with pytest.raises(ConfigError) as caught:
        call(run_folder, *words)
    assert str(caught.value) == message
    with pytest.raises(ConfigError, match="export takes no keys of a config, got 'trainer.seed="):
        call(run_folder, overrides=[("trainer.seed", "1")])


@pytest.fixture
def actor() -> PortablePolicy:
    config = read_config({"name": "cartpole", "trainer": {"total_timesteps": 1}, "policy": {"agent": {}}})
    env = load_env("cartpole")
    policy = make_policy(env, "agent", config.policy["agent"], torch.Generator().manual_seed(0))
    return PortablePolicy(policy, env, "agent")


@pytest.mark.parametrize("format", ["onnx", "torch"])
def test_a_policy_with_a_nan_is_not_written_and_the_older_file_stays(format, actor, tmp_path):
    path = tmp_path / "file"
    path.write_text("older")
    with torch.no_grad():
        actor.policy.network.policy_head.bias[1] = torch.nan
    with pytest.raises(CheckpointError, match="the exported 'logits' differs from the policy's by nan"):
        export.export_policy(actor, path, format)
    assert path.read_text() == "older"
    assert list(tmp_path.iterdir()) == [path]


def test_a_file_that_plays_otherwise_is_not_written(actor, tmp_path, monkeypatch):
    make = export._onnx_player

    def wrong_player(content: bytes) -> Callable:
        play = make(content)
        return lambda inputs: {name: one + 2e-5 if name == "logits" else one for name, one in play(inputs).items()}

    monkeypatch.setattr(export, "_onnx_player", wrong_player)
    with pytest.raises(CheckpointError, match="'logits' differs from the policy's by 2.0e-05, more than 1e-05"):
        export.export_policy(actor, tmp_path / "file.onnx")
    assert not list(tmp_path.iterdir())


def test_another_choice_counts_by_what_it_loses(actor):
    def play(inputs: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        outputs = actor(inputs)
        return outputs | {"action": 1 - outputs["action"]}

    differences, num_rows = export.largest_differences(actor, play)
    logits = torch.cat([actor(random_inputs(actor, rows, torch.Generator().manual_seed(1)))["logits"] for rows in (1,)])
    assert differences["logits"] == 0.0
    assert differences["action"] >= (logits[0, 0] - logits[0, 1]).abs().item() > 0
    assert num_rows == 1 + 2 + 1000


def test_a_missing_package_is_named_with_what_brings_it(monkeypatch):
    monkeypatch.setattr(export.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(BackendError, match=re.escape(pip_install("onnx"))):
        export.check_installed("onnx")
    export.check_installed("torch")
