"""Updates of SAC, TD3 and DDPG by kernels: in full float what torch's path makes, over several iterations."""

import shutil
from dataclasses import replace

import pytest
import torch
from compile_only import CompileOnlyBackend

from trainers.acting.actor import Stage
from trainers.algorithms.sac import SACConfig
from trainers.errors import NonFiniteError
from trainers.experience.spec import spec_of
from trainers.fused import plan
from trainers.fused.ac_learner import FusedSAC, FusedTD3
from trainers.fused.ac_shape import STEP_THREADS, THREADS, ACShape, plan_ac
from trainers.fused.limits import CPU, LARGE_GPU, Limits
from trainers.networks.policy import inputs_of
from trainers.settings.config import Config, ModelConfig, TrainerConfig
from trainers.settings.read_config import read_config
from trainers.trainer import Trainer
from warpdrive.env import load_env

WIDTHS, BATCH = (20, 12), 40


def make_config(folder, device: str, precision: str = "fp32", **policy) -> Config:
    """Pendulum: 2 envs, 4 steps and 4 updates an iteration from the third on. Or simple_spread, whose 3 agents have
    actions of 5 numbers."""
    is_spread = policy.pop("is_spread", False)
    env = {"continuous_actions": True} if is_spread else {}
    model = {"fc_dims": list(policy.pop("fc_dims", WIDTHS)), "activation": policy.pop("activation", "relu")}
    model |= {"critic_fc_dims": policy.pop("critic_fc_dims", None)}
    own = {"algorithm": "SAC", "buffer_size": 48, "batch_size": BATCH, "learning_starts": 16, "replay_ratio": 0.5}
    sizes = {"num_envs": 2, "train_batch_size": 8, "total_timesteps": 800, "device": device, "precision": precision}
    config = {
        "name": "simple_spread" if is_spread else "pendulum", "env": {"episode_length": 3, **env}, "trainer": sizes,
        "policy": {"agent": {**own, "model": model, **policy}}, "saving": {"basedir": str(folder)},
    }  # fmt: skip
    return read_config(config)


def make_trainer(folder, device: str, **policy) -> Trainer:
    return Trainer(make_config(folder, device, **policy))


def learn_by_kernel(
    trainer: Trainer, rows: int = 16, parts: int = 1, element_bytes: int = 4, by_groups: bool = False,
    in_clusters: bool = False,
) -> None:  # fmt: skip
    algorithm = trainer.algorithms["agent"]
    model = algorithm.config.model
    widths = tuple(model.fc_dims), tuple(model.critic_fc_dims or model.fc_dims)
    batch = algorithm.config.batch_size
    sizes = algorithm.config.num_critics, batch, rows, parts, element_bytes, True, algorithm.config.DRAWS_ACTIONS
    kind = FusedSAC if algorithm.config.DRAWS_ACTIONS else FusedTD3
    threads = (128, STEP_THREADS if by_groups else 128) if batch <= 70 else (THREADS, STEP_THREADS)
    split = algorithm.config.num_critics if in_clusters else 1
    threads = {"threads": threads[0], "step_threads": threads[1]}
    spec = algorithm.group.spec
    seen = inputs_of(spec, algorithm.config).num_features, spec.action_space.shape[0]
    shape = ACShape(*seen, *widths, *sizes, **threads, split=split, by_groups=by_groups)
    algorithm.learns_by = kind(algorithm, replace(shape, is_plain=not algorithm.config.normalize_observation))
    trainer.phases["agent"] = {name: trainer._graphed(phase) for name, phase in algorithm.phases().items()}


SWITCHES = {
    "plain": {},
    "prioritised, 2 steps, follows at times": {"prioritized": True, "n_step": 2, "target_update_freq": 3, "tau": 0.7},
    "one layer, tanh, three critics": {
        "num_critics": 3, "fc_dims": (20,), "critic_fc_dims": [70, 9], "activation": "tanh", "learning_starts": 0,
        "clip_grad_norm": False, "critic_lr": 0.01,
    },
    "what is seen is normalised": {"normalize_observation": True},
    "TD3": {"algorithm": "TD3", "target_noise": 0.4, "target_noise_clip": 0.3, "tau": 0.6},
    "DDPG, one layer, prioritised": {"algorithm": "DDPG", "fc_dims": (70,), "prioritized": True, "activation": "tanh"},
    "a shorter gradient, a temperature that stays": {
        "max_grad_norm": 0.01, "learns_temperature": False, "temperature": 0.3, "critic_fc_dims": [20],
    },
    "224 rows by three blocks a tile, two stages each": {
        "batch_size": 200, "buffer_size": 300, "fc_dims": (100, 70), "critic_fc_dims": [36],
    },
    "TD3, 208 rows by one, four stages": {
        "algorithm": "TD3", "batch_size": 200, "buffer_size": 300, "num_critics": 3, "fc_dims": (20, 90),
    },
    "actions of 5 numbers, three critics": {"is_spread": True, "num_critics": 3},
    "TD3, actions of 5 numbers": {"is_spread": True, "algorithm": "TD3", "target_noise": 0.3},
    "gradients by warpgroups": {
        "batch_size": 70, "buffer_size": 100, "fc_dims": (20, 70), "critic_fc_dims": [132], "num_critics": 1,
    },
}  # fmt: skip


