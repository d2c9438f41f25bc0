"""Episodes as animated GIFs, drawn by Pillow."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from warpdrive.distribution import pip_install
from warpdrive.drawing import DARK, GREY, Choice, Shapes, rgb
from warpdrive.errors import BackendError
from warpdrive.player import TAIL, Film

SIZE = 420
"""Pixels of the longer side of what the env draws; words stand below it."""
LINE, LETTERS = 18, 13
"""Pixels of a line of words and of its letters."""
ANCHORS = {"left": "lm", "middle": "mm", "right": "rm"}
"""How Pillow calls a text's alignment."""
MAX_FRAMES = 300
"""Of an episode in the GIF; longer ones leave out frames evenly."""
LIGHT_FROM = 224
"""Of 255: a colour no part of which is less is hardly seen on white, and has a rim in the legend, as in the player."""
NOT_IN_GAME = (GREY, "not in the game")
"""The legend's line of who is drawn hollow, as players have it."""
FINER = 2
"""Times as fine is drawn, then made smaller: edges come out smooth."""


def write_gif(films: Sequence[Film], path: Path) -> None:
    """Writes the episodes, one after the other, at the player's speed; loops for ever.

    Raises:
        BackendError: Pillow is missing.
    """
    try:
        import PIL  # noqa: F401
    except ImportError:
        raise BackendError(f"a GIF is drawn by Pillow, which is missing. {pip_install('plot')}.") from None
    pictures, durations = [], []
    for film in films:
        stride = -(-film.num_frames // MAX_FRAMES)
        frames = sorted({*range(0, film.num_frames, stride), film.num_frames - 1})
        pictures += _pictures(film, frames)
        milliseconds = max(20, round(1000 * stride / film.frames_per_second / 10) * 10)  # a GIF counts hundredths
        durations += [milliseconds] * (len(frames) - 1) + [1000]  # how it ended is seen for a second
    first, *rest = _with_one_palette(films, pictures)
    first.save(path, save_all=True, append_images=rest, duration=durations, loop=0, optimize=False)


def _with_one_palette(films: Sequence[Film], pictures: Sequence[Any]) -> list[Any]:
    """All of one size and in shades of the colours that are used: a GIF has 256, and its white should be white."""
    from PIL import Image

    width, height = (max(picture.size[axis] for picture in pictures) for axis in range(2))
    palettes = [film.palette_of(shapes) for film in films for shapes in film.drawing.shapes]
    used = list(dict.fromkeys([DARK, *(colour for palette in palettes for colour in palette if colour)]))
    used = used[:: -(-len(used) // 255)]  # of too many some do, as many are shades of one another
    num_shades = min(24, 255 // len(used))
    shades = [_mixed(colour, (i + 1) / num_shades) for colour in used for i in range(num_shades)]
    kept = [(255, 255, 255), *(shade for shade in shades if min(shade) < 244)]  # lighter ones would crowd the white
    palette = Image.new("P", (1, 1))
    palette.putpalette([channel for colour in kept for channel in colour])
    found = []
    for picture in pictures:
        if picture.size != (width, height):
            whole = Image.new("RGB", (width, height), "white")
            whole.paste(picture, (0, 0))
            picture = whole
        found.append(picture.quantize(palette=palette, dither=Image.Dither.NONE))
    return found


def _pictures(film: Film, frames: Sequence[int]) -> Iterator[Any]:
    from PIL import Image, ImageDraw

    left, bottom, right, top = film.view
    scale = SIZE * FINER / max(right - left, top - bottom)
    width, height = (max(FINER, round(side * scale / FINER) * FINER) for side in (right - left, top - bottom))
    lines = _lines(film)
    font = _font(LETTERS)
    for frame in frames:
        stage = Image.new("RGB", (width, height), "white")
        for shapes in film.drawing.shapes:
            _draw(stage, film, shapes, frame, scale)
        whole = Image.new("RGB", (width // FINER, height // FINER + LINE * (len(lines) + 1) + 4), "white")
        whole.paste(stage.reduce(FINER))
        draw = ImageDraw.Draw(whole)
        for number, (colour, words, returns) in enumerate([(None, _step(film, frame), None), *lines]):
            at = height // FINER + LINE * number + 2
            if colour is not None:
                is_hollow, is_light = words == NOT_IN_GAME[1], min(rgb(colour)) >= LIGHT_FROM
                look = {"fill": None if is_hollow else colour, "outline": GREY if is_hollow or is_light else None}
                draw.ellipse((6, at + 4, 15, at + 13), **look)
            draw.text((6 if colour is None else 22, at), words, fill=DARK, font=font)
            if returns is not None:
                draw.text((whole.width - 6, at), f"{returns[frame]:+.2f}", fill=DARK, font=font, anchor="ra")
        yield whole


def _lines(film: Film) -> list[tuple[str, str, Any]]:
    """The legend: colour, words, and of groups their returns."""
    lines = [
        (film.colours[name], f"{name} x {number}" if number > 1 else name, film.returns.get(name))
        for name, number in film.groups.items()
    ]
    leaves = any(shapes.active is not None and not shapes.active.all() for shapes in film.drawing.shapes)
    return lines + [(colour, words, None) for colour, words in [*film.legend, *[NOT_IN_GAME] * leaves]]


def _step(film: Film, frame: int) -> str:
    last = film.num_frames - 1
    return f"step {frame} of {last}" + (f", {film.ending}" if frame == last and film.ending else "")


def _draw(stage: Any, film: Film, shapes: Shapes, frame: int, scale: float) -> None:
    from PIL import ImageDraw

    draw, (left, bottom, _, _) = ImageDraw.Draw(stage), film.view
    x, y = (shapes.x - left) * scale, stage.height - (shapes.y - bottom) * scale
    stands, size = len(x) == 1, shapes.size * scale
    at = 0 if stands else frame
    if shapes.kind == "cells":
        _paste_cells(stage, shapes.colour, frame, [round(edge) for edge in (*x[at, 0], *y[at, 0])])
        return
    num_shapes = x.shape[1]
    active = [True] * num_shapes if shapes.active is None else shapes.active[frame]
    if isinstance(shapes.colour, Choice):
        colours = _options(shapes.colour, frame)
    else:
        colours = [*film.palette_of(shapes)] * num_shapes
    seen = [(i, colour) for i, colour in enumerate(colours) if colour is not None]
    if shapes.tail and shapes.kind == "circles" and not stands:
        first = max(0, frame - TAIL)
        for i, colour in seen:
            for t in range(first, frame) if active[i] else ():
                shade = _mixed(colour, 0.45 * (t + 1 - first) / (frame - first))
                ends = [(x[t, i, 0], y[t, i, 0]), (x[t + 1, i, 0], y[t + 1, i, 0])]
                draw.line(ends, fill=shade, width=max(FINER, round(min(0.7 * size, 5 * FINER))))
    words = None if shapes.words is None else _options(shapes.words, frame)
    for i, colour in seen:
        corners = list(zip(x[at, i].tolist(), y[at, i].tolist(), strict=True))
        shade = colour if active[i] else _mixed(colour, 0.45)
        if words is not None:
            letters = size or LETTERS * FINER
            look = {"font": _font(letters), "anchor": ANCHORS[shapes.align], "stroke_width": letters / 12}
            draw.text(corners[0], words[i], fill=shade, stroke_fill=DARK if rgb(colour)[1] > 160 else "white", **look)
        elif shapes.kind == "circles":
            (x0, y0), radius = corners[0], max(size, 1.5 * FINER)
            box = (x0 - radius, y0 - radius, x0 + radius, y0 + radius)
            if active[i]:
                draw.ellipse(box, fill=shade, outline="white" if shapes.tail else None, width=FINER)
            else:
                draw.ellipse(box, outline=shade, width=FINER)
        elif shapes.kind == "segments":
            draw.line(corners, fill=shade, width=max(FINER, round(size)))
            for x0, y0 in corners if size > 2 * FINER else ():  # round ends
                draw.ellipse((x0 - size / 2, y0 - size / 2, x0 + size / 2, y0 + size / 2), fill=shade)
        elif _is_flat(corners):  # Pillow would draw a line where there is nothing, as of a bar of no length
            continue
        elif active[i]:
            draw.polygon(corners, fill=shade)
        else:
            draw.polygon(corners, outline=shade)


def _is_flat(corners: Sequence[tuple[float, float]]) -> bool:
    """Whether a polygon has no area."""
    before = [corners[-1], *corners[:-1]]
    return abs(sum(x0 * y1 - x1 * y0 for (x0, y0), (x1, y1) in zip(before, corners, strict=True))) < 1e-6


def _paste_cells(stage: Any, colours: Choice, frame: int, edges: Sequence[int]) -> None:
    """Args: edges: left, right, bottom, top, in pixels from above."""
    from PIL import Image

    left, right, bottom, top = edges
    palette = np.array([(0, 0, 0, 0) if one is None else (*rgb(one), 255) for one in colours.options], np.uint8)
    cells = Image.fromarray(palette[_index(colours, frame)])
    cells = cells.resize((max(1, right - left), max(1, bottom - top)), Image.Resampling.NEAREST)
    stage.paste(cells, (left, top), cells)  # nothing where it is transparent


def _index(choice: Choice, frame: int) -> np.ndarray:
    return choice.index[0 if len(choice.index) == 1 else frame].astype(np.intp)  # a bool would be a mask


def _options(choice: Choice, frame: int) -> list[str | None]:
    return [choice.options[number] for number in _index(choice, frame).tolist()]


@functools.cache
def _font(letters: float) -> Any:
    from PIL import ImageFont

    return ImageFont.load_default(letters)


def _mixed(colour: str, share: float) -> tuple[int, int, int]:
    """A colour thinned with white."""
    return tuple(round(share * channel + (1 - share) * 255) for channel in rgb(colour))
