"""Overcooked against JaxMARL's, and its rules by hand."""

import json
from pathlib import Path

import numpy as np
import pytest
from oracles.record_overcooked import JAXMARL, digest

from cuda_envs.overcooked.overcooked import LAYOUTS
from warpdrive.env import load_env
from warpdrive.env_wrapper import EnvWrapper
from warpdrive.errors import ConfigError, EnvError

ORACLES = Path(__file__).parents[1] / "oracles"

UP, DOWN, RIGHT, LEFT, STAY, INTERACT = range(6)
NOTHING, ONION, PLATE, SOUP = range(4)
pytestmark = pytest.mark.usefixtures("built_quickly")
STATE = ("cell", "heading", "holds", "lies", "pot", "time_step")


@pytest.fixture(scope="module")
def oracle():
    with np.load(ORACLES / "overcooked.npz") as file:
        found = dict(file)
    told = json.loads(found.pop("told").tobytes())
    assert told["jaxmarl"] == JAXMARL
    return told["layouts"], found


def put(env: EnvWrapper, **arrays) -> None:
    for name, values in arrays.items():
        env.data[name] = np.asarray(values, env.data.pull(name).dtype)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_step_equals_jaxmarls(layout, oracle, backend):
    layouts, arrays = oracle
    assert list(LAYOUTS) == layouts
    theirs = {name.partition(".")[2]: value for name, value in arrays.items() if name.startswith(f"{layout}.")}
    assert len(theirs["action"]) * len(layouts) >= 10_000
    env = EnvWrapper("overcooked", len(theirs["action"]), backend=backend, env_config={"layout": layout})
    put(env, action=theirs["action"], shaping=np.full(env.num_envs, 0.5), **{name: theirs[name] for name in STATE})
    env.prepare_step()()
    for name in STATE:
        np.testing.assert_array_equal(env.data.pull(name), theirs[f"after_{name}"], name)
    np.testing.assert_array_equal(env.data.pull("reward"), theirs["reward"] + 0.5 * theirs["shaped"])
    np.testing.assert_array_equal(env.data.pull("truncated"), theirs["ended"])
    assert not env.data.pull("terminated").any()
    for name in ("num_delivered", "soups"):
        np.testing.assert_array_equal(env.data.pull(name), theirs["reward"][:, 0] / 20)
    views = env.data.pull("observation")
    np.testing.assert_array_equal(views[: len(theirs["observation"])], theirs["observation"])
    assert [digest(view) for view in views] == [bytes(row) for row in theirs["digest"]]
    # What was drawn at random reached every rule.
    paid = set(theirs["shaped"].ravel().tolist())
    assert paid >= {0.0, 3.0, 5.0} and set(theirs["reward"].ravel().tolist()) >= {0.0, 20.0}
    assert theirs["ended"].any() and not theirs["ended"].all()
    stays = (theirs["action"] < STAY) & (theirs["after_cell"] == theirs["cell"])
    assert stays.any() and (theirs["after_lies"] != theirs["lies"]).any()


def play(env: EnvWrapper, *steps: tuple[int, int]) -> list[list[float]]:
    return [env.step(np.tile(step, (env.num_envs, 1)).astype(np.int32))[1][0].tolist() for step in steps]


@pytest.fixture
def kitchen(backend):
    """A cramped room, 5 x 4: 0 stands at row 1, column 1, 1 at row 1, column 3; the pot is at row 0, column 2."""
    env = EnvWrapper("overcooked", 1, backend=backend, env_config={"shaping": 1.0})
    env.reset(seed=1)
    put(env, heading=[[LEFT, RIGHT]])
    return env


