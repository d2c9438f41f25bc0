"""Numbers near one that does not divide another."""

MAX_TRIES = 100_000
"""That are looked at for one that divides another."""


def multiples_around(number: int, of: int) -> list[int]:
    """The positive multiples next to a number that is none, below and above."""
    below = number // of * of
    return [below, below + of] if below else [of]


def nearest_divisors(number: int, wanted: int) -> str:
    """The divisors of `number` next to `wanted`, below and above, in words; 1 and itself where the next are far."""
    start = min(wanted, number)
    below = next((n for n in range(start, max(start - MAX_TRIES, 0), -1) if number % n == 0), 1)
    above = next((n for n in range(wanted + 1, min(wanted + MAX_TRIES, number) + 1) if number % n == 0), None)
    if above is None and wanted < number:
        above = number
    return " and ".join(str(n) for n in (below, above) if n is not None)
