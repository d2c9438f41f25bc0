"""Updates of DQN in one launch: in full float what torch's path makes, over several iterations."""

import pytest
import torch

from trainers.fused.q_learner import FusedQLearner, QShape
from trainers.settings.read_config import read_config
from trainers.trainer import Trainer

WIDTHS = (20, 9)
BATCH = 40


def make_trainer(folder, device: str, **policy) -> Trainer:
    """2 envs, 4 steps and 4 updates an iteration from the third on; episodes of 3 steps."""
    model = {"fc_dims": list(policy.pop("fc_dims", WIDTHS)), "activation": policy.pop("activation", "relu")}
    own = {"algorithm": "DQN", "buffer_size": 48, "batch_size": BATCH, "learning_starts": 16, "replay_ratio": 0.5}
    config = {
        "name": "acrobot",
        "env": {"episode_length": 3},
        "trainer": {
            "num_envs": 2, "train_batch_size": 8, "total_timesteps": 800, "device": device, "precision": "fp32",
            "cuda_graphs": False,
        },
        "policy": {"agent": {**own, "model": model, **policy}},
        "saving": {"basedir": str(folder)},
    }  # fmt: skip
    return Trainer(read_config(config))


def learn_by_kernel(trainer: Trainer, rows: int = 64, in_cluster: bool = False, element_bytes: int = 4) -> None:
    algorithm = trainer.algorithms["agent"]
    widths = (6, *algorithm.config.model.fc_dims, 3)
    shape = QShape(widths, BATCH, rows, -(-BATCH // rows), in_cluster, element_bytes, threads=128)
    algorithm.learns_by = FusedQLearner(algorithm, shape)
    trainer.phases["agent"] = dict(algorithm.phases())


SWITCHES = {
    "plain": {"target_update_freq": 3},
    "prioritised, 2 steps, copied": {"prioritized": True, "n_step": 2, "tau": 1.0, "target_update_freq": 3},
    "one layer, tanh": {
        "double": False, "huber_delta": None, "clip_grad_norm": False, "fc_dims": (20,), "activation": "tanh",
        "tau": 0.7,
    },
}  # fmt: skip


@pytest.fixture(params=[(64, False), (16, False), (16, True)], ids=["block", "grid", "cluster"])
def team(request, device):
    rows, in_cluster = request.param
    if rows < BATCH and device == "cpu":
        pytest.skip("on a CPU blocks run one after the other")
    if in_cluster and torch.cuda.get_device_capability() < (9, 0):
        pytest.skip("this GPU has no clusters")
    return request.param


@pytest.mark.parametrize("switches", SWITCHES.values(), ids=list(SWITCHES))
def test_updates_are_those_of_torch(switches, team, tmp_path, device):
    by_torch, by_kernel = (make_trainer(tmp_path / name, device, **switches) for name in ("torch", "kernel"))
    learn_by_kernel(by_kernel, *team)
    for _ in range(6):
        theirs, ours = by_torch.iterate()["agent"], by_kernel.iterate()["agent"]
    for name in theirs:
        assert float(ours[name]) == pytest.approx(float(theirs[name]), rel=1e-5, abs=1e-5), name
    ours, theirs = (one.algorithms["agent"] for one in (by_kernel, by_torch))
    assert theirs.optimizer.tensors()["network.trunk.0.weight/step"] == 16
    for state in ("optim", "target"):
        for name, tensor in theirs.state()[state].items():
            torch.testing.assert_close(ours.state()[state][name], tensor, rtol=1e-5, atol=1e-5, msg=name)
    for one, other in zip(ours.policy.parameters(), theirs.policy.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)
    assert torch.equal(ours.table.draws, theirs.table.draws)
    for name, tensor in theirs.table.selector.tensors().items():  # leaves are in units of 2^-20
        torch.testing.assert_close(ours.table.selector.tensors()[name], tensor, rtol=1e-4, atol=8, msg=name)
