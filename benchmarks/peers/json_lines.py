"""What the peers' drivers share: figures as JSON lines on stdout, and as one report with command and commit."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

LINES: list[dict[str, Any]] = []
"""All that was printed."""


def emit(**figures: Any) -> None:
    """Prints one JSON line, even where stdout was sent elsewhere meanwhile."""
    LINES.append(figures)
    print(json.dumps(figures), file=sys.__stdout__, flush=True)


def write_lines(name: str, folder: str | None, device: str) -> None:
    """Writes every line to peer_NAME.json in `folder`, laid out as the other reports; nothing if it is None."""
    if folder is None:
        return
    at = sys.argv.index("--out") if "--out" in sys.argv else len(sys.argv)
    git = ["git", "describe", "--always", "--dirty"]
    commit = subprocess.run(git, cwd=Path(__file__).parent, capture_output=True, text=True).stdout.strip()
    report = {
        "benchmark": f"peer_{name}",
        "command": shlex.join(["python", *sys.argv[:at], *sys.argv[at + 2 :]]),
        "commit": commit or "unknown",
        "device": device,
        "results": LINES,
    }
    path = Path(folder) / f"peer_{name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(report, indent=2) + "\n")
    print(f"written to {path}", file=sys.stderr)
