from __future__ import annotations

import gc
import re
from collections.abc import Callable
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from trainers import cli
from trainers.algorithms import on_policy
from trainers.commands.train import dry_run
from trainers.errors import MemoryShortError
from trainers.networks import normalise
from trainers.run import estimate as estimates
from trainers.run.estimate import estimate, explained_shortage, largest_num_envs, printed_size
from trainers.run.free_memory import free_bytes
from trainers.settings.read_config import read_config
from trainers.trainer import Trainer
from warpdrive.backends import choose_backend
from warpdrive.env import load_env

EXAMPLES = Path(__file__).parents[3] / "examples"


def config_of(tmp_path: Path, name: str, num_envs: int, policy: dict, env: dict | None = None, **more: object):
    trainer = {"num_envs": num_envs, "train_batch_size": 20 * num_envs, "total_timesteps": 10**6, "device": "cpu"}
    saving = {"basedir": str(tmp_path / "runs")}
    sections = {"name": name, "env": env or {}, "trainer": trainer | more, "policy": policy, "saving": saving}
    return read_config(sections, allow_import=True)


def live_tensors() -> list[torch.Tensor]:
    """All of this process with memory of their own; while they are kept, none gives it back."""
    gc.collect()
    return [one for one in gc.get_objects() if type(one) in (torch.Tensor, torch.nn.Parameter) and has_memory(one)]


def has_memory(tensor: torch.Tensor) -> bool:
    """Whether it is more than what torch.export traces with."""
    try:
        return tensor.untyped_storage().data_ptr() != 0
    except RuntimeError:
        return False


def held_since(before: list[torch.Tensor]) -> int:
    """Bytes of memory that came after those tensors."""
    old = {one.untyped_storage().data_ptr() for one in before}
    storages = [one.untyped_storage() for one in live_tensors()]
    return sum({one.data_ptr(): one.nbytes() for one in storages if one.data_ptr() not in old}.values())