def test_three_onions_twenty_steps_and_a_plate_are_a_soup(kitchen):
    """0 carries onions from its left to the pot, 1 brings a plate from below, and delivers where cook 0 is not."""
    fetch = [(INTERACT, STAY), (RIGHT, STAY), (UP, STAY), (INTERACT, STAY), (LEFT, STAY), (LEFT, STAY)]
    paid = play(kitchen, *fetch * 2, *fetch[:4])
    assert [step[0] for step in paid if any(step)] == [3, 3, 3] and not any(step[1] for step in paid)
    assert kitchen.data.pull("pot").tolist() == [[19]]  # the third onion has cooked for a step
    assert kitchen.data.pull("observation")[0, 1, 0, 2, [10, 16, 18, 20, 21]].tolist() == [1, 0, 3, 19, 0]
    # Cook 0 leaves the place below the pot; 1 takes a plate from row 3, column 1, by way of row 2.
    steps = [(LEFT, DOWN), (STAY, LEFT), (STAY, LEFT), (STAY, DOWN)]
    assert play(kitchen, *steps) == [[0, 0]] * 4
    assert play(kitchen, (STAY, INTERACT)) == [[0, 3]]  # it is of use: a pot is
    assert play(kitchen, *[(STAY, STAY)] * 14)[-1] == [0, 0]
    assert kitchen.data.pull("pot").tolist() == [[0]]
    assert play(kitchen, (STAY, RIGHT), (STAY, UP), (STAY, UP), (STAY, INTERACT))[-1] == [0, 5]
    assert kitchen.data.pull("pot").tolist() == [[23]] and kitchen.data.pull("holds").tolist() == [[0, SOUP]]
    assert play(kitchen, (STAY, DOWN), (STAY, RIGHT), (STAY, DOWN), (STAY, INTERACT))[-1] == [20, 20]
    assert kitchen.data.pull("num_delivered").tolist() == [1] and kitchen.data.pull("holds").tolist() == [[0, 0]]


def test_a_plate_is_put_on_a_counter_and_taken_by_the_other(backend):
    env = EnvWrapper("overcooked", 1, backend=backend, env_config={"layout": "WPWWW O0W1O W.W.W WBWXW", "shaping": 1.0})
    env.reset()
    put(env, heading=[[RIGHT, LEFT]], holds=[[PLATE, NOTHING]])
    assert play(env, (INTERACT, INTERACT)) == [[0, 0]]  # in one step: the first cook comes first
    assert env.data.pull("holds").tolist() == [[NOTHING, PLATE]] and not env.data.pull("lies").any()


def test_nobody_enters_the_others_cell_or_swaps(kitchen):
    put(kitchen, cell=[[6, 7]])
    play(kitchen, (RIGHT, LEFT))
    assert kitchen.data.pull("cell").tolist() == [[6, 7]]  # they would swap
    play(kitchen, (RIGHT, STAY))
    assert kitchen.data.pull("cell").tolist() == [[6, 7]] and kitchen.data.pull("heading").tolist() == [[RIGHT, LEFT]]
    put(kitchen, cell=[[6, 8]])
    play(kitchen, (RIGHT, LEFT))
    assert kitchen.data.pull("cell").tolist() == [[6, 8]]  # both wanted the cell between them
    put(kitchen, cell=[[6, 7]])
    play(kitchen, (RIGHT, RIGHT))
    assert kitchen.data.pull("cell").tolist() == [[7, 8]]  # the other leaves in the same step


def test_shaping_is_changed_in_mid_run_and_outlasts_restarts(kitchen):
    put(kitchen, cell=[[7, 8]], heading=[[UP, UP]], holds=[[ONION, NOTHING]])
    kitchen.set("shaping", 0.25)
    assert play(kitchen, (INTERACT, STAY)) == [[0.75, 0]]
    kitchen.reset()
    assert kitchen.data.pull("shaping").tolist() == [0.25]


@pytest.mark.parametrize("random_reset", [False, True])
def test_starts_follow_their_law(random_reset, backend):
    num_envs = 6_000
    env = EnvWrapper("overcooked", num_envs, backend=backend, env_config={"random_reset": random_reset})
    env.reset(seed=4)
    data = {name: env.data.pull(name) for name in ("cell", "heading", "holds", "pot", "time_step")}

    def is_even(values, options):
        counts = np.bincount(values.ravel(), minlength=max(options) + 1)[options]
        expected = values.size / len(options)
        assert counts.sum() == values.size and (np.abs(counts - expected) < 5 * expected**0.5).all()

    is_even(data["heading"], list(range(4)))
    if random_reset:
        is_even(data["cell"], [6, 7, 8, 11, 12, 13])
        is_even(data["holds"], list(range(4)))
        is_even(data["pot"], list(range(24)))
        assert (data["cell"][:, 0] != data["cell"][:, 1]).all()
    else:
        assert (data["cell"] == [6, 8]).all() and not data["holds"].any() and (data["pot"] == 23).all()


