"""When a table may take in steps, and when it may be drawn from: host arithmetic alone.

Counts are of items: of those that came into the table, and of those that were drawn. Whoever adds or draws asks first
whether it may; nothing waits, as one process does both.

Source: Cassirer et al. 2021, "Reverb: a framework for experience replay", arXiv:2102.04736, section 3.4.
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from fractions import Fraction

import torch

from trainers.experience.field import in_a_line, whole
from trainers.replay.storage import check_room
from trainers.run.free_memory import free_bytes
from warpdrive.errors import ConfigError

MOST_STATES = 20_000
"""That are looked at for one in which neither side may go on, or that was seen before."""


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

    def still_drawn(self, num_sampled: int, num_gone: int) -> int:
        """Draws that are counted on, where of the items that came in so many are counted no more."""
        return num_sampled - round(num_gone * self.samples_per_insert) if self.compares else num_sampled

    def fitted(self, at_once: int) -> RateLimiter:
        """For a table into which so many items come together: wider, if it `widens`."""
        missing = self._missing_room(at_once, max(1, int(at_once * self.samples_per_insert)))
        if not self.widens or missing <= 0:
            return self
        missing = float(math.ceil(missing))
        return replace(self, min_diff=self.min_diff - missing, max_diff=self.max_diff + missing)

    def _needs(self, at_once: int, drawn: int) -> tuple[Fraction, Fraction]:
        """How far apart the bounds have to be, and how high the upper one, for so many that come in and are drawn at
        once, whatever came before."""
        ratio = exact(self.samples_per_insert)
        last = self.min_size - 1 + at_once if at_once > 1 else 0  # items once draws begin, at most
        return at_once * ratio + drawn, last * ratio

    def _missing_room(self, at_once: int, drawn: int) -> Fraction | float:
        """How far both bounds would have to go apart for that; 0 or less: they need not."""
        room, highest = self._needs(at_once, drawn)
        apart = exact(self.max_diff) - exact(self.min_diff)
        return max(highest - exact(self.max_diff), (room - apart) / 2)

    def problem_of(self, at_once: int, drawn: int, items_after: Callable[[int], int] | None = None) -> str | None:
        """Why so many at once would leave both sides waiting for each other, from an empty table on; None if they would
        not.

        Args:
            at_once: items that come in together.
            drawn: that are drawn together.
            items_after: how many came in after so many times; if not given, `at_once` each time.
        """
        if not self.compares or self._missing_room(at_once, drawn) <= 0:
            return None
        stuck = self._stuck(at_once, drawn, items_after or (lambda times: times * at_once))
        if stuck is None:
            return None
        room, highest = self._needs(at_once, drawn)
        ratio = exact(self.samples_per_insert)
        buffer = max(room / 2, highest - ratio * self.min_size, ratio, Fraction(1))
        return (
            f"{at_once:,} items that come in at once, and {drawn:,} that are drawn at once, wait for each other once "
            f"{stuck[0]:,} came in and {stuck[1]:,} were drawn: the limiter's bounds are {self.min_diff:g} and "
            f"{self.max_diff:g}. Take an error_buffer of {math.ceil(buffer):,}, or a queue's size of "
            f"{math.ceil(max(room, highest)):,}."
        )

    def _stuck(self, at_once: int, drawn: int, items_after: Callable[[int], int]) -> tuple[int, int] | None:
        """Items that came in and were drawn where neither side may go on; None if there is no such place.

        The bounds are too close for both sides to be allowed at one time, so there is one way to go.
        """
        times = max(0, self.min_size // at_once - 2)  # until there everything comes in, and nothing is drawn
        sampled, seen, ratio = 0, set(), exact(self.samples_per_insert)
        for _ in range(MOST_STATES):
            inserted = items_after(times)
            now = Counter(self, inserted, sampled)
            if now.may_insert(at_once, inserted):
                times += 1
            elif now.may_sample(drawn, inserted):
                too_many = (inserted + at_once) * ratio - sampled - exact(self.max_diff)  # for more to come in
                left = inserted * ratio - sampled - exact(self.min_diff)
                draws = math.ceil(too_many / drawn)
                sampled += drawn * (draws if left == math.inf else min(draws, math.floor(left / drawn)))
            else:
                return inserted, sampled
            place = items_after(times + 1) - items_after(times), items_after(times) * ratio - sampled
            if inserted >= self.min_size and place in seen:
                return None
            seen.add(place)
        return items_after(times), sampled  # it was not seen to go on for ever

    def check(
        self, name: str, most: int, at_once: int, drawn: int = 1, items_after: Callable[[int], int] | None = None
    ) -> None:
        """Raises ConfigError where it would let nothing be drawn, or nothing come in, at some time and for ever.

        Args:
            most: items that a table ever has; the others as `problem_of` has them.
        """
        if self.min_size > most:
            raise ConfigError(
                f"{name}: draws begin with {self.min_size:,} items (min_size), and the store never has more than "
                f"{most:,}. Lower it, or raise the capacity."
            )
        if (problem := self.problem_of(at_once, drawn, items_after)) is not None:
            raise ConfigError(f"{name}: {problem}")


def exact(number: float) -> Fraction | float:
    """As it is written: 0.3 is three tenths, so that sums meet bounds where they do on paper. Infinities stay."""
    return Fraction(repr(float(number))) if math.isfinite(number) else float(number)


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
        difference = (self.num_inserted + number) * exact(limiter.samples_per_insert) - self.num_sampled
        return difference <= exact(limiter.max_diff)

    def may_sample(self, number: int, size: int) -> bool:
        """Whether so many may be drawn, with `size` items in the table."""
        limiter = self.limiter
        if size < limiter.min_size:
            return False
        difference = self.num_inserted * exact(limiter.samples_per_insert) - self.num_sampled - number
        return difference >= exact(limiter.min_diff)

    def insert(self, number: int) -> None:
        self.num_inserted += number

    def sample(self, number: int) -> None:
        self.num_sampled += number


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
