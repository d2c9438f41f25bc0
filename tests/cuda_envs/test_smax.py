"""SMAX against JaxMARL's, from recorded states; and each rule by hand."""

import functools
from pathlib import Path

import numpy as np
import pytest
from oracles import record_smax as peer

from cuda_envs.smax.smax import MIN_HEIGHT, MIN_WIDTH, STOP, UNIT_TYPES, Smax, SmaxConfig
from warpdrive.env import load_env
from warpdrive.env_wrapper import EnvWrapper
from warpdrive.errors import ConfigError

TOLERANCE = 1e-4
NORTH, EAST, SOUTH, WEST = range(4)
SHOT = 5
"""The first action that is a shot."""


class GivenSmax(Smax):
    """Smax whose enemies do, and whose weapons take, what a test gives; -1 lets an enemy decide."""

    name = "smax_given"
    source = Path(__file__).with_name("smax_given.cu")

    def arrays(self):
        given = {"enemy_action": np.full(self.num_enemies, -1, np.int32), "delay": np.zeros(self.num_units, np.float32)}
        return super().arrays() | given


pytestmark = pytest.mark.usefixtures("built_quickly")


@functools.cache  # kernels are compiled once for all tests of a size
def given_env(backend, num_envs, scenario="3m", **config):
    env = EnvWrapper(GivenSmax(SmaxConfig(scenario=scenario, **config)), num_envs, backend=backend)
    env.reset()
    return env


def states_of(env, seed, count):
    types = None if env.scenario.units_are_random else env.start_type
    health, cooldown = (
        np.array([getattr(one, name) for one in UNIT_TYPES.values()]) for name in ("health", "cooldown")
    )
    return peer.random_states(np.random.RandomState(seed), count, types, env.num_agents, health, cooldown)


def step_from(env, states, **given):
    """What follows, by array [state, ...], in as many envs as there are states."""
    for name, values in {**states, **given}.items():
        env.data[name] = values
    env.data["active"] = states["health"][:, : env.num_agents] > 0
    env.prepare_step()()
    return {name: env.data.pull(name) for name in env.data.names()}


def check_step(env, states, expected):
    found = step_from(env, states, enemy_action=expected["enemy_action"].astype(np.int32), delay=expected["delay"])
    for name in ("x", "y", "health", "cooldown", "reward"):
        wanted = expected[name] if expected[name].ndim > 1 else expected[name][:, np.newaxis] + 0 * found[name]
        np.testing.assert_allclose(found[name], wanted, rtol=TOLERANCE, atol=TOLERANCE, err_msg=name)
    for name in ("action_mask", "terminated"):
        np.testing.assert_array_equal(found[name], expected[name], err_msg=name)
    np.testing.assert_array_equal(found["active"], expected["health"][:, : env.num_agents] > 0)
    assert not found["truncated"].any()
    for name in ("observation", "global_state"):
        whole = expected[name]
        np.testing.assert_allclose(found[name][: len(whole)], whole, rtol=TOLERANCE, atol=TOLERANCE, err_msg=name)
        sums, wanted = peer.weighted_sum(found[name]), expected[f"sum_of_{name}"]
        size = np.abs(found[name].reshape(len(sums), -1)).sum(1)  # of what rounds
        assert (np.abs(sums - wanted) < 1e-4 + 3e-6 * size).all(), f"a sum of {name} is off"
    return found


