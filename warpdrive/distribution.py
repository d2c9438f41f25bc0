"""What pip calls this project: not as Python imports it, for `warpdrive` on PyPI is somebody else's."""

from __future__ import annotations

import shlex
from pathlib import Path

DISTRIBUTION = "warpdrive-marl"

_ROOT = Path(__file__).parents[1]


def pip_install(extra: str = "") -> str:
    """The command that brings an extra to where this package runs from: the checkout itself, or by its name.

    Installed with `-e` or only on the path, a checkout stays what is imported.
    """
    project = _ROOT / "pyproject.toml"
    is_checkout = project.is_file() and f'name = "{DISTRIBUTION}"' in project.read_text(errors="replace")
    wanted = f"{_ROOT if is_checkout else DISTRIBUTION}{f'[{extra}]' if extra else ''}"
    return f"pip install {'-e ' if is_checkout else ''}{shlex.quote(wanted)}"
