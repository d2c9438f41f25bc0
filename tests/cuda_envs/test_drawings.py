"""What the shipped envs look like: places that can be worked out by hand."""

import math

import numpy as np
import pytest
from adapter_cases import MANY_ENVS, NUM_ENVS, name_of

from warpdrive.drawing import arrays_to_draw
from warpdrive.env import load_env
from warpdrive.env_wrapper import EnvWrapper
from warpdrive.player import film_of
from warpdrive.recorder import EpisodeRecorder
from warpdrive.testing import random_actions


def frames(**arrays):
    return {name: np.asarray(values, np.float64) for name, values in arrays.items()}


@pytest.mark.usefixtures("built_quickly")
@pytest.mark.parametrize(("name", "config"), [case for case in MANY_ENVS if ":" not in case[0]], ids=name_of)
def test_every_shipped_env_draws_a_whole_episode(name, config, backend):
    env = EnvWrapper(name, NUM_ENVS, backend=backend, seed=3, env_config=config)
    recorder = EpisodeRecorder(env, [*arrays_to_draw(env.env), "reward"], env_index=1)
    env.reset()
    recorder.start()
    for action in random_actions(env.env, NUM_ENVS, 30):
        env.step(action)
    film = film_of(env.env, recorder.pull())
    drawn = {shapes.group for shapes in film.drawing.shapes}
    assert drawn - {None} == set(env.groups)
    assert film.ending in ("terminated", "truncated")
    if film.drawing.bounds is not None:  # agents stay in the picture
        left, bottom, right, top = film.view
        for shapes in film.drawing.shapes:
            if shapes.group is not None:
                assert left <= shapes.x.min() and shapes.x.max() <= right
                assert bottom <= shapes.y.min() and shapes.y.max() <= top


def test_pole_leans_to_the_right_where_theta_is_positive():
    *_, pole, _ = load_env("cartpole").drawing(frames(x=[0.5], theta=[math.pi / 6])).shapes
    assert pole.x[0, 0].tolist() == pytest.approx([0.5, 0.5 + 0.5])  # a pole of length 1
    assert pole.y[0, 0].tolist() == pytest.approx([0.0, math.sqrt(3) / 2])


def test_acrobot_hangs_at_zero_and_is_stretched_upwards_at_pi():
    env = load_env("acrobot")
    hanging, up, folded = (env.drawing(frames(theta1=[a], theta2=[b])) for a, b in [(0, 0), (math.pi, 0), (0, math.pi)])
    tips = [(drawing.shapes[1].x[0, 1, 1], drawing.shapes[1].y[0, 1, 1]) for drawing in (hanging, up, folded)]
    np.testing.assert_allclose(tips, [(0, -2), (0, 2), (0, 0)], atol=1e-12)


def test_pendulum_stands_at_zero_and_turns_to_the_left():
    rod = load_env("pendulum", {"length": 2.0}).drawing(frames(theta=[0.0, math.pi / 2])).shapes[1]
    np.testing.assert_allclose(rod.x[:, 0], [[0, 0], [0, -2]], atol=1e-12)
    np.testing.assert_allclose(rod.y[:, 0], [[0, 2], [0, 0]], atol=1e-12)


@pytest.mark.parametrize(("name", "goal"), [("mountain_car", 0.5), ("continuous_mountain_car", 0.45)])
def test_car_stands_on_the_hill_and_the_flag_at_the_goal(name, goal):
    _, pole, _, car, wheels = load_env(name).drawing(frames(position=[-math.pi / 6])).shapes
    assert pole.x[0, 0].tolist() == [goal, goal]
    assert car.x[0, 0].mean() == pytest.approx(-math.pi / 6, abs=0.01)  # the valley, where the car is level
    assert np.ptp(wheels.y) == pytest.approx(0.0, abs=1e-9)
    assert wheels.y[0, 0, 0] == pytest.approx(0.1 + 0.025)  # a wheel's radius above the track


