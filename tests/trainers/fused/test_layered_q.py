"""DQN by kernels where a network's layers go through memory, with its play: in full float what torch's path makes."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from compile_only import CompileOnlyBackend
from launched_ranks import DEVICES
from layered_q_ranks import CASES, learned_from_all
from safetensors.torch import load_file

from trainers.algorithms.dqn import DQNConfig
from trainers.errors import NonFiniteError
from trainers.experience.spec import spec_of
from trainers.fused import plan
from trainers.fused.layered_q import LayeredQ, LayeredQLearner, plan_layered_q
from trainers.fused.limits import LARGE_GPU
from trainers.fused.player import FusedPlayer
from trainers.fused.q_learner import plan_q
from trainers.learning.launcher import launch
from trainers.settings.config import Config, ModelConfig, TrainerConfig
from trainers.settings.read_config import read_config
from trainers.trainer import Trainer
from warpdrive.env import load_env

H100 = replace(LARGE_GPU, has_warpgroups=True)
LAYERS = {"fc_dims": [20, 9, 12], "activation": "relu"}
IMAGES = {"type": "cnn", "conv": "minatar", "dense_dim": 20, "activation": "relu"}
RUNS = {
    "three layers": ("acrobot", {"model": LAYERS, "target_update_freq": 3}),
    "LayerNorms, prioritised, 2 steps, copied": (
        "acrobot",
        {
            "model": {**LAYERS, "layer_norm": "all"}, "prioritized": True, "n_step": 2, "tau": 1.0,
            "target_update_freq": 3,
        },
    ),
    "no hidden layer, normalised, not double": (
        "acrobot",
        {
            "model": {"fc_dims": []}, "normalize_observation": True, "double": False, "huber_delta": None,
            "clip_grad_norm": False, "tau": 0.7,
        },
    ),
    "images": ("minatar_breakout", {"model": IMAGES, "prioritized": True, "batch_size": 16}),
    "images, LayerNorms": (
        "minatar_asterix",
        {"model": {**IMAGES, "layer_norm": "hidden", "activation": "tanh"}, "batch_size": 16, "n_step": 2},
    ),
    "two arrays, a mask, and agents that leave": (
        "many_spaces.many_spaces:ManySpaces", {"model": {"fc_dims": [20, 9, 12]}, "prioritized": True},
    ),
}  # fmt: skip


@pytest.fixture
def make(tmp_path, device, monkeypatch):
    """A function that makes a run of torch, or of the kernels: 2 envs, 4 steps and 4 updates an iteration."""
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "warpdrive" / "envs")

    def make(name: str, precision: str = plan.FULL_PRECISION) -> Trainer:
        env, policy = RUNS[name]
        monkeypatch.setattr(TrainerConfig, "precision_on", lambda *_: precision)
        trainer = Trainer(make_config(tmp_path / f"{precision} {len(list(tmp_path.iterdir()))}", device, env, policy))
        learner, actor = algorithm_of(trainer), algorithm_of(trainer).group.actor
        of_kernels = isinstance(learner.learns_by, LayeredQLearner), isinstance(actor, FusedPlayer)
        assert of_kernels == (precision != "fp32",) * 2
        return trainer

    return make


def make_config(folder: Path, device: str, env: str, policy: dict) -> Config:
    own = {"algorithm": "DQN", "buffer_size": 100, "batch_size": 40, "learning_starts": 16, "replay_ratio": 0.5}
    trainer = {"num_envs": 2, "train_batch_size": 8, "total_timesteps": 800, "device": device}
    who = "scout" if "many_spaces" in env else "agent"
    others = {"worker": {"algorithm": "A2C"}} if who == "scout" else {}
    return read_config(
        {
            "name": env,
            "trainer": trainer,
            "policy": {who: {**own, "epsilon": 0.3, **policy}, **others},
            "saving": {"basedir": str(folder)},
        },
        allow_import=True,
    )


def algorithm_of(trainer: Trainer):
    return next(iter(trainer.algorithms.values()))


def tensors_of(trainer: Trainer) -> dict[str, torch.Tensor]:
    """All that has been learned, and what was done."""
    learner = algorithm_of(trainer)
    found = {name: one.detach() for name, one in learner.policy.named_parameters()}
    for part in ("optim", "target"):
        found |= {f"{part}/{name}": one for name, one in learner.state()[part].items()}
    return {**found, "action": learner.group.action.float(), "draws": learner.table.draws}


@pytest.mark.parametrize("name", RUNS)
def test_play_and_updates_are_those_of_torch(name, make):
    by_torch, by_kernels = make(name, "fp32"), make(name)
    done = set()
    num_iterations = 3 if "images" in name else 6  # of which the first two make no update
    for _ in range(num_iterations):
        theirs, ours = (one.iterate()[algorithm_of(one).group.name] for one in (by_torch, by_kernels))
        done |= set(algorithm_of(by_torch).group.action.flatten().tolist())
    assert len(done) > 1
    for figure, value in theirs.items():
        assert float(ours[figure]) == pytest.approx(float(value), rel=1e-4, abs=1e-5), figure
    theirs, ours = tensors_of(by_torch), tensors_of(by_kernels)
    assert max(float(one) for key, one in theirs.items() if key.endswith("/step")) == 4 * (num_iterations - 2)
    assert theirs.keys() == ours.keys() and len(theirs) > 8
    for key, tensor in theirs.items():
        torch.testing.assert_close(ours[key], tensor, rtol=1e-4, atol=1e-5, msg=key)
    trees = [algorithm_of(one).table.selector.tensors() for one in (by_torch, by_kernels)]
    for key, tensor in trees[0].items():  # leaves are in units of 2^-20
        torch.testing.assert_close(trees[1][key], tensor, rtol=1e-4, atol=8, msg=key)


@pytest.mark.parametrize("name", ["images", "LayerNorms, prioritised, 2 steps, copied"])
def test_a_run_resumes_bit_for_bit(name, make, device):
    whole = make(name, "bf16")
    for _ in range(3):
        whole.iterate()
    whole.save()
    again = Trainer(whole.config, resume=whole.run.path)
    whole.iterate(), again.iterate()
    ours, theirs = tensors_of(whole), tensors_of(again)
    assert all(torch.equal(ours[key], theirs[key]) for key in ours) and len(ours) > 20


@pytest.mark.parametrize(
    ("name", "bad"), [("images, LayerNorms", torch.nan), ("three layers", torch.nan), ("three layers", torch.inf)]
)
def test_what_is_not_finite_is_told_as_on_the_torch_path_and_changes_nothing(name, bad, make):
    told = []
    for precision in ("fp32", plan.FULL_PRECISION):
        trainer = make(name, precision)
        for _ in range(2):
            trainer.iterate()
        learner = algorithm_of(trainer)
        with torch.no_grad():
            list(learner.target.parameters())[-1].fill_(bad)
        before = [one.clone() for one in (*learner.policy.parameters(), *learner.optimizer.tensors().values())]
        trainer.iterate()
        after = [*learner.policy.parameters(), *learner.optimizer.tensors().values()]
        assert all(torch.equal(one, other) for one, other in zip(before, after, strict=True))
        with pytest.raises(NonFiniteError) as error:
            trainer.guard.raise_if_halted(trainer.iteration)
        told.append(str(error.value))
    assert told[0] == told[1] and "gradient of 'network." in told[0]


@pytest.mark.parametrize(
    ("env", "changed", "words"),
    [
        ("minatar_breakout", {"model": ModelConfig(type="cnn", conv="nature")}, "those of model.conv: nature, and"),
        ("minatar_breakout", {"model": ModelConfig(type="cnn", conv="minatar"), "noisy": True}, "knows no noisy"),
        ("cartpole", {"model": ModelConfig(fc_dims=(64, 64, 64)), "agent_id": True}, "knows no agent_id"),
        ("cartpole", {"model": ModelConfig(fc_dims=(64, 4096)), "batch_size": 4096}, "is more than the 1,024 that"),
        ("minatar_breakout", {"model": ModelConfig(type="cnn", conv="minatar")}, None),
        ("cartpole", {"model": ModelConfig(fc_dims=(64, 64, 64)), "epsilon_per_env": True}, None),
        ("cartpole", {"model": ModelConfig(fc_dims=(4096, 4096))}, None),
    ],
)
def test_what_they_cannot_do_is_told(env, changed, words):
    spec, config = spec_of(load_env(env), "shared"), DQNConfig(algorithm="DQN", **changed)
    found = plan_q(config, spec, H100, "bf16")
    assert words in found if words else isinstance(found, LayeredQ)
    assert type(plan_q(config, spec, H100, "bf16", num_ranks=2)) is type(found)


@pytest.mark.parametrize("arch", ["sm_90a", "sm_80"])
def test_the_loss_compiles_for_gpus(arch, tmp_path):
    if shutil.which("nvcc") is None:
        pytest.skip("there is no nvcc here")
    learner = algorithm_of(Trainer(make_config(tmp_path, "cpu", *RUNS["three layers"])))
    learner.group.rollout.env.backend = backend = CompileOnlyBackend("auto" if arch == "sm_90a" else "nvcc", arch)
    found = plan_layered_q(learner.config, learner.group.spec, H100, "bf16", 1)
    LayeredQLearner(learner, found)
    assert {"q_loss", "add_up_gradient", "follow_parameters"} <= set(backend.compiled)


@pytest.fixture(scope="module", params=DEVICES)
def ranks(request, tmp_path_factory):
    """A folder with what layered_q_ranks.py writes of two ranks, and their device."""
    folder, device = tmp_path_factory.mktemp("ranks"), request.param
    script = Path(__file__).parents[2] / "layered_q_ranks.py"
    assert launch([str(script), str(folder), device], TrainerConfig(num_gpus=2, device=device)) == 0
    return folder, device


@pytest.mark.alone
@pytest.mark.parametrize("case", CASES)
def test_two_ranks_learn_what_one_does_where_a_batch_is_all_there_is(case, ranks, tmp_path, monkeypatch):
    """To what rounding to bf16 leaves, on a GPU: of 6 steps of 1e-3 at most a fifth of one."""
    folder, device = ranks
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "warpdrive" / "envs")
    if device == "cpu":
        monkeypatch.setattr(TrainerConfig, "precision_on", lambda *_: plan.FULL_PRECISION)
    first, second = (load_file(folder / f"{case}.{rank}.safetensors") for rank in range(2))
    close = {"rtol": 1e-4, "atol": 1e-6} if device == "cpu" else {"rtol": 5e-3, "atol": 2e-4}
    for word, one in learned_from_all(case, 1, tmp_path, device).items():
        assert torch.equal(first[word], second[word]), word
        torch.testing.assert_close(first[word], one, **close, msg=word)
