"""The HTML player and the GIF, as bytes; test_player_in_chromium.py runs them."""

import base64
import json
import math
import re
import zlib

import numpy as np
import pytest
from film_cases import CHANGING, SEEN, WRITTEN

from warpdrive.drawing import PALETTE, Drawing, cells, circles, formatted, one_of, rectangles, rgb, segments, texts
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

    def take(num_frames: int, *axes: int) -> np.ndarray:
        nonlocal at
        size = num_frames * math.prod(axes)
        values = (data[at : at + size] + 256 * data[at + size : at + 2 * size].astype(np.uint16)).reshape(-1, *axes)
        at += 2 * size
        for _ in range(packed["order"] if num_frames > 1 else 0):
            values = np.cumsum(values, 0, dtype=np.uint16)
        return values

    for one in packed["shapes"]:
        shares = take(one["frames"], one["count"], one["points"], 2) / 65535
        found.append(np.array(packed["low"]) + shares * np.array(packed["size"]))
        at += -(-packed["frames"] * one["count"] // 8) if one["active"] else 0
        for choice in (one["colour"], one.get("words")):
            if isinstance(choice, dict):  # what the options come to joins it
                choice["seen"] = np.array(choice["options"], object)[take(choice["frames"], *choice["axes"])]
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


@pytest.mark.parametrize("num_words", [3, 300])  # 300 do not fit into a byte
def test_colours_and_words_over_time_are_packed_whole(num_words):
    generator = np.random.default_rng(0)
    index, number = generator.integers(0, 2, (50, 4)), generator.integers(0, num_words, (50, 4))
    grid, x = generator.integers(0, 3, (50, 5, 7)).astype(np.int8), np.zeros((50, 4))
    drawing = Drawing(
        [
            cells(one_of(grid, PALETTE[:3]), from_top=True),
            circles(x, x, 1.0, colour=one_of(index.astype(bool), [PALETTE[4], None])),
            texts(x, x, formatted(number, "{} m"), align="left"),
        ]
    )
    drawing.check("here", [], 50)
    (packed,) = films_in(player_html([Film(drawing, {"a": 1}, {"a": np.arange(50)}, 50)], ""))
    _, returns = unpacked(packed)
    maze, balls, heights = packed["shapes"]
    assert maze["colour"]["seen"].tolist() == np.array(PALETTE)[grid].tolist()
    assert balls["colour"]["seen"].tolist() == np.where(index, None, PALETTE[4]).tolist()
    assert heights["words"]["seen"].tolist() == [[f"{one} m" for one in row] for row in number.tolist()]
    assert heights["align"] == "left" and returns[0].tolist() == list(range(50))


def test_smooth_motion_is_packed_as_differences_and_noise_as_it_is():
    x = np.linspace(0, 1, 200)[:, np.newaxis]
    noise = np.random.default_rng(0).uniform(size=(200, 30))
    films = [Film(Drawing([circles(one, 0.0, 1.0)]), {"a": 1}, {}, 200) for one in (x, noise)]
    smooth, rough = films_in(player_html(films, ""))
    assert smooth["order"] >= 1 and smooth["deflated"] and len(smooth["data"]) < 400
    assert rough["order"] == 0


def test_nothing_that_is_shown_can_become_code_and_policy_allows_its_own_script_and_style_alone():
    evil = "</script><script>alert(1)</script><!--&amp;\u2028"
    shapes = [circles([0.0], [0.0], 1.0, label=evil), texts(0.0, 0.0, evil)]
    film = Film(Drawing(shapes), {evil: 2}, {}, 1)
    html = player_html([film], evil)
    assert html.count("<script") == 2 and html.count("</script>") == 2  # the data and the player
    assert "alert(1)</" not in html and "<!--" not in html
    (packed,) = films_in(html)
    (words,) = packed["shapes"][1]["words"]["options"]
    assert packed["groups"][0]["name"] == packed["legend"][0][1] == words == evil
    (policy,) = re.findall('Content-Security-Policy" content="(.*?)"', html)
    assert policy.startswith("default-src 'none'; script-src 'sha256-") and "unsafe" not in policy
    assert not re.findall(r"https?:|src=|href=|@import|url\(", html)


def test_groups_have_colours_that_the_colour_blind_tell_apart_and_an_episode_takes_about_ten_seconds():
    groups = {f"group{i}": 1 for i in range(8)}
    film = Film(Drawing([circles([0.0], [0.0], 1.0, group="group1")]), groups, {}, 1)
    assert list(film.colours.values()) == [*PALETTE, PALETTE[0]]
    (packed,) = films_in(player_html([film], ""))
    assert packed["shapes"][0]["colour"] == PALETTE[1]
    assert [Film(Drawing([]), {}, {}, num).frames_per_second for num in (2, 200, 5000)] == [5, 20, 30]


def gif_of(films, path) -> np.ndarray:
    """[frame, row, column, 3] of pictures, 42 pixels a unit, row 0 the lowest."""
    image = pytest.importorskip("PIL.Image")
    from warpdrive.gif import write_gif

    write_gif(films, path)
    frames = []
    with image.open(path) as gif:
        for frame in range(gif.n_frames):
            gif.seek(frame)
            frames.append(np.asarray(gif.convert("RGB"), int)[:420][::-1])
    return np.array(frames)


def has(picture, colour: str, left: float, bottom: float, right: float, top: float) -> bool:
    """Whether there is the colour somewhere in a rectangle; white exactly."""
    columns, rows = (
        slice(round(low * 42), max(round(low * 42) + 1, round(high * 42)))
        for low, high in ((left, right), (bottom, top))
    )
    distance = np.abs(picture[rows, columns] - rgb(colour)).max(-1)
    return bool((distance < (1 if colour == "#ffffff" else 16)).any())


def test_gif_has_a_frame_a_step_and_shows_who_is_where(tmp_path):
    x = np.array([[0.0, 8.0], [4.0, 8.0], [8.0, 8.0]])
    left = circles(x, 5.0 + 0 * x, 1.0, group="a", active=np.array([[True, False]] * 3))
    line = segments([[0.0, 10.0]], [[0.0, 0.0]], width=0.5, colour="#008000")
    film = Film(Drawing([line, left], (0, 0, 10, 10)), {"a": 2}, {"a": np.zeros(3)}, 3, "truncated")
    pictures = gif_of([film, film], tmp_path / "two.gif")
    assert len(pictures) == 6
    for x, y, colour in [(4, 5, "#0072B2"), (5, 0.1, "#008000"), (8, 5, "#ffffff"), (5, 8, "#ffffff")]:
        assert has(pictures[1], colour, x, y, x, y), (x, y)  # at (8, 5) hollow: it is out of the game


def test_gif_shows_colours_and_words_over_time_and_cells(tmp_path):
    pictures = gif_of([CHANGING], tmp_path / "changing.gif")
    for frame, x, y, colour in SEEN:
        assert has(pictures[frame], colour, x, y, x, y), (frame, x, y)
    for frame, *box, ink, is_written in WRITTEN:
        assert has(pictures[frame], ink, *box) == is_written, (frame, box)


def test_gif_draws_nothing_of_a_bar_of_no_length(tmp_path):
    long = np.array([[3.0], [0.0]])
    bars = [
        rectangles([[2.0]] * 2, [[2.0]] * 2, 2.0 + long, [[4.0]] * 2, colour="#000000"),
        rectangles([[6.0]] * 2, [[2.0]] * 2, [[8.0]] * 2, 2.0 + long, colour="#000000"),
    ]
    first, last = gif_of([Film(Drawing(bars, (0, 0, 10, 10)), {"a": 1}, {}, 2)], tmp_path / "bars.gif")
    assert has(first, "#000000", 3, 3, 3, 3) and has(first, "#000000", 7, 3, 7, 3)
    assert (last == 255).all()


def test_the_legend_of_a_gif_rims_what_is_white_and_tells_who_is_hollow(tmp_path):
    image = pytest.importorskip("PIL.Image")
    from warpdrive.gif import LINE, write_gif

    plate = circles([[5.0]] * 2, [[5.0]] * 2, 0.5, colour="#ffffff", label="a plate")
    units = circles([[2.0, 8.0]] * 2, [[5.0, 5.0]] * 2, 0.5, group="a", active=np.array([[True, False]] * 2))
    drawings = [Drawing(shapes, (0, 0, 10, 10)) for shapes in ([plate], [plate, units])]
    write_gif([Film(drawing, {"a": 2}, {}, 2) for drawing in drawings], tmp_path / "legend.gif")
    with image.open(tmp_path / "legend.gif") as gif:
        assert gif.height == 420 + LINE * 4 + 4  # the step, the group, a plate, and in the second film who is hollow
        for frame, line, is_there in ((0, 2, True), (0, 3, False), (2, 2, True), (2, 3, True)):
            gif.seek(frame)
            mark = np.asarray(gif.convert("RGB"), int)[420 + LINE * line + 6 :][:10, 6:16]
            assert (mark[5, 5] == 255).all() and (mark.min() < 200) == is_there, (frame, line)
