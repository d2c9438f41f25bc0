"""Two ranks keep, draw, save and go on as one would: each with the steps of its envs."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from launched_ranks import DEVICES
from replay_ranks import ITERATIONS, config_for, held_by
from safetensors.torch import load_file

from trainers.cli import main
from trainers.learning.launcher import launch
from trainers.replay import store as of_store
from trainers.replay.chunks import REPLAY
from trainers.replay.dataset import read_dataset
from trainers.replay.selectors import Uniform
from trainers.replay.windows import Transitions
from trainers.run.checkpoint import load_checkpoint
from trainers.settings.config import TrainerConfig
from trainers.trainer import Trainer
from warpdrive.backends import choose_backend
from warpdrive.errors import CheckpointError, ConfigError

pytestmark = pytest.mark.alone

SCRIPT = str(Path(__file__).parents[2] / "replay_ranks.py")
NAME = "replay.tagger"


@pytest.fixture(scope="module", params=DEVICES)
def made(request, tmp_path_factory):
    """A folder with what replay_ranks.py writes; and what one rank held at the end of each run."""
    folder, device = tmp_path_factory.mktemp("ranks"), request.param
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(of_store, "CHUNK_BYTES", 1)
        alone = Trainer(config_for("all there is", 1, folder / "all", device))
        alone.train()
        one = Trainer(config_for("dqn", 1, folder / "one", device, ITERATIONS // 2), "run")
        one.train()
        assert launch([SCRIPT, str(folder), device], TrainerConfig(num_gpus=2, device=device)) == 0
        yield folder, device, held_by(alone), held_by(one)


def ranks(folder, run):
    return [load_file(folder / f"{run}.{rank}.safetensors") for rank in range(2)]


def steps_of(held):
    """[slot, E, ...] of a store by name."""
    names = ("observation_0", "action", "reward", "done")
    return {name: held[f"store.{name}"] for name in names}


def leaves_of(held, num_envs):
    """[slot, E, A] of its tree."""
    slots = len(held["store.done"])
    agents = held["store.reward"].shape[2]
    return held["store.table_transitions_leaves"][: slots * num_envs * agents].view(slots, num_envs, agents)


def assert_shared(whole, parts):
    """Of one rank, and of two: the same envs, one after the other; in trees, nodes are the sums of their leaves."""
    for name, tensor in steps_of(whole).items():
        assert torch.equal(tensor, torch.cat([steps_of(part)[name] for part in parts], 1)), name
    for name, axis in (("side_step", 1), ("side_observation_0", 1), ("num_truncated", 0)):
        found = torch.cat([part[f"store.{name}"] for part in parts], axis)
        assert torch.equal(whole[f"store.{name}"], found), name
    assert torch.equal(leaves_of(whole, 8), torch.cat([leaves_of(part, 4) for part in parts], 1))
    for held in (whole, *parts):
        leaves, nodes = held["store.table_transitions_leaves"].long(), held["store.table_transitions_nodes"]
        assert leaves.sum() == nodes.max() > 0
        sums = torch.nn.functional.pad(leaves, (0, -len(leaves) % 16)).view(-1, 16).sum(1)
        assert torch.equal(nodes[: len(sums)], sums)
    assert len({int(held["store.table_transitions_maximum"]) for held in parts}) <= 2


def test_two_ranks_learn_what_one_does_where_a_batch_is_all_there_is(made):
    """144 items in as many equal parts: each rank draws each of its 72 once. The steps they keep are those of one."""
    folder, _, alone, _ = made
    first, second = ranks(folder, "all there is")
    assert all(torch.equal(first[name], second[name]) for name in first if name.startswith("policy."))
    for name, tensor in alone.items():
        if name.startswith("policy."):
            torch.testing.assert_close(first[name], tensor, rtol=1e-4, atol=1e-4)
    whole, parts = steps_of(alone), [steps_of(one) for one in (first, second)]
    for name in ("action", "done"):
        assert torch.equal(whole[name], torch.cat([part[name] for part in parts], 1)), name
    torch.testing.assert_close(whole["observation_0"], torch.cat([part["observation_0"] for part in parts], 1))


def test_a_run_on_two_ranks_goes_on_bit_for_bit(made):
    folder, *_ = made
    for before, after in (("half", "resumed"), ("whole", "ended")):
        for there, here in zip(ranks(folder, before), ranks(folder, after), strict=True):
            assert there.keys() == here.keys()
            assert all(torch.equal(there[name], here[name]) for name in there), before
    first, second = ranks(folder, "whole")
    assert not torch.equal(first["store.reward"], second["store.reward"])  # they keep other envs
    draws = [one["store.table_transitions_draws"].item() >> 32 for one in (first, second)]
    assert draws[0] == draws[1] > 10


def test_each_rank_has_files_of_its_own_and_shares_them_among_checkpoints(made):
    folder, *_ = made
    places = sorted((folder / "two" / "whole" / "checkpoints").glob("step_*"))
    listings = [json.loads((place / "manifest.json").read_text())[REPLAY] for place in places]
    for listing, place in zip(listings, places, strict=True):
        assert sorted(listing) == [NAME, f"{NAME}.rank_1"]
        spans = [[(part["begin"], part["end"]) for part in listing[name]["parts"]] for name in listing]
        assert spans[0] == spans[1]
        assert all((folder / "two" / "whole" / "checkpoints" / REPLAY / part["name"]).is_file() for name in listing
                   for part in listing[name]["parts"])  # fmt: skip
        assert f"{NAME}.rank_1.safetensors" in json.loads((place / "manifest.json").read_text())["files"]


def test_one_rank_goes_on_with_what_two_kept_and_says_so(made, tmp_path, capsys):
    folder, device, *_ = made
    run = shutil.copytree(folder / "two" / "whole", tmp_path / "whole", symlinks=True)
    place = sorted((run / "checkpoints").glob("step_*"))[0]
    resumed = Trainer(config_for("dqn", 1, tmp_path, device), resume=place)
    said = f"changed since then: {NAME} is shared out anew, each env's steps to the rank that plays it\n"
    assert said in capsys.readouterr().out
    assert_shared(held_by(resumed), ranks(folder, "half"))
    resumed.iterate()
    resumed.save()
    saved = load_checkpoint(resumed.run.checkpoints / "last")
    assert list(saved.replay) == [NAME]


def test_two_ranks_go_on_with_what_one_kept(made):
    folder, _, _, one = made
    assert_shared(one, ranks(folder, "shared out"))


def test_a_batch_that_ranks_cannot_share_is_told(tmp_path):
    with pytest.raises(ConfigError, match="15 transitions cannot be shared out evenly over num_gpus: 2. .*: 14 and 16"):
        config_for("dqn", 2, tmp_path, "cpu", policy__tagger__batch_size=15)


def test_tiers_of_another_number_of_ranks_are_refused_and_the_way_out_works(made):
    folder, device, *_ = made
    run = folder / "tiers" / "tiers"
    tiers = {"policy__tagger__tiers": {"device": "20KB", "file": "1GB"}}
    with pytest.raises(CheckpointError, match=rf"{NAME} was of another number of ranks.* Leave num_gpus as it was\."):
        Trainer(config_for("tiers", 1, folder / "tiers", device, 2 * ITERATIONS, **tiers), resume=run)
    resumed = Trainer(config_for("tiers", 1, folder / "tiers", device, 2 * ITERATIONS), resume=run)
    assert resumed.stores[NAME].num_steps_added > 0


def test_a_dataset_of_two_ranks_is_one_of_all_their_envs(made, tmp_path, capsys):
    folder, device, *_ = made
    run = folder / "two" / "whole"
    assert main(["export", str(run), "--format", "dataset", "--output", str(tmp_path / "found")]) == 0
    assert " steps of 8 envs, " in capsys.readouterr().out
    held = read_dataset(tmp_path / "found", choose_backend(device=device))
    parts = [steps_of(one) for one in ranks(folder, "half")]  # what came later was set aside
    first = held.num_steps_added - held.num_slots + 1
    slots = torch.arange(first, held.num_steps_added) % held.num_slots
    for name, tensor in steps_of({f"store.{name}": one.cpu() for name, one in held.state().items()}).items():
        assert torch.equal(tensor[slots], torch.cat([part[name] for part in parts], 1)[slots]), name
    assert held.table("all", Uniform(), Transitions()).draw(16).weight.tolist() == [1.0] * 16
