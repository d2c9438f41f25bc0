"""Overcooked: two cooks share a small kitchen, fill pots with onions, and deliver the soups.

Source: JaxMARL 0.2.0's Overcooked (Rutherford et al. 2024, arXiv:2311.10090), after Carroll et al. 2019, "On the
utility of learning about humans for human-AI coordination", arXiv:1910.05789.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
from gymnasium import spaces

from warpdrive.config import Amount, Checked, PositiveAmount, Steps, WrongValue, shown
from warpdrive.drawing import (
    DARK,
    PALETTE,
    Drawing,
    agent_circles,
    cells,
    circles,
    formatted,
    one_of,
    segments,
    texts,
)
from warpdrive.env import Env, Group

LAYOUTS = {
    "cramped_room": "WWPWW O0.1O W...W WBWXW",
    "asymm_advantages": "WWWWWWWWW O.WXWOW.X W...P...W W.0.P1..W WWWBWBWWW",
    "coord_ring": "WWWPW W.0.P B1W.W O...W WOXWW",
    "forced_coord": "WWWPW O.W1P O0W.W B.W.W WWWXW",
    "counter_circuit": "WWWPPWWW W.0....W B.WWWW.X W.....1W WWWOOWWW",
}
"""Rows of cells: W counter, O onions, B plates, P pot, X where soups are delivered, . floor, 0 and 1 the cooks."""

FLOOR, COUNTER, ONION_PILE, PLATE_PILE, GOAL, POT = range(6)
GROUND = {".": FLOOR, "0": FLOOR, "1": FLOOR, "W": COUNTER, "O": ONION_PILE, "B": PLATE_PILE, "X": GOAL, "P": POT}
NEEDED = {"O": "onions", "B": "plates", "P": "a pot", "X": "a place of delivery"}
"""For a soup."""
NUM_CHANNELS = 26
CHANNELS = {POT: 10, COUNTER: 11, ONION_PILE: 12, PLATE_PILE: 14, GOAL: 15}
"""Of what stands still."""
LATE_CHANNEL = 25
MOST_SEEN = {16: 3, 18: 3, 20: 20}
"""Channels that count; all others are 0 or 1."""
MAX_CELLS = 10_000
"""Of a kitchen, through which one thread goes in each step."""
MOST_FLOOR = 150
"""Cells of a kitchen in which it is looked at where both cooks can be at once, of 150 x 149 pairs at most."""
POT_EMPTY = 23
"""What the clock of an empty pot shows."""


def rows_of(layout: str) -> list[str]:
    """A kitchen's rows of cells.

    Raises:
        WrongValue: there can be no such kitchen, or no soup in it.
    """
    rows = LAYOUTS.get(layout, layout).split()
    what = shown(layout)
    if len(rows) < 3 or len({len(row) for row in rows}) != 1:
        raise WrongValue(f"{what}: neither one of {', '.join(LAYOUTS)} nor at least 3 rows of cells of one length.")
    text = "".join(rows)
    if len(text) > MAX_CELLS:
        raise WrongValue(f"{what}: its {len(text):,} cells are more than {MAX_CELLS:,}. Make it smaller.")
    if odd := sorted(set(text) - set(GROUND)):
        raise WrongValue(f"{what}: there is no cell {odd[0]!r}. Write {' '.join(GROUND)}.")
    if text.count("0") != 1 or text.count("1") != 1:
        raise WrongValue(f"{what}: write each of the cooks 0 and 1 once.")
    if set(rows[0] + rows[-1] + "".join(row[0] + row[-1] for row in rows)) & set(".01"):
        raise WrongValue(f"{what}: there is floor at its edge. Put counters W all around.")
    if missing := [f"{name} {cell}" for cell, name in NEEDED.items() if cell not in text]:
        way_out = f"Write at least one{' of each' if len(missing) > 1 else ''}"
        raise WrongValue(f"{what}: no soup can be made and delivered without {', '.join(missing)}. {way_out}.")
    if wrong := _why_no_soup(text, len(rows[0])):
        raise WrongValue(f"{what}: {wrong}")
    return rows


def _why_no_soup(text: str, num_columns: int) -> str | None:
    """What keeps the cooks from all that a soup takes, and the way out; None if nothing does.

    Args:
        text: all rows, one after the other.
    """
    reach = [_reach(text, num_columns, stands) for stands in _stands(text, num_columns)]
    if lost := [cell for cell in NEEDED if not any(one[cell] for one in reach)]:
        at = {cell: "row {}, column {}".format(*divmod(text.index(cell), num_columns)) for cell in lost}
        told = ", ".join(f"{NEEDED[cell]} {cell} ({place})" for cell, place in at.items())
        return f"no cook can get to {told}, counted from 0. Leave a way to {'one of each' if len(lost) > 1 else 'it'}."
    first, second = reach
    if any(all(one[cell] for cell in NEEDED) for one in reach) or first["W"] & second["W"]:
        return None  # one does it all, or they hand things over
    filled = set().union(*(one["P"] for one in reach if one["O"]))
    served = set().union(*(one["P"] for one in reach if one["B"] and one["X"]))
    if filled & served:
        return None
    told = [", ".join(f"{name} {cell}" for cell, name in NEEDED.items() if one[cell]) for one in reach]
    way_out = "there is no counter W between them. Put one beside which both can stand."
    return f"cook 0 gets to {told[0]}, cook 1 to {told[1]}, and {way_out}"


def _stands(text: str, num_columns: int) -> list[set[int]]:
    """Cells that each cook can come to stand on: neither passes the other, but where one can make way."""
    floor = {cell for cell, kind in enumerate(text) if GROUND[kind] == FLOOR}
    starts = text.index("0"), text.index("1")
    if len(floor) > MOST_FLOOR:  # taken to be wide enough
        return [{one for one, _ in _walked((start, -1), floor, num_columns)} for start in starts]
    found = _walked(starts, floor, num_columns)
    return [{pair[cook] for pair in found} for cook in range(2)]


def _walked(starts: tuple[int, int], floor: set[int], num_columns: int) -> set[tuple[int, int]]:
    """Where two cooks can be at once, each with a number of its cell; -1: there is none."""
    found, waiting = {starts}, [starts]
    while waiting:
        first, second = waiting.pop()
        for way in (-num_columns, num_columns, -1, 1):
            for pair in ((first + way, second), (first, second + way)):
                moved = pair[0] if pair[1] == second else pair[1]
                if moved in floor and pair[0] != pair[1] and pair not in found:
                    found.add(pair)
                    waiting.append(pair)
    return found


def _reach(text: str, num_columns: int, stands: set[int]) -> dict[str, set[int]]:
    """What is beside the cells that a cook can stand on, as numbers of cells of each kind."""
    reach = {kind: set() for kind in GROUND}
    for cell in stands:
        for beside in (cell - num_columns, cell + num_columns, cell - 1, cell + 1):
            reach[text[beside]].add(beside)
    return reach


@dataclass(frozen=True)
class OvercookedConfig:
    layout: Annotated[str, Checked(rows_of, "the name or the rows of a kitchen")] = "cramped_room"
    """cramped_room, asymm_advantages, coord_ring, forced_coord or counter_circuit; or rows of a kitchen of one's own:
    W counter, O onions, B plates, P pot, X delivery, . floor, 0 and 1 the cooks, as in "WWPWW O0.1O W...W WBWXW"."""
    episode_length: Steps = 400
    """Steps."""
    shaping: Amount = 0.0
    """Weight of what is paid for steps towards a soup, which a callback may change in mid-run."""
    random_reset: bool = False
    """Whether an episode starts with the cooks anywhere, anything in their hands, and pots at any time."""
    paid_for_delivery: PositiveAmount = 20.0
    """To both cooks."""
    paid_for_onion_in_pot: Amount = 3.0
    """To the cook who puts it there, times `shaping`; as the two below."""
    paid_for_plate: Amount = 3.0
    """For a plate from the pile, if no other lies about and more pots are in use than cooks hold plates."""
    paid_for_soup: Amount = 5.0
    """For a soup that is taken out of the pot."""


class Overcooked(Env):
    """A soup is three onions in a pot, 20 steps of cooking, and a plate to carry it on.

    Observation: an image [row, column, channel] of bytes. 0 oneself, 1 the other cook; 2-5 one's own heading (up, down,
    right, left), 6-9 the other's; 10 pots, 11 free counters, 12 onions, 14 plates, 15 delivery; 16 onions in a pot that
    waits for more, 18 onions in soups, 20 steps until a soup is ready, 21 soups that are; 22 plates and 23 onions that
    lie about or are held; 25 all 1 in the last 39 steps. 13, 17, 19 and 24 are tomatoes, of which there are none.

    Actions: 0 up, 1 down, 2 right, 3 left, 4 stay, 5 interact with what is in front. Who cannot go somewhere turns
    there; who would meet in a cell, or swap, both stay.

    Figure `soups`: how many were delivered in an episode, each 20 to both; `shaping` has no part in it.
    """

    Config = OvercookedConfig
    config: OvercookedConfig
    num_agents = 2
    settable = ("shaping",)
    figures = {"soups": "soups delivered in an episode"}
    bounds = {"heading": (0, 3), "holds": (0, 3), "lies": (0, 3), "pot": (0, POT_EMPTY)}

    def __init__(self, config: OvercookedConfig | None = None) -> None:
        super().__init__(config)
        self.episode_length = self.config.episode_length
        self.rows = rows_of(self.config.layout)
        self.ground = np.array([[GROUND[one] for one in row] for row in self.rows], np.uint8)
        self.start = [int(np.flatnonzero(np.array(list("".join(self.rows))) == cook)[0]) for cook in "01"]
        high = np.ones((*self.ground.shape, NUM_CHANNELS), np.uint8)
        high[..., list(MOST_SEEN)] = list(MOST_SEEN.values())
        seen = spaces.Box(np.zeros_like(high), high, dtype=np.uint8)
        self.groups = {"cook": Group(range(2), seen, spaces.Discrete(6))}

    def cells_of(self, *grounds: int) -> list[int]:
        """Numbers of the cells, row by row, that have one of these grounds."""
        return np.flatnonzero(np.isin(self.ground, grounds)).tolist()

    def arrays(self) -> dict[str, np.ndarray]:
        return {
            "cell": np.array(self.start, np.int32),
            "heading": np.zeros(2, np.int32),
            "holds": np.zeros(2, np.int32),
            "lies": np.zeros(self.ground.size, np.uint8),
            "pot": np.full(len(self.cells_of(POT)), POT_EMPTY, np.int32),
            "time_step": np.zeros((), np.int32),
            "num_delivered": np.zeros((), np.int32),
            "soups": np.zeros((), np.float32),
            "shaping": np.array(self.config.shaping, np.float32),
        }

    def tables(self) -> dict[str, np.ndarray]:
        blank = np.zeros((2, 2, *self.ground.shape, NUM_CHANNELS), np.uint8)
        for ground, channel in CHANNELS.items():
            blank[..., channel] = self.ground == ground
        blank[1, ..., LATE_CHANNEL] = 1
        return {"ground": self.ground.ravel(), "blank_view": blank}

    def constants(self) -> dict[str, Any]:
        config, (num_rows, num_columns) = self.config, self.ground.shape
        pots, counters, floor = self.cells_of(POT), self.cells_of(COUNTER), self.cells_of(FLOOR)
        return {
            "NUM_ROWS": num_rows,
            "NUM_COLUMNS": num_columns,
            "NUM_POTS": len(pots),
            "POT_CELLS": pots,
            "NUM_COUNTERS": len(counters),
            "COUNTER_CELLS": counters or [0],
            "NUM_FLOOR": len(floor),
            "FLOOR_CELLS": floor,
            "START_CELLS": self.start,
            "EPISODE_LENGTH": config.episode_length,
            "RANDOM_RESET": config.random_reset,
            "PAID_FOR_DELIVERY": float(config.paid_for_delivery),
            "PAID_FOR_ONION_IN_POT": float(config.paid_for_onion_in_pot),
            "PAID_FOR_PLATE": float(config.paid_for_plate),
            "PAID_FOR_SOUP": float(config.paid_for_soup),
        }

    def why_impossible(self, state: Mapping[str, np.ndarray]) -> str | None:
        if not np.isin(state["cell"], self.cells_of(FLOOR)).all():
            return "'cell' has a cook where there is no floor"
        return super().why_impossible(state)

    def drawing(self, episode: Mapping[str, np.ndarray]) -> Drawing:
        num_rows, num_columns = self.ground.shape
        place = lambda cell: (cell % num_columns * 1.0, num_rows - 1.0 - cell // num_columns)  # noqa: E731
        floor = {"floor": "#F4EFE6", "counter": "#B99A6B", "onions": "#E6C229", "plates": "#C9D3DC",
                 "delivery": "#009E73", "pot": "#4A4A4A"}  # fmt: skip
        item = {"nothing": None, "an onion": "#E69F00", "a plate": "#FFFFFF", "a soup": "#A3320B"}
        cook = {"cook 0": PALETTE[0], "cook 1": PALETTE[3]}
        x, y = place(episode["cell"])
        turn_x, turn_y = np.array([0, 0, 1, -1]), np.array([1, -1, 0, 0])
        ahead_x, ahead_y = (x + 0.33 * turn_x[episode["heading"]], y + 0.33 * turn_y[episode["heading"]])
        counters, pots = np.array(self.cells_of(COUNTER), int), np.array(self.cells_of(POT))
        still = lambda cells: tuple(one[np.newaxis] for one in place(cells))  # noqa: E731
        clocks = np.array(["", *(f"{left} to go" for left in range(1, 20)), "3 onions", "2 onions", "1 onion", ""])
        clocks[0] = "ready"
        shapes = [
            cells(one_of(self.ground, floor), from_top=True),
            texts(*still(pots), one_of(episode["pot"], clocks.tolist()), 0.2, colour="#FFFFFF"),
            *agent_circles(self, x, y, 0.3, colour=one_of([[0, 1]], cook)),
            segments(np.stack([x, ahead_x], -1), np.stack([y, ahead_y], -1), width=0.06, colour=DARK),
            circles(x, y, 0.15, colour=one_of(episode["holds"], item)),
            texts(-0.45, num_rows - 0.3, formatted(episode["num_delivered"], "{} delivered"), 0.3, align="left"),
        ]
        if len(counters):
            shapes.insert(1, circles(*still(counters), 0.18, colour=one_of(episode["lies"][:, counters], item)))
        return Drawing(shapes, bounds=(-0.6, -0.6, num_columns - 0.4, num_rows + 0.1))
