"""Trials of a search that train nothing."""

from __future__ import annotations


class FakeRun:
    """Reports `height` times the env steps, some at a time, up to 80; then it ended, well or not."""

    exit_code = 3

    def __init__(self, height: float, reason: str | None = None, pace: int = 10) -> None:
        self.pace = pace
        self.height, self.reason, self.steps, self.is_stopped = height, reason, 0, False

    def has_ended(self) -> bool:
        return self.is_stopped or self.steps >= 80 or self.reason is not None

    def reports(self) -> list[tuple[int, float, float]]:
        if self.reason or self.has_ended():
            return []
        self.steps += self.pace
        return [(self.steps, self.height * self.steps, 1)]

    def why_failed(self) -> str | None:
        return self.reason

    def stop(self) -> None:
        self.is_stopped = True

    kill = stop


class SilentRun(FakeRun):
    """Trains, and reports nothing."""

    def reports(self) -> list[tuple[int, float, float]]:
        return []