def has_clusters(device: str) -> bool:
    return device != "cpu" and torch.cuda.get_device_capability() >= (9, 0)


@pytest.mark.parametrize("case", SWITCHES)
def test_updates_are_those_of_torch(case, tmp_path, device):
    switches, number = SWITCHES[case], list(SWITCHES).index(case)
    by_groups = case.endswith("by warpgroups")
    if by_groups and device != "cpu":
        pytest.skip("warpgroups multiply no floats")
    rows, parts = [(16, 1), (32, 3)][number % 2] if not by_groups else (16, 1)
    by_torch, by_kernel = (make_trainer(tmp_path / name, device, **switches) for name in ("torch", "kernel"))
    learn_by_kernel(by_kernel, rows, parts, by_groups=by_groups, in_clusters=has_clusters(device))
    is_large = "batch_size" in switches  # a CPU takes long
    for _ in range(4 if is_large else 5):
        theirs, ours = by_torch.iterate()["agent"], by_kernel.iterate()["agent"]
    assert set(ours) == set(theirs)
    for name in theirs:
        assert float(ours[name]) == pytest.approx(float(theirs[name]), rel=1e-4, abs=1e-5), name
    ours, theirs = (one.algorithms["agent"] for one in (by_kernel, by_torch))
    num_updates = 20 if "learning_starts" in switches else 8 if is_large else 12
    steps = num_updates // getattr(ours.config, "policy_delay", 1)
    assert ours.optimizer.tensors()["network.trunk.0.weight/step"] == steps
    for state, tensors in theirs.state().items():
        for name, tensor in tensors.items():
            torch.testing.assert_close(ours.state()[state][name], tensor, rtol=1e-4, atol=1e-5, msg=f"{state} {name}")
    for one, other in zip(ours.policy.parameters(), theirs.policy.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)
    for name, tensor in theirs.table.selector.tensors().items():  # leaves are in units of 2^-20
        torch.testing.assert_close(ours.table.selector.tensors()[name], tensor, rtol=1e-3, atol=64, msg=name)


@pytest.mark.parametrize("algorithm", ["SAC", "TD3"])
@pytest.mark.parametrize(("greedy", "fc_dims"), [((), (20, 70)), (("agent",), (40,))])
def test_agents_act_as_by_torch(algorithm, greedy, fc_dims, tmp_path, device, monkeypatch):
    """Greedy or not; in the second iteration by a policy that has learned."""
    own = {"algorithm": algorithm, "fc_dims": fc_dims, "learning_starts": 0}
    precision, found, kept = TrainerConfig.precision_on, [], "log_prob" if algorithm == "SAC" else "drawn"
    monkeypatch.setattr("trainers.acting.actor.Stage", lambda *stage: Stage(*stage[:3], greedy))
    for kernel in (False, True):
        monkeypatch.setattr(TrainerConfig, "precision_on", (lambda *_: plan.FULL_PRECISION) if kernel else precision)
        monkeypatch.setattr(plan, "RUNS_ON_CPU", kernel)
        trainer = make_trainer(tmp_path / str(kernel), device, **own)
        group = trainer.rollout.groups["agent"]
        assert group.actor.path == ("fused" if kernel else "torch")
        if kernel:
            trainer.algorithms["agent"].learns_by = trainer.algorithms["agent"]
            trainer.phases["agent"] = {
                name: trainer._graphed(phase) for name, phase in trainer.algorithms["agent"].phases().items()
            }
        trainer.iterate(), trainer.iterate()
        found.append((group.action.clone(), group.tensors[kept].clone()))
    assert found[0][0].unique().numel() > 6  # of 8
    torch.testing.assert_close(found[0], found[1], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("algorithm", "whose"), [("SAC", "target_critics"), ("SAC", "policy"), ("TD3", "target")])
