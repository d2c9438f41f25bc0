"""Launches that may serve several networks at once."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from trainers.acting.actor import Call


class Launch:
    """A network's part of one. Derive from it: say `kind` and `together`."""

    @property
    def kind(self) -> tuple[Any, ...]:
        """Launches of one kind can be one."""
        raise NotImplementedError

    @staticmethod
    def together(launches: Sequence[Any]) -> Call:
        """One launch for all of these, which are of one kind."""
        raise NotImplementedError


def side_by_side(lists: Sequence[Sequence[Call | Launch]]) -> list[Call]:
    """The calls of several networks, each in its order; launches that can be one are."""
    calls = []
    for step in itertools.zip_longest(*lists):
        kinds: dict[Any, list[Launch]] = {}
        for one in step:
            if isinstance(one, Launch):
                kinds.setdefault(one.kind, []).append(one)
            elif one is not None:
                calls.append(one)
        calls += [launches[0].together(launches) for launches in kinds.values()]
    return calls
