import numpy as np
import pytest

from warpdrive.drawing import (
    GREY,
    Drawing,
    agent_circles,
    between,
    cells,
    circles,
    formatted,
    grid_lines,
    one_of,
    outline,
    polygons,
    rectangles,
    segments,
    texts,
    top_channel,
)
from warpdrive.env import load_env
from warpdrive.errors import EnvError
from warpdrive.player import Film, film_of

RED, BLUE, BLACK = "#ff0000", "#0000ff", "#000000"


def episode_of(env, num_frames=3, **arrays):
    """What a recorder would pull of an episode in which nothing moves."""
    frames = {name: np.repeat(np.asarray(one)[np.newaxis], num_frames, 0) for name, one in env.arrays().items()}
    return frames | arrays


def test_axes_are_frame_shape_point():
    x = np.arange(6.0)
    assert circles(x, 0 * x, 1.0).x.shape == (6, 1, 1)
    assert circles(x.reshape(3, 2), 0.0, 1.0).y.shape == (3, 2, 1)
    assert segments([[0.0, 1.0]], [[0.0, 0.0]]).x.shape == (1, 1, 2)
    assert polygons(x.reshape(2, 3), 0.0).x.shape == (2, 1, 3)
    with pytest.raises(EnvError, match=r"\[frame, shape, point\], got \[6\]"):
        segments(x, x)


def test_outline_and_grid_lines_are_where_they_say():
    wall = outline(0, 0, 4, 2)
    corners = np.stack([wall.x, wall.y], -1)[0].tolist()
    assert corners == [[[0, 0], [4, 0]], [[4, 0], [4, 2]], [[4, 2], [0, 2]], [[0, 2], [0, 0]]]
    lines = grid_lines(2, 1)  # 3 upright, 2 across
    assert lines.x[0].tolist() == [[-0.5, -0.5], [0.5, 0.5], [1.5, 1.5], [-0.5, 1.5], [-0.5, 1.5]]
    assert lines.y[0].tolist() == [[-0.5, 0.5]] * 3 + [[-0.5, -0.5], [0.5, 0.5]]
    box = rectangles(np.array([0.0, 1.0]), 0.0, np.array([2.0, 3.0]), 1.0)
    assert box.x[:, 0].tolist() == [[0, 2, 2, 0], [1, 3, 3, 1]] and box.y[1, 0].tolist() == [0, 0, 1, 1]


def said(choice) -> list:
    """What a Choice comes to: its options in the place of numbers."""
    return np.array(choice.options, object)[choice.index.astype(int)].tolist()


@pytest.mark.parametrize(
    ("choice", "comes_to"),
    [
        (one_of([0, 1, 0], [RED, None]), [[RED], [None], [RED]]),  # [frame] is of one shape
        (one_of(1, [RED, BLUE]), [[BLUE]]),
        (one_of([[True, False]], ["idle", "busy"]), [["busy", "idle"]]),
        (between([[0.0, 31.0, -5.0, 99.0]], 0, 31, BLACK, RED), [[BLACK, RED, BLACK, RED]]),
        (between([[1, 30]], 31, 0, BLACK, "#1f1f1f"), [["#1e1e1e", "#010101"]]),  # 32 shades, from high to low
        (formatted([[1, 2], [2, 10]], "{:d} m"), [["1 m", "2 m"], ["2 m", "10 m"]]),
        (formatted(np.float32([0.1, 0.12, np.nan]), "{:.1f}"), [["0.1"], ["0.1"], ["nan"]]),
        (top_channel([[[0, 0], [1, 0], [0, 1], [1, 1]]], [RED, BLUE]), [[None, RED, BLUE, BLUE]]),
        (top_channel(np.uint8([[[255, 0]], [[0, 9]]]), [RED, BLUE], axis=0, empty=BLACK), [[RED, BLUE]]),
    ],
)
def test_choices_come_to_what_arrays_say(choice, comes_to):
    assert said(choice) == comes_to


def test_cells_lie_where_their_row_and_column_say():
    grid = np.array([[0, 0, 0], [1, 0, 0]])  # row 1, column 0
    upwards, downwards = cells(one_of(grid, [BLUE, RED])), cells(one_of(grid, [BLUE, RED]), (0, 0, 6, 4), from_top=True)
    assert (upwards.x.tolist(), upwards.y.tolist()) == ([[[-0.5, 2.5]]], [[[-0.5, 1.5]]])
    assert said(upwards.colour) == [[[RED, BLUE, BLUE], [BLUE, BLUE, BLUE]]]  # as seen: the highest first
    assert (downwards.x.tolist(), downwards.y.tolist()) == ([[[0, 6]]], [[[0, 4]]])
    assert said(downwards.colour) == [[[BLUE, BLUE, BLUE], [RED, BLUE, BLUE]]]


