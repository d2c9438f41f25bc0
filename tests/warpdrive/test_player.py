"""The HTML player and the GIF, as bytes; test_player_in_chromium.py runs them."""

from __future__ import annotations

import base64
import json
import re
import zlib

import numpy as np
import pytest

from warpdrive.drawing import PALETTE, Drawing, circles, segments
from warpdrive.env import load_env
from warpdrive.player import Film, film_of, player_html, rounding

MAX_BYTES = 300_000


def chase(num_steps: int, stride: float = 0.5) -> tuple:
    """Continuous Tag with 10 taggers and 100 runners in which everyone turns anew at every step: the worst to pack."""
    env = load_env("tag_continuous", {"num_taggers": 10, "num_runners": 100, "episode_length": num_steps})
    generator = np.random.default_rng(0)
    places = generator.uniform(0, 10, (2, 1, 110))
    angle = generator.uniform(0, 2 * np.pi, (num_steps, 110))
    moves = stride * np.stack([np.cos(angle), np.sin(angle)])
    x, y = np.abs(np.concatenate([places, moves], 1).cumsum(1)) % 10
    active = np.arange(num_steps + 1)[:, np.newaxis] < generator.integers(1, 2 * num_steps, 110)
    reward = generator.normal(size=(num_steps + 1, 110))
    return env, {"x": x, "y": y, "active": active, "reward": reward}


def unpacked(packed: dict) -> tuple[list[np.ndarray], np.ndarray]:
    """What the player reads, read again: of each shapes x and y [frame, shape, point, 2]; returns [group, frame]."""
    data = base64.b64decode(packed["data"])
    data = np.frombuffer(zlib.decompress(data) if packed["deflated"] else data, np.uint8)
    at, found = 0, []
    for one in packed["shapes"]:
        size = one["frames"] * one["count"] * one["points"] * 2
        values = (data[at : at + size] + 256 * data[at + size : at + 2 * size].astype(np.uint16)).reshape(
            one["frames"], -1
        )
        for _ in range(packed["order"] if one["frames"] > 1 else 0):
            values = np.cumsum(values, 0, dtype=np.uint16)
        at += 2 * size + (-(-packed["frames"] * one["count"] // 8) if one["active"] else 0)
        shares = values.reshape(one["frames"], one["count"], one["points"], 2) / 65535
        found.append(np.array(packed["low"]) + shares * np.array(packed["size"]))
    return found, data[at:].view("<f4").reshape(len(packed["groups"]), -1)


def films_in(html: str) -> list[dict]:
    (shown,) = re.findall('id="films">(.*?)</script>', html, re.DOTALL)
    return json.loads(shown)["films"]


def test_110_agents_and_500_steps_take_300_kb():
    env, episode = chase(500)
    assert len(player_html([film_of(env, episode)], "chase").encode()) <= MAX_BYTES


@pytest.mark.parametrize("stride", [0.0, 0.01, 0.5, 9.9])
def test_positions_are_within_the_rounding_that_is_named(stride):
    env, episode = chase(20, stride)
    film = film_of(env, episode)
    (packed,) = films_in(player_html([film], "chase"))
    found, returns = unpacked(packed)
    for shapes, places in zip(film.drawing.shapes, found, strict=True):
        error = np.abs(places - np.stack([shapes.x, shapes.y], -1)).max()
        assert error <= rounding(film) * (1 + 1e-9)
    assert rounding(film) <= 10 / 65535 / 2
    np.testing.assert_allclose(returns, list(film.returns.values()), rtol=1e-6)


def test_smooth_motion_is_packed_as_differences_and_noise_as_it_is():
    x = np.linspace(0, 1, 200)[:, np.newaxis]
    noise = np.random.default_rng(0).uniform(size=(200, 30))
    films = [Film(Drawing([circles(one, 0.0, 1.0)]), {"a": 1}, {}, 200) for one in (x, noise)]
    smooth, rough = films_in(player_html(films, ""))
    assert smooth["order"] >= 1 and smooth["deflated"] and len(smooth["data"]) < 400
    assert rough["order"] == 0


def test_nothing_that_is_shown_can_become_code():
    evil = "</script><script>alert(1)</script><!--&amp;\u2028"
    film = Film(Drawing([circles([0.0], [0.0], 1.0, label=evil)]), {evil: 2}, {}, 1)
    html = player_html([film], evil)
    assert html.count("<script") == 2 and html.count("</script>") == 2  # the data and the player
    assert "alert(1)</" not in html and "<!--" not in html
    (packed,) = films_in(html)
    assert packed["groups"][0]["name"] == packed["shapes"][0]["label"] == evil


def test_policy_allows_its_own_script_and_style_alone():
    env, episode = chase(2)
    html = player_html([film_of(env, episode)], "chase")
    (policy,) = re.findall('Content-Security-Policy" content="(.*?)"', html)
    assert policy.startswith("default-src 'none'; script-src 'sha256-") and "unsafe" not in policy
    assert not re.findall(r"https?:|src=|href=|@import|url\(", html)


def test_groups_have_colours_that_the_colour_blind_tell_apart():
    groups = {f"group{i}": 1 for i in range(8)}
    film = Film(Drawing([circles([0.0], [0.0], 1.0, group="group1")]), groups, {}, 1)
    assert list(film.colours.values()) == [*PALETTE, PALETTE[0]]
    (packed,) = films_in(player_html([film], ""))
    assert packed["shapes"][0]["colour"] == PALETTE[1]


def test_an_episode_takes_about_ten_seconds():
    drawing = Drawing([])
    speeds = [Film(drawing, {}, {}, num_frames).frames_per_second for num_frames in (2, 200, 5000)]
    assert speeds == [5, 20, 30]


def test_gif_has_a_frame_a_step_and_shows_who_is_where(tmp_path):
    image = pytest.importorskip("PIL.Image")
    from warpdrive.gif import write_gif

    x = np.array([[0.0, 8.0], [4.0, 8.0], [8.0, 8.0]])
    left = circles(x, 5.0 + 0 * x, 1.0, group="a", active=np.array([[True, False]] * 3))
    line = segments([[0.0, 10.0]], [[0.0, 0.0]], width=0.5, colour="#008000")
    film = Film(Drawing([line, left], (0, 0, 10, 10)), {"a": 2}, {"a": np.zeros(3)}, 3, "truncated")
    write_gif([film, film], tmp_path / "two.gif")
    with image.open(tmp_path / "two.gif") as gif:
        assert gif.n_frames == 6
        gif.seek(1)
        frame = gif.convert("RGB")
        blue, green = (0, 0x72, 0xB2), (0, 0x80, 0)

        def at(x: float, y: float) -> tuple[int, int, int]:
            return frame.getpixel((round(x * 42), round(420 - y * 42)))

        def is_near(found, wanted) -> bool:
            return max(abs(a - b) for a, b in zip(found, wanted, strict=True)) < 16

        assert is_near(at(4, 5), blue) and is_near(at(5, 0.1), green)
        assert is_near(at(8, 5), (255, 255, 255))  # hollow: it is out of the game
        assert is_near(at(5, 8), (255, 255, 255))
