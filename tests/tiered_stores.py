"""Stores larger than their device: made small, saved, loaded and compared."""

import torch
from replay_oracle import Kept, Played

from trainers.replay import chunks
from trainers.replay import store as store_module
from trainers.replay.chunks import REPLAY, Chunks
from trainers.replay.sequences import Sequences
from trainers.replay.tiers import Device, File, Pinned
from trainers.replay.windows import Transitions
from trainers.run import checkpoint

NAME = "replay.shared"
WINDOW = Transitions(n_step=2, stack=2, gamma=0.5)
ROWS = Sequences(3, 2, 2, axis="env")
NUM_WINDOWS, HOT, WARM = 24, 3, 3
"""Of 4 steps of 3 envs: an eighth of the store is on the device; where there are files, as much in host memory."""


def make(backend, folder=None, admit="all", every=0, tiers=True, warm=WARM, **more) -> Kept:
    played = Played(3, 2, 4, seed=4, ends=0.3, every=every)
    layout = store_module.Layout.of(played.fields(), 3, 2, 4, NUM_WINDOWS * 12, 3)
    of_rings, small = layout.sizes()
    done = store_module.bytes_of({"done": of_rings.pop("done")})
    window = store_module.bytes_of(of_rings) // NUM_WINDOWS
    device = Device(done + store_module.bytes_of(small) + window * HOT)
    below = [Pinned("1GB")] if folder is None else [Pinned(window * warm), File(str(folder), "1GB", admit)]
    tiers = {"tiers": [device, *below]} if tiers else {}
    return Kept(played, NUM_WINDOWS, backend, episode_length=3, **tiers, **more)


def of_batch(batch) -> dict[str, torch.Tensor]:
    found = {}
    for name, one in vars(batch).items():
        found |= one if isinstance(one, dict) else {name: one}
        if name in ("observation", "next_observation"):
            found |= {f"{name}.{part}": tensor for part, tensor in one.items()}
    return {name: one.clone().nan_to_num() for name, one in found.items() if isinstance(one, torch.Tensor)}


def assert_same(ours, theirs):
    assert ours.keys() == theirs.keys()
    for name, one in ours.items():
        assert torch.equal(one, theirs[name]), name


def drawn(table, times) -> dict[str, torch.Tensor]:
    """What so many batches of 9 have, by name."""
    found = [of_batch(table.draw(9)) for _ in range(times)]
    return {name: torch.cat([one[name].cpu() for one in found]) for name in found[0]}


def save(folder, kept: Kept, files: Chunks):
    return checkpoint.begin_checkpoint(folder, kept.store.num_steps_added, files.small(), {}, {}, 2, chunks=files)()


def shared(kept: Kept, folder) -> Chunks:
    """Its files are those of checkpoints in the folder."""
    kept.store.tiered.files.files_in(folder / REPLAY, NAME, is_shared=True)
    return Chunks({NAME: kept.store})


def load(place, kept: Kept, folder=None) -> Chunks:
    files, saved = shared(kept, folder or place.parent), checkpoint.load_checkpoint(place)
    chunks.check_sums(place.parent, saved.replay[NAME])
    files.check_fits(place.parent, saved.replay)
    files.restore(place.parent, saved.replay, are_ours=folder is None)
    for name, tensors in files.small(saved.replay).items():
        checkpoint.restore_tensors(tensors, saved.tensors[name], place)
    kept.store.restored()
    return files


def bits(kept: Kept) -> dict[str, torch.Tensor]:
    """Of all steps that are whole."""
    head = kept.store.num_steps_added
    first = kept.store.tiered.division.first(head)
    middle = max(first, head // 96 * 96)
    parts = [kept.store.tiered.rows(*span) for span in ((first, middle), (middle, head)) if span[0] < span[1]]
    return {name: torch.cat([one[name].cpu() for one in parts]) for name in parts[0]}
