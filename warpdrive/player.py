"""Episodes as one HTML file that plays them: no network, no ffmpeg, nothing but a browser."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from warpdrive.drawing import GREY, PALETTE, Choice, Drawing, Shapes
from warpdrive.env import Env
from warpdrive.errors import EnvError

TEMPLATE = Path(__file__).with_name("player.html")
TAIL = 15
"""Frames that a tail is long."""
SECONDS = 10
"""That an episode takes at speed 1, unless that makes it slower than MIN_FPS or faster than MAX_FPS."""
MIN_FPS, MAX_FPS = 5, 30


@dataclass(frozen=True)
class Film:
    """An episode ready to be shown."""

    drawing: Drawing
    groups: Mapping[str, int]
    """Name -> number of agents."""
    returns: Mapping[str, np.ndarray]
    """Group -> [frame]: mean reward of its agents so far; {} if rewards were not recorded."""
    num_frames: int
    ending: str = ""
    """"terminated", "truncated", or "" if it went on."""

    @property
    def view(self) -> tuple[float, float, float, float]:
        return self.drawing.view

    @property
    def frames_per_second(self) -> float:
        return min(max(self.num_frames / SECONDS, MIN_FPS), MAX_FPS)

    @property
    def colours(self) -> dict[str, str]:
        """Of the groups."""
        return {name: PALETTE[number % len(PALETTE)] for number, name in enumerate(self.groups)}

    def palette_of(self, shapes: Shapes) -> Sequence[str | None]:
        """The colours that shapes may have: one, unless an array chooses."""
        if isinstance(shapes.colour, Choice):
            return shapes.colour.options
        return (shapes.colour or self.colours.get(shapes.group, GREY),)

    @property
    def legend(self) -> list[tuple[str, str]]:
        """Colour and words, besides those of groups."""
        found = []
        for shapes in self.drawing.shapes:
            palette, label = self.palette_of(shapes), shapes.label
            if isinstance(shapes.colour, Choice) and shapes.colour.names:
                named = zip(palette, shapes.colour.names, strict=True)
                found += [(one, f"{label}: {name}" if label else name) for one, name in named if one and name]
            elif label:
                found.append((next(filter(None, palette), GREY), label))
        return list(dict.fromkeys(found))


def film_of(env: Env, episode: Mapping[str, np.ndarray]) -> Film:
    """What an EpisodeRecorder pulled, as its env draws it.

    Args:
        episode: `arrays_to_draw(env)`, and `reward`, `terminated` and `truncated` if recorded: name -> [frame, ...].
    Raises:
        EnvError: the env has nothing to draw, or its drawing contradicts itself.
    """
    place, num_frames = f"env '{env.name}': drawing()", len(next(iter(episode.values()), ()))
    try:
        drawing = env.drawing(episode)
    except KeyError as error:
        there_is = ", ".join(episode) or "nothing"
        raise EnvError(
            f"{place} asks for {error}, but what it gets is: {there_is}. It gets arrays(), without what agents see and "
            "may do."
        ) from error
    if not isinstance(drawing, Drawing):
        raise EnvError(f"{place} returned a {type(drawing).__name__}. Return a Drawing (see warpdrive/drawing.py).")
    drawing.check(place, list(env.groups), num_frames)
    groups = {name: len(group.agents) for name, group in env.groups.items()}
    returns = {}
    if "reward" in episode:
        reward = np.array(episode["reward"], np.float64)
        reward[0] = 0.0  # of what was before
        means = {name: reward[:, one.agents.start : one.agents.stop].mean(1) for name, one in env.groups.items()}
        returns = {name: np.cumsum(mean) for name, mean in means.items()}
    endings = [word for word in ("terminated", "truncated") if word in episode and episode[word][-1]]
    return Film(drawing, groups, returns, num_frames, endings[0] if endings else "")


def player_html(films: Sequence[Film], title: str) -> str:
    """A whole HTML document. Positions are rounded to `rounding(film)`; see there.

    It runs under a Content-Security-Policy that allows its own script and style and nothing else, and whatever text
    it shows is escaped.
    """
    template = TEMPLATE.read_text(encoding="utf-8")
    shown = json.dumps({"title": title, "tail": TAIL, "films": [_pack(film) for film in films]}, separators=(",", ":"))
    hashes = {kind: _hash(template, kind) for kind in ("script", "style")}
    filled = {
        "POLICY": f"default-src 'none'; script-src '{hashes['script']}'; style-src '{hashes['style']}'; "
        "base-uri 'none'; form-action 'none'",
        "TITLE": html.escape(title),
        # JSON that holds no "<" cannot end the element that it is in.
        "FILMS": shown.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e"),
    }
    return re.sub("{{([A-Z]+)}}", lambda found: filled[found.group(1)], template)


def rounding(film: Film) -> float:
    """By how much a position in the player may differ from the env's, in the env's units."""
    left, bottom, right, top = film.drawing.extent
    return max(right - left, top - bottom) / 65535 / 2


def _hash(template: str, kind: str) -> str:
    """What a Content-Security-Policy allows the one plain <script> or <style> by."""
    (text,) = re.findall(f"<{kind}>(.*?)</{kind}>", template, re.DOTALL)
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


def _pack(film: Film) -> dict[str, Any]:
    """What the player reads: a description, and numbers as base64, deflated where that is shorter.

    The numbers: of each shapes' points x and y as uint16 between the extent's ends, all of one frame after those of
    the one before, low bytes and then high bytes; its bits of `active`; then, as the points are, which colours and
    which words it has; at the end the returns as float32.
    """
    left, bottom, right, top = film.drawing.extent
    low, size = np.array([left, bottom]), np.array([(right - left) or 1.0, (top - bottom) or 1.0])
    parts: list[np.ndarray | bytes] = []
    described = []
    for shapes in film.drawing.shapes:
        places = np.stack([shapes.x, shapes.y], -1).reshape(len(shapes.x), -1, 2)
        parts.append(np.rint((places - low) / size * 65535).astype(np.uint16).reshape(len(places), -1))
        is_all = shapes.active is None or bool(shapes.active.all())
        parts.append(b"" if is_all else np.packbits(shapes.active, axis=None, bitorder="little").tobytes())
        one = {
            "kind": shapes.kind,
            "frames": shapes.x.shape[0],
            "count": shapes.x.shape[1],
            "points": shapes.x.shape[2],
            "size": float(shapes.size),
            "tail": shapes.tail,
            "active": not is_all,
        }
        for name, choice in (("colour", shapes.colour), ("words", shapes.words)):
            if isinstance(choice, Choice):
                parts.append(choice.index.reshape(len(choice.index), -1).astype(np.uint16))
                one[name] = {"options": choice.options, "frames": len(choice.index), "axes": choice.index.shape[1:]}
            elif name == "colour":
                (one[name],) = film.palette_of(shapes)
        if shapes.words is not None:
            one["align"] = shapes.align.replace("middle", "center")  # as a canvas says it
        described.append(one)
    parts.append(np.array([film.returns[name] for name in film.returns], "<f4").tobytes())
    order, deflated, data = _shortest(parts)
    return {
        "frames": film.num_frames,
        "fps": film.frames_per_second,
        "view": [float(edge) for edge in film.view],
        "low": [left, bottom],
        "size": size.tolist(),
        "ending": film.ending,
        "groups": [{"name": name, "agents": n, "colour": film.colours[name]} for name, n in film.groups.items()],
        "legend": film.legend,
        "returns": bool(film.returns),
        "shapes": described,
        "order": order,
        "deflated": deflated,
        "data": base64.b64encode(data).decode(),
    }


def _shortest(parts: Sequence[np.ndarray | bytes]) -> tuple[int, bool, bytes]:
    """How often differences between frames are taken (0: numbers themselves), whether the rest is deflated, bytes."""
    best = None
    for order in range(3):
        plain = b"".join(part if isinstance(part, bytes) else _bytes_of(part, order) for part in parts)
        for deflated, data in ((False, plain), (True, zlib.compress(plain))):
            if best is None or len(data) < len(best[2]):
                best = (order, deflated, data)
    return best


def _bytes_of(values: np.ndarray, order: int) -> bytes:
    for _ in range(order if len(values) > 1 else 0):
        values = np.diff(values, axis=0, prepend=np.zeros_like(values[:1]))  # modulo 65536
    return (values & 255).astype(np.uint8).tobytes() + (values >> 8).astype(np.uint8).tobytes()
