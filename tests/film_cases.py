"""A film in which every kind of choice changes, and what must be seen of it in any player."""

import numpy as np

from warpdrive.drawing import Drawing, between, cells, circles, one_of, texts, top_channel
from warpdrive.player import Film

RED, BLUE, GREEN, BLACK, WHITE = "#d50000", "#0000d5", "#009000", "#000000", "#ffffff"

_MAP = np.array([[0, 1], [2, 1]])
_SCREEN = np.zeros((3, 2, 2, 2), np.uint8)
_SCREEN[:, 0, 1, 0], _SCREEN[1:, 1, 0] = 255, 1  # in frame 0 the first channel, later both of another cell too

CHANGING = Film(
    Drawing(
        [
            cells(one_of(_MAP, {"floor": None, "wall": BLACK, "door": GREEN}), (0, 0, 4, 4)),
            cells(top_channel(_SCREEN, [RED, BLUE]), (6, 0, 10, 4), from_top=True),
            circles([[2.0, 5.0]], [[6.0, 6.0]], 0.5, colour=one_of([[0, 1], [1, 1], [2, 1]], [RED, BLUE, None])),
            circles([8.0], [6.0], 0.5, colour=between([-1.0, 1.0, 1.0], 0, 1, RED, BLUE)),
            circles([9.5], [9.5], 0.2, colour="#f8f8f8"),  # which must not take white's place in a GIF's palette
            texts([2.0, 5.0, 8.0], [8.0] * 3, "MM", height=1.5, group="b"),
            texts(5.0, 9.4, one_of([0, 1, 0], ["", "MM"]), height=0.7, align="left", colour=BLACK),
        ],
        (0, 0, 10, 10),
    ),
    {"a": 1, "b": 1},
    {},
    3,
)

SEEN = [  # frame, x, y, colour there
    *[(frame, 1, 1, WHITE) for frame in range(3)],  # row 0 is the lowest: floor and wall
    *[(frame, 3, 1, BLACK) for frame in range(3)],
    *[(frame, 1, 3, GREEN) for frame in range(3)],
    (0, 2.2, 0.3, BLACK),  # up to the edge
    (0, 9, 3, RED),  # row 0 is the highest
    (0, 7, 1, WHITE),
    (1, 7, 1, BLUE),  # the last channel lies above
    (0, 2, 6, RED),
    (1, 2, 6, BLUE),
    (2, 2, 6, WHITE),
    *[(frame, 5, 6, BLUE) for frame in range(3)],
    (0, 8, 6, RED),
    (1, 8, 6, BLUE),
]

ORANGE = "#d55e00"
WRITTEN = [  # frame, left, bottom, right, top, and the ink that is or is not somewhere within
    *[(frame, 1 + 3 * at, 7, 3 + 3 * at, 9, ORANGE, frame == at) for frame in range(3) for at in range(3)],
    (0, 5, 9, 7, 9.8, BLACK, False),
    (1, 5, 9, 7, 9.8, BLACK, True),
    (1, 3, 9, 4.9, 9.8, BLACK, False),  # it starts at its place
]