def check_minds(env, states, expected):
    """The enemies' own decisions: the recorded ones where nothing was left to chance, else one of those possible."""
    found = step_from(env, states, enemy_action=np.full_like(states["last_target"], -1), delay=expected["delay"])
    enemies, allies = np.arange(env.num_agents, env.env.num_units), np.arange(env.num_agents)[::-1]
    chosen, recorded = found["last_action"][:, enemies], expected["enemy_action"]
    types, position = list(UNIT_TYPES.values()), np.stack([states["x"], states["y"]], -1).astype(np.float64)
    apart = position[:, np.newaxis, allies] - position[:, enemies, np.newaxis]
    sight, reach = (
        np.array([getattr(one, name) for one in types])[states["unit_type"][:, enemies], np.newaxis]
        for name in ("sight_range", "attack_range")
    )
    distance, is_alive = np.linalg.norm(apart, axis=-1), states["health"] > 0
    is_seen, is_near = ((distance < limit) & is_alive[:, np.newaxis, allies] for limit in (sight, reach))
    towards = (apart @ peer.MOVES[:4].T).argmax(-1)
    moves = np.stack([(is_seen & (towards == move)).any(-1) for move in range(4)], -1)
    shots = is_near if env.env.config.attack_mode == "random" else np.zeros_like(is_near)
    may = np.concatenate([moves & ~is_near.any(-1, keepdims=True), np.zeros_like(moves[..., :1]), shots], -1)
    is_left_to_chance = np.where(is_near.any(-1), shots.sum(-1) > 1, is_seen.sum(-1) > 1)
    lasts = states["last_target"]
    keeps = (lasts >= 0) & np.take_along_axis(is_near, lasts.clip(0)[..., np.newaxis], -1)[..., 0]
    is_left_to_chance &= ~keeps
    is_alive = is_alive[:, enemies]
    decided = is_alive & ~is_left_to_chance
    np.testing.assert_array_equal(chosen[decided], recorded[decided])
    np.testing.assert_array_equal(found["last_target"][decided], expected["last_target"][decided])
    drawn = is_alive & is_left_to_chance
    assert np.take_along_axis(may, chosen[..., np.newaxis], -1)[..., 0][drawn].all()
    assert (chosen[~is_alive] == STOP).all()
    assert decided.sum() > 50 and drawn.sum() > 50


@pytest.mark.parametrize("number", range(len(peer.CASES)), ids=[f"{case[0]}-{i}" for i, case in enumerate(peer.CASES)])
def test_a_step_from_recorded_states_equals_jaxmarls(backend, number):
    scenario, config, count = peer.CASES[number]
    with np.load(peer.FILE) as file:
        assert file["version"] == peer.VERSION
        is_steady = np.unpackbits(file[f"{number}/is_steady"], count=count).astype(bool)
        env = given_env(backend, int(is_steady.sum()), scenario, **config)
        states = {name: one[is_steady] for name, one in states_of(env.env, number, count).items()}
        expected = peer.expected_of(file, number, states)
    check_step(env, states, expected)
    check_minds(env, states, expected)


def test_at_least_10_000_steps_of_every_kind_are_recorded():
    happened = dict.fromkeys(("steps", "shots", "deaths", "wins", "defeats", "pushes"), 0)
    with np.load(peer.FILE) as file:
        for number, (scenario, config, count) in enumerate(peer.CASES):
            is_steady = np.unpackbits(file[f"{number}/is_steady"], count=count).astype(bool)
            env = load_env("smax", {"scenario": scenario, **config})
            states = {name: one[is_steady] for name, one in states_of(env, number, count).items()}
            expected = peer.expected_of(file, number, states)
            is_alive = expected["health"] > 0
            allies, enemies = is_alive[:, : env.num_agents].any(1), is_alive[:, env.num_agents :].any(1)
            is_pushed = np.abs(expected["x"] - states["x"]) > 4.13 / 2 + 0.01  # farther than the fastest walks
            happened["steps"] += len(is_alive)
            happened["shots"] += int((expected["delay"] != 0).sum())
            happened["deaths"] += int((~is_alive & (states["health"] > 0)).sum())
            happened["wins"] += int((allies & ~enemies).sum())
            happened["defeats"] += int((~allies).sum())
            happened["pushes"] += int(is_pushed.any(1).sum())
    assert happened.pop("steps") >= 10_000
    assert min(happened.values()) >= 90, happened


def test_fresh_states_give_what_jaxmarl_gives(backend):
    pytest.importorskip("jaxmarl")
    oracle = peer.Peer("2s3z", {})
    states = oracle.states(1234, 300)
    found = oracle.step(states, 5)
    is_steady = oracle.steady(states, found, 5)
    states, found = ({name: one[is_steady] for name, one in which.items()} for which in (states, found))
    found |= {f"sum_of_{name}": peer.weighted_sum(found[name]) for name in ("observation", "global_state")}
    env = given_env(backend, int(is_steady.sum()), "2s3z")
    check_step(env, states, found)
    check_minds(env, states, found)


# ------------------------------------------------------------------------------------------------- each rule by hand


@pytest.fixture
def three(backend, built_quickly):
    """One battle of 3 marines and 3, with all that tests look at."""
    return given_env(backend, 1)


