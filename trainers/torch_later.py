"""torch, loaded when something of it is first asked for: of modules that a config is checked by, which is done without.

from trainers import torch_later as torch
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # editors and type checkers see torch itself
    from torch import *  # noqa: F403


def __getattr__(name: str) -> Any:
    if name.startswith("__"):  # asked by who looks at modules, not by who computes
        raise AttributeError(name)
    import torch

    return getattr(torch, name)
