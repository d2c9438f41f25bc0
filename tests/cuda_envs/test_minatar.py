"""The MinAtar games against the package MinAtar, and by hand."""

import functools

import numpy as np
import pytest
from oracles import record_minatar as oracle

from warpdrive.backends.base import Backend
from warpdrive.env_wrapper import EnvWrapper

NOTHING, LEFT, UP, RIGHT, DOWN, FIRE = range(6)
GAMES = pytest.mark.parametrize("game", oracle.GAMES)
ENDLESS = 1 << 30  # steps

pytestmark = pytest.mark.usefixtures("built_quickly")


@functools.cache
def make_env(backend: Backend, game: str, num_envs: int, **config) -> EnvWrapper:
    """Every test writes all that it reads of it."""
    config = {"sticky_action_prob": 0.0, "episode_length": ENDLESS, **config}
    return EnvWrapper(f"minatar_{game}", num_envs, backend=backend, seed=3, env_config=config)


@functools.cache
def recorded(game: str) -> dict[str, np.ndarray]:
    with np.load(oracle.FILE) as file:
        assert str(file["version"]) == "MinAtar 1.0.15"
        return {name.removeprefix(f"{game}/"): file[name] for name in file.files if name.startswith(f"{game}/")}


def compare(backend: Backend, game: str, rows: dict[str, np.ndarray]) -> None:
    """Steps every recorded state once, by what was done there, and expects what followed: all arrays, exactly."""
    config = {"episode_length": 2501} if game == "freeway" else {}
    env = make_env(backend, game, len(rows["action"]), **config)
    names = [name.removeprefix("before_") for name in rows if name.startswith("before_")]
    assert {*names, "last_action", "time_step"} == set(env.env.arrays())
    for name in names:
        env.data[name] = rows[f"before_{name}"]
    starts = np.concatenate([[0], np.flatnonzero(rows["is_over"]) + 1])
    index = np.arange(len(rows["action"]))
    env.data["time_step"] = index - starts[np.searchsorted(starts, index, "right") - 1]
    env.data["action"] = rows["action"][:, np.newaxis]
    env.prepare_step()()
    for name in names:
        np.testing.assert_array_equal(env.data.pull(name), rows[f"after_{name}"], err_msg=name)
    np.testing.assert_array_equal(env.data.pull("reward")[:, 0], rows["reward"])
    np.testing.assert_array_equal(env.data.pull("truncated" if game == "freeway" else "terminated"), rows["is_over"])
    seen = env.data.pull("observation").reshape(len(index), -1)
    np.testing.assert_array_equal(np.packbits(seen, -1), rows["observation"])


@GAMES
def test_a_step_equals_the_originals(backend, game):
    compare(backend, game, recorded(game))


@GAMES
def test_a_step_equals_the_originals_on_games_of_another_seed(backend, game):
    pytest.importorskip("minatar")
    rows = oracle.record(game, 7, 400)
    rows["observation"] = np.packbits(rows["observation"].reshape(400, -1), -1)
    compare(backend, game, rows)


def test_the_record_holds_the_rarer_rules():
    """Or the comparison would say little of them."""
    rows = {game: recorded(game) for game in oracle.GAMES}
    assert sum(len(one["action"]) for one in rows.values()) >= 10_000
    breakout, asterix, invaders, freeway, seaquest = (rows[game] for game in oracle.GAMES)
    refilled = (breakout["before_brick"] == 0) & (breakout["after_brick"] == (1 << 30) - 1)
    assert refilled.any() and breakout["is_over"].sum() >= 3
    assert asterix["after_move_speed"].min() <= 2 and asterix["after_spawn_speed"].min() <= 4
    assert asterix["reward"].sum() >= 50 and asterix["is_over"].any()
    assert invaders["after_move_interval"].min() <= 10 and invaders["reward"].sum() >= 100 and invaders["is_over"].any()
    assert len(np.unique(freeway["after_car_speed"])) == 10 and freeway["is_over"].sum() == 1
    aboard = seaquest["before_num_aboard"], seaquest["after_num_aboard"]
    assert ((aboard[0] == 6) & (aboard[1] == -1)).any() and seaquest["reward"].max() >= 2
    assert seaquest["after_move_speed"].min() == 2 and seaquest["after_spawn_speed"].min() == 1
    assert seaquest["is_over"].sum() >= 3 and seaquest["after_enemy_bullet"].any()
    assert seaquest["after_num_enemies"].max() >= 10