def test_a_nan_is_told_as_on_the_torch_path_and_changes_nothing(algorithm, whose, tmp_path, device):
    told = []
    for name in ("torch", "kernel"):
        trainer = make_trainer(tmp_path / name, device, prioritized=True, algorithm=algorithm)
        if name == "kernel":
            learn_by_kernel(trainer)
        for _ in range(3):
            trainer.iterate()
        learner = trainer.algorithms["agent"]
        with torch.no_grad():
            next(getattr(learner, whose).parameters()).fill_(torch.nan)
        before = {name: tensor.clone() for name, tensor in learned(learner).items()}
        leaves = learner.table.selector.tree.leaves.clone()
        trainer.iterate()
        for place, tensor in learned(learner).items():
            torch.testing.assert_close(tensor, before[place], rtol=0, atol=0, equal_nan=True, msg=place)
        assert (learner.table.selector.tree.leaves == leaves).float().mean() > 0.5  # save those that came and went
        with pytest.raises(NonFiniteError) as error:
            trainer.guard.raise_if_halted(trainer.iteration)
        told.append(str(error.value))
    assert told[0] == told[1]
    if whose != "policy":
        assert "gradient of 'critics.networks.0.trunk.0.weight'" in told[0]


def learned(algorithm) -> dict[str, torch.Tensor]:
    """All parameters that gradients change, and what optimisers remember."""
    state = algorithm.state()
    parts = [part for part in state if not part.startswith(("target", "acting"))]
    found = {f"{part}/{name}": one for part in parts for name, one in state[part].items()}
    return {**found, **dict(algorithm.policy.named_parameters())}


@pytest.mark.parametrize("case", ["prioritised, 2 steps, follows at times", "TD3"])
def test_a_run_by_the_kernels_resumes_bit_for_bit(case, tmp_path, device, monkeypatch):
    monkeypatch.setattr(plan, "RUNS_ON_CPU", True)
    switches = SWITCHES[case]
    config = make_config(tmp_path, device, "bf16", **{**switches, "batch_size": 20})
    whole = Trainer(config)
    assert whole.algorithms["agent"].path == whole.rollout.groups["agent"].actor.path == "fused"
    for _ in range(4):
        whole.iterate()
    whole.save()
    again = Trainer(config, resume=whole.run.path)
    found = [(one.iterate(), one.iterate())[1]["agent"] for one in (whole, again)]
    assert [float(one) for one in found[0].values()] == [float(one) for one in found[1].values()]
    ours, theirs = (learned(one.algorithms["agent"]) for one in (whole, again))
    assert all(torch.equal(ours[name], theirs[name]) for name in ours) and len(ours) > 40


def compare_steps(one: Trainer, other: Trainer) -> None:
    """After as many iterations, of nearly the same steps of each optimiser along nearly the same way."""
    ours, theirs = ([trainer.iterate()["agent"] for _ in range(3)][-1] for trainer in (one, other))
    draws = one.algorithms["agent"].config.DRAWS_ACTIONS
    for name in ("critic_loss", "actor_loss", "q_mean", "critic_grad_norm", *(["entropy"] if draws else [])):
        assert float(ours[name]) == pytest.approx(float(theirs[name]), rel=0.02, abs=0.02), name
    for optimizer in ("critic_optimizer", "optimizer"):
        memories = (getattr(trainer.algorithms["agent"], optimizer).tensors() for trainer in (one, other))
        found = (
            torch.cat([part.flatten() for name, part in memory.items() if name.endswith("exp_avg")])
            for memory in memories
        )
        assert torch.cosine_similarity(*found, dim=0) > 0.999, optimizer


def test_bf16_learns_about_what_full_float_does(tmp_path, device):
    full, half = (make_trainer(tmp_path / name, device, replay_ratio=0.125) for name in ("full", "half"))
    for trainer, element_bytes in ((full, 4), (half, 2)):
        learn_by_kernel(trainer, element_bytes=element_bytes)
    compare_steps(half, full)


OF_GROUPS = {
    "two critics": {"fc_dims": (256, 256)},
    "eight, one layer, tanh": {"num_critics": 8, "fc_dims": (64,), "critic_fc_dims": [150], "activation": "tanh"},
    "other widths": {"fc_dims": (70, 128), "critic_fc_dims": [260, 20], "prioritized": True},
    "TD3": {"algorithm": "TD3", "fc_dims": (128, 256), "policy_delay": 1},
    "DDPG": {"algorithm": "DDPG", "fc_dims": (256,), "critic_fc_dims": [128, 128]},
}  # fmt: skip


