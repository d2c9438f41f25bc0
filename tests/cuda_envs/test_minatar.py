"""The MinAtar games against the package MinAtar, and by hand."""

import functools

import numpy as np
import pytest
import torch
from oracles import record_minatar as oracle

from warpdrive.backends.base import Backend
from warpdrive.backends.cpu import CpuBackend
from warpdrive.drawing import arrays_to_draw
from warpdrive.env_wrapper import EnvWrapper
from warpdrive.function_manager import FunctionManager

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


def play(backend: Backend, game: str, state: dict, *actions: int, **config) -> EnvWrapper:
    """One game from a start that differs as said, by these actions. `env.paid` are the rewards."""
    env = make_env(backend, game, 2, **config)
    env.reset(seed=11)
    for name, value in state.items():
        env.data[name][0] = torch.as_tensor(value)
    env.paid = []
    for action in actions:
        env.data["action"].fill_(action)
        env.prepare_step()()
        env.paid.append(env.data.pull("reward")[0, 0].item())
    return env


def first(env: EnvWrapper, *names: str) -> list:
    return [env.data.pull(name)[0].item() for name in names]


BALL = {"ball_dx": 1, "ball_dy": 1, "strikes": False}


def test_the_paddle_moves_a_cell_and_stays_inside(backend):
    assert first(play(backend, "breakout", {"paddle_x": 1}, LEFT), "paddle_x") == [0]
    assert first(play(backend, "breakout", {"paddle_x": 1}, LEFT, LEFT, LEFT), "paddle_x") == [0]
    assert first(play(backend, "breakout", {"paddle_x": 8}, RIGHT, RIGHT), "paddle_x") == [9]
    assert first(play(backend, "breakout", {"paddle_x": 8}, UP, DOWN, FIRE, NOTHING), "paddle_x") == [8]


def test_a_ball_bounces_off_the_middle_of_the_paddle_and_back_off_its_edge(backend):
    """It comes down from (3, 8) to (4, 9): a paddle under it mirrors it, one where it goes turns it round."""
    ball = {**BALL, "ball_x": 3, "ball_y": 8}
    seen = ("ball_x", "ball_y", "ball_dx", "ball_dy", "terminated")
    assert first(play(backend, "breakout", {**ball, "paddle_x": 3}, NOTHING), *seen) == [4, 8, 1, -1, False]
    assert first(play(backend, "breakout", {**ball, "paddle_x": 4}, NOTHING), *seen) == [4, 8, -1, -1, False]
    assert first(play(backend, "breakout", {**ball, "paddle_x": 5}, NOTHING), *seen) == [4, 9, 1, 1, True]


def test_a_brick_pays_and_turns_the_ball_which_flies_through_the_next(backend):
    """From (5, 5) upwards: (6, 4), then brick (7, 3) throws it back; with `strikes` set it enters the brick."""
    ball = {"ball_x": 5, "ball_y": 5, "ball_dx": 1, "ball_dy": -1, "strikes": False}
    env = play(backend, "breakout", ball, NOTHING, NOTHING)
    assert env.paid == [0, 1]
    assert first(env, "ball_x", "ball_y", "ball_dy", "strikes") == [7, 4, 1, True]
    assert first(env, "brick") == [(1 << 30) - 1 - (1 << 27)]  # row 3 is the third, column 7
    env = play(backend, "breakout", {**ball, "ball_x": 6, "ball_y": 4, "strikes": True}, NOTHING)
    assert env.paid == [0] and first(env, "ball_x", "ball_y", "ball_dy") == [7, 3, -1]


def test_bricks_come_again_where_the_ball_comes_down_after_the_last(backend):
    env = play(backend, "breakout", {**BALL, "ball_x": 3, "ball_y": 7, "brick": 0, "paddle_x": 4}, NOTHING)
    assert first(env, "brick") == [0]
    env.prepare_step()()
    assert first(env, "brick") == [(1 << 30) - 1]


def test_gold_is_taken_and_an_enemy_kills(backend):
    """Who walks to the right in the player's row, a cell away, arrives when the move timer is up."""
    walker, timers = np.zeros(8, np.uint8), {"move_timer": 0, "spawn_timer": 9}
    for kind, paid, is_over in ((32, 1.0, False), (0, 0.0, True)):
        walker[4] = 64 | kind | 16 | 4  # row 5, column 4, to the right
        env = play(backend, "asterix", {"walker": walker, **timers}, NOTHING)
        assert (env.paid, first(env, "terminated")) == ([paid], [is_over])


