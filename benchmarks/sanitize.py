"""Plays every shipped env and trains a little on the GPU, for NVIDIA's compute-sanitizer to watch.

for tool in memcheck racecheck initcheck "synccheck --num-cuda-barriers 4096"; do
    compute-sanitizer --tool $tool --error-exitcode 9 python benchmarks/sanitize.py
done

Names after it pick parts: `python benchmarks/sanitize.py envs wide`; `--device cpu` shows that they run. The kernels of
128 and 256 wide networks have memory barriers of their own, of which synccheck by itself has room for too few, and then
stops them.
"""

import argparse
import sys
import tempfile
from contextlib import nullcontext
from pathlib import Path
from unittest import mock

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch
from report import commit

from trainers.fused import plan
from trainers.fused.cell import CellPlan
from trainers.settings.read_config import read_config
from trainers.trainer import Trainer
from warpdrive.backends import choose_backend
from warpdrive.env import list_envs, load_env
from warpdrive.sampler import Sampler
from warpdrive.testing import run_trace

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"
CONFIGS = {
    "tag_gridworld": [
        {"num_taggers": 4, "grid_length": 3, "episode_length": 5},
        {"num_taggers": 70, "grid_length": 9, "episode_length": 5, "use_full_observation": False},
    ],
    "tag_continuous": [
        {"num_taggers": 2, "num_runners": 4, "episode_length": 5, "tagging_distance": 0.3},
        {"num_taggers": 10, "num_runners": 60, "episode_length": 5, "use_full_observation": False,
         "num_other_agents_observed": 10},
    ],
}  # fmt: skip


def few(*policies: str, **model: str) -> dict[str, str]:
    """9 envs and 20 steps, an epoch of two minibatches, by fused kernels; `model` is that of these policies."""
    found = {"trainer.num_envs": "9", "trainer.train_batch_size": "180", "trainer.precision": "bf16"}
    for name in policies:
        found |= {f"policy.{name}.num_epochs": "1", f"policy.{name}.num_minibatches": "2"}
        found |= {f"policy.{name}.model.{key}": value for key, value in model.items()}
    return found


def replayed(**changes: str) -> dict[str, str]:
    """9 envs, 4 steps and 3 updates of 100 transitions an iteration, by fused kernels."""
    found = {"trainer.num_envs": "9", "trainer.train_batch_size": "36", "trainer.precision": "bf16"}
    own = {"batch_size": "100", "buffer_size": "1000", "learning_starts": "0", "replay_ratio": "0.09"}
    return found | {f"policy.agent.{key}": value for key, value in {**own, **changes}.items()}


