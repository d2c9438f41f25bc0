"""Tables that all envs share, pools that an own reset reads, arrays that are set in mid-run: by a maze.

#####
#S.##   a walker starts at (1, 1) or (3, 1) and sees walls to the right, below, to the left and above;
#.#G#   the goal at (2, 3) pays 1
#S..#
#####
"""

import re

import numpy as np
import pytest
import torch
from adapter_cases import TESTS

from warpdrive.backends import choose_backend
from warpdrive.env import FRAMEWORK_CONSTANTS
from warpdrive.env_wrapper import EnvWrapper
from warpdrive.errors import ArrayError, EnvError, KernelError

NAME = "maze.maze:Maze"
RIGHT, DOWN, LEFT, UP = range(4)


def maze(num_envs: int, device: str, **config: object) -> EnvWrapper:
    env = EnvWrapper(NAME, num_envs, device, env_config=config)
    env.reset()
    return env


def walk(env: EnvWrapper, *moves: int) -> list[tuple[float, bool, bool]]:
    """What each move brought env 0: reward, terminated, truncated."""
    found = []
    for move in moves:
        _, reward, terminated, truncated, _ = env.step(np.full((env.num_envs, 1), move))
        found.append((reward[0, 0].item(), terminated[0].item(), truncated[0].item()))
    return found


GOES_ON, CUT_OFF = (0.0, False, False), (0.0, False, True)


def test_a_walk_by_hand(device):
    env = maze(1, device)
    env.data["row"] = 3
    env.data["column"] = 1
    assert walk(env, DOWN, RIGHT, RIGHT) == [GOES_ON] * 3
    assert (env.data.pull("row")[0], env.data.pull("column")[0]) == (3, 3), "the wall below let nobody in"
    assert env.observation[0, 0].tolist() == [1, 1, 0, 0]
    *_, info = env.step(np.array([[UP]]))
    assert info["final_observation"][0, 0].tolist() == [1, 0, 1, 1]
    assert (env.data["reward"].item(), env.data["terminated"].item(), env.data["truncated"].item()) == (1, True, False)


def test_an_own_reset_draws_from_the_pool_and_reads_the_map_which_is_one_for_all_envs(device):
    env = maze(100, device)
    seen = env.observation[:, 0].cpu()
    starts = list(zip(env.data.pull("row"), env.data.pull("column"), map(tuple, seen.tolist()), strict=True))
    assert set(starts) == {(1, 1, (0, 0, 1, 1)), (3, 1, (0, 1, 1, 0))}
    assert env.data["pool_row"].tolist() == [1, 3] and env.data.pull("patience").tolist() == [4] * 100
    # a table is one for all envs, and no part of what follows from play
    assert env.data["wall"].shape == env.data["prize"].shape == (5, 5)
    assert env.data.bytes_held()["wall"] == 25
    assert {"wall", "prize"} < set(env.data) and not {"wall", "prize"} & set(env.data.names())
    assert "wall" not in env.data.snapshot() and "prize" in env.data.snapshot(), "the second may change"


def test_what_is_set_holds_at_once_after_every_restart_and_in_a_snapshot(device):
    env = maze(3, device)
    env.set("patience", 1)
    for _ in range(2):
        assert walk(env, UP) == [CUT_OFF]
    env.set("patience", np.array([5, 1, 2]))
    env.reset()
    assert env.data.pull("patience").tolist() == [5, 1, 2]
    prize = torch.zeros(5, 5, device=env.device)
    prize[1, 1] = prize[3, 1] = 0.5
    env.set("prize", prize)
    assert walk(env, LEFT) == [(0.5, True, False)]
    saved = env.data.snapshot()
    env.set("patience", 4)
    env.set("prize", 0.0)
    env.data.restore(saved)
    assert walk(env, LEFT) == [(0.5, True, False)] and env.data.pull("patience").tolist() == [5, 1, 2]


@pytest.mark.parametrize(
    ("name", "values", "message"),
    [
        ("wall", True, "^env 'maze': 'wall' cannot be set. Settable are: patience, prize; Maze.settable lists them.$"),
        ("prise", 0.0, "'prise' cannot be set. Settable are: patience, prize; "),
        ("prize", np.zeros((5, 4), np.float32), r"array 'prize' is \[5, 5\]: \[5, 4\] cannot be written into it."),
        ("patience", [1, 2, 3], r"array 'patience' is \[2\]: list cannot"),
        ("patience", 2.5, "array 'patience' is int32: float32 cannot be written into it unchanged."),
        ("prize", np.nan, "'prize' cannot be set to a NaN or an infinity. Set it to numbers."),
    ],
)
def test_what_cannot_be_set_is_refused_and_nothing_changes(name, values, message):
    env = maze(2, "cpu")
    before = {name: array.clone() for name, array in env.data.items()}
    with pytest.raises((EnvError, ArrayError), match=message):
        env.set(name, values)
    assert all(torch.equal(before[name], array) for name, array in env.data.items())


def test_debug_mode_names_a_table_that_is_read_beyond_its_end():
    env = EnvWrapper(NAME, 2, backend=choose_backend("cpu", debug=True), env_config={"map": "S#G"})
    with pytest.raises(KernelError, match=r"maze.cu:\d+: index [34] is out of range of 'wall', .* \(shape \[1, 3\]\)"):
        env.reset()


def test_every_number_that_the_framework_adds_to_an_envs_is_one_it_may_not_have():
    env = maze(2, "cpu")
    text = env.functions.source.constants + env._reset._functions.source.constants
    added = set(re.findall(r"(\w+) =", text)) - set(env.env.constants())
    assert added == set(FRAMEWORK_CONSTANTS)


def test_the_manual_shows_this_maze():
    """Lines of the section, but for what it leaves out by `...`."""
    page = (TESTS.parent / "docs" / "write_an_env.md").read_text()
    section = page[page.index("### A maze") : page.index("## 3. ")]
    shown = [line.strip() for block in section.split("```")[1::2] for line in block.splitlines()[1:]]
    files = [(TESTS / "warpdrive/envs/maze" / name).read_text() for name in ("maze.py", "maze.cu")]
    real = {line.strip() for text in files for line in text.splitlines()}
    assert len(shown) > 20
    assert not [line for line in shown if line and "..." not in line and line not in real]
