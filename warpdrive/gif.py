"""Episodes as animated GIFs, drawn by Pillow."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from warpdrive.drawing import DARK, Shapes
from warpdrive.errors import BackendError
from warpdrive.player import TAIL, Film

SIZE = 420
"""Pixels of the longer side of what the env draws; words stand below it."""
LINE, LETTERS = 18, 13
"""Pixels of a line of words and of its letters."""
MAX_FRAMES = 300
"""Of an episode in the GIF; longer ones leave out frames evenly."""
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
        raise BackendError("a GIF is drawn by Pillow, which is missing. pip install 'warpdrive[plot]'.") from None
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
    used = dict.fromkeys([DARK, *(film.colour_of(shapes) for film in films for shapes in film.drawing.shapes)])
    num_shades = min(24, 255 // len(used))  # no more: they would crowd the white
    shades = [_mixed(colour, (i + 1) / num_shades) for colour in used for i in range(num_shades)]
    palette = Image.new("P", (1, 1))
    palette.putpalette([channel for colour in [(255, 255, 255), *shades] for channel in colour])
    found = []
    for picture in pictures:
        if picture.size != (width, height):
            whole = Image.new("RGB", (width, height), "white")
            whole.paste(picture, (0, 0))
            picture = whole
        found.append(picture.quantize(palette=palette, dither=Image.Dither.NONE))
    return found


def _pictures(film: Film, frames: Sequence[int]) -> Iterator[Any]:
    from PIL import Image, ImageDraw, ImageFont

    left, bottom, right, top = film.view
    scale = SIZE * FINER / max(right - left, top - bottom)
    width, height = (max(FINER, round(side * scale / FINER) * FINER) for side in (right - left, top - bottom))
    lines = _lines(film)
    font = ImageFont.load_default(LETTERS)
    for frame in frames:
        stage = Image.new("RGB", (width, height), "white")
        draw = ImageDraw.Draw(stage)
        for shapes in film.drawing.shapes:
            _draw(draw, film, shapes, frame, scale, height)
        whole = Image.new("RGB", (width // FINER, height // FINER + LINE * (len(lines) + 1) + 4), "white")
        whole.paste(stage.reduce(FINER))
        draw = ImageDraw.Draw(whole)
        for number, (colour, words, returns) in enumerate([(None, _step(film, frame), None), *lines]):
            at = height // FINER + LINE * number + 2
            if colour is not None:
                draw.ellipse((6, at + 4, 15, at + 13), fill=colour)
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
    return lines + [(film.colour_of(one), one.label, None) for one in film.drawing.shapes if one.label]


def _step(film: Film, frame: int) -> str:
    last = film.num_frames - 1
    return f"step {frame} of {last}" + (f", {film.ending}" if frame == last and film.ending else "")


def _draw(draw: Any, film: Film, shapes: Shapes, frame: int, scale: float, height: int) -> None:
    left, bottom, _, _ = film.view
    x, y = (shapes.x - left) * scale, height - (shapes.y - bottom) * scale
    stands, colour = len(x) == 1, film.colour_of(shapes)
    at, size = 0 if stands else frame, shapes.size * scale
    num_shapes, num_points = x.shape[1:]
    active = [True] * num_shapes if shapes.active is None else shapes.active[frame]
    if shapes.tail and num_points == 1 and not stands:
        first = max(0, frame - TAIL)
        for i in range(num_shapes):
            for t in range(first, frame) if active[i] else ():
                shade = _mixed(colour, 0.45 * (t + 1 - first) / (frame - first))
                ends = [(x[t, i, 0], y[t, i, 0]), (x[t + 1, i, 0], y[t + 1, i, 0])]
                draw.line(ends, fill=shade, width=max(FINER, round(min(0.7 * size, 5 * FINER))))
    for i in range(num_shapes):
        corners = list(zip(x[at, i].tolist(), y[at, i].tolist(), strict=True))
        if num_points == 1:
            (x0, y0), radius = corners[0], max(size, 1.5 * FINER)
            box = (x0 - radius, y0 - radius, x0 + radius, y0 + radius)
            if active[i]:
                draw.ellipse(box, fill=colour, outline="white" if shapes.tail else None, width=FINER)
            else:
                draw.ellipse(box, outline=_mixed(colour, 0.45), width=FINER)
        elif num_points == 2:
            shade = colour if active[i] else _mixed(colour, 0.45)
            draw.line(corners, fill=shade, width=max(FINER, round(size)))
            for x0, y0 in corners if size > 2 * FINER else ():  # round ends
                draw.ellipse((x0 - size / 2, y0 - size / 2, x0 + size / 2, y0 + size / 2), fill=shade)
        elif active[i]:
            draw.polygon(corners, fill=colour)
        else:
            draw.polygon(corners, outline=_mixed(colour, 0.45))


def _mixed(colour: str, share: float) -> tuple[int, int, int]:
    """A colour thinned with white."""
    return tuple(round(share * int(colour[i : i + 2], 16) + (1 - share) * 255) for i in (1, 3, 5))
