"""Nothing of a rollout crosses the bus, and the host waits for nothing between two reports, which pull one tensor."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from trainers.experience.field import Field
from trainers.learning.graphs import WARM_UP, Graphed
from trainers.replay.selectors import Prioritized
from trainers.replay.store import ReplayStore
from trainers.replay.windows import Transitions
from trainers.settings.read_config import read_config
from trainers.trainer import Trainer
from warpdrive.backends import choose_backend

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU: there is no bus to cross here")

TAG = {"name": "tag_gridworld", "env": {"num_taggers": 4, "grid_length": 5, "episode_length": 7}}
STATISTICS = {"normalize_observation": True, "normalize_reward": True, "normalize_return": True}
MEMORY = {"type": "gru", "memory_size": 8, "sequence_length": 10, "fc_dims": [8]}
EVERYTHING = {
    "agent_id": True, "central_critic": True, "credit_after_leaving": "team", "lr": [[0, 1e-3], [10**5, 1e-4]],
    "critic_lr": 2e-3, "model": MEMORY, **STATISTICS,
}  # fmt: skip
PPO = {"algorithm": "PPO", "num_epochs": 2, "num_minibatches": 2, "target_kl": 0.1, "huber_delta": 1.0}
# Scouts see a Dict, have a mask and leave the game; workers see and act in Boxes.
MANY_SPACES = {"name": "many_spaces.many_spaces:ManySpaces"}
RUNS = {
    "one policy": {**TAG, "policy": {"shared": {}}},
    "two policies": {**TAG, "policy": {"tagger": {}, "runner": {}}},
    "PPO with everything": {**MANY_SPACES,
                            "policy": {"scout": {**PPO, **EVERYTHING},
                                       "worker": {**PPO, **EVERYTHING, "clip_value": False}}},
    "PPO without memory": {**MANY_SPACES,
                           "policy": {name: {**PPO, **EVERYTHING,
                                             "model": {"layer_norm": True}} for name in ("scout", "worker")}},
    "A2C with everything": {**MANY_SPACES,
                            "policy": {name: {"algorithm": "A2C", **EVERYTHING} for name in ("scout", "worker")}},
    "agents that leave": {
        "name": "tag_continuous",
        "env": {"num_taggers": 2, "num_runners": 3, "episode_length": 9, "tagging_distance": 0.2},
        "policy": {"tagger": PPO, "runner": {"algorithm": "A2C", "normalize_reward": True}},
    },
    "a bootstrap at each step": {"name": "pendulum", "policy": {"shared": {**PPO, "model": MEMORY}}},
    "what is kept": {**TAG, "policy": {"tagger": {"algorithm": "DQN", "learning_starts": 0, "n_step": 3,
                                                  "prioritized": True, "replay_ratio": 0.01,
                                                  "buffer_size": 40_000}, "runner": {}}},
    "what is new": {**MANY_SPACES,
                    "policy": {"scout": {"algorithm": "NGU", "learning_starts": 0, "replay_ratio": 0.01,
                                         "buffer_size": 40_000, "burn_in": 5, "length": 5, "period": 5,
                                         "episodic_capacity": 10}, "worker": {}}},
    "a team's": {**MANY_SPACES,
                 "policy": {"scout": {"algorithm": "QMIX", "learning_starts": 0, "n_step": 3, "prioritized": True,
                                      "replay_ratio": 0.01, "buffer_size": 40_000}, "worker": {}}},
    "a team's sequences": {**MANY_SPACES,
                           "policy": {"scout": {"algorithm": "QMIX", "learning_starts": 0, "prioritized": True,
                                                "replay_ratio": 0.01, "buffer_size": 40_000, "burn_in": 5, "length": 5,
                                                "period": 5, "model": {"type": "gru"}}, "worker": {}}},
    "a team's critics": {**MANY_SPACES, "policy": {"scout": {"algorithm": "MASAC", "learning_starts": 0,
                                                             "replay_ratio": 0.01, "buffer_size": 40_000},
                                                   "worker": {}}},
    "distributions of what is kept": {**TAG, "policy": {
        "tagger": {"algorithm": "C51", "learning_starts": 0, "n_step": 3, "noisy": True, "dueling": True,
                   "prioritized": True, "replay_ratio": 0.01, "buffer_size": 40_000},
        "runner": {"algorithm": "IQN", "learning_starts": 0, "replay_ratio": 0.01, "buffer_size": 40_000,
                   "epsilon": 0.4, "epsilon_per_env": True}}},
    "critics that play no part": {**MANY_SPACES,
                                  "policy": {"scout": {"algorithm": "SAC", "learning_starts": 0, "replay_ratio": 0.01},
                                             "worker": {"algorithm": "TD3", "learning_starts": 0,
                                                        "replay_ratio": 0.01}}},
    "what is used a few times": {**MANY_SPACES, "policy": {
        "scout": {"algorithm": "OFFPPO", "num_epochs": 2, "num_minibatches": 2, "target_kl": 0.1, **STATISTICS},
        "worker": {"algorithm": "OFFPPO", "num_minibatches": 2}}},
    "critics of returns' probabilities": {"name": "pendulum", "policy": {
        "shared": {"algorithm": "TD3", "learning_starts": 0, "replay_ratio": 0.01, "distributional": True}}},
    "draws of an update": {"name": "pendulum",
                           "policy": {"shared": {"algorithm": "SAC", "learning_starts": 0, "replay_ratio": 0.01}}},
    "fused kernels": {
        "name": "cartpole",
        "trainer": {"precision": "bf16"},
        "policy": {"shared": {**PPO, **STATISTICS, "model": {"fc_dims": [16], "shared_trunk": False}}},
    },
}  # fmt: skip
ACTIVITIES = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]


@pytest.fixture
def make_trainer(tmp_path, monkeypatch) -> Callable[..., Trainer]:
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "warpdrive" / "envs")

    def make(run: str, device: str, graphs: bool = False) -> Trainer:
        trainer = {"num_envs": 64, "train_batch_size": 64 * 20, "total_timesteps": 10**6, "device": device}
        saving = {"basedir": str(tmp_path)}
        settings = {**RUNS[run].get("trainer", {}), **trainer, "cuda_graphs": graphs}
        return Trainer(read_config({**RUNS[run], "trainer": settings, "saving": saving}, allow_import=True))

    return make


def warm_up(trainer: Trainer, graphs: bool) -> None:
    """Until each iteration is as the next."""
    for _ in range(WARM_UP + 1):
        trainer.iterate()
    while not trainer._look.is_over:  # once more where episodes first end, see WrittenLook
        trainer.iterate()
    graphs_of_policies = [one for phases in trainer.phases.values() for one in phases.values()]
    captured = [one.is_captured for one in (trainer._play, *graphs_of_policies)]
    assert captured == [graphs] * len(captured)
    torch.cuda.synchronize()


def copies_in(profile: torch.profiler.profile) -> list[str]:
    """Between host and device."""
    return [event.name for event in profile.events() if "HtoD" in event.name or "DtoH" in event.name]


@needs_gpu
@pytest.mark.parametrize("graphs", [False, True], ids=["launch by launch", "graphs"])
@pytest.mark.parametrize("run", RUNS)
def test_an_iteration_never_waits_for_the_device_and_its_trace_shows_no_copy(make_trainer, run, graphs):
    trainer = make_trainer(run, "cuda", graphs)
    warm_up(trainer, graphs)
    torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in range(3):
            trainer.iterate()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    trainer.backend.synchronize()
    trainer.guard.raise_if_halted(trainer.iteration)
    with torch.profiler.profile(activities=ACTIVITIES) as profile:
        for _ in range(3):
            trainer.iterate()
        torch.cuda.synchronize()
    steps = (f"{trainer.env.env.name}_step", "step_and_restart")  # apart, or in one launch
    is_ours = [any(step in event.name for step in steps) for event in profile.events()]
    assert any(is_ours), "it saw no kernel of ours: it proves nothing"
    assert copies_in(profile) == []


def learner_of(backend: Any) -> tuple[Callable[[], None], ReplayStore]:
    """An update of a network by a prioritised batch, and the new priorities of what was drawn; a store that is full."""
    fields = [Field("observation", (4,), extra=1), Field("action", dtype=torch.int32), Field("reward")]
    num_envs, num_steps, device = 64, 8, backend.device
    store = ReplayStore(fields, num_envs, 1, num_steps, 4 * num_steps * num_envs, backend, seed=1)
    table = store.table("per", Prioritized(), Transitions(n_step=3))
    window = {
        "observation": torch.randn(num_steps + 1, num_envs, 1, 4, device=device),
        "final_observation": torch.zeros(1, num_envs, 1, 4, device=device),
        "action": torch.zeros(num_steps, num_envs, 1, dtype=torch.int32, device=device),
        "reward": torch.randn(num_steps, num_envs, 1, device=device),
        "terminated": torch.zeros(num_steps, num_envs, dtype=torch.bool, device=device),
        "truncated": torch.zeros(num_steps, num_envs, dtype=torch.bool, device=device),
    }
    for _ in range(5):
        store.add(window)
    draw, batch = table.prepare_draw(128)
    error, network = torch.zeros(128, device=device), torch.nn.Linear(4, 2).to(device)
    update, add = table.prepare_update(batch.index, error), store.prepare_add(window)

    def learn() -> None:
        add()
        draw()
        with torch.no_grad():
            q = network(batch.observation["observation"]).gather(1, batch.action.view(-1, 1)).squeeze(1)
            best = network(batch.next_observation["observation"]).max(1).values
            error.copy_((q - batch.reward - batch.discount * best).abs() * batch.weight)
        update()

    return learn, store


@needs_gpu
@pytest.mark.parametrize("graphs", [False, True], ids=["launch by launch", "graphs"])
def test_a_thousand_prioritised_updates_allocate_copy_and_wait_for_nothing(graphs):
    backend = choose_backend("cuda")
    learn, _ = learner_of(backend)
    learn = Graphed(learn, backend, is_enabled=graphs)
    for _ in range(WARM_UP + 2):
        learn()
    torch.cuda.synchronize()
    held, segments = (torch.cuda.memory_stats()[f"{name}.all.current"] for name in ("allocated_bytes", "segment"))
    torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in range(3):
            learn()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    with torch.profiler.profile(activities=ACTIVITIES) as profile:
        for _ in range(1_000):
            learn()
        waits = Counter(torch.cuda.memory_stats())["num_sync_all_streams"]
        torch.cuda.synchronize()
    assert waits == 0
    names = Counter(event.name for event in profile.events())
    assert sum(number for name, number in names.items() if "replay_draw" in name) >= 1_000, "it saw no draw of ours"
    assert copies_in(profile) == []
    assert [name for name in names if name.startswith(("cudaMalloc", "cuMemAlloc", "cudaFree", "cuMemFree"))] == []
    stats = torch.cuda.memory_stats()
    assert (stats["allocated_bytes.all.current"], stats["segment.all.current"]) == (held, segments)


def test_a_prioritised_update_asks_for_no_number_and_brings_none(device):
    """What can be known of the same without a GPU, in a few of them."""
    learn, store = learner_of(choose_backend(device))
    learn()
    places = [one.data_ptr() for one in store.state().values()]
    with Asking() as asking:
        for _ in range(20):
            learn()
    assert asking.num_operations > 100 and +asking.found == {}
    assert [one.data_ptr() for one in store.state().values()] == places


@needs_gpu
def test_a_report_pulls_one_tensor(make_trainer):
    trainer = make_trainer("two policies", "cuda")
    trainer.metrics.begin_report(trainer.iterate()).read()[0]
    figures = trainer.iterate()
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=ACTIVITIES) as profile:
        trainer.metrics.begin_report(figures).read()[0]
    (copy,) = copies_in(profile)
    assert "DtoH" in copy


@needs_gpu
def test_both_devices_start_from_the_same_networks(make_trainer):
    on_gpu, on_cpu = (
        make_trainer("two policies", device).policies["tagger"].state_dict() for device in ("cuda", "cpu")
    )
    assert all(torch.equal(tensor.cpu(), on_cpu[name]) for name, tensor in on_gpu.items())


class Asking(TorchDispatchMode):
    """Counts the operations that make the host wait for numbers, or copy some to the device, were it a GPU.

    A number from a tensor (item, bool, an if), places where a mask is true, a tensor made of a list, or a tensor on
    its way from one device to another.
    """

    WAITING = ("_local_scalar_dense", "nonzero", "masked_select", "is_nonzero", "equal", "unique", "repeat_interleave")
    COPYING = ("lift_fresh",)

    def __init__(self) -> None:
        super().__init__()
        self.found: Counter[str] = Counter()
        self.num_operations = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = function.overloadpacket.__name__
        self.num_operations += 1
        if name.startswith(self.WAITING) or name.startswith(self.COPYING):
            self.found[name] += 1
        if name.startswith(("index", "_index_put")) and len(args) > 1 and isinstance(args[1], list | tuple):
            self.found[f"{name} by a mask"] += any(
                isinstance(one, torch.Tensor) and one.dtype in (torch.bool, torch.uint8) for one in args[1]
            )
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("run", RUNS)
def test_an_iteration_asks_for_no_number_and_brings_none(make_trainer, run):
    """What can be known of it without a GPU: which operations torch is asked for, whatever the device."""
    trainer = make_trainer(run, "cpu")
    trainer.iterate()
    with Asking() as asking:
        trainer.iterate()
    assert asking.num_operations > 100
    assert +asking.found == {}


@pytest.mark.parametrize(
    "ask",
    [
        lambda x: x.sum().item(),
        lambda x: bool(x.sum() > 0),
        lambda x: x[x > 0],
        lambda x: x.masked_select(x > 0),
        lambda x: torch.tensor([1.0, 2.0]),
        lambda x: x.__setitem__(x > 0, 2 * x),
    ],
    ids=["item", "bool", "mask", "select", "list", "write by mask"],
)
def test_what_asks_is_found(ask):
    with Asking() as asking:
        ask(torch.ones(3))
    assert +asking.found