GRU = {"type": "gru", "fc_dims": "[24]", "memory_size": "32", "sequence_length": "5"}
RUNS = {
    "continuous actions": ("pendulum.yaml", {"trainer.num_envs": "9", "trainer.train_batch_size": "1800",
        "policy.agent.num_epochs": "1"}),
    "normalised": ("tag_continuous_ppo.yaml", {"trainer.num_envs": "9", "trainer.train_batch_size": "180",
        "policy.tagger.normalize_reward": "true", "policy.runner.normalize_observation": "true"}),
    "narrow": ("tag_gridworld.yaml", {"trainer.num_envs": "40", "trainer.train_batch_size": "200",
        "trainer.precision": "bf16"}),
    "ppo": ("cartpole.yaml", {"trainer.num_envs": "64", "trainer.train_batch_size": "512",
        "trainer.precision": "bf16", "policy.agent.num_epochs": "2", "policy.agent.num_minibatches": "2"}),
    "wide": ("tag_continuous.yaml", {"trainer.num_envs": "20", "trainer.train_batch_size": "100",
        "trainer.precision": "bf16", "env.num_taggers": "3", "env.num_runners": "10"}),
    "critic": ("simple_tag.yaml", {"trainer.num_envs": "30", "trainer.train_batch_size": "300",
        "trainer.precision": "bf16", "policy.adversary.model.fc_dims": "[256, 256]",
        "policy.agent.model.fc_dims": "[128, 128]", "policy.adversary.num_epochs": "1"}),
    "central critic": ("tag_continuous_ppo.yaml", {"trainer.num_envs": "9", "trainer.train_batch_size": "180",
        "trainer.precision": "bf16", "policy.tagger.agent_id": "true", "policy.runner.algorithm": "MAPPO",
        "policy.runner.num_epochs": "1"}),
    "layers": ("simple_tag.yaml", {**few("adversary", "agent", fc_dims="[70, 300, 17]"),
        "policy.agent.model.fc_dims": "[130, 256, 512, 70]"}),
    "layers by warpgroups": ("simple_tag.yaml", few("adversary", "agent", fc_dims="[256, 256, 256]")),
    "layer norms": ("simple_tag.yaml", {**few("adversary", "agent", layer_norm="true"),
        "policy.agent.model.layer_norm": "all"}),
    "gru": ("simple_spread.yaml", few("agent", **GRU, shared_trunk="true")),
    "two grus": ("simple_spread_mappo.yaml", few("agent", **{**GRU, "memory_size": "128"})),
    "gru by more columns": ("simple_spread.yaml", few(
        "agent", **{**GRU, "fc_dims": "[128]", "memory_size": "128"}, shared_trunk="true")),
    "gru by columns": ("simple_spread.yaml", few(
        "agent", **{**GRU, "fc_dims": "[128]", "memory_size": "128"}, shared_trunk="true")),
    "gaussian": ("pendulum.yaml", few("agent", squash_actions="true")),
    "wide gaussian": ("pendulum.yaml", few("agent", fc_dims="[256, 256]")),
    "gaussian gru": ("pendulum.yaml", few("agent", **GRU)),
    "dqn": ("cartpole_dqn.yaml", replayed(prioritized="true")),
    "dqn_in_rollouts": (
        "cartpole_dqn.yaml", replayed(updates_in_rollouts="true", **{"model.fc_dims": "[120, 84]"}),
    ),
    "images": ("minatar_breakout_pqn.yaml", {"trainer.num_envs": "47", "trainer.train_batch_size": "2256",
        "trainer.precision": "bf16", "policy.agent.num_epochs": "1", "policy.agent.num_minibatches": "1"}),
    "dqn_images": ("minatar_breakout_dqn.yaml", replayed(target_update_freq="2")),
    "dqn_layers": ("cartpole_dqn.yaml", replayed(**{"model.fc_dims": "[24, 16, 12]", "model.layer_norm": "all"})),
    "sac": ("pendulum_sac.yaml", replayed(n_step="3")),
    "sac by warpgroups": (
        "pendulum_sac.yaml", replayed(batch_size="2600", buffer_size="3000", **{"model.fc_dims": "[256, 256]"}),
    ),
    "td3": ("pendulum_td3.yaml", {**replayed(prioritized="true", policy_delay="1"), "trainer.precision": "bf16"}),
    "sequences": ("memory_len_r2d2.yaml", replayed(
        batch_size="20", replay_ratio="0.03", burn_in="2", length="3", period="4", buffer_size="2000",
        **{"model.memory_size": "32"})),
    "wide sequences": ("memory_len_r2d2.yaml", replayed(
        batch_size="20", replay_ratio="0.03", burn_in="2", length="3", period="4", buffer_size="2000",
        **{"model.memory_size": "512"})),
    "team sequences": ("simple_spread_qmix.yaml", replayed(
        batch_size="20", replay_ratio="0.03", burn_in="0", length="5", period="5", buffer_size="2000",
        **{"model.type": "gru", "model.fc_dims": "[24]", "model.memory_size": "256"})),
    "sources": (None, {**few("agent", fc_dims="[32, 16]"), "env.kind": "mixed", "policy.agent.agent_id": "true"}),
}  # fmt: skip
"""Name -> config, None for OF_KINDS, and what is changed in it, to be done soon. Together they launch every kernel of
the trainers."""
OF_KINDS = {
    "name": "observation_kinds:Kinds",
    "trainer": {"total_timesteps": 10**6},
    "policy": {"agent": {"algorithm": "MAPPO"}},
}
"""The env of observation_kinds.py: agents who see bytes, floats and small numbers, and a critic that sees all."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="part", help=f"of: envs, sampler, {', '.join(RUNS)}; else all")
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument(
        "--without-cublas",
        action="store_true",
        help="multiply on the host: racecheck fails within cuBLAS, initcheck does not see all that it writes",
    )
    arguments = parser.parse_args()
    print(f"commit {commit()}: {' '.join(sys.argv)}", flush=True)
    parts: list[str] = arguments.parts or ["envs", "sampler", *RUNS]
    if arguments.without_cublas:
        torch.mm = multiply_on_the_host
    if arguments.device == "cpu":
        plan.RUNS_ON_CPU = True
    for part in parts:
        if part == "envs":
            play_envs(arguments.device)
        elif part == "sampler":
            draw_actions(arguments.device)
        elif part in RUNS:
            with mock.patch.object(CellPlan, "columns", 4) if part == "gru by more columns" else nullcontext():
                train(*RUNS[part], arguments.device)  # as if sequences were many
        else:
            parser.error(f"there is no part '{part}': envs, sampler, {', '.join(RUNS)}")
        print(f"done: {part}", flush=True)


def play_envs(device: str) -> None:
    for name in list_envs():
        for config in CONFIGS.get(name, [{}]):
            run_trace(load_env(name, config), choose_backend(device=device), num_envs=9, num_steps=12)
            print(f"played {name} {config}", flush=True)


def draw_actions(device: str) -> None:
    from warpdrive.data_manager import DataManager

    backend = choose_backend(device=device)
    sampler = Sampler(DataManager(backend.device), 50, range(1, 4), 5, (5, 3), backend)
    logits = torch.zeros(50, 3, 8, device=backend.device)
    mask = torch.ones(50, 3, 8, dtype=torch.bool, device=backend.device)
    for greedy in (False, True):
        sampler.sample(logits, greedy=greedy)
        sampler.sample(logits, mask=mask, greedy=greedy)
    backend.synchronize()


def train(config: str | None, changes: dict[str, str], device: str) -> None:
    """Two iterations, launch by launch."""
    with tempfile.TemporaryDirectory() as folder:
        overrides = {"trainer.device": device, "trainer.cuda_graphs": "false", "saving.basedir": folder, **changes}
        found = OF_KINDS if config is None else EXAMPLES / config
        trainer = Trainer(read_config(found, list(overrides.items()), allow_import=True))
        for name, group in trainer.rollout.groups.items():
            print(f"{trainer.config.name}, policy {name}: {group.actor.path}", flush=True)
        for _ in range(2):
            figures = trainer.iterate()
        trainer.metrics.begin_report(figures).read()[0]
        trainer.guard.raise_if_halted(trainer.iteration)


def multiply_on_the_host(
    left: torch.Tensor, right: torch.Tensor, *, out: torch.Tensor | None = None, **_: torch.dtype
) -> torch.Tensor:
    product = left.cpu().float() @ right.cpu().float()
    return product.to(left) if out is None else out.copy_(product)


if __name__ == "__main__":
    main()
