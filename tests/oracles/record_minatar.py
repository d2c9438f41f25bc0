"""Records what the package MinAtar plays: states, actions and what followed, for the tests to compare with.

python tests/oracles/record_minatar.py      # where MinAtar is installed; needs nothing of this project

A transition begins where nothing is left to be drawn in it: behind the spawns of Asterix and Seaquest, which come
first in a step, and behind Freeway's new speeds, which come after the chicken's move. What had been paid by then is
not counted, and a move that was made is not made again. Arrays are named and laid out as those of the envs here.

The player looks one step ahead, so that games last long enough to get hard, and has a taste in each game, so that the
rarer rules are played as well.
"""

from __future__ import annotations

import copy
from importlib.metadata import version
from pathlib import Path

import numpy as np

GAMES = ("breakout", "asterix", "space_invaders", "freeway", "seaquest")
FILE = Path(__file__).with_name("minatar.npz")
NUM_TRANSITIONS = 2600
"""Of each game: Freeway's takes 2,501."""
NOTHING, LEFT, UP, RIGHT, DOWN, FIRE = range(6)


def bits(cells: np.ndarray) -> list[int]:
    """[10, 10] -> the two halves of a Board."""
    places = np.flatnonzero(cells)
    return [sum(1 << int(place) - first for place in places if 0 <= place - first < 50) for first in (0, 50)]


def cells_of(bullets: list[list]) -> list[list[int]]:
    """[x, y, goes right] -> the Boards of those that go left and right."""
    boards = np.zeros((2, 10, 10))
    for x, y, goes_right in bullets:
        if 0 <= x <= 9:
            boards[int(goes_right), y, x] = 1
    return [bits(board) for board in boards]


def swimmer(one: list, is_sub: bool = False) -> int:
    x, y, goes_right, timer, *shot = one
    return x | y << 4 | timer << 8 | (shot or [0])[0] << 12 | int(goes_right) << 16 | is_sub << 17


def padded(values: list[int], length: int, with_what: int) -> list[int]:
    assert len(values) <= length
    return values + [with_what] * (length - len(values))


def breakout(game) -> dict:
    dx, dy = [(-1, -1), (1, -1), (1, 1), (-1, 1)][game.ball_dir]
    brick = sum(1 << i for i, there in enumerate(game.brick_map[1:4].ravel()) if there)
    return {
        "paddle_x": game.pos, "ball_x": game.ball_x, "ball_y": game.ball_y, "ball_dx": dx, "ball_dy": dy,
        "trail_x": game.last_x, "trail_y": game.last_y, "brick": brick, "strikes": game.strike,
    }  # fmt: skip


def asterix(game) -> dict:
    walker = [0 if one is None else 64 | one[0] | one[2] << 4 | one[3] << 5 for one in game.entities]
    names = ("player_x", "player_y", "spawn_speed", "spawn_timer", "move_speed", "move_timer", "ramp_timer")
    return {name: getattr(game, name) for name in (*names, "ramp_index")} | {"walker": walker}


def space_invaders(game) -> dict:
    return {
        "cannon_x": game.pos, "shot_timer": game.shot_timer, "alien": bits(game.alien_map),
        "bullet": bits(game.f_bullet_map), "alien_bullet": bits(game.e_bullet_map), "alien_dx": game.alien_dir,
        "alien_move_timer": game.alien_move_timer, "alien_shot_timer": game.alien_shot_timer,
        "move_interval": game.enemy_move_interval,
    }  # fmt: skip


def freeway(game) -> dict:
    x, _, timer, speed = np.transpose(game.cars).tolist()
    return {
        "chicken_y": game.pos, "move_timer": int(game.move_timer), "car_x": x, "car_timer": timer, "car_speed": speed,
    }  # fmt: skip


def seaquest(game) -> dict:
    enemies = [*map(swimmer, game.e_fish), *(swimmer(sub, is_sub=True) for sub in game.e_subs)]
    return {
        "sub_x": game.sub_x, "sub_y": game.sub_y, "faces_right": game.sub_or, "oxygen": game.oxygen,
        "num_aboard": game.diver_count, "is_up": game.surface, "shot_timer": game.shot_timer,
        "bullet": cells_of(game.f_bullets), "enemy_bullet": cells_of(game.e_bullets),
        "enemy": padded(enemies, 32, 0), "num_enemies": len(enemies),
        "diver": padded([*map(swimmer, game.divers)], 2, -1), "spawn_speed": game.e_spawn_speed,
        "spawn_timer": game.e_spawn_timer, "diver_timer": game.d_spawn_timer, "move_speed": game.move_speed,
        "ramp_index": game.ramp_index,
    }  # fmt: skip


STATES = {"breakout": breakout, "asterix": asterix, "space_invaders": space_invaders, "freeway": freeway,
          "seaquest": seaquest}  # fmt: skip


