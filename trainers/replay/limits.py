"""When a table may take in steps, and when it may be drawn from: host arithmetic alone.

Counts are of items: of those that came into the table, and of those that were drawn. Whoever adds or draws asks first
whether it may; nothing waits, as one process does both.

Source: Cassirer et al. 2021, "Reverb: a framework for experience replay", arXiv:2102.04736, section 3.4.
"""

from __future__ import annotations

import math
import numbers
from collections import deque
from dataclasses import dataclass, field, replace

import torch

from trainers.experience.field import in_a_line, whole
from trainers.replay.storage import check_room
from trainers.run.free_memory import free_bytes
from warpdrive.errors import ConfigError

MOST_STATES = 10_000
"""That are looked at for one in which neither side may go on."""


@dataclass(frozen=True)
class RateLimiter:
    """Keeps how many more items came in than were drawn, at so many draws an item, between two bounds.

    The difference is `items that came in * samples_per_insert - items drawn`. Nothing comes in that would raise it
    above `max_diff`, and nothing is drawn that would lower it below `min_diff`; below `min_size` items in the table
    nothing is drawn, and everything comes in.
    """

    samples_per_insert: float = 1.0
    min_size: int = 1
    min_diff: float = -math.inf
    max_diff: float = math.inf
    widens: bool = False
    """Whether the bounds go apart, evenly, until what comes in at once fits between them, and as many draws as that
    asks for."""

    @property
    def compares(self) -> bool:
        """Whether it looks at the difference at all."""
        return math.isfinite(self.min_diff) or math.isfinite(self.max_diff)

    def __post_init__(self) -> None:
        _check_ratio(self.samples_per_insert)
        whole("min_size", self.min_size, 1)
        for name, bound in (("min_diff", self.min_diff), ("max_diff", self.max_diff)):
            if not isinstance(bound, numbers.Real) or math.isnan(bound):
                raise ConfigError(f"{name}: {in_a_line(bound)} is no bound. Take a number.")
        if not self.min_diff <= self.max_diff:
            raise ConfigError(f"min_diff {self.min_diff} is above max_diff {self.max_diff}. Exchange them.")

    def fitted(self, at_once: int) -> RateLimiter:
        """For a table into which so many items come together: wider, if it `widens`."""
        missing = self.missing_room(at_once, max(1, int(at_once * self.samples_per_insert)))
        if not self.widens or missing <= 0:
            return self
        return replace(self, min_diff=self.min_diff - missing, max_diff=self.max_diff + missing)

    def missing_room(self, at_once: int, drawn: int) -> float:
        """How far both bounds would have to go apart for so many that come in and are drawn at once; 0 or less: not."""
        first = math.ceil(self.min_size / at_once) * at_once  # items once draws begin
        first_diff = first * self.samples_per_insert if first > self.min_size else -math.inf
        needed = at_once * self.samples_per_insert + drawn
        return max((needed - (self.max_diff - self.min_diff)) / 2, first_diff - self.max_diff)

    def check(self, name: str, most: int, at_once: int, drawn: int = 1) -> None:
        """Raises ConfigError where it would let nothing be drawn, or nothing come in, at some time and for ever.

        Args:
            most: items that a table ever has.
            at_once: that come in together.
            drawn: that are drawn together.
        """
        if self.min_size > most:
            raise ConfigError(
                f"{name}: draws begin with {self.min_size:,} items (min_size), and the store never has more than "
                f"{most:,}. Lower it, or raise the capacity."
            )
        if (problem := Counter(self).problem_of(at_once, drawn)) is not None:
            raise ConfigError(f"{name}: {problem}")


def _check_ratio(samples_per_insert: object) -> None:
    if not isinstance(samples_per_insert, numbers.Real) or not 0 < samples_per_insert < math.inf:
        raise ConfigError(f"samples_per_insert: {in_a_line(samples_per_insert)} is no ratio. Take a number above 0.")


def MinSize(min_size: int) -> RateLimiter:
    """Draws begin with so many items; then everything is allowed."""
    return RateLimiter(1.0, min_size)


def SampleToInsertRatio(
    samples_per_insert: float, min_size: int, error_buffer: float | tuple[float, float] | None = None
) -> RateLimiter:
    """About so many draws of an item.

    Args:
        error_buffer: how far off the difference may be from what it is with `min_size` items, undrawn; a pair: its
            bounds themselves. None: as far as a table's windows need, and draws of as many items as a window asks for.
    Raises:
        ConfigError: with so small a buffer neither side could go on.
    """
    _check_ratio(samples_per_insert)
    whole("min_size", min_size, 1)
    widens = error_buffer is None
    if error_buffer is None:
        error_buffer = 2.0 * max(1.0, samples_per_insert)
    is_pair = isinstance(error_buffer, tuple) and len(error_buffer) == 2
    if not is_pair and not isinstance(error_buffer, numbers.Real):
        raise ConfigError(f"error_buffer: {in_a_line(error_buffer)}. Take a number, or a pair of bounds.")
    if not is_pair:
        least = max(1.0, samples_per_insert)
        if error_buffer < least:
            raise ConfigError(
                f"error_buffer: {error_buffer:g} is less than one item and its draws. Take at least {least:g}."
            )
        offset = samples_per_insert * min_size
        error_buffer = offset - error_buffer, offset + error_buffer
    return RateLimiter(samples_per_insert, min_size, *error_buffer, widens)


