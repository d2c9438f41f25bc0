"""Updates of DQN in one launch: in full float what torch's path makes, over several iterations."""

import shutil
from dataclasses import replace

import pytest
import torch
from compile_only import CompileOnlyBackend
from q_cases import BATCH, WIDTHS, algorithm_of, make_config, make_trainer

from trainers.acting.actor import Stage
from trainers.algorithms.dqn import DQNConfig
from trainers.errors import NonFiniteError
from trainers.experience.spec import spec_of
from trainers.fused import plan
from trainers.fused.limits import CPU, LARGE_GPU, Limits
from trainers.fused.q_actor import FusedQActor
from trainers.fused.q_learner import FusedQLearner, plan_q
from trainers.fused.q_shape import QAloneShape, QShape, fit_alone, fit_q
from trainers.fused.wide_q import WideQLearner, WideQShape
from trainers.networks.policy import make_policy
from trainers.settings.config import ModelConfig, TrainerConfig
from trainers.trainer import Trainer
from warpdrive.env import load_env

H100 = replace(LARGE_GPU, has_warpgroups=True)


def let_learn(trainer: Trainer, learns_by: FusedQLearner | WideQLearner) -> None:
    """In place of who makes its updates."""
    algorithm = trainer.algorithms["agent"]
    algorithm.learns_by = learns_by
    trainer.phases["agent"] = {name: trainer._graphed(phase) for name, phase in algorithm.phases().items()}