def test_taggers_that_share_a_cell_stand_beside_each_other():
    env = load_env("tag_gridworld", {"num_taggers": 3})
    _, _, taggers, runner = env.drawing(frames(x=[[5, 5, 5, 0]], y=[[5, 5, 5, 0]])).shapes
    places = np.stack([taggers.x, taggers.y], -1)[0, :, 0]
    distances = np.linalg.norm(places[:, np.newaxis] - places, axis=-1)[np.triu_indices(3, 1)]
    assert (distances > 0.2).all() and (np.abs(places - 5) < 0.3).all()
    assert runner.x.shape == (1, 1, 1)


def test_tagged_runners_are_out_of_the_game():
    env = load_env("tag_continuous", {"num_taggers": 1, "num_runners": 2})
    episode = frames(x=np.ones((2, 3)), y=np.ones((2, 3))) | {"active": np.array([[1, 1, 1], [1, 0, 1]], bool)}
    _, tagger, runners = env.drawing(episode).shapes
    assert tagger.active.all() and runners.active.tolist() == [[True, True], [False, True]]


def test_mpe_shows_landmarks_obstacles_and_true_sizes():
    spread = frames(position=np.zeros((4, 3, 2)), landmark_position=np.full((4, 3, 2), 0.5))
    _, landmarks, agents = load_env("simple_spread").drawing(spread).shapes
    assert landmarks.label == "landmark" and landmarks.x.shape == (4, 3, 1)
    assert agents.size == 0.3 / 2  # CONTACT_DISTANCE of the kernel
    tag = frames(position=np.zeros((4, 4, 2)), obstacle_position=np.ones((4, 1, 2)))
    _, obstacles, adversaries, good = load_env("simple_tag", {"num_obstacles": 1}).drawing(tag).shapes
    assert (obstacles.size, adversaries.size, good.size) == (0.2, 0.075, 0.05)
    assert adversaries.x.shape[1] == 3 and good.x.shape[1] == 1


def test_smax_shows_sizes_health_cooldown_and_shots():
    env = load_env("smax", {"scenario": "2s3z"})
    episode = frames(
        x=np.arange(10)[np.newaxis], y=np.zeros((1, 10)), health=np.full((1, 10), 80), cooldown=np.ones((1, 10))
    )
    whole = {"unit_type": np.array([[2, 2, 3, 3, 3] * 2]), "last_action": np.full((1, 10), 4)}
    whole["last_action"][0, [0, 9]] = 5 + 4, 5  # the first ally at the last enemy, which is at the last ally
    episode["health"][0, 4] = 0
    _, shots, zealots, stalkers, *enemies, letters, health, cooldown = env.drawing(episode | whole).shapes
    assert shots.x[0].tolist() == [[0, 9], *([i, i] for i in range(1, 9)), [9, 4]]
    assert (zealots.size, stalkers.size, [one.size for one in enemies]) == (0.5, 0.625, [0.5, 0.625])
    assert zealots.group == "ally" and zealots.active.tolist() == [[True, True, False]]
    assert letters.words.options == ("s", "s", "Z", "Z", "Z") * 2
    widths = health.x[0].max(1) - health.x[0].min(1)
    np.testing.assert_allclose(widths[[0, 2, 4]], [1.25 * 80 / 160, 1.0 * 80 / 150, 0])
    np.testing.assert_allclose(cooldown.x[0, 0].max() - cooldown.x[0, 0].min(), 1.25 * 1 / 1.87)


def test_the_two_cooks_are_told_apart():
    env = load_env("overcooked")
    episode = {name: array[np.newaxis] for name, array in env.arrays().items()}
    film = film_of(env, episode)
    (cooks,) = [shapes for shapes in film.drawing.shapes if shapes.group == "cook"]
    colours = [cooks.colour.options[number] for number in cooks.colour.index[0]]
    assert len(set(colours)) == 2
    assert [(colour, f"cook {number}") for number, colour in enumerate(colours)] == film.legend[-2:]
