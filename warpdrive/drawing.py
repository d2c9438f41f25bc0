"""How an episode looks: circles, segments and polygons, computed in numpy from what was recorded of it.

An env says it in one method; see Env.drawing. Players and pictures know nothing but these shapes:

    def drawing(self, episode):
        x, theta = episode["x"], episode["theta"]                # [frame]
        pole_x, pole_y = np.stack([x, x + np.sin(theta)], -1), np.stack([0 * x, np.cos(theta)], -1)
        return Drawing([segments(pole_x, pole_y, width=0.1, group="agent")], bounds=(-3, -1, 3, 2))
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
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

Episode = Mapping[str, np.ndarray]
"""name -> [frame, ...], frame 0 being the start: what EpisodeRecorder pulls."""
Bounds = tuple[float, float, float, float]
"""left, bottom, right, top."""


@dataclass(frozen=True)
class Shapes:
    """Shapes that look alike. Make them with `circles`, `segments` or `polygons`."""

    x: np.ndarray
    """[frame, shape, point], in the env's units, as y. One point is a circle's centre, two are a segment's ends, more
    are a polygon's corners. A single frame stands still."""
    y: np.ndarray
    size: float = 0.0
    """Radius of circles, width of segments; 0 is a hairline."""
    group: str | None = None
    """Of the agents that these are: gives colour and legend."""
    colour: str | None = None
    """"#rrggbb"; None: the group's, or grey."""
    label: str | None = None
    """In the legend; None: the group's name, or nothing."""
    tail: bool = False
    """Whether circles leave a trail where they just were."""
    active: np.ndarray | None = None
    """[frame, shape] bool: who is in the game; the others are drawn hollow. None: all are."""


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
            here = f"{place}: shapes {number}{f' ({shapes.label or shapes.group})' if shapes.group else ''}"
            if len(shapes.x) not in (1, num_frames):
                raise EnvError(f"{here} have {len(shapes.x)} frames, the episode has {num_frames}. Give as many, or 1.")
            if not (np.isfinite(shapes.x).all() and np.isfinite(shapes.y).all()):
                bad = ~(np.isfinite(shapes.x) & np.isfinite(shapes.y))
                raise EnvError(f"{here} have a NaN or an infinity in frame {np.argwhere(bad)[0][0]}. Draw numbers.")
            if shapes.group is not None and shapes.group not in groups:
                raise EnvError(f"{here} are of group '{shapes.group}', but there are {', '.join(groups)}.")
            if shapes.colour is not None and not re.fullmatch("#[0-9a-fA-F]{6}", shapes.colour):
                raise EnvError(f"{here} have the colour {shapes.colour!r}. Give it as '#rrggbb'.")
            if shapes.active is not None and shapes.active.shape != (num_frames, shapes.x.shape[1]):
                wanted = [num_frames, shapes.x.shape[1]]
                raise EnvError(f"{here} have `active` {list(shapes.active.shape)}, expected {wanted} (frame, shape).")


def circles(x: Any, y: Any, radius: float, **look: Any) -> Shapes:
    """Args: x, y: [frame, circle], or [frame] for one; a single frame stands still. look: see Shapes."""
    return _shapes(x, y, 2, look, size=radius)


def segments(x: Any, y: Any, width: float = 0.0, **look: Any) -> Shapes:
    """Args: x, y: of both ends: [frame, segment, 2], or [frame, 2] for one. look: see Shapes."""
    return _shapes(x, y, 3, look, size=width)


def polygons(x: Any, y: Any, **look: Any) -> Shapes:
    """Args: x, y: of the corners: [frame, polygon, corner], or [frame, corner] for one. look: see Shapes."""
    return _shapes(x, y, 3, look)


def _shapes(x: Any, y: Any, num_axes: int, look: Mapping[str, Any], **size: float) -> Shapes:
    x, y = np.broadcast_arrays(np.asarray(x, np.float64), np.asarray(y, np.float64))
    if x.ndim == num_axes - 1:
        x, y = (one.reshape(len(one), 1, *one.shape[1:]) for one in (x, y))
    if x.ndim != num_axes:
        raise EnvError(f"shapes are drawn from [frame, shape{', point' * (num_axes > 2)}], got {list(x.shape)}.")
    if num_axes == 2:
        x, y = x[..., np.newaxis], y[..., np.newaxis]
    return Shapes(x, y, **size, **look)


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


def agent_circles(env: Env, x: Any, y: Any, radius: float | Mapping[str, float], active: Any = None) -> list[Shapes]:
    """Every agent as a circle in the colour of its group, with a tail.

    Args:
        x, y: [frame, agent].
        radius: of all, or by group.
        active: [frame, agent] bool, who is in the game; None: all are.
    """
    found = []
    for name, group in env.groups.items():
        agents = slice(group.agents.start, group.agents.stop)
        size = radius[name] if isinstance(radius, Mapping) else radius
        in_game = None if active is None else active[:, agents].astype(bool)
        found.append(circles(x[:, agents], y[:, agents], size, group=name, tail=True, active=in_game))
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
