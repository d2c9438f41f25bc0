"""Launches that may serve several networks at once."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from functools import partial
from typing import Any

from trainers.acting.actor import Call
from warpdrive.backends.base import Backend


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


def side_by_side(lists: Sequence[Sequence[Call | Launch]], backend: Backend | None = None) -> list[Call]:
    """The calls of several networks, each in its order; launches that can be one are.

    Args:
        backend: where they leave parts of a GPU idle, and share nothing that they write: those of every other network
            then run beside the rest, if none can be one with another's.
    """
    lists = [one for one in lists if one]
    has_launches = any(isinstance(one, Launch) for calls in lists for one in calls)
    if backend is not None and len(lists) > 1 and not has_launches:
        here, beside = ([call for one in some for call in one] for some in (lists[::2], lists[1::2]))
        return [partial(_run_beside, here, beside, backend)]
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


def _run_beside(here: Sequence[Call], beside: Sequence[Call], backend: Backend) -> None:
    with backend.beside() as meet:
        for call in beside:
            call()
    for call in here:
        call()
    meet()
