"""Every algorithm on two ranks: `python tests/algorithm_ranks.py OUT SHOWN NAME ...` by each rank that is launched.

See trainers/test_every_algorithm.py. SHOWN holds a dataset for R2D3. Written are OUT/<name>.json, hashes of a run's
last checkpoint and of the same after it went on from halfway; and OUT/<name>.<rank>.safetensors, what
`learned_from_all` gives.
"""

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent / "trainers"))
sys.path.insert(0, str(Path(__file__).resolve().parent / "warpdrive" / "envs"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from safetensors.torch import save_file
from test_every_algorithm import WHO_REPLAYS, config_of, hashes, learned_from_all

from trainers.learning.distributed import join, world
from trainers.run import checkpoint
from trainers.settings.config import TrainerConfig
from trainers.settings.read_config import read_config
from trainers.trainer import Trainer


def main(out: str, shown_in: str, *names: str) -> None:
    folder = Path(out)
    for name in names:
        config = config_of(name, folder / "runs", shown_in)
        config["trainer"]["num_gpus"] = 2
        run = Trainer(read_config(config), name)
        run.train()
        if name == "R2D3":
            first, second = world().gather(run.algorithms["tagger"]._demos.index.tolist())
            assert first != second
        halfway, end = checkpoint.list_checkpoints(run.run.checkpoints)[-2:]
        found = world().first(lambda end=end: hashes(end))
        Trainer(read_config(config), resume=halfway).train()
        if world().rank == 0:
            (folder / f"{name}.json").write_text(json.dumps([found, hashes(end)]))
        if name in WHO_REPLAYS:
            learned = learned_from_all(name, 2, folder / "all", shown_in)
            save_file(learned, folder / f"{name}.{world().rank}.safetensors")
    world().end(0)


if __name__ == "__main__":
    join(TrainerConfig(num_gpus=2, device="cpu"))
    main(*sys.argv[1:])