def Queue(size: int) -> RateLimiter:
    """What comes in is drawn once, and at most `size` items wait: with Oldest and max_times_sampled=1 first in, first
    out."""
    whole("size", size, 1)
    return RateLimiter(1.0, 1, 0.0, float(size))


def Stack(size: int) -> RateLimiter:
    """The same of a stack: with Newest and max_times_sampled=1 last in, first out."""
    return Queue(size)


@dataclass
class Counter:
    """What a limiter decides by; saved with the run as two numbers."""

    limiter: RateLimiter = field(default_factory=lambda: MinSize(1))
    num_inserted: int = 0
    """Items that ever came in."""
    num_sampled: int = 0
    """Items that were ever drawn."""

    def may_insert(self, number: int, size: int) -> bool:
        """Whether so many may come in, one after the other, with `size` items in the table."""
        limiter = self.limiter
        # The last of them to come in at or above min_size meets the bound; below min_size everything comes in.
        if size + number <= limiter.min_size:
            return True
        return (self.num_inserted + number) * limiter.samples_per_insert - self.num_sampled <= limiter.max_diff

    def may_sample(self, number: int, size: int) -> bool:
        """Whether so many may be drawn, with `size` items in the table."""
        limiter = self.limiter
        if size < limiter.min_size:
            return False
        return self.num_inserted * limiter.samples_per_insert - self.num_sampled - number >= limiter.min_diff

    def insert(self, number: int) -> None:
        self.num_inserted += number

    def sample(self, number: int) -> None:
        self.num_sampled += number

    def problem_of(self, num_inserted: int, num_sampled: int) -> str | None:
        """Why so many at once would leave both sides waiting for each other, from an empty table on; None if they would
        not."""
        limiter = self.limiter
        if (stuck := self._stuck(num_inserted, num_sampled)) is None:
            return None
        missing = limiter.missing_room(num_inserted, num_sampled)
        room = limiter.max_diff - limiter.min_diff
        came_in, drawn = stuck
        return (
            f"{num_inserted:,} items that come in at once, and {num_sampled:,} that are drawn at once, wait for each "
            f"other once {came_in:,} came in and {drawn:,} were drawn: the limiter's bounds are {room:g} apart. Raise "
            f"the error_buffer to {math.ceil(room / 2 + missing):,}, or a queue's size to "
            f"{math.ceil(room + 2 * missing):,}."
        )

    def _stuck(self, number: int, batch: int) -> tuple[int, int] | None:
        """Items that came in and were drawn where neither side may go on, the first there is; None if there is none."""
        limiter = self.limiter
        if not limiter.compares or limiter.missing_room(number, batch) <= 0:
            return None
        seen: set[tuple[int, float]] = set()
        ahead = deque([(0, 0)])
        while ahead and len(seen) < MOST_STATES:
            came_in, drawn = ahead.popleft()
            now, size = Counter(limiter, came_in, drawn), came_in  # no table is smaller once it was of min_size
            after = [(came_in + number, drawn)] if now.may_insert(number, size) else []
            after += [(came_in, drawn + batch)] if now.may_sample(batch, size) else []
            if not after:
                return came_in, drawn
            for state in after:
                difference = round(state[0] * limiter.samples_per_insert - state[1], 6)
                where = min(state[0], limiter.min_size), difference
                if where not in seen:
                    seen.add(where)
                    ahead.append(state)
        return None


class Staleness:
    """From which step on items are fresh enough: those that a policy played at most `limit` versions before this one.

    Each window's steps carry the version of the policy that played them, which the host knows.
    """

    def __init__(self, limit: int) -> None:
        self.limit, needed = limit, 16 * (limit + 1)
        if limit:
            told = f"max_staleness {limit:,}"
            check_room(told, needed, free_bytes(torch.device("cpu")), "Lower it, or take 0 for any.")
        self.versions = torch.full((limit + 1, 2), -1, dtype=torch.int64)
        """[limit + 1, 2], on the host: versions and the first step that each played; a version has the row of its
        remainder."""

    def played(self, version: int, first_step: int) -> None:
        """A window is added, which begins at this step."""
        newest = int(self.versions[:, 0].max())
        if version < newest:
            raise ConfigError(f"version {version} of the policy comes after version {newest}. Count upwards.")
        if version > newest:
            self.versions[version % (self.limit + 1)] = torch.tensor([version, first_step])

    def oldest(self, version: int, head: int) -> int:
        """The first step that may be drawn for this version; `head` if there is none."""
        fresh = self.versions[:, 0] >= max(0, version - self.limit)
        return int(self.versions[fresh, 1].min()) if fresh.any() else head
