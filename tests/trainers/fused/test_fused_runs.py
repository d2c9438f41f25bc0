"""Whole runs by fused kernels: they are torch's runs; made again, stopped, gone on with, and gone wrong."""

from __future__ import annotations

import copy
import itertools
import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import trainers.trainer
from trainers.errors import NonFiniteError
from trainers.run import checkpoint
from trainers.settings.read_config import read_config
from trainers.trainer import Trainer
from warpdrive.backends import ahead
from warpdrive.backends.base import Module, Source
from warpdrive.backends.cpu import CpuBackend, CpuModule

TORCH, FULL, BF16 = "fp32", "fused-fp32", "bf16"
NUM_STEPS, NUM_ENVS = 10, 6
SIZE = NUM_STEPS * NUM_ENVS
GRU = {"type": "gru", "memory_size": 16, "sequence_length": 5, "shared_trunk": False}
STATISTICS = {"normalize_observation": True, "normalize_reward": True, "normalize_return": True}


@pytest.fixture
def make(tmp_path, device, monkeypatch) -> Callable[..., Trainer]:
    """A function that makes a run; one iteration is 10 steps of 6 envs, or of fewer."""
    for folder in (Path(__file__).parents[1] / "envs", Path(__file__).parents[2] / "warpdrive" / "envs"):
        monkeypatch.syspath_prepend(folder)

    def make(
        run: dict, precision: str, num_iterations: int = 4, resume: Path | None = None, report: int = 1, save: int = 2,
        num_envs: int = NUM_ENVS,
    ) -> Trainer:  # fmt: skip
        size = NUM_STEPS * num_envs
        settings = {"num_envs": num_envs, "train_batch_size": size, "total_timesteps": num_iterations * size}
        saving = {"basedir": str(tmp_path), "metrics_log_freq": report, "model_params_save_freq": save}
        config = read_config(
            {**run, "trainer": {**settings, "device": device, "seed": 3}, "saving": saving}, allow_import=True
        )
        object.__setattr__(config.trainer, "precision", precision)
        trainer = Trainer(config, resume=resume)
        path = "torch" if precision == TORCH else "fused"
        actors = [group.actor for group in trainer.rollout.groups.values()]
        assert {one.path for one in (*actors, *trainer.algorithms.values())} == {path}
        return trainer

    return make


def tag(**runner: object) -> dict:
    """Two taggers, and two runners who leave the game when they are tagged. Every number of a schedule has one."""
    taggers = {
        "algorithm": "A2C",
        "lr": 0.01,
        "entropy_coeff": [[0, 0.3], [SIZE, 0.0]],
        "vf_loss_coeff": 0.3,
        "model": {"fc_dims": [16]},
    }
    runners = {
        "algorithm": "PPO",
        "num_epochs": 3,
        "num_minibatches": 1,
        "lr": [[0, 0.01], [SIZE, 0.004]],
        "critic_lr": [[0, 0.03], [SIZE, 0.01]],
        "clip_param": [[0, 0.3], [SIZE, 0.02]],
        "entropy_coeff": [[0, 0.5], [SIZE, 0.01]],
        "model": {"fc_dims": [16], "shared_trunk": False, "critic_fc_dims": [8], "activation": "tanh"},
        **STATISTICS,
    }
    return {
        "name": "tag_continuous",
        "env": {
            "num_taggers": 2, "num_runners": 2, "episode_length": 17, "tagging_distance": 0.2,
            "num_acceleration_levels": 3, "num_turn_levels": 3,
        },
        "policy": {"tagger": taggers, "runner": {**runners, **runner}},
    }  # fmt: skip


def locks(**model: object) -> dict:
    """Three agents who may do something else in each step; see envs/locks.py."""
    policy = {"algorithm": "PPO", "num_epochs": 2, "num_minibatches": 3, "lr": 0.01, **STATISTICS}
    policy["model"] = {"fc_dims": [16], "activation": "tanh", **model}
    return {"name": "locks:Locks", "policy": {"agent": policy}}


def mappo(**more: object) -> dict:
    """One whose critic has hidden layers of 12."""
    settings = {"algorithm": "MAPPO", "num_epochs": 2, "num_minibatches": 1, "lr": 0.01, "clip_param": 0.02}
    return {**settings, **STATISTICS, "model": {"fc_dims": [16], "critic_fc_dims": [12]}, **more}