def learn_by_kernel(
    trainer: Trainer, rows: int = 64, in_cluster: bool = False, is_wide: bool = False, is_alone: bool = False
) -> None:
    algorithm = trainer.algorithms["agent"]
    hidden = algorithm.config.model.fc_dims
    if is_wide:
        shape = WideQShape(6, 0, (), hidden, 1, BATCH, rows, 2, 4, threads=128, step_threads=128, num_actions=3)
        let_learn(trainer, WideQLearner(algorithm, shape))
    elif is_alone:
        shape = QAloneShape((6, *hidden, 3), BATCH, rows, 1, False, 4, threads=128)
        let_learn(trainer, FusedQLearner(algorithm, replace(shape, room=shape.shared_bytes + 4096)))
    else:
        shape = QShape((6, *hidden, 3), BATCH, rows, -(-BATCH // rows), in_cluster, 4, threads=128)
        let_learn(trainer, FusedQLearner(algorithm, shape))


SWITCHES = {
    "plain": {"target_update_freq": 3},
    "prioritised, 2 steps, copied": {"prioritized": True, "n_step": 2, "tau": 1.0, "target_update_freq": 3},
    "one layer, tanh": {
        "double": False, "huber_delta": None, "clip_grad_norm": False, "fc_dims": (20,), "activation": "tanh",
        "tau": 0.7, "learning_starts": 0,
    },
}  # fmt: skip


ALONE = (64, False, False, True)
TEAMS = {"block": (64,), "grid": (16,), "cluster": (16, True), "wide": (16, False, True), "alone": ALONE}


@pytest.fixture(params=TEAMS.values(), ids=list(TEAMS))
def team(request, device):
    rows, in_cluster, is_wide = (*request.param, False, False)[:3]
    if rows < BATCH and device == "cpu" and not is_wide:
        pytest.skip("on a CPU blocks run one after the other")
    if in_cluster and torch.cuda.get_device_capability() < (9, 0):
        pytest.skip("this GPU has no clusters")
    return request.param


@pytest.mark.parametrize("switches", SWITCHES.values(), ids=list(SWITCHES))
def test_updates_are_those_of_torch(switches, team, tmp_path, device):
    if team == ALONE:
        switches = {**switches, "prioritized": False}
    by_torch, by_kernel = (make_trainer(tmp_path / name, device, **switches) for name in ("torch", "kernel"))
    learn_by_kernel(by_kernel, *team)
    for _ in range(6):
        theirs, ours = by_torch.iterate()["agent"], by_kernel.iterate()["agent"]
    for name in theirs:
        assert float(ours[name]) == pytest.approx(float(theirs[name]), rel=1e-5, abs=1e-5), name
    ours, theirs = (one.algorithms["agent"] for one in (by_kernel, by_torch))
    num_updates = 24 if "learning_starts" in switches else 16
    assert theirs.optimizer.tensors()["network.trunk.0.weight/step"] == num_updates
    for state in ("optim", "target"):
        for name, tensor in theirs.state()[state].items():
            torch.testing.assert_close(ours.state()[state][name], tensor, rtol=1e-5, atol=1e-5, msg=name)
    for one, other in zip(ours.policy.parameters(), theirs.policy.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)
    assert torch.equal(ours.table.draws, theirs.table.draws)
    for name, tensor in theirs.table.selector.tensors().items():  # leaves are in units of 2^-20
        torch.testing.assert_close(ours.table.selector.tensors()[name], tensor, rtol=1e-4, atol=8, msg=name)


def test_a_block_alone_learns_in_bf16_what_torch_learns(tmp_path, device):
    """Of the size that fills a block, by tensor cores where there are some: 3 updates, which round."""
    sizes = {"fc_dims": (120, 84), "batch_size": 128, "buffer_size": 400, "learning_starts": 0, "replay_ratio": 0.2}
    by_torch, by_kernel = (make_trainer(tmp_path / name, device, **sizes) for name in ("torch", "kernel"))
    ours, theirs = by_kernel.algorithms["agent"], by_torch.algorithms["agent"]
    let_learn(by_kernel, FusedQLearner(ours, fit_alone((6, 120, 84, 3), 128, H100, 2)))
    for _ in range(2):
        found, expected = by_kernel.iterate()["agent"], by_torch.iterate()["agent"]
    for name in ("loss", "q_mean", "td_error", "grad_norm"):
        assert float(found[name]) == pytest.approx(float(expected[name]), rel=0.02, abs=1e-3), name
    for name, tensor in theirs.state()["optim"].items():
        if name.endswith("/exp_avg"):
            one, other = ours.state()["optim"][name].flatten(), tensor.flatten()
            assert torch.nn.functional.cosine_similarity(one, other, 0) > 0.999, name
            assert float(one.norm() / other.norm()) == pytest.approx(1.0, rel=0.02), name
    for name, tensor in theirs.target.state_dict().items():
        torch.testing.assert_close(ours.target.state_dict()[name], tensor, rtol=1e-3, atol=1e-4, msg=name)


def test_a_block_alone_and_one_of_a_team_learn_the_same_in_bf16(tmp_path, device):
    """8 updates from one store: they round the same numbers, and add up gradients in another order."""
    widths, steps = (6, 40, 24, 3), {"buffer_size": 400, "learning_starts": 0, "replay_ratio": 1.0}
    learners = []
    for name, shape in ("alone", fit_alone(widths, 64, H100, 2)), ("team", QShape(widths, 64, 64, 1, False, 2)):
        trainer = make_trainer(tmp_path / name, device, fc_dims=widths[1:3], batch_size=64, **steps)
        learner = trainer.algorithms["agent"]
        let_learn(trainer, FusedQLearner(learner, shape))
        begin = {name: parameter.clone() for name, parameter in learner.policy.named_parameters()}
        trainer.iterate()
        learners.append(learner)
    ours, theirs = (dict(one.policy.named_parameters()) for one in learners)
    for name, parameter in theirs.items():
        way = (parameter - begin[name]).norm()
        assert way > 0.0 and (ours[name] - parameter).norm() < 1e-3 * way, name
    for one, other in zip(learners[0].target.parameters(), learners[1].target.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("switches", [{"epsilon": 0.4, "epsilon_per_env": True}, {"fc_dims": (20,), "epsilon": 0.2}])
def test_agents_act_as_by_torch(switches, tmp_path, device, monkeypatch):
    by_torch = make_trainer(tmp_path / "torch", device, learning_starts=10**6, **switches)
    monkeypatch.setattr(TrainerConfig, "precision_on", lambda *_: plan.FULL_PRECISION)
    by_kernel = make_trainer(tmp_path / "kernel", device, learning_starts=10**6, **switches)
    ours, theirs = (trainer.rollout.groups["agent"] for trainer in (by_kernel, by_torch))
    assert (ours.actor.path, theirs.actor.path) == ("fused", "torch")
    seen = set()
    for _ in range(5):
        by_torch.iterate(), by_kernel.iterate()
        assert torch.equal(ours.action, theirs.action)
        torch.testing.assert_close(ours.q_value, theirs.q_value, rtol=1e-5, atol=1e-5)
        seen |= set(ours.action.flatten().tolist())
    assert len(seen) > 1


@pytest.mark.parametrize(
    ("bad", "switches"),
    [
        (torch.nan, {"prioritized": True, "huber_delta": None}),
        (torch.nan, {"clip_grad_norm": False, "target_update_freq": 2, "huber_delta": None}),
        (torch.inf, {"target_update_freq": 2}),  # of which Huber's slope is 1
    ],
)
def test_what_is_not_finite_is_told_as_on_the_torch_path_and_changes_nothing(bad, switches, team, tmp_path, device):
    told = []
    for name in ("torch", "kernel"):
        trainer = make_trainer(tmp_path / name, device, **switches)
        if name == "kernel":
            learn_by_kernel(trainer, *team)
        for _ in range(3):
            trainer.iterate()
        algorithm = trainer.algorithms["agent"]
        with torch.no_grad():
            list(algorithm.target.parameters())[-1].fill_(bad)
        before = [one.clone() for one in (*algorithm.policy.parameters(), *algorithm.optimizer.tensors().values())]
        tree = algorithm.table.selector.tree
        leaves = None if tree is None else tree.leaves.clone()
        trainer.iterate()
        after = [*algorithm.policy.parameters(), *algorithm.optimizer.tensors().values()]
        assert all(torch.equal(one, other) for one, other in zip(before, after, strict=True))
        if tree is not None:
            assert (tree.leaves == leaves).float().mean() > 0.5  # save those that came and went
        with pytest.raises(NonFiniteError) as error:
            trainer.guard.raise_if_halted(trainer.iteration)
        told.append(str(error.value))
    assert told[0] == told[1] and "gradient of 'network.trunk.0.weight'" in told[0]


@pytest.mark.parametrize("kind", [FusedQLearner, WideQLearner])
def test_a_run_by_the_kernel_resumes_bit_for_bit(kind, tmp_path, device, monkeypatch):
    monkeypatch.setattr(plan, "RUNS_ON_CPU", True)
    if kind is WideQLearner:
        monkeypatch.setattr("trainers.fused.q_learner.fit_q", lambda *sizes: "there is no room")
    config = make_config(tmp_path, device, "bf16", **SWITCHES["prioritised, 2 steps, copied"])
    whole = Trainer(config)
    assert whole.algorithms["agent"].path == "fused" and isinstance(whole.algorithms["agent"].learns_by, kind)
    for _ in range(4):
        whole.iterate()
    whole.save()
    again = Trainer(config, resume=whole.run.path)
    found = [(one.iterate(), one.iterate())[1]["agent"] for one in (whole, again)]
    assert [float(one) for one in found[0].values()] == [float(one) for one in found[1].values()]
    ours, theirs = ({**one.state()["optim"], **one.policy.state_dict()} for one in map(algorithm_of, (whole, again)))
    assert all(torch.equal(ours[name], theirs[name]) for name in ours) and len(ours) > 20


@pytest.mark.parametrize(
    ("batch", "limits", "expected"),
    [
        (128, H100, (16, 8, True)),  # a cluster of 8 blocks
        (129, H100, (16, 9, False)),
        (4096, H100, (32, 128, False)),  # 256 blocks of 16 rows are more than the GPU has room for
        (128, Limits((8, 0), 163 << 10, 108), (16, 8, False)),
        (20, CPU, (32, 1, False)),
    ],
)
def test_a_batch_is_shared_by_as_many_blocks_as_there_are(batch, limits, expected):
    shape = fit_q((4, 120, 84, 2), batch, limits, 2)
    assert (shape.rows, shape.team, shape.in_cluster) == expected
    assert shape.num_parameters == 4 * 120 + 120 + 120 * 84 + 84 + 84 * 2 + 2


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({}, None),
        ({"dueling": True}, "the kernel of Q-learning knows no dueling"),
        ({"noisy": True, "model": ModelConfig(fc_dims=(64,) * 3)}, "the kernel of Q-learning knows no noisy"),
        ({"model": ModelConfig(type="gru")}, "it remembers, and gives actions values"),
    ],
)
def test_what_the_kernel_cannot_do_is_told(changed, words, monkeypatch):
    monkeypatch.setattr(plan, "RUNS_ON_CPU", False)
    spec = spec_of(load_env("cartpole"), "shared")
    config = DQNConfig(algorithm="DQN", **changed)
    found = plan_q(config, spec, H100, "bf16")
    assert found == words if words else isinstance(found, QShape)
    told = "trainer.precision=tf32 asks for it; fused kernels play and learn in bf16, or with auto"
    assert plan_q(config, spec, H100, "tf32") == told
    assert plan_q(config, spec, CPU, "bf16") == "on a CPU torch is faster than the fused kernels"


@pytest.mark.parametrize(
    ("changed", "rows", "parts"),
    [
        ({"model": ModelConfig(fc_dims=(256, 256))}, 16, 1),  # 16 blocks for a batch of 256
        ({"model": ModelConfig(fc_dims=(512, 512)), "batch_size": 4096}, 32, 4),  # 44 tiles of warpgroups, 264 blocks
        ({"batch_size": 1 << 16}, 64, 32),  # 3 tiles, and no more parts
        ({"hindsight": 4}, 16, 1),  # what is drawn is given another goal before it is learned from
        ({"normalize_observation": True}, 16, 1),
    ],
)
def test_what_a_block_has_no_room_for_is_learned_by_several_kernels(changed, rows, parts):
    config = DQNConfig(algorithm="DQN", **{"batch_size": 256, **changed})
    found = plan_q(config, spec_of(load_env("cartpole"), "shared"), H100, "bf16")
    assert isinstance(found, WideQShape) and (found.rows, found.parts) == (rows, parts)


def test_wide_networks_compile_for_gpus(tmp_path):
    if shutil.which("nvcc") is None:
        pytest.skip("there is no nvcc here")
    trainer = make_trainer(tmp_path, "cpu", prioritized=True)
    trainer.env.backend = backend = CompileOnlyBackend("auto", "sm_90a")
    shape = WideQShape(6, 0, (), (256, 256), 1, BATCH, 32, 2, 2, num_actions=3)
    WideQLearner(trainer.algorithms["agent"], shape)
    assert {"wide_q_judge", "ac_gradient", "ac_step_critics", "ac_follow"} <= set(backend.compiled)


@pytest.mark.parametrize(("arch", "in_cluster"), [("sm_90a", True), ("sm_80", False)])
def test_it_compiles_for_gpus(tmp_path, arch, in_cluster):
    if shutil.which("nvcc") is None:
        pytest.skip("there is no nvcc here")
    trainer = make_trainer(tmp_path, "cpu", prioritized=True)
    trainer.env.backend = backend = CompileOnlyBackend("nvcc", arch)
    FusedQLearner(trainer.algorithms["agent"], QShape((6, *WIDTHS, 3), BATCH, 16, 3, in_cluster, 2))
    assert "q_learn" in backend.compiled


@pytest.mark.parametrize(
    ("fc_dims", "num_envs", "rows"),
    [((120, 84), 10, 16), ((120, 84), 4096, 64), ((256, 256), 10, 16), ((256, 256), 4096, 16), ((400, 400), 10, None)],
)
def test_play_takes_blocks_that_have_room_for_one_network(fc_dims, num_envs, rows):
    """256 x 256 weights are 156 KiB beside 16 rows' 18; with 64 rows' 71 they would not fit the 227 of a block."""
    config = DQNConfig(algorithm="DQN", model=ModelConfig(fc_dims=fc_dims))
    env = load_env("cartpole")
    stage = Stage(torch.device("cpu"), H100, "bf16")
    actor = FusedQActor(make_policy(env, "shared", config, None), spec_of(env, "shared"), stage)
    found = actor.fit(num_envs)
    assert found == "the network does not fit the shared memory of a block" if rows is None else found.rows == rows