def battle(three, place, action=(STOP,) * 3, enemy_action=(STOP,) * 3, health=45.0, cooldown=0.0, time=0, delay=0.0):
    """What one step makes of units at these places: a place a unit, allies first."""
    x, y = np.array(place, np.float32).T
    units = {"health": health, "cooldown": cooldown, "delay": delay, "last_action": STOP, "unit_type": 0}
    given = {name: np.broadcast_to(value, (1, 6)) for name, value in units.items()}
    states = {"x": x[np.newaxis], "y": y[np.newaxis], **given, "time_step": np.array([time])}
    states |= {"action": np.array([action]), "enemy_action": np.array([enemy_action])}
    for name, values in states.items():
        array = three.data.pull(name)
        states[name] = np.asarray(values).astype(array.dtype)
    return {name: array[0] for name, array in step_from(three, states).items() if name != "seed" and array.ndim}


APART = ((4, 4), (4, 16), (4, 28), (28, 4), (28, 16), (28, 28))
"""Nobody near anybody."""
FACING = ((4, 4), (4, 16), (4, 28), (8, 4), (28, 16), (28, 28))
"""The first ally is 4 from the first enemy, and in range of 5."""


def test_a_marine_walks_3_15_a_second_in_four_directions(three):
    after = battle(three, APART, action=(NORTH, EAST, STOP), enemy_action=(STOP, WEST, SOUTH))
    walked = 3.15 / 2  # 8 world steps of 1 / 16 s
    np.testing.assert_allclose(after["x"] - np.array(APART)[:, 0], [0, walked, 0, 0, -walked, 0], atol=1e-5)
    np.testing.assert_allclose(after["y"] - np.array(APART)[:, 1], [walked, 0, 0, 0, 0, -walked], atol=1e-5)
    assert after["reward"].tolist() == [0.0] * 3 and after["last_action"].tolist() == [0, 1, 4, 4, 3, 2]


def test_a_shot_takes_9_of_45_and_pays_each_ally_a_third_of_that_part(three):
    after = battle(three, FACING, action=(SHOT, STOP, STOP), delay=0.05)
    assert after["health"].tolist() == [45, 45, 45, 36, 45, 45]
    np.testing.assert_allclose(after["reward"], [9 / 45 / 3] * 3, rtol=1e-6)
    # The weapon takes 0.61 s and what chance adds; seven world steps have passed since, eight for all others.
    np.testing.assert_allclose(after["cooldown"], [0.66 - 7 / 16, *[-0.5] * 5], atol=1e-6)


def test_an_enemy_counts_allies_from_the_last_one(three):
    after = battle(three, FACING, enemy_action=(SHOT + 2, STOP, STOP))
    assert after["health"].tolist() == [36, 45, 45, 45, 45, 45]
    assert after["reward"].tolist() == [0.0] * 3


@pytest.mark.parametrize(("distance", "health"), [(4.99, 36), (5.01, 45)])
def test_a_shot_out_of_range_misses(three, distance, health):
    place = (*FACING[:3], (4 + distance, 4), *FACING[4:])
    after = battle(three, place, action=(SHOT, STOP, STOP))
    assert after["health"][3] == health
    assert after["action_mask"][0].tolist() == [True] * 5 + [health == 36, False, False]


@pytest.mark.parametrize(("cooldown", "health"), [(0.3, 36), (0.45, 45)])
def test_a_weapon_shoots_once_its_cooldown_is_over(three, cooldown, health):
    """The last of the eight world steps begins after 7 / 16 = 0.4375 s."""
    after = battle(three, FACING, action=(SHOT, STOP, STOP), cooldown=cooldown)
    assert after["health"][3] == health


def test_who_dies_leaves_the_game_and_is_seen_no_more(three):
    health = (9, 45, 45, 45, 45, 45)
    near = ((4, 4), (4, 8), (4, 28), (8, 4), (28, 16), (28, 28))
    after = battle(three, near, enemy_action=(SHOT + 2, STOP, STOP), health=health)
    assert after["active"].tolist() == [False, True, True] and not after["terminated"] and after["health"][0] == 0
    assert after["action_mask"][0].tolist() == [False] * 4 + [True] + [False] * 3  # nothing but to stop
    assert not after["observation"][0].any() and not after["observation"][1][:13].any()
    assert not after["global_state"][:10].any()
    # The second ally still sees the enemy, 4 to the right and 4 below, of 9; whole; who chose shot 7 of 0 to 7.
    seen = after["observation"][1][26:39]
    np.testing.assert_allclose(seen[:6], [1, 4 / 9, -4 / 9, 0, 0, 1], rtol=1e-6)