def spread() -> dict:
    """Three agents whose critic sees what all of them see; see examples/simple_spread_mappo.yaml."""
    return {"name": "simple_spread", "env": {"episode_length": 7}, "policy": {"agent": mappo()}}


def climbers() -> dict:
    """Agents who leave the game, of which the critic is told, who sees the env's state; see warpdrive/envs/climbers."""
    return {"name": "climbers.climbers:Climbers", "policy": {"climber": mappo(normalize_observation=False)}}


def sights() -> dict:
    """One who sees a picture and numbers, and two whose critic sees those of all; see envs/sights.py."""
    first = {"algorithm": "A2C", "lr": 0.01, "num_minibatches": 1, "model": {"fc_dims": [16]}}
    others = {**mappo(agent_id=True), "normalize_observation": False}
    return {"name": "sights:Sights", "policy": {"first": first, "others": others}}


def pendulum() -> dict:
    """One agent, one number, of which most is clipped: the deviation is twice the Box's half."""
    model = {"fc_dims": [16, 16], "activation": "tanh", "log_std_init": 0.7}
    agent = {"algorithm": "PPO", "num_epochs": 2, "num_minibatches": 1, "lr": 0.01, "entropy_coeff": 0.01, **STATISTICS}
    return {"name": "pendulum", "policy": {"agent": {**agent, "model": model}}}


def shove() -> dict:
    """Two who say two numbers, and two who choose; see envs/shove.py."""
    pushers = {"algorithm": "PPO", "num_epochs": 2, "num_minibatches": 1, "lr": 0.01}
    pushers["model"] = {"fc_dims": [16], "squash_actions": True, "shared_trunk": True}
    choosers = {"lr": 0.01, "model": {"fc_dims": [8], "shared_trunk": False}}
    return {"name": "shove:Shove", "policy": {"pushers": pushers, "choosers": choosers}}


def pictures() -> dict:
    """Two who learn values of actions from bits, and one whose critic has eyes of its own; see envs/tiles.py."""
    model = {"type": "cnn", "dense_dim": 16}
    once = {"num_epochs": 1, "num_minibatches": 1, "lr": 0.01}
    others = {"algorithm": "PQN", **once, "epsilon": 0.5, "model": model}
    last = {"algorithm": "PPO", **once}
    last["model"] = {**model, "activation": "tanh", "shared_trunk": False}
    return {"name": "tiles:Tiles", "policy": {"others": others, "last": last}}


def faulty(env: dict | None = None, **first: object) -> dict:
    """One agent and two others, who see two numbers; see envs/faulty.py."""
    small = {"lr": 0.01, "normalize_advantage": False, "model": {"fc_dims": [8]}}
    others = {"algorithm": "PPO", "num_epochs": 2, "num_minibatches": 2, **small}
    return {"name": "faulty:Faulty", "env": env or {}, "policy": {"first": {**small, **first}, "others": others}}


def iterate(trainer: Trainer, times: int) -> list[dict[str, dict[str, float]]]:
    """Figures of each iteration, by policy."""
    return [
        {policy: {key: float(value) for key, value in figures.items()} for policy, figures in trainer.iterate().items()}
        for _ in range(times)
    ]


def parameters(trainer: Trainer) -> dict[str, torch.Tensor]:
    return {
        f"{policy}.{name}": parameter.detach().clone()
        for policy, one in trainer.policies.items()
        for name, parameter in one.named_parameters()
    }


def assert_near(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor], tolerance: float = 1e-4) -> None:
    torch.testing.assert_close(dict(found), dict(expected), rtol=0, atol=tolerance)


def hashes(trainer: Trainer) -> dict[str, str]:
    """SHA-256 of everything that the last checkpoint holds."""
    manifest = json.loads((trainer.run.checkpoints / checkpoint.LAST / checkpoint.MANIFEST).read_text())
    return {name: file["sha256"] for name, file in manifest["files"].items()}


# -------------------------------------------------------------------------------------- as torch does it


def deep() -> dict:
    """Tag, whose runners have layers that go through memory, with LayerNorms."""
    run = tag()
    run["policy"]["runner"]["model"] |= {"fc_dims": [16, 24, 17], "layer_norm": "all"}
    return run


