"""Our policies against TorchRL's in the same env: who plays better, where sides that trained together do not compare.

python benchmarks/peers/torchrl_ppo.py --config simple_tag.yaml --seed 1 --save peers/1     # and so on for each seed
python benchmarks/peers/cross_play.py --config simple_tag.yaml --peers peers --seeds 3 --device cpu

Trains our policies with the config, seed by seed, and lets each side play TorchRL's other side of the same seed: greedy
episodes, 500 a pairing. Writes mean returns over the seeds, with their standard errors.
"""

import argparse
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np
from report import ROOT, write_report

from trainers.checkpoint import load_tensors
from trainers.evaluation import cross_play
from trainers.policies.policy import make_policy
from trainers.read_config import read_config
from trainers.trainer import Trainer
from warpdrive.env import load_env

import torch  # isort: skip  (after trainers, which tells torch's threads to sleep while they wait)

OURS, THEIRS = "ours", "torchrl"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", default="simple_tag.yaml", help="one of examples/")
    parser.add_argument("--peers", type=Path, required=True, help="folder with a folder of actors for each seed")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    found: dict[str, dict[str, list[float]]] = {}
    for seed in range(1, arguments.seeds + 1):
        with tempfile.TemporaryDirectory() as folder:
            overrides = [("trainer.device", arguments.device), ("trainer.seed", str(seed)), ("saving.basedir", folder)]
            trainer = Trainer(read_config(ROOT / "examples" / arguments.config, overrides))
            trainer.train()
        env = load_env(trainer.config.name, trainer.config.env)
        candidates = {}
        for name, policy in trainer.policies.items():
            peer = make_policy(env, name, trainer.config.policy[name], torch.Generator().manual_seed(0))
            tensors = load_tensors(arguments.peers / str(seed) / f"{name}.safetensors")
            lacking, unknown = peer.load_state_dict(tensors, strict=False)
            assert not unknown and all("critic" in name or "value" in name for name in lacking), (lacking, unknown)
            candidates[name] = {OURS: policy, THEIRS: peer.to(trainer.env.device)}
        for words, score in cross_play(env, candidates, 500, 1_000_003, trainer.backend, greedy=True).items():
            pairing = ", ".join(f"{word} {name}" for word, name in zip(words, candidates, strict=True))
            for name in candidates:
                found.setdefault(pairing, {}).setdefault(name, []).append(score.mean_of(name))
    results = {
        pairing: {
            name: {
                "mean": float(np.mean(values)),
                "standard_error": float(np.std(values, ddof=1) / len(values) ** 0.5) if len(values) > 1 else None,
                "of_each_seed": values,
            }
            for name, values in ones.items()
        }
        for pairing, ones in found.items()
    }
    name = f"cross_play_torchrl_{Path(arguments.config).stem}_{trainer.backend.name}"
    write_report(name, trainer.backend, {"config": arguments.config, "pairings": results}, arguments.out)


if __name__ == "__main__":
    main()
