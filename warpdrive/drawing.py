"""How an episode looks: circles, segments, polygons, texts and grids of cells, in numpy from what was recorded of it.

An env says it in one method; see Env.drawing. Players and pictures know nothing but these shapes:

    def drawing(self, episode):
        x, theta = episode["x"], episode["theta"]                # [frame]
        pole_x, pole_y = np.stack([x, x + np.sin(theta)], -1), np.stack([0 * x, np.cos(theta)], -1)
        return Drawing([segments(pole_x, pole_y, width=0.1, group="agent")], bounds=(-3, -1, 3, 2))

Colours may change over time: `one_of` picks them from a palette, `between` mixes two, `top_channel` reads an image.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from warpdrive.errors import EnvError
from warpdrive.layout import Layout

if TYPE_CHECKING:
    from warpdrive.env import Env

PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
"""Colours of the groups, in their order; told apart by the colour-blind. Source: Okabe and Ito 2008."""
DARK, GREY, LIGHT = "#333333", "#8A8A8A", "#DDDDDD"
"""Of what belongs to no group."""
NUM_SHADES = 32
"""That `between` has."""
MAX_OPTIONS = 1 << 16
"""Of a Choice; players count them in 16 bits."""
ALIGNMENTS = ("left", "middle", "right")

Episode = Mapping[str, np.ndarray]
"""name -> [frame, ...], frame 0 being the start: what EpisodeRecorder pulls."""
Bounds = tuple[float, float, float, float]
"""left, bottom, right, top."""


@dataclass(frozen=True)
class Choice:
    """One of a few things in every frame. Make it with `one_of`, `between`, `top_channel` or `formatted`."""

    index: np.ndarray
    """[frame, shape], or [frame, row, column] of cells: which option. A single frame stands still."""
    options: Sequence[str | None]
    """Words; or colours, "#rrggbb", None being nothing to see."""
    names: Sequence[str | None] = ()
    """Of the options, in the legend."""


@dataclass(frozen=True)
class Shapes:
    """Shapes that look alike. Make them with `circles`, `segments`, `polygons`, `texts` or `cells`."""

    kind: str
    """Which of these five."""
    x: np.ndarray
    """[frame, shape, point], in the env's units, as y. One point is a circle's centre or a text's place, two are a
    segment's ends or opposite corners of a grid, more are a polygon's corners. A single frame stands still."""
    y: np.ndarray
    size: float = 0.0
    """Radius of circles, width of segments (0 is a hairline), height of letters (0 is as high as the legend's)."""
    group: str | None = None
    """Of the agents that these are: gives colour and legend."""
    colour: str | Choice | None = None
    """"#rrggbb", or such over time; None: the group's, or grey."""
    label: str | None = None
    """In the legend; None: the group's name, or nothing."""
    tail: bool = False
    """Whether circles leave a trail where they just were."""
    active: np.ndarray | None = None
    """[frame, shape] bool: who is in the game; the others are drawn hollow, texts pale. None: all are."""
    words: Choice | None = None
    """What texts say."""
    align: str = "middle"
    """Which part of a text is at its place: one of ALIGNMENTS."""


@dataclass(frozen=True)
class Drawing:
    """An episode's shapes, the first ones at the bottom."""

    shapes: Sequence[Shapes]
    bounds: Bounds | None = None
    """What is always seen; None: whatever shapes get to."""

    @property
    def extent(self) -> Bounds:
        """What holds every point of every frame."""
        xs = [shapes.x for shapes in self.shapes if shapes.x.size]
        ys = [shapes.y for shapes in self.shapes if shapes.y.size]
        if not xs:
            return (0.0, 0.0, 1.0, 1.0)
        low, high = (min(map(np.min, xs)), min(map(np.min, ys))), (max(map(np.max, xs)), max(map(np.max, ys)))
        return float(low[0]), float(low[1]), float(high[0]), float(high[1])

    @property
    def view(self) -> Bounds:
        """`bounds`, or the extent with a margin; never empty."""
        if self.bounds is not None:
            return self.bounds
        left, bottom, right, top = self.extent
        most = max((shapes.size for shapes in self.shapes), default=0.0)
        margin = most + (0.04 * max(right - left, top - bottom) or 1.0)
        return left - margin, bottom - margin, right + margin, top + margin

    def check(self, place: str, groups: Sequence[str], num_frames: int) -> None:
        """Raises EnvError, naming the shapes, where they contradict themselves or the episode."""
        left, bottom, right, top = self.bounds or (0, 0, 1, 1)
        if not (left < right and bottom < top and np.isfinite([left, bottom, right, top]).all()):
            raise EnvError(f"{place}: bounds are left, bottom, right, top with left < right, got {self.bounds}.")
        for number, shapes in enumerate(self.shapes):
            name = shapes.label or shapes.group
            here = f"{place}: shapes {number}{f' ({name})' if name else ''}"
            if len(shapes.x) not in (1, num_frames):
                raise EnvError(f"{here} have {len(shapes.x)} frames, the episode has {num_frames}. Give as many, or 1.")
            if not (np.isfinite(shapes.x).all() and np.isfinite(shapes.y).all()):
                bad = ~(np.isfinite(shapes.x) & np.isfinite(shapes.y))
                raise EnvError(f"{here} have a NaN or an infinity in frame {np.argwhere(bad)[0][0]}. Draw numbers.")
            if shapes.group is not None and shapes.group not in groups:
                raise EnvError(f"{here} are of group '{shapes.group}', but there are {', '.join(groups)}.")
            colour, words, axes = shapes.colour, shapes.words, (shapes.x.shape[1],)
            for one in colour.options if isinstance(colour, Choice) else (colour,):
                if one is not None and not _is_colour(one):
                    raise EnvError(f"{here} have the colour {one!r}. Give it as '#rrggbb'.")
            if isinstance(colour, Choice):
                _check_choice(f"{here}: colour", colour, num_frames, None if shapes.kind == "cells" else axes)
            if words is not None:
                _check_choice(f"{here}: text", words, num_frames, axes)
                if odd := [one for one in words.options if not isinstance(one, str) or "\n" in one]:
                    raise EnvError(f"{here} have the text {odd[0]!r}. Give a string of one line.")
            if shapes.align not in ALIGNMENTS:
                raise EnvError(f"{here} are aligned {shapes.align!r}. Say one of {', '.join(ALIGNMENTS)}.")
            if shapes.active is not None and shapes.active.shape != (num_frames, shapes.x.shape[1]):
                wanted = [num_frames, shapes.x.shape[1]]
                raise EnvError(f"{here} have `active` {list(shapes.active.shape)}, expected {wanted} (frame, shape).")


def _check_choice(what: str, choice: Choice, num_frames: int, axes: tuple[int, ...] | None) -> None:
    """Args: axes: of the index behind frames; None: whatever there is."""
    index, num_options = choice.index, len(choice.options)
    if index.dtype.kind not in "biu":
        raise EnvError(f"{what} is counted in {index.dtype}, expected whole numbers. Cast what counts: astype(int).")
    wanted = index.shape[1:] if axes is None else axes
    if len(index) not in (1, num_frames) or index.shape[1:] != wanted:
        expected = [num_frames, *wanted]
        raise EnvError(f"{what} is {list(index.shape)}, expected {expected} (frame first), or a single frame.")
    if num_options > MAX_OPTIONS:
        raise EnvError(f"{what} has {num_options} options, more than {MAX_OPTIONS}. Round what it shows.")
    outside = (index < 0) | (index >= num_options)
    if outside.any():
        first = tuple(np.argwhere(outside)[0])
        raise EnvError(
            f"{what} is number {index[first]} in frame {first[0]}, but there are {num_options}, counted from 0. Give "
            "as many as are counted."
        )


def _is_colour(colour: Any) -> bool:
    return isinstance(colour, str) and re.fullmatch("#[0-9a-fA-F]{6}", colour) is not None


def rgb(colour: str) -> tuple[int, int, int]:
    """Of "#rrggbb", each 0 to 255."""
    if not _is_colour(colour):
        raise EnvError(f"there is no colour {colour!r}. Give it as '#rrggbb'.")
    return int(colour[1:3], 16), int(colour[3:5], 16), int(colour[5:7], 16)


def one_of(index: Any, options: Sequence[str | None] | Mapping[str, str | None]) -> Choice:
    """Colours of a palette or words of a list, counted from 0.

    Args:
        index: [frame, shape] ints or bools, or [frame] for one shape; of `cells` [frame, row, column], or
            [row, column] of a map that stays. A single frame stands still.
        options: words; or colours, None being nothing to see. Colours under names, {"wall": "#333333"}, are in the
            legend.
    """
    names = tuple(options) if isinstance(options, Mapping) else ()
    return _choice(index, options.values() if names else options, names)


def between(value: Any, low: float, high: float, first: str, last: str) -> Choice:
    """A colour that goes from `first` at `low`, and below, to `last` at `high`, and above: health, heat, a grey image.

    Args:
        value: as the index of `one_of`, of any number type.
    """
    value = np.asarray(value, np.float64)
    if low == high or not np.isfinite(value).all():
        raise EnvError(f"between needs two different ends, got {low} and {high}, and values without NaN or infinity.")
    ends, steps = np.array([rgb(first), rgb(last)]), np.linspace(0, 1, NUM_SHADES)[:, np.newaxis]
    shades = np.rint(ends[0] + steps * (ends[1] - ends[0])).astype(int).tolist()
    share = ((value - low) / (high - low)).clip(0, 1)
    index = np.rint(share * (NUM_SHADES - 1)).astype(np.int64)
    return _choice(index, ("#{:02x}{:02x}{:02x}".format(*shade) for shade in shades))


def top_channel(
    image: Any, palette: Sequence[str] | Mapping[str, str], axis: int = -1, empty: str | None = None
) -> Choice:
    """Colours of cells that an image says by its channels, of which the last one that is not 0 is seen.

    Args:
        image: [frame, row, column, channel], or [row, column, channel] of one that stays.
        palette: a colour a channel; under names they are in the legend.
        axis: of the channels, if they are elsewhere.
        empty: colour where all channels are 0.
    """
    is_set = np.moveaxis(np.asarray(image) != 0, axis, -1)
    num_channels = is_set.shape[-1]
    if num_channels != len(palette):
        raise EnvError(
            f"top_channel has {num_channels} channels on axis {axis} of {list(np.shape(image))}, but {len(palette)} "
            "colours. Give as many."
        )
    index = np.where(is_set.any(-1), num_channels - is_set[..., ::-1].argmax(-1), 0)
    names = (None, *palette) if isinstance(palette, Mapping) else ()
    return _choice(index, (empty, *(palette.values() if names else palette)), names)


def formatted(value: Any, form: str) -> Choice:
    """Numbers as words.

    Args:
        value: [frame, text], or [frame] for one.
        form: as of str.format, with one number: "{:.1f} m".
    """
    values, index = np.unique(np.asarray(value), return_inverse=True)
    try:
        words = [form.format(one) for one in values.tolist()]
    except (ValueError, LookupError, AttributeError) as error:
        raise EnvError(f"formatted cannot write {values.dtype} as {form!r}: {error}. Say '{{:.1f}}'.") from None
    number = {word: i for i, word in enumerate(dict.fromkeys(words))}
    return _choice(np.array([number[word] for word in words], int)[index].reshape(np.shape(value)), number)


def _choice(index: Any, options: Iterable[str | None], names: Sequence[str | None] = ()) -> Choice:
    index = np.atleast_1d(index)
    return Choice(index[:, np.newaxis] if index.ndim == 1 else index, tuple(options), names)


def circles(x: Any, y: Any, radius: float, **look: Any) -> Shapes:
    """Args: x, y: [frame, circle], or [frame] for one; a single frame stands still. look: see Shapes."""
    return _shapes("circles", x, y, 2, look, size=radius)


def segments(x: Any, y: Any, width: float = 0.0, **look: Any) -> Shapes:
    """Args: x, y: of both ends: [frame, segment, 2], or [frame, 2] for one. look: see Shapes."""
    return _shapes("segments", x, y, 3, look, size=width)


def polygons(x: Any, y: Any, **look: Any) -> Shapes:
    """Args: x, y: of the corners: [frame, polygon, corner], or [frame, corner] for one. look: see Shapes."""
    return _shapes("polygons", x, y, 3, look)


def texts(x: Any, y: Any, words: str | Sequence[str] | Choice, height: float = 0.0, **look: Any) -> Shapes:
    """Words at places that move or stand still, dark unless they are of a group or have a colour.

    Args:
        x, y: [frame, text], [frame] for one, or two numbers for one that stands still.
        words: of all, one a text, or over time: `formatted` numbers, or `one_of` a list.
        height: of letters; 0 is as high as the legend's.
        look: see Shapes; `align` for one.
    """
    x, y = np.atleast_1d(np.asarray(x, np.float64), np.asarray(y, np.float64))
    shapes = _shapes("texts", x, y, 2, {"colour": None if "group" in look else DARK, **look}, size=height)
    if isinstance(words, str):
        words = [words] * shapes.x.shape[1]
    if not isinstance(words, Choice):
        words = Choice(np.arange(len(words))[np.newaxis], tuple(words))
    return replace(shapes, words=words)


def cells(colours: Choice, bounds: Bounds | None = None, from_top: bool = False, label: str | None = None) -> Shapes:
    """A grid of coloured cells: a map, a kitchen, a screen.

    Args:
        colours: of [frame, row, column], or [row, column] of what stays.
        bounds: what the grid fills; None: the cell in row y and column x has (x, y) in its middle.
        from_top: whether row 0 is the highest, as on screens, not the lowest. Row y is then num_rows - 1 - y high.
        label: in the legend, before names of colours.
    """
    if not isinstance(colours, Choice):
        raise EnvError(f"cells are drawn from colours, got a {type(colours).__name__}. Give one_of(array, palette).")
    index = colours.index[np.newaxis] if colours.index.ndim == 2 else colours.index
    if index.ndim != 3 or not index.size:
        raise EnvError(f"cells are drawn from [frame, row, column] or [row, column], got {list(colours.index.shape)}.")
    num_rows, num_columns = index.shape[1:]
    left, bottom, right, top = bounds or (-0.5, -0.5, num_columns - 0.5, num_rows - 0.5)
    if not (left < right and bottom < top):
        raise EnvError(f"cells: bounds are left, bottom, right, top with left < right, got {bounds}.")
    seen = replace(colours, index=index if from_top else index[:, ::-1])
    x, y = np.array([[[left, right]]], np.float64), np.array([[[bottom, top]]], np.float64)
    return Shapes("cells", x, y, colour=seen, label=label)


def _shapes(kind: str, x: Any, y: Any, num_axes: int, look: Mapping[str, Any], **size: float) -> Shapes:
    x, y = np.broadcast_arrays(np.asarray(x, np.float64), np.asarray(y, np.float64))
    if x.ndim == num_axes - 1:
        x, y = (one.reshape(len(one), 1, *one.shape[1:]) for one in (x, y))
    if x.ndim != num_axes:
        raise EnvError(f"shapes are drawn from [frame, shape{', point' * (num_axes > 2)}], got {list(x.shape)}.")
    if num_axes == 2:
        x, y = x[..., np.newaxis], y[..., np.newaxis]
    return Shapes(kind, x, y, **size, **look)


def outline(left: float, bottom: float, right: float, top: float, **look: Any) -> Shapes:
    """The edges of a rectangle, which stand still: a wall, a field."""
    x, y = np.array([left, right, right, left, left]), np.array([bottom, bottom, top, top, bottom])
    ends = np.stack([np.arange(4), np.arange(1, 5)], -1)[np.newaxis]
    return segments(x[ends], y[ends], **{"colour": GREY, **look})


def rectangles(left: Any, bottom: Any, right: Any, top: Any, **look: Any) -> Shapes:
    """Filled rectangles along the axes; each side [frame], [frame, rectangle], or one number."""
    sides = np.broadcast_arrays(*(np.atleast_1d(np.asarray(side, np.float64)) for side in (left, bottom, right, top)))
    left, bottom, right, top = sides
    return polygons(np.stack([left, right, right, left], -1), np.stack([bottom, bottom, top, top], -1), **look)


def grid_lines(num_x: int, num_y: int, **look: Any) -> Shapes:
    """The borders of cells that have the whole numbers 0 .. num_x - 1, 0 .. num_y - 1 in their middles."""
    lines = [((at, at), (-0.5, num_y - 0.5)) for at in np.arange(num_x + 1) - 0.5]
    lines += [((-0.5, num_x - 0.5), (at, at)) for at in np.arange(num_y + 1) - 0.5]
    x, y = np.array(lines).transpose(1, 0, 2)[:, np.newaxis]
    return segments(x, y, **{"colour": LIGHT, **look})


def agent_circles(
    env: Env,
    x: Any,
    y: Any,
    radius: float | Mapping[str, float],
    active: Any = None,
    colour: Choice | None = None,
) -> list[Shapes]:
    """Every agent as a circle in the colour of its group, with a tail.

    Args:
        x, y: [frame, agent].
        radius: of all, or by group.
        active: [frame, agent] bool, who is in the game; None: all are.
        colour: of [frame, agent], instead of the groups'.
    """
    found = []
    for name, group in env.groups.items():
        agents = slice(group.agents.start, group.agents.stop)
        size = radius[name] if isinstance(radius, Mapping) else radius
        in_game = None if active is None else active[:, agents].astype(bool)
        own = None if colour is None else replace(colour, index=colour.index[:, agents])
        found.append(circles(x[:, agents], y[:, agents], size, group=name, tail=True, active=in_game, colour=own))
    return found


def draw_positions(env: Env, episode: Episode) -> Drawing:
    """What Env.drawing does by default: the arrays x and y are where agents are, and then other things.

    Raises:
        EnvError: there are no such arrays.
    """
    x, y = episode.get("x"), episode.get("y")
    if x is None or y is None or x.shape != y.shape or x[0].size < env.num_agents:
        raise EnvError(
            f"env '{env.name}' has nothing to draw: no arrays x and y of its {env.num_agents} agents. Write the method "
            "drawing(self, episode) in its class, which returns a Drawing (see warpdrive/drawing.py)."
        )
    x, y = (one.reshape(len(one), -1).astype(np.float64) for one in (x, y))
    radius = 0.015 * max(np.ptp(x), np.ptp(y), 1e-6)
    active = episode.get("active")
    shapes = agent_circles(env, x, y, radius, None if active is None else active.reshape(len(x), -1))
    if x.shape[1] > env.num_agents:
        others = slice(env.num_agents, None)
        shapes.insert(0, circles(x[:, others], y[:, others], radius, colour=GREY, label="other"))
    return Drawing(shapes)


def arrays_to_draw(env: Env) -> list[str]:
    """Names of the env's own arrays, but for what agents see and may do: what `Env.drawing` gets of an episode."""
    left_out = Layout(env.groups, env.global_state_space).kept
    return [name for name in env.arrays() if name not in left_out and not name.startswith("action_mask")]