def test_texts_say_one_thing_or_one_each_and_stand_where_told():
    still, each = texts(1.0, 2.0, "goal"), texts([[0.0, 1.0, 2.0]], 5.0, ["a", "b", "a"], 0.5, group="agent")
    assert (still.x.tolist(), still.y.tolist(), said(still.words)) == ([[[1.0]]], [[[2.0]]], [["goal"]])
    assert (said(each.words), each.size, each.group, each.colour) == ([["a", "b", "a"]], 0.5, "agent", None)
    assert texts([0.0, 1.0], 0.0, formatted([3, 4], "{}")).words.index.shape == (2, 1)


def test_view_without_bounds_holds_all_that_moves():
    view = Drawing([circles([[0.0, 10.0]], [[0.0, 5.0]], 1.0)]).view
    assert view == pytest.approx((-1.4, -1.4, 11.4, 6.4))  # a radius and 4 % of the longer side
    assert Drawing([]).view[2] > Drawing([]).view[0]
    assert Drawing([circles([3.0], [3.0], 0.0)]).view == (2.0, 2.0, 4.0, 4.0)


def test_every_agent_is_a_circle_of_its_group():
    env = load_env("tag_gridworld", {"num_taggers": 2})
    x = np.arange(6.0).reshape(2, 3)
    active = np.array([[True, True, True], [True, False, True]])
    colour = one_of(~active, [RED, BLUE])
    taggers, runner = agent_circles(env, x, -x, {"tagger": 1.0, "runner": 2.0}, active, colour)
    assert said(taggers.colour) == [[RED, RED], [RED, BLUE]] and said(runner.colour) == [[RED], [RED]]
    assert (taggers.group, taggers.size, taggers.tail) == ("tagger", 1.0, True)
    assert taggers.x[..., 0].tolist() == [[0, 1], [3, 4]] and taggers.active.tolist() == [[True, True], [True, False]]
    assert (runner.size, runner.y[..., 0].tolist()) == (2.0, [[-2], [-5]])


class TestDefault:
    def draw(self, x, y, **arrays):
        env = load_env("tag_gridworld", {"num_taggers": 2})
        env.drawing = super(type(env), env).drawing  # Env's own
        return film_of(env, {"x": x, "y": y, **arrays})

    def test_arrays_x_and_y_are_agents_hollow_unless_active_and_then_other_things(self):
        x, active = np.arange(8.0).reshape(2, 4), np.array([[True] * 3, [True, True, False]])
        other, taggers, runner = self.draw(x, x, active=active).drawing.shapes
        assert runner.active.tolist() == [[True], [False]] and taggers.active.all()
        assert other.x.ravel().tolist() == [3, 7] and other.group is None and other.label == "other"
        assert taggers.x[..., 0].tolist() == [[0, 1], [4, 5]] and runner.x.ravel().tolist() == [2, 6]
        assert taggers.size == pytest.approx(0.015 * 7)

    def test_env_without_positions_says_which_method_to_write(self):
        env = load_env("pendulum")
        env.drawing = super(type(env), env).drawing
        with pytest.raises(EnvError, match=r"'pendulum' has nothing to draw.*drawing\(self, episode\).*drawing\.py"):
            film_of(env, episode_of(env))


def test_legend_has_a_line_for_a_label_and_for_a_named_colour():
    names = {"floor": None, "wall": BLACK, "pot": RED}
    shapes = [
        circles([0.0], [0.0], 1.0, label="landmark", colour=GREY),
        circles([0.0], [0.0], 1.0, label="landmark", colour=GREY),
        cells(one_of([[1, 2]], names)),
        cells(one_of([[1, 2]], names), label="seen"),
        circles([0.0], [0.0], 1.0, label="health", colour=between([1.0], 0, 1, RED, BLUE)),
        circles([0.0], [0.0], 1.0, colour=one_of([0], [RED])),
        cells(top_channel([[[True]]], {"wall": BLACK}), label="kept"),
    ]
    legend = Film(Drawing(shapes), {}, {}, 1).legend
    walls = [(BLACK, "wall"), (RED, "pot"), (BLACK, "seen: wall"), (RED, "seen: pot")]
    assert legend == [(GREY, "landmark"), *walls, (RED, "health"), (BLACK, "kept: wall")]


def dots(colour=None, **look):
    return circles(np.zeros((3, 2)), 0.0, 1.0, colour=colour, **look)