def towards(x: int, y: int, to_x: int, to_y: int) -> int:
    if y != to_y:
        return DOWN if to_y > y else UP
    return RIGHT if to_x > x else LEFT if to_x < x else NOTHING


def taste(name: str, game, random: np.random.RandomState) -> int:
    """What the player would like to do."""
    if name == "breakout":
        right = game.ball_dir in (1, 2)
        return towards(game.pos, 0, game.ball_x + (1 if right else -1) * random.randint(2), 0)
    if name == "asterix":
        gold = [one for one in game.entities if one is not None and one[3]]
        return towards(game.player_x, game.player_y, *gold[0][:2]) if gold else random.randint(6)
    if name == "space_invaders":
        return FIRE if game.shot_timer == 0 else random.choice([LEFT, RIGHT])
    if name == "freeway":
        return UP
    if game.sub_y == 0:
        return DOWN
    if (
        game.diver_count == 6
        or (game.diver_count != 0 and game.oxygen < 60)
        or (game.diver_count < 0 and random.rand() < 0.3)
    ):
        return UP
    if game.divers and game.diver_count < 6:
        return (
            FIRE
            if game.shot_timer == 0 and random.rand() < 0.3
            else towards(game.sub_x, game.sub_y, *game.divers[0][:2])
        )
    return FIRE if game.shot_timer == 0 else random.randint(6)


def choose(name: str, game, random: np.random.RandomState) -> int:
    """As the taste is, or anything; but hardly ever what ends the game at once."""
    first = taste(name, game, random) if random.rand() < (0.99 if name == "breakout" else 0.85) else random.randint(6)
    if name == "freeway" or random.rand() < 0.003:
        return first
    for action in [first, *random.permutation(6)]:
        ahead = copy.deepcopy(game)
        if not ahead.act(action)[1]:
            break
    return int(action)


def record(name: str, seed: int, num_transitions: int) -> dict[str, np.ndarray]:
    """`before_<array>`, `after_<array>`, and action, reward, is_over, observation of so many transitions."""
    from minatar import Environment

    environment = Environment(name, sticky_action_prob=0.0)
    environment.seed(seed)
    environment.reset()
    game, random, state, drawn = environment.env, np.random.RandomState(seed), STATES[name], {}

    def after_draws(method: str, make_timers_be: dict[str, str | int], is_move: bool = False) -> None:
        """Where this method of the game returns, the recorded transition begins."""
        draw = getattr(type(game), method)

        def drawing(self, *rest, **named):
            draw(self, *rest, **named)
            if self is game and not named.get("initialize"):
                found = state(self)
                for timer, value in make_timers_be.items():
                    found[timer] = found[value] if isinstance(value, str) else value
                drawn.update(found, is_move=is_move)

        setattr(type(game), method, drawing)
        undo.append((method, draw))

    undo: list = []
    if name == "asterix":
        after_draws("_spawn_entity", {"spawn_timer": "spawn_speed"})
    elif name == "freeway":
        after_draws("_randomize_cars", {"chicken_y": 9}, is_move=True)
    elif name == "seaquest":
        after_draws("_spawn_enemy", {"spawn_timer": "spawn_speed"})
        after_draws("_spawn_diver", {"diver_timer": 30})
    rows: dict[str, list] = {}
    try:
        for _ in range(num_transitions):
            if name == "seaquest" and random.rand() < 0.01:
                game.diver_count = random.randint(1, 7)  # as few players ever have
            before, action = state(game), choose(name, game, random)
            drawn.clear()
            reward, is_over = environment.act(action)
            is_move = drawn.pop("is_move", False)
            before.update(drawn)
            row = {f"before_{array}": value for array, value in before.items()}
            row |= {f"after_{array}": value for array, value in state(game).items()}
            row |= {"action": NOTHING if is_move else action, "reward": reward - is_move, "is_over": is_over}
            for array, value in (row | {"observation": environment.state()}).items():
                rows.setdefault(array, []).append(value)
            if is_over:
                environment.reset()
    finally:
        for method, draw in undo:
            setattr(type(game), method, draw)
    return {array: np.array(values) for array, values in rows.items()}


def small(array: np.ndarray) -> np.ndarray:
    """In the smallest type that holds it."""
    if array.dtype == bool:
        return array
    kinds = (np.int8, np.int16, np.int32, np.int64)
    return array.astype(next(kind for kind in kinds if (array == array.astype(kind)).all()))


def main() -> None:
    found = {"version": np.array(f"MinAtar {version('MinAtar')}")}
    for name in GAMES:
        for array, values in record(name, 1, NUM_TRANSITIONS).items():
            packed = np.packbits(values.reshape(len(values), -1), -1) if array == "observation" else small(values)
            found[f"{name}/{array}"] = packed
        print(name, int(found[f"{name}/is_over"].sum()), "games,", found[f"{name}/reward"].sum(), "paid")
    np.savez_compressed(FILE, **found)
    print(f"{FILE}: {FILE.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
