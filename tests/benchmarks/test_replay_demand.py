"""Published demands as load: multiples are of the rates that were held, in the published proportion."""

import pytest
import replay_demand

from warpdrive.backends import choose_backend

WORDS = ("--device", "cpu", "--smaller", 10_000, "--seconds", 0.01, "--search-seconds", 1e-6, "--rounds", 1)


def test_a_multiple_is_of_the_rates_that_were_held(run, monkeypatch):
    monkeypatch.setattr(replay_demand, "BATCHES", (32, 64))
    rows = ["SAC, MuJoCo Hopper", "DQN, GoBigger", "QMIX, SMAC 3s5z"]  # nothing, priorities, and sequences
    code, results = run(replay_demand, *WORDS, "--repeats", 1, "--rows", *rows)
    assert code == 0 and list(results["rows"]) == rows
    for name, one in results["rows"].items():
        demand = replay_demand.DEMANDS[name]
        held = min(one["added"] / demand.added, one["drawn"] / demand.drawn)
        assert one["multiple"] == pytest.approx(held, rel=0.01, abs=0.06)
        assert one["drawn"] / one["added"] == pytest.approx(demand.drawn / demand.added, rel=0.05)
        assert one["items"] >= 60 and one["limited_by"] in ("adding", "drawing")
        assert f"{one['num_envs']} envs, {one['batch']} a draw" in one["tried"]
    assert results["together"]["bytes"] == sum(one["store_bytes"] for one in results["rows"].values())
    assert results["together"]["multiple"] > 0


class Counted:
    """Stands for a store whose device is done at once."""

    def __init__(self, clock):
        self.backend = self.store = self
        self.clock, self.num_windows = clock, 0

    def synchronize(self):
        self.clock[0] += 1.0  # each round takes a second

    def count_window(self):
        self.num_windows += 1


def test_stores_take_turns_so_that_all_hold_the_same_multiple(monkeypatch):
    """A round of the first serves three seconds of its published rates, one of the second one: of 8 rounds the second
    has 6."""
    clock = [0.0]
    monkeypatch.setattr(replay_demand.time, "perf_counter", lambda: clock[0])
    loads = [Counted(clock), Counted(clock)]
    rounds = [replay_demand.Round(lambda: None, 2, 1.0, 1, seconds) for seconds in (3.0, 1.0)]
    assert replay_demand.sustain(loads, rounds, 8.0) == [2 / 8, 6 / 8]
    assert [load.num_windows for load in loads] == [4, 12]


def test_the_best_of_those_tried_is_the_highest(monkeypatch):
    monkeypatch.setattr(replay_demand, "sustain", lambda loads, rounds, _: [1.0 / loads[0].num_envs])
    monkeypatch.setattr(replay_demand.Load, "round", lambda load: replay_demand.Round(None, 1, 1.0, 1, load.batch))
    demand = replay_demand.DEMANDS["SAC, MuJoCo Hopper"]
    tried, best = replay_demand.best_of(demand, 1000, choose_backend(device="cpu"), 1.0)
    assert best == (64, 178) and tried["64 envs, 178 a draw"] == round(178 / 64, 1)
    assert set(tried) == {"64 envs, 178 a draw", "125 envs, 178 a draw"}  # eight items of each env; 2 MB


def test_draws_follow_adds_as_the_published_rates_have_it():
    """Of R2D2 an item is 88 steps, 45 are drawn for 3 that come in: with 8 envs 11 adds bring one item, 15 draws of one
    item follow it."""
    load = replay_demand.Load(replay_demand.DEMANDS["R2D2, Atari Qbert"], 10_000, choose_backend(device="cpu"), 64, 512)
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