@pytest.mark.parametrize("run", [tag, spread, climbers, sights, pendulum, shove, deep, pictures])
def test_two_iterations_in_full_precision_are_torchs(make, run):
    ours, torchs = make(run(), FULL), make(run(), TORCH)
    before = parameters(ours)
    for found, expected in zip(iterate(ours, 2), iterate(torchs, 2), strict=True):
        assert found.keys() == expected.keys()
        for policy in expected:
            assert found[policy].keys() == expected[policy].keys()
            assert found[policy] == pytest.approx(expected[policy], rel=1e-3, abs=1e-4)
    if run not in (pendulum, shove, pictures):
        last = expected[list(expected)[-1]]
        assert last["clip_fraction"] > 0.1 and last["approx_kl"] > 1e-4
    found = parameters(ours)
    assert not any(torch.equal(found[name], before[name]) for name in found)
    assert_near(found, parameters(torchs))
    for name, policy in torchs.policies.items():  # running statistics, too
        assert_near(ours.policies[name].state_dict(), policy.state_dict())


def test_kl_early_stop_is_torchs(make):
    """Some minibatches of an iteration are learned from, and some are not."""
    steps = {}
    for precision in (TORCH, FULL):
        trainer, steps[precision] = make(tag(target_kl=0.02, lr=0.02), precision), []
        for _ in range(2):
            trainer.iterate()
            memory = trainer.algorithms["runner"].optimizer.state
            steps[precision].append({int(one["step"].item()) for one in memory.values()})
    assert steps[FULL] == steps[TORCH]
    assert 2 < max(steps[FULL][-1]) < 6


def test_a_policy_that_is_not_trained_plays_and_stays(make):
    trainer = make(faulty(to_train=False), BF16)
    before = parameters(trainer)
    iterate(trainer, 1)
    after = parameters(trainer)
    assert {name.split(".")[0] for name in before if not torch.equal(before[name], after[name])} == {"others"}
    assert trainer.rollout.groups["first"].action.unique().tolist() == [0, 1]


# --------------------------------------------------------------------------------- again, and gone on with


def layered() -> dict:
    """Layers that go through memory, with LayerNorms; and a LayerNorm before a layer that does not."""
    run = deep()
    run["policy"]["tagger"]["model"]["layer_norm"] = True
    return run


def seeing() -> dict:
    """Agents who leave the game, with a memory, and their critic, which sees the state, with another."""
    run = climbers()
    run["policy"]["climber"]["model"] |= {**GRU, "layer_norm": True}
    return run


def swinging() -> dict:
    """A number, after what was seen before."""
    run = pendulum()
    run["policy"]["agent"]["model"] |= {**GRU, "shared_trunk": True}
    return run


AGAIN = {
    "choices that masks forbid": locks,
    "a memory": lambda: locks(**GRU),
    "numbers beside choices": shove,
    "a number, with a memory": swinging,
    "layers, and LayerNorms": layered,
    "central critics of several arrays": sights,
    "a central critic with a memory": seeing,
    "pictures": pictures,
}


@pytest.mark.parametrize("kind", AGAIN)
def test_a_run_made_again_and_a_run_resumed_are_the_run_bit_for_bit(make, kind):
    """Four iterations of three envs, of which a GPU replays two as graphs; of a run that goes on after two, none."""
    run = AGAIN[kind]()
    whole = make(run, BF16, num_envs=3)
    whole.train()
    end = hashes(whole)
    again = make(run, BF16, num_envs=3)
    again.train()
    assert hashes(again) == end
    resumed = make(run, BF16, num_envs=3, resume=checkpoint.list_checkpoints(whole.run.checkpoints)[-2])
    assert resumed.iteration == 2
    resumed.train()
    assert hashes(resumed) == end
    if kind in ("choices that masks forbid", "a memory"):
        assert_keeps_to_masks(whole)
    if kind == "numbers beside choices":
        assert_pushes_what_is_drawn(whole)


def assert_keeps_to_masks(whole: Trainer) -> None:
    reward, group = whole.rollout.reward, whole.rollout.groups["agent"]
    assert reward.min() == 0 and reward.max() == 1  # what is not allowed costs 1
    taken = torch.nn.functional.one_hot(group.action[..., 0].long(), 3).bool()
    assert (group.mask[..., :3][taken] | ~group.mask[..., :3].any(-1).flatten()).all()