def test_who_is_shot_still_shoots_in_the_same_world_step(three):
    health = (9, 45, 45, 9, 45, 45)
    after = battle(three, FACING, (SHOT, STOP, STOP), (SHOT + 2, STOP, STOP), health=health)
    assert after["health"].tolist() == [0, 45, 45, 0, 45, 45]


def test_the_last_enemys_death_wins_and_pays_the_bonus(three):
    after = battle(three, FACING, action=(SHOT, STOP, STOP), health=(45, 0, 45, 9, 0, 0))
    assert after["terminated"] and not after["truncated"] and after["won"] == 1
    np.testing.assert_allclose(after["reward"], [1 + 9 / 45 / 3] * 3, rtol=1e-6)


def test_a_draw_is_not_won(three):
    after = battle(three, FACING, (SHOT, STOP, STOP), (SHOT + 2, STOP, STOP), health=(9, 0, 0, 9, 0, 0))
    assert after["terminated"] and after["won"] == 0
    np.testing.assert_allclose(after["reward"], [9 / 45 / 3] * 3, rtol=1e-6)


def test_the_last_allys_death_terminates(three):
    after = battle(three, FACING, enemy_action=(SHOT + 2, STOP, STOP), health=(9, 0, 0, 45, 45, 45))
    assert after["terminated"] and after["won"] == 0 and after["reward"].tolist() == [0.0] * 3


def test_time_truncates_after_100_steps(three):
    assert not battle(three, APART, time=98)["truncated"]
    after = battle(three, APART, time=99)
    assert after["truncated"] and not after["terminated"] and after["time_step"] == 100


@pytest.mark.parametrize("kills", [True, False])
def test_who_walks_into_the_wall_dies_if_walls_kill(three, backend, kills):
    env = three if kills else given_env(backend, 1, walls_cause_death=False)
    place = ((1.0, 4), *APART[1:])
    after = battle(env, place, action=(WEST, STOP, STOP))
    assert (after["health"][0], after["x"][0], after["active"][0]) == ((0, 0, False) if kills else (45, 0, True))


def test_two_marines_that_overlap_are_pushed_to_where_they_touch(three):
    place = ((10, 16), (10.25, 16), *APART[2:])
    after = battle(three, place)
    np.testing.assert_allclose(after["x"][:2], [10.125 - 0.375, 10.125 + 0.375], atol=1e-4)
    np.testing.assert_allclose(after["y"][:2], [16, 16], atol=1e-5)


def test_the_dead_are_walked_over(three):
    after = battle(three, ((10, 16), (10.25, 16), *APART[2:]), health=(45, 0, 45, 45, 45, 45))
    assert after["x"][:2].tolist() == [10, 10.25]


# -------------------------------------------------------------------------------------------------------- by law


def test_an_enemy_walks_to_any_it_sees_and_its_weapon_takes_any_time_of_its_range(backend):
    num_envs = 3000
    env = EnvWrapper("smax", num_envs, backend=backend, seed=3)
    env.reset()
    place = np.array([(16, 24), (8, 16), (24, 16), (16, 16), (16, 16), (16, 16)], np.float32)  # 8 from the enemy, of 9
    env.data["x"], env.data["y"] = place.T.copy()
    env.data["health"] = np.array([45, 45, 45, 45, 0, 0], np.float32)
    env.data["action"].fill_(STOP)
    env.prepare_step()()
    counts = np.bincount(env.data.pull("last_action")[:, 3], minlength=4)
    assert counts[SOUTH] == 0 and np.abs(counts[[NORTH, EAST, WEST]] - 1000).max() < 130  # 5 deviations of 26

    near = np.array([(4, 4), (16, 24), (24, 16), (8, 4), (16, 16), (16, 16)], np.float32)
    env.data["x"], env.data["y"] = near.T.copy()
    env.data["cooldown"].zero_()
    env.prepare_step()()
    delay = env.data.pull("cooldown")[:, 3] - 0.61 + 7 / 16
    assert (env.data.pull("last_action")[:, 3] == SHOT + 2).all()
    assert -1 / 16 - 1e-6 <= delay.min() < -0.06 and 0.122 < delay.max() <= 2 / 16 + 1e-6
    assert abs(delay.mean() - 1 / 32) < 5 * (3 / 16) / (12 * num_envs) ** 0.5


