"""Published demands as load: multiples are of the rates that were held, in the published proportion."""

import pytest
import replay_demand

from warpdrive.backends import choose_backend

WORDS = ("--device", "cpu", "--smaller", 10_000, "--seconds", 0.01, "--rounds", 1, "--repeats", 1)


def test_a_multiple_is_of_the_rates_that_were_held(run):
    rows = ["SAC, MuJoCo Hopper", "DQN, GoBigger", "QMIX, SMAC 3s5z"]  # nothing, priorities, and sequences
    code, results = run(replay_demand, *WORDS, "--rows", *rows)
    assert code == 0 and list(results["rows"]) == rows
    for name, one in results["rows"].items():
        demand = replay_demand.DEMANDS[name]
        held = min(one["added"] / demand.added, one["drawn"] / demand.drawn)
        assert one["multiple"] == pytest.approx(held, rel=0.01, abs=0.06)
        assert one["drawn"] / one["added"] == pytest.approx(demand.drawn / demand.added, rel=0.05)
        assert one["items"] >= 60 and one["limited_by"] in ("adding", "drawing")
    assert results["bytes_together"] == sum(one["store_bytes"] for one in results["rows"].values())


def test_draws_follow_adds_as_the_published_rates_have_it():
    """Of R2D2 an item is 88 steps, 45 are drawn for 3 that come in: with 8 envs 11 adds bring one item, 15 draws of one
    item follow it."""
    load = replay_demand.Load(replay_demand.DEMANDS["R2D2, Atari Qbert"], 10_000, choose_backend(device="cpu"))
    assert (load.num_envs, load.batch, load.table.num_drawable) == (8, 1, 64)
    calls, num_adds = load.schedule()
    assert len([call for call in calls if call == load.add]) == num_adds
    assert (len(calls) - num_adds) / num_adds == pytest.approx(15 / 11, rel=0.01)


def test_frames_are_kept_once():
    """Of 110 kB an item, four stacked float32 frames, one uint8 frame: 400,000 of them are 2.8 GB. Of 10 MB, 88 such
    stacks, 88 frames."""
    demand = replay_demand.DEMANDS["DQN, Atari Qbert"]
    assert demand.kept * demand.bytes_here == 400_000 * 84 * 84 and demand.bytes_here * 16 > demand.num_bytes
    demand = replay_demand.DEMANDS["R2D2, Atari Qbert"]
    assert (demand.steps, demand.bytes_here) == (88, 88 * 84 * 84)


def test_seconds_of_nothing_are_refused(run, capsys):
    with pytest.raises(SystemExit):
        run(replay_demand, "--seconds", 0)
    assert "--seconds must be above 0, got 0.0" in capsys.readouterr().err
