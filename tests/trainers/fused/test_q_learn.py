"""Updates of DQN in one launch: in full float what torch's path makes, over several iterations."""

import shutil
from dataclasses import replace
from functools import partial

import pytest
import torch
from compile_only import CompileOnlyBackend

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
from trainers.population import Population, config_of_member
from trainers.replay.storage import Layout
from trainers.settings.config import Config, ModelConfig, PopulationConfig, TrainerConfig
from trainers.settings.read_config import read_config
from trainers.trainer import Trainer
from warpdrive.config import Schedule
from warpdrive.env import load_env
from warpdrive.env_wrapper import EnvWrapper
from warpdrive.errors import ConfigError

WIDTHS = (20, 9)
BATCH = 40
H100 = replace(LARGE_GPU, has_warpgroups=True)


def make_config(folder, device: str, precision: str = "fp32", **policy) -> Config:
    """2 envs, 4 steps and 4 updates an iteration from the third on; episodes of 3 steps."""
    model = {"fc_dims": list(policy.pop("fc_dims", WIDTHS)), "activation": policy.pop("activation", "relu")}
    num_steps, num_envs = policy.pop("num_steps", 4), policy.pop("num_envs", 2)
    own = {"algorithm": "DQN", "buffer_size": 48, "batch_size": BATCH, "learning_starts": 16, "replay_ratio": 0.5}
    config = {
        "name": "acrobot",
        "env": {"episode_length": 3},
        "trainer": {
            "num_envs": num_envs, "train_batch_size": num_envs * num_steps, "total_timesteps": 800, "device": device,
            "precision": precision,
        },
        "policy": {"agent": {**own, "model": model, **policy}},
        "saving": {"basedir": str(folder)},
    }  # fmt: skip
    return read_config(config)


def make_trainer(folder, device: str, **policy) -> Trainer:
    return Trainer(make_config(folder, device, **policy))


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


def let_kernels_play(monkeypatch, precision: str = plan.FULL_PRECISION) -> None:
    """On a CPU, too."""
    monkeypatch.setattr(TrainerConfig, "precision_on", lambda *_: precision)
    monkeypatch.setattr(plan, "RUNS_ON_CPU", True)
    monkeypatch.setattr("trainers.trainer.EnvWrapper", partial(EnvWrapper, folds=True))


@pytest.mark.parametrize(
    "switches",
    [
        {"target_update_freq": 3, "tau": 1.0},
        {"replay_ratio": 0.3, "n_step": 2, "buffer_size": 44, "fc_dims": (20,), "epsilon_per_env": True},
        {"replay_ratio": 1.0, "double": False, "huber_delta": None, "clip_grad_norm": False},
        {"replay_ratio": 1.0, "loses_futures": True},
        {"replay_ratio": 1.0, "loses_futures": True, "n_step": 3, "buffer_size": 42},
    ],
)
def test_a_rollout_that_learns_is_as_many_iterations_of_one_step(switches, tmp_path, device, monkeypatch):
    """8 iterations of 4 steps are 32 by torch of one: what is kept, in a ring of 24, learned and done is the same.

    Or the store has room for what 3 of the 8 episodes in the ring saw last: steps lose their futures, among them such
    as were drawn before.
    """
    switches = {"epsilon": 0.3, "buffer_size": 46, **switches}
    loses_futures = switches.pop("loses_futures", False)
    if loses_futures:
        of = Layout.of
        monkeypatch.setattr(Layout, "of", lambda *sizes: of(*sizes[:-1], 8))
    by_torch = make_trainer(tmp_path / "torch", device, num_steps=1, **switches)
    let_kernels_play(monkeypatch)
    at_once = make_trainer(tmp_path / "kernel", device, updates_in_rollouts=True, **switches)
    ours, theirs = at_once.algorithms["agent"], by_torch.algorithms["agent"]
    assert isinstance(ours.learns_by.shape, QAloneShape) and ours.learns_by.in_rollouts and theirs.path == "torch"
    for _ in range(8):
        found = at_once.iterate()["agent"]
        expected = [by_torch.iterate()["agent"] for _ in range(4)][-1]
    assert ours.store.num_steps_added == theirs.store.num_steps_added == 32 and ours.store.layout.num_slots == 24
    for name, tensor in theirs.store.tensors.items():
        torch.testing.assert_close(ours.store.tensors[name], tensor, rtol=1e-6, atol=1e-6, msg=name)
    for name, tensor in theirs.store.small.items():
        torch.testing.assert_close(ours.store.small[name], tensor, rtol=1e-6, atol=1e-6, msg=name)
    assert theirs.store.small["num_truncated"].sum() > 8
    assert (theirs.store.num_dropped > 0) == loses_futures
    assert torch.equal(ours.table.draws, theirs.table.draws) and int(ours.table.draws[0]) >> 32 > 3
    for name in ("loss", "q_mean", "td_error", "grad_norm"):
        assert float(found[name]) == pytest.approx(float(expected[name]), rel=1e-5, abs=1e-5), name
    for state in ("optim", "target"):
        for name, tensor in theirs.state()[state].items():
            torch.testing.assert_close(ours.state()[state][name], tensor, rtol=1e-5, atol=1e-5, msg=name)