def assert_pushes_what_is_drawn(whole: Trainer) -> None:
    pushed, drawn = whole.rollout.data["action_pushers"], whole.rollout.groups["pushers"].action
    head = whole.policies["pushers"].head
    torch.testing.assert_close(pushed, head.action_of(drawn), rtol=0, atol=1e-6)
    assert not torch.equal(head.log_std.detach(), torch.zeros_like(head.log_std))


@pytest.mark.parametrize(("precision", "model"), [(FULL, {}), (BF16, {}), (BF16, GRU)], ids=["full", "mlp", "gru"])
def test_fused_kernels_go_on_where_torch_stopped_and_torch_where_they_did(make, precision, model):
    """In full precision as torch alone would have gone on."""
    run = tag() if precision == FULL else locks(**model)
    first = make(run, TORCH, num_iterations=1)
    first.train()
    second = make(run, precision, num_iterations=2, resume=first.run.path)
    assert second.iteration == 1
    second.train()
    third = make(run, TORCH, num_iterations=3, resume=first.run.path)
    assert third.iteration == 2
    assert_near(parameters(third), parameters(second), 0.0)
    third.train()
    if precision == FULL:
        alone = make(run, TORCH, num_iterations=3)
        alone.train()
        assert_near(parameters(third), parameters(alone))


def test_nothing_waits_for_a_compiler_before_all_are_at_work(make, monkeypatch):
    begun, waited = [], []
    monkeypatch.setattr(ahead.ModuleAhead, "__init__", spy(ahead.ModuleAhead.__init__, begun))
    monkeypatch.setattr(ahead.ModuleAhead, "module", spy(ahead.ModuleAhead.module, waited))
    monkeypatch.setattr(Trainer, "_make", spy(Trainer._make, [], lambda: waited.append("all made")))
    make(shove(), BF16)
    assert waited[0] == "all made" and len(waited) > 1 and len(begun) > 10


def spy(method: Callable, calls: list, after: Callable[[], None] = lambda: None) -> Callable:
    def call(self: object, *arguments: object) -> object:
        calls.append(self)
        found = method(self, *arguments)
        after()
        return found

    return call


# -------------------------------------------------------------------------------------------- what is not finite


def fail(trainer: Trainer) -> tuple[str, list[dict[str, torch.Tensor]]]:
    """Why it stops, and the parameters before each iteration and after the last."""
    states, iterate = [parameters(trainer)], trainer.iterate

    def recorded() -> dict:
        figures = iterate()
        states.append(parameters(trainer))
        return figures

    trainer.iterate = recorded
    with pytest.raises(NonFiniteError) as caught:
        trainer.train()
    assert all(torch.isfinite(tensor).all() for state in states for tensor in state.values())
    return str(caught.value), states


def fail_alike(make: Callable[..., Trainer], run: dict, prepare: Callable[[Trainer], object] = id, **arguments: int):
    """By torch and by fused kernels, which stop for the same reason: that, and what `fail` tells of each."""
    found = []
    for precision in (TORCH, BF16):
        trainer = make(run, precision, **arguments)
        prepare(trainer)
        found.append(fail(trainer))
    (message, of_torch), (same_message, of_kernels) = found
    assert message == same_message
    return message, (of_torch, of_kernels)


def changes(states: list[dict[str, torch.Tensor]], policy: str) -> list[bool]:
    """Whether each iteration changed it."""
    return [
        not all(torch.equal(one[name], other[name]) for name in one if name.startswith(policy))
        for one, other in itertools.pairwise(states)
    ]


class DebugsActing(CpuBackend):
    """Debug mode takes a compiler long: only what plays is compiled for it."""

    def compile(self, source: Source) -> Module:
        return super().compile(source) if source.path == "<fused act>" else CpuModule(self, source)


def test_debug_mode_finds_no_race_between_policies_of_one_launch(make, device, monkeypatch):
    if device != "cpu":
        pytest.skip("the CPU's debug mode finds races")
    monkeypatch.setattr(trainers.trainer, "make_backend", lambda settings: DebugsActing(debug=True))
    run = faulty()
    run["policy"] = {name: {**policy, "to_train": False} for name, policy in run["policy"].items()}  # fewer kernels
    make(run, BF16).rollout.collect()