def test_asterix_gets_harder_after_102_steps_and_every_102_after_that(backend):
    """The timer goes from 100 to -1, and a step more makes it harder: spawns each time, moves every other time."""
    speeds = ("spawn_speed", "move_speed", "ramp_index")
    away = {"walker": np.zeros(8, np.uint8), "spawn_timer": 127}
    last = {"ramp_timer": 0, **away}
    assert first(play(backend, "asterix", last, NOTHING), *speeds) == [10, 5, 0]
    assert first(play(backend, "asterix", last, NOTHING, NOTHING), *speeds) == [9, 5, 1]
    assert first(play(backend, "asterix", {**last, "ramp_index": 1}, NOTHING, NOTHING), *speeds) == [9, 4, 2]
    still = play(backend, "asterix", last, NOTHING, NOTHING, difficulty_ramping=False)
    assert first(still, *speeds) == [10, 5, 0]


def test_a_cleared_wave_comes_again_a_step_faster(backend):
    """One alien at (5, 5), a bullet a row below it that rises into it."""
    alone = {"alien": [0, 1 << 5], "bullet": [0, 1 << 15], "alien_move_timer": 3}
    wave = sum(0b0011111100 << 10 * row for row in range(4))
    for ramps, interval in ((True, 11), (False, 12)):
        env = play(backend, "space_invaders", alone, NOTHING, difficulty_ramping=ramps)
        assert env.paid == [1]
        assert first(env, "move_interval") == [interval] and env.data.pull("alien")[0].tolist() == [wave, 0]


def test_the_nearest_alien_shoots_the_left_one_of_two(backend):
    """At columns 3 and 7 of row 2, the cannon at 5: the bullet is where the left one is."""
    two = {"alien": [1 << 23 | 1 << 27, 0], "alien_shot_timer": 0, "alien_move_timer": 3, "cannon_x": 5}
    env = play(backend, "space_invaders", two, NOTHING)
    assert env.data.pull("alien_bullet")[0].tolist() == [1 << 23, 0]


def test_aliens_that_reach_the_last_row_end_the_game(backend):
    """One at the left edge of the last row, on its way left, has to turn and go down."""
    landed = {"alien": [0, 1 << 40], "alien_move_timer": 0}
    assert first(play(backend, "space_invaders", landed, NOTHING), "terminated") == [True]
    higher = {"alien": [0, 1 << 30], "alien_move_timer": 0}
    assert first(play(backend, "space_invaders", higher, NOTHING), "terminated", "alien_dx") == [False, 1]


def test_a_crossing_pays_and_the_chicken_begins_again(backend):
    far = {"car_x": [9] * 8, "car_timer": [5] * 8}
    env = play(backend, "freeway", {"chicken_y": 1, "move_timer": 0, **far}, UP)
    assert (env.paid, first(env, "chicken_y", "move_timer")) == ([1], [9, 2])
    steps = play(backend, "freeway", {"chicken_y": 8, "move_timer": 0, **far}, UP, UP, UP, UP)
    assert first(steps, "chicken_y") == [6]  # a move, and two steps that wait for the next
    hit = play(backend, "freeway", {"chicken_y": 5, "move_timer": 3, **far, "car_x": [3] * 8, "car_timer": [0] * 8,
                                    "car_speed": [1] * 8}, NOTHING)  # fmt: skip
    assert first(hit, "chicken_y") == [9]


def test_oxygen_lasts_200_steps_below_the_surface(backend):
    """The step that finds none ends the game."""
    calm = {"sub_y": 4, "is_up": False, "spawn_timer": 100, "diver_timer": 100}
    env = play(backend, "seaquest", {**calm, "oxygen": 2}, NOTHING, NOTHING)
    assert first(env, "oxygen", "terminated") == [0, False]
    env.prepare_step()()
    assert first(env, "terminated") == [True]


@pytest.mark.parametrize(
    ("aboard", "left", "paid", "is_over"), [(0, 0, 0, True), (1, 0, 0, False), (5, 4, 0, False), (6, -1, 5, False)]
)
def test_coming_up_costs_a_diver_and_six_are_paid_by_the_oxygen_left(backend, aboard, left, paid, is_over):
    """119 of 200 are 5 cells of the bar."""
    below = {"sub_y": 1, "is_up": False, "oxygen": 119, "num_aboard": aboard}
    env = play(backend, "seaquest", below, UP)
    assert (env.paid, first(env, "num_aboard", "terminated")) == ([paid], [left, is_over])
    assert first(env, "oxygen", "spawn_speed") == ([119, 20] if is_over else [200, 19])


