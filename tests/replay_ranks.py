"""Stores of two ranks: `python tests/replay_ranks.py OUT` by each rank that a launcher starts; see test_ranks.py.

OUT/one holds what one rank saved. Written are OUT/<run>.<rank>.safetensors: a policy, and what a store holds.
"""

import copy
import errno
import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from safetensors.torch import save_file
from trainers_runs import changed, config_of

from trainers.errors import NotSavedError
from trainers.experience.field import Field
from trainers.learning.distributed import world
from trainers.replay import chunks
from trainers.replay import store as of_store
from trainers.replay.handover import Handover
from trainers.replay.storage import bytes_of
from trainers.replay.store import ReplayStore
from trainers.run.checkpoint import load_checkpoint
from trainers.run.checks import check_ranks_agree
from trainers.settings.config import Config
from trainers.settings.read_config import read_config
from trainers.trainer import Trainer
from warpdrive.backends import choose_backend
from warpdrive.errors import ShapeError

ITERATIONS = 8
NUM_STEPS = 5


def config_for(
    run: str, num_ranks: int, basedir: Path, device: str, iterations: int = ITERATIONS, **changes: object
) -> Config:
    """8 envs of 2 taggers, 5 steps an iteration. "all there is": DQN learns from the 9 steps of a full ring at once."""
    sizes = {"num_envs": 8, "train_batch_size": 40, "total_timesteps": 40 * iterations, "device": device, "seed": 3}
    saving = {"basedir": str(basedir), "metrics_log_freq": 4, "model_params_save_freq": ITERATIONS // 2}
    config = copy.deepcopy(config_of("dqn", {**sizes, "num_gpus": num_ranks}, saving))
    config["env"] = {"num_taggers": 2, "grid_length": 4, "episode_length": 7}
    config["policy"]["runner"] = {"to_train": False}
    if run == "tiers":
        config["policy"]["tagger"] |= {"buffer_size": 480, "prioritized": False}
    if run == "all there is":
        sizes = {"buffer_size": 144, "batch_size": 144, "learning_starts": 80}
        config["policy"]["tagger"] |= {**sizes, "prioritized": False}
    return read_config(changed(config, **changes))


def held_by(trainer: Trainer) -> dict[str, torch.Tensor]:
    """Of the one policy that replays: its parameters and its store."""
    ((name, store),) = trainer.stores.items()
    policy = name.removeprefix("replay.")
    found = {f"policy.{key}": tensor for key, tensor in trainer.policies[policy].state_dict().items()}
    found |= {f"store.{key}": tensor for key, tensor in store.state().items()}
    return {key: tensor.cpu().clone() for key, tensor in found.items()}


def windows_go_from_one_rank_to_the_store_of_the_other(device: str) -> None:
    """Of 6 windows, each with its number: rank 0 plays, rank 1 keeps, and one is under way while one is taken."""
    rank, rows = world().rank, (4, 2)
    backend = choose_backend(device=device if device == "cpu" else f"cuda:{rank}")
    ends = {name: torch.zeros(rows, dtype=torch.bool, device=backend.device) for name in ("terminated", "truncated")}
    mask = tuple(torch.zeros(*size, 1, 3, dtype=torch.bool, device=backend.device) for size in (rows, rows[1:]))
    window = {"reward": torch.zeros(*rows, 1, device=backend.device), "mask": mask, **ends}
    handover, kept = Handover(window, source=0), []
    fields = [Field("reward"), Field("mask", (3,), torch.bool, extra=1)]
    store = ReplayStore(fields, 2, 1, 4, capacity=32, backend=backend)
    adds = [store.prepare_add(one) for one in handover.windows]

    def play(number: int) -> None:
        if rank == 0:
            window["reward"].fill_(number)
            window["mask"][1].fill_(number % 2 == 1)

    play(0)
    handover.put()
    for number in range(1, 7):
        play(number)
        handover.put()
        place = handover.take()
        if rank == 1:
            adds[place]()
            store.count_window()
            kept.append(store.tensors["reward"][(number - 1) * 4 % 16, 0, 0].item())
            head = store.tensors["mask"][number * 4 % 16]
            assert head.all() if number % 2 == 0 else not head.any()
    handover.put()
    try:
        handover.put()
    except ShapeError as error:
        assert "2 windows are under way" in str(error)
    else:
        raise AssertionError("a third window was under way")
    assert kept == ([0, 1, 2, 3, 4, 5] if rank == 1 else []), kept


def nothing_is_saved_where_one_rank_cannot_write(trainer: Trainer) -> None:
    """The disk of the second is full; all say so."""

    def full(*_) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    before, write = sorted(trainer.run.checkpoints.iterdir()), chunks.write_tensors
    world().gather(None)
    chunks.write_tensors = full if world().rank == 1 else write
    try:
        trainer.save()
    except NotSavedError as error:
        assert "not saved: " in str(error), error
    else:
        raise AssertionError("it was saved")
    chunks.write_tensors = write
    world().gather(None)
    assert sorted(trainer.run.checkpoints.iterdir()) == before


def all_go_back_where_one_finds_a_damaged_file(run: Path, folder: Path, device: str) -> None:
    """The newest of the second rank's, which only that rank reads."""
    if world().rank == 0:
        newest = max((run / "checkpoints" / chunks.REPLAY).glob("*.rank_1.*"))
        content = newest.read_bytes()
        newest.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    world().gather(None)
    gone_back = Trainer(config_for("dqn", 2, folder / "two", device), resume=run)
    assert gone_back.iteration == ITERATIONS // 2, gone_back.iteration


def tiers_are_each_ranks_own(folder: Path, device: str) -> dict[str, object]:
    """Bits are those of stores that are all on the device; a run goes on with them; files lie apart."""
    whole = Trainer(config_for("tiers", 2, folder / "tiers", device, 2 * ITERATIONS), "device")
    whole.train()
    tiers = {"policy__tagger__tiers": tiers_of(whole)}
    stopped = Trainer(config_for("tiers", 2, folder / "tiers", device, ITERATIONS + 3, **tiers), "tiers")
    stopped.train()
    more = config_for("tiers", 2, folder / "tiers", device, 2 * ITERATIONS, **tiers)
    resumed = Trainer(more, resume=stopped.run.path)
    resumed.train()
    files = resumed.stores["replay.tagger"].tiered.files
    assert files.bytes_read and files.folder.name == f"rank_{world().rank}", files
    assert len(list(files.folder.iterdir())) >= len(files.parts) > 0
    assert_same_policy(whole, resumed)
    return tiers["policy__tagger__tiers"]


def tiers_of(whole: Trainer) -> dict[str, object]:
    """Three windows on the device, the others in files."""
    layout = whole.stores["replay.tagger"].layout
    of_rings, small = layout.sizes()
    fixed = bytes_of({"done": of_rings.pop("done"), **small})
    size = fixed + 3 * NUM_STEPS * bytes_of(of_rings) // layout.num_slots
    return {"device": f"{size}B", "file": "1GB", "ahead": 2}


def what_one_rank_lost_is_missing_in_its_part_of_a_checkpoint_alone(
    tiers: dict[str, object], folder: Path, device: str
) -> None:
    """A file of the second's tier is rewritten before a checkpoint has its steps: who goes on does without it."""
    changes = {"policy__tagger__tiers": tiers, "saving__model_params_save_freq": ITERATIONS + 1}
    config = config_for("tiers", 2, folder / "lost", device, ITERATIONS + 4, **changes)
    live = Trainer(config, "lost")
    for _ in range(ITERATIONS):
        live.iterate()
    files = live.stores["replay.tagger"].tiered.files
    files.flush()
    part = files.parts[2]
    if world().rank == 1:
        path = files.folder / part.name
        path.write_bytes(bytes([one ^ 4 for one in path.read_bytes()]))
    live.train()
    place = live.run.checkpoints / f"step_{40 * (ITERATIONS + 1):012d}"
    first, second = (load_checkpoint(place).replay[name] for name in ("replay.tagger", "replay.tagger.rank_1"))
    assert first.first <= part.begin, first
    assert (first.gaps, second.gaps) == ((), ((part.begin, part.end),)), (first, second)
    resumed = Trainer(config, resume=place)
    resumed.train()
    assert_same_policy(live, resumed)


def assert_same_policy(one: Trainer, other: Trainer) -> None:
    there, here = (trainer.policies["tagger"].state_dict() for trainer in (one, other))
    for name, tensor in there.items():
        assert torch.equal(tensor, here[name]), name


def main(out: str, device: str) -> None:
    windows_go_from_one_rank_to_the_store_of_the_other(device)
    folder, rank = Path(out), world().rank

    def keep(run: str, trainer: Trainer) -> None:
        held = {name: one.contiguous() for name, one in held_by(trainer).items()}
        save_file(held, folder / f"{run}.{rank}.safetensors")

    tiers = tiers_are_each_ranks_own(folder, device)
    what_one_rank_lost_is_missing_in_its_part_of_a_checkpoint_alone(tiers, folder, device)
    trainer = Trainer(config_for("all there is", 2, folder / "all", device))
    trainer.train()
    keep("all there is", trainer)
    whole = Trainer(config_for("dqn", 2, folder / "two", device), "whole")
    for _ in range(ITERATIONS // 2):
        whole.iterate()
    keep("half", whole)
    whole.save()
    while whole.iteration < ITERATIONS:
        whole.iterate()
        check_ranks_agree({"policies": whole.policies["tagger"].state_dict()}, whole.world)
    whole.save()
    keep("whole", whole)
    place = whole.run.checkpoints / f"step_{20 * ITERATIONS:012d}"
    resumed = Trainer(config_for("dqn", 2, folder / "two", device), resume=place)
    keep("resumed", resumed)
    while resumed.iteration < ITERATIONS:
        resumed.iterate()
    keep("ended", resumed)
    nothing_is_saved_where_one_rank_cannot_write(resumed)
    resumed.save()
    all_go_back_where_one_finds_a_damaged_file(resumed.run.path, folder, device)
    of_one = Trainer(config_for("dqn", 2, folder / "one", device), resume=folder / "one" / "run")
    keep("shared out", of_one)
    of_one.iterate()
    world().end(0)


if __name__ == "__main__":
    of_store.CHUNK_BYTES = 1  # a file an iteration
    from trainers.learning.distributed import join
    from trainers.settings.config import TrainerConfig

    join(TrainerConfig(num_gpus=2, device=sys.argv[2]))
    main(*sys.argv[1:])