def peak_bytes(call: Callable[[], object]) -> int:
    """The most that a call had allocated at once, and not before it."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        result = call()  # noqa: F841  # still there when it is over
    events = profiler.profiler.kineto_results.events()
    now = most = 0
    for _, size in sorted((one.start_ns(), one.nbytes()) for one in events if one.name() == "[memory]"):
        now += size
        most = max(most, now)
    return most


GRU = {"type": "gru", "fc_dims": [16], "memory_size": 16, "shared_trunk": False, "sequence_length": 5}
NORMS = {"normalize_observation": True, "normalize_return": True, "normalize_reward": True}
DQN = {"algorithm": "DQN", "buffer_size": 10_000, "learning_starts": 0, "replay_ratio": 0.001}
R2D2 = {"algorithm": "R2D2", "learning_starts": 0, "replay_ratio": 0.001, "buffer_size": 10_000, "burn_in": 5}
R2D2 |= {"length": 10, "period": 5, "epsilon_per_env": True}
APART = {"shared_trunk": False, "fc_dims": [64, 32]}
CASES = {
    "A2C": ("tag_gridworld", 100, {"shared": {}}),
    "two policies": ("tag_continuous", 50, {"tagger": {"algorithm": "PPO", "model": APART},
                                            "runner": {"normalize_observation": True}}, {"num_taggers": 4}),
    "gaussian": ("pendulum", 300, {"shared": NORMS}),
    "central critic": ("simple_spread", 100, {"shared": {"algorithm": "MAPPO"}}),
    "a central critic with statistics": ("tag_continuous", 4, {"shared": {"algorithm": "MAPPO"}
                                                              | {"normalize_observation": True, "model": APART}}),
    "a central critic of agents that leave": ("tag_continuous", 4, {"shared": {"algorithm": "MAPPO"}}),
    "wide": ("cartpole", 50, {"shared": {"algorithm": "PPO", "model": {"fc_dims": [512, 512]}}}),
    "wide DQN": ("cartpole", 20, {"shared": DQN | {"replay_ratio": 0.01, "model": {"fc_dims": [512, 512]}}}),
    "recurrent": ("cartpole", 200, {"shared": {"algorithm": "PPO", "model": GRU}}),
    "DQN that learns from many": ("cartpole", 200, {"shared": DQN | {"batch_size": 4096, "prioritized": True}}),
    "DQN that keeps much": ("tag_gridworld", 100, {"shared": DQN | {"normalize_observation": True}}),
    "DQN that rates": ("cartpole", 50, {"shared": DQN | {"prioritized": True, "initial_priority": "error"}}),
    "DQN with goals": ("bit_flip", 50, {"shared": DQN | {"hindsight": 4}}),
    "QMIX": ("tag_gridworld", 100, {"tagger": DQN | {"algorithm": "QMIX", "prioritized": True, "batch_size": 512},
                                    "runner": DQN | {"algorithm": "VDN"}}),
    "QMIX of agents that leave": ("many_spaces.many_spaces:ManySpaces", 100,
                                  {"scout": DQN | {"algorithm": "QMIX", "batch_size": 1024}, "worker": {}}),
    "QMIX that remembers": ("tag_gridworld", 50, {"tagger": R2D2 | {"algorithm": "QMIX", "model": {"type": "gru"}},
                                                  "runner": R2D2 | {"algorithm": "VDN", "model": {"type": "gru"}}}),
    "IMPALA with a lag": ("acrobot", 100, {"shared": {"algorithm": "IMPALA", "policy_lag": 8}}),
    "OFFPPO": ("tag_gridworld", 100, {"shared": {"algorithm": "OFFPPO", "num_rollouts": 8}}),
    "OFFPPO of a Box": ("pendulum", 300, {"shared": {"algorithm": "OFFPPO", "num_minibatches": 1, **NORMS}}),
    "Rainbow": ("cartpole", 20, {"shared": DQN | {"algorithm": "C51", "dueling": True, "noisy": True, "n_step": 3,
                                                  "prioritized": True, "replay_ratio": 0.01}}),
    "QRDQN": ("tag_gridworld", 100, {"shared": DQN | {"algorithm": "QRDQN"}}),
    "IQN": ("cartpole", 20, {"shared": DQN | {"algorithm": "IQN", "replay_ratio": 0.01}}),
    "PQN": ("tag_gridworld", 100, {"shared": {"algorithm": "PQN"}}),
    "R2D2": ("cartpole", 100, {"shared": R2D2}),
    "R2D2 that keeps much": ("tag_gridworld", 50, {"shared": R2D2 | {"buffer_size": 50_000, "batch_size": 8}}),
    "NGU": ("tag_gridworld", 50, {"shared": R2D2 | {"algorithm": "NGU", "episodic_capacity": 20}}),
    "Agent57": ("cartpole", 100, {"shared": R2D2 | {"algorithm": "AGENT57", "episodic_capacity": 50}}),
    "SAC": ("pendulum", 100, {"shared": DQN | {"algorithm": "SAC", "batch_size": 2048}}),
    "SAC of a list": ("cartpole", 100, {"shared": DQN | {"algorithm": "SAC", "model": {"fc_dims": [256, 256]}}}),
    "MASAC": ("many_spaces.many_spaces:ManySpaces", 100,
              {"scout": DQN | {"algorithm": "MASAC", "batch_size": 1024}, "worker": {}}),
    "TD3": ("pendulum", 100, {"shared": DQN | {"algorithm": "TD3", "batch_size": 2048, "normalize_observation": True}}),
    "TD3 of returns' probabilities": ("pendulum", 100, {"shared": DQN | {"algorithm": "TD3", "batch_size": 512,
                                                                         "distributional": True}}),
    "cnn": ("corners:Corners", 200, {"agent": {"algorithm": "PPO", "model": {"type": "cnn", "dense_dim": 16}}}),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_estimate_is_within_a_tenth_of_what_a_run_allocates(tmp_path, monkeypatch, case):
    monkeypatch.setitem(on_policy.MAX_SAMPLES, "cpu", 1 << 30)  # as on a GPU: the work of an update shows
    name, num_envs, policy, *env = CASES[case]
    for folder in ("trainers/envs", "warpdrive/envs"):
        monkeypatch.syspath_prepend(Path(__file__).parents[2] / folder)
    config = config_of(tmp_path, name, num_envs, policy, *env)
    found, before = estimate(config), live_tensors()
    trainer = Trainer(config, "a")
    trainer.iterate()  # an optimiser remembers nothing before
    held = held_since(before)
    works = [peak_bytes(trainer._play)]
    works += [peak_bytes(phase) for one in trainer.algorithms.values() for phase in one.phases().values()]
    work = found.num_bytes["work of an update"]
    assert found.total - work == pytest.approx(held, rel=0.01)
    assert work == pytest.approx(max(works), rel=0.1)


def test_it_sums_nothing_over_ranks_whose_hosts_have_no_sums(tmp_path, monkeypatch):
    monkeypatch.setattr(normalise, "world", lambda: pytest.fail("asked for the ranks"))
    assert estimate(config_of(tmp_path, "simple_spread", 4, {"shared": {"algorithm": "MAPPO", **NORMS}})).total > 0


RATES = {"prioritized": True, "initial_priority": "error", "epsilon": 0.4, "epsilon_per_env": True}
MINATAR = {"type": "cnn", "conv": "minatar", "layer_norm": "hidden"}
FUSED = {
    "PPO": ("tag_gridworld", {"tagger": {"algorithm": "PPO", "model": {"fc_dims": [128, 128]}}, "runner": {}}),
    "DQN": ("cartpole", {"shared": DQN | {"buffer_size": 4000, "model": {"fc_dims": [64, 64]}}}),
    "wide DQN": ("cartpole", {"shared": DQN | {"buffer_size": 4000, "model": {"fc_dims": [256, 256]}}}),
    "deep DQN": ("cartpole", {"shared": DQN | {"buffer_size": 4000, "model": {"fc_dims": [64, 64, 64]}}}),
    "DQN of images": ("minatar_breakout", {"shared": DQN | {"buffer_size": 4000, "model": MINATAR}}),
    "DQN that rates": ("cartpole", {"shared": DQN | RATES | {"buffer_size": 4000, "model": {"fc_dims": [64] * 3}}}),
    "SAC": ("pendulum", {"shared": DQN | {"algorithm": "SAC", "batch_size": 1000, "buffer_size": 4000}}),
    "TD3": ("pendulum", {"shared": DQN | {"algorithm": "TD3", "batch_size": 1000, "buffer_size": 4000}}),
}


@pytest.mark.parametrize("case", FUSED)
def test_estimate_of_fused_kernels_is_within_a_tenth_of_their_arrays(tmp_path, case):
    """They are all made at the start."""
    name, policy = FUSED[case]
    config = config_of(tmp_path, name, 100, policy, precision="bf16")
    found, before = estimate(config), live_tensors()
    trainer = Trainer(config, "a")
    assert {one.path for one in trainer.algorithms.values()} == {"fused"}
    held = held_since(before)
    assert found.total - found.num_bytes["work of an update"] == pytest.approx(held, rel=0.1)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU here")
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_estimate_is_within_a_tenth_of_what_a_gpu_allocates(tmp_path, precision):
    """Beside what a matrix library takes at its first product."""
    policy = {"shared": {"algorithm": "PPO", "model": {"fc_dims": [64, 64], "shared_trunk": False}}}
    config = config_of(tmp_path, "tag_gridworld", 8000, policy, device="cuda", precision=precision, cuda_graphs=False)
    gc.collect()  # what another test left would else be freed in between
    choose_backend("cuda")  # whose stream is torch's from now on: a library keeps memory for each
    torch.ones(8, 8, device="cuda") @ torch.ones(8, 8, device="cuda")
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    trainer = Trainer(config, "a")
    for _ in range(3):
        trainer.iterate()
    torch.cuda.synchronize()
    found = estimate(config, device="cuda")
    allocated = torch.cuda.max_memory_allocated() - before
    assert found.total - estimates.LIBRARIES == pytest.approx(allocated, rel=0.1)


def test_a_run_that_cannot_fit_is_one_line_and_code_3(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(estimates, "free_bytes", lambda device: 100 << 20)
    argv = ["--config", "tag.yaml", "--device", "cpu", "trainer.num_envs=10000", "trainer.train_batch_size=200000"]
    assert cli.main([*argv, f"saving.basedir={tmp_path / 'runs'}"], folder=EXAMPLES, command="train") == 3
    (line,) = capsys.readouterr().err.splitlines()
    told = re.fullmatch(
        r"error: 'tag_gridworld' needs 1\d\d\.\d MiB of memory, and 100\.0 MiB can be had: "
        r"rollout\.observation 84\.1 MiB, work of an update \d+\.\d MiB, tagger\.hidden layers 9\.8 MiB\. "
        r"The largest trainer\.num_envs that fits is (\d+) \(with train_batch_size (\d+)\)\.",
        line,
    )
    number, batch = (int(word) for word in told.groups())
    assert batch == 20 * number
    assert not (tmp_path / "runs").exists()
    config = read_config(EXAMPLES / "tag.yaml")
    sizes = [estimate(config, num_envs=number + more).total for more in (0, 1)]
    assert sizes[0] <= 100 << 20 < sizes[1]


def test_largest_number_of_envs_can_be_shared_by_gpus_and_minibatches(tmp_path):
    policy = {"shared": {"algorithm": "PPO", "num_minibatches": 5}}
    config = config_of(tmp_path, "cartpole", 300, policy, num_gpus=2)
    number = largest_num_envs(config, load_env("cartpole"), "cpu", 4 << 20)
    assert number > 0
    assert number % 10 == 0


def test_what_needs_more_than_there_is_for_one_env_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr(estimates, "free_bytes", lambda device: 1000)
    with pytest.raises(MemoryShortError, match="Not one env fits: make the largest smaller"):
        Trainer(config_of(tmp_path, "cartpole", 10, {"shared": {}}))


def test_a_network_that_no_memory_holds_is_told(tmp_path):
    """10^12 weights of 4 bytes between its layers."""
    policy = {"shared": {"model": {"fc_dims": [1_000_000, 1_000_000]}}}
    with pytest.raises(MemoryShortError, match=r"^the network has [\d,]+\.\d GiB of parameters, and "):
        Trainer(config_of(tmp_path, "cartpole", 10, policy))
    assert not any(tmp_path.iterdir())


def test_the_largest_buffer_that_fits_is_told_where_it_is_what_does_not(tmp_path, monkeypatch):
    """Of 20 MiB: a transition of CartPole takes 21 to 25 bytes, so that some 800,000 of them fit, not ten million."""
    policy = {"shared": {"algorithm": "DQN", "buffer_size": 10_000_000}}
    config = config_of(tmp_path, "cartpole", 10, policy)
    monkeypatch.setattr(estimates, "free_bytes", lambda device: 20 << 20)
    with pytest.raises(MemoryShortError) as told:
        Trainer(config)
    (number,) = re.findall(r"The largest policy\.shared\.buffer_size that fits is ([\d,]+)\.$", str(told.value))
    number = int(number.replace(",", ""))
    assert 300_000 < number < 1_000_000
    for size, fits in ((number, True), (number + number // 50, False)):
        policy["shared"]["buffer_size"] = size
        assert (estimate(config_of(tmp_path, "cartpole", 10, policy)).total <= 20 << 20) == fits


def test_memory_that_runs_out_during_a_run_is_told_in_the_same_words(tmp_path):
    trainer = Trainer(config_of(tmp_path, "cartpole", 10, {"shared": {}}, precision="fp32"))
    errors = [
        MemoryError("Unable to allocate 9 GiB"),
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 9 GiB"),
        RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes"),
    ]
    told = r"^memory ran out: 'cartpole' needs .* The largest trainer\.num_envs that fits is \d"
    for error in errors:
        trainer._play = Mock(side_effect=error)
        with pytest.raises(MemoryShortError, match=told):
            trainer.iterate()


def test_other_errors_stay_themselves(tmp_path):
    with pytest.raises(RuntimeError, match="^shapes differ$"), explained_shortage(None):
        raise RuntimeError("shapes differ")


def test_dry_run_makes_the_share_of_one_rank_says_what_is_needed_and_leaves_nothing(tmp_path):
    lines = []
    dry_run(config_of(tmp_path, "cartpole", 12, {"shared": {}}, num_gpus=3), lines.append)
    assert lines[0] == "of 3 ranks, this is one"
    (table,) = (one for one in lines if "\n" in one)
    assert "[21, 4, 1, 4]" in table  # the rollout's observations: steps + 1, envs, agents, features
    assert table.splitlines()[-1].split()[0] == "total"
    assert lines[-1] == "dry run: everything was made, two steps and an update were made, nothing was kept"
    assert list(tmp_path.iterdir()) == []


def test_free_memory_of_this_machine_is_known_and_sizes_are_told_in_units_of_their_own():
    assert 1 << 20 < free_bytes(torch.device("cpu")) < 1 << 50
    assert [printed_size(size) for size in (1 << 19, 3 << 30)] == ["0.5 MiB", "3.0 GiB"]
