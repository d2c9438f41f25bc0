"""Published demands as load: multiples are the published second over what its work takes here."""

import pytest
import replay_demand


def test_a_multiple_is_what_the_published_second_takes_here(run):
    rows = ["SAC, MuJoCo Hopper", "DQN, GoBigger"]  # nothing, and priorities
    words = ("--device", "cpu", "--smaller", 10_000, "--rounds", 1, "--repeats", 1)
    code, results = run(replay_demand, *words, "--rows", *rows)
    assert code == 0 and list(results["rows"]) == rows
    for name, one in results["rows"].items():
        demand = replay_demand.DEMANDS[name]
        seconds = (
            demand.added / one["num_envs"] * one["add_us"] / 1e6 + demand.drawn / one["batch"] * one["draw_us"] / 1e6
        )
        assert one["multiple"] == pytest.approx(1 / seconds, rel=0.05, abs=0.1)
        assert one["items"] >= 64 and one["limited_by"] in ("adding", "drawing")
    assert results["bytes_together"] == sum(one["store_bytes"] for one in results["rows"].values())


def test_frames_are_kept_once():
    """Of 110 kB an item, four stacked float32 frames, one uint8 frame: 400,000 of them are 2.8 GB."""
    demand = replay_demand.DEMANDS["DQN, Atari Qbert"]
    assert demand.kept * demand.bytes_here == 400_000 * 84 * 84 and demand.bytes_here * 16 > demand.num_bytes
