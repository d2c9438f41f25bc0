from __future__ import annotations

import numpy as np
import pytest

from warpdrive.drawing import Drawing, agent_circles, circles, grid_lines, outline, polygons, rectangles, segments
from warpdrive.env import load_env
from warpdrive.errors import EnvError
from warpdrive.player import film_of


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


def test_view_without_bounds_holds_all_that_moves():
    view = Drawing([circles([[0.0, 10.0]], [[0.0, 5.0]], 1.0)]).view
    assert view == pytest.approx((-1.4, -1.4, 11.4, 6.4))  # a radius and 4 % of the longer side
    assert Drawing([]).view[2] > Drawing([]).view[0]
    assert Drawing([circles([3.0], [3.0], 0.0)]).view == (2.0, 2.0, 4.0, 4.0)


def test_every_agent_is_a_circle_of_its_group():
    env = load_env("tag_gridworld", {"num_taggers": 2})
    x = np.arange(6.0).reshape(2, 3)
    active = np.array([[True, True, True], [True, False, True]])
    taggers, runner = agent_circles(env, x, -x, {"tagger": 1.0, "runner": 2.0}, active)
    assert (taggers.group, taggers.size, taggers.tail) == ("tagger", 1.0, True)
    assert taggers.x[..., 0].tolist() == [[0, 1], [3, 4]] and taggers.active.tolist() == [[True, True], [True, False]]
    assert (runner.size, runner.y[..., 0].tolist()) == (2.0, [[-2], [-5]])


class TestDefault:
    def draw(self, x, y, **arrays):
        env = load_env("tag_gridworld", {"num_taggers": 2})
        env.drawing = super(type(env), env).drawing  # Env's own
        return film_of(env, {"x": x, "y": y, **arrays})

    def test_arrays_x_and_y_are_agents_and_then_other_things(self):
        x = np.arange(8.0).reshape(2, 4)
        other, taggers, runner = self.draw(x, x).drawing.shapes
        assert other.x.ravel().tolist() == [3, 7] and other.group is None and other.label == "other"
        assert taggers.x[..., 0].tolist() == [[0, 1], [4, 5]] and runner.x.ravel().tolist() == [2, 6]
        assert taggers.size == pytest.approx(0.015 * 7)

    def test_who_is_not_active_is_hollow(self):
        x, active = np.zeros((2, 3)), np.array([[True] * 3, [True, True, False]])
        _, runner = self.draw(x, x, active=active).drawing.shapes
        assert runner.active.tolist() == [[True], [False]]

    def test_env_without_positions_says_which_method_to_write(self):
        env = load_env("pendulum")
        env.drawing = super(type(env), env).drawing
        with pytest.raises(EnvError, match=r"'pendulum' has nothing to draw.*drawing\(self, episode\).*drawing\.py"):
            film_of(env, episode_of(env))


@pytest.mark.parametrize(
    ("shapes", "words"),
    [
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


def test_drawing_that_is_none_is_refused():
    env = load_env("cartpole")
    env.drawing = lambda episode: []
    with pytest.raises(EnvError, match="returned a list. Return a Drawing"):
        film_of(env, episode_of(env))
    env.drawing = lambda episode: Drawing([], bounds=(0, 0, 0, 1))
    with pytest.raises(EnvError, match="bounds are left, bottom, right, top"):
        film_of(env, episode_of(env))


def test_drawing_of_what_is_not_recorded_is_told_what_is():
    env = load_env("cartpole")
    env.drawing = lambda episode: Drawing([circles(episode["observation"], 0.0, 1.0)])
    with pytest.raises(EnvError, match=r"drawing\(\) asks for 'observation', but what it gets is: x, y"):
        film_of(env, {"x": np.zeros(3), "y": np.zeros(3)})


def test_returns_are_mean_rewards_so_far():
    env = load_env("tag_gridworld", {"num_taggers": 2})
    reward = np.array([[9, 9, 9], [1, 3, -1], [2, 2, 5]], np.float32)  # frame 0 is of what was before
    film = film_of(env, episode_of(env, reward=reward, terminated=np.array([False, False, True])))
    assert film.returns["tagger"].tolist() == [0.0, 2.0, 4.0]
    assert film.returns["runner"].tolist() == [0.0, -1.0, 4.0]
    assert film.ending == "terminated"
