"""Errors of a run, besides the framework's own."""

from __future__ import annotations

from warpdrive.errors import WarpDriveError


class RunFolderError(WarpDriveError):
    """The folder of a run cannot be made."""


class MemoryShortError(WarpDriveError, MemoryError):
    """A run does not fit into the memory that there is."""


class NonFiniteError(WarpDriveError):
    """A run met a NaN or an infinity, and learned nothing from it."""