def test_marines_start_whole_within_2_of_their_camp(backend):
    env = EnvWrapper("smax", 500, backend=backend, seed=5)
    env.reset()
    x, y = env.data.pull("x"), env.data.pull("y")
    for team, camp in ((slice(0, 3), 8), (slice(3, 6), 24)):
        assert np.abs(x[:, team] - camp).max() < 2.4 and np.abs(y[:, team] - 16).max() < 2.4  # pushed a little
        assert x[:, team].std() == pytest.approx(4 / 12**0.5, abs=0.08) and abs(y[:, team].mean() - 16) < 0.15
    assert (env.data.pull("health") == 45).all() and not env.data.pull("cooldown").any()
    goal_x, goal_y = env.data.pull("goal_x"), env.data.pull("goal_y")
    np.testing.assert_allclose([goal_x, goal_y], [32 - x[:, 3:], 32 - y[:, 3:]], rtol=1e-6)
    apart = np.hypot(x[:, 0] - x[:, 1], y[:, 0] - y[:, 1])
    assert (apart < 0.74).mean() < 0.03, "a tenth overlapped before they were pushed"


def test_random_units_are_drawn_alike_for_both_teams_and_stand_around_or_across(backend):
    num_envs = 3000
    env = EnvWrapper("smax", num_envs, backend=backend, seed=5, env_config={"scenario": "smacv2_5_units"})
    env.reset()
    types, x, y = (env.data.pull(name) for name in ("unit_type", "x", "y"))
    assert (types[:, :5] == types[:, 5:]).all()
    for unit in range(5):
        assert np.abs(np.bincount(types[:, unit], minlength=6) - 500).max() < 5 * 20.4
    assert abs(np.corrcoef(types[:, 0], types[:, 1])[0, 1]) < 0.1
    health = np.array([one.health for one in UNIT_TYPES.values()], np.float32)
    assert (env.data.pull("health") == health[types]).all()

    is_inside = (np.abs(x - 16) < 4) & (np.abs(y - 16) < 4)  # 2, and what they are pushed by
    allies, enemies = is_inside[:, :5].all(1), is_inside[:, 5:].all(1)
    for inside, others in ((allies, slice(5, 10)), (enemies, slice(0, 5))):
        assert abs(inside.mean() - 0.25) < 0.04  # half of the time a team is surrounded, by chance which
        # Around it: on the lines to the four corners, up to 2 beside them; 0.9 for who was pushed.
        beside = np.abs(np.abs(x[inside, others] - 16) - np.abs(y[inside, others] - 16))
        assert (beside < 4).mean() > 0.97
        quarter = 2 * (x[inside, others] > 16) + (y[inside, others] > 16)
        assert np.bincount(quarter.ravel(), minlength=4).min() > 0.2 * quarter.size
    across = ~(allies | enemies)
    is_mirrored = (np.abs(x[:, :5] + x[:, 5:] - 32) < 0.05) & (np.abs(y[:, :5] - y[:, 5:]) < 0.05)
    assert is_mirrored[across].mean() > 0.6 and (x[across, :5] < 17).mean() > 0.98  # but for who was pushed


def test_the_same_seed_gives_the_same_battle_and_another_another(backend):
    env = EnvWrapper("smax", 20, backend=backend, seed=5)
    env.reset()
    first = env.data.pull("x")
    env.reset(seed=6)
    assert (env.data.pull("x") != first).all()
    env.reset(seed=5)
    assert (env.data.pull("x") == first).all()


@pytest.mark.parametrize("scenario", ["3m", "27m_vs_30m", "3s5z_vs_3s6z"])
def test_on_the_smallest_map_nobody_starts_at_a_wall_and_smaller_ones_are_refused(device, scenario):
    def least_gap(width, height):
        env = EnvWrapper("smax", 3000, device=device, env_config={"scenario": scenario, "map_width": width,
                                                                  "map_height": height})  # fmt: skip
        env.reset()
        x, y = env.data.pull("x"), env.data.pull("y")
        return min(x.min(), y.min(), (width - x).min(), (height - y).min())

    assert least_gap(MIN_WIDTH, MIN_HEIGHT) > 0.25
    with pytest.raises(ConfigError, match="env.map_width: expected a number from 16 to 10000, got 8.0"):
        least_gap(8.0, 32.0)
    with pytest.raises(ConfigError, match="env.map_height: expected a number from 8 to 10000, got 4.0"):
        least_gap(32.0, 4.0)
