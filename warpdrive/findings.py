"""What the doctor's checks give: one line each, with its state and the way out."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

OK, WARNING, PROBLEM = "ok", "warning", "problem"
WOULD_RUN = "would run"
"""Subject of the last line."""


@dataclass(frozen=True)
class Finding:
    """One line of the report; `fix` is empty where nothing is to be done."""

    subject: str
    state: Literal["ok", "warning", "problem"]
    text: str
    fix: str = ""


@dataclass(frozen=True)
class Torch:
    """What torch says of itself. `cuda` is the CUDA that it was built for, `archs` the GPUs, as sm_90; `error` says why
    it cannot be imported."""

    version: str | None = None
    cuda: str | None = None
    archs: tuple[str, ...] = ()
    sees_gpu: bool = False
    error: str | None = None


def dotted(version: Iterable[int] | None) -> str:
    return "?" if version is None else ".".join(map(str, version))


def one_line(error: Exception) -> str:
    """What an error says, shortened, and its kind if it says nothing."""
    text = " ".join(str(error).split()).rstrip(".") or type(error).__name__
    return text if len(text) <= 300 else f"{text[:300]}..."
