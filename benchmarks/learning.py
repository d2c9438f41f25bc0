"""Trains a config with several seeds: mean return of each policy at first and at last, and how long it took.

python benchmarks/learning.py --config tag.yaml --seeds 3 --device cpu
"""

import argparse
import tempfile
import time
from pathlib import Path

from report import ROOT, write_report

from trainers.read_config import read_config
from trainers.trainer import Trainer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", default="tag.yaml", help="a file, or one of examples/")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    path = Path(arguments.config)
    path = path if path.exists() else ROOT / "examples" / path
    runs = []
    for seed in range(1, arguments.seeds + 1):
        with tempfile.TemporaryDirectory() as folder:
            overrides = [("trainer.device", arguments.device), ("trainer.seed", str(seed)), ("saving.basedir", folder)]
            trainer = Trainer(read_config(path, overrides))
            start = time.perf_counter()
            trainer.train()
            returns = {name: pair for name, pair in trainer.run.first_and_last_returns().items() if name}
            runs.append({"seed": seed, "seconds": round(time.perf_counter() - start, 1), "returns": returns})
    least_rise = {name: min(run["returns"][name][1] - run["returns"][name][0] for run in runs) for name in returns}
    results = {
        "config": path.name,
        "env_steps": trainer.env_steps,
        "num_envs": trainer.env.num_envs,
        "runs": runs,
        "least_rise": least_rise,
    }
    write_report(f"learning_{path.stem}_{trainer.backend.name}", trainer.backend, results, arguments.out)


if __name__ == "__main__":
    main()