@pytest.mark.parametrize("where", ["observation", "reward"])
def test_what_an_env_spoils_stops_the_run_as_it_stops_torchs(make, where):
    """In the third iteration; it is told after the fourth, which plays on with what is spoilt."""
    run = faulty(env={"where": where, "env": 5, "agent": 2, "step": 24})
    message, (_, states) = fail_alike(make, run, report=4, save=4)
    assert message.startswith(f"policy 'others': {where} is a NaN or an infinity at env 5, agent 2, step ")
    assert changes(states, "first") == changes(states, "others") == [True, True, False, False]


def test_a_bad_loss_stops_the_run_as_it_stops_torchs(make):
    """Row 37 of [step, env, agent], which is env 1 in step 6."""

    def spoil_the_third(trainer: Trainer) -> None:
        learner, iterate = trainer.algorithms["first"], trainer.iterate
        advantage, estimate = learner.group.advantage.view(-1), learner.estimate
        bad = torch.zeros((), device=advantage.device)

        def estimate_and_spoil() -> None:
            estimate()
            advantage[37].add_(bad)

        def iterate_and_spoil() -> dict:
            if trainer.iteration == 2:
                bad.fill_(float("nan"))
            return iterate()

        learner.estimate, trainer.iterate = estimate_and_spoil, iterate_and_spoil

    message, both = fail_alike(make, faulty(normalize_return=False), spoil_the_third, report=4, save=4)
    where = "env 1, agent 0, step 6 of iteration 3 "
    assert message.startswith(f"policy 'first': loss is a NaN or an infinity at {where}")
    for states in both:
        assert changes(states, "first") == [True, True, False, False]


@pytest.mark.parametrize(
    ("run", "policy", "parameter"),
    [
        (faulty, "others", "network.trunk.0.bias"),
        (faulty, "others", "network.policy_head.weight"),
        (faulty, "others", "network.value_head.bias"),
        (shove, "pushers", "network.policy_head.bias"),
        (shove, "pushers", "head.log_std"),
        (pictures, "others", "network.q_head.bias"),
    ],
)
def test_a_policy_that_makes_no_numbers_stops_the_run_as_it_stops_torchs(make, run, policy, parameter):
    messages = []
    for precision in (TORCH, BF16):
        trainer = make(run(), precision)
        with torch.no_grad():
            trainer.policies[policy].get_parameter(parameter).view(-1)[0] = float("nan")
        trainer.iterate()
        with pytest.raises(NonFiniteError) as caught:
            trainer.guard.raise_if_halted(trainer.iteration)
        messages.append(str(caught.value))
    assert messages[0] == messages[1]


def test_a_huge_learning_rate_stops_the_run_as_it_stops_torchs(make):
    one_trunk = {"fc_dims": [8], "activation": "relu", "shared_trunk": True}
    message, (_, states) = fail_alike(make, faulty(lr=1e30, normalize_return=False, model=one_trunk))
    assert message.startswith("policy 'first': value is a NaN or an infinity at env 0, agent 0, step 0 of iteration 2 ")
    assert changes(states, "first") == [True, False]


def test_an_infinite_gradient_stops_the_run_as_it_stops_torchs(make):
    """Of the value head alone: hidden numbers of 1e20, times a loss of 1e20."""

    def enlarge(trainer: Trainer) -> None:
        network = trainer.policies["first"].network
        with torch.no_grad():
            network.trunk[0].bias.fill_(1e20)
            network.value_head.weight.fill_(1e-21)
            network.policy_head.weight.zero_()

    one_trunk = {"normalize_return": False, "model": {"fc_dims": [8], "activation": "relu", "shared_trunk": True}}
    message, both = fail_alike(make, faulty(vf_loss_coeff=1e20, **one_trunk), enlarge)
    assert "the gradient of 'network.value_head.weight' became a NaN or an infinity in iteration 1" in message
    for states in both:
        assert not any(changes(states, "first"))
        # It learns beside the first, from the same rollout; a GPU tells of it an iteration later.
        assert changes(states, "others") == [True, False][: len(states) - 1]


def test_what_is_changed_between_iterations_is_what_plays_and_a_copy_is_a_policy_of_its_own(make):
    trainer = make(tag(), FULL)
    trainer.iterate()
    policy = trainer.policies["tagger"]
    twin = copy.deepcopy(policy)
    with torch.no_grad():
        policy.network.value_head.weight.zero_()
        policy.network.value_head.bias.fill_(0.75)
    assert twin.network.value_head.bias.item() != 0.75
    trainer.rollout.collect()
    assert (trainer.rollout.groups["tagger"].value == 0.75).all()