@pytest.mark.parametrize(
    ("layout", "words"),
    [
        ("cramped", "neither one of cramped_room, .* nor at least 3 rows of cells of one length"),
        ("WWW W0Z WWW", "there is no cell 'Z'"),
        ("WPW W0W WWW", "write each of the cooks 0 and 1 once"),
        ("WPW.W W0.1W WWWWW", "there is floor at its edge. Put counters W all around."),
        ("WWPWW W0.1W WBWXW", "no soup can be made and delivered without onions O. Write at least one."),
        ("WWPWW O0.1O WWWXW", "without plates B. Write"),
        ("WWWWW O0.1O WBWXW", "without a pot P. Write"),
        ("WWPWW O0.1O WBWWW", "without a place of delivery X. Write"),
        ("WWPWW W0.1W WWWWW", "without onions O, plates B, a place of delivery X. Write at least one of each."),
    ],
)
def test_a_kitchen_that_cannot_be_is_refused(layout, words):
    env = type(load_env("overcooked"))
    with pytest.raises(EnvError, match=words):
        env(env.Config(layout=layout))


@pytest.mark.parametrize(
    ("layout", "words"),
    [
        ("WWWPW O0.WW W.1WW WBXWW", "no cook can get to a pot P (row 0, column 3), counted from 0. Leave a way to it."),
        ("WWPWWW W0.1WO WBXWWW", "no cook can get to onions O (row 1, column 5), counted from 0. Leave a way to it."),
        (
            "WWPWWWW O0.1W.W WXWWWBW",
            "no cook can get to plates B (row 2, column 5), counted from 0. Leave a way to it.",
        ),
        (
            "WWWWWWWWP O0W1WX.WW WBWWWWWWW",
            "no cook can get to a pot P (row 0, column 8), a place of delivery X (row 1, column 5), counted "
            "from 0. Leave a way to one of each.",
        ),
        (
            "WWWWWW O0WW1P WBWWXW",
            "cook 0 gets to onions O, plates B, cook 1 to a pot P, a place of delivery X, and there is no counter W "
            "between them. Put one beside which both can stand.",
        ),
        (  # both fill the pot between them, but who has plates cannot deliver
            "WOWOWW W0P1XW WBWWWW",
            "cook 0 gets to onions O, plates B, a pot P, cook 1 to onions O, a pot P, a place of delivery X, and",
        ),
        (  # neither can leave its cell for the other's
            "WPWW O01X WBWW",
            "cook 0 gets to onions O, plates B, a pot P, cook 1 to a place of delivery X, and there is no counter W",
        ),
        (  # both come to the middle, where nothing can be put down
            "WWPWW O0.1X WBPWW",
            "cook 0 gets to onions O, plates B, a pot P, cook 1 to a pot P, a place of delivery X, and there is no",
        ),
    ],
)
def test_a_kitchen_of_which_cooks_cannot_get_to_all_that_a_soup_takes_is_refused(layout, words):
    with pytest.raises(ConfigError) as caught:
        load_env("overcooked", {"layout": layout})
    assert words in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "layout",
    [
        *LAYOUTS,
        "WPWWW O0W1X WBWWW",  # over the counter between them soups are handed
        "WOWBW W0P1X WWWWW",  # one fills the pot between them, the other serves
        "WWWWPOW W1WW0.W WWWWBXW",  # the other cook is not needed
        "WPWWWW O0.1XW WBWWPO",  # nor are the other pot and the other onions
        "WPWWW O01.X WBW.W WWWWW",  # one makes way where the corridor turns
    ],
)
def test_a_kitchen_in_which_cooks_can_make_a_soup_is_taken(layout):
    assert load_env("overcooked", {"layout": layout}).rows