@pytest.mark.parametrize(("batch", "parts"), [(100, 1), (200, 2), (1000, 8)])
@pytest.mark.parametrize("case", OF_GROUPS)
def test_clusters_of_warpgroups_learn_about_what_warps_do(case, batch, parts, tmp_path, device):
    """A cluster for some rows, a block of it for each critic, and one for a tile of a gradient; the same bits again."""
    if device == "cpu" or torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("no warpgroups here")
    sizes = {"batch_size": batch, "buffer_size": 2 * batch, "replay_ratio": 0.125, "learning_starts": 0}
    found = [make_trainer(tmp_path / str(number), device, **{**OF_GROUPS[case], **sizes}) for number in range(3)]
    learn_by_kernel(found[0], element_bytes=2)
    for trainer in found[1:]:
        learn_by_kernel(trainer, 16, parts, element_bytes=2, by_groups=True, in_clusters=True)
    compare_steps(found[1], found[0])
    for _ in range(3):
        found[2].iterate()
    ours, theirs = (learned(trainer.algorithms["agent"]) for trainer in found[1:])
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


H100 = replace(LARGE_GPU, has_warpgroups=True)


@pytest.mark.parametrize(
    ("batch", "fc_dims", "limits", "rows", "parts"),
    [
        (256, (256, 256), H100, 16, 1),  # 16 clusters; a gradient of 256 rows is not worth a part
        (1056, (256, 256), H100, 16, 8),  # 66 clusters of two
        (4096, (256, 256), H100, 32, 8),  # 256 blocks of 16 rows are more than multiprocessors; 28 tiles for 264
        (4096, (256, 256), replace(H100, has_warpgroups=False), 32, 6),  # 48 smaller tiles for 264 blocks
        (65536, (256, 256), H100, 64, 8),
        (65536, (256, 256), Limits((8, 6), 99 << 10, 84), 16, 4),  # what fits its shared memory
        (40, (64,), H100, 16, 1),
    ],
)
def test_a_batch_is_shared_by_as_many_blocks_as_there_are(batch, fc_dims, limits, rows, parts):
    spec = spec_of(load_env("pendulum"), "shared")
    shape = plan_ac(SACConfig(batch_size=batch, model=ModelConfig(fc_dims=fc_dims)), spec, limits, "bf16")
    assert (shape.rows, shape.parts) == (rows, parts)
    assert shape.by_groups == (limits is H100 and batch > 256)
    assert shape.split == (2 if batch <= 66 * 16 else 1)
    assert max(shape.shared_bytes, shape.step_shared_bytes) <= limits.shared_bytes


@pytest.mark.parametrize(
    ("env", "changed", "words"),
    [
        ("pendulum", {"model": ModelConfig(layer_norm=True)}, "the kernel of SAC knows no model.layer_norm"),
        ("pendulum", {"model": ModelConfig(critic_fc_dims=(8,) * 3)}, "the kernel of SAC has one or two hidden layers"),
        ("pendulum", {"num_critics": 300}, "the networks' layers do not fit the shared memory of a block"),
        ("cartpole", {}, "the kernel of SAC acts in a Box"),
    ],
)
def test_what_the_kernels_cannot_do_is_told(env, changed, words, monkeypatch):
    monkeypatch.setattr(plan, "RUNS_ON_CPU", False)
    spec = spec_of(load_env(env), "shared")
    assert plan_ac(SACConfig(algorithm="SAC", **changed), spec, H100, "bf16") == words
    told = "trainer.precision=tf32 asks for it; fused kernels play and learn in bf16, or with auto"
    assert plan_ac(SACConfig(), spec, H100, "tf32") == told
    assert plan_ac(SACConfig(), spec, CPU, "bf16") == "on a CPU torch is faster than the fused kernels"


@pytest.mark.parametrize(
    ("arch", "algorithm", "by_groups"), [("sm_90a", "SAC", True), ("sm_80", "SAC", False), ("sm_90a", "TD3", False)]
)
def test_they_compile_for_gpus(tmp_path, arch, algorithm, by_groups):
    if shutil.which("nvcc") is None:
        pytest.skip("there is no nvcc here")
    trainer, draws = make_trainer(tmp_path, "cpu", algorithm=algorithm), algorithm == "SAC"
    trainer.env.backend = backend = CompileOnlyBackend("auto", arch)
    on_hopper = {"by_groups": by_groups, "split": 2 if by_groups else 1}
    shape = ACShape(3, 1, (256, 256), (256, 256), 2, BATCH, 32, 2, 2, samples=draws, **on_hopper)
    (FusedSAC if draws else FusedTD3)(trainer.algorithms["agent"], shape)
    group = trainer.rollout.groups["agent"]
    group.actor.stage = replace(group.actor.stage, limits=H100, precision="bf16")
    group.actor.attach(group)
    kernels = {"ac_judge", "ac_improve", "ac_gradient", "ac_step_critics", "ac_step_actor", "ac_follow", "ac_act"}
    assert group.actor.path == "fused" and kernels <= set(backend.compiled)