@GAMES
def test_draws_follow_the_originals_laws(backend, game):
    """Of 4,000 draws, each share within five standard errors, at most 0.04."""
    num = 4000

    def shares(values: np.ndarray, expected: dict[int, float]) -> None:
        assert set(np.unique(values)) == set(expected)
        for value, share in expected.items():
            assert np.mean(values == value) == pytest.approx(share, abs=5 * (share * (1 - share) / values.size) ** 0.5)

    env = make_env(backend, game, num)
    env.reset(seed=17)
    if game == "breakout":
        x, dx = env.data.pull("ball_x"), env.data.pull("ball_dx")
        shares(x, {0: 0.5, 9: 0.5})
        assert ((x == 0) == (dx == 1)).all()
    elif game == "freeway":
        by_speed = dict.fromkeys([*range(-5, 0), *range(1, 6)], 0.1)
        speed = env.data.pull("car_speed")
        shares(speed[:, 0], by_speed)
        shares(speed, by_speed)
        env.data["chicken_y"] = 1
        env.data["move_timer"] = 0
        env.data["action"].fill_(UP)
        env.prepare_step()()
        shares(env.data.pull("car_speed"), by_speed)
        assert (env.data.pull("car_speed") != speed).any(0).all() and (env.data.pull("reward") == 1).all()
    elif game == "asterix":
        env.data["spawn_timer"] = 0
        env.data["walker"][:, 2] = 64 | 5  # one that is there already
        env.prepare_step()()
        walker = np.delete(env.data.pull("walker"), 2, axis=1)
        assert ((walker != 0).sum(1) == 1).all()
        shares(walker.argmax(1), dict.fromkeys(range(7), 1 / 7))
        shares(walker.max(1).astype(int), {64 | 9: 1 / 3, 64 | 16: 1 / 3, 96 | 9: 1 / 6, 96 | 16: 1 / 6})
    elif game == "seaquest":
        env.data["spawn_timer"] = 0
        env.data["diver_timer"] = 0
        env.prepare_step()()
        enemy, diver = env.data.pull("enemy")[:, 0], env.data.pull("diver")[:, 0]
        for one in (enemy, diver):
            shares(one >> 4 & 15, dict.fromkeys(range(1, 9), 1 / 8))
            shares(one & (15 | 1 << 16), {9: 0.5, 1 << 16: 0.5})
        shares(enemy >> 17, {0: 2 / 3, 1: 1 / 3})
    else:
        before = env.data.snapshot()
        env.reset(seed=18)
        assert all((env.data[name] == before[name]).all() for name in env.env.state())


def test_an_action_sticks_as_often_as_said(backend):
    """Of 4,000, 0.1 within five standard errors; and what sticks is what was done, not what was wanted."""
    env = make_env(backend, "breakout", 4000, sticky_action_prob=0.1)
    env.reset(seed=4)
    env.data["action"].fill_(LEFT)
    env.prepare_step()()
    assert np.mean(env.data.pull("paddle_x") == 4) == pytest.approx(0.1, abs=0.024)
    always = play(backend, "breakout", {"last_action": RIGHT}, LEFT, LEFT, sticky_action_prob=1.0)
    assert first(always, "paddle_x", "last_action") == [6, RIGHT]


def test_minimal_actions_are_those_that_do_something(backend):
    env = play(backend, "breakout", {}, 2, minimal_actions=True)
    assert first(env, "paddle_x", "last_action") == [5, RIGHT]
    sizes = [len(make_env(backend, game, 2, minimal_actions=True).env.actions) for game in oracle.GAMES]
    assert sizes == [3, 5, 4, 3, 6]


@GAMES
def test_a_picture_is_worked_out_from_the_state(backend, game):
    env = make_env(backend, game, 64)
    env.reset(seed=2)
    generator = torch.Generator().manual_seed(1)
    for _ in range(60):
        env.step(torch.randint(6, (64, 1), generator=generator, dtype=torch.int32))
        state = {name: env.data.pull(name) for name in arrays_to_draw(env.env)}
        np.testing.assert_array_equal(env.env.image(state), env.data.pull("observation")[:, 0])


@GAMES
def test_a_warp_that_writes_together_writes_what_each_would(game):
    """As on a GPU: 32 envs a warp, the last of 8; debug mode would find a race among its lanes."""
    env = make_env(CpuBackend(), game, 40)
    env.reset(seed=6)
    generator = torch.Generator().manual_seed(3)
    for _ in range(25):
        env.step(torch.randint(6, (40, 1), generator=generator, dtype=torch.int32))
    for backend in (CpuBackend(), CpuBackend(debug=True)):
        together = FunctionManager(
            env.data, env.env.source, env.env.constants(), 40, 1, backend, threads_per_env=1, envs_per_block=32,
            options=["-DMINATAR_WRITES_TOGETHER=true"],
        )  # fmt: skip
        before = env.data.snapshot()
        env.prepare_step()()
        alone = env.data.pull("observation").copy()
        env.data.restore(before)
        env.data["observation"].fill_(False)
        together.launch(f"minatar_{game}_step")
        np.testing.assert_array_equal(env.data.pull("observation"), alone)
        env.data.restore(before)