@pytest.mark.parametrize("fc_dims", [(16, 16), (16, 40), (40, 16), (16,)])
def test_a_rollout_that_learns_plays_the_largest_q_value_of_narrow_networks_too(fc_dims, tmp_path, device, monkeypatch):
    """In bf16, as many agents as a block acts for: what is drawn lies where no layer writes."""
    let_kernels_play(monkeypatch, "bf16")
    sizes = {"num_envs": 16, "batch_size": 32, "buffer_size": 512, "lr": 0.0, "epsilon": 0.0}
    trainer = make_trainer(tmp_path, device, updates_in_rollouts=True, fc_dims=fc_dims, **sizes)
    learner = algorithm_of(trainer)
    assert isinstance(learner.learns_by.shape, QAloneShape)
    for _ in range(3):
        trainer.iterate()
    seen = learner.group.observation[:-1].reshape(-1, 6)
    q = learner.policy(seen)[0].detach()
    lost = (q.max(-1).values - q.gather(-1, learner.group.action.reshape(-1, 1).long()).squeeze(-1)).abs()
    assert lost.max() < 0.02 * q.abs().max()  # of two that are nearly equal, either


def test_rollouts_that_learn_resume_bit_for_bit(tmp_path, device, monkeypatch):
    let_kernels_play(monkeypatch)
    lr = Schedule(((0, 1e-3), (96, 1e-4)))
    config = make_config(tmp_path, device, updates_in_rollouts=True, buffer_size=46, epsilon=0.3, lr=lr)
    whole = Trainer(config)
    for _ in range(5):
        whole.iterate()
    whole.save()
    again = Trainer(config, resume=whole.run.path)
    found = [(one.iterate(), one.iterate())[1]["agent"] for one in (whole, again)]
    assert {name: float(one) for name, one in found[0].items()} == {name: float(one) for name, one in found[1].items()}
    ours, theirs = ({**one.state()["optim"], **one.policy.state_dict()} for one in map(algorithm_of, (whole, again)))
    assert all(torch.equal(ours[name], theirs[name]) for name in ours) and len(ours) > 20


def test_a_population_whose_rollouts_learn_is_one_launch_and_each_member_a_run_by_itself(tmp_path, device, monkeypatch):
    """The second ends early: the others go on, and it stays as it is."""
    let_kernels_play(monkeypatch)
    config = make_config(tmp_path, device, updates_in_rollouts=True, buffer_size=46, epsilon=0.3)
    config = replace(config, population=PopulationConfig(size=3))
    population = Population(config)
    assert population.joint is not None
    for iteration in range(6):
        if iteration == 4:
            population.failed[1] = NonFiniteError("it met one")
        figures = population.iterate()
    assert list(figures) == [0, 2]
    for number, member in enumerate(population.members):
        alone = Trainer(config_of_member(config, number, tmp_path / "alone"))
        for _ in range(4 if number == 1 else 6):
            expected = alone.iterate()["agent"]
        ours, theirs = (
            {**one.state()["optim"], **one.state()["target"], **one.policy.state_dict(), **one.store.tensors}
            for one in map(algorithm_of, (member, alone))
        )
        assert all(torch.equal(ours[name], theirs[name]) for name in theirs) and len(theirs) > 20
        if number != 1:
            assert float(figures[number]["agent"]["loss"]) == float(expected["loss"]) != 0.0
    assert len({float(one["agent"]["loss"]) for one in figures.values()}) == 2


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"prioritized": True}, "the kernel that makes them knows no prioritized"),
        ({"algorithm": "C51", "v_min": 0.0, "v_max": 1.0}, "the kernel that makes them knows DQN, and no C51"),
        ({"batch_size": 200, "buffer_size": 300}, "a batch of 200 is more than the 128 that a block alone learns from"),
        ({"fc_dims": (160, 160)}, "the network does not fit a block that learns alone"),
        ({"normalize_observation": True}, "the kernel of Q-learning knows no normalize_observation"),
        ({"num_envs": 64}, "a block steps 32 envs beside its updates, and there are 64"),
        (
            {"num_envs": 64, "batch_size": 128, "buffer_size": 1280, "fc_dims": (36, 100)},
            "a block has no room for what its envs' agents see, beside the network",
        ),
    ],
)
def test_where_rollouts_cannot_learn_is_told_with_the_way_out(changes, words, tmp_path, device, monkeypatch):
    let_kernels_play(monkeypatch)
    with pytest.raises(ConfigError) as error:
        make_trainer(tmp_path, device, updates_in_rollouts=True, **changes)
    told = str(error.value)
    assert "policy.agent.updates_in_rollouts: " + words in told
    assert "Leave one of them out" in told or "set trainer.train_batch_size: " in told


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


def algorithm_of(trainer: Trainer):
    return trainer.algorithms["agent"]


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
