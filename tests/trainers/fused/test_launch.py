"""Calls of several networks: which are one launch, which may run beside others."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from trainers.fused.launch import Launch, side_by_side


@dataclass
class Told(Launch):
    """One that a list is told of."""

    name: str
    kernel: str
    told: list[Any]

    @property
    def kind(self) -> tuple[str]:
        return (self.kernel,)

    @staticmethod
    def together(launches: Sequence[Told]) -> Any:
        return lambda: launches[0].told.append(tuple(one.name for one in launches))


class Backend:
    def __init__(self, told: list[Any]) -> None:
        self.told = told

    @contextmanager
    def beside(self) -> Iterator[Any]:
        self.told.append("beside:")
        yield lambda: self.told.append("meet")
        self.told.append("here:")


def test_launches_of_a_kind_are_one_and_other_calls_keep_their_order():
    told: list[Any] = []
    first = [Told("a1", "x", told), lambda: told.append("a2"), Told("a3", "y", told)]
    second = [Told("b1", "x", told), Told("b2", "x", told)]
    for call in side_by_side([first, second], Backend(told)):
        call()
    assert told == [("a1", "b1"), "a2", ("b2",), ("a3",)]


def test_calls_that_no_launch_can_have_in_common_run_beside_each_other():
    told: list[Any] = []
    lists = [[lambda i=i, k=k: told.append(f"{i}{k}") for k in "ab"] for i in range(3)]
    (call,) = side_by_side([*lists, []], Backend(told))
    assert told == []
    call()
    assert told == ["beside:", "1a", "1b", "here:", "0a", "0b", "2a", "2b", "meet"]


def test_one_network_runs_where_it_is():
    told: list[Any] = []
    for call in side_by_side([[lambda: told.append("a")], []], Backend(told)):
        call()
    assert told == ["a"]