@pytest.mark.parametrize(
    ("shapes", "words"),
    [
        (dots(one_of(np.zeros((3, 2)), [RED])), "colour is counted in float64, expected whole numbers"),
        (dots(one_of([0, 0, 0], [RED])), r"colour is \[3, 1\], expected \[3, 2\] \(frame first\), or a single frame"),
        (dots(one_of([[0, 0]] * 2, [RED]), label="ball"), r"shapes 0 \(ball\): colour is \[2, 2\], expected \[3, 2\]"),
        (
            dots(one_of([[0, 1], [1, 2], [0, 0]], [RED, BLUE])),
            "colour is number 2 in frame 1, but there are 2, counted",
        ),
        (dots(one_of([[0, -1]], [RED, BLUE])), "colour is number -1 in frame 0"),
        (dots(one_of([[0, 0]], [RED, "blue"])), "have the colour 'blue'. Give it as '#rrggbb'"),
        (cells(one_of(np.zeros((2, 4, 4), int), [RED])), r"colour is \[2, 4, 4\], expected \[3, 4, 4\]"),
        (cells(one_of([[0, 7]], [RED])), "colour is number 7 in frame 0, but there are 1"),
        (texts(np.zeros((3, 2)), 0.0, ["a", "b", "c"]), r"text is \[1, 3\], expected \[3, 2\]"),
        (texts(0.0, 0.0, "two\nlines"), r"have the text 'two\\nlines'. Give a string of one line"),
        (texts(0.0, 0.0, one_of([0], [7])), "have the text 7. Give a string"),
        (texts(0.0, 0.0, "a", align="top"), "are aligned 'top'. Say one of left, middle, right"),
        (texts([[0.0] * 70_000], 0.0, formatted([np.arange(70_000)], "{}")), "has 70000 options, more than 65536"),
        (circles(np.zeros(2), 0.0, 1.0), "shapes 0 have 2 frames, the episode has 3"),
        (circles([0.0, np.nan, 0.0], 0.0, 1.0), "shapes 0 have a NaN or an infinity in frame 1"),
        (circles([0.0], 0.0, 1.0, group="taggers"), "are of group 'taggers', but there are agent"),
        (circles([0.0], 0.0, 1.0, colour="red"), "have the colour 'red'. Give it as '#rrggbb'"),
        (circles([0.0], 0.0, 1.0, active=np.ones(3, bool)), r"`active` \[3\], expected \[3, 1\]"),
    ],
)
def test_shapes_that_contradict_themselves_are_named(shapes, words):
    env = load_env("cartpole")
    env.drawing = lambda episode: Drawing([shapes])
    with pytest.raises(EnvError, match=rf"env 'cartpole': drawing\(\): .*{words}"):
        film_of(env, episode_of(env))


@pytest.mark.parametrize(
    ("draw", "words"),
    [
        (lambda: cells(np.zeros((2, 2), int)), r"got a ndarray. Give one_of\(array, palette\)"),
        (lambda: cells(one_of(np.zeros((1, 2, 2, 2), int), [RED])), r"or \[row, column\], got \[1, 2, 2, 2\]"),
        (lambda: cells(one_of([[0]], [RED]), (0, 4, 4, 0)), r"left < right, got \(0, 4, 4, 0\)"),
        (lambda: top_channel(np.zeros((2, 2, 4)), [RED]), r"4 channels on axis -1 of \[2, 2, 4\], but 1 colours"),
        (lambda: between([np.nan], 0, 1, RED, BLUE), "without NaN or infinity"),
        (lambda: between([0.0], 1, 1, RED, BLUE), "two different ends, got 1 and 1"),
        (lambda: between([0.0], 0, 1, RED, "blue"), "there is no colour 'blue'"),
        (lambda: formatted([0.5], "{:d}"), "cannot write float64 as '{:d}'"),
    ],
)
def test_choices_that_cannot_be_are_refused(draw, words):
    with pytest.raises(EnvError, match=words):
        draw()


@pytest.mark.parametrize(
    ("drawing", "words"),
    [
        (lambda episode: [], "returned a list. Return a Drawing"),
        (lambda episode: Drawing([], bounds=(0, 0, 0, 1)), "bounds are left, bottom, right, top"),
        (lambda episode: Drawing([circles(episode["observation"], 0.0, 1.0)]),
         r"drawing\(\) asks for 'observation', but what it gets is: x, y"),
    ],
)  # fmt: skip
def test_drawing_that_is_none_or_is_of_what_is_not_recorded_is_refused(drawing, words):
    env = load_env("cartpole")
    env.drawing = drawing
    with pytest.raises(EnvError, match=words):
        film_of(env, {"x": np.zeros(3), "y": np.zeros(3)})


def test_returns_are_mean_rewards_so_far():
    env = load_env("tag_gridworld", {"num_taggers": 2})
    reward = np.array([[9, 9, 9], [1, 3, -1], [2, 2, 5]], np.float32)  # frame 0 is of what was before
    film = film_of(env, episode_of(env, reward=reward, terminated=np.array([False, False, True])))
    assert film.returns["tagger"].tolist() == [0.0, 2.0, 4.0]
    assert film.returns["runner"].tolist() == [0.0, -1.0, 4.0]
    assert film.ending == "terminated"
